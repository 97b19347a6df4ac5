//! What every thread did and when: recorded while a session runs, for a timeline.
//!
//! Unlike [`Profile`](crate::Profile) it adds no barriers: threads run as they would, and the gaps between a thread's slices are its
//! waiting.
//!
//! Invariants
//! - all memory is allocated by [`Trace::new`]: recording a slice is two readings of the clock and a store into memory of its own thread;
//! - what does not fit any more is counted, and left out.
//!
//! Deliberately absent: names. A slice says which step of which program; the plan says what that is.

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// One thread's part in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The call, counted from 0 since the recording began.
    pub call: u32,
    /// Index of the program.
    pub program: u32,
    /// Index of the step.
    pub step: u32,
    /// Tiles that the thread carried out.
    pub tiles: u32,
    /// Nanoseconds since the recording began, when the thread came to the step: after its barrier, if it has one.
    pub start: u64,
    /// When it had no tile left.
    pub end: u64,
    /// Bytes of expert records read since the session was opened: at steps that move experts, of thread 0.
    pub disk: Option<u64>,
}

/// Slices of all threads.
#[derive(Debug)]
pub struct Trace {
    epoch: Instant,
    calls: u32,
    lanes: Vec<Mutex<Lane>>,
}

impl Trace {
    /// Memory for `most` slices of each of `threads` threads.
    pub(crate) fn new(threads: usize, most: usize) -> Self {
        let epoch = Instant::now();
        let lane = || Mutex::new(Lane { epoch, slices: Vec::with_capacity(most), most, lost: 0 });
        Self { epoch, calls: 0, lanes: std::iter::repeat_with(lane).take(threads).collect() }
    }

    /// Bytes that a recording of `most` slices a thread takes.
    #[must_use]
    pub const fn bytes(threads: usize, most: usize) -> u64 {
        (size_of::<Slice>() as u64).saturating_mul(most as u64).saturating_mul(threads as u64)
    }

    /// The number of the call that begins.
    pub(crate) fn begin(&mut self) -> u32 {
        self.calls += 1;
        self.calls - 1
    }

    /// The memory of one thread, for the time of a call.
    pub(crate) fn lane(&self, member: usize) -> MutexGuard<'_, Lane> {
        self.lanes[member].lock().expect("no panic under this lock: each thread has its own")
    }

    /// When the recording began.
    #[must_use]
    pub const fn epoch(&self) -> Instant {
        self.epoch
    }

    /// Threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.lanes.len()
    }

    /// The slices of a thread, in order.
    ///
    /// # Panics
    /// If there is no such thread.
    #[must_use]
    pub fn slices(&self, thread: usize) -> Vec<Slice> {
        self.lane(thread).slices.clone()
    }

    /// Slices of all threads that did not fit.
    #[must_use]
    pub fn lost(&self) -> u64 {
        (0..self.threads()).map(|it| self.lane(it).lost).sum()
    }
}

/// One thread's slices.
#[derive(Debug)]
pub(crate) struct Lane {
    epoch: Instant,
    slices: Vec<Slice>,
    most: usize,
    lost: u64,
}

impl Lane {
    /// Nanoseconds since the recording began.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn push(&mut self, slice: Slice) {
        if self.slices.len() < self.most {
            self.slices.push(slice);
        } else {
            self.lost += 1;
        }
    }
}
