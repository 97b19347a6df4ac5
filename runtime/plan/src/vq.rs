//! Vector-quantised matrices: codes, the geometry of their index streams, their reference decode, and the size of the
//! lookup tables that multiply them (numerics §4).
//!
//! A row of k inputs is k / 8 *positions*. A position stores one entry number a stage, and the weights of its 8 inputs
//! are W\[r\]\[8v + d\] = scale_r · Σ_s C_s\[i_s\]\[d\], C_s being the codebook `f32[entries][8]` of stage s.
//! The index stream of a matrix `[n, k]` is blocked by 64 rows and position-major inside a block; B bytes a position:
//!
//! ```text
//! address of (row, v) = ((row / 64) · (k / 8) + v) · 64 · B + (row mod 64) · B
//! 256 entries: one byte a stage, stage 0 first.    64 entries: i_0 | i_1 << 6 | i_2 << 12 | i_3 << 18, little-endian.
//! ```
//!
//! Rows that fill the last block up hold zero bytes.
//!
//! Invariants
//! - every byte is a valid index: no stream can address an entry outside its book;
//! - geometry is computed in checked arithmetic, so that a file's numbers can be passed in as they are.
//!
//! Deliberately absent: the inside of a table (each tier of kernels has its own), how a container stores books and
//! scales, and any encoder.

use serde::{Deserialize, Serialize};

use crate::fx::FxLayout;
use crate::words::words;

/// Inputs of a position.
pub const VEC_DIM: usize = 8;

/// Rows of a block of the index stream.
pub const ROW_BLOCK: usize = 64;

words! {
    /// How the positions of a vector-quantised matrix are stored.
    VqCode {
        /// Three stages of 256 entries: 3 bits a weight.
        Vq3r = "vq3r",
        /// Two stages of 256 entries: 2 bits a weight.
        Vq2r = "vq2r",
        /// Four stages of 64 entries, packed: 3 bits a weight.
        Vq4p = "vq4p",
    }
}

words! {
    /// The arithmetic of lookup tables (numerics §4).
    Tables {
        /// Entries in 24-bit fixed point, a scale for 16 positions; f32 quality. The default.
        Fixed24 = "fixed24",
        /// Entries in 16-bit fixed point; relative error about 1e-4.
        Fixed16 = "fixed16",
        /// Entries in f32, summed in the container's reference order.
        F32 = "f32",
        /// VQ4P's own rule: bytes, a scale for 32 positions; relative error about 1e-2.
        Container = "container",
    }
}

impl VqCode {
    /// Stages of a position.
    #[must_use]
    #[inline]
    pub const fn stages(self) -> usize {
        match self {
            Self::Vq2r => 2,
            Self::Vq3r => 3,
            Self::Vq4p => 4,
        }
    }

    /// Entries of a codebook.
    #[must_use]
    #[inline]
    pub const fn entries(self) -> usize {
        match self {
            Self::Vq2r | Self::Vq3r => 256,
            Self::Vq4p => 64,
        }
    }

    /// B: index bytes of one position of one row.
    #[must_use]
    #[inline]
    pub const fn position_bytes(self) -> usize {
        match self {
            Self::Vq2r => 2,
            Self::Vq3r | Self::Vq4p => 3,
        }
    }

    /// Elements of a matrix's codebooks, `f32[stages][entries][8]`.
    #[must_use]
    #[inline]
    pub const fn books_len(self) -> usize {
        self.stages() * self.entries() * VEC_DIM
    }

    /// Bytes of the index stream of a matrix `[rows, k]`; `None` if k is not a whole number of positions or the
    /// product overflows.
    #[must_use]
    pub fn index_bytes(self, rows: u64, k: u64) -> Option<u64> {
        rows.div_ceil(ROW_BLOCK as u64).checked_mul(self.block_bytes(k)?)
    }

    /// Bytes of 64 rows of the index stream; `None` as [`VqCode::index_bytes`].
    #[must_use]
    pub fn block_bytes(self, k: u64) -> Option<u64> {
        if !k.is_multiple_of(VEC_DIM as u64) {
            return None;
        }
        (k / VEC_DIM as u64).checked_mul((ROW_BLOCK * self.position_bytes()) as u64)
    }

    /// Where the indices of (`row`, `position`) begin in the stream of a matrix with k inputs; `None` if the matrix
    /// has no such position, or as [`VqCode::index_bytes`].
    #[must_use]
    pub fn index_at(self, row: u64, position: u64, k: u64) -> Option<u64> {
        let (block, lane) = (row / ROW_BLOCK as u64, row % ROW_BLOCK as u64);
        let of_position = (ROW_BLOCK * self.position_bytes()) as u64;
        if position >= k / VEC_DIM as u64 {
            return None;
        }
        let in_block = position * of_position + lane * self.position_bytes() as u64;
        block.checked_mul(self.block_bytes(k)?)?.checked_add(in_block)
    }

    /// The entry numbers of one position, one a stage; those of stages that the code does not have are 0.
    ///
    /// # Panics
    /// If there are fewer than [`VqCode::position_bytes`] bytes.
    #[inline(always)]
    #[must_use]
    pub const fn unpack(self, bytes: &[u8]) -> [u8; 4] {
        match self {
            Self::Vq2r => [bytes[0], bytes[1], 0, 0],
            Self::Vq3r => [bytes[0], bytes[1], bytes[2], 0],
            Self::Vq4p => {
                let (b0, b1, b2) = (bytes[0], bytes[1], bytes[2]);
                [b0 & 63, (b0 >> 6 | b1 << 2) & 63, (b1 >> 4 | b2 << 4) & 63, b2 >> 2]
            }
        }
    }
}

impl Tables {
    /// Positions that share a scale. Ranges of positions are cut at multiples of it, also where there are no scales.
    #[must_use]
    #[inline]
    pub const fn block(self) -> usize {
        match self {
            Self::Fixed24 | Self::Fixed16 | Self::F32 => 16,
            Self::Container => 32,
        }
    }

    /// Q: the largest quantised magnitude; `None` for f32.
    #[must_use]
    #[inline]
    pub const fn q_max(self) -> Option<i32> {
        match self {
            Self::Fixed24 => Some(FxLayout { planes: 3 }.q_max()),
            Self::Fixed16 => Some(FxLayout { planes: 2 }.q_max()),
            Self::Container => Some(FxLayout { planes: 1 }.q_max()),
            Self::F32 => None,
        }
    }
}

/// The lookup tables of one row of inputs: T\[v\]\[s\]\[c\] = Σ_d x\[8v + d\] · C_s\[c\]\[d\].
///
/// Only their size is agreed upon; the tier of kernels that builds them is the one that reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LutLayout {
    /// The code of the matrices they multiply.
    pub code: VqCode,
    /// Their arithmetic.
    pub tables: Tables,
}

impl LutLayout {
    /// Every pair, by code and then by arithmetic.
    pub const ALL: [Self; 12] = {
        let mut all = [Self { code: VqCode::Vq3r, tables: Tables::Fixed24 }; 12];
        let mut i = 0;
        while i < all.len() {
            let of_code = Tables::ALL.len();
            all[i] = Self { code: VqCode::ALL[i / of_code], tables: Tables::ALL[i % of_code] };
            i += 1;
        }
        all
    };

    /// The name of the dtype.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match (self.code, self.tables) {
            (VqCode::Vq3r, Tables::Fixed24) => "lut3r_fixed24",
            (VqCode::Vq3r, Tables::Fixed16) => "lut3r_fixed16",
            (VqCode::Vq3r, Tables::F32) => "lut3r_f32",
            (VqCode::Vq3r, Tables::Container) => "lut3r_container",
            (VqCode::Vq2r, Tables::Fixed24) => "lut2r_fixed24",
            (VqCode::Vq2r, Tables::Fixed16) => "lut2r_fixed16",
            (VqCode::Vq2r, Tables::F32) => "lut2r_f32",
            (VqCode::Vq2r, Tables::Container) => "lut2r_container",
            (VqCode::Vq4p, Tables::Fixed24) => "lut4p_fixed24",
            (VqCode::Vq4p, Tables::Fixed16) => "lut4p_fixed16",
            (VqCode::Vq4p, Tables::F32) => "lut4p_f32",
            (VqCode::Vq4p, Tables::Container) => "lut4p_container",
        }
    }

    /// Bytes of the entries of `positions` positions, 4 an entry: the most that any tier needs.
    #[must_use]
    #[inline]
    pub const fn entry_bytes(self, positions: usize) -> usize {
        positions * self.code.stages() * self.code.entries() * 4
    }

    /// Scales of `positions` positions, each an f32.
    #[must_use]
    #[inline]
    pub const fn scales(self, positions: usize) -> usize {
        match self.tables {
            Tables::F32 => 0,
            it => positions.div_ceil(it.block()),
        }
    }

    /// Bytes of the tables of one row of k inputs (a multiple of 8, below 2^50), or of k / 8 positions of a longer
    /// one; a multiple of 64.
    #[must_use]
    #[inline]
    pub const fn row_bytes(self, k: usize) -> usize {
        let positions = k / VEC_DIM;
        (self.entry_bytes(positions) + 4 * self.scales(positions)).next_multiple_of(64)
    }
}

/// Positions of a slab. Tables between steps lie slab after slab, each whole in itself, so that threads can build a row's slabs apart and
/// apply one while it is in the cache. A multiple of every [`Tables::block`].
pub const SLAB: usize = 32;

impl LutLayout {
    /// Where the slab that begins at position `position` lies in a row of slabs; `position` is a multiple of [`SLAB`].
    #[must_use]
    #[inline]
    pub const fn slab_at(self, position: usize) -> usize {
        position / SLAB * self.row_bytes(SLAB * VEC_DIM)
    }

    /// Bytes of a row of slabs over k inputs (a multiple of 8, below 2^50); a multiple of 64.
    #[must_use]
    #[inline]
    pub const fn slabs_bytes(self, k: usize) -> usize {
        let whole = k / VEC_DIM / SLAB * SLAB;
        self.slab_at(whole) + self.row_bytes(k - whole * VEC_DIM)
    }
}

/// Tokens that a vector-quantised linear takes together.
pub const VQ_TOKENS: usize = 8;

impl LutLayout {
    /// Floats of scratch that a linear of at most [`VQ_TOKENS`] tokens and `rows` rows needs, whatever tier it runs on: the tables of
    /// a block of positions and two sums a row for all tokens, or the tables of a slab and a sum a row for one.
    #[must_use]
    #[inline]
    pub const fn linear_scratch(self, rows: usize) -> usize {
        let rows = rows.next_multiple_of(ROW_BLOCK);
        let entries = self.code.stages() * self.code.entries();
        let all = (self.tables.block() * entries + 2 * rows) * VQ_TOKENS;
        let one = self.row_bytes(SLAB * VEC_DIM) / 4 + rows;
        if all > one { all } else { one }
    }
}

/// Row `row` of a matrix with k inputs, in f64: the reference decode.
///
/// `indices`: the index stream, at least to the end of the row's block; `books`: `f32[stages][entries][8]`; `scale`:
/// the row's; `out`: `f64[k]`. Each weight is the exact sum of its entries (rounded to f64) times the scale.
///
/// # Panics
/// If k is not a whole number of positions, or a slice is shorter than that or `out` and `books` are not as long.
pub fn decode_row(
    code: VqCode,
    indices: &[u8],
    books: &[f32],
    scale: f32,
    row: usize,
    k: usize,
    out: &mut [f64],
) {
    assert_eq!((books.len(), out.len()), (code.books_len(), k), "codebooks and weights of {}", code.name());
    let (weights, rest) = out.as_chunks_mut::<VEC_DIM>();
    assert!(rest.is_empty(), "{k} inputs are not whole positions");
    let (entries, _) = books.as_chunks::<VEC_DIM>();
    for (v, weights) in weights.iter_mut().enumerate() {
        let at = code.index_at(row as u64, v as u64, k as u64).and_then(|at| usize::try_from(at).ok());
        let numbers = code.unpack(&indices[at.expect("a row of a stream in memory")..]);
        *weights = [0.0; VEC_DIM];
        for (book, number) in entries.chunks_exact(code.entries()).zip(numbers) {
            for (weight, part) in weights.iter_mut().zip(book[usize::from(number)]) {
                *weight += f64::from(part);
            }
        }
        weights.iter_mut().for_each(|it| *it *= f64::from(scale));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn streams_have_the_sizes_of_their_geometry() {
        // An expert of Kimi-Linear: two matrices [1024, 2304], one [2304, 1024], 3 bits a weight.
        let expert =
            |code: VqCode| 2 * code.index_bytes(1024, 2304).unwrap() + code.index_bytes(2304, 1024).unwrap();
        assert_eq!(expert(VqCode::Vq3r), 3 * 1024 * 2304 * 3 / 8);
        assert_eq!(expert(VqCode::Vq4p), expert(VqCode::Vq3r));
        assert_eq!(expert(VqCode::Vq2r) * 3, expert(VqCode::Vq3r) * 2);
        assert_eq!(VqCode::Vq3r.index_bytes(65, 8), Some(2 * 64 * 3), "rows fill whole blocks");
        assert_eq!(VqCode::Vq3r.index_bytes(64, 12), None);
        assert_eq!(VqCode::Vq3r.index_bytes(u64::MAX, 1 << 20), None);
        assert_eq!(VqCode::Vq2r.block_bytes(u64::MAX - 7), None);
    }

    #[test]
    fn every_position_has_bytes_of_its_own() {
        for &code in VqCode::ALL {
            let (rows, k) = (130, 24);
            let mut seen = vec![false; usize::try_from(code.index_bytes(rows, k).unwrap()).unwrap()];
            for row in 0..rows {
                for v in 0..k / 8 {
                    let at = usize::try_from(code.index_at(row, v, k).unwrap()).unwrap();
                    for it in &mut seen[at..at + code.position_bytes()] {
                        assert!(!std::mem::replace(it, true), "{} ({row}, {v})", code.name());
                    }
                }
            }
            let free = seen.iter().filter(|it| !**it).count();
            assert_eq!(free, 62 * 3 * code.position_bytes(), "only rows 130 to 191 are free");
            assert_eq!(code.index_at(0, k / 8, k), None);
            assert_eq!(code.index_at(u64::MAX, 0, 1 << 60), None);
        }
    }

    #[test]
    fn six_bits_are_taken_from_a_little_endian_word() {
        for word in (0..1u32 << 24).step_by(9973) {
            let want = [0, 6, 12, 18].map(|at| (word >> at & 63) as u8);
            assert_eq!(VqCode::Vq4p.unpack(&word.to_le_bytes()), want);
        }
    }

    #[test]
    fn a_row_decodes_to_scaled_sums_of_entries() {
        for &code in VqCode::ALL {
            let (k, row, last) = (16, 67, code.entries() - 1);
            let mut indices = vec![0; usize::try_from(code.index_bytes(70, k as u64).unwrap()).unwrap()];
            let at = usize::try_from(code.index_at(row as u64, 1, k as u64).unwrap()).unwrap();
            indices[at..at + code.position_bytes()].fill(0xff);
            let mut books = vec![0.0; code.books_len()];
            for s in 0..code.stages() {
                books[s * code.entries() * 8 + 3] = 100.0;
                books[(s * code.entries() + last) * 8 + 3] = (s + 1) as f32;
            }
            let mut out = vec![9.0; k];
            decode_row(code, &indices, &books, 0.5, row, k, &mut out);
            let mut want = vec![0.0; k];
            want[3] = 50.0 * code.stages() as f64;
            want[11] = 0.5 * (1..=code.stages()).sum::<usize>() as f64;
            assert_eq!(out, want, "{}", code.name());
        }
    }

    #[test]
    fn tables_are_four_bytes_an_entry_and_their_scales() {
        let bytes = |code, tables| LutLayout { code, tables }.row_bytes(2304);
        assert_eq!(bytes(VqCode::Vq3r, Tables::F32), 288 * 768 * 4);
        assert_eq!(bytes(VqCode::Vq3r, Tables::Fixed24), 288 * 768 * 4 + 128);
        assert_eq!(bytes(VqCode::Vq4p, Tables::Container), 288 * 256 * 4 + 64);
        let layout = LutLayout { code: VqCode::Vq4p, tables: Tables::Fixed16 };
        assert_eq!((layout.scales(16), layout.scales(17)), (1, 2));
    }
}
