//! Packing the weights of a plan from the bytes of its sources, one weight at a time, each on all cores.

use waste_plan::file::{crc32c, crc32c_append};
use waste_plan::pack::PartBytes;
use waste_plan::schema::{Plan, Weight};
use waste_runtime::{pack_pieces, pack_weight};

use crate::formats::{FormatError, Item, Source};
use crate::progress::Progress;

/// The stored parts of one weight; the verifier has bounded them by their sources.
struct Parts<'a> {
    weight: &'a Weight,
    sources: &'a [Source],
}

impl PartBytes for Parts<'_> {
    fn part(&self, index: usize) -> &[u8] {
        let part = &self.weight.parts[index];
        self.bytes(part.source, part.offset, self.weight.part_bytes(index))
    }

    fn scales(&self, index: usize) -> &[u8] {
        let part = &self.weight.parts[index];
        match (part.scales, self.weight.scale_bytes(index)) {
            (Some(at), Some(bytes)) => self.bytes(part.source, at, Some(bytes)),
            _ => &[],
        }
    }

    fn factors(&self, index: usize, term: usize) -> [&[u8]; 2] {
        let part = &self.weight.parts[index];
        let term = &part.terms[term];
        let factor = |at: u64, len: Option<u64>| self.bytes(term.source, at, len);
        [factor(term.a, term.a_bytes(self.weight.cols)), factor(term.b, term.b_bytes(part.rows))]
    }

    fn release(&self) {
        self.sources.iter().for_each(Source::release);
    }
}

impl Parts<'_> {
    /// `len` bytes at `at` of a source.
    fn bytes(&self, source: u32, at: u64, len: Option<u64>) -> &[u8] {
        let range = |it: u64| usize::try_from(it).expect("inside a mapped file");
        let end = at + len.expect("a verified weight");
        &self.sources[source as usize].bytes()[range(at)..range(end)]
    }
}

/// Looks for stored blocks that stand for no numbers.
///
/// # Errors
/// [`FormatError::Malformed`] with the place of the first one.
pub(super) fn check(plan: &Plan, sources: &[Source]) -> Result<(), FormatError> {
    for weight in &plan.weights {
        let parts = Parts { weight, sources };
        for (index, part) in weight.parts.iter().enumerate() {
            let refused = part.stored.refused_block(parts.part(index));
            parts.release();
            let Some((block, reason)) = refused else { continue };
            let block_bytes = part.stored.block().map_or(0, |it| u64::from(it.bytes));
            return Err(FormatError::Malformed {
                file: sources[part.source as usize].name(),
                item: Item::tensor(&weight.name),
                offset: part.offset + block as u64 * block_bytes,
                reason: format!("has {reason}"),
            });
        }
    }
    Ok(())
}

/// Calls `sink` with the index and packed bytes of every weight, in order, each in pieces.
pub(super) fn for_each_packed<E>(
    plan: &Plan,
    sources: &[Source],
    progress: &dyn Progress,
    mut sink: impl FnMut(usize, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let total: u64 = plan.weights.iter().map(|it| it.bytes).sum();
    let mut done = 0;
    for (index, weight) in plan.weights.iter().enumerate() {
        pack_pieces(weight, &Parts { weight, sources }, |piece| sink(index, piece))?;
        done += weight.bytes;
        progress.update(done, total);
    }
    Ok(())
}

/// Packs every weight into its place in `bytes`, which holds all of them, and sets its CRC.
pub(super) fn pack_all(plan: &mut Plan, sources: &[Source], progress: &dyn Progress, bytes: &mut [u8]) {
    let total: u64 = plan.weights.iter().map(|it| it.bytes).sum();
    let mut done = 0;
    for weight in &mut plan.weights {
        let at = |it: u64| usize::try_from(it).expect("weights fit in memory");
        let out = &mut bytes[at(weight.offset)..at(weight.offset + weight.bytes)];
        pack_weight(weight, &Parts { weight, sources }, out);
        weight.crc32c = crc32c(out);
        done += weight.bytes;
        progress.update(done, total);
    }
}

/// Sets the CRC of every weight of a plan that leaves its weights outside.
pub(super) fn checksums(plan: &mut Plan, sources: &[Source], progress: &dyn Progress) {
    let mut crcs = vec![0; plan.weights.len()];
    for_each_packed::<std::convert::Infallible>(plan, sources, progress, |index, bytes| {
        crcs[index] = crc32c_append(crcs[index], bytes);
        Ok(())
    })
    .unwrap_or_else(|never| match never {});
    plan.weights.iter_mut().zip(crcs).for_each(|(weight, crc)| weight.crc32c = crc);
}
