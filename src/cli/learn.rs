//! `--learn` and `--hot`: which experts earlier runs used, read before the first step, and added to afterwards.
//!
//! Where a list lies: at `--hot FILE`, else beside the plan, under its name with `.hot` at the end; so a plan in the cache of
//! `waste run` has its own there.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use waste::formats::grouped;
use waste_runtime::{Learned, LoadedPlan, Session, Warmed, experts};

use super::error::CliError;

/// Learning from run to run which experts are used.
#[derive(Args, Clone, Debug)]
pub(crate) struct LearnArgs {
    /// Read the experts first that earlier runs used most, and add what this run uses to their list
    #[arg(long)]
    learn: bool,
    /// The list of used experts [default: beside the plan, under its name with .hot]; read only, without --learn
    #[arg(long, value_name = "FILE")]
    hot: Option<PathBuf>,
}

/// What a run does about its list.
#[derive(Debug)]
pub(crate) struct Learning {
    path: PathBuf,
    /// Whether what it uses is added.
    adds: bool,
    /// Tokens that the list was of before.
    tokens: u64,
    warmed: Warmed,
    time: Duration,
}

impl LearnArgs {
    /// The list, if it was named and will be written.
    pub(crate) fn output(&self) -> Option<&Path> {
        self.hot.as_deref().filter(|_| self.learn)
    }

    /// Reads what the list names into the cache of `session`; `None` if none is asked for.
    ///
    /// # Errors
    /// If there is no such list, or no place for it, or it is damaged or another model's, or the plan has no experts in files.
    pub(crate) fn begin(
        &self,
        session: &mut Session,
        loaded: &LoadedPlan,
    ) -> Result<Option<Learning>, CliError> {
        if !self.learn && self.hot.is_none() {
            return Ok(None);
        }
        if session.expert_counters().is_none() {
            return Err(CliError::Usage("--learn and --hot are for models with experts in files".into()));
        }
        let path = self.hot.clone().or_else(|| loaded.path().map(beside));
        let path = path.ok_or_else(|| {
            CliError::Usage(
                "--learn keeps its list beside the plan, and there is none: give --hot FILE".into(),
            )
        })?;
        let start = Instant::now();
        let list = if self.learn && !path.exists() {
            Learned::default()
        } else {
            Learned::load(loaded.plan(), &path)?
        };
        let warmed = session.warm(&list)?;
        Ok(Some(Learning { path, adds: self.learn, tokens: list.tokens, warmed, time: start.elapsed() }))
    }
}

/// Where the list of the plan at `path` lies.
fn beside(path: &Path) -> PathBuf {
    path.with_extension("hot")
}

impl Learning {
    /// Adds what `session` used to the list, as it is by now.
    ///
    /// # Errors
    /// If the list has become unreadable or cannot be written.
    pub(crate) fn end(&self, session: &Session) -> Result<(), CliError> {
        let Some(used) = session.learned().filter(|_| self.adds) else { return Ok(()) };
        let plan = session.plan();
        let mut list = if self.path.exists() { Learned::load(plan, &self.path)? } else { Learned::default() };
        list.add(&used);
        Ok(list.save(plan, &self.path)?)
    }

    /// One line for people: what was gained.
    pub(crate) fn note(&self, experts: &experts::Counters) -> String {
        if self.warmed.known == 0 {
            return format!("learned: nothing was known; the list is {}", self.path.display());
        }
        format!(
            "learned: {} of {} known experts (from {} tokens) read first in {:.0} ms, {} of them used: as many reads \
             fewer",
            grouped(self.warmed.read as u64),
            grouped(self.warmed.known as u64),
            grouped(self.tokens),
            self.time.as_secs_f64() * 1e3,
            grouped(experts.warm_hits),
        )
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "path": self.path.to_string_lossy(),
            "tokens": self.tokens,
            "known": self.warmed.known,
            "warmed": self.warmed.read,
            "ms": self.time.as_secs_f64() * 1e3,
        })
    }
}
