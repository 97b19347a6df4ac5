//! What a generation came to: for programs as JSON, for people in two lines.

use std::time::Duration;

use serde_json::{Value, json};
use waste::formats::{grouped, hex};
use waste::generate::{Continuation, Generation, Pace, Prompt, StopReason};
use waste_plan::schema::Plan;
use waste_runtime::{Counters, experts, needed_bytes_with, sys};

use super::exec::stop_note;
use super::learn::Learning;
use super::open::Setup;

/// All that is known once a generation has ended.
pub(crate) struct Outcome<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) prompts: &'a [Prompt],
    pub(crate) texts: &'a [String],
    pub(crate) generation: &'a Generation,
    pub(crate) counters: Counters,
    /// Of the expert cache, if the plan has one.
    pub(crate) experts: Option<experts::Counters>,
    /// What earlier runs taught, if that was asked for.
    pub(crate) learning: Option<&'a Learning>,
    pub(crate) setup: &'a Setup,
    pub(crate) seed: u64,
    /// From the start of the command to the first step.
    pub(crate) load_time: Duration,
}

impl Outcome<'_> {
    /// One JSON object, on one line.
    pub(crate) fn json(&self) -> String {
        let rows = self.generation.rows.iter().zip(self.prompts).zip(self.texts);
        let rows: Vec<Value> = rows.map(|((row, prompt), text)| row_json(row, prompt, text)).collect();
        let model = &self.plan.model;
        let value = json!({
            "model": { "name": model.name, "arch": model.arch, "params": model.params },
            "backend": self.setup.backend(),
            "threads": self.setup.options.threads,
            "seed": self.seed,
            "interrupted": self.generation.is_interrupted,
            "prompts": rows,
            "timings": {
                "load_ms": self.load_time.as_secs_f64() * 1e3,
                "prompt": pace_json(&self.generation.prompt),
                "decode": pace_json(&self.generation.decode),
            },
            "counters": self.counters_json(),
            "experts": self.experts.map(|it| experts_json(&it, self.step_time())),
            "learned": self.learning.map(Learning::json),
            "memory": {
                "needed_bytes": needed_bytes_with(self.plan, self.setup.options.threads, self.setup.options.experts.slots),
                "stated_peak_bytes": self.plan.memory.peak(),
                "peak_rss_bytes": sys::peak_rss(),
            },
        });
        format!("{value}\n")
    }

    /// The time of all steps.
    fn step_time(&self) -> Duration {
        self.generation.prompt.time + self.generation.decode.time
    }

    fn counters_json(&self) -> Value {
        let it = &self.counters;
        json!({
            "forwards_scheduled": it.forwards_scheduled,
            "forwards_useful": it.forwards_useful,
            "tokens": it.tokens,
            "barriers": it.barriers,
            "tiles": it.tiles,
            "weight_bytes": it.weight_bytes,
            "state_bytes": it.state_bytes,
            "allocations": it.allocations,
        })
    }

    /// Lines for people.
    pub(crate) fn summary(&self) -> Vec<String> {
        let Generation { prompt, decode, rows, .. } = self.generation;
        let generated: usize = rows.iter().map(|it| it.ids.len()).sum();
        let mut lines = Vec::new();
        let notes = rows.iter().filter_map(|it| stop_note(it.stop, self.plan.options.ctx));
        for note in notes {
            if !lines.contains(&note) {
                lines.push(note);
            }
        }
        lines.push(format!(
            "prompt {} tokens, {:.1} tokens/s; generated {generated} tokens, {:.1} tokens/s; loaded in {:.0} ms",
            prompt.tokens,
            prompt.per_second(),
            decode.per_second(),
            self.load_time.as_secs_f64() * 1e3,
        ));
        if let Some(it) = &self.experts {
            lines.push(format!(
                "experts: {} reads, {} MiB at {:.2} GB/s, {:.1} % hits; reads in flight in {:.0} % of the time that \
                 computes, {:.0} ms waited",
                grouped(it.reads),
                grouped(it.bytes.div_ceil(1 << 20)),
                it.gb_per_s(),
                it.hit_rate() * 100.0,
                it.overlap(self.step_time()) * 100.0,
                it.waiting.as_secs_f64() * 1e3,
            ));
        }
        lines.extend(self.experts.as_ref().and_then(guesses_note));
        if let (Some(learning), Some(experts)) = (self.learning, &self.experts) {
            lines.push(learning.note(experts));
        }
        lines.push(format!(
            "{}; {}; memory {} MiB; seed {}",
            self.setup.backend(),
            self.setup.threads,
            grouped(
                needed_bytes_with(self.plan, self.setup.options.threads, self.setup.options.experts.slots)
                    .div_ceil(1 << 20)
            ),
            self.seed,
        ));
        lines
    }
}

/// What guesses came to, if any were made.
fn guesses_note(it: &experts::Counters) -> Option<String> {
    let (reads, hits, losses) = (it.speculative_reads, it.speculative_hits, it.speculative_losses);
    let share = hits as f64 / reads as f64 * 100.0;
    (reads > 0).then(|| {
        let [reads, hits, losses] = [reads, hits, losses].map(grouped);
        format!("guesses: {reads} queued, {hits} used ({share:.1} %), {losses} gave way unused")
    })
}

fn experts_json(it: &experts::Counters, steps: Duration) -> Value {
    json!({
        "hits": it.hits,
        "warm_hits": it.warm_hits,
        "misses": it.misses,
        "evictions": it.evictions,
        "reads": it.reads,
        "failures": it.failures,
        "bytes": it.bytes,
        "speculative_reads": it.speculative_reads,
        "speculative_hits": it.speculative_hits,
        "speculative_losses": it.speculative_losses,
        "waiting_ms": it.waiting.as_secs_f64() * 1e3,
        "reading_ms": it.reading.as_secs_f64() * 1e3,
        "overlapped_ms": it.overlapped.as_secs_f64() * 1e3,
        "read_gb_per_s": it.gb_per_s(),
        "reading_share_of_compute": it.overlap(steps),
    })
}

fn row_json(row: &Continuation, prompt: &Prompt, text: &str) -> Value {
    let stop_id = match row.stop {
        StopReason::StopId(id) => Some(id),
        StopReason::Budget | StopReason::Caller | StopReason::ContextFull | StopReason::Interrupted => None,
    };
    json!({
        "prompt_ids": prompt.ids,
        "ids": row.ids,
        "text": text,
        "stop": row.stop.name(),
        "stop_id": stop_id,
        "logits_sha256": row.logits_sha256.map(|it| hex(&it)),
    })
}

fn pace_json(pace: &Pace) -> Value {
    json!({
        "tokens": pace.tokens,
        "ms": pace.time.as_secs_f64() * 1e3,
        "tokens_per_second": pace.per_second(),
    })
}
