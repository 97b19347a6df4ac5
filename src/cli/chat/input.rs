//! What is typed, or piped in: turns and commands.
//!
//! A line is a turn. `"""` begins one of several lines, which ends with a line that ends in `"""`. A line that begins with `/` and
//! a lower-case word is a command.
//!
//! A thread reads, so that Ctrl-C is heard while nothing comes.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use super::super::error::CliError;

/// Begins and ends a turn of several lines.
const QUOTES: &str = "\"\"\"";

/// How often an interrupt is looked for.
const LOOK: Duration = Duration::from_millis(30);

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Something to say.
    Turn(String),
    /// Forget the conversation.
    Reset,
    /// Save it.
    Save(PathBuf),
    /// Continue a saved one.
    Load(PathBuf),
    /// Print what it took.
    Stats,
    /// List the commands.
    Help,
    /// End.
    Quit,
    /// A command that there is not, or not like this.
    Unknown(String),
}

/// Lines of stdin.
pub(super) struct Lines {
    receiver: Receiver<std::io::Result<String>>,
    /// Whether somebody sits there.
    pub(super) is_terminal: bool,
}

impl Lines {
    pub(super) fn stdin() -> Self {
        let (sender, receiver) = sync_channel(1);
        let is_terminal = std::io::stdin().is_terminal();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let is_last = line.is_err();
                if sender.send(line).is_err() || is_last {
                    return;
                }
            }
        });
        Self { receiver, is_terminal }
    }

    /// The next turn or command; `None` at the end of stdin.
    ///
    /// # Errors
    /// [`CliError::Interrupted`] if `interrupt` is set while waiting; if stdin is not UTF-8, or ends within `"""`.
    pub(super) fn next(&self, interrupt: &AtomicBool) -> Result<Option<Input>, CliError> {
        loop {
            let Some(line) = self.line(interrupt)? else { return Ok(None) };
            if let Some(first) = line.trim_start().strip_prefix(QUOTES) {
                return self.quoted(first, interrupt).map(Some);
            }
            if !line.trim().is_empty() {
                return Ok(Some(parse(&line)));
            }
        }
    }

    /// The rest of a turn whose first line goes on with `first`.
    fn quoted(&self, first: &str, interrupt: &AtomicBool) -> Result<Input, CliError> {
        let mut text = first.to_owned();
        loop {
            if let Some(whole) = text.trim_end().strip_suffix(QUOTES) {
                return Ok(Input::Turn(whole.strip_prefix('\n').unwrap_or(whole).to_owned()));
            }
            let line = self.line(interrupt)?;
            let line = line.ok_or_else(|| CliError::Input(format!("stdin ends within {QUOTES}")))?;
            text.push('\n');
            text.push_str(&line);
        }
    }

    fn line(&self, interrupt: &AtomicBool) -> Result<Option<String>, CliError> {
        loop {
            match self.receiver.recv_timeout(LOOK) {
                Ok(Ok(line)) => return Ok(Some(line)),
                Ok(Err(err)) => return Err(CliError::Input(format!("stdin: {err}"))),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if interrupt.swap(false, Ordering::Relaxed) => {
                    return Err(CliError::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

fn parse(line: &str) -> Input {
    let Some(command) = line.strip_prefix('/') else { return Input::Turn(line.to_owned()) };
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    if name.is_empty() || !name.bytes().all(|it| it.is_ascii_lowercase()) {
        return Input::Turn(line.to_owned());
    }
    match (name, rest) {
        ("reset", "") => Input::Reset,
        ("stats", "") => Input::Stats,
        ("help", "") => Input::Help,
        ("quit" | "exit" | "bye", "") => Input::Quit,
        ("save" | "load", "") => Input::Unknown(format!("/{name} needs the name of a file")),
        ("save", file) => Input::Save(file.into()),
        ("load", file) => Input::Load(file.into()),
        _ => Input::Unknown(format!("there is no command '{}': /help lists them", line.trim_end())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn all(lines: &[&str]) -> Result<Vec<Input>, CliError> {
        let (sender, receiver) = sync_channel(lines.len());
        lines.iter().for_each(|it| sender.send(Ok((*it).to_owned())).unwrap());
        drop(sender);
        let (lines, calm) = (Lines { receiver, is_terminal: false }, AtomicBool::new(false));
        std::iter::from_fn(|| lines.next(&calm).transpose()).collect()
    }

    fn turn(text: &str) -> Input {
        Input::Turn(text.to_owned())
    }

    #[test]
    fn a_line_is_a_turn_unless_it_is_a_command() {
        let found =
            all(&["hi", "", "  ", "/reset", "/usr/bin is?", "/save a b.bin", " /reset", "/"]).unwrap();
        let save = Input::Save("a b.bin".into());
        assert_eq!(found, [turn("hi"), Input::Reset, turn("/usr/bin is?"), save, turn(" /reset"), turn("/")]);
        for (line, part) in
            [("/rset", "no command '/rset'"), ("/load ", "/load needs"), ("/stats x", "no command")]
        {
            let Input::Unknown(text) = parse(line) else { panic!("{line}") };
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn quotes_hold_several_lines() {
        let found = all(&["\"\"\"", "a", "", "/b", "\"\"\"", "\"\"\"x\"\"\"", "\"\"\"y", "z\"\"\""]).unwrap();
        assert_eq!(found, [turn("a\n\n/b\n"), turn("x"), turn("y\nz")]);
        assert!(all(&["\"\"\"a"]).unwrap_err().to_string().contains("ends within"));
    }

    #[test]
    fn an_interrupt_is_heard_while_nothing_comes() {
        let (_sender, receiver) = sync_channel(1);
        let lines = Lines { receiver, is_terminal: true };
        let err = lines.next(&AtomicBool::new(true)).unwrap_err();
        assert!(matches!(err, CliError::Interrupted));
    }
}
