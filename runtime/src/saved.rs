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
//! - it is read twice in small pieces, to be checked and to be taken over: states are never in memory beside themselves, not even
//!   as pages of a map, and a forged file takes no more than the most tokens and the longest note;
//! - a file of another model, arithmetic or shape is refused with the first line that differs. Positions, rows, chunk and
//!   threads may differ, as long as the tokens fit.
//!
//! Deliberately absent: compression, and tokens without states (they are a prompt).

use std::fs::File;
use std::io::{BufReader, Read, Seek, Write};
use std::ops::Range;
use std::path::Path;

use waste_plan::file::write_whole;
use waste_plan::schema::{KV_TILE, Plan, State, StateKind};
use waste_plan::validate::MAX_TOKENS;

use crate::error::RuntimeError;
use crate::session::Session;

const MAGIC: [u8; 4] = *b"WSES";
const VERSION: u32 = 2;
/// Bytes before the description, by version less one.
const HEADS: [usize; 2] = [20, 24];
/// Most bytes of a note.
const MAX_NOTE: usize = 1 << 26;
/// Bytes read at a time.
const PIECE: usize = 1 << 16;
/// Bytes of a foreign description that are read beyond the length of the expected one, to show the line that differs.
const LINE: u64 = 4096;

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

/// A file, and the sum of what was written to it or read from it.
struct Summed<F> {
    file: F,
    crc: u32,
}

impl<W: Write> Summed<W> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.file.write_all(bytes)
    }
}

impl<R: Read> Summed<R> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        self.file.read_exact(bytes).map_err(|it| it.to_string())?;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        Ok(())
    }

    fn bytes(&mut self, n: u64) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; usize::try_from(n).map_err(|it| it.to_string())?];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn words(&mut self, n: u64) -> Result<Vec<u32>, String> {
        let mut word = [0; 4];
        (0..n).map(|_| self.fill(&mut word).map(|()| u32::from_le_bytes(word))).collect()
    }
}

impl Session {
    /// Saves row `row`, whose tokens are `ids`: the accepted ones, and what follows them and is not accepted yet.
    ///
    /// # Errors
    /// [`RuntimeError::Saved`] if there are fewer ids than accepted tokens or more than any plan has positions, or the file cannot
    /// be written.
    pub fn save(&self, row: u32, ids: &[u32], path: &Path) -> Result<(), RuntimeError> {
        self.save_with(row, ids, &[], path)
    }

    /// As [`Session::save`], with a `note` of at most 64 MiB that [`Session::restore_with`] gives back.
    ///
    /// # Errors
    /// As [`Session::save`].
    pub fn save_with(&self, row: u32, ids: &[u32], note: &[u8], path: &Path) -> Result<(), RuntimeError> {
        let len = self.len(row) as usize;
        let refuse = |message: String| RuntimeError::Saved { path: path.to_owned(), message };
        if ids.len() < len {
            return Err(refuse(format!("{} ids for {len} accepted tokens", ids.len())));
        }
        most(ids.len() as u64, note.len() as u64).map_err(refuse)?;
        let description = description(self.plan());
        let number = |n: usize| u32::try_from(n).expect("tokens of a validated plan").to_le_bytes();
        let written = write_whole(path, |out| {
            let mut out = Summed { file: out, crc: 0 };
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
            out.file.write_all(&crc.to_le_bytes())
        });
        written.map_err(|it| refuse(it.to_string()))
    }

    /// Restores what [`Session::save`] saved into row `row`, and returns its ids; those beyond [`Session::len`] are not accepted yet.
    ///
    /// # Errors
    /// [`RuntimeError::Saved`] if the file cannot be read, is damaged, or is of another model or shape. The row is then as it was;
    /// only if the file changes while it is read is the row forgotten.
    pub fn restore(&mut self, row: u32, path: &Path) -> Result<Vec<u32>, RuntimeError> {
        Ok(self.restore_with(row, path)?.0)
    }

    /// As [`Session::restore`], with the note of [`Session::save_with`]; empty if there was none.
    ///
    /// # Errors
    /// As [`Session::restore`].
    pub fn restore_with(&mut self, row: u32, path: &Path) -> Result<(Vec<u32>, Vec<u8>), RuntimeError> {
        let refuse = |message: String| RuntimeError::Saved { path: path.to_owned(), message };
        let mut saved = Saved::open(path, self.plan()).map_err(refuse)?;
        if let Err(message) = self.take_states(row, &mut saved) {
            self.clear(row);
            return Err(refuse(message));
        }
        self.set_len(row, u32::try_from(saved.len).expect("tokens of a validated plan"));
        Ok((saved.ids, saved.note))
    }

    /// Reads the states of `row` into their places.
    fn take_states(&mut self, row: u32, saved: &mut Saved) -> Result<(), String> {
        let half = self.half(row);
        for (id, state) in (0..).zip(self.plan().states.clone()) {
            for range in ranges(&state, row as usize, half, saved.len) {
                saved.rest.fill(self.spaces_mut().state_bytes_mut(id, range))?;
            }
        }
        if saved.rest.crc == saved.crc { Ok(()) } else { Err("changed while it was read".into()) }
    }
}

/// A file that fits a plan, read up to its states.
struct Saved {
    ids: Vec<u32>,
    len: usize,
    note: Vec<u8>,
    rest: Summed<BufReader<File>>,
    /// What all before it must sum to.
    crc: u32,
}

impl Saved {
    /// Checks the whole file.
    ///
    /// # Errors
    /// A sentence with found and expected.
    fn open(path: &Path, plan: &Plan) -> Result<Self, String> {
        let io = |it: std::io::Error| it.to_string();
        // Asked before opening, since opening a pipe waits for its writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err("is no regular file".into());
        }
        let file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        let mut rest = Summed { file: BufReader::with_capacity(PIECE, file), crc: 0 };
        let head = Head::parse(&rest.bytes(bytes.min(24))?)?;
        let crc = undamaged(&mut rest.file, head.bytes, bytes)?;

        rest.file.rewind().map_err(io)?;
        rest.crc = 0;
        rest.bytes(head.bytes)?;
        let left = bytes - 4 - head.bytes;
        let left = left.checked_sub(head.described).ok_or("it ends within its description")?;
        let expected = description(plan);
        let text = rest.bytes(head.described.min(expected.len() as u64 + LINE))?;
        same(&String::from_utf8_lossy(&text), &expected)?;
        let left = left.checked_sub(4 * head.ids).ok_or("it ends within its tokens")?;
        let (n_ids, len, ctx) = (head.ids, head.len, plan.options.ctx);
        if len > n_ids || len > u64::from(ctx) {
            return Err(format!("has {len} accepted tokens of {n_ids}, the plan has {ctx} positions"));
        }
        let ids = rest.words(n_ids)?;
        if let Some(id) = ids.iter().find(|it| **it >= plan.model.vocab) {
            return Err(format!("has token {id} of a vocabulary of {}", plan.model.vocab));
        }
        let left = left.checked_sub(head.noted).ok_or("it ends within its note")?;
        let note = rest.bytes(head.noted)?;
        let len = usize::try_from(len).expect("positions of a validated plan");
        let expected: u64 =
            plan.states.iter().flat_map(|it| ranges(it, 0, 0, len)).map(|it| it.len() as u64).sum();
        if left != expected {
            return Err(format!("has {left} bytes of states, expected {expected}"));
        }
        Ok(Self { ids, len, note, rest, crc })
    }
}

/// The numbers that a file begins with.
struct Head {
    /// Bytes of itself.
    bytes: u64,
    /// Bytes of the description.
    described: u64,
    ids: u64,
    /// How many of the ids are accepted.
    len: u64,
    /// Bytes of the note.
    noted: u64,
}

impl Head {
    fn parse(bytes: &[u8]) -> Result<Self, String> {
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
        let [described, ids, len] = [word(8)?, word(12)?, word(16)?].map(u64::from);
        let noted = if version > 1 { word(20)?.into() } else { 0 };
        most(ids, noted)?;
        Ok(Self { bytes: HEADS[version as usize - 1] as u64, described, ids, len, noted })
    }
}

/// Refuses more ids or a longer note than a file may have.
fn most(ids: u64, note: u64) -> Result<(), String> {
    if ids > u64::from(MAX_TOKENS) {
        return Err(format!("has {ids} tokens, at most {MAX_TOKENS} are possible"));
    }
    if note > MAX_NOTE as u64 {
        return Err(format!("has a note of {note} bytes, at most {MAX_NOTE} are possible"));
    }
    Ok(())
}

/// The sum at the end of a file of `bytes` bytes, if it is that of all before.
fn undamaged(file: &mut BufReader<File>, head: u64, bytes: u64) -> Result<u32, String> {
    file.rewind().map_err(|it| it.to_string())?;
    let mut all = Summed { file, crc: 0 };
    let mut left = bytes.saturating_sub(4).max(head.min(bytes));
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let n = usize::try_from(left).map_or(PIECE, |it| it.min(PIECE));
        all.fill(&mut piece[..n])?;
        left -= n as u64;
    }
    let (found, mut stored) = (all.crc, Vec::new());
    all.file.take(5).read_to_end(&mut stored).map_err(|it| it.to_string())?;
    let stored = <[u8; 4]>::try_from(stored).map(u32::from_le_bytes);
    if stored == Ok(found) { Ok(found) } else { Err(format!("is damaged: CRC-32C {found:08x}")) }
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
