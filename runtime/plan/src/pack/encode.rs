//! From stored rows to a packed block: the same exact values in the order of [`crate::pack`].
//!
//! Works on one block of 16 rows at a time, so a caller may pack blocks in any order on any number of threads.

use crate::dtype::DType;
use crate::fx::FX_GROUP;
use crate::pack::{LANES, Packing};
use crate::schema::Weight;
use crate::stored::StoredBlock;
use crate::units::UnitScale;

/// Where the stored bytes of a weight's parts come from.
pub trait PartBytes: Sync {
    /// All stored bytes of part `index` of the weight that is being packed.
    fn part(&self, index: usize) -> &[u8];

    /// All bytes of the scales of part `index`, where they lie apart.
    fn scales(&self, index: usize) -> &[u8] {
        let _ = index;
        &[]
    }

    /// All bytes of the factors A and B of term `term` of part `index` ([`crate::schema::Part::terms`]).
    fn factors(&self, index: usize, term: usize) -> [&[u8]; 2] {
        let _ = (index, term);
        [&[]; 2]
    }

    /// What was read so far is not needed soon: where it is a file's, it need not stay in memory.
    fn release(&self) {}
}

/// Packs block `block` of `weight` into `out`; a weight that is not blocked ([`Packing::is_blocked`]) whole, as block 0.
///
/// `out`: exactly the bytes of the block. `rows`: scratch, reused between calls.
///
/// # Panics
/// If `parts` or `out` do not have the bytes that `weight` says; callers have validated the plan and its sources.
pub fn pack_block(weight: &Weight, block: u64, parts: &dyn PartBytes, rows: &mut RowBuffer, out: &mut [u8]) {
    match weight.packing {
        Packing::Plain => {
            let row_bytes = plain_row_bytes(weight);
            for (row, out) in (0..).zip(out.chunks_exact_mut(row_bytes)) {
                rows.fetch(weight, row, parts);
                out.copy_from_slice(&rows.bytes);
            }
            return;
        }
        Packing::Columns => return pack_columns(weight, parts, rows, out),
        Packing::Record => return,
        _ => {}
    }
    out.fill(0);
    // Every matrix of a bank is whole blocks.
    let blocks = weight.rows.div_ceil(LANES as u64);
    let (matrix, first) = (block / blocks, block % blocks * LANES as u64);
    for lane in 0..LANES {
        let row = first + lane as u64;
        if row < weight.rows {
            rows.fetch(weight, matrix * weight.rows + row, parts);
            put_row(weight, lane, &rows.bytes, out);
        }
    }
}

/// The transpose of each matrix, in f32.
fn pack_columns(weight: &Weight, parts: &dyn PartBytes, rows: &mut RowBuffer, out: &mut [u8]) {
    let size = |it: u64| usize::try_from(it).expect("a weight fits in memory");
    let n = size(weight.rows);
    for (matrix, out) in (0..).zip(out.chunks_exact_mut(n * size(weight.cols) * 4)) {
        for row in 0..n {
            rows.fetch(weight, matrix * weight.rows + row as u64, parts);
            put_elements::<4>((row, n), &rows.bytes, out);
        }
    }
}

fn plain_row_bytes(weight: &Weight) -> usize {
    let bytes = weight.dtype.row_bytes(weight.cols).expect("a validated weight");
    usize::try_from(bytes).expect("a row fits in memory")
}

/// Bytes of one row in the weight's own dtype.
#[derive(Debug, Default)]
pub struct RowBuffer {
    bytes: Vec<u8>,
}

impl RowBuffer {
    /// Gathers row `row` of `weight`. A vector is one row, made of all its parts.
    fn fetch(&mut self, weight: &Weight, row: u64, parts: &dyn PartBytes) {
        self.bytes.clear();
        if weight.rows == 1 && weight.bank == 1 {
            for (index, part) in weight.parts.iter().enumerate() {
                let n = if weight.parts.len() == 1 { weight.cols } else { part.rows };
                self.append(weight.dtype, part.stored, parts.part(index), n);
                self.add_terms(weight, index, 0, parts);
            }
            return;
        }
        let mut first = 0;
        for (index, part) in weight.parts.iter().enumerate() {
            if row < first + part.rows {
                let stored = parts.part(index);
                if part.stored.grouped().is_some() {
                    self.grouped(weight, part.stored, row - first, (stored, parts.scales(index)));
                } else if part.transposed {
                    self.column(weight, part.stored, stored, (row - first, part.rows));
                } else {
                    let bytes = part.stored.row_bytes(weight.cols).expect("a validated part");
                    let at = usize::try_from((row - first) * bytes).expect("a part fits in memory");
                    let end = at + usize::try_from(bytes).expect("a row fits in memory");
                    self.append(weight.dtype, part.stored, &stored[at..end], weight.cols);
                }
                self.add_terms(weight, index, row - first, parts);
                return;
            }
            first += part.rows;
        }
        panic!("row {row} of weight '{}' belongs to no part", weight.name);
    }

    /// Adds the terms of part `index` to its row `row`, which is f32: in f64, rounded once.
    fn add_terms(&mut self, weight: &Weight, index: usize, row: u64, parts: &dyn PartBytes) {
        let terms = &weight.parts[index].terms;
        if terms.is_empty() {
            return;
        }
        assert_eq!(weight.dtype, DType::F32, "what has terms is f32");
        let elements = self.bytes.as_chunks::<4>().0.iter();
        let mut sums: Vec<f64> = elements.map(|it| f64::from(f32::from_le_bytes(*it))).collect();
        let row = usize::try_from(row).expect("a part fits in memory");
        for (i, term) in terms.iter().enumerate() {
            term.add_row(row, parts.factors(index, i), &mut sums);
        }
        self.bytes.clear();
        #[expect(clippy::cast_possible_truncation, reason = "rounds once, as the module of terms says")]
        sums.iter().for_each(|it| self.bytes.extend_from_slice(&(*it as f32).to_le_bytes()));
    }

    /// Appends `n` stored elements, widened to `dtype` if the file holds a narrower float.
    fn append(&mut self, dtype: DType, stored: DType, bytes: &[u8], n: u64) {
        if dtype == stored {
            self.bytes.extend_from_slice(bytes);
            return;
        }
        assert_eq!(dtype, DType::F32, "only f16 and bf16 are widened, and only to f32");
        let mut wide = vec![0f32; usize::try_from(n).expect("a row fits in memory")];
        stored.decode(bytes, &mut wide);
        wide.iter().for_each(|it| self.bytes.extend_from_slice(&it.to_le_bytes()));
    }

    /// Appends row `row` of a part whose scales lie apart: its codes, then its scales; or its weights, if the weight is f32.
    fn grouped(&mut self, weight: &Weight, stored: DType, row: u64, (codes, scales): (&[u8], &[u8])) {
        let layout = stored.grouped().expect("the caller has looked");
        let index = |it: u64| usize::try_from(it).expect("a part fits in memory");
        let row_bytes = layout.row_bytes(weight.cols).expect("a validated part");
        let codes = &codes[index(row * row_bytes)..][..index(row_bytes)];
        let scale_bytes = layout.scale_bytes(weight.cols);
        let scales = &scales[index(row * scale_bytes)..][..index(scale_bytes)];
        if weight.dtype == stored {
            self.bytes.extend_from_slice(codes);
            self.bytes.extend_from_slice(scales);
            return;
        }
        assert_eq!(weight.dtype, DType::F32, "codes are widened to f32 only");
        let mut wide = vec![0f32; usize::try_from(weight.cols).expect("a row fits in memory")];
        layout.decode_row(codes, scales, &mut wide);
        wide.iter().for_each(|it| self.bytes.extend_from_slice(&it.to_le_bytes()));
    }

    /// Appends column `column` of a stored matrix `[cols, columns]`.
    fn column(&mut self, weight: &Weight, stored: DType, bytes: &[u8], (column, columns): (u64, u64)) {
        let size = stored.block().expect("a float").bytes as usize;
        let step = usize::try_from(columns).expect("a row fits in memory") * size;
        let start = usize::try_from(column).expect("a row fits in memory") * size;
        for k in 0..usize::try_from(weight.cols).expect("a row fits in memory") {
            let at = start + k * step;
            self.append(weight.dtype, stored, &bytes[at..at + size], 1);
        }
    }
}

/// Puts one row in the weight's dtype into lane `lane` of a packed block.
fn put_row(weight: &Weight, lane: usize, row: &[u8], out: &mut [u8]) {
    let packing = weight.packing;
    let k = usize::try_from(weight.cols).expect("a row fits in memory");
    match packing {
        Packing::Plain | Packing::Columns | Packing::Record => unreachable!("packed in one piece"),
        Packing::F32 => put_elements::<4>((lane, LANES), row, out),
        Packing::F16 | Packing::BF16 => put_elements::<2>((lane, LANES), row, out),
        Packing::W8 | Packing::W4 if weight.dtype.grouped().is_some() => put_grouped(weight, lane, row, out),
        Packing::W8 => {
            for (group, block) in row.chunks_exact(34).enumerate() {
                put_half(packing.payload_bytes(k), group, lane, &block[..2], out);
                for (i, code) in block[2..].iter().enumerate() {
                    let k = group * 32 + i;
                    out[k / 4 * 64 + lane * 4 + k % 4] = *code;
                }
            }
        }
        Packing::W4 => {
            for (group, block) in row.chunks_exact(18).enumerate() {
                put_half(packing.payload_bytes(k), group, lane, &block[..2], out);
                put_nibbles(group, lane, ggml_nibble(&block[2..]), out);
            }
        }
        Packing::W4M => {
            for (group, block) in row.chunks_exact(20).enumerate() {
                put_half(packing.payload_bytes(k), group, lane, &block[..2], out);
                put_half(packing.minima_at(k), group, lane, &block[2..4], out);
                put_nibbles(group, lane, ggml_nibble(&block[4..]), out);
            }
        }
        _ => put_units(weight, lane, row, out),
    }
}

/// A row of stored blocks, each into its unit.
fn put_units(weight: &Weight, lane: usize, row: &[u8], out: &mut [u8]) {
    let layout = weight.packing.units().expect("a packing of another kind has an arm of its own");
    let stored = weight.dtype.block().expect("a stored dtype").bytes as usize;
    for (block, unit) in row.chunks_exact(stored).zip(out.chunks_exact_mut(layout.bytes())) {
        let block = StoredBlock::read(weight.dtype, block);
        for (i, code) in block.codes[..layout.inputs].iter().enumerate() {
            layout.put_code(unit, lane, i, *code);
        }
        if layout.has_group_scales() {
            for j in 0..layout.inputs / layout.group {
                unit[layout.scales_at() + j * LANES + lane] = block.scales[j];
                if layout.minima {
                    unit[layout.minima_at() + j * LANES + lane] = block.minima[j];
                }
            }
        }
        match layout.scale {
            UnitScale::Half => put_half(layout.d_at(), 0, lane, &block.d, unit),
            UnitScale::Exponent => unit[layout.d_at() + lane] = block.d[0],
        }
        if layout.minima {
            put_half(layout.m_at(), 0, lane, &block.m, unit);
        }
    }
}

/// A row in groups of 128, its codes before its scales: the scale of each 32 is that of their group.
fn put_grouped(weight: &Weight, lane: usize, row: &[u8], out: &mut [u8]) {
    let layout = weight.dtype.grouped().expect("the caller has looked");
    let (codes, scales) = row.split_at(row.len() - 2 * row_groups(weight));
    let k = usize::try_from(weight.cols).expect("a row fits in memory");
    let plane = weight.packing.payload_bytes(k);
    for group in 0..k / 32 {
        let scale = &scales[group * 32 / FX_GROUP * 2..][..2];
        put_half(plane, group, lane, scale, out);
        let integer = |i: usize| layout.integer(codes, group * 32 + i);
        if weight.packing == Packing::W8 {
            for i in 0..32 {
                let k = group * 32 + i;
                out[k / 4 * 64 + lane * 4 + k % 4] = integer(i).cast_unsigned();
            }
        } else {
            put_nibbles(group, lane, |i| (integer(i) + 8).cast_unsigned(), out);
        }
    }
}

/// Scales of a row whose scales lie apart.
fn row_groups(weight: &Weight) -> usize {
    let groups = weight.dtype.grouped().map_or(0, |it| it.groups(weight.cols));
    usize::try_from(groups).expect("a row fits in memory")
}

/// Element k of a row to place `k · lanes + lane`.
fn put_elements<const N: usize>((lane, lanes): (usize, usize), row: &[u8], out: &mut [u8]) {
    for (src, dst) in row.chunks_exact(N).zip(out.chunks_exact_mut(N * lanes)) {
        dst[lane * N..(lane + 1) * N].copy_from_slice(src);
    }
}

/// A scale or minimum of group `group`, in the plane that begins at `plane`.
fn put_half(plane: usize, group: usize, lane: usize, half: &[u8], out: &mut [u8]) {
    let at = plane + (group * LANES + lane) * 2;
    out[at..at + 2].copy_from_slice(half);
}

/// Code i of GGML's 16 bytes: element i low, i + 16 high.
fn ggml_nibble(codes: &[u8]) -> impl Fn(usize) -> u8 + '_ {
    |i| if i < 16 { codes[i] & 15 } else { codes[i - 16] >> 4 }
}

/// The 32 codes of a group to `[k/8][16][4]`: low nibbles k … k+3, high nibbles k+4 … k+7.
fn put_nibbles(group: usize, lane: usize, code: impl Fn(usize) -> u8, out: &mut [u8]) {
    for eight in 0..4 {
        let at = ((group * 4 + eight) * LANES + lane) * 4;
        for j in 0..4 {
            out[at + j] = code(eight * 8 + j) | code(eight * 8 + 4 + j) << 4;
        }
    }
}

#[cfg(test)]
mod tests;
