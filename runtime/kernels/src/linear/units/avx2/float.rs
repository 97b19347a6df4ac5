//! The f32 arithmetic over units: a chunk of a block becomes weights and scales in f32, exact, in a [`Panel`] that all tokens share.
//!
//! A sum belongs to one group, so those of several groups go side by side where few tokens pass: enough of them to hide the latency
//! of fma. Accumulators live in the tile and take groups in ascending order.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_slli_epi32, _mm256_sllv_epi32, _mm256_srai_epi32, _mm256_sub_epi32,
    _mm256_xor_ps,
};
use std::ops::Range;

use waste_plan::{FX_GROUP, LANES};

use super::unpack::{Scales, lines, prefetch_chunk, quad};
use super::{Format, SLICE, SLICES, TOKENS, steps};
use crate::avx2::{load_pair, load_words, store_pair, with_lanes};
use crate::view::{RowsF32, TileMut};

/// Σ x of each group of a chunk.
type Sums = [f32; SLICES];

/// A chunk of one block.
struct Panel {
    weights: [[f32; LANES]; FX_GROUP],
    /// d · s of each group.
    scales: [[f32; LANES]; SLICES],
    /// What is added to each weight of a group.
    minima: [[f32; LANES]; SLICES],
    stored: Scales,
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn linear<F: Format>(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>) {
    for t in 0..y.rows() {
        y.row_mut(t).fill(0.0);
    }
    let mut panel = Panel::zeroed();
    for from in (0..y.rows()).step_by(TOKENS) {
        let tokens = from..y.rows().min(from + TOKENS);
        for chunk in 0..k.div_ceil(FX_GROUP) {
            let inputs = chunk * FX_GROUP..k.min((chunk + 1) * FX_GROUP);
            let mut sums = [[0.0; SLICES]; TOKENS];
            if F::LAYOUT.minima {
                for (sums, t) in sums.iter_mut().zip(tokens.clone()) {
                    let groups = x.row(t)[inputs.clone()].chunks_exact(F::LAYOUT.group);
                    sums.iter_mut().zip(groups).for_each(|(u, x)| *u = x.iter().fold(0.0, |u, x| u + x));
                }
            }
            for (block, b) in w.chunks_exact(F::PACKING.block_bytes(k)).zip(0..y.cols().div_ceil(LANES)) {
                let cols = b * LANES..y.cols().min((b + 1) * LANES);
                panel.unpack::<F>(block, k, chunk);
                let y = &mut y.sub(tokens.clone(), cols);
                some_tokens::<F>(&panel, inputs.clone(), (x, from), &sums, y);
            }
        }
    }
}

/// Adds a panel times the tokens of a tile, whose row 0 is token `from`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn some_tokens<F: Format>(
    panel: &Panel,
    inputs: Range<usize>,
    (x, from): (&RowsF32<'_>, usize),
    sums: &[Sums; TOKENS],
    y: &mut TileMut<'_>,
) {
    let mut t = 0;
    while t < y.rows() {
        let tokens = (x, from + t);
        t += match y.rows() - t {
            6.. => add_tokens::<F, 6, 1>(panel, inputs.clone(), tokens, &sums[t..], y, t),
            3.. => add_tokens::<F, 3, 2>(panel, inputs.clone(), tokens, &sums[t..], y, t),
            _ => add_tokens::<F, 1, 4>(panel, inputs.clone(), tokens, &sums[t..], y, t),
        };
    }
}

/// Adds a panel times `T` tokens to rows `at` … of a tile, `G` groups at once while there are so many; returns `T`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_tokens<F: Format, const T: usize, const G: usize>(
    panel: &Panel,
    inputs: Range<usize>,
    (x, from): (&RowsF32<'_>, usize),
    sums: &[Sums],
    y: &mut TileMut<'_>,
    at: usize,
) -> usize {
    let mut rows = [&[][..]; T];
    for (t, row) in rows.iter_mut().enumerate() {
        *row = &x.row(from + t)[inputs.clone()];
    }
    let groups = inputs.len() / F::LAYOUT.group;
    let together = groups / G * G;
    for group in (0..together).step_by(G) {
        let products = of_groups::<F, T, G>(panel, group, &rows);
        products.iter().zip(group..).for_each(|(it, group)| finish::<F, T>(panel, group, it, sums, y, at));
    }
    for group in together..groups {
        let [products] = of_groups::<F, T, 1>(panel, group, &rows);
        finish::<F, T>(panel, group, &products, sums, y, at);
    }
    T
}

/// Σ w · x of `G` groups from `group` on, of `T` tokens: k ascending, from 0.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn of_groups<F: Format, const T: usize, const G: usize>(
    panel: &Panel,
    group: usize,
    x: &[&[f32]; T],
) -> [[[__m256; 2]; T]; G] {
    let mut sums = [[[_mm256_setzero_ps(); 2]; T]; G];
    for slice in (0..F::LAYOUT.group).step_by(SLICE) {
        let mut near = [([&[0.0; SLICE]; T], &[[0.0; LANES]; SLICE]); G];
        for (g, (near, weights)) in near.iter_mut().enumerate() {
            let first = (group + g) * F::LAYOUT.group + slice;
            *weights = panel.weights[first..].first_chunk().expect("a slice of the panel");
            for (near, x) in near.iter_mut().zip(x) {
                *near = x[first..].first_chunk().expect("a slice of the inputs");
            }
        }
        for i in 0..SLICE {
            for (sums, (x, weights)) in sums.iter_mut().zip(&near) {
                let w = load_pair(&weights[i]);
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = fma(w, _mm256_set1_ps(x[i]), *sum);
                }
            }
        }
    }
    sums
}

/// Adds the sums of one group, scaled, and its minima.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish<F: Format, const T: usize>(
    panel: &Panel,
    group: usize,
    products: &[[__m256; 2]; T],
    sums: &[Sums],
    y: &mut TileMut<'_>,
    at: usize,
) {
    let [low, high] = load_pair(&panel.scales[group]);
    for (t, products) in products.iter().enumerate() {
        with_lanes(y.row_mut(at + t), |lanes| {
            let acc = load_pair(lanes);
            let mut acc =
                [_mm256_fmadd_ps(low, products[0], acc[0]), _mm256_fmadd_ps(high, products[1], acc[1])];
            if F::LAYOUT.minima {
                acc = fma(load_pair(&panel.minima[group]), _mm256_set1_ps(sums[t][group]), acc);
            }
            store_pair(lanes, acc);
        });
    }
}

/// a · x + c of 16 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fma(a: [__m256; 2], x: __m256, c: [__m256; 2]) -> [__m256; 2] {
    [_mm256_fmadd_ps(a[0], x, c[0]), _mm256_fmadd_ps(a[1], x, c[1])]
}

impl Panel {
    #[inline(always)]
    const fn zeroed() -> Self {
        Self {
            weights: [[0.0; LANES]; FX_GROUP],
            scales: [[0.0; LANES]; SLICES],
            minima: [[0.0; LANES]; SLICES],
            stored: Scales::zeroed(),
        }
    }

    /// Unpacks chunk `chunk` of a block.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack<F: Format>(&mut self, block: &[u8], k: usize, chunk: usize) {
        prefetch_chunk::<F>(block, chunk);
        self.stored.read::<F>(block, k, chunk);
        let slices = steps::<F>(k, chunk) * F::STEP;
        for (s, weights) in self.weights.as_chunks_mut::<SLICE>().0[..slices].iter_mut().enumerate() {
            let lines = lines::<F>(block, chunk, s);
            for (q, weights) in weights.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let [low, high] = quad::<F>(&lines, q);
                for (i, weights) in weights.iter_mut().enumerate() {
                    store_pair(weights, [byte::<F>(low, i), byte::<F>(high, i)]);
                }
            }
        }
        for group in 0..slices * SLICE / F::LAYOUT.group {
            self.scale::<F>(group);
        }
    }

    /// Scale and minimum of one group.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn scale<F: Format>(&mut self, group: usize) {
        let slice = group * F::LAYOUT.group / SLICE;
        let (d, m) = (load_pair(&self.stored.d[slice / F::STEP]), load_pair(&self.stored.m[slice / F::STEP]));
        let [low, high] = self.stored.pair::<F>(slice);
        let of = |words: __m256i| _mm256_cvtepi32_ps(_mm256_srai_epi32::<16>(words));
        store_pair(&mut self.scales[group], [_mm256_mul_ps(d[0], of(low)), _mm256_mul_ps(d[1], of(high))]);
        if !F::LAYOUT.minima {
            return;
        }
        if !F::LAYOUT.has_group_scales() {
            store_pair(&mut self.minima[group], m);
            return;
        }
        let mut minima = m;
        for (m, words) in minima.iter_mut().zip(&self.stored.minima[group / 2]) {
            // The first of two groups is in the low words.
            let words = load_words(words);
            let t = of(if group.is_multiple_of(2) { _mm256_slli_epi32::<16>(words) } else { words });
            *m = _mm256_xor_ps(_mm256_mul_ps(*m, t), _mm256_set1_ps(-0.0));
        }
        store_pair(&mut self.minima[group], minima);
    }
}

/// Byte `i` of 8 rows as the weight that it stands for.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn byte<F: Format>(quad: __m256i, i: usize) -> __m256 {
    let to_top = _mm256_set1_epi32(24 - 8 * i as i32);
    let code = _mm256_srai_epi32::<24>(_mm256_sllv_epi32(quad, to_top));
    _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(i32::from(F::BIAS))))
}
