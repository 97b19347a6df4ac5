//! NEON twins: fixed-point tables are byte planes that `tbl` looks up for 16 rows at a time (`plane`). Tables of floats
//! stay with the portable rows.

mod build;
mod plane;

use std::ops::Range;

use waste_plan::{LutLayout, Tables, VqCode};

use super::{Vq2r, Vq3r, Vq4p, by_parts, token_by_token};
use crate::cpu::Isa;
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

macro_rules! rows {
    ($($build:ident, $apply:ident, $linear:ident: $tables:ident, $planes:literal;)+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable) {
            $( table.$build = Entry { call: $build, isa: Isa::Neon };
            table.$apply = Entry { call: $apply, isa: Isa::Neon };
            table.$linear = Entry { call: $linear, isa: Isa::Neon }; )+
        }
        $(#[target_feature(enable = "neon")]
        fn $build(code: VqCode, x: &[f32], books: &[f32], positions: Range<usize>, out: &mut [u8]) {
            let tables = Tables::$tables;
            match code {
                VqCode::Vq3r => build::planes::<Vq3r, 3, 256, $planes>(tables, x, books, positions, out),
                VqCode::Vq2r => build::planes::<Vq2r, 2, 256, $planes>(tables, x, books, positions, out),
                VqCode::Vq4p => build::planes::<Vq4p, 4, 64, $planes>(tables, x, books, positions, out),
            }
        }
        #[target_feature(enable = "neon")]
        fn $apply(
            code: VqCode, bytes: &[u8], indices: &[u8], positions: Range<usize>, k: usize, acc: &mut [f32],
        ) {
            let tables = Tables::$tables;
            match code {
                VqCode::Vq3r => plane::apply::<Vq3r, 3, 256, $planes>(tables, bytes, indices, positions, k, acc),
                VqCode::Vq2r => plane::apply::<Vq2r, 2, 256, $planes>(tables, bytes, indices, positions, k, acc),
                VqCode::Vq4p => plane::apply::<Vq4p, 4, 64, $planes>(tables, bytes, indices, positions, k, acc),
            }
        }
        #[target_feature(enable = "neon")]
        fn $linear(
            code: VqCode, x: &RowsF32<'_>, books: &[f32], indices: &[u8], scales: &[u8], scratch: &mut [f32],
            y: &mut TileMut<'_>,
        ) {
            by_parts!($tables, $build, $apply: code, x, books, indices, scales, scratch, y);
        }
        )+
    };
}

rows! {
    lut_build_fixed24, lut_apply_fixed24, vq_linear_fixed24: Fixed24, 3;
    lut_build_fixed16, lut_apply_fixed16, vq_linear_fixed16: Fixed16, 2;
    lut_build_container, lut_apply_container, vq_linear_container: Container, 1;
}
