//! `waste chat`: a conversation with a model, in its own template.

mod input;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use waste::chat::{Answer, Chat, ChatError, TurnOptions};
use waste::generate::{Continuation, Generation, Pace, StopReason};
use waste::text::{ChatTemplate, TextError, TokenizerSpec, Zoned};
use waste_runtime::LoadedPlan;

use super::args::{Form, LimitArgs, MachineArgs, SamplingArgs, ShapeArgs, TargetArg};
use super::cx::Cx;
use super::error::CliError;
use super::exec::{rules, stop_note};
use super::files::check_output;
use super::open::{self, Setup};
use super::outcome::Outcome;
use super::run::{KeepArgs, cached};
use super::tokenize::chat_template;
use input::{Input, Lines};

/// Arguments of `waste chat`.
#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    target: TargetArg,
    /// What the conversation begins with, before the first turn
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// A file with the chat template, in place of the model's own
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Most tokens of an answer [default: until it ends]
    #[arg(short = 'n', long = "max-tokens", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    n: Option<u32>,
    /// Continue the conversation in FILE, if there is one, and save it there at the end
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    keep: KeepArgs,
    /// The form of the answers: text, or a JSON object a line
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value = "text")]
    form: Form,
    /// Print answers and errors only
    #[arg(short = 'q', long)]
    quiet: bool,
}

/// The commands, for `/help`.
const HELP: &str = "/reset forgets the conversation, /save FILE keeps it, /load FILE goes on with a kept one, /stats tells what \
                    it took, /quit ends (as Ctrl-D does); \"\"\" begins and ends a turn of several lines; Ctrl-C ends an answer";

pub(crate) fn run(args: &ChatArgs, cx: &Cx) -> Result<(), CliError> {
    let start = Instant::now();
    args.session.iter().try_for_each(|it| check_output(it))?;
    let loaded = load(args, cx)?;
    let (spec, template) = template(&loaded, args)?;
    let (session, setup) = open::session(&loaded, &args.machine, &args.limits, cx)?;
    let interrupt = session.cancel_flag();
    let tokenizer = spec.build()?;
    let mut rules = rules(session.plan(), Some(&tokenizer), &args.sampling, &args.limits);
    let end = template.turn_end(&tokenizer.control_texts())?.and_then(|it| tokenizer.control_id(it));
    if args.sampling.ignore_eos {
        rules.excluded.extend(end)
    } else {
        rules.stop_ids.extend(end)
    }
    let sampling = args.sampling.options();
    let chat = Chat::new(session, tokenizer, template, args.system.clone(), Zoned::now(), sampling.seed);
    let options = TurnOptions { budget: args.n, sampling, rules, stops: args.sampling.stop.clone() };
    let load_time = start.elapsed();
    let mut talk = Talk { chat, options, args, cx, setup, total: nothing(), load_time, refused: 0 };
    if let Some(path) = args.session.as_deref().filter(|it| it.exists()) {
        talk.load(path)?;
    }
    let lines = Lines::stdin();
    if lines.is_terminal {
        talk.note(&format!(
            "waste chat: {}, {} positions; /help lists the commands",
            loaded.plan().model.name,
            loaded.plan().options.ctx
        ));
    }
    let held = talk.hold(&lines, &interrupt);
    // However it ended, what was said is kept.
    let kept = talk.keep();
    if let (Err(_), Err(err)) = (&held, &kept) {
        cx.note(&format!("waste: {err}"));
    }
    held.and(kept)?;
    talk.stats().iter().for_each(|it| talk.note(it));
    match talk.refused {
        0 => Ok(()),
        // Nobody sat there to see it.
        n if !lines.is_terminal => {
            Err(CliError::Input(format!("stdin: refused {n} of its turns and commands, see above")))
        }
        _ => Ok(()),
    }
}

/// The plan given, or that of the model given.
fn load(args: &ChatArgs, cx: &Cx) -> Result<LoadedPlan, CliError> {
    let options = args.shape.options(&args.limits, 1);
    if open::is_plan(&args.target.target) {
        return open::open_plan_as(&args.target.target, &options);
    }
    let loaded = cached(&args.target.target, &args.keep, args.quiet, &options, cx)?.loaded;
    open::note_training(loaded.plan(), args.quiet, cx);
    Ok(loaded)
}

/// The tokenizer as data, and the template: that of the flag, else the model's own.
fn template(loaded: &LoadedPlan, args: &ChatArgs) -> Result<(TokenizerSpec, ChatTemplate), CliError> {
    let target = &args.target.target;
    if loaded.text().is_empty() {
        let name = target.display();
        return Err(CliError::Input(format!("{name}: has no tokenizer, which a chat needs")));
    }
    let spec = TokenizerSpec::from_section(loaded.text())?;
    let template = chat_template(&spec, args.template.as_deref(), target)?;
    Ok((spec, template))
}

fn nothing() -> Generation {
    Generation { rows: Vec::new(), prompt: Pace::default(), decode: Pace::default(), is_interrupted: false }
}

/// A conversation and those who hold it.
struct Talk<'a> {
    chat: Chat,
    options: TurnOptions,
    args: &'a ChatArgs,
    cx: &'a Cx,
    setup: Setup,
    /// All turns together.
    total: Generation,
    load_time: Duration,
    /// Turns and commands that could not be carried out.
    refused: u32,
}

impl Talk<'_> {
    /// Takes turns until the other side ends.
    fn hold(&mut self, lines: &Lines, interrupt: &AtomicBool) -> Result<(), CliError> {
        loop {
            self.prompt(lines);
            match lines.next(interrupt)? {
                None | Some(Input::Quit) => return Ok(()),
                Some(input) => self.act(input)?,
            }
        }
    }

    /// Saves the conversation where --session says.
    fn keep(&self) -> Result<(), CliError> {
        self.args.session.iter().try_for_each(|it| Ok(self.chat.save(it)?))
    }

    fn act(&mut self, input: Input) -> Result<(), CliError> {
        match input {
            Input::Turn(text) => self.turn(&text)?,
            Input::Reset => {
                self.chat.reset();
                self.note("the conversation is forgotten");
            }
            Input::Save(path) => match self.chat.save(&path) {
                Ok(()) => self.note(&format!("saved in {}", path.display())),
                Err(err) => self.complain(&err),
            },
            Input::Load(path) => match self.load(&path) {
                Ok(()) => {}
                Err(err) => self.refuse(&err),
            },
            Input::Stats => self.stats().iter().for_each(|it| self.cx.note(it)),
            Input::Help => self.cx.note(HELP),
            Input::Unknown(why) => self.refuse(&why),
            Input::Quit => {}
        }
        Ok(())
    }

    fn turn(&mut self, text: &str) -> Result<(), CliError> {
        let is_live = self.args.form == Form::Text;
        let mut failed = None;
        let cx = self.cx;
        let done =
            self.chat.turn(
                text,
                &self.options,
                &mut |piece| match cx.print(if is_live { piece } else { "" }) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(err) => {
                        failed = Some(err);
                        ControlFlow::Break(())
                    }
                },
            );
        if let Some(err) = failed {
            return Err(err);
        }
        let answer = match done {
            Ok(it) => it,
            // What can be said differently, or is only too much, ends the turn; all else ends the program.
            Err(err @ (ChatError::Full { .. } | ChatError::Text(TextError::Template(_)))) => {
                self.complain(&err);
                return Ok(());
            }
            Err(err) => return Err(err.into()),
        };
        if !is_live {
            self.cx.print(&format!("{}\n", self.json(&answer)))?;
        } else if !answer.text.ends_with('\n') {
            self.cx.print("\n")?;
        }
        let ctx = self.chat.session().plan().options.ctx;
        match stop_note(answer.stop, ctx) {
            Some(note) if answer.stop == StopReason::ContextFull => {
                self.cx.note(&format!("waste: {note}, or /reset"))
            }
            Some(note) => self.note(&note),
            None => {}
        }
        self.count(answer.generation);
        Ok(())
    }

    fn json(&self, answer: &Answer) -> serde_json::Value {
        let generated = answer.generation.rows.first().map_or(0, |it| it.ids.len());
        json!({
            "answer": answer.text,
            "stop": answer.stop.name(),
            "prompt_tokens": answer.prompt_tokens,
            "kept_tokens": answer.kept_tokens,
            "generated_tokens": generated,
            "ids": answer.generation.rows.first().map(|it| &it.ids),
            "prompt_ms": answer.generation.prompt.time.as_secs_f64() * 1e3,
            "decode_ms": answer.generation.decode.time.as_secs_f64() * 1e3,
        })
    }

    fn count(&mut self, turn: Generation) {
        for (sum, more) in [(&mut self.total.prompt, turn.prompt), (&mut self.total.decode, turn.decode)] {
            sum.tokens += more.tokens;
            sum.time += more.time;
        }
        // An end that was told in its turn is not told again.
        let told = |it: Continuation| Continuation { stop: StopReason::Budget, ..it };
        self.total.rows.extend(turn.rows.into_iter().map(told));
    }

    fn stats(&self) -> Vec<String> {
        let session = self.chat.session();
        let outcome = Outcome {
            plan: session.plan(),
            prompts: &[],
            texts: &[],
            generation: &self.total,
            counters: session.counters(),
            experts: session.expert_counters(),
            learning: None,
            setup: &self.setup,
            seed: self.chat.seed(),
            load_time: self.load_time,
        };
        let mut lines = outcome.summary();
        let (used, ctx) = (self.chat.ids().len(), session.plan().options.ctx);
        lines.push(format!("{} messages, {used} of {ctx} positions", self.chat.messages().len()));
        lines
    }

    fn load(&mut self, path: &Path) -> Result<(), CliError> {
        self.chat.load(path)?;
        if let Some(seed) = self.args.sampling.seed {
            self.chat.set_seed(seed);
        }
        let n = self.chat.messages().len();
        self.note(&format!(
            "goes on with {}: {n} messages, {} tokens",
            path.display(),
            self.chat.ids().len()
        ));
        Ok(())
    }

    fn prompt(&self, lines: &Lines) {
        if lines.is_terminal && !self.args.quiet {
            self.cx.ask("> ");
        }
    }

    fn note(&self, line: &str) {
        if !self.args.quiet {
            self.cx.note(line);
        }
    }

    fn complain(&mut self, err: &ChatError) {
        let hint = if matches!(err, ChatError::Full { .. }) {
            ": /reset, or compile with a larger --ctx"
        } else {
            ""
        };
        self.refuse(&format!("{err}{hint}"));
    }

    fn refuse(&mut self, why: &dyn std::fmt::Display) {
        self.refused += 1;
        self.cx.note(&format!("waste: {why}"));
    }
}
