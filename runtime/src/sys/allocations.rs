//! An allocator that counts, by thread, what is asked of the system's.
//!
//! A program that installs it can show that no step allocates; a count by thread is not disturbed by what others do meanwhile.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counted: for `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

/// Allocations and reallocations of the calling thread so far; 0 where [`CountingAllocator`] is not the allocator.
#[must_use]
pub fn thread_allocations() -> u64 {
    ALLOCATIONS.get()
}

/// One more. A thread that is at its end has no count left, and nobody to ask for it.
fn count() {
    let _ = ALLOCATIONS.try_with(|it| it.set(it.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}
