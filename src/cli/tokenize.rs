//! `waste tokenize`: text to token ids.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use waste::text::{Tokenizer, TokenizerSpec};

use super::args::{Form, TargetArg, read_text};
use super::cx::Cx;
use super::error::CliError;
use super::open;

/// Arguments of `waste tokenize`.
#[derive(Args, Debug)]
pub(crate) struct TokenizeArgs {
    #[command(flatten)]
    target: TargetArg,
    /// The text [default: --file, or stdin]
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    text: Option<String>,
    /// A file with the text, - for stdin
    #[arg(short = 'f', long, value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Without what the model puts before and after a text
    #[arg(long)]
    bare: bool,
    /// The form of the result: ids on a line, or JSON with the bytes of each
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value = "text")]
    form: Form,
}

pub(crate) fn run(args: &TokenizeArgs, cx: &Cx) -> Result<(), CliError> {
    let tokenizer = open_tokenizer(&args.target.target, cx)?;
    let text = match &args.text {
        Some(text) => text.clone(),
        None => read_text(&args.file)?,
    };
    let ids = if args.bare { tokenizer.encode_bare(&text)? } else { tokenizer.encode(&text)? };
    if args.form == Form::Text {
        let words: Vec<String> = ids.iter().map(ToString::to_string).collect();
        return cx.print(&format!("{}\n", words.join(" ")));
    }
    let piece = |id: &u32| match tokenizer.control_text(*id) {
        Some(control) => json!({ "id": id, "control": control }),
        None => json!({ "id": id, "text": String::from_utf8_lossy(tokenizer.bytes_of(*id)) }),
    };
    let pieces: Vec<_> = ids.iter().map(piece).collect();
    cx.print(&format!("{}\n", json!({ "ids": ids, "count": ids.len(), "tokens": pieces })))
}

/// The tokenizer of a plan or model.
fn open_tokenizer(target: &Path, cx: &Cx) -> Result<Tokenizer, CliError> {
    let found = if open::is_plan(target) {
        open::tokenizer(&open::open_plan(target)?)?
    } else {
        let spec = TokenizerSpec::from_model(&open::open_model(target, cx)?)?;
        spec.map(TokenizerSpec::build).transpose()?
    };
    found.ok_or_else(|| CliError::Input(format!("{}: has no tokenizer", target.display())))
}
