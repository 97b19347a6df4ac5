//! A cache of experts allocates nothing after it is opened: counted by the allocator of this test binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use waste_runtime::experts::{
    Bank, Eviction, ExpertCache, ExpertCacheOptions, ExpertFile, ReadAt, needed_bytes,
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's contract is ours.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Two layers of eight records through three slots: prefetched, speculated, pinned twice, kept, evicted.
fn walk(cache: &ExpertCache, running: &AtomicBool) {
    for token in 0..8u32 {
        for layer in 0..2 {
            let experts = [token % 8, (token + 3) % 8];
            cache.prefetch(layer, &experts);
            cache.speculate(1 - layer, &[(token + 5) % 8, (token + 6) % 8]);
            for expert in experts {
                let found = cache.acquire(layer, expert, running).unwrap();
                assert_eq!(found[0], u8::try_from(expert).unwrap());
                assert_eq!(cache.peek(layer, expert).unwrap().len(), 4096);
                found.keep();
                assert!(cache.release(layer, expert));
            }
        }
    }
    cache.abandon();
}

fn main() {
    a_cache_takes_what_it_says_and_nothing_after_open();
}

fn a_cache_takes_what_it_says_and_nothing_after_open() {
    let path = std::env::temp_dir().join(format!("waste-expert-allocations-{}", std::process::id()));
    let bytes: Vec<u8> = (0..8u8).flat_map(|it| [it; 4096]).collect();
    std::fs::write(&path, bytes).unwrap();
    let running = AtomicBool::new(false);
    for (direct, readers) in [(true, 2), (false, 2), (true, 0)] {
        let file: Arc<dyn ReadAt> = Arc::new(ExpertFile::open(&path, direct).unwrap());
        let bank =
            |layer| Bank { layer, file: Arc::clone(&file), offset: 0, stride: 4096, bytes: 4096, experts: 8 };
        let check = Box::new(|_, _, _: &[u8]| Ok(()));
        let options = ExpertCacheOptions { slots: 3, readers, eviction: Eviction::Lfru, check };
        let banks = vec![bank(0), bank(1)];
        let before = BYTES.load(Ordering::Relaxed);
        let cache = ExpertCache::open(banks, options).unwrap();
        let taken = BYTES.load(Ordering::Relaxed) - before;
        // Stacks do not come from the allocator; a cache's fixed parts are under a page.
        let stated = needed_bytes(cache.slot_bytes(), 3, 16, 0);
        assert!(stated <= taken && taken < stated + 4096, "{stated} stated, {taken} taken");
        walk(&cache, &running);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        walk(&cache, &running);
        let evictions = cache.counters().evictions;
        let found = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(found, 0, "direct: {direct}, {readers} readers");
        assert!(10 < evictions, "{evictions}");
    }
    std::fs::remove_file(&path).unwrap();
}
