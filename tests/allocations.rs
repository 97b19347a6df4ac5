//! No step allocates: counted by the allocator of this test binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use support::{Run, session};
use waste::compile::{CompileOptions, compile};
use waste::formats::ModelFiles;
use waste::progress::Silent;
use waste_runtime::{ExpertOptions, Token};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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

fn main() {
    no_step_allocates();
}

/// Dense models; delta and latent attention with routed experts; the same with tables and experts in files.
const MODELS: [&str; 5] = [
    "models/gpt2-rand-f32",
    "models/llama-rand-gqa-untied-f32",
    "models/kimi-rand-bf16",
    "containers/tiny-vq3r",
    "containers/tinyk3-vq4p",
];

fn no_step_allocates() {
    // Threads of a session that is gone may still be ending, and allocate: none goes before all is counted.
    let mut kept = Vec::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for name in MODELS {
        let files = ModelFiles::open(&data.join(name), None).unwrap();
        let lookahead = if files.container().is_some() { 2 } else { 0 };
        let options = CompileOptions { ctx: Some(96), chunk: Some(16), lookahead, ..CompileOptions::usual() };
        let loaded = compile(&files, &options, &mut |_| ()).unwrap().load(&Silent).unwrap();
        // Packing woke the threads of the shared pool, which allocate as they start: all have, once all have answered.
        rayon::broadcast(|_| ());
        for (threads, is_traced) in [(1, false), (2, false), (3, false), (2, true)] {
            // Fewer slots than a step wants: records come and go.
            let experts = ExpertOptions { slots: Some(3), ..ExpertOptions::default() };
            let mut session = session(&loaded, &Run { threads, experts, ..Run::default() });
            if is_traced {
                // Fewer slices than steps: it fills up on the way.
                session.start_trace(200);
            }
            let prompt: Vec<Token> = (0..16).map(|id| Token { row: 0, id }).collect();
            session.step(&prompt, &[15]).unwrap();
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            session.step(&prompt, &[15]).unwrap();
            for _ in 0..8 {
                let id = session.next(0);
                session.step(&[Token { row: 0, id }], &[0]).unwrap();
            }
            let found = ALLOCATIONS.load(Ordering::Relaxed) - before;
            assert!(
                session.expert_counters().is_none_or(|it| it.evictions > 0),
                "{name}: nothing was streamed"
            );
            assert_eq!(found, 0, "{name} with {threads} threads, traced: {is_traced}");
            kept.push(session);
        }
    }
}
