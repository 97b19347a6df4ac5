//! Prompts continued over a session: ragged batches, chunked prefill, then one token a row and step.
//!
//! Invariants
//! - what a prompt becomes depends on that prompt alone: not on chunks, on its neighbours, or on when it got a row;
//! - everything is validated before the first step; a budget of zero then costs none;
//! - no step computes logits that nobody reads, and none runs for a last token;
//! - a full context ends a row with [`StopReason::ContextFull`]; nothing is shifted or forgotten;
//! - an interrupt ends all rows with what they have.
//!
//! More prompts than the plan has rows are taken in order, each as a row becomes free.
//!
//! Deliberately absent: text ([`TextRow`] turns ids into it), chat templates.

mod row;
mod text;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use waste_runtime::{RuntimeError, Session, Token};

use crate::text::{SamplerOptions, TextError};

use row::Row;
pub use text::TextRow;

/// A sequence to continue.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Its ids, at least one.
    pub ids: Vec<u32>,
    /// How many of them the session has accepted already, in the row of the prompt's own number: fewer than all.
    pub history: usize,
    /// Most ids to add; `None`: until the context is full.
    pub budget: Option<u32>,
    /// How ids are chosen. Every row has a generator of its own.
    pub sampling: SamplerOptions,
}

/// What holds for all prompts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Ids that end a row; they are not part of the continuation.
    pub stop_ids: Vec<u32>,
    /// Ids that are never chosen.
    pub excluded: Vec<u32>,
    /// Most tokens of one prefill step; `None`: what the plan takes.
    pub chunk: Option<u32>,
    /// Whether to hash the logits of each row.
    pub hash: bool,
}

/// Why a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It has as many ids as were asked for.
    Budget,
    /// The model chose this id, which ends a text.
    StopId(u32),
    /// The caller asked for it, such as at a stop string.
    Caller,
    /// The plan has no position left for the next id.
    ContextFull,
    /// The run was interrupted.
    Interrupted,
}

impl StopReason {
    /// The word in listings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::StopId(_) => "stop_id",
            Self::Caller => "stop_string",
            Self::ContextFull => "context_full",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What one prompt became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The added ids.
    pub ids: Vec<u32>,
    /// Why there are no more.
    pub stop: StopReason,
    /// SHA-256 over the logits that ids were chosen from, in order, each row as little-endian f32; if asked for.
    pub logits_sha256: Option<[u8; 32]>,
}

/// What a run did, and how long it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// In the order of the prompts.
    pub rows: Vec<Continuation>,
    /// Tokens of prompts, and the time of the steps that took them.
    pub prompt: Pace,
    /// Ids chosen from steps of one token a row, and the time of those steps.
    pub decode: Pace,
    /// Whether it was interrupted.
    pub is_interrupted: bool,
}

/// Tokens and the time they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// How many.
    pub tokens: u64,
    /// Wall time.
    pub time: Duration,
}

impl Pace {
    /// Tokens a second; 0 if there were none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub fn per_second(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if self.tokens == 0 || seconds == 0.0 { 0.0 } else { self.tokens as f64 / seconds }
    }

    fn add(&mut self, tokens: usize, since: Instant) {
        self.tokens += tokens as u64;
        self.time += since.elapsed();
    }
}

/// Why a run was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// A prompt that the plan cannot take.
    #[error("prompt {prompt}: {reason}")]
    Prompt {
        /// Its number, from 1.
        prompt: usize,
        /// Found and expected.
        reason: String,
    },
    /// An id to stop at or to exclude that does not exist.
    #[error("id {id} is outside the vocabulary of {vocab}")]
    Id {
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        vocab: u32,
    },
    /// Sampling options out of range.
    #[error(transparent)]
    Sampling(#[from] TextError),
    /// A step failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// Continues `prompts` until each one ends, and tells `sink` the prompt's index and each id as it is chosen; the sink
/// may end that row, which then keeps the id. Rows of the session are overwritten, but for the histories that prompts begin with.
///
/// # Errors
/// If a prompt or rule does not fit the plan (before any step), or a step fails. An interrupt is no error.
pub fn generate(
    session: &mut Session,
    prompts: &[Prompt],
    rules: &Rules,
    sink: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
) -> Result<Generation, GenerateError> {
    let mut rows = validate(session, prompts, rules)?;
    let mut run = Run::new(session, rules, sink);
    let waiting = rows.iter_mut().filter(|it| it.stop.is_none());
    let outcome = run.all(waiting.collect());
    let (prompt, decode) = (run.prompt, run.decode);
    let is_interrupted = match outcome {
        Ok(()) => false,
        Err(GenerateError::Runtime(RuntimeError::Cancelled)) => true,
        Err(err) => return Err(err),
    };
    let rows = rows.into_iter().map(Row::finish).collect();
    Ok(Generation { rows, prompt, decode, is_interrupted })
}

/// Refuses what cannot run, and makes a row of each prompt.
fn validate<'p>(
    session: &Session,
    prompts: &'p [Prompt],
    rules: &Rules,
) -> Result<Vec<Row<'p>>, GenerateError> {
    let vocab = session.plan().model.vocab;
    if let Some(&id) = rules.stop_ids.iter().chain(&rules.excluded).find(|it| **it >= vocab) {
        return Err(GenerateError::Id { id, vocab });
    }
    let ctx = session.plan().options.ctx as usize;
    let check = |(index, prompt): (usize, &'p Prompt)| {
        let refuse = |reason: String| Err(GenerateError::Prompt { prompt: index + 1, reason });
        if prompt.ids.is_empty() {
            return refuse("no tokens, and the model names none to begin a text with".into());
        }
        if prompt.history > 0 {
            let row = u32::try_from(index).ok().filter(|it| *it < session.plan().options.batch);
            let accepted = row.map_or(0, |it| session.len(it)) as usize;
            if accepted != prompt.history || prompt.history >= prompt.ids.len() {
                let (n, ids) = (prompt.history, prompt.ids.len());
                return refuse(format!("{n} of {ids} tokens accepted, the session has {accepted}"));
            }
        }
        if prompt.ids.len() > ctx {
            return refuse(format!("{} tokens, the plan has {ctx} positions", prompt.ids.len()));
        }
        if let Some(id) = prompt.ids.iter().find(|it| **it >= vocab) {
            return refuse(format!("id {id} is outside the vocabulary of {vocab}"));
        }
        Row::new(index, prompt, rules.hash)
    };
    prompts.iter().enumerate().map(check).collect()
}

/// The steps of one run.
struct Run<'a> {
    session: &'a mut Session,
    rules: &'a Rules,
    sink: &'a mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    batch: Vec<Token>,
    want: Vec<u32>,
    prompt: Pace,
    decode: Pace,
}

impl<'a> Run<'a> {
    fn new(
        session: &'a mut Session,
        rules: &'a Rules,
        sink: &'a mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Self {
        let (batch, want) = (Vec::new(), Vec::new());
        Self { session, rules, sink, batch, want, prompt: Pace::default(), decode: Pace::default() }
    }

    /// Gives rows of the session to `waiting` rows in order; prompts go before single tokens.
    fn all(&mut self, waiting: Vec<&mut Row<'_>>) -> Result<(), GenerateError> {
        let mut waiting = VecDeque::from(waiting);
        let mut seats: Vec<Option<&mut Row<'_>>> = Vec::new();
        seats.resize_with(self.session.plan().options.batch as usize, || None);
        loop {
            for (seat, place) in (0..).zip(&mut seats) {
                if place.is_none()
                    && let Some(row) = waiting.pop_front()
                {
                    if !row.begins_in(seat) {
                        self.session.clear(seat);
                        row.begin_anew();
                    }
                    *place = Some(row);
                }
            }
            if seats.iter().all(Option::is_none) {
                return Ok(());
            }
            self.step(&mut seats)?;
            for place in &mut seats {
                place.take_if(|it| it.stop.is_some());
            }
        }
    }

    /// One step: of prompt tokens while there are any, else of one token for each live row.
    fn step(&mut self, seats: &mut [Option<&mut Row<'_>>]) -> Result<(), GenerateError> {
        let is_prefill = seats.iter().flatten().any(|it| it.is_prefilling());
        let (most_tokens, most_want) = self.room(is_prefill);
        self.batch.clear();
        self.want.clear();
        let mut chosen = Vec::new();
        for (seat, row) in (0..).zip(seats.iter_mut()) {
            let Some(row) = row.as_mut().filter(|it| it.is_prefilling() == is_prefill) else { continue };
            let room = most_tokens - self.batch.len();
            let mut take = row.pending().len().min(room);
            let may_end = self.want.len() < most_want;
            if take == row.pending().len() && !may_end {
                take -= 1;
            }
            if take == 0 {
                continue;
            }
            self.batch.extend(row.pending()[..take].iter().map(|&id| Token { row: seat, id }));
            row.advance(take);
            if row.pending().is_empty() {
                self.want.push(u32::try_from(self.batch.len() - 1).expect("a chunk fits in 32 bits"));
                chosen.push(row);
            }
        }
        let start = Instant::now();
        self.session.step(&self.batch, &self.want)?;
        for (index, row) in chosen.into_iter().enumerate() {
            row.choose(self.session, index, self.rules, self.sink)?;
        }
        let pace = if is_prefill { &mut self.prompt } else { &mut self.decode };
        pace.add(self.batch.len(), start);
        Ok(())
    }

    /// Most tokens and most wanted rows of a step.
    fn room(&self, is_prefill: bool) -> (usize, usize) {
        let (tokens, want) = self.session.limits();
        let chunk = self.rules.chunk.unwrap_or(tokens).clamp(1, tokens);
        if is_prefill {
            return (chunk as usize, want as usize);
        }
        let decode = self.session.plan().programs.iter().find(|it| it.name == "decode");
        decode.map_or((1, 1), |it| (it.tokens as usize, it.want as usize))
    }
}
