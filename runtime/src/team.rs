//! The thread team: one walk of the plan by all threads together (numerics §6).
//!
//! The caller is thread 0; the others are started once on a rayon pool of the session's own and stay in [`serve`] until the
//! team is dropped. A job is handed over by an epoch counter; threads wait by spinning for a bounded, adaptive time and then
//! sleeping. Nothing allocates after [`Team::new`].
//!
//! Invariants
//! - `run` returns only after every thread has left the job, so a job may borrow from the caller's stack;
//! - a panic in a job is caught, and every thread still meets every barrier;
//! - the caller's thread is the caller's: it is pinned only inside `run`, so neither what it starts elsewhere nor another team
//!   of its inherits the place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::error::RuntimeError;
use crate::sys::{Stay, pin_thread};

/// Pauses before sleeping while peers answer in time, and after a sleep was needed.
const SPIN_LONG: u32 = 2000;
const SPIN_SHORT: u32 = 200;

type Job<'a> = dyn Fn(&mut Member<'_>) + Sync + 'a;

/// A place where threads wait for a counter to change.
#[derive(Debug, Default)]
struct Gate {
    value: AtomicU32,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Gate {
    /// Waits until the counter is no longer `seen`. `spin` adapts: long while that suffices, short after a sleep.
    fn wait_while(&self, seen: u32, spin: &mut u32) {
        for _ in 0..*spin {
            if self.value.load(Ordering::Acquire) != seen {
                *spin = SPIN_LONG;
                return;
            }
            std::hint::spin_loop();
        }
        *spin = SPIN_SHORT;
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock().expect("no panic under this lock");
        while self.value.load(Ordering::SeqCst) == seen {
            guard = self.wake.wait(guard).expect("no panic under this lock");
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn advance(&self) {
        self.value.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().expect("no panic under this lock"));
            self.wake.notify_all();
        }
    }
}

#[derive(Debug)]
struct Shared {
    n: u32,
    start: Gate,
    meet: Gate,
    arrived: AtomicU32,
    job: Mutex<Option<JobPtr>>,
    is_panicked: AtomicBool,
    is_closing: AtomicBool,
}

/// A borrowed job with its lifetime erased; valid while `run` waits.
#[derive(Clone, Copy, Debug)]
struct JobPtr(*const Job<'static>);

// SAFETY: the pointee is `Sync`, and `run` keeps it alive until every thread has left the job.
unsafe impl Send for JobPtr {}

/// One thread's part in a job.
#[derive(Debug)]
pub(crate) struct Member<'a> {
    shared: &'a Shared,
    /// 0 for the caller, then 1, 2, …
    pub(crate) index: usize,
    spin: u32,
    /// Barriers passed in this job.
    pub(crate) barriers: u64,
}

impl Member<'_> {
    /// Waits until every thread of the team is here.
    pub(crate) fn barrier(&mut self) {
        self.barriers += 1;
        if self.shared.n == 1 {
            return;
        }
        let seen = self.shared.meet.value.load(Ordering::Acquire);
        if self.shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.shared.n {
            self.shared.arrived.store(0, Ordering::Relaxed);
            self.shared.meet.advance();
        } else {
            self.shared.meet.wait_while(seen, &mut self.spin);
        }
    }

    /// Runs `work`; a panic is noted and reported by [`Team::run`].
    pub(crate) fn guarded(&self, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            self.shared.is_panicked.store(true, Ordering::Relaxed);
        }
    }

    /// Whether some thread's work panicked in this job: the rest need not be done.
    pub(crate) fn is_panicked(&self) -> bool {
        self.shared.is_panicked.load(Ordering::Relaxed)
    }
}

/// A team of threads that lives as long as a session.
#[derive(Debug)]
pub(crate) struct Team {
    shared: Arc<Shared>,
    /// Dropped last: joins the threads.
    pool: Option<rayon::ThreadPool>,
    spin: u32,
    /// The processor of thread 0.
    cpu: Option<usize>,
}

impl Team {
    /// Starts `n − 1` threads. Thread i runs on processor `cpus[i]`, and where the system puts it if there is none.
    pub(crate) fn new(n: usize, cpus: &[usize]) -> Result<Self, RuntimeError> {
        let error = |message: String| RuntimeError::Threads { threads: n, message };
        let shared = Arc::new(Shared {
            n: u32::try_from(n.max(1)).map_err(|it| error(it.to_string()))?,
            start: Gate::default(),
            meet: Gate::default(),
            arrived: AtomicU32::new(0),
            job: Mutex::new(None),
            is_panicked: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
        });
        let cpu = cpus.first().copied();
        if n <= 1 {
            return Ok(Self { shared, pool: None, spin: SPIN_LONG, cpu });
        }
        let cpus = cpus.to_vec();
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(n - 1)
            .thread_name(|i| format!("waste-{}", i + 1))
            .start_handler(move |i| {
                if let Some(cpu) = cpus.get(i + 1) {
                    pin_thread(*cpu);
                }
            })
            .build()
            .map_err(|it| error(it.to_string()))?;
        let for_threads = Arc::clone(&shared);
        pool.spawn_broadcast(move |cx| serve(&for_threads, cx.index() + 1));
        Ok(Self { shared, pool: Some(pool), spin: SPIN_LONG, cpu })
    }

    /// Threads, the caller's included.
    pub(crate) fn size(&self) -> usize {
        self.shared.n as usize
    }

    /// Runs `job` on every thread and waits for all of them. Returns the number of barriers passed.
    ///
    /// # Errors
    /// [`RuntimeError::Panicked`] if guarded work panicked.
    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<u64, RuntimeError> {
        let shared = &*self.shared;
        let _stay = self.cpu.map(Stay::on);
        let mut member = Member { shared, index: 0, spin: self.spin, barriers: 0 };
        if shared.n == 1 {
            member.guarded_job(job);
        } else {
            // SAFETY: only the lifetime changes; the last barrier below keeps `job` borrowed until all threads are done with it.
            let erased = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
            *shared.job.lock().expect("no panic under this lock") = Some(JobPtr(erased));
            shared.start.advance();
            member.guarded_job(job);
            member.barrier();
            member.barriers -= 1;
        }
        self.spin = member.spin;
        if shared.is_panicked.swap(false, Ordering::Relaxed) {
            Err(RuntimeError::Panicked)
        } else {
            Ok(member.barriers)
        }
    }
}

impl Member<'_> {
    /// A job outside `guarded` must not panic before its last barrier; if it does, the process cannot go on.
    fn guarded_job(&mut self, job: &Job<'_>) {
        if catch_unwind(AssertUnwindSafe(|| job(self))).is_err() {
            if self.shared.n > 1 {
                std::process::abort();
            }
            self.shared.is_panicked.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        self.shared.start.advance();
        drop(self.pool.take());
    }
}

/// What the other threads do all their life.
fn serve(shared: &Shared, index: usize) {
    let mut seen = 0;
    let mut spin = SPIN_LONG;
    loop {
        shared.start.wait_while(seen, &mut spin);
        seen = seen.wrapping_add(1);
        if shared.is_closing.load(Ordering::SeqCst) {
            return;
        }
        let job =
            shared.job.lock().expect("no panic under this lock").expect("a job is set before the start");
        let mut member = Member { shared, index, spin, barriers: 0 };
        // SAFETY: `run` waits at the barrier below before its borrow of the job ends.
        member.guarded_job(unsafe { &*job.0 });
        member.barrier();
        spin = member.spin;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_takes_part_and_barriers_order_the_parts() {
        for n in [1, 2, 3, 5] {
            let mut team = Team::new(n, &[]).expect("threads");
            for _ in 0..200 {
                let (first, second) = (AtomicUsize::new(0), AtomicUsize::new(0));
                let barriers = team.run(&|member: &mut Member<'_>| {
                    first.fetch_add(1, Ordering::Relaxed);
                    member.barrier();
                    assert_eq!(first.load(Ordering::Relaxed), n);
                    second.fetch_add(member.index, Ordering::Relaxed);
                });
                assert_eq!(barriers.expect("no panic"), 1);
                assert_eq!(second.into_inner(), n * (n - 1) / 2);
            }
        }
    }

    #[test]
    fn a_panic_is_reported_and_the_team_lives_on() {
        let mut team = Team::new(3, &[]).expect("threads");
        let res = team.run(&|member: &mut Member<'_>| {
            let index = member.index;
            member.guarded(|| assert_ne!(index, 1, "thread 1 fails on purpose"));
            member.barrier();
        });
        assert!(matches!(res, Err(RuntimeError::Panicked)));
        assert!(team.run(&|member: &mut Member<'_>| member.barrier()).is_ok());
    }
}
