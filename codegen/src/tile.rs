//! How each step's work is cut: enough tiles to share, each large enough to pay for its claim.
//!
//! Cutting never changes bits: a tile is rows and columns of the result, never a part of a sum. Numbers are for the target
//! `cpu` in general, not for the compiling machine.

use waste_plan::schema::{StepKind, Tile};
use waste_plan::{FX_GROUP, LANES};

/// Tokens in a tile of a matrix product in prefill: their activations stay in the second-level cache.
const GEMM_ROWS: u32 = 64;
/// Rows in a tile of a step that works row by row.
const ROW_TILE: u32 = 4;

/// The tile of a step whose first result has `rows` rows (at most) and `cols` columns.
pub(crate) fn tile(kind: &StepKind, rows: u64, cols: u32) -> Tile {
    let most_rows = u32::try_from(rows).unwrap_or(u32::MAX).max(1);
    match kind {
        StepKind::Linear { .. } => Tile { rows: most_rows.min(GEMM_ROWS), cols: columns(cols, LANES as u32) },
        StepKind::LinearGlu { quant: None, .. } => {
            Tile { rows: most_rows.min(GEMM_ROWS), cols: columns(cols, LANES as u32) }
        }
        StepKind::LinearGlu { quant: Some(_), .. } => Tile {
            rows: most_rows.min(GEMM_ROWS),
            cols: columns(cols, FX_GROUP as u32).min(2 * FX_GROUP as u32),
        },
        StepKind::Attention { heads, .. } => Tile { rows: most_rows.min(16), cols: cols / heads },
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
        | StepKind::FiniteCheck => Tile { rows: most_rows.min(ROW_TILE), cols },
    }
}

/// About sixteen tiles across, each a multiple of `unit` and between 48 and 256 columns wide.
fn columns(cols: u32, unit: u32) -> u32 {
    let wide = cols.div_ceil(16).clamp(48, 256);
    wide.next_multiple_of(unit).min(cols.next_multiple_of(unit))
}
