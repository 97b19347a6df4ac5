//! Element types and block formats: how bytes in a model file or a plan stand for numbers.
//!
//! Invariants
//! - the reference decode of a block format is exact: every stored value is a finite sum of
//!   f32-representable products, rounded once to f32;
//! - all formats are little-endian.
//!
//! Deliberately absent: any fast decode (that is `waste-kernels`) and any quantiser.

use serde::{Deserialize, Serialize};

use crate::fx::FxLayout;
use crate::grouped::GroupedLayout;
use crate::vq::{LutLayout, Tables, VEC_DIM, VqCode};

/// The arithmetic of linears over integer weights (numerics §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Math {
    /// Activations in three balanced signed byte planes; f32 quality. The default.
    Fixed24,
    /// Two planes; relative error 2.5e-5 … 1e-4.
    Fixed16,
    /// One plane; relative error about 1e-2.
    Fixed8,
    /// Plain f32 fma in k order, block by block.
    F32,
}

impl Math {
    /// Every variant, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Fixed24, Self::Fixed16, Self::Fixed8, Self::F32];

    /// The name used in flags, plans and IR text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed24 => "fixed24",
            Self::Fixed16 => "fixed16",
            Self::Fixed8 => "fixed8",
            Self::F32 => "f32",
        }
    }

    /// Parses [`Math::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// The dtype of quantised activations, or `None` for [`Math::F32`].
    #[must_use]
    pub const fn act_dtype(self) -> Option<DType> {
        match self {
            Self::Fixed24 => Some(DType::Fx24),
            Self::Fixed16 => Some(DType::Fx16),
            Self::Fixed8 => Some(DType::Fx8),
            Self::F32 => None,
        }
    }
}

/// The type of one element, or of one block of elements.
///
/// In files it is its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// Signed 32-bit integer: token ids, rows, positions.
    I32,
    /// GGML Q4_0: blocks of 32, `d: f16`, 16 bytes of nibbles; w = d · (code − 8).
    Q4_0,
    /// GGML Q4_1: blocks of 32, `d: f16, m: f16`, 16 bytes of nibbles; w = d · code + m.
    Q4_1,
    /// GGML Q8_0: blocks of 32, `d: f16`, 32 × i8; w = d · q.
    Q8_0,
    /// GGML Q5_0: blocks of 32, `d: f16`, 4 bytes of high bits, 16 bytes of nibbles; w = d · (code − 16).
    Q5_0,
    /// GGML Q5_1: as Q5_0 with `m: f16` after d; w = d · code + m.
    Q5_1,
    /// GGML Q2_K: super-blocks of 256 in groups of 16; w = d · s · code − m · t (see `crate::stored`, as for all that follow).
    Q2K,
    /// GGML Q3_K: super-blocks of 256 in groups of 16; w = d · s · (code − 4).
    Q3K,
    /// GGML Q4_K: super-blocks of 256 in groups of 32; w = d · s · code − m · t.
    Q4K,
    /// GGML Q5_K: as Q4_K with 5-bit codes.
    Q5K,
    /// GGML Q6_K: super-blocks of 256 in groups of 16; w = d · s · (code − 32).
    Q6K,
    /// GGML IQ4_NL: blocks of 32, `d: f16`, 16 bytes of nibbles; w = d · table\[code\].
    Iq4Nl,
    /// GGML IQ4_XS: super-blocks of 256 in groups of 32; w = d · s · table\[code\].
    Iq4Xs,
    /// MXFP4: blocks of 32, an exponent e, 16 bytes of nibbles; w = 2^(e − 128) · table\[code\].
    Mxfp4,
    /// Quantised activations in three byte planes (see [`FxLayout`]).
    Fx24,
    /// Quantised activations in two byte planes.
    Fx16,
    /// Quantised activations in one byte plane.
    Fx8,
    /// A vector-quantised matrix, [`VqCode::Vq3r`]: its rows are interleaved and mean nothing without codebooks.
    Vq3r,
    /// As [`DType::Vq3r`], of [`VqCode::Vq2r`].
    Vq2r,
    /// As [`DType::Vq3r`], of [`VqCode::Vq4p`].
    Vq4p,
    /// 8-bit integers, an f16 scale for 128, stored apart (see [`GroupedLayout`]).
    Q8G,
    /// As [`DType::Q8G`] with 4-bit codes minus 8.
    Q4G,
    /// As [`DType::Q8G`] with 3-bit codes minus 4.
    Q3G,
    /// The lookup tables of one row of inputs (see [`LutLayout`]); the columns are the inputs.
    Lut(VqCode, Tables),
}

impl DType {
    /// Every dtype, in declaration order.
    pub const ALL: [Self; 38] = {
        let mut all = [Self::F32; 38];
        let (plain, luts) = all.split_at_mut(Self::PLAIN.len());
        plain.copy_from_slice(&Self::PLAIN);
        let mut i = 0;
        while i < luts.len() {
            luts[i] = Self::Lut(LutLayout::ALL[i].code, LutLayout::ALL[i].tables);
            i += 1;
        }
        all
    };

    const PLAIN: [Self; 26] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::I32,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q8_0,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::Fx24,
        Self::Fx16,
        Self::Fx8,
        Self::Vq3r,
        Self::Vq2r,
        Self::Vq4p,
        Self::Q8G,
        Self::Q4G,
        Self::Q3G,
    ];

    /// The name used in IR text and plans.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I32 => "i32",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q8_0 => "q8_0",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::Mxfp4 => "mxfp4",
            Self::Fx24 => "fx24",
            Self::Fx16 => "fx16",
            Self::Fx8 => "fx8",
            Self::Vq3r => VqCode::Vq3r.name(),
            Self::Vq2r => VqCode::Vq2r.name(),
            Self::Vq4p => VqCode::Vq4p.name(),
            Self::Q8G => "q8g",
            Self::Q4G => "q4g",
            Self::Q3G => "q3g",
            Self::Lut(code, tables) => LutLayout { code, tables }.name(),
        }
    }

    /// Parses [`DType::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Whether weights of this dtype are integers with scales (numerics §2), so that a linear over
    /// them wants quantised activations.
    #[must_use]
    #[inline]
    pub const fn is_integer_weight(self) -> bool {
        matches!(self, Self::Q4_0 | Self::Q4_1 | Self::Q8_0 | Self::Q8G | Self::Q4G | Self::Q3G)
            || self.in_units()
    }

    /// Whether matrices of this dtype are packed in units (`crate::units`).
    #[must_use]
    #[inline]
    pub const fn in_units(self) -> bool {
        matches!(
            self,
            Self::Q5_0
                | Self::Q5_1
                | Self::Q2K
                | Self::Q3K
                | Self::Q4K
                | Self::Q5K
                | Self::Q6K
                | Self::Iq4Nl
                | Self::Iq4Xs
                | Self::Mxfp4
        )
    }

    /// Whether this is f32, f16 or bf16.
    #[must_use]
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// The layout of quantised activations, if this dtype is one.
    #[must_use]
    #[inline]
    pub const fn fx(self) -> Option<FxLayout> {
        match self {
            Self::Fx24 => Some(FxLayout { planes: 3 }),
            Self::Fx16 => Some(FxLayout { planes: 2 }),
            Self::Fx8 => Some(FxLayout { planes: 1 }),
            _ => None,
        }
    }

    /// The code, if matrices of this dtype are vector-quantised.
    #[must_use]
    #[inline]
    pub const fn vq(self) -> Option<VqCode> {
        match self {
            Self::Vq3r => Some(VqCode::Vq3r),
            Self::Vq2r => Some(VqCode::Vq2r),
            Self::Vq4p => Some(VqCode::Vq4p),
            _ => None,
        }
    }

    /// How codes and scales lie, if they lie apart.
    #[must_use]
    #[inline]
    pub const fn grouped(self) -> Option<GroupedLayout> {
        match self {
            Self::Q8G => Some(GroupedLayout { bits: 8 }),
            Self::Q4G => Some(GroupedLayout { bits: 4 }),
            Self::Q3G => Some(GroupedLayout { bits: 3 }),
            _ => None,
        }
    }

    /// The layout of lookup tables, if this dtype is one.
    #[must_use]
    #[inline]
    pub const fn lut(self) -> Option<LutLayout> {
        match self {
            Self::Lut(code, tables) => Some(LutLayout { code, tables }),
            _ => None,
        }
    }

    /// Elements and bytes of one block as a *file* stores it (1 element for plain dtypes).
    /// Quantised activations and lookup tables are never stored in files and answer `None`; so do vector-quantised
    /// and grouped matrices, of which no row lies in one piece.
    #[must_use]
    #[inline]
    pub const fn block(self) -> Option<Block> {
        let (elems, bytes) = match self {
            Self::F32 | Self::I32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q8_0 => (32, 34),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q2K => (256, 84),
            Self::Q3K => (256, 110),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Iq4Nl => (32, 18),
            Self::Iq4Xs => (256, 136),
            Self::Mxfp4 => (32, 17),
            Self::Fx24 | Self::Fx16 | Self::Fx8 => return None,
            Self::Vq3r | Self::Vq2r | Self::Vq4p | Self::Lut(..) => return None,
            Self::Q8G | Self::Q4G | Self::Q3G => return None,
        };
        Some(Block { elems, bytes })
    }

    /// Bytes of one row of `n` elements: as a file stores it, or, for quantised activations and lookup tables, as
    /// [`FxLayout`] and [`LutLayout`] say. `None` if `n` is not a whole number of blocks, the product overflows, or
    /// rows do not lie in one piece.
    #[must_use]
    pub fn row_bytes(self, n: u64) -> Option<u64> {
        if let Some(fx) = self.fx() {
            return Some(fx.row_bytes(usize::try_from(n).ok()?) as u64);
        }
        if let Some(lut) = self.lut() {
            n.checked_mul(lut.entry_bytes(1) as u64)?;
            return n
                .is_multiple_of(VEC_DIM as u64)
                .then_some(lut.slabs_bytes(usize::try_from(n).ok()?) as u64);
        }
        let block = self.block()?;
        if !n.is_multiple_of(u64::from(block.elems)) {
            return None;
        }
        (n / u64::from(block.elems)).checked_mul(u64::from(block.bytes))
    }

    /// Bytes of a matrix of `rows` rows of `n` elements, all its pieces together: rows, or codes or indices and scales.
    /// `None` as [`DType::row_bytes`].
    #[must_use]
    pub fn matrix_bytes(self, rows: u64, n: u64) -> Option<u64> {
        if let Some(code) = self.vq() {
            return code.index_bytes(rows, n)?.checked_add(rows.checked_mul(2)?);
        }
        let row = match self.grouped() {
            Some(layout) => layout.row_bytes(n)?.checked_add(layout.scale_bytes(n))?,
            None => self.row_bytes(n)?,
        };
        row.checked_mul(rows)
    }

    /// The first block of stored bytes that no reader accepts, and why: MXFP4's exponent 255 is a NaN.
    ///
    /// `src`: whole blocks.
    #[must_use]
    pub fn refused_block(self, src: &[u8]) -> Option<(usize, &'static str)> {
        if self != Self::Mxfp4 {
            return None;
        }
        let at = src.chunks_exact(17).position(|it| it[0] == u8::MAX)?;
        Some((at, "an exponent of 255, which stands for no number"))
    }

    /// Decodes file bytes to f32: the reference decode of every format whose rows lie in one piece.
    ///
    /// `src`: whole blocks; `dst`: `f32[blocks · elems]`.
    ///
    /// # Panics
    /// If the lengths disagree, or for dtypes without a block ([`DType::block`]) or of ids.
    pub fn decode(self, src: &[u8], dst: &mut [f32]) {
        let block = self.block().expect("a weight dtype");
        let n_blocks = dst.len() / block.elems as usize;
        assert_eq!(dst.len() % block.elems as usize, 0, "whole blocks of {}", self.name());
        assert_eq!(src.len(), n_blocks * block.bytes as usize, "bytes of {} blocks", self.name());
        let blocks = src.chunks_exact(block.bytes as usize).zip(dst.chunks_exact_mut(block.elems as usize));
        for (src, dst) in blocks {
            self.decode_block(src, dst);
        }
    }

    fn decode_block(self, src: &[u8], dst: &mut [f32]) {
        match self {
            Self::F32 => dst[0] = f32::from_le_bytes([src[0], src[1], src[2], src[3]]),
            Self::F16 => dst[0] = f16_at(src, 0),
            Self::BF16 => dst[0] = half::bf16::from_le_bytes([src[0], src[1]]).to_f32(),
            Self::Q4_0 => decode_nibbles(&src[2..18], dst, f16_at(src, 0), -8, 0.0),
            Self::Q4_1 => decode_nibbles(&src[4..20], dst, f16_at(src, 0), 0, f16_at(src, 2)),
            Self::Q8_0 => {
                let d = f16_at(src, 0);
                for (q, y) in src[2..34].iter().zip(dst) {
                    *y = d * f32::from(q.cast_signed());
                }
            }
            Self::Q5_0
            | Self::Q5_1
            | Self::Q2K
            | Self::Q3K
            | Self::Q4K
            | Self::Q5K
            | Self::Q6K
            | Self::Iq4Nl
            | Self::Iq4Xs
            | Self::Mxfp4 => crate::stored::decode_block(self, src, dst),
            Self::I32 | Self::Fx24 | Self::Fx16 | Self::Fx8 | Self::Lut(..) => {
                panic!("{} holds no weights", self.name())
            }
            Self::Vq3r | Self::Vq2r | Self::Vq4p => panic!("{} needs codebooks", self.name()),
            Self::Q8G | Self::Q4G | Self::Q3G => panic!("the scales of {} lie apart", self.name()),
        }
    }
}

impl From<DType> for &'static str {
    fn from(it: DType) -> Self {
        it.name()
    }
}

impl TryFrom<String> for DType {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::from_name(&name).ok_or_else(|| format!("'{name}' is no dtype"))
    }
}

fn f16_at(src: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([src[at], src[at + 1]]).to_f32()
}

/// GGML's nibble order: byte i holds element i (low) and element i + 16 (high). The products are
/// exact in f64 (11 × 4 bits), so the sum is rounded to f32 once.
fn decode_nibbles(codes: &[u8], dst: &mut [f32], d: f32, bias: i8, m: f32) {
    let (low, high) = dst.split_at_mut(16);
    for ((code, lo), hi) in codes.iter().zip(low).zip(high) {
        let value = |nibble: u8| {
            let w = f64::from(nibble.cast_signed() + bias);
            #[expect(clippy::cast_possible_truncation, reason = "the one rounding to f32")]
            let y = (f64::from(d) * w + f64::from(m)) as f32;
            y
        };
        *lo = value(code & 15);
        *hi = value(code >> 4);
    }
}

/// The size of one stored block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Elements in a block.
    pub elems: u32,
    /// Bytes of a block.
    pub bytes: u32,
}

#[cfg(test)]
mod tests;
