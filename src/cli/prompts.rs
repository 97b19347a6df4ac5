//! What is to be continued: from flags, a file or stdin.
//!
//! A file of prompts has one a line: text, or a JSON object `{"prompt": "…"}` or `{"tokens": [1, 2]}`, with `"n"` for a
//! budget of its own. Empty lines are skipped.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use waste::generate::Prompt;
use waste::text::{SamplerOptions, Tokenizer};

use super::args::ids_in;
use super::error::CliError;
use super::files::read_text;

/// Prompts and their budgets.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PromptArgs {
    /// A text to continue, or - for stdin; repeatable
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT", allow_hyphen_values = true)]
    pub(crate) prompt: Vec<String>,
    /// A file with a prompt a line: text, or {"prompt": "…", "n": 5} or {"tokens": [1, 2]}; - for stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Token ids to continue, such as "1 2 3"; repeatable
    #[arg(long, value_name = "IDS")]
    pub(crate) tokens: Vec<String>,
    /// Most tokens to add; once, or once for each prompt
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value = "256")]
    pub(crate) n: Vec<u32>,
}

/// A prompt as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    source: Source,
    budget: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Text(String),
    Ids(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    tokens: Option<Vec<u32>>,
    n: Option<u32>,
}

impl PromptArgs {
    /// Whether nothing was asked for.
    pub(crate) fn is_empty(&self) -> bool {
        self.prompt.is_empty() && self.prompts.is_none() && self.tokens.is_empty()
    }

    /// All prompts in the order: texts, file, ids.
    ///
    /// # Errors
    /// If there is none, a file cannot be read, or the number of budgets fits nothing.
    pub(crate) fn given(&self) -> Result<Vec<Given>, CliError> {
        let mut all = Vec::new();
        for text in &self.prompt {
            let text = if text == "-" { read_text(Path::new("-"))? } else { text.clone() };
            all.push(Given { source: Source::Text(text), budget: None });
        }
        if let Some(path) = &self.prompts {
            let text = read_text(path)?;
            let lines = (1..).zip(text.lines()).filter(|it| !it.1.trim().is_empty());
            for (number, line) in lines {
                all.push(
                    parse_line(line).map_err(|err| {
                        CliError::Input(format!("{}: line {number}: {err}", path.display()))
                    })?,
                );
            }
        }
        for text in &self.tokens {
            all.push(Given { source: Source::Ids(ids_in(text).map_err(CliError::Usage)?), budget: None });
        }
        if all.is_empty() {
            return Err(CliError::Usage("nothing to continue: give -p, --prompts or --tokens".into()));
        }
        self.set_budgets(&mut all)?;
        Ok(all)
    }

    fn set_budgets(&self, all: &mut [Given]) -> Result<(), CliError> {
        let budget = |index: usize| match self.n[..] {
            [one] => Some(one),
            ref each if each.len() == all.len() => Some(each[index]),
            _ => None,
        };
        let budgets: Option<Vec<u32>> = (0..all.len()).map(budget).collect();
        let budgets = budgets.ok_or_else(|| {
            CliError::Usage(format!("-n is given {} times for {} prompts", self.n.len(), all.len()))
        })?;
        all.iter_mut().zip(budgets).for_each(|(it, n)| it.budget = it.budget.or(Some(n)));
        Ok(())
    }
}

fn parse_line(line: &str) -> Result<Given, String> {
    if !line.trim_start().starts_with('{') {
        return Ok(Given { source: Source::Text(line.to_owned()), budget: None });
    }
    let line: Line = serde_json::from_str(line).map_err(|err| err.to_string())?;
    let source = match (line.prompt, line.tokens) {
        (Some(text), None) => Source::Text(text),
        (None, Some(ids)) => Source::Ids(ids),
        _ => return Err("expected either \"prompt\" or \"tokens\"".to_owned()),
    };
    Ok(Given { source, budget: line.n })
}

impl Given {
    /// The prompt in ids: an empty one begins with what the model begins texts with.
    ///
    /// # Errors
    /// If a text is given and there is no tokenizer.
    pub(crate) fn prompt(
        &self,
        tokenizer: Option<&Tokenizer>,
        sampling: SamplerOptions,
    ) -> Result<Prompt, CliError> {
        let mut ids = match (&self.source, tokenizer) {
            (Source::Ids(ids), _) => ids.clone(),
            (Source::Text(text), Some(tokenizer)) => tokenizer.encode(text)?,
            (Source::Text(_), None) => {
                return Err(CliError::Input(
                    "the model has no tokenizer: give --tokens instead of text".into(),
                ));
            }
        };
        if ids.is_empty() {
            ids.extend(tokenizer.and_then(Tokenizer::bos));
        }
        Ok(Prompt { ids, history: 0, budget: self.budget, sampling })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn args(tokens: &[&str], n: &[u32]) -> PromptArgs {
        let tokens = tokens.iter().map(|it| (*it).to_owned()).collect();
        PromptArgs { tokens, n: n.to_vec(), ..PromptArgs::default() }
    }

    #[test]
    fn budgets_are_one_for_all_or_one_each() {
        let budgets = |n: &[u32]| {
            let given = args(&["1 2", "3,4"], n).given()?;
            Ok::<_, CliError>(given.iter().map(|it| it.budget.unwrap()).collect::<Vec<_>>())
        };
        assert_eq!(budgets(&[7]).unwrap(), [7, 7]);
        assert_eq!(budgets(&[0, 9]).unwrap(), [0, 9]);
        assert_eq!(budgets(&[1, 2, 3]).unwrap_err().to_string(), "-n is given 3 times for 2 prompts");
    }

    #[test]
    fn a_line_is_text_or_an_object() {
        let text = |it: &str| Source::Text(it.to_owned());
        let line = parse_line(" a b").unwrap();
        assert_eq!(line, Given { source: text(" a b"), budget: None });
        let line = parse_line(r#"{"prompt": "x\n", "n": 3}"#).unwrap();
        assert_eq!(line, Given { source: text("x\n"), budget: Some(3) });
        let line = parse_line(r#"{"tokens": [1, 2]}"#).unwrap();
        assert_eq!(line, Given { source: Source::Ids(vec![1, 2]), budget: None });
        for bad in ["{", r#"{"n": 3}"#, r#"{"prompt": "a", "tokens": []}"#, r#"{"promt": "a"}"#] {
            assert!(parse_line(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_are_numbers() {
        let ids = |text: &str| args(&[text], &[1]).given().map(|it| it[0].source.clone());
        for (text, want) in [(" 1 2,3,\n4 ", vec![1, 2, 3, 4]), ("[1, 2]", vec![1, 2]), ("", Vec::new())] {
            assert_eq!(ids(text).unwrap(), Source::Ids(want), "{text}");
        }
        assert_eq!(ids("1 x\u{1b}[2J").unwrap_err().to_string(), "'x\\u{1b}' is no token id");
        assert!(ids("-1").is_err() && ids("4294967296").is_err());
    }
}
