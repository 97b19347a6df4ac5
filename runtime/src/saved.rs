//! A row of a session as a file: its tokens and its states, to be continued later, in another process, with the same bits.
//!
//! ```text
//! "WSES", u32 version, u32 bytes of the description, u32 tokens, u32 of them accepted, u32 bytes of the note
//! the description: a line for each fact that must be the same
//! u32 tokens
//! the note: whatever the caller wants to find again
//! each state: of a cache the tiles of each head that hold accepted positions, of a recurrence the accepted half
//! u32 CRC-32C of all before
//! ```
//!
//! All little-endian. Version 1 has no note. Invariants
//! - the whole file is checked before a byte of the session changes;
//! - a file of another model, arithmetic or shape is refused with the first line that differs. Positions, rows, chunk and
//!   threads may differ, as long as the tokens fit.
//!
//! Deliberately absent: compression, and tokens without states (they are a prompt).

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use waste_plan::file::write_whole;
use waste_plan::schema::{KV_TILE, Plan, State, StateKind};

use crate::error::RuntimeError;
use crate::session::Session;

const MAGIC: [u8; 4] = *b"WSES";
const VERSION: u32 = 2;
/// Bytes before the description, by version less one.
const HEADS: [usize; 2] = [20, 24];

/// What must be the same, a line each.
fn description(plan: &Plan) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    let (model, options) = (&plan.model, &plan.options);
    // Writing to a string does not fail.
    let _ =
        writeln!(out, "model {:?} of {} parameters, vocabulary {}", model.name, model.params, model.vocab);
    let _ = writeln!(out, "arithmetic {}, caches of {}", options.math.name(), options.kv.name());
    for source in &plan.sources {
        let _ = writeln!(out, "source of {} bytes, header {}", source.bytes, source.header_sha256);
    }
    for state in &plan.states {
        let [_, positions, heads, width] = state.shape;
        let (name, kind, dtype) = (&state.name, state.kind.name(), state.dtype.name());
        let positions = if state.kind == StateKind::Recurrent { positions } else { 0 };
        let _ = writeln!(out, "state {name:?} {kind} {dtype}[{positions}, {heads}, {width}]");
    }
    out
}

/// The bytes of one row's state that `len` accepted tokens fill, `half` being the accepted one of a recurrence.
fn ranges(state: &State, row: usize, half: usize, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let [_, a, b, c] = state.shape.map(|it| it as usize);
    let elem = state.dtype.block().map_or(4, |it| it.bytes as usize);
    // Pieces of `bytes` bytes, `step` apart.
    let (first, n, step, bytes) = if state.kind == StateKind::Recurrent {
        let bytes = a * b * c * elem;
        ((row * 2 + half) * bytes, 1, bytes, bytes)
    } else {
        let head = a * c * elem;
        (row * b * head, b, head, len.next_multiple_of(KV_TILE as usize) * c * elem)
    };
    (0..n).map(move |i| first + i * step..first + i * step + bytes)
}

/// Writes and sums.
struct Summed<W> {
    out: W,
    crc: u32,
}

impl<W: Write> Summed<W> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.out.write_all(bytes)
    }
}

impl Session {
    /// Saves row `row`, whose tokens are `ids`: the accepted ones, and what follows them and is not accepted yet.
    ///
    /// # Errors
    /// [`RuntimeError::Saved`] if there are fewer ids than accepted tokens, or the file cannot be written.
    pub fn save(&self, row: u32, ids: &[u32], path: &Path) -> Result<(), RuntimeError> {
        self.save_with(row, ids, &[], path)
    }

    /// As [`Session::save`], with a `note` that [`Session::restore_with`] gives back.
    ///
    /// # Errors
    /// As [`Session::save`].
    pub fn save_with(&self, row: u32, ids: &[u32], note: &[u8], path: &Path) -> Result<(), RuntimeError> {
        let len = self.len(row) as usize;
        let refuse = |message: String| RuntimeError::Saved { path: path.to_owned(), message };
        if ids.len() < len {
            return Err(refuse(format!("{} ids for {len} accepted tokens", ids.len())));
        }
        let description = description(self.plan());
        if u32::try_from(note.len()).is_err() {
            return Err(refuse(format!("a note of {} bytes", note.len())));
        }
        let number = |n: usize| u32::try_from(n).expect("tokens of a validated plan").to_le_bytes();
        let written = write_whole(path, |out| {
            let mut out = Summed { out, crc: 0 };
            out.put(&MAGIC)?;
            out.put(&VERSION.to_le_bytes())?;
            for n in [description.len(), ids.len(), len, note.len()] {
                out.put(&number(n))?;
            }
            out.put(description.as_bytes())?;
            ids.iter().try_for_each(|id| out.put(&id.to_le_bytes()))?;
            out.put(note)?;
            for (id, state) in (0..).zip(&self.plan().states) {
                for range in ranges(state, row as usize, self.half(row), len) {
                    out.put(self.spaces().state_bytes(id, range))?;
                }
            }
            let crc = out.crc;
            out.out.write_all(&crc.to_le_bytes())
        });
        written.map_err(|it| refuse(it.to_string()))
    }

    /// Restores what [`Session::save`] saved into row `row`, and returns its ids; those beyond [`Session::len`] are not accepted yet.
    ///
    /// # Errors
    /// [`RuntimeError::Saved`] if the file cannot be read, is damaged, or is of another model or shape. The row is then as it was.
    pub fn restore(&mut self, row: u32, path: &Path) -> Result<Vec<u32>, RuntimeError> {
        Ok(self.restore_with(row, path)?.0)
    }

    /// As [`Session::restore`], with the note of [`Session::save_with`]; empty if there was none.
    ///
    /// # Errors
    /// As [`Session::restore`].
    pub fn restore_with(&mut self, row: u32, path: &Path) -> Result<(Vec<u32>, Vec<u8>), RuntimeError> {
        let refuse = |message: String| RuntimeError::Saved { path: path.to_owned(), message };
        let bytes = std::fs::read(path).map_err(|it| refuse(it.to_string()))?;
        let saved = Saved::parse(&bytes, self.plan()).map_err(refuse)?;
        let half = self.half(row);
        let mut rest = saved.states;
        for (id, state) in (0..).zip(self.plan().states.clone()) {
            for range in ranges(&state, row as usize, half, saved.len) {
                let (here, more) = rest.split_at(range.len());
                self.spaces_mut().state_bytes_mut(id, range).copy_from_slice(here);
                rest = more;
            }
        }
        self.set_len(row, u32::try_from(saved.len).expect("tokens of a validated plan"));
        Ok((saved.ids, saved.note.to_vec()))
    }
}

/// A file that fits a plan.
struct Saved<'a> {
    ids: Vec<u32>,
    len: usize,
    note: &'a [u8],
    states: &'a [u8],
}

impl<'a> Saved<'a> {
    /// # Errors
    /// A sentence with found and expected.
    fn parse(bytes: &'a [u8], plan: &Plan) -> Result<Self, String> {
        let word = |at: usize| {
            let it = bytes.get(at..at + 4).ok_or("it ends within its header")?;
            Ok::<u32, String>(u32::from_le_bytes(it.try_into().expect("four bytes")))
        };
        if bytes.get(..4) != Some(&MAGIC) {
            return Err("is no saved session".into());
        }
        let version = word(4)?;
        if !(1..=VERSION).contains(&version) {
            return Err(format!("is of version {version}, this build reads 1 to {VERSION}"));
        }
        let head = HEADS[version as usize - 1];
        let [described, n_ids, len] = [word(8)?, word(12)?, word(16)?].map(|it| it as usize);
        let noted = if version > 1 { word(20)? as usize } else { 0 };
        let (body, crc) = bytes.split_at(bytes.len().saturating_sub(4).max(head).min(bytes.len()));
        let stored = <[u8; 4]>::try_from(crc).map(u32::from_le_bytes);
        let found = crc32c::crc32c(body);
        if stored.ok() != Some(found) {
            return Err(format!("is damaged: CRC-32C {found:08x}"));
        }
        let rest = &body[head..];
        let text = rest.get(..described).ok_or("it ends within its description")?;
        same(&String::from_utf8_lossy(text), &description(plan))?;
        let ids_end = n_ids.checked_mul(4).and_then(|it| it.checked_add(described));
        let ids = ids_end.and_then(|it| rest.get(described..it)).ok_or("it ends within its tokens")?;
        let ids: Vec<u32> = ids.as_chunks::<4>().0.iter().map(|it| u32::from_le_bytes(*it)).collect();
        let ctx = plan.options.ctx as usize;
        if len > n_ids || len > ctx {
            return Err(format!("has {len} accepted tokens of {n_ids}, the plan has {ctx} positions"));
        }
        if let Some(id) = ids.iter().find(|it| **it >= plan.model.vocab) {
            return Err(format!("has token {id} of a vocabulary of {}", plan.model.vocab));
        }
        let (note, states) =
            rest[described + 4 * n_ids..].split_at_checked(noted).ok_or("it ends within its note")?;
        let expected: usize =
            plan.states.iter().flat_map(|it| ranges(it, 0, 0, len)).map(|it| it.len()).sum();
        if states.len() != expected {
            return Err(format!("has {} bytes of states, expected {expected}", states.len()));
        }
        Ok(Self { ids, len, note, states })
    }
}

/// The first line that differs.
pub(crate) fn same(found: &str, expected: &str) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let mut lines = found.lines().zip(expected.lines());
    match lines.find(|it| it.0 != it.1) {
        Some((found, expected)) => Err(format!("is of another model: '{found}', this plan has '{expected}'")),
        None => Err("is of a model with other states".into()),
    }
}
