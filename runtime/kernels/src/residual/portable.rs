//! The definition.

use super::MAX_BLOCKS;
use crate::norm::portable::{LANES, inverse_root, lane_sum, softmax, tree};

#[inline(always)]
pub(crate) fn attn_res_mix(blocks: &[f32], x: &[f32], norm: &[f32], proj: &[f32], eps: f32, y: &mut [f32]) {
    let h = y.len();
    let (x, norm, proj) = (&x[..h], &norm[..h], &proj[..h]);
    assert!(h > 0 && blocks.len().is_multiple_of(h), "blocks of {h} in {}", blocks.len());
    let nb = blocks.len() / h;
    assert!(nb <= MAX_BLOCKS, "{nb} blocks of at most {MAX_BLOCKS}");
    let mut p = [0.0; MAX_BLOCKS + 1];
    let p = &mut p[..=nb];
    for (p, v) in p.iter_mut().zip(blocks.chunks_exact(h).chain([x])) {
        *p = score(v, norm, proj, eps);
    }
    softmax(p);
    y.iter_mut().zip(x).for_each(|(y, x)| *y = x * p[nb]);
    for (p, block) in p.iter().zip(blocks.chunks_exact(h)) {
        y.iter_mut().zip(block).for_each(|(y, v)| *y = p.mul_add(*v, *y));
    }
}

/// ((v · rms) · norm) · proj.
#[inline(always)]
fn score(v: &[f32], norm: &[f32], proj: &[f32], eps: f32) -> f32 {
    let rms = inverse_root(lane_sum(v, |x, sum| x.mul_add(x, sum)), v.len(), eps);
    let mut lanes = [0.0f32; LANES];
    let ((vs, v), (norms, norm), (projs, proj)) =
        (v.as_chunks::<LANES>(), norm.as_chunks::<LANES>(), proj.as_chunks::<LANES>());
    let term = |v: f32, norm: f32, proj: f32, sum: f32| ((v * rms) * norm).mul_add(proj, sum);
    for ((v, norm), proj) in vs.iter().zip(norms).zip(projs) {
        for i in 0..LANES {
            lanes[i] = term(v[i], norm[i], proj[i], lanes[i]);
        }
    }
    for i in 0..v.len() {
        lanes[i] = term(v[i], norm[i], proj[i], lanes[i]);
    }
    tree(lanes)
}
