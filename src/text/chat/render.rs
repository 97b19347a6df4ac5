//! The Jinja environment that templates are written for, within limits.
//!
//! Source: `_compile_jinja_template` of transformers' chat_template_utils.py: blocks are trimmed, loops can be left, `tojson`,
//! `raise_exception`, `strftime_now` and `{% generation %}` exist, and values have Python's methods.
//!
//! A template is a program from a stranger: see `limits` for what it may take.
//!
//! Deliberately absent: Python's way to print lists, and its names of booleans where `~` joins them to a text.
//!
//! Invariants
//! - the text depends on template, conversation and its time alone;
//! - a template that does not end costs a second, or 20 at most, not the session.

use std::fmt::Display;
use std::io;
use std::sync::Arc;

use jiff::Zoned;
use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, escape_formatter};

use super::input::ChatInput;
use super::limits::{Bounded, FUEL, guard_filters, method, watched};
use super::marks::Marks;
use super::template::ChatTemplate;
use crate::text::error::{Result, TextError};
use crate::text::tokenizer::Tokenizer;

/// A conversation as the model is to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// With marks.
    pub(crate) marked: String,
    pub(crate) mark: char,
}

impl Rendered {
    /// The text.
    #[must_use]
    pub fn text(&self) -> String {
        self.marked.replace(self.mark, "")
    }

    /// Its ids: the control tokens are the template's own, and nothing is put around.
    ///
    /// # Errors
    /// If the tokenizer fails on the text.
    pub fn ids(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        tokenizer.encode_marked(&self.marked, self.mark)
    }
}

/// Checks that `source` can be parsed.
pub(super) fn parse(source: &str) -> Result<()> {
    let source = without_generation_blocks(source);
    watched(move || environment(&Zoned::default()).template_from_str(&source).map(|_| ()).map_err(explain))
}

/// Renders `input`, none of whose texts becomes one of `controls`.
pub(super) fn render(template: &ChatTemplate, input: &ChatInput, controls: &[&str]) -> Result<Rendered> {
    let texts: Vec<Value> = input.variables.iter().map(|it| it.1.clone()).collect();
    let marks = Marks::new(controls, &template.source, &texts).ok_or_else(|| {
        TextError::Encode("the conversation has every one of Unicode's noncharacters".into())
    })?;
    let words = template.words.iter().map(|(name, text)| Ok((name.clone(), Value::from(text.as_str()))));
    let marked = input.variables.iter().map(|(name, value)| Ok((name.clone(), marks.value(value)?)));
    let context = words.chain(marked).collect::<std::result::Result<Value, Error>>().map_err(explain)?;
    let source = without_generation_blocks(&template.source);
    let now = input.now.clone();
    Ok(Rendered { marked: watched(move || text_of(&source, &context, &now))?, mark: marks.mark() })
}

fn text_of(source: &str, context: &Value, now: &Zoned) -> Result<String> {
    let env = environment(now);
    let template = env.template_from_str(source).map_err(explain)?;
    let mut out = Bounded::default();
    template.render_captured_to(context, &mut out).map_err(explain)?;
    String::from_utf8(out.bytes).map_err(|err| TextError::Encode(err.to_string()))
}

fn environment(now: &Zoned) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_formatter(as_python_prints);
    env.set_unknown_method_callback(method);
    guard_filters(&mut env);
    env.add_filter("tojson", super::json::tojson);
    env.add_function("raise_exception", |reason: String| -> std::result::Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{reason}")))
    });
    let now = Arc::new(now.clone());
    env.add_function("strftime_now", move |format: String| {
        let bad = |err: jiff::Error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {err}"));
        jiff::fmt::strtime::format(&format, &*now).map_err(bad)
    });
    env
}

/// Marks what a template itself says, so that it can be told from what Jinja says about it.
const REFUSAL: &str = "\u{fdd0}";

/// Python's names of the constants.
fn as_python_prints(
    out: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> std::result::Result<(), Error> {
    let name = match value.kind() {
        ValueKind::Bool if value.is_true() => "True",
        ValueKind::Bool => "False",
        ValueKind::None => "None",
        _ => return escape_formatter(out, state, value),
    };
    out.write_str(name).map_err(Error::from)
}

/// `{% generation %}` marks what an assistant said, for training: here it is a block without a meaning of its own.
fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let name_at = tag.len() - tag.trim_start_matches(['-', '+']).trim_start().len();
        let (lead, name) = tag.split_at(name_at);
        out.push_str(lead);
        let word = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        let ends = name[word.len()..].trim_start().trim_start_matches(['-', '+']).starts_with("%}");
        rest = match word {
            "generation" if ends => {
                out.push_str("if true");
                &name[word.len()..]
            }
            "endgeneration" if ends => {
                out.push_str("endif");
                &name[word.len()..]
            }
            _ => name,
        };
    }
    out.push_str(rest);
    out
}

/// Jinja's complaint with the line it is about.
fn explain(err: Error) -> TextError {
    let line = err.line();
    if err.kind() == ErrorKind::OutOfFuel {
        return TextError::TemplateLimit(format!("{}it does not end within {FUEL} steps", place(line)));
    }
    let mut cause = std::error::Error::source(&err);
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            return TextError::TemplateLimit(format!("{}{io}", place(line)));
        }
        cause = inner.source();
    }
    let detail = err.detail().unwrap_or_default();
    let reason = match detail.strip_prefix(REFUSAL) {
        Some(said) => format!("it refuses the conversation: {said}"),
        None if detail.is_empty() => err.kind().to_string(),
        None => format!("{}: {detail}", err.kind()),
    };
    TextError::Template(format!("{}{reason}", place(line)))
}

fn place(line: Option<usize>) -> impl Display {
    line.map_or_else(String::new, |it| format!("line {it}: "))
}
