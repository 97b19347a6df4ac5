//! The definitions: tile by tile, query by query; and the frame of the tiles that the twins share.

use half::f16;

use super::{Queries, latent_scratch_len};
use crate::attention::portable::{CacheElem, Running};
use crate::attention::{TILE, tiles};
use crate::half16::{bf16_to_f32, f16_to_f32};
use crate::view::{RowsF32, TileMut};

macro_rules! rows {
    ($($name:ident: $elem:ty;)+) => {
        $(#[inline(always)]
        pub(crate) fn $name(
            q: &RowsF32<'_>, q_rope: &RowsF32<'_>, n_pos: &[u32], cache: &[$elem], scale: f32, scratch: &mut [f32],
            out: &mut TileMut<'_>,
        ) {
            attention(&Queries { q, q_rope, n_pos, cache, scale }, scratch, out);
        })+
    };
}

rows! {
    latent_attention_f32: f32;
    latent_attention_f16: f16;
}

/// What a tile works with.
pub(crate) struct Work<'a> {
    pub(crate) running: Running<'a>,
    /// The rest of scratch: whatever a twin puts there.
    pub(crate) rest: &'a mut [f32],
}

#[inline(always)]
fn attention<T: CacheElem>(queries: &Queries<'_, T>, scratch: &mut [f32], out: &mut TileMut<'_>) {
    walk(queries, scratch, out, |tile, first, work, out| {
        for i in 0..out.rows() {
            let visible = queries.visible(i, first);
            if visible > 0 {
                let scores = scores(queries.q.row(i), queries.q_rope.row(i), tile, queries.scale);
                let (p, factors) = work.running.fold(i, &scores, visible);
                add_columns(&p[..visible], tile, factors, out.row_mut(i));
            }
        }
    });
}

/// Calls `step` with every tile that some query sees and its first position, ascending, and divides at the end.
#[inline(always)]
pub(crate) fn walk<T: CacheElem>(
    queries: &Queries<'_, T>,
    scratch: &mut [f32],
    out: &mut TileMut<'_>,
    step: impl Fn(&[T], usize, &mut Work<'_>, &mut TileMut<'_>),
) {
    let (n, kl, r) = (out.rows(), out.cols(), queries.q_rope.cols());
    assert_eq!(queries.q.cols(), kl, "latents of the queries and of the result");
    let rows = [queries.q.rows(), queries.q_rope.rows(), queries.n_pos.len()];
    assert_eq!(rows, [n; 3], "one query, rotated part and visible length an output row");
    let (running, rest) = scratch[..latent_scratch_len(n, kl)].split_at_mut(2 * n);
    let mut work = Work { running: Running::new(running, out), rest };
    let longest = queries.n_pos.iter().max().map_or(0, |&it| it as usize);
    for t in 0..tiles(longest) {
        let tile = &queries.cache[t * (kl + r) * TILE..][..(kl + r) * TILE];
        step(tile, t * TILE, &mut work, out);
    }
    work.running.finish(out);
}

impl<T> Queries<'_, T> {
    /// Positions of the tile at `first` that query `i` sees.
    #[inline(always)]
    pub(crate) fn visible(&self, i: usize, first: usize) -> usize {
        (self.n_pos[i] as usize).saturating_sub(first).min(TILE)
    }
}

/// Scores of all positions of a tile, the invisible ones included.
#[inline(always)]
fn scores<T: CacheElem>(q: &[f32], q_rope: &[f32], tile: &[T], scale: f32) -> [f32; TILE] {
    let mut s = [0.0f32; TILE];
    for (q, c) in q.iter().chain(q_rope).zip(tile.as_chunks::<TILE>().0) {
        for (s, c) in s.iter_mut().zip(c) {
            *s = q.mul_add(c.to_f32(), *s);
        }
    }
    s.map(|s| scale * s)
}

/// o = fma(o, a, o_t · b), with o_t the sum over the visible positions of latents `[..][32]`.
#[inline(always)]
pub(crate) fn add_columns<T: CacheElem>(p: &[f32], latents: &[T], (a, b): (f32, f32), out: &mut [f32]) {
    const LANES: usize = 16;
    for (out, latents) in out.chunks_mut(LANES).zip(latents.chunks(LANES * TILE)) {
        let mut o_t = [0.0f32; LANES];
        for (i, p) in p.iter().enumerate() {
            for (o, latent) in o_t.iter_mut().zip(latents.as_chunks::<TILE>().0) {
                *o = p.mul_add(latent[i].to_f32(), *o);
            }
        }
        for (o, o_t) in out.iter_mut().zip(o_t) {
            *o = o.mul_add(a, o_t * b);
        }
    }
}

#[inline(always)]
pub(crate) fn head_linear_t_f32(w: &[u8], x: &[f32], y: &mut [f32]) {
    head_linear_t(w, x, y, f32::from_le_bytes);
}

#[inline(always)]
pub(crate) fn head_linear_t_f16(w: &[u8], x: &[f32], y: &mut [f32]) {
    head_linear_t(w, x, y, |it| f16_to_f32(u16::from_le_bytes(it)));
}

#[inline(always)]
pub(crate) fn head_linear_t_bf16(w: &[u8], x: &[f32], y: &mut [f32]) {
    head_linear_t(w, x, y, |it| bf16_to_f32(u16::from_le_bytes(it)));
}

/// Row after row of w, `B` bytes an element.
#[inline(always)]
fn head_linear_t<const B: usize>(w: &[u8], x: &[f32], y: &mut [f32], decode: impl Fn([u8; B]) -> f32) {
    let rows = check_matrix::<B>(w, x, y);
    y.fill(0.0);
    for (x, row) in x.iter().zip(rows.chunks_exact(y.len())) {
        for (y, w) in y.iter_mut().zip(row) {
            *y = x.mul_add(decode(*w), *y);
        }
    }
}

/// The elements of a matrix of as many rows as x and columns as y.
#[inline(always)]
pub(crate) fn check_matrix<'a, const B: usize>(w: &'a [u8], x: &[f32], y: &[f32]) -> &'a [[u8; B]] {
    let (n, k) = (x.len(), y.len());
    assert!(k > 0 && w.len() == n * k * B, "a matrix of {n} by {k} in {} bytes", w.len());
    w.as_chunks().0
}
