//! Vector-quantised linears by lookup tables (numerics §4): build the tables of one row of inputs, apply them to 64
//! rows of indices at a time, scale.
//!
//! Shapes: x `f32[k]`; books `f32[stages][8][entries]` (codebooks transposed, so that lanes are entries); indices whole
//! blocks of 64 rows of the stream of [`waste_plan::vq`]; acc `f32[rows]`, running sums; scales `f16[rows]`. `positions`
//! is a range of the row's k / 8, cut at multiples of [`waste_plan::Tables::block`] or at the row's end: tables hold that range
//! alone, and applying the ranges of a row in ascending order has the bits of applying the whole.
//!
//! ```text
//! build   T[v][s][c] = Σ_d fma(x[8v + d], C_s[c][d], ·)         d ascending, from 0
//!         f32: as it is.  Else per block of 16 positions (container: 32), over all its stages:
//!         amax = max |T|;  xs = amax / Q;  q = clamp(round-half-even(T · (Q / amax)), −Q, Q)
//!         amax < 2^-100: q = 0, xs = 0.    A NaN or an infinity in the block: q = 0, xs = NaN.
//! apply   f32: acc = acc + (T[v][0][i_0] + T[v][1][i_1] + …)    stages ascending, then positions ascending
//!         else per block: acc = fma(f32(Σ q), xs, acc)          blocks ascending; the sum is exact
//! scale   y = f32(scale) · acc                                  subnormal scales kept
//! linear  y[t] = all three of x[t], the sums from 0             a few tokens, tables in scratch
//! ```
//!
//! Q = 8,355,711 (`fixed24`), 32,639 (`fixed16`), 127 (`container`). Bounds: a block sums at most 64 entries of
//! `fixed24` and 128 of `container`, so |Σ q| ≤ 2^6 · 2^23 = 2^29 fits i32. The byte planes that numerics speaks of are
//! how some twins hold q: as 256 · Σm + Σl ≤ 2^22 is exact in f32, fma(f32(Σh), 65536, f32(256 · Σm + Σl)) is the one
//! rounding f32(Σ q).
//!
//! The engine whose rule `container` is multiplies and adds, rounding twice; here that step is the fma of all others.
//!
//! What stands in a table's bytes is private to the table of kernels that wrote them: a twin replaces a build and its
//! apply together.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;

use std::ops::Range;

use waste_plan::vq::{ROW_BLOCK, SLAB, VEC_DIM, VQ_TOKENS};
use waste_plan::{LutLayout, VqCode};

use crate::bytes::bytes_of_mut;
use crate::view::{RowsF32, TileMut};

/// A code as a type, its numbers as constants.
pub(crate) trait Code {
    const CODE: VqCode;
    const STAGES: usize = Self::CODE.stages();
    /// Entries of a book.
    const BOOK: usize = Self::CODE.entries();
    /// Entries of the tables of one position.
    const ENTRIES: usize = Self::STAGES * Self::BOOK;
    /// Index bytes of one position of one row.
    const BYTES: usize = Self::CODE.position_bytes();
    /// Index bytes of one position of a block of rows.
    const POSITION: usize = ROW_BLOCK * Self::BYTES;
}

pub(crate) struct Vq3r;
pub(crate) struct Vq2r;
pub(crate) struct Vq4p;

impl Code for Vq3r {
    const CODE: VqCode = VqCode::Vq3r;
}
impl Code for Vq2r {
    const CODE: VqCode = VqCode::Vq2r;
}
impl Code for Vq4p {
    const CODE: VqCode = VqCode::Vq4p;
}

/// Calls a function generic in its [`Code`] by the value.
macro_rules! by_code {
    ($code:expr, $f:ident($($arg:expr),* $(,)?)) => {
        match $code {
            VqCode::Vq3r => $f::<Vq3r>($($arg),*),
            VqCode::Vq2r => $f::<Vq2r>($($arg),*),
            VqCode::Vq4p => $f::<Vq4p>($($arg),*),
        }
    };
}
pub(crate) use by_code;

/// What every build asserts in front of its loops; the inputs of the range's positions.
#[inline(always)]
fn inputs<'a>(
    layout: LutLayout,
    x: &'a [f32],
    books: &[f32],
    positions: &Range<usize>,
    out: &[u8],
) -> &'a [[f32; VEC_DIM]] {
    let (x, rest) = x.as_chunks::<VEC_DIM>();
    assert!(rest.is_empty(), "inputs are whole positions");
    assert_eq!(books.len(), layout.code.books_len(), "codebooks of {}", layout.code.name());
    check_range(layout, positions, x.len(), out);
    &x[positions.clone()]
}

/// What every apply asserts in front of its loops; the bytes of 64 rows of the stream.
#[inline(always)]
fn check_apply(
    layout: LutLayout,
    tables: &[u8],
    indices: &[u8],
    positions: &Range<usize>,
    k: usize,
    rows: usize,
) -> usize {
    assert!(k.is_multiple_of(VEC_DIM), "{k} inputs are whole positions");
    check_range(layout, positions, k / VEC_DIM, tables);
    let block = k / VEC_DIM * ROW_BLOCK * layout.code.position_bytes();
    assert!(indices.len() >= rows.div_ceil(ROW_BLOCK) * block, "indices of {rows} rows of {k} inputs");
    block
}

#[inline(always)]
fn check_range(layout: LutLayout, positions: &Range<usize>, all: usize, tables: &[u8]) {
    let is_cut = |at: usize| at.is_multiple_of(layout.tables.block()) || at == all;
    let is_range = positions.start <= positions.end && positions.end <= all;
    assert!(is_range && is_cut(positions.start) && is_cut(positions.end), "{positions:?} of {all} positions");
    let bytes = layout.entry_bytes(positions.len()) + 4 * layout.scales(positions.len());
    assert!(tables.len() >= bytes, "{bytes} bytes of tables");
}

/// What every linear asserts: few tokens, whole positions, a scale for every row.
#[inline(always)]
fn check_linear(layout: LutLayout, x: &RowsF32<'_>, scales: &[u8], scratch: &[f32], y: &TileMut<'_>) {
    assert!(
        x.rows() <= VQ_TOKENS && x.rows() == y.rows(),
        "{} tokens for {} rows of results",
        x.rows(),
        y.rows()
    );
    assert!(x.cols().is_multiple_of(VEC_DIM), "{} inputs are whole positions", x.cols());
    assert_eq!(scales.len(), 2 * y.cols(), "a scale for every row");
    assert!(scratch.len() >= layout.linear_scratch(y.cols()), "scratch of a vector-quantised linear");
}

/// A linear by the build and the apply of a tier: token by token, slab by slab, a slab's tables in the cache.
#[inline(always)]
fn token_by_token(
    layout: LutLayout,
    x: &RowsF32<'_>,
    scales: &[u8],
    scratch: &mut [f32],
    y: &mut TileMut<'_>,
    build: impl Fn(&[f32], Range<usize>, &mut [u8]),
    apply: impl Fn(&[u8], Range<usize>, &mut [f32]),
) {
    check_linear(layout, x, scales, scratch, y);
    let (tables, sums) = scratch.split_at_mut(layout.row_bytes(SLAB * VEC_DIM) / 4);
    let (tables, sums) = (bytes_of_mut(tables), &mut sums[..y.cols()]);
    let positions = x.cols() / VEC_DIM;
    for t in 0..x.rows() {
        sums.fill(0.0);
        for from in (0..positions).step_by(SLAB) {
            let slab = from..positions.min(from + SLAB);
            build(x.row(t), slab.clone(), tables);
            apply(tables, slab, sums);
        }
        portable::lut_scale(scales, sums, y.row_mut(t));
    }
}

/// What is added to q so that its bytes are its balanced digits, each plus 128. Q is that far from overflow.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const fn bias(planes: usize) -> i32 {
    0x0080_8080 >> (8 * (3 - planes))
}

/// Runs `f` on 64 sums; those past the last row are dropped.
#[inline(always)]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn with_block(acc: &mut [f32], f: impl FnOnce(&mut [f32; ROW_BLOCK])) {
    if let Some(block) = acc.first_chunk_mut() {
        return f(block);
    }
    let mut block = [0.0; ROW_BLOCK];
    block[..acc.len()].copy_from_slice(acc);
    f(&mut block);
    acc.copy_from_slice(&block[..acc.len()]);
}
