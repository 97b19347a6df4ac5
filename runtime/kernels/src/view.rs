//! Views: how kernels see rows of an arena.
//!
//! Invariants
//! - a [`TileMut`] never hands out an element outside its rows × cols, whatever `stride` is between them;
//! - quantised rows are aligned and in bounds by construction, so that their parts are plain slices.

use std::marker::PhantomData;
use std::ops::Range;

use waste_plan::{FxLayout, LANES};

use crate::bytes::{cast, cast_mut};

/// A writable f32 tile: `rows × cols`, consecutive columns adjacent, rows `stride` elements apart.
///
/// The rows of one tile may interleave in memory with those of another thread's tile (disjoint columns of one
/// matrix), so this holds a pointer and not a slice.
#[derive(Debug)]
pub struct TileMut<'a> {
    ptr: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: a tile is exclusive access to its elements, like `&mut [f32]`.
unsafe impl Send for TileMut<'_> {}

impl<'a> TileMut<'a> {
    /// The tile of `rows × cols` elements at `ptr`.
    ///
    /// # Safety
    /// For every row t < `rows`, the `cols` elements at `ptr + t · stride` are initialised, inside one allocation,
    /// live for `'a`, and neither read nor written through anything else meanwhile.
    #[must_use]
    pub unsafe fn from_raw(ptr: *mut f32, rows: usize, cols: usize, stride: usize) -> Self {
        Self { ptr, rows, cols, stride, owner: PhantomData }
    }

    /// A tile over a slice.
    ///
    /// # Panics
    /// If the rows overlap or do not fit the slice.
    #[must_use]
    pub fn from_slice(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(
            fits(data.len(), rows, cols, stride),
            "{rows} rows of {cols}, stride {stride}, in {}",
            data.len()
        );
        Self { ptr: data.as_mut_ptr(), rows, cols, stride, owner: PhantomData }
    }

    /// Rows of the tile.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the tile.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `t`, `cols` elements.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row_mut(&mut self, t: usize) -> &mut [f32] {
        assert!(t < self.rows, "row {t} of a tile of {}", self.rows);
        // SAFETY: `t` is a row, and a row starts inside the allocation by the constructors' contract.
        let row = unsafe { self.ptr.add(t * self.stride) };
        // SAFETY: the row's `cols` elements are initialised and exclusively ours; the borrow of `self` keeps them so.
        unsafe { std::slice::from_raw_parts_mut(row, self.cols) }
    }

    /// The part of the tile in these rows and columns.
    ///
    /// # Panics
    /// If the ranges leave the tile.
    #[inline]
    #[must_use]
    pub fn sub(&mut self, rows: Range<usize>, cols: Range<usize>) -> TileMut<'_> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert!(cols.start <= cols.end && cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        let ptr = if rows.is_empty() || cols.is_empty() {
            self.ptr
        } else {
            // SAFETY: the first element of a non-empty part is an element of the tile.
            unsafe { self.ptr.add(rows.start * self.stride + cols.start) }
        };
        TileMut { ptr, rows: rows.len(), cols: cols.len(), stride: self.stride, owner: PhantomData }
    }
}

fn fits(len: usize, rows: usize, cols: usize, stride: usize) -> bool {
    let last = rows.saturating_sub(1).checked_mul(stride).and_then(|it| it.checked_add(cols));
    rows == 0 || (last.is_some_and(|end| end <= len) && (rows == 1 || cols <= stride))
}

/// Rows of f32: `rows × cols`, `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct RowsF32<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> RowsF32<'a> {
    /// Rows over a slice.
    ///
    /// # Panics
    /// If they do not fit it.
    #[must_use]
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(
            fits(data.len(), rows, cols, stride),
            "{rows} rows of {cols}, stride {stride}, in {}",
            data.len()
        );
        Self { data, rows, cols, stride }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The same rows, only columns `cols`.
    ///
    /// # Panics
    /// If the columns leave the rows.
    #[must_use]
    pub fn columns(&self, cols: Range<usize>) -> Self {
        assert!(cols.start <= cols.end && cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        Self { data: &self.data[cols.start.min(self.data.len())..], cols: cols.len(), ..*self }
    }

    /// Row `t`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    #[must_use]
    pub fn row(&self, t: usize) -> &'a [f32] {
        assert!(t < self.rows, "row {t} of {}", self.rows);
        &self.data[t * self.stride..][..self.cols]
    }
}

/// Rows of quantised activations, each laid out as [`FxLayout`] says.
#[derive(Clone, Copy, Debug)]
pub struct FxRows<'a> {
    data: &'a [u8],
    rows: usize,
    n: usize,
    stride_bytes: usize,
    layout: FxLayout,
}

impl<'a> FxRows<'a> {
    /// `rows` rows of `n` inputs, `stride_bytes` apart.
    ///
    /// # Panics
    /// If they do not fit `data`, or a row would not be 4-byte aligned.
    #[must_use]
    pub fn new(data: &'a [u8], rows: usize, n: usize, stride_bytes: usize, layout: FxLayout) -> Self {
        let bytes = layout.row_bytes(n);
        assert!(
            fits(data.len(), rows, bytes, stride_bytes),
            "{rows} quantised rows of {n} in {} bytes",
            data.len()
        );
        assert!(
            data.as_ptr().addr().is_multiple_of(4) && stride_bytes.is_multiple_of(4),
            "rows are 4-byte aligned"
        );
        Self { data, rows, n, stride_bytes, layout }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of a row, before padding.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// The layout of a row.
    #[must_use]
    pub fn layout(&self) -> FxLayout {
        self.layout
    }

    #[inline]
    fn part<T: crate::bytes::Plain>(&self, t: usize, at: usize, bytes: usize) -> &'a [T] {
        assert!(t < self.rows, "row {t} of {}", self.rows);
        cast(&self.data[t * self.stride_bytes + at..][..bytes])
    }

    /// Byte plane `p` of row `t` (0 is the highest): `i8[padded]`.
    #[inline]
    #[must_use]
    pub fn plane(&self, t: usize, p: usize) -> &'a [i8] {
        assert!(p < self.layout.planes, "plane {p} of {}", self.layout.planes);
        let np = self.layout.padded(self.n);
        self.part(t, p * np, np)
    }

    /// The bytes of a plane, as they stand in memory.
    #[inline]
    pub(crate) fn plane_bytes(&self, t: usize, p: usize) -> &'a [u8] {
        assert!(t < self.rows && p < self.layout.planes, "row {t} of {}, plane {p}", self.rows);
        let np = self.layout.padded(self.n);
        &self.data[t * self.stride_bytes + p * np..][..np]
    }

    /// Group scales of row `t`: `f32[groups]`.
    #[inline]
    #[must_use]
    pub fn xs(&self, t: usize) -> &'a [f32] {
        self.part(t, self.layout.scales_at(self.n), 4 * self.layout.groups(self.n))
    }

    /// Recombined sums of each 32 inputs of row `t`: `f32[padded / 32]`.
    #[inline]
    #[must_use]
    pub fn z(&self, t: usize) -> &'a [f32] {
        self.part(t, self.layout.z_at(self.n), self.layout.padded(self.n) / 8)
    }

    /// Sums of each 16 inputs of plane `p` of row `t`: `i16[padded / 16]`.
    #[inline]
    #[must_use]
    pub fn sums(&self, t: usize, p: usize) -> &'a [i16] {
        assert!(p < self.layout.planes, "plane {p} of {}", self.layout.planes);
        let bytes = self.layout.padded(self.n) / 8;
        self.part(t, self.layout.sums_at(self.n) + p * bytes, bytes)
    }
}

/// One writable row of quantised activations.
#[derive(Debug)]
pub struct FxRowMut<'a> {
    data: &'a mut [u8],
    n: usize,
    layout: FxLayout,
}

/// The parts of an [`FxRowMut`], in memory order.
pub(crate) struct FxParts<'a> {
    /// `i8[planes]`[padded], highest plane first.
    pub(crate) planes: &'a mut [i8],
    /// `f32[groups]`.
    pub(crate) xs: &'a mut [f32],
    /// `f32[padded / 32]`.
    pub(crate) z: &'a mut [f32],
    /// `i16[planes]`[padded / 16].
    pub(crate) sums: &'a mut [i16],
}

impl<'a> FxRowMut<'a> {
    /// The row of `n` inputs in `data`.
    ///
    /// # Panics
    /// If `data` is shorter than the layout says or not 4-byte aligned.
    #[must_use]
    pub fn new(data: &'a mut [u8], n: usize, layout: FxLayout) -> Self {
        let bytes = layout.row_bytes(n);
        assert!(data.len() >= bytes, "a quantised row of {n} needs {bytes} bytes, not {}", data.len());
        assert!(data.as_ptr().addr().is_multiple_of(4), "rows are 4-byte aligned");
        Self { data: &mut data[..bytes], n, layout }
    }

    /// Inputs of the row, before padding.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// The layout of the row.
    #[must_use]
    pub fn layout(&self) -> FxLayout {
        self.layout
    }

    #[inline(always)]
    pub(crate) fn parts(&mut self) -> FxParts<'_> {
        let (n, fx) = (self.n, self.layout);
        let (planes, rest) = self.data.split_at_mut(fx.scales_at(n));
        let (xs, rest) = rest.split_at_mut(fx.z_at(n) - fx.scales_at(n));
        let (z, rest) = rest.split_at_mut(fx.sums_at(n) - fx.z_at(n));
        let sums = &mut rest[..2 * fx.planes * (fx.padded(n) / 16)];
        FxParts { planes: cast_mut(planes), xs: cast_mut(xs), z: cast_mut(z), sums: cast_mut(sums) }
    }
}

/// Runs `f` on 16 accumulators of `y`; the columns past the tile's edge are dropped.
#[inline(always)]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(dead_code, reason = "no twins here")
)]
pub(crate) fn with_lanes(y: &mut [f32], f: impl FnOnce(&mut [f32; LANES])) {
    if let Some(lanes) = y.first_chunk_mut() {
        f(lanes);
    } else {
        let mut lanes = [0.0; LANES];
        lanes[..y.len()].copy_from_slice(y);
        f(&mut lanes);
        y.copy_from_slice(&lanes[..y.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sub_tile_sees_its_own_elements() {
        let mut data: Vec<f32> = (0..20u8).map(f32::from).collect();
        let mut tile = TileMut::from_slice(&mut data, 4, 4, 5);
        let mut part = tile.sub(1..3, 2..4);
        assert_eq!((part.rows(), part.cols()), (2, 2));
        assert_eq!(part.row_mut(1), [12.0, 13.0]);
        part.row_mut(0)[1] = -1.0;
        assert_eq!(tile.row_mut(1), [5.0, 6.0, 7.0, -1.0]);
    }

    #[test]
    #[should_panic(expected = "rows of")]
    fn rows_must_fit() {
        let _ = RowsF32::new(&[0.0; 9], 2, 5, 5);
    }

    #[test]
    #[should_panic(expected = "rows of")]
    fn rows_must_not_overlap() {
        let _ = TileMut::from_slice(&mut [0.0; 9], 2, 5, 4);
    }

    #[test]
    #[should_panic(expected = "row 2 of")]
    fn a_row_past_the_end_is_refused() {
        TileMut::from_slice(&mut [0.0; 10], 2, 5, 5).row_mut(2);
    }
}
