//! Experts streamed from disk: a cache of records between files larger than memory and the steps that use them.
//!
//! | file | holds |
//! |---|---|
//! | `cache`, `pinned` | slots in memory, reader threads, guards |
//! | `slots`, `queue`, `policy` | the pure state machine: what is where, what is read next, what leaves |
//! | `file`, `records` | reads past the page cache; where each record is |
//! | `simulate` | hit rates without a disk, by the same state machine |
//! | `probe` | what the disk gives with the same access pattern |
//! | `hot` | what a session learned, for the next one |
//!
//! A record is whatever bytes one read brings: this module knows neither plans nor kernels. Experts of a token are asked for
//! in the order in which they are used; reads may end in any order.

mod cache;
mod counters;
mod error;
mod file;
mod hot;
mod pinned;
mod policy;
mod probe;
mod queue;
mod records;
mod simulate;
mod slots;

#[cfg(test)]
mod tests;

pub use cache::{ExpertCache, ExpertCacheOptions, RecordCheck, needed_bytes};
pub use counters::Counters;
pub use error::{ExpertError, Fault};
pub use file::{Access, ExpertFile, ReadAt};
pub use hot::Hot;
pub(crate) use hot::order;
pub use pinned::Pinned;
pub use policy::Eviction;
pub use probe::{Probe, ProbeOptions, probe};
pub use records::Bank;
pub use simulate::{Simulated, Step, simulate};
