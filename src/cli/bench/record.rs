//! A measured test in the forms of llama-bench: its table, and its field names in JSON and CSV, with a few of our own.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use waste::report::stats::mean_and_deviation;
use waste::report::table::{Align, Table, csv_cell};
use waste::report::units::{MIB, bytes, count, float, short_count};
use waste_plan::schema::Plan;
use waste_runtime::sys::Machine;

use super::{Measured, Profiled, Setup};

/// The form of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TableForm {
    /// A Markdown table.
    Md,
    /// Comma-separated values.
    Csv,
    /// One JSON array.
    Json,
    /// A JSON object a line, as tests end.
    Jsonl,
}

/// One line of the result.
pub(super) struct Record {
    measured: Measured,
    profile: Vec<Profiled>,
    model: String,
    size: u64,
    params: u64,
    backend: String,
    threads: usize,
    /// Tokens a second of each repetition.
    rates: Vec<f64>,
    /// Every field but the samples, in llama-bench's order where it has them.
    fields: Vec<(&'static str, Value)>,
}

impl Record {
    pub(super) fn new(
        plan: &Plan,
        path: &Path,
        setup: &Setup,
        chunk: u32,
        measured: Measured,
        profile: Vec<Profiled>,
    ) -> Self {
        let tokens = f64::from(measured.test.tokens());
        let rates = measured.nanos.iter().map(|it| tokens * 1e9 / float((*it).max(1))).collect();
        let mut record = Self {
            model: model_type(plan),
            size: plan.model.source_bytes,
            params: plan.model.params,
            backend: setup.backend(),
            threads: setup.options.threads,
            rates,
            measured,
            profile,
            fields: Vec::new(),
        };
        record.fields = record.all_fields(plan, path, chunk);
        record
    }

    fn all_fields(&self, plan: &Plan, path: &Path, chunk: u32) -> Vec<(&'static str, Value)> {
        let nanos: Vec<f64> = self.measured.nanos.iter().map(|it| float(*it)).collect();
        let (avg_ns, stddev_ns) = mean_and_deviation(&nanos);
        let (avg_ts, stddev_ts) = mean_and_deviation(&self.rates);
        let test = self.measured.test;
        vec![
            ("build_commit", json!(env!("CARGO_PKG_VERSION"))),
            ("build_number", json!(0)),
            ("cpu_info", json!(Machine::detect().cpu_name.unwrap_or_default())),
            ("gpu_info", json!("")),
            ("backends", json!(self.backend)),
            ("model_filename", json!(path.to_string_lossy())),
            ("model_type", json!(self.model)),
            ("model_size", json!(self.size)),
            ("model_n_params", json!(self.params)),
            ("n_batch", json!(chunk)),
            ("n_ubatch", json!(chunk)),
            ("n_threads", json!(self.threads)),
            ("type_k", json!(plan.options.kv.name())),
            ("type_v", json!(plan.options.kv.name())),
            ("n_gpu_layers", json!(0)),
            ("n_prompt", json!(test.prompt)),
            ("n_gen", json!(test.gen_tokens)),
            ("n_depth", json!(test.depth)),
            ("test_time", json!(utc(SystemTime::now()))),
            ("avg_ns", json!(rounded(avg_ns))),
            ("stddev_ns", json!(rounded(stddev_ns))),
            ("avg_ts", json!(avg_ts)),
            ("stddev_ts", json!(stddev_ts)),
            ("math", json!(plan.options.math.name())),
            ("memory_bytes", json!(self.measured.cost.memory())),
            ("flops", json!(self.measured.cost.flops)),
            ("gb_s", json!(self.gigabytes())),
            ("roof_gb_s", json!(self.measured.roof.map(|it| it / 1e9))),
            ("peak_bytes", json!(self.measured.peak)),
        ]
    }

    /// Predicted bytes of a repetition ÷ the mean time, in 10⁹ bytes a second.
    fn gigabytes(&self) -> f64 {
        let total: u64 = self.measured.nanos.iter().sum();
        let bytes = float(self.measured.cost.memory()) * float(self.measured.nanos.len() as u64);
        bytes / float(total.max(1))
    }

    /// One JSON object with a line feed.
    pub(super) fn json_line(&self) -> String {
        format!("{}\n", self.json())
    }

    /// A JSON object, its fields in their order.
    fn json(&self) -> String {
        let mut fields = self.fields.clone();
        fields.push(("samples_ns", json!(self.measured.nanos)));
        fields.push(("samples_ts", json!(self.rates)));
        if !self.profile.is_empty() {
            fields.push(("profile", self.profile.iter().map(|it| it.json(self.measured.roofs())).collect()));
        }
        let members: Vec<String> =
            fields.iter().map(|(name, value)| format!("{}: {value}", json!(name))).collect();
        format!("{{{}}}", members.join(", "))
    }

    fn cells(&self) -> [String; 10] {
        let (mean, deviation) = mean_and_deviation(&self.rates);
        let or_dash = |it: Option<String>| it.unwrap_or_else(|| "-".to_owned());
        [
            self.model.clone(),
            bytes(self.size),
            count(self.params),
            self.backend.clone(),
            self.threads.to_string(),
            self.measured.test.to_string(),
            format!("{mean:.2} ± {deviation:.2}"),
            format!("{:.2}", self.gigabytes()),
            or_dash(self.measured.roof.map(|it| format!("{:.0}", 1e11 * self.gigabytes() / it))),
            or_dash(self.measured.peak.map(|it| format!("{:.0}", float(it) / MIB))),
        ]
    }
}

/// All records in `form`; nothing for lines of JSON, which were printed as they came.
pub(super) fn print(records: &[Record], form: TableForm) -> String {
    match form {
        TableForm::Md => markdown(records),
        TableForm::Csv => csv(records),
        TableForm::Json => {
            let objects: Vec<String> = records.iter().map(|it| format!("  {}", it.json())).collect();
            format!("[\n{}\n]\n", objects.join(",\n"))
        }
        TableForm::Jsonl => String::new(),
    }
}

fn markdown(records: &[Record]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("model", Left),
        ("size", Right),
        ("params", Right),
        ("backend", Left),
        ("threads", Right),
        ("test", Right),
        ("t/s", Right),
        ("GB/s", Right),
        ("% roof", Right),
        ("peak MiB", Right),
    ]);
    records.iter().for_each(|it| table.row(it.cells()));
    let profiles = records.iter().flat_map(|record| {
        let of = move |it: &Profiled| {
            let roof = record.measured.roof;
            let speed = roof.map_or_else(|| "unknown".to_owned(), |it| format!("{:.2} GB/s", it / 1e9));
            let (test, threads) = (record.measured.test, record.threads);
            format!(
                "\n{test}, {threads} threads, roof {speed}: {}",
                it.markdown(roof, record.measured.roofs())
            )
        };
        record.profile.iter().map(of)
    });
    table.markdown() + &profiles.collect::<String>()
}

/// CSV with the field names of the JSON form.
fn csv(records: &[Record]) -> String {
    let line = |cells: Vec<String>| cells.iter().map(|it| csv_cell(it)).collect::<Vec<_>>().join(",") + "\n";
    let cell = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let head = records.first().map(|it| line(it.fields.iter().map(|it| it.0.to_owned()).collect()));
    let rows = records.iter().map(|it| line(it.fields.iter().map(|it| cell(&it.1)).collect()));
    head.into_iter().chain(rows).collect()
}

/// Architecture, parameters and the element type that most bytes are stored in: `llama 135M Q4_1`.
fn model_type(plan: &Plan) -> String {
    let mut stored: Vec<(&str, u64)> = Vec::new();
    for weight in &plan.weights {
        let name = weight.dtype.name();
        match stored.iter_mut().find(|it| it.0 == name) {
            Some(sum) => sum.1 += weight.bytes,
            None => stored.push((name, weight.bytes)),
        }
    }
    let most = stored.iter().max_by_key(|it| it.1).map_or("", |it| it.0);
    format!("{} {} {}", plan.model.arch, short_count(plan.model.params), most.to_uppercase())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "nanoseconds are positive and below 2^53"
)]
fn rounded(nanos: f64) -> u64 {
    nanos.round() as u64
}

/// `2026-11-30T03:41:10Z`. The date is that of the proleptic Gregorian calendar, counted in eras of 400 years that begin in
/// March, so that the leap day is a year's last.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, is_next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + is_next;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod unit {
    use std::time::Duration;

    use waste::report::cost::Cost;

    use super::super::Test;
    use super::*;

    fn record() -> Record {
        let test = Test { depth: 0, prompt: 0, gen_tokens: 10 };
        let cost = Cost { weights: 900, states: 100, others: 5, flops: 7 };
        let nanos = vec![1000, 2000];
        Record {
            model: "llama 135M Q4_1".into(),
            size: 3 << 20,
            params: 134_515_008,
            backend: "cpu:avx2".into(),
            threads: 2,
            rates: nanos.iter().map(|it| 1e10 / float(*it)).collect(),
            measured: Measured { test, nanos, cost, peak: Some(5 << 20), roof: Some(2e9), peak_flops: None },
            profile: vec![],
            fields: vec![("cpu_info", json!("a \"b\", c")), ("n_gen", json!(10))],
        }
    }

    #[test]
    fn a_row_has_mean_deviation_and_share_of_the_roof() {
        let cells = record().cells();
        let expected = ["llama 135M Q4_1", "3.00 MiB", "134.52 M", "cpu:avx2", "2", "tg10"];
        assert_eq!(cells[..6], expected);
        // 1e7 and 5e6 tokens a second; 1000 bytes in a mean of 1.5 µs; 0.667 of 2 GB/s.
        assert_eq!(cells[6..], ["7500000.00 ± 3535533.91", "0.67", "33", "5"]);
    }

    #[test]
    fn json_and_csv_keep_the_order_of_fields() {
        let json = record().json();
        assert!(
            json.starts_with("{\"cpu_info\": \"a \\\"b\\\", c\", \"n_gen\": 10, \"samples_ns\": [1000,2000]"),
            "{json}"
        );
        let parsed: Value =
            serde_json::from_str(&print(&[record(), record()], TableForm::Json)).expect("JSON");
        assert_eq!(parsed[1]["samples_ts"], json!([1e7, 5e6]));
        assert_eq!(csv(&[record()]), "cpu_info,n_gen\n\"a \"\"b\"\", c\",10\n");
    }

    #[test]
    fn times_are_utc() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_200), "2024-03-01T00:00:00Z");
        assert_eq!(at(4_102_444_800), "2100-01-01T00:00:00Z");
    }
}
