//! The JSON section: the whole plan, readable with `head`, small for many layers.
//!
//! ```text
//! {"plan":{                              the Plan, with empty `steps`; one weight, state, port a line
//!  …
//! },
//! "steps":[                              one list of groups for each program, in order
//! [{"times":30,"bind":[
//! [3,10,17,…]],"steps":[                 see `fold`
//! {"kind":{"rms_norm":{…}},"reads":[{"place":{"weight":"$0"},…}],…}]}],
//! …]}
//! ```
//!
//! Invariants
//! - `decode(encode(p)) == p`, or `encode` refuses;
//! - the same plan gives the same text on every machine;
//! - decoding allocates at most a fixed multiple of the text: the steps' expanded text is bounded by it.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, Serializer};
use serde_json::value::RawValue;

use crate::schema::{Plan, Program, Step};

use super::FileError;
use super::fold::{self, Group};

/// Bytes of expanded steps: this many, and this many more for each byte of the section.
const MAX_EXPANDED: usize = 1 << 20;
const MAX_EXPANSION: usize = 256;
/// Most steps of a plan, all programs together.
const MAX_STEPS: usize = 1_000_000;

/// The text of `plan`.
///
/// # Errors
/// [`FileError::Unwritable`] if the text would not read back as `plan` (a number that is not finite).
pub(super) fn encode(plan: &Plan) -> Result<String, FileError> {
    let unwritable = |err: serde_json::Error| FileError::Unwritable { reason: format!("plan: {err}") };
    let bare = Plan { programs: plan.programs.iter().map(without_steps).collect(), ..plan.clone() };
    let mut out = br#"{"plan":"#.to_vec();
    bare.serialize(&mut Serializer::with_formatter(&mut out, Lines::default())).map_err(unwritable)?;
    let mut out = String::from_utf8(out).expect("JSON is UTF-8");
    out.push_str(",\n\"steps\":[");
    for (idx, program) in plan.programs.iter().enumerate() {
        let steps: Result<Vec<String>, _> = program.steps.iter().map(serde_json::to_string).collect();
        let steps = steps.map_err(unwritable)?;
        let groups: Vec<String> = fold::fold(&steps).iter().map(group_text).collect();
        out.push_str(if idx == 0 { "\n[" } else { ",\n[" });
        out.push_str(&groups.join(",\n"));
        out.push(']');
    }
    out.push_str("]}\n");
    match decode(out.as_bytes()) {
        Ok(read) if read == *plan => Ok(out),
        Ok(_) => Err(FileError::Unwritable { reason: "plan: a number changes when read back".to_owned() }),
        Err(err) => Err(FileError::Unwritable { reason: format!("plan: does not read back: {err}") }),
    }
}

fn without_steps(program: &Program) -> Program {
    Program { name: program.name.clone(), tokens: program.tokens, want: program.want, steps: Vec::new() }
}

fn group_text(group: &Group<'_>) -> String {
    let bind: Vec<String> = group.bind.iter().map(|all| format!("\n[{}]", all.join(","))).collect();
    let (times, bind, steps) = (group.times, bind.join(","), group.steps.join(",\n"));
    format!("{{\"times\":{times},\"bind\":[{bind}],\"steps\":[\n{steps}]}}")
}

#[derive(Deserialize)]
struct Doc<'a> {
    plan: Plan,
    #[serde(borrow)]
    steps: Vec<Vec<GroupDoc<'a>>>,
}

#[derive(Deserialize)]
struct GroupDoc<'a> {
    times: u32,
    bind: Vec<Vec<serde_json::Number>>,
    #[serde(borrow)]
    steps: Vec<&'a RawValue>,
}

/// The plan in `json`, with all steps in its programs.
///
/// # Errors
/// [`FileError::Json`] and [`FileError::Steps`].
pub(super) fn decode(json: &[u8]) -> Result<Plan, FileError> {
    let doc: Doc<'_> = serde_json::from_slice(json).map_err(|err| FileError::Json {
        line: err.line(),
        column: err.column(),
        reason: err.to_string(),
    })?;
    let mut plan = doc.plan;
    if doc.steps.len() != plan.programs.len() {
        let reason = format!("steps of {} programs, expected {}", doc.steps.len(), plan.programs.len());
        return Err(FileError::Steps { program: 0, group: 0, reason });
    }
    let mut budget = Budget {
        bytes: MAX_EXPANDED.saturating_add(json.len().saturating_mul(MAX_EXPANSION)),
        steps: MAX_STEPS,
    };
    for (program, groups) in doc.steps.iter().enumerate() {
        let steps = &mut plan.programs[program].steps;
        for (group, it) in groups.iter().enumerate() {
            expand(it, steps, &mut budget).map_err(|reason| FileError::Steps { program, group, reason })?;
        }
    }
    Ok(plan)
}

/// What may still be expanded.
struct Budget {
    bytes: usize,
    steps: usize,
}

impl Budget {
    fn take(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.steps.checked_sub(1).zip(self.bytes.checked_sub(bytes));
        (self.steps, self.bytes) = left.ok_or("expands to more than a file of this size may hold")?;
        Ok(())
    }
}

fn expand(group: &GroupDoc<'_>, out: &mut Vec<Step>, budget: &mut Budget) -> Result<(), String> {
    if group.steps.is_empty() {
        return Err("a group without steps".to_owned());
    }
    let bind: Vec<Vec<String>> =
        group.bind.iter().map(|all| all.iter().map(ToString::to_string).collect()).collect();
    let steps: Vec<&str> = group.steps.iter().map(|it| it.get()).collect();
    fold::expand(group.times as usize, &bind, &steps, |text| {
        budget.take(text.len())?;
        out.push(serde_json::from_str(text).map_err(|err| format!("step {}: {err}", out.len()))?);
        Ok(())
    })
}

/// Breaks lines in the outermost two levels and writes the rest compactly.
#[derive(Default)]
struct Lines {
    depth: usize,
    is_empty: bool,
}

const BROKEN_LEVELS: usize = 2;

impl Lines {
    fn open<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: u8) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        out.write_all(&[bracket])
    }

    fn item<W: ?Sized + io::Write>(&mut self, out: &mut W, is_first: bool) -> io::Result<()> {
        self.is_empty = false;
        if !is_first {
            out.write_all(b",")?;
        }
        self.line(out)
    }

    fn close<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: u8) -> io::Result<()> {
        let had_items = !std::mem::replace(&mut self.is_empty, false);
        let is_broken = self.depth <= BROKEN_LEVELS;
        self.depth -= 1;
        if had_items && is_broken {
            out.write_all(b"\n")?;
            out.write_all(&b"  "[..self.depth])?;
        }
        out.write_all(&[bracket])
    }

    fn line<W: ?Sized + io::Write>(&self, out: &mut W) -> io::Result<()> {
        if self.depth > BROKEN_LEVELS {
            return Ok(());
        }
        out.write_all(b"\n")?;
        out.write_all(&b"  "[..self.depth])
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b'[')
    }
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, is_first: bool) -> io::Result<()> {
        self.item(out, is_first)
    }
    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b']')
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b'{')
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, is_first: bool) -> io::Result<()> {
        self.item(out, is_first)
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b'}')
    }
}
