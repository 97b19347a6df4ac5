//! The definitions.

#[inline(always)]
pub(crate) fn rope_half(x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for head in x.chunks_exact_mut(head_dim) {
        let (low, high) = head[..2 * half].split_at_mut(half);
        for (((x0, x1), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(&sin[..half]) {
            (*x0, *x1) = rotate(*x0, *x1, *cos, *sin);
        }
    }
}

#[inline(always)]
pub(crate) fn rope_pair(x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for head in x.chunks_exact_mut(head_dim) {
        let (pairs, _) = head[..2 * half].as_chunks_mut::<2>();
        for (([x0, x1], cos), sin) in pairs.iter_mut().zip(cos).zip(&sin[..half]) {
            (*x0, *x1) = rotate(*x0, *x1, *cos, *sin);
        }
    }
}

#[inline(always)]
fn rotate(x0: f32, x1: f32, cos: f32, sin: f32) -> (f32, f32) {
    (x0.mul_add(cos, -(x1 * sin)), x1.mul_add(cos, x0 * sin))
}
