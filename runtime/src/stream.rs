//! The windows in which a plan uses streamed experts: between its steps and the cache.
//!
//! A loop over experts takes the experts that have tokens in ascending order, a window at a time: those that are here, at least
//! one, so that the others are read meanwhile; where the cache cannot hold all, at most half of what it holds. The state of the loop
//! is set by the one thread that carries out a window's step and read by all after the barrier that follows it.
//!
//! Invariants
//! - records of an open window stay where they are until its release;
//! - a failed or stopped window is empty and the last: every thread leaves the loop at the same place;
//! - nothing allocates.

mod check;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use waste_plan::schema::{self, Records};

use crate::error::RuntimeError;
use crate::experts::{
    Bank, Counters, Eviction, ExpertCache, ExpertCacheOptions, ExpertError, ExpertFile, Pinned,
};
use crate::loaded::LoadedPlan;

pub use check::check_experts;
use check::{expect_bank, record_check};

/// How a session streams experts.
#[derive(Clone, Debug)]
pub struct ExpertOptions {
    /// Records that the cache holds; `None`: as the plan says.
    pub slots: Option<u64>,
    /// Threads that read ahead.
    pub readers: usize,
    /// Read past the page cache where that works.
    pub direct: bool,
    /// Compare the CRC of every record that is read.
    pub verify: bool,
    /// Refuse to share the files with other sessions, of this process or another; none of theirs opens then.
    pub exclusive: bool,
}

impl Default for ExpertOptions {
    fn default() -> Self {
        Self { slots: None, readers: 2, direct: true, verify: false, exclusive: false }
    }
}

/// The experts of a session.
#[derive(Debug)]
pub(crate) struct ExpertSource {
    cache: ExpertCache,
    /// The layer of each bank.
    layers: Vec<u32>,
    /// Where each weight's matrices lie in a record.
    places: Vec<Option<Place>>,
    window: Window,
    guess: Mutex<Guess>,
    /// Room for the experts that are announced.
    list: Mutex<Vec<u32>>,
    failure: Mutex<Option<ExpertError>>,
}

/// The matrices of a weight in the records of its bank.
#[derive(Clone, Debug)]
struct Place {
    bank: u32,
    indices: Range<usize>,
    scales: Range<usize>,
}

/// The open window.
#[derive(Debug, Default)]
struct Window {
    groups: [AtomicUsize; 2],
    pairs: [AtomicUsize; 2],
    /// Whether experts are left after it.
    more: AtomicBool,
}

/// Experts that the next layer may want, for which there may not have been slots yet.
#[derive(Debug)]
struct Guess {
    layer: u32,
    /// The likeliest first.
    experts: Vec<u32>,
    /// How many of them were asked for.
    asked: usize,
}

impl Guess {
    /// Asks for those that were not.
    fn pursue(&mut self, cache: &ExpertCache) {
        self.asked += cache.speculate(self.layer, &self.experts[self.asked..]);
    }

    /// Ends the guess: their layer wants `wanted`, which ascend, or is not reached.
    fn settle(&mut self, wanted: &[u32], cache: &ExpertCache) {
        self.experts.retain(|it| wanted.binary_search(it).is_err());
        cache.withdraw(self.layer, &self.experts);
        self.experts.clear();
        self.asked = 0;
    }
}

/// What a window covers.
pub(crate) struct Covered {
    /// Experts, by their place among those that have tokens.
    pub(crate) groups: Range<usize>,
    /// Their pairs of a token and an expert.
    pub(crate) pairs: Range<usize>,
}

/// A matrix of an expert, while it stays where it is.
pub(crate) struct Matrix<'a> {
    record: Pinned<'a>,
    place: &'a Place,
}

impl Matrix<'_> {
    /// The index stream.
    pub(crate) fn indices(&self) -> &[u8] {
        &self.record[self.place.indices.clone()]
    }

    /// The scales, `f16[rows]`.
    pub(crate) fn scales(&self) -> &[u8] {
        &self.record[self.place.scales.clone()]
    }
}

impl ExpertSource {
    /// Opens the files of the banks of a validated plan; `None` if it has none.
    ///
    /// # Errors
    /// If a file is missing, too short or not what the plan was compiled from, or the system refuses memory or threads.
    pub(crate) fn open(loaded: &LoadedPlan, options: &ExpertOptions) -> Result<Option<Self>, RuntimeError> {
        let plan = loaded.plan();
        if plan.banks.is_empty() {
            return Ok(None);
        }
        let mut files: Vec<Option<Arc<ExpertFile>>> = vec![None; plan.sources.len()];
        let mut banks = Vec::with_capacity(plan.banks.len());
        for bank in &plan.banks {
            let source = bank.source as usize;
            let path = loaded.folder().join(&plan.sources[source].path);
            let file = match &files[source] {
                Some(file) => Arc::clone(file),
                None => {
                    let file = ExpertFile::open(&path, options.direct)?;
                    file.lock(options.exclusive)?;
                    Arc::new(file)
                }
            };
            files[source] = Some(Arc::clone(&file));
            expect_bank(&file, bank, &plan.sources[source].header_sha256)?;
            let bytes = u32::try_from(bank.bytes).expect("validated banks");
            let (layer, offset, stride) = (bank.layer, bank.offset, bank.bytes);
            banks.push(Bank { layer, file, offset, stride, bytes, experts: bank.experts });
        }
        let slots = options.slots.unwrap_or(plan.memory.expert_slots).max(1);
        let cache = ExpertCache::open(
            banks,
            ExpertCacheOptions {
                slots: usize::try_from(slots).unwrap_or(usize::MAX),
                readers: options.readers,
                eviction: Eviction::Lfru,
                check: record_check(plan, options.verify),
            },
        )?;
        let most = plan.banks.iter().map(|it| it.experts as usize).max().unwrap_or(0);
        Ok(Some(Self {
            layers: plan.banks.iter().map(|it| it.layer).collect(),
            places: plan.weights.iter().map(|it| it.records.map(|at| place(it, at))).collect(),
            window: Window::default(),
            guess: Mutex::new(Guess { layer: 0, experts: Vec::with_capacity(most), asked: 0 }),
            list: Mutex::new(Vec::with_capacity(most)),
            failure: Mutex::new(None),
            cache,
        }))
    }

    /// What the open window covers.
    pub(crate) fn window(&self) -> Covered {
        let range = |it: &[AtomicUsize; 2]| it[0].load(Ordering::Relaxed)..it[1].load(Ordering::Relaxed);
        Covered { groups: range(&self.window.groups), pairs: range(&self.window.pairs) }
    }

    /// Whether experts are left after the open window.
    pub(crate) fn has_more(&self) -> bool {
        self.window.more.load(Ordering::Relaxed)
    }

    /// Begins a walk: no window is open, nothing has failed.
    pub(crate) fn begin(&self) {
        self.set_window(0..0, 0..0, false);
        locked(&self.guess).settle(&[], &self.cache);
        *locked(&self.failure) = None;
    }

    /// Why the walk failed, if it did; what it announced and kept is given back.
    pub(crate) fn end(&self, is_stopped: bool) -> Result<(), ExpertError> {
        let failure = locked(&self.failure).take();
        if failure.is_some() || is_stopped {
            self.cache.abandon();
        }
        failure.map_or(Ok(()), Err)
    }

    /// The cache itself.
    pub(crate) const fn cache(&self) -> &ExpertCache {
        &self.cache
    }

    /// What the cache counted so far.
    pub(crate) fn counters(&self) -> Counters {
        self.cache.counters()
    }

    /// A matrix of an expert of the open window.
    pub(crate) fn record(&self, weight: u32, expert: usize) -> Option<Matrix<'_>> {
        let place = self.places[weight as usize].as_ref()?;
        let expert = u32::try_from(expert).ok()?;
        let record = self.cache.peek(self.layers[place.bank as usize], expert)?;
        Some(Matrix { record, place })
    }

    /// Announces the experts in `ids`, each once, ascending.
    pub(crate) fn prefetch<'a>(&self, bank: u32, ids: impl Iterator<Item = &'a [i32]>) {
        let mut list = locked(&self.list);
        list.clear();
        for id in ids.flatten() {
            let Ok(expert) = u32::try_from(*id) else { continue };
            let at = list.partition_point(|it| *it < expert);
            // There are no more experts than the list has room for, unless a forged plan says so.
            if list.get(at) != Some(&expert) && list.len() < list.capacity() {
                list.insert(at, expert);
            }
        }
        let layer = self.layers[bank as usize];
        let mut guess = locked(&self.guess);
        if guess.layer == layer {
            guess.settle(&list, &self.cache);
        }
        drop(guess);
        self.cache.prefetch(layer, &list[..list.len().min(self.cache.slots())]);
    }

    /// Guesses that the experts in `ids` will be wanted, the likeliest first. They are read as slots come free, until their layer
    /// says whom it wants.
    pub(crate) fn speculate(&self, bank: u32, ids: impl Iterator<Item = i32>) {
        let mut guess = locked(&self.guess);
        guess.settle(&[], &self.cache);
        guess.layer = self.layers[bank as usize];
        for expert in ids.filter_map(|it| u32::try_from(it).ok()) {
            if !guess.experts.contains(&expert) && guess.experts.len() < guess.experts.capacity() {
                guess.experts.push(expert);
            }
        }
        guess.pursue(&self.cache);
    }

    /// Takes the next experts of `groups`: the first, for which it waits, and those after it that are here.
    pub(crate) fn open_window(&self, bank: u32, groups: &[i32], cancel: &AtomicBool) {
        let layer = self.layers[bank as usize];
        // A walk's first window begins where the one before it ended, with experts left: anew where none are.
        let first = if self.has_more() { self.window.groups[1].load(Ordering::Relaxed) } else { 0 };
        let at = |group: usize| groups.get(2 * group..2 * group + 2);
        let experts = groups.chunks_exact(2).last().map_or(0, |it| it[0]);
        let here = (first..).map_while(|group| at(group).map(|it| it[0])).take_while(|it| *it < experts);
        let left = here.count();
        let slots = self.cache.slots();
        let most = if left <= slots { left } else { (slots / 2).max(1) };
        let brought = self.bring(layer, (first..first + most).filter_map(at).map(|it| it[0]), cancel);
        let size = match brought {
            Ok(size) => size,
            Err(error) => {
                locked(&self.failure).get_or_insert(error);
                return self.set_window(0..0, 0..0, false);
            }
        };
        let last = first + size;
        if size < left && size < slots {
            let next = (last..first + left.min(slots)).filter_map(at).map(|it| it[0]);
            self.announce(layer, next);
        }
        let pair = |group: usize| at(group).and_then(|it| usize::try_from(it[1]).ok()).unwrap_or(0);
        self.set_window(first..last, pair(first)..pair(last), size < left);
    }

    fn announce(&self, layer: u32, experts: impl Iterator<Item = i32>) {
        let mut list = locked(&self.list);
        list.clear();
        let room = list.capacity();
        list.extend(experts.filter_map(|it| u32::try_from(it).ok()).take(room));
        self.cache.prefetch(layer, &list);
    }

    /// Begins to read all of `experts`, and pins the first and those after it that are here: how many. All, if nobody reads ahead.
    fn bring(
        &self,
        layer: u32,
        experts: impl Iterator<Item = i32> + Clone,
        cancel: &AtomicBool,
    ) -> Result<usize, ExpertError> {
        self.announce(layer, experts.clone());
        let mut n = 0;
        for expert in experts {
            let expert = u32::try_from(expert).unwrap_or(u32::MAX);
            if 0 < n && self.cache.reads_ahead() && self.cache.peek(layer, expert).is_none() {
                break;
            }
            self.cache.acquire(layer, expert, cancel)?.keep();
            n += 1;
        }
        Ok(n)
    }

    /// Lets the records of the open window go.
    pub(crate) fn release_window(&self, bank: u32, groups: &[i32]) {
        for group in self.window().groups {
            let expert = groups.get(2 * group).and_then(|it| u32::try_from(*it).ok());
            if let Some(expert) = expert {
                self.cache.release(self.layers[bank as usize], expert);
            }
        }
        locked(&self.guess).pursue(&self.cache);
    }

    fn set_window(&self, groups: Range<usize>, pairs: Range<usize>, more: bool) {
        for (to, range) in [(&self.window.groups, groups), (&self.window.pairs, pairs)] {
            to[0].store(range.start, Ordering::Relaxed);
            to[1].store(range.end, Ordering::Relaxed);
        }
        self.window.more.store(more, Ordering::Relaxed);
    }
}

/// What `it` guards, whoever panicked with it: nothing here is left half done.
fn locked<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

fn place(weight: &schema::Weight, at: Records) -> Place {
    let code = weight.dtype.vq().expect("a validated weight");
    let size = |it: u64| usize::try_from(it).expect("a record fits in memory");
    let indices = code.index_bytes(weight.rows, weight.cols).expect("a validated weight");
    Place {
        bank: at.bank,
        indices: size(at.indices)..size(at.indices + indices),
        scales: size(at.scales)..size(at.scales + 2 * weight.rows),
    }
}
