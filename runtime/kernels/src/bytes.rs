//! Bytes seen as slices of plain numbers: the one place where this crate reinterprets memory.
//!
//! Invariants
//! - only types for which every bit pattern is a value and that have no padding are [`Plain`];
//! - a misaligned or ragged slice is a panic, never a shifted view.

/// Number types whose every bit pattern is a value.
///
/// # Safety
/// No padding, no invalid bit patterns, no drop glue.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: an integer without padding.
unsafe impl Plain for i8 {}
// SAFETY: an integer without padding.
unsafe impl Plain for i16 {}
// SAFETY: an integer without padding.
unsafe impl Plain for i32 {}
// SAFETY: a float without padding; every bit pattern is a value or a NaN.
unsafe impl Plain for f32 {}

/// `bytes` as `T`s.
///
/// # Panics
/// If the slice is not aligned for `T` or not a whole number of them.
#[inline]
pub(crate) fn cast<T: Plain>(bytes: &[u8]) -> &[T] {
    // SAFETY: `Plain` types take every bit pattern.
    let (head, mid, tail) = unsafe { bytes.align_to::<T>() };
    assert!(head.is_empty() && tail.is_empty(), "a view needs aligned, whole elements");
    mid
}

/// `bytes` as mutable `T`s.
///
/// # Panics
/// As [`cast`].
#[inline]
pub(crate) fn cast_mut<T: Plain>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: `Plain` types take every bit pattern and have no padding to leave uninitialised.
    let (head, mid, tail) = unsafe { bytes.align_to_mut::<T>() };
    assert!(head.is_empty() && tail.is_empty(), "a view needs aligned, whole elements");
    mid
}

/// `floats` as bytes.
#[inline]
pub(crate) fn bytes_of_mut(floats: &mut [f32]) -> &mut [u8] {
    // SAFETY: `Plain` types have no padding, and a float takes every bit pattern; bytes need no alignment.
    let (head, mid, tail) = unsafe { floats.align_to_mut::<u8>() };
    assert!(head.is_empty() && tail.is_empty(), "floats are whole bytes");
    mid
}
