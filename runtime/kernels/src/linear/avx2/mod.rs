//! AVX2 twins of the fixed-point linears.
//!
//! Both kernels walk the inputs in chunks of one activation group (128): the tokens' part of a chunk is laid out once
//! (at most [`TOKENS`](crate::linear::parts::TOKENS) tokens, so that it stays in L1), then every block of 16 rows is multiplied with all of them.
//! Accumulators live in the tile between chunks; groups ascend, so each output sees the order of the definition.
//! One token takes its own way, straight from the packed bytes with software prefetch and no chunks.

pub(super) mod nibbles;
pub(super) mod octets;

use std::arch::x86_64::{__m256, _mm256_fmadd_ps, _mm256_mul_ps};

use crate::cpu::Isa;
use crate::table::{Entry, KernelTable};

/// How far ahead of a matrix-vector product its weights are asked for, in bytes.
const AHEAD: usize = 4096;

/// Overlays the rows of this tier. The caller has the tier.
pub(crate) fn install(table: &mut KernelTable) {
    macro_rules! rows {
        ($($name:ident = $kernel:path;)+) => { $( table.$name = Entry { call: $kernel, isa: Isa::Avx2 }; )+ };
    }
    rows! {
    linear_w8_fixed24 = octets::fixed24;
    linear_w8_fixed16 = octets::fixed16;
    linear_w8_fixed8 = octets::fixed8;
        linear_w4_fixed24 = nibbles::w4_fixed24;
        linear_w4_fixed16 = nibbles::w4_fixed16;
        linear_w4_fixed8 = nibbles::w4_fixed8;
        linear_w4m_fixed24 = nibbles::w4m_fixed24;
        linear_w4m_fixed16 = nibbles::w4m_fixed16;
        linear_w4m_fixed8 = nibbles::w4m_fixed8;
    }
}

/// acc = fma(s, d · xs, acc): the scale step of 8 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scale_step(s: __m256, d: __m256, xs: __m256, acc: __m256) -> __m256 {
    _mm256_fmadd_ps(s, _mm256_mul_ps(d, xs), acc)
}
