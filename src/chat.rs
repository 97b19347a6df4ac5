//! A conversation over a session: what was said, and what of it the session has read.
//!
//! Invariants
//! - each turn reads what the session has not: the ids of the new text where the template writes the conversation so far as
//!   before, else everything behind the ids that both have in common (recurrent states go back to the beginning only);
//! - the ids of an answer stay those that were chosen: they are not made again from its text, also where a turn was refused;
//! - a turn that fails, does not fit, or is interrupted before its first token, was never said;
//! - a saved conversation goes on as it would have: messages, ids, states, time and seed are in one file.
//!
//! Deliberately absent: commands and terminals (`waste chat` has them), more than one conversation a session.

use std::ops::ControlFlow;
use std::path::Path;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use waste_runtime::{RuntimeError, Session};

use crate::formats::{hex, shown};
use crate::generate::{GenerateError, Generation, Prompt, Rules, StopReason, TextRow, generate};
use crate::text::{ChatInput, ChatTemplate, Message, Rendered, SamplerOptions, TextError, Tokenizer, Zoned};

/// The row of the session that the conversation is in.
const ROW: u32 = 0;

/// Why a turn or a file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// Template or tokenizer.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A step or its rules.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The session or its file.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The conversation does not fit the plan.
    #[error("the conversation would have {needs} tokens, the plan has {ctx} positions")]
    Full {
        /// Tokens with the new turn.
        needs: usize,
        /// Positions of the plan.
        ctx: u32,
    },
    /// A saved session that is no conversation, or one under another template.
    #[error("{path}: {message}")]
    Saved {
        /// The file.
        path: String,
        /// Found and expected.
        message: String,
    },
}

/// How to answer.
#[derive(Clone, Debug)]
pub struct TurnOptions {
    /// Most tokens of the answer; `None`: until it ends or the context is full.
    pub budget: Option<u32>,
    /// How tokens are chosen; turn `i` (from 0) draws with the conversation's seed plus `i`.
    pub sampling: SamplerOptions,
    /// What ends an answer.
    pub rules: Rules,
    /// Texts that end an answer, and are not part of it.
    pub stops: Vec<String>,
}

/// What a turn came to.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What was said.
    pub text: String,
    /// Why there is no more of it.
    pub stop: StopReason,
    /// Tokens of the conversation before the answer.
    pub prompt_tokens: usize,
    /// How many of them the session had read before.
    pub kept_tokens: usize,
    /// Tokens and times.
    pub generation: Generation,
}

/// A conversation.
#[derive(Debug)]
pub struct Chat {
    session: Session,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    system: Option<String>,
    messages: Vec<Message>,
    /// The tokens of the row: the accepted ones, and what follows them and is not accepted yet.
    ids: Vec<u32>,
    /// What `ids` stand for, if the conversation is still to be continued there.
    shown: Option<Rendered>,
    now: Zoned,
    seed: u64,
}

/// What a saved session has beside tokens and states.
#[derive(Serialize, Deserialize)]
struct Note {
    /// Version of this note.
    chat: u32,
    template_sha256: String,
    now: String,
    seed: u64,
    messages: Vec<Message>,
    /// Text and mark.
    shown: Option<(String, char)>,
}

const NOTE_VERSION: u32 = 1;

impl Chat {
    /// A conversation in `session`, that begins with what `system` says, if anything. `now` is the time that a template is
    /// told, and `seed` that of sampling.
    #[must_use]
    pub fn new(
        session: Session,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        system: Option<String>,
        now: Zoned,
        seed: u64,
    ) -> Self {
        // A zone's name means nothing where its rules are not installed.
        let now = now.with_time_zone(TimeZone::fixed(now.offset()));
        let (messages, ids) = (Vec::new(), Vec::new());
        let mut chat = Self { session, tokenizer, template, system, messages, ids, shown: None, now, seed };
        chat.reset();
        chat
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// What was said so far.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The tokens so far: those that the session has read, and what follows them.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The seed of the first turn.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// From now on, another seed.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Forgets all but what the system said.
    pub fn reset(&mut self) {
        self.messages = self.system.iter().map(|it| Message::new("system", it)).collect();
        self.forget();
    }

    /// Says `text` and gives the answer, whose text goes to `sink` as it comes; the sink may end it.
    ///
    /// # Errors
    /// If the template refuses the conversation, it does not fit, or a step fails; the turn was then never said. An interrupt is
    /// no error.
    pub fn turn(
        &mut self,
        text: &str,
        options: &TurnOptions,
        sink: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ChatError> {
        let turns = self.messages.iter().filter(|it| it.role == "user").count() as u64;
        self.messages.push(Message::new("user", text));
        let seed = self.seed.wrapping_add(turns);
        let done = self.answer(SamplerOptions { seed, ..options.sampling }, options, sink);
        let was_said = matches!(&done, Ok(it) if it.stop != StopReason::Interrupted || !it.text.is_empty());
        match &done {
            Ok(answer) if was_said => self.messages.push(Message::new("assistant", &answer.text)),
            _ => drop(self.messages.pop()),
        }
        done
    }

    /// Saves conversation and session in one file, which appears whole or not at all.
    ///
    /// # Errors
    /// [`ChatError::Runtime`] if it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), ChatError> {
        let note = Note {
            chat: NOTE_VERSION,
            template_sha256: self.template_hash(),
            now: self.now.to_string(),
            seed: self.seed,
            messages: self.messages.clone(),
            shown: self.shown.as_ref().map(|it| (it.marked.clone(), it.mark)),
        };
        let note = serde_json::to_vec(&note).expect("texts and numbers can be written");
        Ok(self.session.save_with(ROW, &self.ids, &note, path)?)
    }

    /// Continues what [`Chat::save`] saved in place of this conversation.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or is of another model, shape or template, or no conversation. This one then
    /// stays as it was, though the session may have to read it again.
    pub fn load(&mut self, path: &Path) -> Result<(), ChatError> {
        let (ids, note) = self.session.restore_with(ROW, path)?;
        match self.understood(&note) {
            Ok((note, now)) => {
                (self.ids, self.now, self.seed) = (ids, now, note.seed);
                self.shown = note.shown.map(|(marked, mark)| Rendered { marked, mark });
                self.messages = note.messages;
                Ok(())
            }
            Err(message) => {
                // The row has that session's states by now: what this one's tokens came to is read again.
                self.session.clear(ROW);
                Err(ChatError::Saved { path: shown(&path.to_string_lossy()), message })
            }
        }
    }

    fn understood(&self, note: &[u8]) -> Result<(Note, Zoned), String> {
        if note.is_empty() {
            return Err("is a saved session, but no conversation".into());
        }
        let bad = |err: &dyn std::fmt::Display| format!("its conversation cannot be read: {err}");
        let note: Note = serde_json::from_slice(note).map_err(|err| bad(&err))?;
        if note.chat != NOTE_VERSION {
            return Err(format!(
                "its conversation is of version {}, this build reads {NOTE_VERSION}",
                note.chat
            ));
        }
        let here = self.template_hash();
        if note.template_sha256 != here {
            let found = &note.template_sha256;
            return Err(format!("was held under the chat template of SHA-256 {found}, this one's is {here}"));
        }
        let now = note.now.parse().map_err(|err| bad(&err))?;
        Ok((note, now))
    }

    fn answer(
        &mut self,
        sampling: SamplerOptions,
        options: &TurnOptions,
        sink: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ChatError> {
        let input = ChatInput::new(&self.messages, true, &self.now);
        let rendered = self.template.render(&input, &self.tokenizer)?;
        let ids = self.ids_of(&rendered)?;
        let ctx = self.session.plan().options.ctx;
        if ids.len() > ctx as usize {
            return Err(ChatError::Full { needs: ids.len(), ctx });
        }
        let history = self.keep(&ids);
        // What is accepted of a turn that fails is a part of these.
        self.ids.clone_from(&ids);
        self.shown = None;
        let prompt_tokens = ids.len();
        let prompt = Prompt { ids, history, budget: options.budget, sampling };
        let mut row = TextRow::new(&self.tokenizer, options.stops.clone());
        let mut text = String::new();
        let mut say = |piece: &str| {
            text.push_str(piece);
            if piece.is_empty() { ControlFlow::Continue(()) } else { sink(piece) }
        };
        let done = generate(&mut self.session, &[prompt], &options.rules, &mut |_, id| {
            let (piece, flow) = row.push(id);
            if say(&piece).is_break() { ControlFlow::Break(()) } else { flow }
        });
        let generation = match done {
            Ok(it) => it,
            Err(err) => {
                self.forget_behind(prompt_tokens);
                return Err(err.into());
            }
        };
        // A sink that wants no more has no use for the rest either.
        let _ = say(&row.finish());
        let row = &generation.rows[0];
        self.ids.extend(&row.ids);
        let marked = self.template.marked(&text, rendered.mark, &self.tokenizer.control_texts());
        let is_whole = row.stop != StopReason::Caller;
        self.shown = is_whole.then(|| Rendered { marked: rendered.marked + &marked, mark: rendered.mark });
        Ok(Answer { text, stop: row.stop, prompt_tokens, kept_tokens: history, generation })
    }

    /// The ids of `rendered`, which are those of this conversation so far where it begins with the same text.
    fn ids_of(&self, rendered: &Rendered) -> Result<Vec<u32>, TextError> {
        let before = self.shown.as_ref().filter(|it| it.mark == rendered.mark);
        let Some(more) = before.and_then(|it| rendered.marked.strip_prefix(it.marked.as_str())) else {
            return rendered.ids(&self.tokenizer);
        };
        let mut ids = self.ids.clone();
        ids.extend(Rendered { marked: more.to_owned(), mark: rendered.mark }.ids(&self.tokenizer)?);
        Ok(ids)
    }

    /// Forgets what the session has read and `ids` does not begin with; all of it, where states cannot go back. One id at least is
    /// left to read. Returns how many need not be read again.
    fn keep(&mut self, ids: &[u32]) -> usize {
        let read = &self.ids[..(self.session.len(ROW) as usize).min(self.ids.len())];
        let common = read.iter().zip(ids).take_while(|it| it.0 == it.1).count();
        self.forget_behind(common.min(ids.len().saturating_sub(1)));
        self.session.len(ROW) as usize
    }

    fn forget_behind(&mut self, len: usize) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if self.session.truncate(ROW, len).is_err() {
            self.session.clear(ROW);
        }
    }

    fn forget(&mut self) {
        self.session.clear(ROW);
        self.ids.clear();
        self.shown = None;
    }

    fn template_hash(&self) -> String {
        hex(&Sha256::digest(self.template.source()))
    }
}
