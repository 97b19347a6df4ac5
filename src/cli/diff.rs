//! `waste diff`: two plans side by side, and whether the second is worse.

use std::path::PathBuf;

use clap::Args;
use waste::report::diff::{Pair, Side, diff};

use super::args::Form;
use super::cx::Cx;
use super::error::CliError;
use super::open;

/// Arguments of `waste diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The plan before
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The plan after
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Exit with 3 if memory, bytes, operations, steps or barriers grew by more than this part, such as 1%
    #[arg(long, value_name = "P", value_parser = parse_percent)]
    fail_above: Option<f64>,
    /// The form of the result
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value = "text")]
    form: Form,
}

/// `1%`, `0.5%` or `1`, as a part of one.
fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end().parse::<f64>().ok();
    let percent = number.filter(|it| it.is_finite() && *it >= 0.0);
    percent.map(|it| it / 100.0).ok_or_else(|| "expected a percentage such as 1%".to_owned())
}

pub(crate) fn run(args: &DiffArgs, cx: &Cx) -> Result<(), CliError> {
    let (a, b) = (open::look_at_plan(&args.a)?, open::look_at_plan(&args.b)?);
    let found = diff(Side { plan: a.plan(), ir: a.ir() }, Side { plan: b.plan(), ir: b.ir() });
    match args.form {
        Form::Text => cx.print(&found.text())?,
        Form::Json => cx.print(&format!("{}\n", found.json()))?,
    }
    let Some(limit) = args.fail_above else { return Ok(()) };
    let worse = found.worse(limit);
    if worse.is_empty() {
        return Ok(());
    }
    let grown: Vec<String> = worse.iter().map(|it| grown(it)).collect();
    let percent = limit * 100.0;
    Err(CliError::Difference(format!("grown by more than {percent} %: {}", grown.join(", "))))
}

fn grown(it: &Pair) -> String {
    if it.a == 0 {
        format!("{} (new)", it.name)
    } else {
        format!("{} (+{:.2} %)", it.name, 100.0 * it.growth())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_parts() {
        assert_eq!(parse_percent("1%"), Ok(0.01));
        assert_eq!(parse_percent(" 2.5 % "), Ok(0.025));
        assert_eq!(parse_percent("0"), Ok(0.0));
        for bad in ["", "%", "-1%", "inf", "one"] {
            assert!(parse_percent(bad).is_err(), "{bad}");
        }
    }
}
