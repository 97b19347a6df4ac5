//! AVX2 twins. Entries are 32-bit words as in the portable tables, summed row by row (`word`), but for the fixed-point
//! tables of 64 entries: those are byte planes that `vpshufb` looks up for 32 rows at a time (`plane`). A few tokens
//! together are the lanes of a register (`tokens`).

mod build;
mod plane;
mod tokens;
mod word;

use std::ops::Range;

use waste_plan::{LutLayout, Tables, VqCode};

use super::{by_parts, check_linear, token_by_token};
use crate::cpu::Isa;
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

/// Blocks of rows that pass over a piece of tables while it is in L1.
const BLOCKS: usize = 32;
/// Tokens from which on lanes of tokens beat tables of one: about half of the lanes has to be in use.
const MANY: usize = 4;
/// The same where the tables of one are byte planes.
const MANY_PLANES: usize = 5;

macro_rules! rows {
    ($($build:ident, $apply:ident, $linear:ident: $tables:ident, $planes:literal;)+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable) {
            $( table.$build = Entry { call: $build, isa: Isa::Avx2 };
            table.$apply = Entry { call: $apply, isa: Isa::Avx2 };
            table.$linear = Entry { call: $linear, isa: Isa::Avx2 }; )+
        }
        $(#[target_feature(enable = "avx2,fma,f16c")]
        fn $build(code: VqCode, x: &[f32], books: &[f32], positions: Range<usize>, out: &mut [u8]) {
            let tables = Tables::$tables;
            match (code, $planes) {
                (VqCode::Vq3r, _) => build::words::<super::Vq3r, 3, 256>(tables, x, books, positions, out),
                (VqCode::Vq2r, _) => build::words::<super::Vq2r, 2, 256>(tables, x, books, positions, out),
                (VqCode::Vq4p, 0) => build::words::<super::Vq4p, 4, 64>(tables, x, books, positions, out),
                (VqCode::Vq4p, _) => build::planes::<$planes>(tables, x, books, positions, out),
            }
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        fn $apply(
            code: VqCode, bytes: &[u8], indices: &[u8], positions: Range<usize>, k: usize, acc: &mut [f32],
        ) {
            let tables = Tables::$tables;
            match (code, $planes) {
                (VqCode::Vq3r, 0) => word::floats::<super::Vq3r, 3>(bytes, indices, positions, k, acc),
                (VqCode::Vq2r, 0) => word::floats::<super::Vq2r, 2>(bytes, indices, positions, k, acc),
                (VqCode::Vq4p, 0) => plane::floats(bytes, indices, positions, k, acc),
                (VqCode::Vq3r, _) => word::fixed::<super::Vq3r, 3, 4>(tables, bytes, indices, positions, k, acc),
                (VqCode::Vq2r, _) => word::fixed::<super::Vq2r, 2, 8>(tables, bytes, indices, positions, k, acc),
                (VqCode::Vq4p, _) => plane::fixed::<$planes>(tables, bytes, indices, positions, k, acc),
            }
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        fn $linear(
            code: VqCode, x: &RowsF32<'_>, books: &[f32], indices: &[u8], scales: &[u8], scratch: &mut [f32],
            y: &mut TileMut<'_>,
        ) {
            let many = if code == VqCode::Vq4p && $planes > 0 { MANY_PLANES } else { MANY };
            if x.rows() >= many {
                let tables = Tables::$tables;
                check_linear(LutLayout { code, tables }, x, scales, scratch, y);
                return match code {
                    VqCode::Vq3r => {
                        tokens::linear::<super::Vq3r, 3, 256>(tables, x, books, indices, scales, scratch, y)
                    }
                    VqCode::Vq2r => {
                        tokens::linear::<super::Vq2r, 2, 256>(tables, x, books, indices, scales, scratch, y)
                    }
                    VqCode::Vq4p => {
                        tokens::linear::<super::Vq4p, 4, 64>(tables, x, books, indices, scales, scratch, y)
                    }
                };
            }
            by_parts!($tables, $build, $apply: code, x, books, indices, scales, scratch, y);
        }
        )+
    };
}

rows! {
    lut_build_fixed24, lut_apply_fixed24, vq_linear_fixed24: Fixed24, 3;
    lut_build_fixed16, lut_apply_fixed16, vq_linear_fixed16: Fixed16, 2;
    lut_build_f32, lut_apply_f32, vq_linear_f32: F32, 0;
    lut_build_container, lut_apply_container, vq_linear_container: Container, 1;
}
