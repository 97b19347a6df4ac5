//! What a disk gives with the access pattern of the expert cache: whole records at random places of their banks, as many at a
//! time as there are readers, by the reads that the cache itself makes.
//!
//! The yardstick for a streaming run, and what `waste plan` predicts from. Deliberately absent: sequential reads and small
//! ones, which say nothing about this pattern, and the checks of records, which are the processor's work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::ExpertError;
use super::file::read_record;
use super::policy::below;
use super::records::{Bank, Records};
use crate::arena::Buffer;
use crate::error::RuntimeError;

/// How to probe a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeOptions {
    /// Threads that read at the same time, at least 1.
    pub readers: usize,
    /// How many times to measure, at least 1.
    pub rounds: usize,
    /// How long one measurement takes, at least.
    pub round: Duration,
    /// Which records are read, as a seed.
    pub seed: u64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// 10⁹ bytes of records a second of each round, ascending.
    pub gb_per_s: Vec<f64>,
    /// Bytes of records that were read.
    pub bytes: u64,
    /// How long all rounds took together.
    pub time: Duration,
    /// How long each read took, ascending; at least one.
    pub latencies: Vec<Duration>,
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

    /// Records read.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.latencies.len() as u64
    }

    /// Records read a second, over all rounds.
    #[must_use]
    pub fn reads_per_s(&self) -> f64 {
        self.reads() as f64 / self.time.as_secs_f64()
    }

    /// What a share of the reads did not exceed: 0.5 is the median, 0.99 all but one of a hundred.
    #[must_use]
    pub fn latency(&self, share: f64) -> Duration {
        let last = self.latencies.len() - 1;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
        let at = (share.clamp(0.0, 1.0) * last as f64).round() as usize;
        self.latencies[at.min(last)]
    }
}

/// Measures reads of records of `banks`, drawn evenly from all of them.
///
/// # Errors
/// If a file is too short for its records or cannot be read, there are no records, or the system refuses memory.
pub fn probe(banks: &[Bank], options: &ProbeOptions) -> Result<Probe, RuntimeError> {
    let records = Records::new(banks.to_vec())?;
    if records.len() == 0 {
        return Err(ExpertError::Banks("a probe needs at least one record".to_owned()).into());
    }
    let buffer = |_| {
        let memory = Buffer::new(records.slot_bytes(), "a probe of storage")?;
        Ok(Mutex::new(Reader { memory, latencies: Vec::new(), bytes: 0 }))
    };
    let readers = (0..options.readers.max(1)).map(buffer).collect::<Result<Vec<_>, RuntimeError>>()?;
    let cx = Cx { records, random: Mutex::new(options.seed) };
    let mut res = Probe { gb_per_s: Vec::new(), bytes: 0, time: Duration::ZERO, latencies: Vec::new() };
    for _ in 0..options.rounds.max(1) {
        let time = cx.round(&readers, options.round)?;
        let mut bytes = 0;
        for reader in &readers {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            bytes += std::mem::take(&mut reader.bytes);
            res.latencies.append(&mut reader.latencies);
        }
        res.gb_per_s.push(bytes as f64 / time.as_secs_f64() / 1e9);
        (res.bytes, res.time) = (res.bytes + bytes, res.time + time);
    }
    res.gb_per_s.sort_by(f64::total_cmp);
    res.latencies.sort_unstable();
    Ok(res)
}

/// Memory of one thread, and what it did in this round.
struct Reader {
    memory: Buffer,
    latencies: Vec<Duration>,
    bytes: u64,
}

struct Cx {
    records: Records,
    random: Mutex<u64>,
}

impl Cx {
    /// Reads with one thread a reader until `least` is over; in what time.
    fn round(&self, readers: &[Mutex<Reader>], least: Duration) -> Result<Duration, ExpertError> {
        let (begin, failed) = (Instant::now(), AtomicBool::new(false));
        let first_error = Mutex::new(None);
        std::thread::scope(|scope| {
            for reader in readers {
                scope.spawn(|| {
                    let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
                    // At least one read each, however late the system starts a thread.
                    loop {
                        if let Err(error) = self.read(&mut reader) {
                            failed.store(true, Ordering::Relaxed);
                            let mut first = first_error.lock().unwrap_or_else(PoisonError::into_inner);
                            first.get_or_insert(error);
                        }
                        if least <= begin.elapsed() || failed.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
        });
        match first_error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(begin.elapsed()),
        }
    }

    fn read(&self, reader: &mut Reader) -> Result<(), ExpertError> {
        let record = {
            let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
            below(&mut random, self.records.len() as usize)
        };
        let (bank, expert) = self.records.place(u32::try_from(record).expect("below a u32"));
        let (begin, offset) = (Instant::now(), bank.offset_of(expert));
        match read_record(&*bank.file, offset, bank.bytes as usize, reader.memory.bytes_mut()) {
            Ok(_) => {
                reader.latencies.push(begin.elapsed());
                reader.bytes += u64::from(bank.bytes);
                Ok(())
            }
            Err(fault) => {
                let message = format!("at {offset:#x}: {fault}");
                Err(ExpertError::File { path: bank.file.path().to_path_buf(), message })
            }
        }
    }
}
