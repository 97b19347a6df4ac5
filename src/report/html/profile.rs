//! Measured times for the page: what `waste bench --profile -o json` wrote.

use serde_json::{Value, json};
use waste_plan::schema::Plan;

use crate::report::classes::class_name;

/// Reads the records in `text` and keeps what the page shows.
///
/// # Errors
/// A sentence, if it is not such a file, holds no profile, or one of another plan.
pub(super) fn read(text: &str, plan: &Plan) -> Result<Value, String> {
    let records = records(text)?;
    let runs: Vec<Value> = records.iter().map(|it| runs(it, plan)).collect::<Result<Vec<_>, _>>()?.concat();
    if runs.is_empty() {
        return Err("it holds no profile: 'waste bench --profile -o json' makes one".into());
    }
    Ok(Value::Array(runs))
}

/// An array of records, or a record a line.
fn records(text: &str) -> Result<Vec<Value>, String> {
    let parse = |text: &str| serde_json::from_str::<Value>(text);
    match parse(text) {
        Ok(Value::Array(records)) => Ok(records),
        Ok(record @ Value::Object(_)) => Ok(vec![record]),
        Ok(_) => Err("it is not what 'waste bench -o json' writes".into()),
        Err(first) => {
            let lines = text.lines().filter(|it| !it.trim().is_empty()).map(parse);
            lines.collect::<Result<_, _>>().map_err(|_| format!("it is not JSON: {first}"))
        }
    }
}

/// The profiled programs of one record.
fn runs(record: &Value, plan: &Plan) -> Result<Vec<Value>, String> {
    let Some(profiles) = record["profile"].as_array() else { return Ok(Vec::new()) };
    let number = |name: &str| record[name].as_u64().unwrap_or(0);
    let run = |profile: &Value| {
        check(profile, plan)?;
        Ok(json!({
            "program": profile["program"],
            "calls": profile["calls"],
            "classes": profile["classes"],
            "steps": profile["step_ns"],
            "tests": [number("n_prompt"), number("n_gen"), number("n_depth")],
            "threads": number("n_threads"),
            "backend": record["backends"],
            "cpu": record["cpu_info"],
            "roof": record["roof_gb_s"],
        }))
    };
    profiles.iter().map(run).collect()
}

/// Whether every class of `profile` has as many steps in the plan.
fn check(profile: &Value, plan: &Plan) -> Result<(), String> {
    let name = profile["program"].as_str().unwrap_or("?");
    let program = plan.programs.iter().find(|it| it.name == name);
    let program = program.ok_or_else(|| format!("it is of another plan: there is no program '{name}'"))?;
    let classes = profile["classes"].as_array().ok_or("a profile has no classes")?;
    for class in classes {
        let op = class["op"].as_str().unwrap_or("?");
        let here = program.steps.iter().filter(|it| class_name(plan, it) == op).count() as u64;
        if class["steps"].as_u64() != Some(here) {
            let there = &class["steps"];
            return Err(format!(
                "it is of another plan: {name} has {there} steps of '{op}' there, {here} here"
            ));
        }
    }
    let steps = profile["step_ns"].as_array().map(Vec::len);
    match steps.filter(|it| *it != program.steps.len()) {
        Some(there) => Err(format!(
            "it is of another plan: {name} has {there} steps there, {} here",
            program.steps.len()
        )),
        None => Ok(()),
    }
}
