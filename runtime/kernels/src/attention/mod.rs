//! Attention of a block of queries over the cache of one key/value head, in absolute tiles of 32 positions
//! (numerics §3).
//!
//! Cache of one row and head: K tiles `[tile][d][32]`, V tiles `[tile][32][dv]`, both f32 or both f16. A query sees
//! positions 0 … n_pos − 1 (n_pos ≥ 1; 0 gives NaN); tiles it does not reach are not read.
//!
//! ```text
//! s_i = scale · Σ_d fma(q_d, k_id, ·)        d ascending, from 0
//! per tile: m_t = max s_i; p_i = exp(s_i − m_t); l_t = 16-lane sum of p; o_t = Σ_i fma(p_i, v_i, ·) ascending
//! fold, tiles ascending, from m = −inf, l = 0, o = 0:
//! m' = max(m, m_t); a = exp(m − m'); b = exp(m_t − m'); l = fma(l, a, l_t · b); o = fma(o, a, o_t · b)
//! result o / l
//! ```
//!
//! Invisible positions take part in nothing (a stale or unwritten cache element is never used). A NaN score makes the
//! query's result NaN. Each query's arithmetic is its own, so blocks of queries may be cut anywhere.
//!
//! Shapes: q `f32[queries, d]`; n_pos `u32[queries]`; out `f32[queries, dv]`; scratch f32[[`scratch_len`]].

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;

/// Positions in a tile.
pub const TILE: usize = 32;

/// The cache of one row and key/value head.
#[derive(Clone, Copy, Debug)]
pub struct KvTiles<'a, T> {
    /// K tiles `[tile][d][32]`.
    pub k: &'a [T],
    /// V tiles `[tile][32][dv]`.
    pub v: &'a [T],
}

/// Elements of scratch that attention over `queries` queries needs.
#[must_use]
pub const fn scratch_len(queries: usize) -> usize {
    2 * queries
}

/// Tiles that hold `n_pos` positions.
#[must_use]
pub const fn tiles(n_pos: usize) -> usize {
    n_pos.div_ceil(TILE)
}

/// A tier's rows, around its file's `scores` and `add_values`: so many queries share the keys of a tile, the most that are
/// left; a last one goes alone.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! tier {
    ($isa:expr, $attribute:meta, $($queries:literal),+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable) {
            table.attention_f32 = Entry { call: attention::<f32>, isa: $isa };
            table.attention_f16 = Entry { call: attention::<f16>, isa: $isa };
        }

        #[$attribute]
        fn attention<T: CacheElem>(
            q: &RowsF32<'_>,
            n_pos: &[u32],
            kv: &KvTiles<'_, T>,
            scale: f32,
            scratch: &mut [f32],
            out: &mut TileMut<'_>,
        ) {
            let queries = Queries { q, n_pos, scale };
            walk(&queries, kv, scratch, out, |tile, running, out| {
                let mut from = 0;
                while from < out.rows() {
                    from += match out.rows() - from {
                        $( $queries.. => some_queries::<T, $queries>(&queries, from, tile, running, out), )+
                        _ => some_queries::<T, 1>(&queries, from, tile, running, out),
                    };
                }
            });
        }

        /// Takes a tile into `N` queries from `from` on; returns `N`.
        #[inline]
        #[$attribute]
        fn some_queries<T: CacheElem, const N: usize>(
            queries: &Queries<'_>,
            from: usize,
            tile: &Tile<'_, T>,
            running: &mut Running<'_>,
            out: &mut TileMut<'_>,
        ) -> usize {
            let visible: [usize; N] = std::array::from_fn(|i| queries.visible(from + i, tile.first));
            if visible == [0; N] {
                return N;
            }
            let rows = std::array::from_fn(|i| queries.q.row(from + i));
            for (i, (scores, visible)) in
                scores::<T, N>(rows, tile.k, queries.scale).iter().zip(visible).enumerate()
            {
                if visible > 0 {
                    let (p, factors) = running.fold(from + i, scores, visible);
                    add_values(&p[..visible], tile.v, factors, out.row_mut(from + i));
                }
            }
            N
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use tier;
