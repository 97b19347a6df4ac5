//! What is measured: a prompt read, or tokens generated, after a history.

use std::fmt;

use waste::random::Xoshiro256PlusPlus;
use waste::report::cost::CallShape;
use waste_runtime::Token;

use crate::cli::error::CliError;

/// One test; either `prompt` or `gen_tokens` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// Tokens accepted before it.
    pub(super) depth: u32,
    /// Tokens of the prompt.
    pub(super) prompt: u32,
    /// Tokens generated, one a step.
    pub(super) gen_tokens: u32,
}

impl fmt::Display for Test {
    /// `pp512`, `tg128 @ d4096`, as llama-bench names them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prompt {
            0 => write!(f, "tg{}", self.gen_tokens)?,
            n => write!(f, "pp{n}")?,
        }
        if 0 < self.depth { write!(f, " @ d{}", self.depth) } else { Ok(()) }
    }
}

impl Test {
    /// Tokens that are measured.
    pub(super) fn tokens(&self) -> u32 {
        self.prompt + self.gen_tokens
    }

    /// Positions that it needs.
    pub(super) fn positions(&self) -> u32 {
        self.depth + self.tokens()
    }

    /// The calls of one repetition: chunks of the prompt, the last with a row of logits; a call for each generated token.
    pub(super) fn calls(&self, chunk: u32) -> Vec<CallShape> {
        let end = self.depth + self.prompt;
        let starts = (self.depth..end).step_by(chunk.max(1) as usize);
        let part = |past: u32| {
            let tokens = chunk.min(end - past);
            CallShape { tokens, want: u32::from(past + tokens == end), past }
        };
        let generated = (end..end + self.gen_tokens).map(|past| CallShape { tokens: 1, want: 1, past });
        starts.map(part).chain(generated).collect()
    }
}

/// Every combination, prompts before generation, as llama-bench orders them.
pub(super) fn tests(prompts: &[u32], gens: &[u32], depths: &[u32]) -> Result<Vec<Test>, CliError> {
    const MOST: u32 = 1 << 24;
    if let Some(n) = prompts.iter().chain(gens).chain(depths).find(|it| MOST < **it) {
        return Err(CliError::Usage(format!("{n} tokens, at most {MOST} can be measured")));
    }
    let mut res = Vec::new();
    for depth in depths.iter().copied() {
        let prompts = prompts.iter().map(|it| Test { depth, prompt: *it, gen_tokens: 0 });
        let gens = gens.iter().map(|it| Test { depth, prompt: 0, gen_tokens: *it });
        res.extend(prompts.chain(gens).filter(|it| 0 < it.tokens()));
    }
    if res.is_empty() { Err(CliError::Usage("nothing to measure: give -p or -n".into())) } else { Ok(res) }
}

/// Tokens of row 0 with ids of a seeded generator: the same in every run.
pub(in crate::cli) fn random_ids(n: u32, vocab: u32) -> Vec<Token> {
    const SEED: u64 = 1;
    let mut random = Xoshiro256PlusPlus::from_seed(SEED);
    let mut id = || u32::try_from(random.next_u64() % u64::from(vocab.max(1))).expect("below the vocabulary");
    (0..n).map(|_| Token { row: 0, id: id() }).collect()
}

#[cfg(test)]
mod unit {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn names_are_those_of_llama_bench() {
        let names: Vec<String> =
            tests(&[512, 0], &[128], &[0, 4096]).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["pp512", "tg128", "pp512 @ d4096", "tg128 @ d4096"]);
        assert!(tests(&[0], &[0], &[0, 7]).is_err());
        assert!(tests(&[u32::MAX], &[1], &[u32::MAX]).is_err());
    }

    #[test]
    fn a_prompt_is_read_in_chunks_with_logits_at_its_end() {
        let calls = |depth, prompt, gen_tokens, chunk| {
            let test = Test { depth, prompt, gen_tokens };
            test.calls(chunk).iter().map(|it| (it.tokens, it.want, it.past)).collect::<Vec<_>>()
        };
        assert_eq!(calls(0, 600, 0, 256), [(256, 0, 0), (256, 0, 256), (88, 1, 512)]);
        assert_eq!(calls(5, 256, 0, 256), [(256, 1, 5)]);
        assert_eq!(calls(3, 0, 2, 256), [(1, 1, 3), (1, 1, 4)]);
        assert_eq!(calls(9, 0, 0, 256), []);
    }

    #[test]
    fn ids_are_the_same_every_time_and_inside_the_vocabulary() {
        let ids = random_ids(200, 50);
        assert_eq!(ids, random_ids(200, 50));
        assert!(
            ids.iter().all(|it| it.id < 50)
                && 20 < ids.iter().map(|it| it.id).collect::<std::collections::BTreeSet<_>>().len()
        );
    }
}
