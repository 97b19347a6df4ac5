//! `waste info --storage`: what a disk gives with the access pattern of the expert cache.

use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use waste::formats::container::{Container, MANIFEST};
use waste::formats::grouped;
use waste::report::units::bytes;
use waste_plan::record;
use waste_runtime::experts::{Access, Bank, ExpertFile, Probe, ProbeOptions, ReadAt, probe};

use super::args::{Form, Size};
use super::cx::Cx;
use super::error::CliError;

/// Bytes of a record where nothing states them: those of Kimi-Linear-48B's experts in three bits a weight.
const USUAL_RECORD: u64 = 2_666_496;
/// How many times a disk is measured.
const ROUNDS: u32 = 5;

/// A probe of storage.
#[derive(Args, Clone, Debug)]
pub(crate) struct StorageArgs {
    /// Measure random reads of whole records, as the expert cache makes them, from a container, a bank of one, or any file
    #[arg(long, value_name = "FILE|DIR")]
    pub(super) storage: Option<PathBuf>,
    /// Bytes of a record [default: what the container or bank says, else 2,666,496]
    #[arg(long, value_name = "SIZE", requires = "storage")]
    record: Option<Size>,
    /// Threads that read at the same time [default: 2, as a run has]
    #[arg(long, value_name = "N", requires = "storage", value_parser = clap::value_parser!(u8).range(1..=64))]
    read_threads: Option<u8>,
    /// Read through the page cache, also where reading past it works
    #[arg(long, requires = "storage")]
    buffered: bool,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", requires = "storage", value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: Option<u16>,
}

/// Probes the storage at `path` and prints what it gives.
///
/// # Errors
/// If there is no record to read, or a read fails.
pub(super) fn run(path: &Path, args: &StorageArgs, form: Form, cx: &Cx) -> Result<(), CliError> {
    let (banks, access) = banks(path, args)?;
    let options = ProbeOptions {
        readers: usize::from(args.read_threads.unwrap_or(2)),
        rounds: ROUNDS as usize,
        round: Duration::from_secs(args.seconds.unwrap_or(3).into()) / ROUNDS,
        seed: 1,
    };
    let found = probe(&banks, &options)?;
    let shown = Shown { path, banks: &banks, access: &access, readers: options.readers, found: &found };
    cx.print(&if form == Form::Json { shown.json() } else { shown.text() })
}

/// The records to read, and how: directly, unless one of the files has to be read through the page cache.
fn banks(path: &Path, args: &StorageArgs) -> Result<(Vec<Bank>, Access), CliError> {
    let mut access = Access::Direct;
    let mut open = |path: &Path| {
        let file = ExpertFile::open(path, !args.buffered).map_err(waste_runtime::RuntimeError::from)?;
        if access == Access::Direct {
            access = file.access().clone();
        }
        Ok::<_, CliError>(Arc::new(file))
    };
    if !path.join(MANIFEST).is_file() {
        let file = open(path)?;
        return Ok((vec![whole_file(path, file, args.record)?], access));
    }
    let container = Container::open(path)?;
    let bank = |it: &waste::formats::container::Bank| {
        let file = open(container.sources()[it.file()].path())?;
        if let Some(asked) = args.record {
            return Ok(Bank { layer: it.layer(), ..whole_file(path, file, Some(asked))? });
        }
        let bytes = u32::try_from(it.record_bytes()).expect("offsets in a record are 32 bits");
        let (layer, experts) = (it.layer(), it.experts());
        Ok(Bank { layer, file, offset: 0, stride: it.record_bytes(), bytes, experts })
    };
    let banks = container.banks().values().map(bank).collect::<Result<Vec<_>, CliError>>()?;
    Ok((banks, access))
}

/// A file as records side by side: of the size asked for, or that its first header states, or the usual one.
fn whole_file(path: &Path, file: Arc<ExpertFile>, asked: Option<Size>) -> Result<Bank, CliError> {
    let size = file.size().map_err(|err| CliError::io(path, &err))?;
    let stride = asked.map(|it| it.0).or_else(|| stated_record(file.path())).unwrap_or(USUAL_RECORD);
    let refuse = |what: &str| CliError::Input(format!("{}: {what}", path.display()));
    let bytes = u32::try_from(stride).ok().filter(|it| *it > 0);
    let bytes = bytes.ok_or_else(|| refuse(&format!("records of {stride} bytes are not possible")))?;
    let experts = u32::try_from(size / stride).unwrap_or(u32::MAX - 1).min(u32::MAX - 1);
    if experts == 0 {
        return Err(refuse(&format!(
            "{size} bytes, less than one record of {stride} (--record gives another size)"
        )));
    }
    Ok(Bank { layer: 0, file, offset: 0, stride, bytes, experts })
}

/// What the header of a first record says about the size of all.
fn stated_record(path: &Path) -> Option<u64> {
    let mut header = [0; record::HEADER];
    std::fs::File::open(path).and_then(|mut it| it.read_exact(&mut header)).ok()?;
    record::stated_bytes(&header)
}

/// What is printed.
struct Shown<'a> {
    path: &'a Path,
    banks: &'a [Bank],
    access: &'a Access,
    readers: usize,
    found: &'a Probe,
}

impl Shown<'_> {
    /// Records, and the bytes of each: of the largest, where they differ.
    fn records(&self) -> (u64, u64) {
        let count = self.banks.iter().map(|it| u64::from(it.experts)).sum();
        (count, self.banks.iter().map(|it| u64::from(it.bytes)).max().unwrap_or(0))
    }

    fn text(&self) -> String {
        let (found, (count, size)) = (self.found, self.records());
        let (low, high) = found.spread();
        let mut out = String::new();
        let mut line =
            |name: &str, text: &str| writeln!(out, "{name:<10} {text}").expect("writing to a string");
        line("storage", &self.path.display().to_string());
        let files =
            if self.banks.len() == 1 { "1 file".to_owned() } else { format!("{} files", self.banks.len()) };
        let all = bytes(count.saturating_mul(size));
        line("records", &format!("{} of {} bytes, {all} in {files}", grouped(count), grouped(size)));
        line(
            "read",
            &format!(
                "{} records at random by {} threads, {}",
                grouped(found.reads()),
                self.readers,
                self.access
            ),
        );
        line(
            "rate",
            &format!(
                "{:.3} GB/s ({low:.3} – {high:.3} of {ROUNDS} rounds), {:.1} reads/s",
                found.median(),
                found.reads_per_s()
            ),
        );
        let ms = |share: f64| found.latency(share).as_secs_f64() * 1e3;
        line("latency", &format!("p50 {:.3} ms, p99 {:.3} ms", ms(0.5), ms(0.99)));
        out
    }

    fn json(&self) -> String {
        let (found, (count, size)) = (self.found, self.records());
        let (low, high) = found.spread();
        let why = match self.access {
            Access::Direct => None,
            Access::Buffered(why) => Some(why),
        };
        let ms = |share: f64| found.latency(share).as_secs_f64() * 1e3;
        let value = json!({
            "storage": self.path.to_string_lossy(),
            "files": self.banks.len(),
            "records": count,
            "record_bytes": size,
            "readers": self.readers,
            "access": if why.is_none() { "direct" } else { "buffered" },
            "why_buffered": why,
            "reads": found.reads(),
            "read_bytes": found.bytes,
            "gb_per_s": found.median(),
            "gb_per_s_low": low,
            "gb_per_s_high": high,
            "reads_per_s": found.reads_per_s(),
            "latency_p50_ms": ms(0.5),
            "latency_p99_ms": ms(0.99),
        });
        format!("{value}\n")
    }
}
