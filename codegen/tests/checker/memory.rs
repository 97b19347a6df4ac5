//! Memory of the shadow executor: what each unit of four bytes holds, and who touched it when.

use super::kernels::{mix, name};

/// Threads of the shadow.
pub(crate) const THREADS: usize = 3;

/// A step (from 1) and an element of its results; elements that are read together before any is written count as one.
pub(crate) type Element = (usize, u64, u64);

#[derive(Clone, Copy)]
pub(crate) struct Unit {
    pub(crate) tag: u64,
    /// Barriers passed when it was last written, and by which thread.
    written: (u32, usize),
    /// Barriers passed when each thread last read it.
    read: [u32; THREADS],
    /// The step that last read it, and the element of the result that it did so for.
    pub(crate) reader: Element,
}

pub(crate) type Memory = Vec<Unit>;

/// Who touches a unit: barriers passed so far, and the thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) barriers: u32,
    pub(crate) thread: usize,
}

impl Unit {
    pub(crate) const fn fresh(tag: u64) -> Self {
        Self { tag, written: (0, 0), read: [0; THREADS], reader: (0, 0, 0) }
    }

    /// Gives it another content; the harm in that, if there is any.
    pub(crate) fn write(&mut self, tag: u64, now: Now) -> Option<&'static str> {
        let (when, who) = self.written;
        let two_write = when == now.barriers && who != now.thread;
        let is_read = (0..THREADS).any(|it| it != now.thread && self.read[it] == now.barriers);
        self.tag = tag;
        self.written = (now.barriers, now.thread);
        match (two_write, is_read) {
            (true, _) => Some("two threads write the same bytes"),
            (_, true) => Some("writes what another thread is reading"),
            _ => None,
        }
    }

    /// Looks at it; the harm in that, if there is any.
    pub(crate) fn read(&mut self, now: Now) -> Option<&'static str> {
        let (when, who) = self.written;
        self.read[now.thread] = now.barriers;
        (when == now.barriers && who != now.thread).then_some("reads what another thread is writing")
    }
}

/// Bytes that nobody has written yet.
pub(crate) fn memory(bytes: u64, what: &str) -> Memory {
    (0..bytes / 4).map(|i| Unit::fresh(mix(name(what), i))).collect()
}
