//! What the operating system says about processors and memory.
//!
//! Everything is parsed from the texts of a few files, which `Machine::read` gets through a function: the machines of
//! `tests/machines` are read by the same code as this one. Where those files do not exist (macOS, Windows) a machine is
//! what the standard library says it is.
//!
//! Invariants
//! - no limit is ever raised: threads by default are at most the allowed processors, the physical cores and the quota,
//!   and at least 1;
//! - an unreadable or malformed file means "not known", never an error.
//!
//! Deliberately absent: any choice by the size of a model, and NUMA.

mod affinity;
mod allocations;
mod cgroup;
mod cpu_list;
mod topology;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

pub(crate) use affinity::Stay;
pub use affinity::pin_thread;
pub use allocations::{CountingAllocator, thread_allocations};
use cpu_list::parse_cpu_list;

/// The text of a file, if it can be read.
type ReadText<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Processors, memory, and what limits this process.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The processor's name, if known.
    pub cpu_name: Option<String>,
    /// Every processor that is online, ascending.
    pub cpus: Vec<Cpu>,
    /// Processors' worth of time that a cgroup grants: the smallest of all levels.
    pub quota: Option<f64>,
    /// Whether a cpuset, rather than this process's affinity, is why some processors are not allowed.
    pub has_cpuset: bool,
    /// Bytes of physical memory.
    pub ram: Option<u64>,
    /// Bytes that could be allocated now without swapping.
    pub available: Option<u64>,
    /// Bytes that a cgroup allows, the smallest of all levels, if that is less than `ram`.
    pub memory_limit: Option<u64>,
}

/// A processor that the system schedules on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub id: usize,
    /// The lowest number among the processors of its physical core.
    pub core: usize,
    /// Whether it is of the fast group; on most machines all are.
    pub is_fast: bool,
    /// Whether this process may run there.
    pub is_allowed: bool,
}

/// A number of threads, where to pin them, and which limit set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threads {
    /// How many.
    pub count: usize,
    /// A processor for each thread; empty where the system places them as well.
    pub cpus: Vec<usize>,
    /// Online processors.
    pub of: usize,
    /// The limit that set the number, if any did.
    pub limit: Option<String>,
}

impl fmt::Display for Threads {
    /// `threads 4 (of 16; cgroup quota 4.0)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "threads {} (of {}", self.count, self.of)?;
        if let Some(limit) = &self.limit {
            write!(f, "; {limit}")?;
        }
        write!(f, ")")
    }
}

impl Machine {
    /// This machine, as this process may use it: its first thread, while that runs no step of a session.
    #[must_use]
    pub fn detect() -> Self {
        Self::read(&read_file)
    }

    /// The machine whose files `read` knows.
    pub(crate) fn read(read: ReadText<'_>) -> Self {
        let status = read("/proc/self/status");
        let allowed =
            status.as_deref().and_then(|it| field(it, "Cpus_allowed_list")).and_then(parse_cpu_list);
        let cpus = topology::cpus(read, allowed.as_ref());
        let meminfo = read("/proc/meminfo");
        let memory = |name| meminfo.as_deref().and_then(|it| field(it, name)).and_then(kibibytes);
        let groups = cgroup::Cgroups::read(read);
        let ram = memory("MemTotal");
        Self {
            cpu_name: read("/proc/cpuinfo").and_then(|it| field(&it, "model name").map(str::to_owned)),
            has_cpuset: groups.cpuset(read).is_some_and(|set| cpus.iter().any(|it| !set.contains(&it.id))),
            cpus,
            quota: groups.cpu_quota(read),
            ram,
            available: memory("MemAvailable"),
            memory_limit: groups.memory_limit(read).filter(|limit| ram.is_none_or(|ram| *limit < ram)),
        }
    }

    /// Physical cores with at least one allowed processor, by their lowest allowed processor; `fast` of them only.
    fn allowed_cores(&self, fast_only: bool) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let is_usable = |it: &&Cpu| it.is_allowed && (it.is_fast || !fast_only);
        self.cpus.iter().filter(is_usable).filter(|it| seen.insert(it.core)).map(|it| it.id).collect()
    }

    /// Physical cores, allowed or not: siblings count once.
    #[must_use]
    pub fn physical_cores(&self) -> usize {
        self.cpus.iter().map(|it| it.core).collect::<BTreeSet<_>>().len()
    }

    /// Physical cores of the fast group, allowed or not.
    #[must_use]
    pub fn fast_cores(&self) -> usize {
        self.cpus.iter().filter(|it| it.is_fast).map(|it| it.core).collect::<BTreeSet<_>>().len()
    }

    /// Threads by default: fast physical cores ∩ allowed processors, at most the quota rounded up.
    ///
    /// Where cores differ, threads are pinned to the fast ones: every step ends at a barrier, so one slow thread makes all
    /// of them slow.
    #[must_use]
    pub fn default_threads(&self) -> Threads {
        let of = self.cpus.len();
        let allowed = self.cpus.iter().filter(|it| it.is_allowed).count();
        let fast = self.allowed_cores(true);
        let cores = if fast.is_empty() { self.allowed_cores(false) } else { fast };
        let has_slow = self.cpus.iter().any(|it| it.is_allowed && !it.is_fast) && cores.len() < allowed;
        let mut res = Threads { count: of, cpus: Vec::new(), of, limit: None };
        let mut limit = |count: usize, what: &dyn fmt::Display| {
            if count < res.count {
                (res.count, res.limit) = (count, Some(what.to_string()));
            }
        };
        limit(allowed, if self.has_cpuset { &"cpuset" } else { &"affinity" });
        limit(self.allowed_cores(false).len(), &"physical cores");
        limit(cores.len(), &"fast cores");
        if let Some(quota) = self.quota {
            limit(whole_cpus(quota), &format_args!("cgroup quota {quota:.1}"));
        }
        res.count = res.count.max(1);
        if has_slow {
            res.cpus = cores.into_iter().take(res.count).collect();
        }
        res
    }

    /// Bytes of memory that this process may hope for: the smaller of physical memory and cgroup limits.
    #[must_use]
    pub fn usable_ram(&self) -> Option<u64> {
        match (self.ram, self.memory_limit) {
            (Some(ram), Some(limit)) => Some(ram.min(limit)),
            (ram, limit) => ram.or(limit),
        }
    }
}

/// A quota rounded up to whole processors; a non-positive one is no quota at all and was refused before.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; `as` saturates")]
fn whole_cpus(quota: f64) -> usize {
    quota.ceil().max(1.0) as usize
}

/// The most memory that this process has had resident so far, in bytes, if the system says.
#[must_use]
pub fn peak_rss() -> Option<u64> {
    field(&read_file("/proc/self/status")?, "VmHWM").and_then(kibibytes)
}

/// Forgets the peak: from now on [`peak_rss`] tells the most since this call. Whether the system did so.
pub fn reset_peak_rss() -> bool {
    cfg!(target_os = "linux") && std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

fn read_file(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The value after `name` and a colon, of the first line that starts with `name`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.trim_start().strip_prefix(':');
    text.lines().find_map(value).map(str::trim)
}

/// Bytes of `16316412 kB`.
fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}
