//! AVX-512 twin of the delta rule: the two registers of a block of 32 columns, in the one pass a token that the AVX2
//! twin describes. A row costs as long as one fma waits for the one before, in arithmetic as in latency.

use std::arch::x86_64::{
    __m512, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_sub_ps,
};

use waste_plan::LANES;

use super::{Tokens, portable};
use crate::avx512::{load_16_ps, store_16_ps};
use crate::cpu::Isa;
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

/// Overlays the rows of this tier. The caller has the tier.
pub(crate) fn install(table: &mut KernelTable) {
    table.kda_step = Entry { call: kda_step, isa: Isa::Avx512 };
}

#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
#[expect(clippy::too_many_arguments, reason = "one argument an operand")]
fn kda_step(
    q: &RowsF32<'_>,
    k: &RowsF32<'_>,
    v: &RowsF32<'_>,
    decay: &RowsF32<'_>,
    beta: &[f32],
    from: Option<&[f32]>,
    to: &mut [f32],
    o: &mut TileMut<'_>,
) {
    let tokens = Tokens { q, k, v, decay, beta };
    tokens.check(from, to, o);
    match o.cols() {
        32 => block::<2>(&tokens, from, to, o),
        16 => block::<1>(&tokens, from, to, o),
        _ => portable::kda_step(q, k, v, decay, beta, from, to, o),
    }
}

/// Some columns of one row of the state.
type Row<const N: usize> = [[f32; LANES]; N];

/// All tokens of a block of `N` registers of columns.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn block<const N: usize>(tokens: &Tokens<'_>, from: Option<&[f32]>, to: &mut [f32], o: &mut TileMut<'_>) {
    let (to, _) = to.as_chunks_mut().0.as_chunks_mut::<N>();
    let from: Option<&[Row<N>]> = match from {
        Some(from) => Some(from.as_chunks().0.as_chunks().0),
        None => None,
    };
    let mut u = begin(tokens, from, to);
    for t in 0..o.rows() {
        let mut d = [_mm512_setzero_ps(); N];
        for ((d, u), v) in d.iter_mut().zip(u).zip(tokens.v.row(t).as_chunks().0) {
            *d = _mm512_mul_ps(_mm512_set1_ps(tokens.beta[t]), _mm512_sub_ps(load_16_ps(v), u));
        }
        let read;
        (read, u) = match (from, t + 1 < o.rows()) {
            (Some(from), true) if t == 0 => step::<N, true, true>(tokens, t, d, from, to),
            (Some(from), false) if t == 0 => step::<N, true, false>(tokens, t, d, from, to),
            (_, true) => step::<N, false, true>(tokens, t, d, &[], to),
            (_, false) => step::<N, false, false>(tokens, t, d, &[], to),
        };
        for (o, read) in o.row_mut(t).as_chunks_mut().0.iter_mut().zip(read) {
            store_16_ps(o, read);
        }
    }
}

/// What the state holds for the key of token 0 after its decay. Without a state, the decayed zeros are left in `to`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn begin<const N: usize>(tokens: &Tokens<'_>, from: Option<&[Row<N>]>, to: &mut [Row<N>]) -> [__m512; N] {
    let mut u = [_mm512_setzero_ps(); N];
    let (decay, k) = (&tokens.decay.row(0)[..to.len()], &tokens.k.row(0)[..to.len()]);
    for (i, to) in to.iter_mut().enumerate() {
        let (decay, k) = (_mm512_set1_ps(decay[i]), _mm512_set1_ps(k[i]));
        for (n, u) in u.iter_mut().enumerate() {
            let s = match from {
                Some(from) => load_16_ps(&from[i][n]),
                None => _mm512_setzero_ps(),
            };
            let s = _mm512_mul_ps(s, decay);
            *u = _mm512_fmadd_ps(k, s, *u);
            if from.is_none() {
                store_16_ps(&mut to[n], s);
            }
        }
    }
    u
}

/// Finishes token t, S = S + k · d and o, and begins the `NEXT` one, S = diag(decay) · S and u; returns o and u.
///
/// `FIRST`: S is read from `from` and decays here, else it lies in `to` and has decayed.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn step<const N: usize, const FIRST: bool, const NEXT: bool>(
    tokens: &Tokens<'_>,
    t: usize,
    d: [__m512; N],
    from: &[Row<N>],
    to: &mut [Row<N>],
) -> ([__m512; N], [__m512; N]) {
    let dk = to.len();
    let from = if FIRST { &from[..dk] } else { from };
    let next = t + usize::from(NEXT);
    let (k, q, decay) = (&tokens.k.row(t)[..dk], &tokens.q.row(t)[..dk], &tokens.decay.row(t)[..dk]);
    let (next_k, next_decay) = (&tokens.k.row(next)[..dk], &tokens.decay.row(next)[..dk]);
    let (mut o, mut u) = ([_mm512_setzero_ps(); N], [_mm512_setzero_ps(); N]);
    for (i, to) in to.iter_mut().enumerate() {
        for (n, to) in to.iter_mut().enumerate() {
            let mut s = if FIRST {
                _mm512_mul_ps(load_16_ps(&from[i][n]), _mm512_set1_ps(decay[i]))
            } else {
                load_16_ps(to)
            };
            s = _mm512_fmadd_ps(_mm512_set1_ps(k[i]), d[n], s);
            o[n] = _mm512_fmadd_ps(_mm512_set1_ps(q[i]), s, o[n]);
            if NEXT {
                s = _mm512_mul_ps(s, _mm512_set1_ps(next_decay[i]));
                u[n] = _mm512_fmadd_ps(_mm512_set1_ps(next_k[i]), s, u[n]);
            }
            store_16_ps(to, s);
        }
    }
    (o, u)
}
