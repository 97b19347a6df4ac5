//! The cache: slots in memory, threads that fill them, and guards that keep a record in place while it is used.
//!
//! One lock guards the state machine of [`slots`](super::slots); memory is read and written outside of it. A slot's own lock
//! is never contended, since the state machine grants exclusive access before a read and pins before a guard: it is what
//! makes that grant visible to the compiler.
//!
//! A thread that needs a record which no reader has begun reads it itself, so a cache without readers works too, and depth
//! of the queue on the disk is readers + 1 while a step waits.
//!
//! Invariants
//! - nothing allocates after [`ExpertCache::open`], unless a read fails;
//! - a request ends: with the record, with an error, or within a moment of its cancel flag;
//! - what a record holds does not depend on whether it was prefetched, speculated or read on the spot.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use super::counters::{Activity, Clock, Counters, Reads};
use super::error::{ExpertError, Fault};
use super::file::read_record;
use super::pinned::{Memory, Pinned};
use super::policy::Eviction;
use super::records::{Bank, Records};
use super::slots::{Pin, Slots};
use crate::error::RuntimeError;

/// How long a waiting thread sleeps before it looks at its cancel flag again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Bytes of a reader's stack. A check of records must do with them.
const STACK: usize = 1 << 18;

/// Judges a record (layer, expert, bytes) before anybody sees it; what is wrong with it, if anything. Runs in the thread that
/// read it.
pub type RecordCheck = dyn Fn(u32, u32, &[u8]) -> Result<(), String> + Send + Sync;

/// How to open an expert cache.
pub struct ExpertCacheOptions {
    /// Records that fit, at least 1.
    pub slots: usize,
    /// Threads that read ahead; with 0 every record is read when it is asked for.
    pub readers: usize,
    /// How victims are chosen.
    pub eviction: Eviction,
    /// Judges every record that is read.
    pub check: Box<RecordCheck>,
}

impl fmt::Debug for ExpertCacheOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slots, readers, eviction, check: _ } = self;
        write!(f, "ExpertCacheOptions {{ slots: {slots}, readers: {readers}, eviction: {eviction:?} }}")
    }
}

/// Bytes of memory that a cache takes: `slots` of `slot_bytes` each, what is known of each of `records`, and the stacks of
/// `readers`. A slot's bytes are those of the largest record, in whole pages; a page more where records do not begin at one.
#[must_use]
pub fn needed_bytes(slot_bytes: u64, slots: u64, records: u64, readers: u64) -> u64 {
    let slot = Memory::needed_bytes(slot_bytes) + size_of::<Option<ExpertError>>() as u64;
    let slots = slots.min(records);
    [slots.saturating_mul(slot), Slots::needed_bytes(slots, records), readers.saturating_mul(STACK as u64)]
        .into_iter()
        .fold(0, u64::saturating_add)
}

/// What the lock guards.
pub(super) struct Core {
    pub(super) slots: Slots,
    clock: Clock,
    pub(super) reads: Reads,
    /// Why the read of each failed slot failed.
    errors: Vec<Option<ExpertError>>,
    is_closing: bool,
}

pub(super) struct Shared {
    pub(super) records: Records,
    pub(super) memory: Vec<RwLock<Memory>>,
    check: Box<RecordCheck>,
    core: Mutex<Core>,
    /// Readers sleep here until something is queued.
    pub(super) queued: Condvar,
    /// Requests sleep here until some read ends or some pin is given back.
    pub(super) ended: Condvar,
}

/// A cache of expert records. All methods may be called from any thread.
pub struct ExpertCache {
    pub(super) shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
}

impl fmt::Debug for ExpertCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slots, readers) = (self.slots(), self.readers.len());
        write!(f, "ExpertCache {{ slots: {slots}, readers: {readers}, slot_bytes: {} }}", self.slot_bytes())
    }
}

impl ExpertCache {
    /// Allocates slots for the records of `banks` and starts the readers.
    ///
    /// # Errors
    /// If there are no slots, the banks cannot be, a file is too short for its records, or the system refuses memory or
    /// threads.
    pub fn open(banks: Vec<Bank>, options: ExpertCacheOptions) -> Result<Self, RuntimeError> {
        let records = Records::new(banks)?;
        // More slots than records are of no use.
        let slots = u32::try_from(options.slots).unwrap_or(u32::MAX).min(records.len());
        if slots == 0 {
            return Err(ExpertError::Banks("an expert cache needs at least one record".to_owned()).into());
        }
        let bytes = records.slot_bytes();
        let memory = |_| Ok(RwLock::new(Memory::new(bytes)?));
        let core = Core {
            slots: Slots::new(slots, records.len(), options.eviction),
            clock: Clock::new(),
            reads: Reads::default(),
            errors: vec![None; slots as usize],
            is_closing: false,
        };
        let shared = Arc::new(Shared {
            memory: (0..slots).map(memory).collect::<Result<_, RuntimeError>>()?,
            records,
            check: options.check,
            core: Mutex::new(core),
            queued: Condvar::new(),
            ended: Condvar::new(),
        });
        // Made before its threads, so that those are ended if one cannot be started.
        let mut res = Self { shared, readers: Vec::with_capacity(options.readers) };
        let (up, started) = mpsc::channel();
        for at in 0..options.readers {
            let (shared, up) = (Arc::clone(&res.shared), up.clone());
            let thread = std::thread::Builder::new().name(format!("experts-{at}")).stack_size(STACK);
            let serve = move || {
                // Nobody waits for it if another reader could not be started.
                let _ = up.send(());
                drop(up);
                shared.serve();
            };
            let thread = thread
                .spawn(serve)
                .map_err(|it| RuntimeError::Threads { threads: options.readers, message: it.to_string() })?;
            res.readers.push(thread);
        }
        // What a thread allocates to begin belongs to opening.
        started.iter().take(options.readers).for_each(drop);
        Ok(res)
    }

    /// Records that fit.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.shared.memory.len()
    }

    /// Whether there are threads that read ahead.
    #[must_use]
    pub const fn reads_ahead(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Bytes of one slot.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.shared.records.slot_bytes()
    }

    /// Starts reading what a step will ask for, in this order, as far as slots can be had; those already here stay. How many
    /// of `experts`, from the first on, are here or on their way: call again for the rest when some were released. Experts
    /// that do not exist end the list; asking for one is the error.
    pub fn prefetch(&self, layer: u32, experts: &[u32]) -> usize {
        self.read_ahead(layer, experts, |slots, records| slots.prefetch(records))
    }

    /// Starts reading what a step may ask for, after everything that was prefetched. Evicts nothing that is in use, promised by
    /// [`Self::prefetch`], or guessed and not [withdrawn](Self::withdraw). How many of `experts`, from the first on, are here or on
    /// their way.
    pub fn speculate(&self, layer: u32, experts: &[u32]) -> usize {
        self.read_ahead(layer, experts, |slots, records| slots.speculate(records))
    }

    /// No step will ask for these: what was only guessed of them makes room.
    pub fn withdraw(&self, layer: u32, experts: &[u32]) {
        let records = &self.shared.records;
        self.shared.lock().slots.withdraw(KnownRecords { records, layer, experts });
    }

    fn read_ahead(
        &self,
        layer: u32,
        experts: &[u32],
        queue: impl FnOnce(&mut Slots, KnownRecords<'_>) -> usize,
    ) -> usize {
        if self.readers.is_empty() {
            return 0;
        }
        let n = queue(
            &mut self.shared.lock().slots,
            KnownRecords { records: &self.shared.records, layer, experts },
        );
        if 0 < n {
            self.shared.queued.notify_all();
        }
        n
    }

    /// The record of an expert, once it is here.
    ///
    /// # Errors
    /// If there is no such expert, its record cannot be read or is refused by the check, every slot is in use, or `cancel` is
    /// set. A later request tries again.
    pub fn acquire(&self, layer: u32, expert: u32, cancel: &AtomicBool) -> Result<Pinned<'_>, ExpertError> {
        let shared = &*self.shared;
        let record = self.record(layer, expert)?;
        let mut core = shared.lock();
        let slot = loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(ExpertError::Cancelled);
            }
            match core.slots.pin(record) {
                Pin::Ready(slot) => break slot,
                Pin::Wait(slot) => {
                    core = shared.wait(core, slot, cancel)?;
                    break slot;
                }
                Pin::Read(slot) => {
                    core.clock.begin(Activity::Wait);
                    core = shared.read(core, slot);
                    core.clock.end(Activity::Wait);
                    core = shared.wait(core, slot, cancel)?;
                    break slot;
                }
                Pin::Later => core = shared.sleep(core),
                Pin::Full => return Err(ExpertError::Full { slots: self.slots() }),
            }
        };
        drop(core);
        Ok(Pinned::new(shared, slot))
    }

    /// The record of an expert if it is here, without waiting and without counting: for threads that share what another
    /// thread acquired.
    #[must_use]
    pub fn peek(&self, layer: u32, expert: u32) -> Option<Pinned<'_>> {
        let record = self.shared.records.find(layer, expert)?;
        let slot = self.shared.lock().slots.peek(record)?;
        Some(Pinned::new(&self.shared, slot))
    }

    /// Gives back what [`Pinned::keep`] left. False if there is nothing to give back.
    pub fn release(&self, layer: u32, expert: u32) -> bool {
        let Some(record) = self.shared.records.find(layer, expert) else { return false };
        let is_released = self.shared.lock().slots.release(record);
        self.shared.ended.notify_all();
        is_released
    }

    /// Forgets what a failed or cancelled step announced and kept. Reads in flight go on, and records stay.
    pub fn abandon(&self) {
        self.shared.lock().slots.abandon();
        self.shared.ended.notify_all();
    }

    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut core = self.shared.lock();
        let Core { slots, clock, reads, .. } = &mut *core;
        clock.counters(slots.uses, *reads)
    }

    fn record(&self, layer: u32, expert: u32) -> Result<u32, ExpertError> {
        self.shared.records.find(layer, expert).ok_or(ExpertError::Unknown { layer, expert })
    }
}

impl Drop for ExpertCache {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.queued.notify_all();
        for reader in self.readers.drain(..) {
            // A reader's panic was caught where it happened.
            let _ended = reader.join();
        }
    }
}

/// The records of a list of experts, up to the first that does not exist.
#[derive(Clone)]
struct KnownRecords<'a> {
    records: &'a Records,
    layer: u32,
    experts: &'a [u32],
}

impl Iterator for KnownRecords<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let (expert, rest) = self.experts.split_first()?;
        self.experts = rest;
        self.records.find(self.layer, *expert)
    }
}

impl Shared {
    /// No panic happens under the lock: checks of records run outside of it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reader's life.
    fn serve(&self) {
        let mut core = self.lock();
        while !core.is_closing {
            core = match core.slots.start() {
                Some(slot) => self.read(core, slot),
                None => self.queued.wait(core).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Reads into `slot`, which the state machine granted to the caller, without the lock.
    pub(super) fn read<'a>(&'a self, mut core: MutexGuard<'a, Core>, slot: u32) -> MutexGuard<'a, Core> {
        let (bank, expert) = self.records.place(core.slots.slot(slot).record);
        core.clock.begin(Activity::Read);
        drop(core);
        let found = catch_unwind(AssertUnwindSafe(|| self.fill(bank, expert, slot)))
            .unwrap_or_else(|_| Err(Fault::Damaged("its check panicked".to_owned())));
        let mut core = self.lock();
        core.clock.end(Activity::Read);
        match &found {
            Ok(()) => {
                core.reads.good += 1;
                core.reads.bytes += u64::from(bank.bytes);
            }
            Err(_) => core.reads.failed += 1,
        }
        core.slots.finish(slot, found.is_ok());
        core.errors[slot as usize] = found.err().map(|fault| bank.error(expert, fault));
        self.ended.notify_all();
        core
    }

    fn fill(&self, bank: &Bank, expert: u32, slot: u32) -> Result<(), Fault> {
        let mut memory = self.memory[slot as usize].write().unwrap_or_else(PoisonError::into_inner);
        let Memory { buffer, record } = &mut *memory;
        let bytes = buffer.bytes_mut();
        let found = read_record(&*bank.file, bank.offset_of(expert), bank.bytes as usize, bytes)?;
        (self.check)(bank.layer, expert, &bytes[found.clone()]).map_err(Fault::Damaged)?;
        *record = found;
        Ok(())
    }

    /// Waits until the read of `slot`, which the caller pinned, has ended. The pin is given back on error.
    fn wait<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        slot: u32,
        cancel: &AtomicBool,
    ) -> Result<MutexGuard<'a, Core>, ExpertError> {
        loop {
            let error = match core.slots.outcome(slot) {
                Some(true) => return Ok(core),
                Some(false) => self.report(core.errors[slot as usize].clone().expect("set with the state")),
                None if cancel.load(Ordering::Relaxed) => ExpertError::Cancelled,
                None => {
                    core = self.sleep(core);
                    continue;
                }
            };
            core.slots.unpin(slot);
            self.ended.notify_all();
            return Err(error);
        }
    }

    /// A changed file is taken as it is once somebody was told.
    fn report(&self, error: ExpertError) -> ExpertError {
        if let ExpertError::Record { layer, expert, fault: Fault::Changed(_), .. } = &error
            && let Some(record) = self.records.find(*layer, *expert)
        {
            self.records.place(record).0.file.accept();
        }
        error
    }

    /// Sleeps until some read ended or some pin was given back, or for a moment. Counts as waiting.
    pub(super) fn sleep<'a>(&self, mut core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        core.clock.begin(Activity::Wait);
        let (mut core, _) = self.ended.wait_timeout(core, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner);
        core.clock.end(Activity::Wait);
        core
    }
}
