//! The four spaces of a session, and the views that steps get of them.
//!
//! Invariants
//! - every view lies inside its space: [`waste_plan::validate`] bounded all operands for the largest call, and counts of a
//!   call never exceed those (the session checks);
//! - two threads never hold views of which one is writable and shares a byte with the other: tiles of one step are disjoint
//!   in what they write, and a barrier stands between steps that share written bytes. The plan checker proves the latter for
//!   every plan that the compiler makes; a forged plan can race, which spoils numbers but not memory: views never leave
//!   their space, and all element types accept all bits.
//!
//! All unsafe casts of the runtime's arenas are here.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

use half::f16;
use waste_kernels::{FxRowMut, FxRows, RowsF32, TileMut};
use waste_plan::Packing;
use waste_plan::schema::{Operand, Place, Plan, Rows, Weight};

use crate::error::RuntimeError;
use crate::exec::CacheShape;
use crate::weights::WeightBytes;

/// Alignment of every space: a page, so that 64-byte offsets stay aligned.
pub(crate) const ALIGN: usize = 4096;

/// An owned, zeroed, page-aligned allocation.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// Start of the allocation.
    base: NonNull<u8>,
    layout: Layout,
    /// First page boundary in it, and the bytes from there on.
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: a buffer is plain memory; who may touch which bytes is the module invariant.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `bytes` zeroed bytes; the system hands pages out when they are first touched.
    ///
    /// The allocator zeroes by hand what is asked for with a large alignment, which would touch every page: so a page more
    /// is asked for with a small one.
    pub(crate) fn new(bytes: u64, what: &'static str) -> Result<Self, RuntimeError> {
        let error = || RuntimeError::Allocation { bytes, what };
        let size = usize::try_from(bytes.max(1)).map_err(|_| error())?;
        let room = size.checked_add(ALIGN).ok_or_else(error)?;
        let layout = Layout::from_size_align(room, align_of::<u64>()).map_err(|_| error())?;
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or_else(error)?;
        let skip = base.as_ptr().align_offset(ALIGN);
        // SAFETY: `skip` is less than a page, and the allocation is a page larger than `size`.
        let start = unsafe { base.add(skip) };
        Ok(Self { base, layout, start, size })
    }

    /// The bytes, for filling before any view exists.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the allocation is initialised (zeroed) and exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.size) }
    }

    /// The bytes of a buffer that nobody writes any more.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation is initialised (zeroed), and only `bytes_mut` and views of scratch, io and states write.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.size) }
    }

    fn at(&self, offset: u64, bytes: u64) -> *mut u8 {
        let end = offset.checked_add(bytes).expect("validated ranges");
        assert!(end <= self.size as u64, "{offset} + {bytes} leave a space of {}", self.size);
        let offset = usize::try_from(offset).expect("inside the space");
        // SAFETY: `offset` is at most the size of the buffer.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// The sizes of one call: how many tokens, how many wanted rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) tokens: u32,
    pub(crate) want: u32,
}

impl Call {
    /// Rows of `rows` in this call.
    pub(crate) fn rows(self, rows: Rows) -> usize {
        usize::try_from(rows.count(self.tokens, self.want)).expect("validated row counts")
    }
}

/// Scratch, io, states and weights of a session.
#[derive(Debug)]
pub(crate) struct Spaces {
    scratch: Buffer,
    io: Buffer,
    states: Buffer,
    weights: WeightBytes,
    /// Offset and bytes of each weight and state.
    weight_at: Vec<(u64, u64)>,
    packings: Vec<Packing>,
    /// Bytes of one matrix of each weight.
    matrices: Vec<u64>,
    state_at: Vec<(u64, u64)>,
    caches: Vec<CacheShape>,
}

#[expect(
    clippy::mut_from_ref,
    reason = "threads share the spaces and write disjoint parts of them: the module invariant"
)]
impl Spaces {
    /// Allocates the spaces of a validated plan.
    pub(crate) fn new(plan: &Plan, weights: WeightBytes) -> Result<Self, RuntimeError> {
        Ok(Self {
            scratch: Buffer::new(plan.memory.scratch, "scratch")?,
            io: Buffer::new(plan.memory.io, "logits and inputs")?,
            states: Buffer::new(plan.memory.states, "states")?,
            weights,
            weight_at: plan.weights.iter().map(|it| (it.offset, it.bytes)).collect(),
            packings: plan.weights.iter().map(|it| it.packing).collect(),
            matrices: plan.weights.iter().map(Weight::matrix_bytes).collect(),
            state_at: plan.states.iter().map(|it| (it.offset, it.bytes)).collect(),
            caches: plan.states.iter().map(CacheShape::of).collect(),
        })
    }

    /// The geometry of state `id`.
    pub(crate) fn cache_shape(&self, id: u32) -> CacheShape {
        self.caches[id as usize]
    }

    /// The io port at `offset`, `n` i32 elements, writable.
    pub(crate) fn port_i32s_mut(&mut self, offset: u64, n: usize) -> &mut [i32] {
        let ptr = self.io.at(offset, n as u64 * 4);
        // SAFETY: in bounds by `at`, aligned since ports start at multiples of 64; exclusive by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(ptr.cast(), n) }
    }

    /// The io port at `offset`, `n` i32 elements.
    pub(crate) fn port_i32s(&self, offset: u64, n: usize) -> &[i32] {
        let ptr = self.io.at(offset, n as u64 * 4);
        // SAFETY: in bounds by `at`, aligned as above; no step runs while the session is borrowed for this.
        unsafe { std::slice::from_raw_parts(ptr.cast_const().cast(), n) }
    }

    /// The io port at `offset`, `n` f32 elements.
    pub(crate) fn port_f32s(&self, offset: u64, n: usize) -> &[f32] {
        let ptr = self.io.at(offset, n as u64 * 4);
        // SAFETY: as in `port_i32s`.
        unsafe { std::slice::from_raw_parts(ptr.cast_const().cast(), n) }
    }

    /// The packed bytes of weight `id`.
    pub(crate) fn weight(&self, id: u32) -> &[u8] {
        let (offset, bytes) = self.weight_at[id as usize];
        let range = |it: u64| usize::try_from(it).expect("validated weights fit in memory");
        &self.weights.bytes()[range(offset)..range(offset + bytes)]
    }

    /// The packed bytes of the weight that `operand` names.
    pub(crate) fn weight_of(&self, operand: &Operand) -> &[u8] {
        let Place::Weight(id) = operand.place else { panic!("{:?} is no weight", operand.place) };
        self.weight(id)
    }

    /// The packed bytes of matrix `index` of the bank that `operand` names.
    pub(crate) fn matrix_of(&self, operand: &Operand, index: usize) -> &[u8] {
        let Place::Weight(id) = operand.place else { panic!("{:?} is no weight", operand.place) };
        let bytes = usize::try_from(self.matrices[id as usize]).expect("validated weights fit in memory");
        &self.weight(id)[index * bytes..(index + 1) * bytes]
    }

    /// The layout of the weight that `operand` names.
    pub(crate) fn packing_of(&self, operand: &Operand) -> Packing {
        let Place::Weight(id) = operand.place else { panic!("{:?} is no weight", operand.place) };
        self.packings[id as usize]
    }

    /// First byte of rows `rows` of an operand in scratch or io, after a bounds check.
    fn rows_at(&self, operand: &Operand, rows: &Range<usize>) -> (*mut u8, usize) {
        let (space, offset) = match operand.place {
            Place::Scratch(offset) => (&self.scratch, offset),
            Place::Io(offset) => (&self.io, offset),
            Place::Weight(_) | Place::State(_) => panic!("{:?} has no rows", operand.place),
        };
        let span = operand.span(rows.len() as u64).expect("validated spans");
        let start = offset + rows.start as u64 * operand.stride;
        (space.at(start, span), usize::try_from(span).expect("validated spans fit in memory"))
    }

    /// Rows of an f32 operand: activations, or a plain f32 vector among the weights.
    pub(crate) fn f32_rows(&self, operand: &Operand, rows: Range<usize>) -> RowsF32<'_> {
        let cols = operand.cols as usize;
        if let Place::Weight(id) = operand.place {
            return RowsF32::new(f32s(self.weight(id)), 1, cols, cols);
        }
        let n = rows.len();
        let (ptr, span) = self.rows_at(operand, &rows);
        // SAFETY: in bounds by `rows_at`; aligned since offsets and strides are multiples of 4 (validated); no writer (module invariant).
        let data = unsafe { std::slice::from_raw_parts(ptr.cast::<f32>().cast_const(), span / 4) };
        RowsF32::new(data, n, cols, operand.stride as usize / 4)
    }

    /// One row of an f32 operand.
    pub(crate) fn f32_row(&self, operand: &Operand, row: usize) -> &[f32] {
        self.f32_rows(operand, row..row + 1).row(0)
    }

    /// An i32 vector of `n` elements in io or scratch.
    pub(crate) fn i32s(&self, operand: &Operand, n: usize) -> &[i32] {
        let (ptr, span) = self.rows_at(operand, &(0..n));
        // SAFETY: in bounds by `rows_at`, 4-byte aligned, no writer (module invariant).
        unsafe { std::slice::from_raw_parts(ptr.cast::<i32>().cast_const(), span / 4) }
    }

    /// Element `row` of an i32 vector, writable.
    pub(crate) fn i32_mut(&self, operand: &Operand, row: usize) -> &mut i32 {
        let (ptr, _) = self.rows_at(operand, &(row..row + 1));
        // SAFETY: in bounds by `rows_at`, 4-byte aligned, and only the tile of this row writes it (module invariant).
        unsafe { &mut *ptr.cast::<i32>() }
    }

    /// `n` elements of an i32 operand of one column, from row 0, writable.
    pub(crate) fn i32s_mut(&self, operand: &Operand, n: usize) -> &mut [i32] {
        let (ptr, span) = self.rows_at(operand, &(0..n));
        // SAFETY: in bounds by `rows_at`, 4-byte aligned, and only one tile writes it (module invariant).
        unsafe { std::slice::from_raw_parts_mut(ptr.cast::<i32>(), span / 4) }
    }

    /// One row of an i32 operand, writable.
    pub(crate) fn i32_row_mut(&self, operand: &Operand, row: usize) -> &mut [i32] {
        let (ptr, span) = self.rows_at(operand, &(row..row + 1));
        // SAFETY: in bounds by `rows_at`, 4-byte aligned, and only the tile of this row writes it (module invariant).
        unsafe { std::slice::from_raw_parts_mut(ptr.cast::<i32>(), span / 4) }
    }

    /// One row of an i32 operand.
    pub(crate) fn i32_row(&self, operand: &Operand, row: usize) -> &[i32] {
        let (ptr, span) = self.rows_at(operand, &(row..row + 1));
        // SAFETY: in bounds by `rows_at`, 4-byte aligned, no writer (module invariant).
        unsafe { std::slice::from_raw_parts(ptr.cast::<i32>().cast_const(), span / 4) }
    }

    /// The bytes of one row of an operand in scratch or io.
    pub(crate) fn row_bytes(&self, operand: &Operand, row: usize) -> &[u8] {
        let (ptr, span) = self.rows_at(operand, &(row..row + 1));
        // SAFETY: in bounds by `rows_at`; no writer (module invariant).
        unsafe { std::slice::from_raw_parts(ptr.cast_const(), span) }
    }

    /// Sets `bytes` bytes of scratch, between steps: nobody else holds a view then.
    pub(crate) fn fill_scratch(&self, offset: u64, bytes: u64, value: u8) {
        let ptr = self.scratch.at(offset, bytes);
        let n = usize::try_from(bytes).expect("inside the space");
        // SAFETY: in bounds by `at`; the caller is alone between steps (module invariant).
        unsafe { ptr.write_bytes(value, n) }
    }

    /// A writable tile of an f32 operand.
    pub(crate) fn tile(&self, operand: &Operand, rows: Range<usize>, cols: Range<usize>) -> TileMut<'_> {
        assert!(cols.end <= operand.cols as usize, "columns {cols:?} of {}", operand.cols);
        let (ptr, _) = self.rows_at(operand, &rows);
        // SAFETY: `rows_at` bounded whole rows, and `cols` lie inside a row.
        let ptr = unsafe { ptr.cast::<f32>().add(cols.start) };
        // SAFETY: in bounds and aligned as above; exclusive since tiles of a step are disjoint (module invariant).
        unsafe { TileMut::from_raw(ptr, rows.len(), cols.len(), operand.stride as usize / 4) }
    }

    /// Rows of quantised activations.
    pub(crate) fn fx_rows(&self, operand: &Operand, rows: Range<usize>) -> FxRows<'_> {
        let n = rows.len();
        let (ptr, span) = self.rows_at(operand, &rows);
        // SAFETY: in bounds by `rows_at`; no writer (module invariant).
        let data = unsafe { std::slice::from_raw_parts(ptr.cast_const(), span) };
        let layout = operand.dtype.fx().expect("a validated fx operand");
        FxRows::new(data, n, operand.cols as usize, operand.stride as usize, layout)
    }

    /// One row of quantised activations, writable.
    pub(crate) fn fx_row_mut(&self, operand: &Operand, row: usize) -> FxRowMut<'_> {
        let (ptr, span) = self.rows_at(operand, &(row..row + 1));
        // SAFETY: in bounds by `rows_at`; only the tile of this row writes it (module invariant).
        let data = unsafe { std::slice::from_raw_parts_mut(ptr, span) };
        FxRowMut::new(data, operand.cols as usize, operand.dtype.fx().expect("a validated fx operand"))
    }

    /// Bytes `range` of one row of quantised activations, writable: whole groups of one tile.
    pub(crate) fn fx_bytes_mut(&self, operand: &Operand, row: usize, range: Range<usize>) -> &mut [u8] {
        let (ptr, span) = self.rows_at(operand, &(row..row + 1));
        assert!(range.start <= range.end && range.end <= span, "bytes {range:?} of a row of {span}");
        // SAFETY: in bounds by `rows_at` and the assertion.
        let at = unsafe { ptr.add(range.start) };
        // SAFETY: in bounds as above; a tile covers whole groups and only it writes their bytes (module invariant).
        unsafe { std::slice::from_raw_parts_mut(at, range.len()) }
    }

    /// Bytes `range` of one row of lookup tables, writable: whole slabs of one tile.
    pub(crate) fn lut_bytes_mut(&self, operand: &Operand, row: usize, range: Range<usize>) -> &mut [u8] {
        self.fx_bytes_mut(operand, row, range)
    }

    /// Elements `range` of a state.
    pub(crate) fn state<T: CacheElem>(&self, id: u32, range: Range<usize>) -> &[T] {
        let (ptr, n) = self.state_at::<T>(id, &range);
        // SAFETY: in bounds by `state_at`, aligned since states start at multiples of 64; no writer (module invariant).
        unsafe { std::slice::from_raw_parts(ptr.cast_const(), n) }
    }

    /// Elements `range` of a state, writable.
    pub(crate) fn state_mut<T: CacheElem>(&self, id: u32, range: Range<usize>) -> &mut [T] {
        let (ptr, n) = self.state_at::<T>(id, &range);
        // SAFETY: as in `state`, and only one tile of `kv_append` writes a given token's head (module invariant).
        unsafe { std::slice::from_raw_parts_mut(ptr, n) }
    }

    /// Bytes `range` of a state, while no step runs.
    pub(crate) fn state_bytes(&self, id: u32, range: Range<usize>) -> &[u8] {
        let (ptr, n) = self.state_at::<u8>(id, &range);
        // SAFETY: in bounds by `state_at`; the caller holds the session, so no step runs.
        unsafe { std::slice::from_raw_parts(ptr.cast_const(), n) }
    }

    /// As [`Self::state_bytes`], writable.
    pub(crate) fn state_bytes_mut(&mut self, id: u32, range: Range<usize>) -> &mut [u8] {
        let (ptr, n) = self.state_at::<u8>(id, &range);
        // SAFETY: in bounds by `state_at`; exclusive by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(ptr, n) }
    }

    fn state_at<T>(&self, id: u32, range: &Range<usize>) -> (*mut T, usize) {
        let (offset, bytes) = self.state_at[id as usize];
        let size = size_of::<T>() as u64;
        assert!(
            range.start <= range.end && range.end as u64 * size <= bytes,
            "{range:?} of a state of {bytes} bytes"
        );
        let ptr = self.states.at(offset + range.start as u64 * size, range.len() as u64 * size);
        (ptr.cast(), range.len())
    }
}

/// Element types of caches; all bit patterns are values.
pub(crate) trait CacheElem: Copy {}
impl CacheElem for f32 {}
impl CacheElem for f16 {}

/// Little-endian f32 bytes as numbers.
///
/// # Panics
/// If they are not 4-byte aligned; weights start at multiples of 64.
pub(crate) fn f32s(bytes: &[u8]) -> &[f32] {
    // SAFETY: all bit patterns are valid f32.
    let (head, body, tail) = unsafe { bytes.align_to::<f32>() };
    assert!(head.is_empty() && tail.is_empty(), "an aligned f32 vector");
    body
}

/// The bytes of f32 scratch.
pub(crate) fn bytes_of_mut(data: &mut [f32]) -> &mut [u8] {
    // SAFETY: u8 has no alignment and takes all bits; so does f32 for whatever bytes are written.
    let (_, bytes, _) = unsafe { data.align_to_mut::<u8>() };
    bytes
}

/// f32 scratch as bytes.
pub(crate) fn bytes_of(data: &[f32]) -> &[u8] {
    // SAFETY: u8 has no alignment and takes all bits.
    let (_, bytes, _) = unsafe { data.align_to::<u8>() };
    bytes
}

/// f32 scratch as counters.
pub(crate) fn i32s_of_mut(data: &mut [f32]) -> &mut [i32] {
    // SAFETY: both types have the same size and alignment and take all bits.
    let (_, body, _) = unsafe { data.align_to_mut::<i32>() };
    body
}

/// Scratch of one thread: f32 elements, 64-byte aligned.
#[derive(Debug)]
pub(crate) struct ThreadScratch(Buffer);

impl ThreadScratch {
    pub(crate) fn new(bytes: u64) -> Result<Self, RuntimeError> {
        Buffer::new(bytes.next_multiple_of(64), "thread scratch").map(Self)
    }

    pub(crate) fn f32s(&mut self) -> &mut [f32] {
        // SAFETY: all bit patterns are valid f32, and the buffer is page-aligned.
        let (_, body, _) = unsafe { self.0.bytes_mut().align_to_mut::<f32>() };
        body
    }
}
