//! `waste verify`: is a container whole, and how far is it from its checkpoint.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use waste::convert::{Distance, Verified, verify};
use waste::formats::FormatError;
use waste::report::table::{Align, Table};

use super::args::Form;
use super::cx::Cx;
use super::error::CliError;
use super::open;

/// Arguments of `waste verify`.
#[derive(Args, Debug)]
#[command(after_help = "\
    Every record's header, CRC-32, scales and padding, every codebook and every scale of the trunk are checked. The format has no \
    checksum of codebooks and of the trunk's codes: a changed one shows only beside its checkpoint. With a checkpoint, \
    each matrix W' of the container is compared with its W there: the relative error is |W - W'| / |W|, all squares summed; of \
    experts, over a layer's and the worst one's. Exit code 1: the container is damaged, or has other tensors than the checkpoint; \
    3: a relative error of 1 or more, so that it was made of another one.")]
pub(crate) struct VerifyArgs {
    /// The container
    #[arg(value_name = "OUT.waste")]
    container: PathBuf,
    /// The checkpoint it was made of
    #[arg(value_name = "SRC_DIR")]
    source: Option<PathBuf>,
    /// The form of the result: a table, or JSON
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value = "text")]
    form: Form,
    /// Show no progress
    #[arg(short = 'q', long)]
    quiet: bool,
}

/// Damages listed; the rest is counted.
const MOST_SHOWN: usize = 20;

pub(crate) fn run(args: &VerifyArgs, cx: &Cx) -> Result<(), CliError> {
    let name = args.container.display();
    let files = open::open_model(&args.container, cx)?;
    let Some(container) = files.container() else {
        return Err(CliError::Input(format!("{name}: is no container (it has no manifest.json)")));
    };
    let source = args.source.as_ref().map(|it| open::open_model(it, cx)).transpose()?;
    let report = verify(container, source.as_ref(), &*cx.progress("verifying", args.quiet))?;
    cx.print(&if args.form == Form::Json { as_json(&report) } else { as_text(&report) })?;
    match report.damages.len() {
        0 => told_apart(&report),
        1 => Err(CliError::Input(report.damages[0].to_string())),
        count => Err(CliError::Input(format!("{name}: damaged in {count} places"))),
    }
}

/// No encoding is further from a matrix than zero is: what is was made of something else.
fn told_apart(report: &Verified) -> Result<(), CliError> {
    match report.distances.iter().find(|it| it.worst >= 1.0) {
        None => Ok(()),
        Some(it) => Err(CliError::Difference(format!(
            "{}: the relative error of the worst is {:.3}: not made of this checkpoint",
            it.name, it.worst
        ))),
    }
}

fn as_text(report: &Verified) -> String {
    if !report.damages.is_empty() {
        let lines = report.damages.iter().take(MOST_SHOWN).map(|it| format!("{it}\n"));
        return lines.collect();
    }
    let mut out = format!(
        "{} records whole: headers, checksums, scales; {} tensors in the trunk\n",
        report.records, report.tensors
    );
    if report.distances.is_empty() {
        return out;
    }
    let columns = [
        ("matrix", Align::Left),
        ("stored as", Align::Left),
        ("bits/weight", Align::Right),
        ("matrices", Align::Right),
        ("relative error", Align::Right),
        ("worst", Align::Right),
    ];
    let mut table = Table::new(&columns);
    // What is stored in f32 is equal, as a rule, and there are many of them.
    let is_told = |it: &&Distance| it.format != "f32" || it.relative > 0.0;
    for it in report.distances.iter().filter(is_told) {
        table.row([
            it.name.clone(),
            it.format.to_owned(),
            format!("{:.3}", it.bits),
            it.matrices.to_string(),
            format!("{:.5}", it.relative),
            format!("{:.5}", it.worst),
        ]);
    }
    let equal = report.distances.len() - report.distances.iter().filter(is_told).count();
    out.push_str(&format!("{equal} tensors in f32 equal to the checkpoint's\n\n{}", table.markdown()));
    out
}

fn as_json(report: &Verified) -> String {
    let distance = |it: &Distance| {
        json!({
            "name": it.name, "format": it.format, "bits_per_weight": it.bits, "matrices": it.matrices,
            "relative_error": it.relative, "worst_relative_error": it.worst,
        })
    };
    let value = json!({
        "records": report.records,
        "tensors": report.tensors,
        "damages": report.damages.iter().map(FormatError::to_string).collect::<Vec<_>>(),
        "distances": report.distances.iter().map(distance).collect::<Vec<_>>(),
    });
    format!("{value}\n")
}
