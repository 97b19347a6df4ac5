//! The stored blocks of GGML's formats of several bit planes, taken apart: codes, integer scales, float scales.
//!
//! Source: the structs `block_q5_0` … `block_mxfp4` of ggml-common.h and what `dequantize_row_*` of ggml-quants.c makes of them.
//! Elements come in the order of the row, so that packing and the reference decode share one reading of the bits.
//!
//! Invariant: a decoded element is one rounding of d · s · w − m · t (or + m): the products are multiples of 2^-24 below 2^27 (an exponent
//! scale has one product only), so f64 holds their sum exactly.
//!
//! Deliberately absent: any quantiser.

use crate::dtype::DType;
use crate::pack::Packing;
use crate::units::{UnitLayout, UnitScale, exponent_scale};

/// One stored block, its fields as the file has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredBlock {
    /// Codes of the elements; 32 or 256 of them.
    pub(crate) codes: [u8; 256],
    /// Integer scales of the groups, as bytes.
    pub(crate) scales: [u8; 16],
    /// Integer minima of the groups.
    pub(crate) minima: [u8; 16],
    /// The scale: an f16, or one byte of exponent.
    pub(crate) d: [u8; 2],
    /// The minimum: an f16.
    pub(crate) m: [u8; 2],
}

impl StoredBlock {
    /// Reads `block`, all bytes of one block of `dtype`.
    ///
    /// # Panics
    /// If the block is shorter, or `dtype` is not packed in units.
    pub(crate) fn read(dtype: DType, block: &[u8]) -> Self {
        let mut it = Self { codes: [0; 256], scales: [0; 16], minima: [0; 16], d: [0; 2], m: [0; 2] };
        let half = |at: usize| [block[at], block[at + 1]];
        match dtype {
            DType::Q5_0 | DType::Q5_1 => {
                let at = if dtype == DType::Q5_0 { 2 } else { 4 };
                (it.d, it.m) = (half(0), half(2));
                it.nibble_halves(&block[at + 4..], 32);
                it.add_bits(|i| block[at + i / 8] >> (i % 8) & 1, 32, 4);
            }
            DType::Iq4Nl => {
                it.d = half(0);
                it.nibble_halves(&block[2..], 32);
            }
            DType::Mxfp4 => {
                it.d = [block[0], 0];
                it.nibble_halves(&block[1..], 32);
            }
            DType::Q2K => {
                (it.d, it.m) = (half(80), half(82));
                for (j, byte) in block[..16].iter().enumerate() {
                    (it.scales[j], it.minima[j]) = (byte & 15, byte >> 4);
                }
                it.two_bits(&block[16..80]);
            }
            DType::Q3K => {
                it.d = half(108);
                it.two_bits(&block[32..96]);
                it.add_bits(|i| block[i % 32] >> (i / 32) & 1, 256, 2);
                it.scales = q3_scales(&block[96..108]);
            }
            DType::Q4K | DType::Q5K => {
                (it.d, it.m) = (half(0), half(2));
                (it.scales, it.minima) = k_scales(&block[4..16]);
                let at = if dtype == DType::Q4K { 16 } else { 48 };
                it.nibble_halves(&block[at..at + 128], 64);
                if dtype == DType::Q5K {
                    it.add_bits(|i| block[16 + i % 32] >> (i / 32) & 1, 256, 4);
                }
            }
            DType::Q6K => {
                it.d = half(208);
                it.nibble_halves(&block[..128], 128);
                it.add_bits(|i| block[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3, 256, 4);
                it.scales.copy_from_slice(&block[192..208]);
            }
            DType::Iq4Xs => {
                it.d = half(0);
                let high = u16::from_le_bytes(half(2));
                for j in 0..8 {
                    let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
                    let code = low | ((high >> (2 * j) & 3) as u8) << 4;
                    it.scales[j] = (code.cast_signed() - 32).cast_unsigned();
                }
                it.nibble_halves(&block[8..136], 32);
            }
            _ => panic!("{} is not packed in units", dtype.name()),
        }
        it
    }

    /// Nibbles in runs of `run` elements: byte i of a run holds element i (low) and element i + run/2 (high).
    fn nibble_halves(&mut self, bytes: &[u8], run: usize) {
        for (codes, bytes) in self.codes.chunks_exact_mut(run).zip(bytes.chunks_exact(run / 2)) {
            let (low, high) = codes.split_at_mut(run / 2);
            for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
                (*low, *high) = (byte & 15, byte >> 4);
            }
        }
    }

    /// Two bits an element: byte i of 32 holds elements i, i + 32, i + 64 and i + 96 of 128.
    fn two_bits(&mut self, bytes: &[u8]) {
        for (i, code) in self.codes.iter_mut().enumerate() {
            *code = bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        }
    }

    /// Puts the bits `of(i)` above the low `shift` bits of the first `n` codes.
    fn add_bits(&mut self, of: impl Fn(usize) -> u8, n: usize, shift: u32) {
        for (i, code) in self.codes[..n].iter_mut().enumerate() {
            *code |= of(i) << shift;
        }
    }

    /// The weights of the block, each rounded once.
    fn decode(&self, layout: &UnitLayout, out: &mut [f32]) {
        let half = |it: [u8; 2]| f64::from(half::f16::from_le_bytes(it).to_f32());
        let d = match layout.scale {
            UnitScale::Half => half(self.d),
            UnitScale::Exponent => f64::from(exponent_scale(self.d[0])),
        };
        for (i, y) in out.iter_mut().enumerate() {
            let (j, w) = (i / layout.group, f64::from(layout.integer_of(self.codes[i])));
            let scale = match (layout.has_group_scales(), layout.signed) {
                (false, _) => 1.0,
                (true, false) => f64::from(self.scales[j]),
                (true, true) => f64::from(self.scales[j].cast_signed()),
            };
            let minimum = match (layout.minima, layout.has_group_scales()) {
                (false, _) => 0.0,
                (true, false) => half(self.m),
                (true, true) => -half(self.m) * f64::from(self.minima[j]),
            };
            #[expect(clippy::cast_possible_truncation, reason = "the one rounding to f32")]
            {
                *y = (d * scale * w + minimum) as f32;
            }
        }
    }
}

/// The reference decode of one block of `dtype`.
pub(crate) fn decode_block(dtype: DType, block: &[u8], out: &mut [f32]) {
    let layout = Packing::of(dtype).and_then(Packing::units).expect("the caller has looked");
    StoredBlock::read(dtype, block).decode(&layout, out);
}

/// Eight scales and eight minima of 6 bits: the first four of each whole in bytes 0 … 3 and 4 … 7, whose top bits are those of the last
/// four; these have their low nibbles in bytes 8 … 11.
fn k_scales(bytes: &[u8]) -> ([u8; 16], [u8; 16]) {
    let (mut scales, mut minima) = ([0; 16], [0; 16]);
    for j in 0..4 {
        (scales[j], minima[j]) = (bytes[j] & 63, bytes[j + 4] & 63);
        scales[j + 4] = bytes[j + 8] & 15 | bytes[j] >> 6 << 4;
        minima[j + 4] = bytes[j + 8] >> 4 | bytes[j + 4] >> 6 << 4;
    }
    (scales, minima)
}

/// Sixteen scales of 6 bits, less 32: low nibbles in bytes 0 … 7 (first eight low, last eight high), top bits in bytes 8 … 11, those of
/// scale j in byte j mod 4.
fn q3_scales(bytes: &[u8]) -> [u8; 16] {
    std::array::from_fn(|j| {
        let low = bytes[j % 8] >> (j / 8 * 4) & 15;
        let code = low | (bytes[8 + j % 4] >> (j / 4 * 2) & 3) << 4;
        (code.cast_signed() - 32).cast_unsigned()
    })
}

#[cfg(test)]
pub(crate) mod tests;
