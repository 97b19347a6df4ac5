//! How each step's work is cut: enough tiles to share, each large enough to pay for its claim.
//!
//! Cutting never changes bits: a tile is rows and columns of the result, never a part of a sum. Numbers are for the target
//! `cpu` in general, not for the compiling machine.

use waste_plan::schema::{RING_COLS, StepKind, Tile};
use waste_plan::vq::{ROW_BLOCK, SLAB, VEC_DIM};
use waste_plan::{FX_GROUP, LANES};

/// Tokens in a tile of a matrix product in prefill: their activations stay in the second-level cache.
const GEMM_ROWS: u32 = 64;
/// Columns in a tile of a matrix product in prefill: kernels lay out a tile's activations once for all of them.
const GEMM_COLS: u32 = 256;
/// Calls of at most this many rows are matrix-vector products: their tiles are cut finer, since there is one row of them.
const FEW_ROWS: u64 = 8;
/// Inputs in a tile of a table build: one slab.
const SLAB_COLS: u32 = (SLAB * VEC_DIM) as u32;
/// Columns in a tile of a table lookup: a slab of tables stays in the second-level cache for all of them.
const LUT_COLS: u32 = 1024;
/// Most columns in a tile of a product that makes its tables: each tile makes them anew, and keeps two sums a column for eight tokens
/// beside them in the second-level cache.
const VQ_COLS: u32 = 1280;
/// Columns in a tile of a step that works head by head on a few rows.
const HEAD_COLS: u32 = 512;
/// Rows in a tile of a step that works row by row.
const ROW_TILE: u32 = 4;

/// The tile of a step whose first result has `rows` rows (at most) and `cols` columns, in heads of `head` columns where it has any.
pub(crate) fn tile(kind: &StepKind, rows: u64, cols: u32, head: u32) -> Tile {
    let most_rows = u32::try_from(rows).unwrap_or(u32::MAX).max(1);
    match kind {
        StepKind::Linear { .. } => {
            Tile { rows: most_rows.min(GEMM_ROWS), cols: columns(rows, cols, LANES as u32) }
        }
        StepKind::LinearGlu { quant, .. } => {
            let unit = if quant.is_some() { FX_GROUP } else { LANES } as u32;
            Tile { rows: most_rows.min(GEMM_ROWS), cols: columns(rows, cols, unit) }
        }
        StepKind::Attention { heads, .. } => Tile { rows: most_rows.min(16), cols: cols / heads },
        // A recurrence walks all tokens of a call, some channels or one head at a time.
        StepKind::ShortConv { .. } => {
            Tile { rows: most_rows, cols: GEMM_COLS.min(cols.next_multiple_of(RING_COLS)) }
        }
        StepKind::KdaStep => Tile { rows: most_rows, cols: head },
        StepKind::L2Norm { .. } | StepKind::KdaGate { .. } | StepKind::GatedRmsNorm { .. } => {
            let few = rows <= FEW_ROWS;
            let wide = if few { (HEAD_COLS / head.max(1)).max(1).saturating_mul(head) } else { cols };
            Tile { rows: most_rows.min(ROW_TILE), cols: wide.min(cols) }
        }
        // Rows of a tile are tokens of one head.
        StepKind::HeadLinear | StepKind::HeadLinearT => Tile { rows: GEMM_ROWS, cols },
        StepKind::LatentAttention { .. } => Tile { rows: (most_rows / 8).clamp(8, 32).min(most_rows), cols },
        StepKind::ExpertSort { .. } => Tile { rows: most_rows, cols },
        // One expert at a time.
        StepKind::ExpertLinear { .. } => {
            Tile { rows: 1, cols: GEMM_COLS.min(cols.next_multiple_of(LANES as u32)) }
        }
        StepKind::ExpertGlu { quant, .. } => {
            let unit = if quant.is_some() { FX_GROUP } else { LANES } as u32;
            Tile { rows: 1, cols: GEMM_COLS.min(cols.next_multiple_of(unit)) }
        }
        StepKind::LutBuild { .. } => Tile { rows: 1, cols: SLAB_COLS.min(cols) },
        StepKind::ExpertVq { .. } => {
            let wide = cols.div_ceil(cols.div_ceil(VQ_COLS).max(1));
            Tile { rows: 1, cols: wide.next_multiple_of(ROW_BLOCK as u32) }
        }
        StepKind::ExpertLut { .. } => {
            Tile { rows: 1, cols: LUT_COLS.min(cols.next_multiple_of(ROW_BLOCK as u32)) }
        }
        StepKind::ExpertPrefetch { .. } | StepKind::ExpertWindow { .. } | StepKind::ExpertRelease { .. } => {
            Tile { rows: 1, cols: 1 }
        }
        StepKind::Embed
        | StepKind::QuantAct { .. }
        | StepKind::Add
        | StepKind::Mul
        | StepKind::Unary { .. }
        | StepKind::Glu { .. }
        | StepKind::RmsNorm { .. }
        | StepKind::LayerNorm { .. }
        | StepKind::RopeAngles { .. }
        | StepKind::Rope { .. }
        | StepKind::KvAppend
        | StepKind::SelectRows
        | StepKind::Argmax
        | StepKind::FiniteCheck
        | StepKind::Concat
        | StepKind::AttnResMix { .. }
        | StepKind::RouteTopK { .. }
        | StepKind::ExpertGather
        | StepKind::ExpertSum => Tile { rows: most_rows.min(ROW_TILE), cols },
    }
}

/// A matrix product takes wide tiles; a matrix-vector product about eight across, between 96 and 512 columns each.
fn columns(rows: u64, cols: u32, unit: u32) -> u32 {
    let wide = if rows > FEW_ROWS { GEMM_COLS } else { cols.div_ceil(8).clamp(96, 512) };
    wide.next_multiple_of(unit).min(cols.next_multiple_of(unit))
}
