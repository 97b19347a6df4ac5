//! What a session learned about its experts, for the next session: how often each was used.
//!
//! The file is the v0 container's `usage.waste`, all numbers little-endian: u32 magic "WUSG", u32 version 1, u64 tokens; then
//! 16 bytes an expert: u16 layer, u16 expert, u32 hits, u32 last seen (0 here), u32 zero.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cache::ExpertCache;
use super::error::ExpertError;

const MAGIC: u32 = 0x4753_5557;
const VERSION: u32 = 1;
const HEADER: usize = 16;
const ENTRY: usize = 16;

/// An expert and how often it was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hot {
    /// The model's number of the layer.
    pub layer: u32,
    /// The expert.
    pub expert: u32,
    /// Uses.
    pub hits: u32,
}

/// Hottest first; equals by layer and expert, so that the order is one.
fn order(it: &Hot) -> (Reverse<u32>, u32, u32) {
    (Reverse(it.hits), it.layer, it.expert)
}

impl ExpertCache {
    /// Every expert that was used in this session or a learned one, hottest first.
    #[must_use]
    pub fn hot(&self) -> Vec<Hot> {
        let records = &self.shared.records;
        let core = self.shared.lock();
        let hot = |record| {
            let (bank, expert) = records.place(record);
            Hot { layer: bank.layer, expert, hits: core.slots.policy.uses(record) }
        };
        let mut list: Vec<Hot> = (0..records.len()).map(hot).filter(|it| 0 < it.hits).collect();
        list.sort_by_key(order);
        list
    }

    /// Learns `list`, and reads its hottest experts until no slot is empty; how many were read. For a cache that is not in
    /// use yet. Experts that do not exist are skipped, and so are records that cannot be read: whoever asks for one is told.
    ///
    /// # Errors
    /// [`ExpertError::Cancelled`] if `cancel` is set.
    pub fn warm(&self, list: &[Hot], cancel: &AtomicBool) -> Result<usize, ExpertError> {
        let shared = &*self.shared;
        let mut list: Vec<Hot> = list.iter().copied().filter(|it| 0 < it.hits).collect();
        list.sort_by_key(order);
        let total = list.iter().map(|it| u64::from(it.hits)).sum();
        let mut core = shared.lock();
        let good = core.reads.good;
        for it in &list {
            let Some(record) = shared.records.find(it.layer, it.expert) else { continue };
            core.slots.policy.learn(record, it.hits, total);
            core.slots.warm(record);
        }
        shared.queued.notify_all();
        // This thread reads too.
        while !cancel.load(Ordering::Relaxed) {
            core = match core.slots.start() {
                Some(slot) => shared.read(core, slot),
                None if core.slots.is_any_reading() => shared.sleep(core),
                None => return Ok(usize::try_from(core.reads.good - good).expect("at most the slots")),
            };
        }
        core.slots.abandon();
        Err(ExpertError::Cancelled)
    }
}

/// The bytes of a learned list, in its order. Layers and experts that do not fit the format are left out.
#[must_use]
pub fn encode_hot(list: &[Hot], tokens: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + ENTRY * list.len());
    out.extend(MAGIC.to_le_bytes());
    out.extend(VERSION.to_le_bytes());
    out.extend(tokens.to_le_bytes());
    for it in list {
        let (Ok(layer), Ok(expert)) = (u16::try_from(it.layer), u16::try_from(it.expert)) else { continue };
        out.extend(layer.to_le_bytes());
        out.extend(expert.to_le_bytes());
        out.extend(it.hits.to_le_bytes());
        out.extend([0; 8]);
    }
    out
}

/// A learned list and the tokens it was learned from.
///
/// # Errors
/// What is wrong with the bytes.
pub fn decode_hot(bytes: &[u8]) -> Result<(Vec<Hot>, u64), String> {
    let (header, entries) = bytes.split_at_checked(HEADER).ok_or("a learned list of less than its header")?;
    let u32_at = |bytes: &[u8], at: usize| {
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    let u16_at = |bytes: &[u8], at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (magic, version) = (u32_at(header, 0), u32_at(header, 4));
    if (magic, version) != (MAGIC, VERSION) {
        return Err(format!("magic {magic:08x} version {version}, expected {MAGIC:08x} version {VERSION}"));
    }
    let (entries, rest) = entries.as_chunks::<ENTRY>();
    if !rest.is_empty() {
        return Err(format!("{} bytes after the last whole entry", rest.len()));
    }
    let hot = |it: &[u8; ENTRY]| Hot { layer: u16_at(it, 0), expert: u16_at(it, 2), hits: u32_at(it, 4) };
    let tokens = u64::from(u32_at(header, 8)) | u64::from(u32_at(header, 12)) << 32;
    Ok((entries.iter().map(hot).collect(), tokens))
}
