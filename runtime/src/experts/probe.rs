//! What a disk gives with the access pattern of the expert cache: whole records at random places of one file, as many at a
//! time as there are readers.
//!
//! The yardstick for a streaming run, and what `waste plan` predicts from. Deliberately absent: sequential reads and small
//! ones, which say nothing about this pattern.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::error::ExpertError;
use super::file::{ReadAt, read_record, span};
use super::policy::below;
use crate::arena::Buffer;
use crate::error::RuntimeError;

/// How to probe a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeOptions {
    /// Bytes of one record.
    pub record_bytes: u32,
    /// Threads that read at the same time, at least 1.
    pub readers: usize,
    /// How many times to measure, at least 1.
    pub rounds: usize,
    /// How long one measurement takes, at least.
    pub round: Duration,
    /// Where in the file the records are, as a seed.
    pub seed: u64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// 10⁹ bytes a second of each round, ascending.
    pub gb_per_s: Vec<f64>,
    /// Records read.
    pub reads: u64,
}

impl Probe {
    /// The middle round, in 10⁹ bytes a second.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.gb_per_s[self.gb_per_s.len() / 2]
    }

    /// The slowest and the fastest round, in 10⁹ bytes a second.
    #[must_use]
    pub fn spread(&self) -> (f64, f64) {
        (self.gb_per_s[0], self.gb_per_s[self.gb_per_s.len() - 1])
    }
}

/// Measures reads of `file`.
///
/// # Errors
/// If the file holds no whole record or cannot be read, or the system refuses memory.
pub fn probe(file: &dyn ReadAt, options: &ProbeOptions) -> Result<Probe, RuntimeError> {
    let stride = span(0, options.record_bytes.into(), file.alignment()).max(1);
    let open_error = |message| ExpertError::File { path: file.path().to_path_buf(), message };
    let size = file.size().map_err(|it| open_error(it.to_string()))?;
    let records = usize::try_from(size / stride).unwrap_or(usize::MAX);
    if records == 0 {
        return Err(open_error(format!("{size} bytes, less than one record of {stride}")).into());
    }
    let buffer = |_| Buffer::new(stride, "a probe of storage").map(Mutex::new);
    let buffers: Vec<_> = (0..options.readers.max(1)).map(buffer).collect::<Result<_, _>>()?;
    let cx = Cx { file, bytes: options.record_bytes, stride, records, random: Mutex::new(options.seed) };
    let mut res = Probe { gb_per_s: Vec::new(), reads: 0 };
    for _ in 0..options.rounds.max(1) {
        let (reads, time) = cx.round(&buffers, options.round)?;
        res.gb_per_s.push((reads * u64::from(options.record_bytes)) as f64 / time.as_secs_f64() / 1e9);
        res.reads += reads;
    }
    res.gb_per_s.sort_by(f64::total_cmp);
    Ok(res)
}

struct Cx<'a> {
    file: &'a dyn ReadAt,
    bytes: u32,
    stride: u64,
    records: usize,
    random: Mutex<u64>,
}

impl Cx<'_> {
    /// Reads with one thread a buffer until `least` is over; how many records, and in what time.
    fn round(&self, buffers: &[Mutex<Buffer>], least: Duration) -> Result<(u64, Duration), ExpertError> {
        let (begin, reads, failed) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
        let first_error = Mutex::new(None);
        std::thread::scope(|scope| {
            for buffer in buffers {
                scope.spawn(|| {
                    let mut buffer = buffer.lock().expect("no panic under this lock");
                    // At least one read each, however late the system starts a thread.
                    loop {
                        if let Err(error) = self.read(&mut buffer) {
                            failed.store(true, Ordering::Relaxed);
                            first_error.lock().expect("no panic under this lock").get_or_insert(error);
                        }
                        reads.fetch_add(1, Ordering::Relaxed);
                        if least <= begin.elapsed() || failed.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
        });
        match first_error.into_inner().expect("no panic under this lock") {
            Some(error) => Err(error),
            None => Ok((reads.into_inner(), begin.elapsed())),
        }
    }

    fn read(&self, buffer: &mut Buffer) -> Result<(), ExpertError> {
        let at = below(&mut self.random.lock().expect("no panic under this lock"), self.records) as u64;
        let offset = at * self.stride;
        match read_record(self.file, offset, self.bytes as usize, buffer.bytes_mut()) {
            Ok(_) => Ok(()),
            Err(fault) => {
                let message = format!("at {offset:#x}: {fault}");
                Err(ExpertError::File { path: self.file.path().to_path_buf(), message })
            }
        }
    }
}
