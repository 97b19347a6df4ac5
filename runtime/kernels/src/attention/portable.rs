//! The definition: tile by tile, query by query.

use half::f16;

use super::{KvTiles, TILE, scratch_len, tiles};
use crate::half16::{f16_to_f32, f32_to_f16};
use crate::math::exp;
use crate::norm::portable::tree;
use crate::view::{RowsF32, TileMut};

/// The element of a cache.
pub(crate) trait CacheElem: Copy {
    fn to_f32(self) -> f32;
    fn from_f32(x: f32) -> Self;
    /// Eight of them with their type in the open, for code that loads them in its own way.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn eight(src: &[Self; 8]) -> Eight<'_>;
    /// As [`CacheElem::eight`].
    #[cfg(target_arch = "x86_64")]
    fn sixteen(src: &[Self; 16]) -> Sixteen<'_>;
    /// Elements that are f32 already.
    #[cfg(target_arch = "x86_64")]
    fn floats(src: &[Self]) -> Option<&[f32]>;
}

/// Eight cache elements.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) enum Eight<'a> {
    F32(&'a [f32; 8]),
    F16(&'a [f16; 8]),
}

/// Sixteen cache elements.
#[cfg(target_arch = "x86_64")]
pub(crate) enum Sixteen<'a> {
    F32(&'a [f32; 16]),
    F16(&'a [f16; 16]),
}

impl CacheElem for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    fn eight(src: &[Self; 8]) -> Eight<'_> {
        Eight::F32(src)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn sixteen(src: &[Self; 16]) -> Sixteen<'_> {
        Sixteen::F32(src)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn floats(src: &[Self]) -> Option<&[f32]> {
        Some(src)
    }
}

impl CacheElem for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16_to_f32(self.to_bits())
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        Self::from_bits(f32_to_f16(x))
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    fn eight(src: &[Self; 8]) -> Eight<'_> {
        Eight::F16(src)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn sixteen(src: &[Self; 16]) -> Sixteen<'_> {
        Sixteen::F16(src)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn floats(_: &[Self]) -> Option<&[f32]> {
        None
    }
}

macro_rules! rows {
    ($($write_k:ident, $write_v:ident, $attention:ident: $elem:ty;)+) => {
        $(#[inline(always)]
        pub(crate) fn $write_k(tile: &mut [$elem], pos: usize, k: &[f32]) {
            write_k(tile, pos, k);
        }
        #[inline(always)]
        pub(crate) fn $write_v(tile: &mut [$elem], pos: usize, v: &[f32]) {
            write_v(tile, pos, v);
        }
        #[inline(always)]
        pub(crate) fn $attention(
            q: &RowsF32<'_>, n_pos: &[u32], kv: &KvTiles<'_, $elem>, scale: f32, scratch: &mut [f32], out: &mut TileMut<'_>,
        ) {
            attention(&Queries { q, n_pos, scale }, kv, scratch, out);
        })+
    };
}

rows! {
    kv_write_k_f32, kv_write_v_f32, attention_f32: f32;
    kv_write_k_f16, kv_write_v_f16, attention_f16: f16;
}

#[inline(always)]
fn write_k<T: CacheElem>(tile: &mut [T], pos: usize, k: &[f32]) {
    assert!(pos < TILE && tile.len() == k.len() * TILE, "position {pos} of a K tile of {}", tile.len());
    for (row, k) in tile.chunks_exact_mut(TILE).zip(k) {
        row[pos] = T::from_f32(*k);
    }
}

#[inline(always)]
fn write_v<T: CacheElem>(tile: &mut [T], pos: usize, v: &[f32]) {
    assert!(pos < TILE && tile.len() == v.len() * TILE, "position {pos} of a V tile of {}", tile.len());
    for (y, v) in tile[pos * v.len()..].iter_mut().zip(v) {
        *y = T::from_f32(*v);
    }
}

/// A block of queries.
pub(crate) struct Queries<'a> {
    pub(crate) q: &'a RowsF32<'a>,
    pub(crate) n_pos: &'a [u32],
    pub(crate) scale: f32,
}

impl Queries<'_> {
    /// Positions of the tile at `first` that query `i` sees.
    #[inline(always)]
    pub(crate) fn visible(&self, i: usize, first: usize) -> usize {
        (self.n_pos[i] as usize).saturating_sub(first).min(TILE)
    }
}

/// One tile of the cache; `first` is its first position.
pub(crate) struct Tile<'a, T> {
    pub(crate) k: &'a [T],
    pub(crate) v: &'a [T],
    pub(crate) first: usize,
}

/// m and l of every query.
pub(crate) struct Running<'a> {
    max: &'a mut [f32],
    sum: &'a mut [f32],
}

#[inline(always)]
fn attention<T: CacheElem>(
    queries: &Queries<'_>,
    kv: &KvTiles<'_, T>,
    scratch: &mut [f32],
    out: &mut TileMut<'_>,
) {
    walk(queries, kv, scratch, out, |tile, running, out| {
        for i in 0..out.rows() {
            let visible = queries.visible(i, tile.first);
            if visible > 0 {
                let scores = scores(queries.q.row(i), tile.k, queries.scale);
                let (p, factors) = running.fold(i, &scores, visible);
                add_values(&p[..visible], tile.v, factors, out.row_mut(i));
            }
        }
    });
}

/// What a twin's registers leave of o = fma(o, a, o_t · b): the columns from `at` on; returns their number.
#[inline(always)]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn add_last_columns<T: CacheElem>(
    p: &[f32],
    v: &[T],
    at: usize,
    (a, b): (f32, f32),
    out: &mut [f32],
) -> usize {
    let dv = out.len();
    for (c, out) in out.iter_mut().enumerate().skip(at) {
        let mut column = 0.0f32;
        for (p, v) in p.iter().zip(v.chunks_exact(dv)) {
            column = p.mul_add(v[c].to_f32(), column);
        }
        *out = out.mul_add(a, column * b);
    }
    dv - at
}

/// Calls `step` for every tile that some query sees, ascending, and divides at the end.
#[inline(always)]
pub(crate) fn walk<T: CacheElem>(
    queries: &Queries<'_>,
    kv: &KvTiles<'_, T>,
    scratch: &mut [f32],
    out: &mut TileMut<'_>,
    step: impl Fn(&Tile<'_, T>, &mut Running<'_>, &mut TileMut<'_>),
) {
    let (n, d, dv) = (queries.q.rows(), queries.q.cols(), out.cols());
    assert_eq!((queries.n_pos.len(), out.rows()), (n, n), "one visible length and one output row a query");
    let mut running = Running::new(&mut scratch[..scratch_len(n)], out);
    let longest = queries.n_pos.iter().max().map_or(0, |&it| it as usize);
    for tile in 0..tiles(longest) {
        let k = &kv.k[tile * d * TILE..][..d * TILE];
        let v = &kv.v[tile * TILE * dv..][..TILE * dv];
        step(&Tile { k, v, first: tile * TILE }, &mut running, out);
    }
    running.finish(out);
}

impl<'a> Running<'a> {
    /// Before the first tile: m = −inf, l = 0, o = 0, of as many queries as `out` has rows; scratch is two elements each.
    #[inline(always)]
    pub(crate) fn new(scratch: &'a mut [f32], out: &mut TileMut<'_>) -> Self {
        let (max, sum) = scratch.split_at_mut(out.rows());
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        for i in 0..out.rows() {
            out.row_mut(i).fill(0.0);
        }
        Self { max, sum }
    }

    /// After the last tile: o / l.
    #[inline(always)]
    pub(crate) fn finish(&self, out: &mut TileMut<'_>) {
        for (i, sum) in self.sum.iter().enumerate() {
            out.row_mut(i).iter_mut().for_each(|o| *o /= *sum);
        }
    }

    /// Folds the scores of a tile into query `i`: p of every position, and the factors of the old and the new values.
    ///
    /// The 16-lane sum may take p = 0 of invisible positions: adding +0 to a sum of numbers ≥ 0 changes nothing.
    #[inline(always)]
    pub(crate) fn fold(
        &mut self,
        i: usize,
        scores: &[f32; TILE],
        visible: usize,
    ) -> ([f32; TILE], (f32, f32)) {
        let (p, m_t) = weights(scores, visible);
        let l_t = tree(std::array::from_fn(|i| p[i] + p[i + 16]));
        let (max, sum) = (&mut self.max[i], &mut self.sum[i]);
        let m = if m_t > *max { m_t } else { *max };
        let (a, b) = (exp(*max - m), exp(m_t - m));
        *sum = sum.mul_add(a, l_t * b);
        *max = m;
        (p, (a, b))
    }
}

/// Scores of all positions of a tile, the invisible ones included.
#[inline(always)]
fn scores<T: CacheElem>(q: &[f32], k: &[T], scale: f32) -> [f32; TILE] {
    let mut s = [0.0f32; TILE];
    for (q, k) in q.iter().zip(k.as_chunks::<TILE>().0) {
        for (s, k) in s.iter_mut().zip(k) {
            *s = q.mul_add(k.to_f32(), *s);
        }
    }
    s.map(|s| scale * s)
}

/// p of every position (0 where invisible) and the maximum over the visible ones.
#[inline(always)]
fn weights(scores: &[f32; TILE], visible: usize) -> ([f32; TILE], f32) {
    let mut shown = [f32::NEG_INFINITY; TILE];
    for (i, (shown, s)) in shown.iter_mut().zip(scores).enumerate() {
        *shown = if i < visible { *s } else { f32::NEG_INFINITY };
    }
    let m_t = shown.iter().fold(f32::NEG_INFINITY, |m, &s| if s > m { s } else { m });
    let mut p = [0.0; TILE];
    for (i, (p, s)) in p.iter_mut().zip(shown).enumerate() {
        *p = if i < visible { exp(s - m_t) } else { 0.0 };
    }
    (p, m_t)
}

/// o = fma(o, a, o_t · b), with o_t summed over the visible positions.
#[inline(always)]
fn add_values<T: CacheElem>(p: &[f32], v: &[T], (a, b): (f32, f32), out: &mut [f32]) {
    const COLUMNS: usize = 16;
    let dv = out.len();
    for (c, out) in out.chunks_mut(COLUMNS).enumerate() {
        let mut o_t = [0.0f32; COLUMNS];
        for (p, v) in p.iter().zip(v.chunks_exact(dv)) {
            for (o, v) in o_t.iter_mut().zip(&v[c * COLUMNS..]) {
                *o = p.mul_add(v.to_f32(), *o);
            }
        }
        for (o, o_t) in out.iter_mut().zip(o_t) {
            *o = o.mul_add(a, o_t * b);
        }
    }
}
