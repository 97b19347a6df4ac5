//! One prompt on its way.

use std::ops::ControlFlow;

use sha2::{Digest, Sha256};
use waste_runtime::Session;

use super::{Continuation, GenerateError, Prompt, Rules, StopReason};
use crate::text::Sampler;

/// A prompt, what was added to it, and what the session has not seen yet.
pub(super) struct Row<'p> {
    index: usize,
    prompt: &'p Prompt,
    /// `None` once the row has ended: it holds scratch as large as the vocabulary.
    sampler: Option<Sampler>,
    ids: Vec<u32>,
    /// Tokens of prompt and continuation that are in the session's history or in the running step.
    done: usize,
    hash: Option<Sha256>,
    pub(super) stop: Option<StopReason>,
}

impl<'p> Row<'p> {
    pub(super) fn new(index: usize, prompt: &'p Prompt, hash: bool) -> Result<Self, GenerateError> {
        Ok(Self {
            index,
            prompt,
            sampler: Some(Sampler::new(prompt.sampling, 0)?),
            ids: Vec::new(),
            done: prompt.history,
            hash: hash.then(Sha256::new),
            stop: (prompt.budget == Some(0)).then_some(StopReason::Budget),
        })
    }

    /// Whether it continues what the session has in row `seat`.
    pub(super) fn begins_in(&self, seat: u32) -> bool {
        self.prompt.history > 0 && self.index == seat as usize && self.done == self.prompt.history
    }

    /// Nothing of it is in the session.
    pub(super) fn begin_anew(&mut self) {
        self.done = 0;
    }

    /// Whether tokens of the prompt are still to be taken.
    pub(super) fn is_prefilling(&self) -> bool {
        self.done < self.prompt.ids.len()
    }

    /// Tokens to be taken next.
    pub(super) fn pending(&self) -> &[u32] {
        match self.prompt.ids.get(self.done..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => &self.ids[self.done - self.prompt.ids.len()..],
        }
    }

    /// `n` more tokens are in the running step.
    pub(super) fn advance(&mut self, n: usize) {
        self.done += n;
    }

    /// Chooses the next id from wanted row `at` of the session's last step, and ends the row where that is due.
    pub(super) fn choose(
        &mut self,
        session: &Session,
        at: usize,
        rules: &Rules,
        sink: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<(), GenerateError> {
        let logits = session.logits(at);
        if let Some(hash) = &mut self.hash {
            logits.iter().for_each(|it| hash.update(it.to_le_bytes()));
        }
        let is_plain = self.prompt.sampling.temperature == 0.0 && rules.excluded.is_empty();
        let id = match &mut self.sampler {
            _ if is_plain => Some(session.next(at)),
            Some(sampler) => sampler.choose(logits, &rules.excluded),
            None => None,
        };
        let id = id.ok_or_else(|| GenerateError::Prompt {
            prompt: self.index + 1,
            reason: "every token is excluded: none is left to choose".into(),
        })?;
        self.stop = self.take(id, session, rules, sink);
        if self.stop.is_some() {
            self.sampler = None;
        }
        Ok(())
    }

    /// Adds `id`, unless it ends the text; says whether the row has ended.
    fn take(
        &mut self,
        id: u32,
        session: &Session,
        rules: &Rules,
        sink: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Option<StopReason> {
        if rules.stop_ids.contains(&id) {
            return Some(StopReason::StopId(id));
        }
        self.ids.push(id);
        let is_spent = self.prompt.budget.is_some_and(|it| self.ids.len() >= it as usize);
        if sink(self.index, id).is_break() {
            Some(StopReason::Caller)
        } else if is_spent {
            Some(StopReason::Budget)
        } else if self.done >= session.plan().options.ctx as usize {
            Some(StopReason::ContextFull)
        } else {
            None
        }
    }

    /// What became of it; a row that has not ended was interrupted.
    pub(super) fn finish(self) -> Continuation {
        let stop = self.stop.unwrap_or(StopReason::Interrupted);
        let logits_sha256 = self.hash.map(|it| it.finalize().into());
        Continuation { ids: self.ids, stop, logits_sha256 }
    }
}
