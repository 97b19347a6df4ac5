//! Which experts sessions used, as a file: what one session learned, the next reads before its first step.
//!
//! ```text
//! "WHOT", u32 version, u32 bytes of the description, u32 experts
//! the description: a line for each file of experts that must be the same
//! u64 tokens that the uses are of
//! each expert, hottest first: u32 layer, u32 expert, u32 uses
//! u32 CRC-32C of all before
//! ```
//!
//! All little-endian. Invariants
//! - a list never changes what is computed, only what is read when;
//! - a list of another model is refused with the first line that differs; where the files lie, and what the plan was compiled
//!   for, does not matter;
//! - the file is replaced whole or not at all.
//!
//! Deliberately absent: order in time. Uses are halved when they leave 32 bits, and no earlier.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;

use waste_plan::file::write_whole;
use waste_plan::schema::Plan;

use crate::error::RuntimeError;
use crate::experts::{ExpertError, Hot, order};
use crate::saved::same;
use crate::session::Session;

const MAGIC: [u8; 4] = *b"WHOT";
const VERSION: u32 = 1;
/// Bytes before the description.
const HEAD: usize = 16;
/// Bytes of an expert.
const ENTRY: usize = 12;

/// How often the experts of a model were used, by many sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// Tokens that were accepted meanwhile.
    pub tokens: u64,
    /// The experts that were used, hottest first.
    pub experts: Vec<Hot>,
}

/// What a list did for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warmed {
    /// Experts of the list.
    pub known: usize,
    /// Of these, how many were read.
    pub read: usize,
}

/// What must be the same, a line each.
fn description(plan: &Plan) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for bank in &plan.banks {
        let source = plan.sources.get(bank.source as usize);
        let (bytes, hash) = source.map_or((0, ""), |it| (it.bytes, &it.header_sha256));
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "layer {}: {} experts of {} bytes in a file of {bytes}, header {hash}",
            bank.layer, bank.experts, bank.bytes
        );
    }
    out
}

impl Learned {
    /// Reads the list that [`Learned::save`] wrote for the model of `plan`.
    ///
    /// # Errors
    /// [`RuntimeError::Saved`] if the file cannot be read, is damaged, or is of another model.
    pub fn load(plan: &Plan, path: &Path) -> Result<Self, RuntimeError> {
        let refuse = |message: String| RuntimeError::Saved { path: path.to_owned(), message };
        let bytes = std::fs::read(path).map_err(|it| refuse(it.to_string()))?;
        Self::parse(&bytes, plan).map_err(refuse)
    }

    /// Writes the list, for the model of `plan`.
    ///
    /// # Errors
    /// [`RuntimeError::Saved`] if the file cannot be written.
    pub fn save(&self, plan: &Plan, path: &Path) -> Result<(), RuntimeError> {
        let bytes = self.to_bytes(plan);
        write_whole(path, |out| out.write_all(&bytes))
            .map_err(|it| RuntimeError::Saved { path: path.to_owned(), message: it.to_string() })
    }

    /// Adds what a session learned.
    pub fn add(&mut self, other: &Self) {
        let mut uses = BTreeMap::new();
        for it in self.experts.iter().chain(&other.experts) {
            *uses.entry((it.layer, it.expert)).or_insert(0u64) += u64::from(it.hits);
        }
        let most = uses.values().copied().max().unwrap_or(0);
        let shift = u32::from(most > u64::from(u32::MAX));
        let hot = |((layer, expert), uses): ((u32, u32), u64)| {
            // Only a list that names an expert many times has more.
            let hits = u32::try_from(uses >> shift).unwrap_or(u32::MAX);
            Hot { layer, expert, hits }
        };
        self.tokens = (self.tokens >> shift).saturating_add(other.tokens >> shift);
        self.experts = uses.into_iter().map(hot).filter(|it| it.hits > 0).collect();
        self.experts.sort_by_key(order);
    }

    fn to_bytes(&self, plan: &Plan) -> Vec<u8> {
        let description = description(plan);
        let number = |n: usize| u32::try_from(n).expect("experts of a validated plan").to_le_bytes();
        let mut out = Vec::with_capacity(HEAD + description.len() + 12 + ENTRY * self.experts.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(number(description.len()));
        out.extend(number(self.experts.len()));
        out.extend(description.as_bytes());
        out.extend(self.tokens.to_le_bytes());
        for it in &self.experts {
            [it.layer, it.expert, it.hits].iter().for_each(|it| out.extend(it.to_le_bytes()));
        }
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// # Errors
    /// A sentence with found and expected.
    fn parse(bytes: &[u8], plan: &Plan) -> Result<Self, String> {
        let word = |at: usize| {
            let it =
                bytes.get(at..).and_then(|it| it.first_chunk::<4>()).ok_or("it ends within its header")?;
            Ok::<u32, String>(u32::from_le_bytes(*it))
        };
        if bytes.get(..4) != Some(&MAGIC) {
            return Err("is no list of used experts".into());
        }
        let version = word(4)?;
        if version != VERSION {
            return Err(format!("is of version {version}, this build reads {VERSION}"));
        }
        let (described, count) = (word(8)? as usize, word(12)? as usize);
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or("it ends within its header")?;
        let (found, stored) = (crc32c::crc32c(body), u32::from_le_bytes(*crc));
        if found != stored {
            return Err(format!("is damaged: CRC-32C {found:08x}, expected {stored:08x}"));
        }
        let rest = body.get(HEAD..).ok_or("it ends within its header")?;
        let (text, rest) = rest.split_at_checked(described).ok_or("it ends within its description")?;
        same(&String::from_utf8_lossy(text), &description(plan))?;
        let (tokens, entries) = rest.split_first_chunk::<8>().ok_or("it ends within its header")?;
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        if entries.len() != count || !rest.is_empty() {
            return Err(format!("has {} bytes for {count} experts", entries.len() * ENTRY + rest.len()));
        }
        let hot = |it: &[u8; ENTRY]| {
            let (words, _) = it.as_chunks::<4>();
            let [layer, expert, hits] = [0, 1, 2].map(|i| u32::from_le_bytes(words[i]));
            Hot { layer, expert, hits }
        };
        Ok(Self { tokens: u64::from_le_bytes(*tokens), experts: entries.iter().map(hot).collect() })
    }
}

impl Session {
    /// What this session has used so far; `None` for a plan without experts in files.
    #[must_use]
    pub fn learned(&self) -> Option<Learned> {
        let experts = self.expert_source()?.cache().hot();
        Some(Learned { tokens: self.counters().tokens, experts })
    }

    /// Reads the hottest experts of `list` until the cache is full, and keeps them as if they had been used so often: for a
    /// session that has not run yet. Without experts in files there is nothing to read.
    ///
    /// # Errors
    /// [`RuntimeError::Cancelled`] if the session was cancelled meanwhile.
    pub fn warm(&mut self, list: &Learned) -> Result<Warmed, RuntimeError> {
        let known = list.experts.len();
        let cancel = self.cancel_flag();
        let Some(source) = self.expert_source() else { return Ok(Warmed { known, read: 0 }) };
        match source.cache().warm(&list.experts, &cancel) {
            Ok(read) => Ok(Warmed { known, read }),
            Err(ExpertError::Cancelled) => {
                cancel.store(false, Ordering::Relaxed);
                Err(RuntimeError::Cancelled)
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hot(expert: u32, hits: u32) -> Hot {
        Hot { layer: 1, expert, hits }
    }

    #[test]
    fn uses_add_up_and_are_halved_before_they_overflow() {
        let mut list = Learned { tokens: 5, experts: vec![hot(3, 4), hot(0, 1)] };
        list.add(&Learned { tokens: 2, experts: vec![hot(0, 9), hot(7, 2)] });
        assert_eq!(list, Learned { tokens: 7, experts: vec![hot(0, 10), hot(3, 4), hot(7, 2)] });
        list.add(&Learned { tokens: 1, experts: vec![hot(0, u32::MAX), hot(9, 1)] });
        assert_eq!(list.tokens, 3);
        assert_eq!(list.experts, [hot(0, 1 << 31 | 4), hot(3, 2), hot(7, 1)]);
    }
}
