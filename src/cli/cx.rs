//! What every verb may use: the environment, stdout, stderr and Ctrl-C.
//!
//! Invariants
//! - results go to stdout through [`Cx::print`], all else to stderr through [`Cx::note`];
//! - a reader of stdout that went away ends the command without a word.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use waste::progress::{Bar, Progress, Silent};

use super::error::CliError;
use crate::env::Env;

/// The surroundings of a verb.
#[derive(Debug)]
pub(crate) struct Cx {
    /// The variables in force.
    pub(crate) env: Env,
    /// Ctrl-C.
    pub(crate) interrupt: Interrupt,
}

impl Cx {
    pub(crate) fn new(env: Env) -> Self {
        Self { env, interrupt: Interrupt::default() }
    }

    /// Writes to stdout at once.
    ///
    /// # Errors
    /// If stdout is closed or full.
    pub(crate) fn print(&self, text: &str) -> Result<(), CliError> {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)
    }

    /// Writes a line to stderr.
    pub(crate) fn note(&self, line: &str) {
        complain(line);
    }

    /// Writes the beginning of a line to stderr, which somebody else will end.
    pub(crate) fn ask(&self, text: &str) {
        let mut out = std::io::stderr().lock();
        // There is nobody to tell if that fails.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// Something to show progress with: a bar named `what`, or nothing if `quiet` or stderr is no terminal.
    pub(crate) fn progress(&self, what: &'static str, quiet: bool) -> Box<dyn Progress> {
        let is_shown = !quiet && std::io::stderr().is_terminal();
        if is_shown { Box::new(Bar::new(what)) } else { Box::new(Silent) }
    }
}

/// Writes a line to stderr; there is nobody to tell if that fails.
pub(super) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Ctrl-C and SIGTERM: the running step is cancelled, and the command learns of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The flags of the sessions to cancel.
    flags: Mutex<Vec<Arc<AtomicBool>>>,
    /// An interrupt came: sessions that open later are cancelled too.
    is_hit: AtomicBool,
}

impl Interrupt {
    /// From now on an interrupt sets `flag` and no longer ends the process by itself; one that came before sets it at once.
    ///
    /// # Errors
    /// If the system refuses a handler.
    pub(crate) fn cancels(&self, flag: Arc<AtomicBool>) -> Result<(), CliError> {
        let mut flags = self.shared.flags.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = flags.is_empty();
        flag.fetch_or(self.shared.is_hit.load(Ordering::Relaxed), Ordering::Relaxed);
        flags.push(flag);
        drop(flags);
        if !is_first {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        ctrlc::set_handler(move || shared.hit()).map_err(|err| CliError::Input(format!("Ctrl-C: {err}")))
    }
}

impl Shared {
    fn hit(&self) {
        let flags = self.flags.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_hit.store(true, Ordering::Relaxed);
        flags.iter().for_each(|it| it.store(true, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_reaches_every_session() {
        let interrupt = Interrupt::default();
        let flags = [Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false))];
        interrupt.shared.flags.lock().expect("not poisoned").extend(flags.iter().cloned());
        interrupt.shared.hit();
        assert!(flags.iter().all(|it| it.load(Ordering::Relaxed)));
        let later = Arc::new(AtomicBool::new(false));
        interrupt.cancels(Arc::clone(&later)).expect("not the first");
        assert!(later.load(Ordering::Relaxed), "between two sessions");
    }
}
