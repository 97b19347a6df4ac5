//! Where a thread may run. Everything here is a wish: a refusal is not an error, the thread then runs where the system puts it.

use std::marker::PhantomData;

/// The processors that a thread may run on.
#[cfg(target_os = "linux")]
type Mask = rustix::thread::CpuSet;
/// Nothing is known and nothing is changed.
#[cfg(not(target_os = "linux"))]
type Mask = std::convert::Infallible;

/// Pins the calling thread to processor `cpu`.
pub fn pin_thread(cpu: usize) {
    #[cfg(target_os = "linux")]
    {
        let mut set = Mask::new();
        if cpu < Mask::MAX_CPU {
            set.set(cpu);
            let _refused = rustix::thread::sched_setaffinity(None, &set);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cpu;
}

/// While it lives, the calling thread is pinned; after that it may run where it could before.
#[derive(Debug)]
pub(crate) struct Stay {
    before: Option<Mask>,
    /// It ends on the thread that it began on.
    here: PhantomData<*const ()>,
}

impl Stay {
    /// Pins the calling thread to processor `cpu`, unless where it could run before is not known.
    pub(crate) fn on(cpu: usize) -> Self {
        let before = mask();
        if before.is_some() {
            pin_thread(cpu);
        }
        Self { before, here: PhantomData }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(before) = &self.before {
            let _refused = rustix::thread::sched_setaffinity(None, before);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = &self.before;
    }
}

#[cfg(target_os = "linux")]
fn mask() -> Option<Mask> {
    rustix::thread::sched_getaffinity(None).ok()
}

#[cfg(not(target_os = "linux"))]
fn mask() -> Option<Mask> {
    None
}
