//! `waste convert`: a checkpoint with routed experts to a container.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use waste::convert::{ConvertOptions, convert};
use waste::formats::container::{TrunkFormat, VqCode};
use waste::report::units::{bytes, float};
use waste_runtime::sys::Machine;

use super::args::whole;
use super::cx::Cx;
use super::error::CliError;
use super::files::check_output;
use super::open;

/// Arguments of `waste convert`.
#[derive(Args, Debug)]
#[command(after_help = "\
    The checkpoint is a folder in Hugging Face's layout: safetensors with a config.json, in f32, f16, bf16, fp8 (e4m3) with block scales, or MXFP4 pairs. What an interrupted \
    run has finished lies in OUT.waste.part; the same command takes it up. The same checkpoint, options and seed give the same \
    bytes. Embedding, head and routers are stored in 8 bits at least; vectors, convolutions and matrices of fewer than 4096 \
    elements in f32.")]
pub(crate) struct ConvertArgs {
    /// The checkpoint's folder, or org/repo in the local Hugging Face cache
    #[arg(value_name = "SRC_DIR")]
    source: PathBuf,
    /// The container to make, a folder that does not exist yet
    #[arg(short = 'o', long = "output", value_name = "OUT.waste")]
    output: PathBuf,
    /// How routed experts are coded: vq3r (3 × 8 bits for 8 weights), vq2r (2 × 8) or vq4p (4 × 6)
    #[arg(long, value_name = "CODE", default_value = "vq3r", value_parser = parse_code)]
    experts: VqCode,
    /// How all other matrices are stored: q8g, q4g, q3g or f32
    #[arg(long, value_name = "FORMAT", default_value = "q8g", value_parser = parse_trunk)]
    trunk: TrunkFormat,
    /// Vectors of 8 weights that the codebooks of a layer's gate, up or down are fitted to, at most
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,
    /// Threads [default: what affinity, cpuset and quota allow]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Seed of the sample and of the first centroids
    #[arg(short = 's', long, value_name = "SEED", default_value_t = 0, value_parser = whole::<u64>)]
    seed: u64,
    /// Print errors only
    #[arg(short = 'q', long)]
    quiet: bool,
}

pub(crate) fn run(args: &ConvertArgs, cx: &Cx) -> Result<(), CliError> {
    check_output(&args.output)?;
    let files = open::open_model(&args.source, cx)?;
    let options = ConvertOptions {
        experts: args.experts,
        trunk: args.trunk,
        sample: args.sample as usize,
        jobs: args.jobs.map_or_else(|| Machine::detect().default_threads().count, |it| it as usize),
        seed: args.seed,
    };
    let started = Instant::now();
    let made = convert(&files, &args.output, &options, &*cx.progress("converting", args.quiet))?;
    if !args.quiet {
        let size = made.trunk_bytes + made.expert_bytes;
        let kept =
            if made.kept > 0 { format!(" ({} were finished before)", made.kept) } else { String::new() };
        cx.note(&format!(
            "{}: {} of {}, {} layers of experts{kept} in {}, trunk {}; seed {}; {:.1} s",
            args.output.display(),
            bytes(size),
            bytes(made.source_bytes),
            made.layers,
            args.experts.name(),
            args.trunk.name(),
            args.seed,
            started.elapsed().as_secs_f64(),
        ));
        cx.note(&format!("{:.1} % of the checkpoint", 100.0 * float(size) / float(made.source_bytes.max(1))));
    }
    Ok(())
}

pub(super) fn parse_code(text: &str) -> Result<VqCode, String> {
    VqCode::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = VqCode::ALL.iter().map(|it| it.name()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

pub(super) fn parse_trunk(text: &str) -> Result<TrunkFormat, String> {
    TrunkFormat::from_name(text)
        .ok_or_else(|| format!("expected one of {}", TrunkFormat::ALL.map(TrunkFormat::name).join(", ")))
}
