//! `waste bisect PLAN --against FILE.npz`: the first layers that compute something else than a reference's hidden states say.

use std::fmt::Write as _;

use serde_json::json;
use waste::formats::shown;
use waste::report::bisect::{Mode, is_over};
use waste::report::hidden::Hidden;
use waste::report::layers::Layer;
use waste::report::npz::Npz;
use waste::report::segments::{Segment, Segments};
use waste_runtime::{LoadedPlan, RuntimeError, StepView};

use super::{BisectArgs, calls, sessions};
use crate::cli::args::Form;
use crate::cli::cx::Cx;
use crate::cli::error::CliError;

pub(super) fn run(args: &BisectArgs, loaded: &LoadedPlan, tolerance: f64, cx: &Cx) -> Result<(), CliError> {
    let name = shown(&args.against.to_string_lossy());
    if args.tokens.is_some() || !args.lora.is_empty() {
        let flag = if args.tokens.is_some() { "--tokens" } else { "--lora" };
        return Err(CliError::Usage(format!("{flag}: {name} states its own tokens, and no weights")));
    }
    let mut npz = Npz::open(&args.against).map_err(|err| CliError::io(&args.against, &err))?;
    let hidden = Hidden::read(&mut npz, loaded.plan());
    let hidden = hidden.map_err(|err| CliError::Input(format!("{name}: {err}")))?;
    for why in &hidden.ignored {
        cx.note(&format!("waste: note: {name}: {why}: not compared"));
    }
    let segments = compared(args, loaded, &hidden, cx)?;
    let report = Report { segments: &segments, tolerance };
    match args.form {
        Form::Text => cx.print(&report.text())?,
        Form::Json => cx.print(&report.json(&hidden))?,
    }
    let Some(first) = segments.first_over(tolerance) else { return Ok(()) };
    let over = segments.seen().filter(|it| is_over(it.own_error(), tolerance)).count();
    let error = first.own_error();
    let name = described(first);
    let message =
        format!("{name}: relative error {error:.2e}, {tolerance:.0e} is allowed; segments over it: {over}");
    Err(CliError::Difference(message))
}

/// Both runs, call by call.
fn compared(args: &BisectArgs, loaded: &LoadedPlan, hidden: &Hidden, cx: &Cx) -> Result<Segments, CliError> {
    let (mut own, together) = sessions(args, loaded, cx)?;
    let mut together = Some(together);
    let mut segments = Segments::of(loaded.plan(), hidden);
    for call in calls(loaded.plan(), &hidden.ids, args.limits.chunk)? {
        let n = call.tokens.len();
        let want = [u32::try_from(n - 1).expect("tokens of a call")];
        let at = call.past..call.past + n;
        own.step_seen(&call.tokens, &want, &mut |it| segments.see(it, hidden, &at, Mode::Own))?;
        let Some(session) = &mut together else { continue };
        let mut see = |it: &StepView<'_>| segments.see(it, hidden, &at, Mode::Together);
        match session.step_seen(&call.tokens, &want, &mut see) {
            // What is not finite was seen; nothing follows from it.
            Err(RuntimeError::NotFinite { .. }) => together = None,
            done => done?,
        }
    }
    Ok(segments)
}

/// `layer 2, from hidden.2 to hidden.3 (prefill: steps 24 to 34)`.
fn described(it: &Segment) -> String {
    let from = it.from.map_or_else(|| "the tokens".to_owned(), |it| it.to_string());
    let (program, first, last) = (&it.program, it.first, it.to.step);
    format!("{}, from {from} to {} ({program}: steps {first} to {last})", of_layers(it.layers), it.to.point)
}

/// `embedding`, `layer 2`, `layers 1 to 3`, `layer 3 to the end`.
fn of_layers(layers: [Layer; 2]) -> String {
    match layers {
        [Layer::Number(a), Layer::Number(b)] if a == b => format!("layer {a}"),
        [Layer::Number(a), Layer::Number(b)] => format!("layers {a} to {b}"),
        [Layer::Begin, Layer::Begin] => "embedding".to_owned(),
        [Layer::End, Layer::End] => "the end".to_owned(),
        [a, b] => {
            let name = |it| match it {
                Layer::Begin => "embedding".to_owned(),
                Layer::Number(n) => format!("layer {n}"),
                Layer::End => "the end".to_owned(),
            };
            format!("{} to {}", name(a), name(b))
        }
    }
}

/// What was found.
struct Report<'a> {
    segments: &'a Segments,
    tolerance: f64,
}

impl Report<'_> {
    /// How much larger the error at the end is than the largest of any one segment; `None` where either says nothing.
    fn amplification(&self) -> Option<f64> {
        let times = self.segments.end()?.1 / self.segments.largest()?.own_error();
        times.is_finite().then_some(times)
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for it in self.segments.seen().filter(|it| is_over(it.own_error(), self.tolerance)) {
            let at = it.own.map_or(0, |it| it.1);
            let _ = writeln!(out, "{}: own error {:.2e}, token {at}", described(it), it.own_error());
        }
        let count = self.segments.seen().count();
        let _ = writeln!(out, "segments compared: {count}, tolerance {:.0e}", self.tolerance);
        if let Some(it) = self.segments.largest() {
            let _ = writeln!(out, "largest error of one segment: {:.2e}, {}", it.own_error(), described(it));
        }
        if let Some((point, error)) = self.segments.end() {
            let times = self.amplification().map(|it| format!(", {it:.1} times the largest of one segment"));
            let _ = writeln!(out, "end to end: {point} {error:.2e}{}", times.unwrap_or_default());
        }
        out
    }

    fn json(&self, hidden: &Hidden) -> String {
        let segment = |it: &Segment| {
            json!({
                "program": it.program,
                "name": described(it),
                "from": it.from.map(|it| it.to_string()),
                "to": it.to.point.to_string(),
                "steps": [it.first, it.to.step],
                "own": it.own_error(),
                "token": it.own.map(|it| it.1),
                "together": it.together,
            })
        };
        let end = self.segments.end();
        let value = json!({
            "tolerance": self.tolerance,
            "tokens": hidden.ids.len(),
            "first_over": self.segments.first_over(self.tolerance).map(segment),
            "end": end.map(|it| it.0.to_string()),
            "end_error": end.map(|it| it.1),
            "amplification": self.amplification(),
            "ignored": hidden.ignored,
            "segments": self.segments.seen().map(segment).collect::<Vec<_>>(),
        });
        format!("{value}\n")
    }
}
