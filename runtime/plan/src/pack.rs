//! Packed weight layouts: how a plan stores a weight so that kernels read contiguous lines.
//!
//! All of them are rows in blocks of 16 ("lanes are outputs", numerics §1): block b holds rows 16b … 16b+15,
//! k ascending, at byte `b · block_bytes`. Rows past the end are zero.
//!
//! | layout | block of 16 rows, k inputs |
//! |---|---|
//! | `F32`, `F16`, `BF16` | elements `[k][16]` |
//! | `W8` | `i8 [k/4][16][4]`, then scales `f16 [k/32][16]` |
//! | `W4` | `u8 [k/8][16][4]`: low nibbles k … k+3, high nibbles k+4 … k+7; then scales `f16 [k/32][16]` (w = code − 8) |
//! | `W4M` | as `W4` with w = code, then minima `f16 [k/32][16]` after the scales |
//!
//! | `W5` … `K4T` | units of 32 or 256 inputs, one after the other (`crate::units`) |
//!
//! A block is padded to a multiple of 64 bytes. Exact values are kept: nothing is requantised; formats in groups of 128 repeat each
//! scale four times, and 3-bit codes become nibbles.
//!
//! Two layouts are no blocks: `Columns`, the codebooks of a vector-quantised bank, each transposed to `f32 [8][entries]`; and
//! `Record`, the bank itself, which stays in its container.

mod encode;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::units::UnitLayout;
pub use encode::{PartBytes, RowBuffer, pack_block};

/// Rows in a packed block.
pub const LANES: usize = 16;

/// How a weight lies in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Packing {
    /// Plain row-major elements of the stored dtype: vectors, tables read row by row.
    Plain,
    /// f32 `[k][16]`.
    F32,
    /// f16 `[k][16]`.
    F16,
    /// bf16 `[k][16]`.
    BF16,
    /// 8-bit signed codes, one f16 scale per 32 inputs.
    W8,
    /// 4-bit codes minus 8, one f16 scale per 32 inputs.
    W4,
    /// 4-bit codes, one f16 scale and one f16 minimum per 32 inputs.
    W4M,
    /// Q5_0 in units.
    W5,
    /// Q5_1 in units.
    W5M,
    /// IQ4_NL in units.
    W4T,
    /// MXFP4 in units.
    W4E,
    /// Q2_K in units.
    K2,
    /// Q3_K in units.
    K3,
    /// Q4_K in units.
    K4,
    /// Q5_K in units.
    K5,
    /// Q6_K in units.
    K6,
    /// IQ4_XS in units.
    K4T,
    /// The transpose of each matrix, f32: codebooks.
    Columns,
    /// No bytes in the plan: matrices in the records of a file.
    Record,
}

impl Packing {
    /// Every packing, in declaration order.
    pub const ALL: [Self; 19] = [
        Self::Plain,
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::W8,
        Self::W4,
        Self::W4M,
        Self::W5,
        Self::W5M,
        Self::W4T,
        Self::W4E,
        Self::K2,
        Self::K3,
        Self::K4,
        Self::K5,
        Self::K6,
        Self::K4T,
        Self::Columns,
        Self::Record,
    ];

    /// The name used in plans and IR text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::F32 => "f32x16",
            Self::F16 => "f16x16",
            Self::BF16 => "bf16x16",
            Self::W8 => "w8x16",
            Self::W4 => "w4x16",
            Self::W4M => "w4mx16",
            Self::W5 => "w5x16",
            Self::W5M => "w5mx16",
            Self::W4T => "w4tx16",
            Self::W4E => "w4ex16",
            Self::K2 => "k2x16",
            Self::K3 => "k3x16",
            Self::K4 => "k4x16",
            Self::K5 => "k5x16",
            Self::K6 => "k6x16",
            Self::K4T => "k4tx16",
            Self::Columns => "columns",
            Self::Record => "record",
        }
    }

    /// Parses [`Packing::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// The packing in which a matrix of `dtype` is multiplied; `None` for dtypes that hold no weights.
    #[must_use]
    #[inline]
    pub const fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::BF16),
            DType::Q8_0 | DType::Q8G => Some(Self::W8),
            DType::Q4_0 | DType::Q4G | DType::Q3G => Some(Self::W4),
            DType::Q4_1 => Some(Self::W4M),
            DType::Q5_0 => Some(Self::W5),
            DType::Q5_1 => Some(Self::W5M),
            DType::Iq4Nl => Some(Self::W4T),
            DType::Mxfp4 => Some(Self::W4E),
            DType::Q2K => Some(Self::K2),
            DType::Q3K => Some(Self::K3),
            DType::Q4K => Some(Self::K4),
            DType::Q5K => Some(Self::K5),
            DType::Q6K => Some(Self::K6),
            DType::Iq4Xs => Some(Self::K4T),
            DType::I32 | DType::Fx24 | DType::Fx16 | DType::Fx8 => None,
            DType::Vq3r | DType::Vq2r | DType::Vq4p => Some(Self::Record),
            DType::Lut(..) => None,
        }
    }

    /// Whether a weight is blocks of 16 rows; if not, its bytes are packed in one piece.
    #[must_use]
    #[inline]
    pub const fn is_blocked(self) -> bool {
        !matches!(self, Self::Plain | Self::Columns | Self::Record)
    }

    /// The layout of the units of a block, if it is made of them.
    #[must_use]
    #[inline]
    pub const fn units(self) -> Option<UnitLayout> {
        UnitLayout::of(self)
    }

    /// Bytes of the codes of one block (16 rows, `k` inputs), where the scales begin; of all its units, where it is made of them.
    #[must_use]
    #[inline]
    pub const fn payload_bytes(self, k: usize) -> usize {
        if let Some(layout) = self.units() {
            return k / layout.inputs * layout.bytes();
        }
        match self {
            Self::F32 => k * LANES * 4,
            Self::F16 | Self::BF16 => k * LANES * 2,
            Self::W8 => k * LANES,
            Self::W4 | Self::W4M => k * LANES / 2,
            _ => 0,
        }
    }

    /// Byte offset of the minima of one block ([`Packing::W4M`] only, else the end of the block).
    #[must_use]
    #[inline]
    pub const fn minima_at(self, k: usize) -> usize {
        match self {
            Self::W8 | Self::W4 | Self::W4M => self.payload_bytes(k) + k / 32 * LANES * 2,
            _ => self.payload_bytes(k),
        }
    }

    /// Bytes of one block of 16 rows, a multiple of 64.
    #[must_use]
    #[inline]
    pub const fn block_bytes(self, k: usize) -> usize {
        let end = match self {
            Self::W4M => self.minima_at(k) + k / 32 * LANES * 2,
            _ => self.minima_at(k),
        };
        end.next_multiple_of(64)
    }

    /// Bytes of a whole packed matrix of `rows` × `k`; `None` on overflow or for [`Packing::Plain`].
    #[must_use]
    pub fn bytes(self, rows: u64, k: u64) -> Option<u64> {
        match self {
            Self::Plain => return None,
            Self::Columns => return rows.checked_mul(k)?.checked_mul(4),
            Self::Record => return Some(0),
            _ => {}
        }
        k.checked_mul(128)?;
        let block = self.block_bytes(usize::try_from(k).ok()?) as u64;
        rows.div_ceil(LANES as u64).checked_mul(block)
    }
}
