#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod files;
mod interleavings;
mod policies;
mod steps;
mod threads;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::*;

/// Not cancelled.
static RUN: AtomicBool = AtomicBool::new(false);

/// What a shim does instead of a read: given the number of the call, its offset and room, the bytes read or an error.
type Trick = Box<dyn FnMut(usize, u64, usize) -> Option<io::Result<usize>> + Send>;

/// A file in memory that can be made to fail.
struct Shim {
    bytes: Mutex<Vec<u8>>,
    alignment: usize,
    trick: Mutex<(usize, Trick)>,
    changed: Mutex<Option<String>>,
    path: Arc<Path>,
}

impl std::fmt::Debug for Shim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shim")
    }
}

impl Shim {
    fn new(bytes: Vec<u8>, alignment: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(bytes),
            alignment,
            trick: Mutex::new((0, Box::new(|_, _, _| None))),
            changed: Mutex::new(None),
            path: Path::new("experts-L1.bin").into(),
        })
    }

    /// From now on, with calls counted from 0.
    fn set(&self, trick: impl FnMut(usize, u64, usize) -> Option<io::Result<usize>> + Send + 'static) {
        *self.trick.lock().unwrap() = (0, Box::new(trick));
    }
}

impl ReadAt for Shim {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let align = self.alignment;
        assert!(
            offset.is_multiple_of(align as u64) && buf.len().is_multiple_of(align),
            "{offset} {}",
            buf.len()
        );
        let wanted = {
            let mut trick = self.trick.lock().unwrap();
            let call = trick.0;
            trick.0 += 1;
            (trick.1)(call, offset, buf.len())
        };
        let wanted = wanted.unwrap_or(Ok(buf.len()))?;
        let bytes = self.bytes.lock().unwrap();
        let from = usize::try_from(offset).unwrap().min(bytes.len());
        let n = wanted.min(buf.len()).min(bytes.len() - from);
        buf[..n].copy_from_slice(&bytes[from..from + n]);
        Ok(n)
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn changed(&self) -> Option<String> {
        self.changed.lock().unwrap().clone()
    }

    fn accept(&self) {
        *self.changed.lock().unwrap() = None;
    }

    fn path(&self) -> &Arc<Path> {
        &self.path
    }
}

/// `n` records of `bytes` bytes. Each begins with its number; the rest follows from it.
fn bank_bytes(n: u32, bytes: usize) -> Vec<u8> {
    (0..n).flat_map(|it| record(it, bytes)).collect()
}

fn record(expert: u32, bytes: usize) -> Vec<u8> {
    let mut state = u64::from(expert) + 1;
    let noise = std::iter::repeat_with(|| policy::below(&mut state, 256) as u8);
    expert.to_le_bytes().into_iter().chain(noise).take(bytes).collect()
}

fn bank(layer: u32, file: Arc<dyn ReadAt>, bytes: u32, experts: u32) -> Bank {
    Bank { layer, file, offset: 0, stride: bytes.into(), bytes, experts }
}

fn options(slots: usize, readers: usize) -> ExpertCacheOptions {
    ExpertCacheOptions { slots, readers, eviction: Eviction::Lfru, check: Box::new(|_, _, _| Ok(())) }
}

/// A cache of one bank, that of layer 1.
fn open(file: &Arc<Shim>, bytes: u32, experts: u32, options: ExpertCacheOptions) -> ExpertCache {
    ExpertCache::open(vec![bank(1, Arc::clone(file) as Arc<dyn ReadAt>, bytes, experts)], options).unwrap()
}

/// Waits until no read is queued or in flight.
fn settle(cache: &ExpertCache) {
    let counters = || {
        let it = cache.counters();
        it.reads + it.failures
    };
    loop {
        let before = counters();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let is_idle = {
            let core = cache.shared.lock();
            !core.slots.is_any_reading() && core.slots.clone().start().is_none()
        };
        if is_idle && counters() == before {
            return;
        }
    }
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("waste-experts-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left = std::fs::remove_dir_all(&self.0);
    }
}
