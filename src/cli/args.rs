//! Arguments that several verbs share, and how their values are written.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use waste::compile::CompileOptions;
use waste::embedded;
use waste::text::SamplerOptions;
use waste_plan::{DType, Math, Tables};
use waste_runtime::Isa;

/// What a model is compiled for.
#[derive(Args, Clone, Debug)]
pub(crate) struct ShapeArgs {
    #[command(flatten)]
    sizes: SizeArgs,
    /// Exactly these optional passes
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    passes: Option<Vec<String>>,
}

/// [`ShapeArgs`] for a verb to which `--passes` means something else.
#[derive(Args, Clone, Debug)]
pub(crate) struct SizeArgs {
    /// What to compile for: cpu, which means any CPU
    #[arg(long, value_name = "TARGET", default_value = "cpu", value_parser = ["cpu"])]
    pub(crate) target: String,
    /// Positions of each sequence [default: what the model was trained for, at most 4096]
    #[arg(short = 'c', long, value_name = "N", value_parser = positive())]
    pub(crate) ctx: Option<u32>,
    /// Sequences side by side [default: 1, or the number of prompts]
    #[arg(short = 'b', long, value_name = "B", value_parser = positive())]
    pub(crate) batch: Option<u32>,
    /// Element type of the caches: f32 or f16
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = parse_kv)]
    pub(crate) kv: DType,
    /// Arithmetic of linears over integer weights: fixed24, fixed16, fixed8 or f32
    #[arg(long, value_name = "MATH", default_value = "fixed24", value_parser = parse_math)]
    pub(crate) math: Math,
    /// Arithmetic of lookup tables of vector-quantised experts: fixed24, f32, fixed16 or container
    #[arg(long, value_name = "TABLES", default_value = "fixed24", value_parser = parse_tables)]
    pub(crate) tables: Tables,
    /// Let each layer guess N experts of the next one and read them ahead; costs a router more a layer, changes no result
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=MOST_LOOKAHEAD))]
    pub(crate) lookahead: u32,
    /// Not these optional passes
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) disable_pass: Vec<String>,
    /// Merge this PEFT adapter (a folder with adapter_config.json) into the weights; repeatable, in order
    #[arg(long, value_name = "DIR")]
    pub(crate) lora: Vec<PathBuf>,
    /// At most N rewrites by optional passes, to find the one at fault
    #[arg(long, value_name = "N")]
    pub(crate) rewrite_limit: Option<u32>,
}

/// Limits that hold both at compile and at run time.
#[derive(Args, Clone, Debug)]
pub(crate) struct LimitArgs {
    /// Most tokens of one prefill step [default: 256, or what the plan takes]
    #[arg(long, value_name = "C", value_parser = positive())]
    pub(crate) chunk: Option<u32>,
    /// Most memory, such as 6G or 512M: refused before any work, or kept
    #[arg(long, visible_alias = "budget", value_name = "SIZE")]
    pub(crate) max_mem: Option<Size>,
    /// Experts that the cache holds [default: what serves well, and fits three quarters of the memory]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub(crate) expert_cache: Option<u32>,
}

impl ShapeArgs {
    /// The options of the compiler, for `rows` prompts where no batch is given.
    pub(crate) fn options(&self, limits: &LimitArgs, rows: u32) -> CompileOptions {
        CompileOptions { only: self.passes.clone(), ..self.sizes.options(limits, rows) }
    }
}

impl SizeArgs {
    /// As [`ShapeArgs::options`], with all optional passes.
    pub(crate) fn options(&self, limits: &LimitArgs, rows: u32) -> CompileOptions {
        CompileOptions {
            ctx: self.ctx,
            batch: self.batch.unwrap_or(rows),
            chunk: limits.chunk,
            want: None,
            kv: self.kv,
            math: self.math,
            only: None,
            disabled: self.disable_pass.clone(),
            rewrite_limit: self.rewrite_limit,
            tables: self.tables,
            lookahead: self.lookahead,
            expert_slots: limits.expert_cache.map(u64::from),
            max_mem: limits.max_mem.map(|it| it.0),
            lora: self.lora.clone(),
        }
    }
}

/// Where and how a plan runs.
#[derive(Args, Clone, Debug)]
pub(crate) struct MachineArgs {
    /// Threads [default: what affinity, cpuset and quota allow]
    #[arg(short = 't', long, value_name = "N", value_parser = positive())]
    pub(crate) threads: Option<u32>,
    /// Processors to run on, such as 0-3,8
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<Cpus>,
    /// cpu, or its best tier to use: cpu:portable, cpu:avx2, cpu:avx512, cpu:vnni, cpu:amx; on Arm cpu:neon, cpu:dotprod, cpu:i8mm
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<Backend>,
    /// Do not compare the weights' checksums before the first token
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Check every result of every step, to name the first that is not finite
    #[arg(long)]
    pub(crate) check_finite: bool,
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
}

/// How experts are read from their files.
#[derive(Args, Clone, Debug)]
pub(crate) struct StreamArgs {
    /// Threads that read experts ahead; 0 reads each when it is needed
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=64))]
    pub(crate) read_threads: u8,
    /// Read experts through the page cache, also where reading past it works
    #[arg(long)]
    pub(crate) buffered: bool,
    /// Compare the checksum of every expert that is read
    #[arg(long)]
    pub(crate) verify: bool,
    /// Read the files of experts alone: refused while others read them, and others are refused meanwhile
    #[arg(long)]
    pub(crate) exclusive_open: bool,
}

impl Default for StreamArgs {
    fn default() -> Self {
        Self { read_threads: 2, buffered: false, verify: false, exclusive_open: false }
    }
}

/// How tokens are chosen.
#[derive(Args, Clone, Debug)]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value = "0", value_parser = parse_temp)]
    pub(crate) temp: f64,
    /// Keep the K likeliest; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = whole::<usize>)]
    pub(crate) top_k: usize,
    /// Keep the fewest that reach this probability together
    #[arg(long, value_name = "P", default_value = "1", value_parser = parse_top_p)]
    pub(crate) top_p: f64,
    /// Keep those of at least this times the largest probability
    #[arg(long, value_name = "P", default_value = "0", value_parser = parse_min_p)]
    pub(crate) min_p: f64,
    /// Seed of the generator [default: 0 at temperature 0, else from the clock]
    #[arg(short = 's', long, value_name = "SEED", value_parser = whole::<u64>)]
    pub(crate) seed: Option<u64>,
    /// Never choose a token that ends the text
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// End before this text; repeatable
    #[arg(long, value_name = "STR")]
    pub(crate) stop: Vec<String>,
}

impl SamplingArgs {
    /// The options of every row's sampler.
    pub(crate) fn options(&self) -> SamplerOptions {
        let Self { temp, top_k, top_p, min_p, .. } = *self;
        let seed = self.seed.unwrap_or_else(|| if temp == 0.0 { 0 } else { seed_from_clock() });
        SamplerOptions { temperature: temp, top_k, top_p, min_p, seed }
    }
}

fn seed_from_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |it| u64::from(it.subsec_nanos()) ^ it.as_secs().rotate_left(32))
}

/// The form of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Ids separated by anything that JSON or people put between numbers; there may be none.
pub(crate) fn ids_in(text: &str) -> Result<Vec<u32>, String> {
    let separates = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']');
    let words = text.split(separates).filter(|it| !it.is_empty());
    words
        .map(|it| it.parse().map_err(|_| format!("'{}' is no token id", waste::formats::shown(it))))
        .collect()
}

/// As [`ids_in`], and there must be some.
pub(crate) fn parse_ids(text: &str) -> Result<Vec<u32>, String> {
    let ids = ids_in(text)?;
    if ids.is_empty() { Err("holds no token ids".into()) } else { Ok(ids) }
}

/// A model or plan argument.
#[derive(Args, Clone, Debug)]
pub(crate) struct TargetArg {
    /// A plan, a model's folder, .gguf, .safetensors or index, or org/repo[:quant] in the local Hugging Face cache
    #[arg(id = "model", value_name = "MODEL|PLAN", default_value = embedded::NAME)]
    pub(crate) target: PathBuf,
}

/// A number of bytes, written 123, 64K, 512M, 6G or 1T, with or without `iB`; powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_ascii_lowercase();
        let unit_at = lower.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(lower.len());
        let (number, unit) = lower.split_at(unit_at);
        let shift = match unit {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err("expected a number of bytes such as 512M or 6G".to_owned()),
        };
        let number: f64 =
            number.trim().parse().map_err(|_| "expected a number of bytes such as 6G".to_owned())?;
        let bytes = number * f64::from(shift).exp2();
        if !(0.0..18e18).contains(&bytes) {
            return Err("expected a size from 0 to 16 EiB".to_owned());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
        Ok(Self(bytes as u64))
    }
}

/// Processors, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpus(pub(crate) Vec<usize>);

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: usize = 4096;
        let number = |it: &str| it.trim().parse::<usize>().ok().filter(|it| *it < MOST);
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
                _ => return Err(format!("'{part}' is no processor below {MOST} and no range such as 0-3")),
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        match cpus.iter().find(|it| !seen.insert(**it)) {
            Some(twice) => Err(format!("processor {twice} is named twice")),
            None => Ok(Self(cpus)),
        }
    }
}

/// The device, and its best tier to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backend(pub(crate) Option<Isa>);

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || format!("expected cpu or cpu:TIER, with TIER one of {}", Isa::ALL.map(Isa::name).join(", "));
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self(None)),
            Some(("cpu", tier)) => Isa::from_name(tier).map(|it| Self(Some(it))).ok_or_else(expected),
            _ => Err(expected()),
        }
    }
}

/// More experts than a layer of any model has.
const MOST_LOOKAHEAD: i64 = 1024;

/// A number without a sign.
pub(crate) fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number from 0".to_owned())
}

pub(crate) fn positive() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

fn parse_temp(text: &str) -> Result<f64, String> {
    sampling(text, |temperature| SamplerOptions { temperature, ..SamplerOptions::GREEDY })
}

fn parse_top_p(text: &str) -> Result<f64, String> {
    sampling(text, |top_p| SamplerOptions { top_p, ..SamplerOptions::GREEDY })
}

fn parse_min_p(text: &str) -> Result<f64, String> {
    sampling(text, |min_p| SamplerOptions { min_p, ..SamplerOptions::GREEDY })
}

/// The number `text`, if a sampler takes it.
fn sampling(text: &str, options: impl Fn(f64) -> SamplerOptions) -> Result<f64, String> {
    let number = text.parse().map_err(|_| "expected a number".to_owned())?;
    options(number).check().map_err(|err| err.to_string())?;
    Ok(number)
}

fn parse_kv(text: &str) -> Result<DType, String> {
    [DType::F32, DType::F16].into_iter().find(|it| it.name() == text).ok_or("expected f32 or f16".to_owned())
}

fn parse_math(text: &str) -> Result<Math, String> {
    Math::from_name(text).ok_or_else(|| format!("expected one of {}", Math::ALL.map(Math::name).join(", ")))
}

fn parse_tables(text: &str) -> Result<Tables, String> {
    let names = || Tables::ALL.iter().map(|it| it.name()).collect::<Vec<_>>().join(", ");
    Tables::from_name(text).ok_or_else(|| format!("expected one of {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        let size = |it: &str| it.parse::<Size>().map(|it| it.0).ok();
        assert_eq!(size("123"), Some(123));
        assert_eq!(size("64K"), Some(65536));
        assert_eq!(size("1.5 GiB"), Some(3 << 29));
        for bad in ["", "x", "-1", "1X", "G", "nan", "inf", "99999999T"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn ids_come_as_json_or_as_words() {
        assert_eq!(parse_ids("[1, 2,\n3]"), Ok(vec![1, 2, 3]));
        assert_eq!(parse_ids("7 8 9\n"), Ok(vec![7, 8, 9]));
        for wrong in ["", "[]", "1 -2", "1.5", "x", "4294967296"] {
            assert!(parse_ids(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn processors_come_as_numbers_and_ranges() {
        let cpus = |it: &str| it.parse::<Cpus>().map(|it| it.0).ok();
        assert_eq!(cpus("0-2,8"), Some(vec![0, 1, 2, 8]));
        assert_eq!(cpus("5,3"), Some(vec![5, 3]));
        for bad in ["", "a", "3-1", "1,,2", "1,0-2", "0-99999999"] {
            assert_eq!(cpus(bad), None, "{bad}");
        }
    }

    #[test]
    fn samplers_take_what_makes_sense() {
        for good in ["0", "0.7", "5"] {
            assert!(parse_temp(good).is_ok(), "{good}");
        }
        for bad in ["-1", "nan", "inf", "x"] {
            assert!(
                parse_temp(bad).is_err() && parse_top_p(bad).is_err() && parse_min_p(bad).is_err(),
                "{bad}"
            );
        }
        assert_eq!((parse_top_p("0").is_ok(), parse_top_p("1").is_ok()), (false, true));
        assert_eq!((parse_min_p("0").is_ok(), parse_min_p("1.1").is_ok()), (true, false));
    }

    #[test]
    fn a_backend_names_a_tier() {
        let backend = |it: &str| it.parse::<Backend>().map(|it| it.0).ok();
        assert_eq!(backend("cpu"), Some(None));
        for isa in Isa::ALL {
            assert_eq!(backend(&format!("cpu:{}", isa.name())), Some(Some(isa)));
        }
        assert_eq!(backend("gpu"), None);
        assert_eq!(backend("cpu:sse9"), None);
    }
}
