//! `waste tokenize`: a text, or a conversation in a chat template, to token ids.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use waste::embedded;
use waste::text::{ChatInput, ChatTemplate, Tokenizer, TokenizerSpec, Zoned};

use super::args::{Form, TargetArg};
use super::cx::Cx;
use super::error::CliError;
use super::files::{read_input, read_text};
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
    /// Render the conversation in FILE, JSON: an array of messages, or an object with "messages" and what else the template names
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "file", "bare"])]
    messages: Option<PathBuf>,
    /// A file with the chat template for --messages, in place of the model's own
    #[arg(long, value_name = "FILE", requires = "messages")]
    template: Option<PathBuf>,
    /// Print the rendered text of --messages in place of its ids
    #[arg(long, requires = "messages")]
    rendered: bool,
    /// The form of the result: ids on a line, or JSON with the bytes of each
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value = "text")]
    form: Form,
}

pub(crate) fn run(args: &TokenizeArgs, cx: &Cx) -> Result<(), CliError> {
    let spec = open_spec(&args.target.target, cx)?;
    if let Some(path) = &args.messages {
        return print_chat(args, path, spec, cx);
    }
    let tokenizer = spec.build()?;
    let text = match &args.text {
        Some(text) => text.clone(),
        None => read_text(&args.file)?,
    };
    let ids = if args.bare { tokenizer.encode_bare(&text)? } else { tokenizer.encode(&text)? };
    print_ids(&ids, None, &tokenizer, args.form, cx)
}

/// The conversation in the file `path`, rendered.
fn print_chat(args: &TokenizeArgs, path: &Path, spec: TokenizerSpec, cx: &Cx) -> Result<(), CliError> {
    let name = path.to_string_lossy();
    let input = ChatInput::from_json(&name, &read_input(path)?, &Zoned::now())?;
    let template = chat_template(&spec, args.template.as_deref(), &args.target.target)?;
    let tokenizer = spec.build()?;
    let rendered = template.render(&input, &tokenizer)?;
    if args.rendered && args.form == Form::Text {
        return cx.print(&rendered.text());
    }
    print_ids(&rendered.ids(&tokenizer)?, Some(&rendered.text()), &tokenizer, args.form, cx)
}

fn print_ids(
    ids: &[u32],
    rendered: Option<&str>,
    tokenizer: &Tokenizer,
    form: Form,
    cx: &Cx,
) -> Result<(), CliError> {
    if form == Form::Text {
        let words: Vec<String> = ids.iter().map(ToString::to_string).collect();
        return cx.print(&format!("{}\n", words.join(" ")));
    }
    let piece = |id: &u32| match tokenizer.control_text(*id) {
        Some(control) => json!({ "id": id, "control": control }),
        None => json!({ "id": id, "text": String::from_utf8_lossy(tokenizer.bytes_of(*id)) }),
    };
    let pieces: Vec<_> = ids.iter().map(piece).collect();
    let mut value = json!({ "ids": ids, "count": ids.len(), "tokens": pieces });
    if let Some(text) = rendered {
        value["rendered"] = text.into();
    }
    cx.print(&format!("{value}\n"))
}

/// The chat template in the file `flag`, else the one that came with the tokenizer `spec` of `target`.
///
/// # Errors
/// If there is neither, or it cannot be read or parsed.
pub(super) fn chat_template(
    spec: &TokenizerSpec,
    flag: Option<&Path>,
    target: &Path,
) -> Result<ChatTemplate, CliError> {
    let file = flag.unwrap_or(target).to_string_lossy();
    let template = match flag {
        Some(path) => ChatTemplate::for_tokenizer(&file, read_text(path)?, spec)?,
        None => spec.chat_template().cloned().ok_or_else(|| no_template(&file))?,
    };
    template.check(&file)?;
    Ok(template)
}

/// Which models can chat, where this one cannot.
fn no_template(file: &str) -> CliError {
    let own = if file == embedded::NAME {
        ", the model that ships in the program, only continues texts: it"
    } else {
        ":"
    };
    CliError::Input(format!(
        "{file}{own} has no chat template: name a model that was trained for conversations (an Instruct or Chat one: its folder or \
         .gguf), or give a template with --template"
    ))
}

/// The tokenizer of a plan or model, as data.
fn open_spec(target: &Path, cx: &Cx) -> Result<TokenizerSpec, CliError> {
    let found = if open::is_plan(target) {
        let loaded = open::look_at_plan(target)?;
        let has_text = !loaded.text().is_empty();
        has_text.then(|| TokenizerSpec::from_section(loaded.text())).transpose()?
    } else {
        TokenizerSpec::from_model(&open::open_model(target, cx)?)?
    };
    found.ok_or_else(|| CliError::Input(format!("{}: has no tokenizer", target.display())))
}
