//! `waste info`: this machine as `waste` sees it, and which limit or missing extension is why; or what one of its disks reads
//! (`storage`).

use std::fmt::Write as _;

use clap::Args;
use serde_json::{Value, json};
use waste::report::table::{Align, Table};
use waste::report::units::bytes;
use waste_runtime::sys::{Machine, Threads};
use waste_runtime::{CpuFeatures, Isa, KernelTable};

use super::args::{Backend, Cpus, Form, MachineArgs, StreamArgs, positive};
use super::cx::Cx;
use super::error::CliError;
use super::open;
use super::storage::{self, StorageArgs};

/// Arguments of `waste info`.
#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    /// Threads, to see what would be used
    #[arg(short = 't', long, value_name = "N", value_parser = positive())]
    threads: Option<u32>,
    /// Processors to run on, such as 0-3,8
    #[arg(long, value_name = "LIST")]
    cpus: Option<Cpus>,
    /// cpu, or its best tier to use: cpu:portable, cpu:avx2, cpu:avx512, cpu:vnni, cpu:amx; on Arm cpu:neon, cpu:dotprod, cpu:i8mm
    #[arg(long, value_name = "BACKEND")]
    backend: Option<Backend>,
    #[command(flatten)]
    storage: StorageArgs,
    /// The form of the result
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value = "text")]
    form: Form,
}

pub(crate) fn run(args: &InfoArgs, cx: &Cx) -> Result<(), CliError> {
    if let Some(path) = &args.storage.storage {
        return storage::run(path, &args.storage, args.form, cx);
    }
    let machine = Machine::detect();
    let settled = MachineArgs {
        threads: args.threads,
        cpus: args.cpus.clone(),
        backend: args.backend,
        no_verify: false,
        check_finite: false,
        stream: StreamArgs::default(),
    };
    let (count, cpus, threads) = open::threads(&machine, &settled, cx)?;
    let max_isa = open::tier(&settled, cx)?.best();
    let info = Info {
        default: machine.default_threads(),
        machine,
        count,
        cpus,
        threads,
        tiers: Isa::ALL.map(|isa| (isa, tier_state(isa, max_isa))).to_vec(),
        rows: rows(max_isa),
        max_isa,
        variables: cx.env.in_force().collect(),
    };
    cx.print(&if args.form == Form::Json { info.json() } else { info.text() })
}

/// Everything that is printed.
struct Info {
    machine: Machine,
    default: Threads,
    /// Threads that a session would get, where, and the line that says why.
    count: usize,
    cpus: Vec<usize>,
    threads: String,
    max_isa: Isa,
    /// Each tier, and what becomes of it here.
    tiers: Vec<(Isa, String)>,
    rows: Vec<Row>,
    variables: Vec<(&'static str, String)>,
}

/// A row of the dispatch table.
struct Row {
    name: &'static str,
    isa: Isa,
    /// Why no better tier is used; empty if this is the best that runs here.
    why: String,
}

/// What becomes of `isa` where `max_isa` is the best tier in use.
fn tier_state(isa: Isa, max_isa: Isa) -> String {
    match isa.why_not() {
        Some(why) => format!("not usable: {why}"),
        None if max_isa < isa => format!("usable, kept out by the backend {}", max_isa.name()),
        None => "usable".to_owned(),
    }
}

fn rows(max_isa: Isa) -> Vec<Row> {
    let table = KernelTable::new(CpuFeatures::detect().capped(max_isa));
    let why = |isa: Isa| if isa < max_isa { format!("no {} kernel", max_isa.name()) } else { String::new() };
    table.rows().map(|it| Row { name: it.name, isa: it.isa, why: why(it.isa) }).collect()
}

impl Info {
    fn text(&self) -> String {
        let mut out = format!("waste {}\n", env!("CARGO_PKG_VERSION"));
        let mut line =
            |name: &str, text: &str| writeln!(out, "{name:<10} {text}").expect("writing to a string");
        line("processor", &self.processor());
        line("memory", &self.memory());
        line("threads", self.threads.strip_prefix("threads ").unwrap_or(&self.threads));
        if !self.cpus.is_empty() {
            line("pinned to", &format!("{:?}", self.cpus).replace(['[', ']'], ""));
        }
        line("backend", &format!("cpu:{}", self.max_isa.name()));

        let mut tiers = Table::new(&[("tier", Align::Left), ("here", Align::Left)]);
        self.tiers.iter().for_each(|(isa, state)| tiers.row([isa.name().to_owned(), state.clone()]));
        let columns =
            [("kernel", Align::Left), ("tier in use", Align::Left), ("why not a better one", Align::Left)];
        let mut kernels = Table::new(&columns);
        self.rows
            .iter()
            .for_each(|it| kernels.row([it.name.to_owned(), it.isa.name().to_owned(), it.why.clone()]));
        writeln!(out, "\n{}\n{}", tiers.markdown(), kernels.markdown()).expect("writing to a string");

        out.push_str(if self.variables.is_empty() {
            "no variables in force\n"
        } else {
            "variables in force\n"
        });
        for (name, value) in &self.variables {
            writeln!(out, "  {name}={value}").expect("writing to a string");
        }
        out
    }

    fn processor(&self) -> String {
        let (it, cpus) = (&self.machine, self.machine.cpus.len());
        let name = it.cpu_name.as_deref().unwrap_or(std::env::consts::ARCH);
        let slow = it.physical_cores() - it.fast_cores();
        let kinds =
            if slow == 0 { String::new() } else { format!(" ({} fast, {slow} slow)", it.fast_cores()) };
        let quota = it.quota.map_or(String::new(), |it| format!(", cgroup quota {it:.2}"));
        format!("{name}; {cpus} online, {} physical cores{kinds}{quota}", it.physical_cores())
    }

    fn memory(&self) -> String {
        let it = &self.machine;
        let said = |what: Option<u64>| what.map_or_else(|| "unknown".to_owned(), bytes);
        let limit = it.memory_limit.map_or(String::new(), |it| format!(", cgroup limit {}", bytes(it)));
        format!("{}{limit}, {} available", said(it.ram), said(it.available))
    }

    fn json(&self) -> String {
        let it = &self.machine;
        let tiers: Vec<Value> =
            self.tiers.iter().map(|(isa, here)| json!({ "tier": isa.name(), "here": here })).collect();
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|it| json!({ "kernel": it.name, "tier": it.isa.name(), "why_not_better": it.why }))
            .collect();
        let variables: serde_json::Map<String, Value> =
            self.variables.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let value = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "cpu": it.cpu_name,
            "cpus": it.cpus.len(),
            "physical_cores": it.physical_cores(),
            "fast_cores": it.fast_cores(),
            "quota": it.quota,
            "ram_bytes": it.ram,
            "available_bytes": it.available,
            "memory_limit_bytes": it.memory_limit,
            "threads": self.count,
            "threads_line": self.threads,
            "default_threads": self.default.count,
            "default_threads_limit": self.default.limit,
            "pinned_to": self.cpus,
            "backend": format!("cpu:{}", self.max_isa.name()),
            "tiers": tiers,
            "kernels": rows,
            "variables": variables,
        });
        format!("{value}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_why_it_is_not_better() {
        let best = CpuFeatures::detect().best();
        for row in rows(best) {
            assert_eq!(row.why.is_empty(), row.isa == best, "{}", row.name);
        }
        assert!(rows(Isa::Portable).iter().all(|it| it.isa == Isa::Portable && it.why.is_empty()));
    }

    #[test]
    fn a_tier_is_usable_kept_out_or_missing() {
        let best = CpuFeatures::detect().best();
        assert_eq!(tier_state(Isa::Portable, best), "usable");
        for isa in Isa::ALL {
            assert_eq!(tier_state(isa, best).starts_with("not usable: "), !CpuFeatures::detect().has(isa));
        }
        if Isa::Portable < best {
            assert_eq!(tier_state(best, Isa::Portable), "usable, kept out by the backend portable");
        }
    }
}
