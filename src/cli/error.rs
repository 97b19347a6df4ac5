//! What ends a command, the line it prints and its exit code.
//!
//! Invariants: one line, `waste: …`, on stderr; every code is one of those listed in `main.rs`.

use std::error::Error;
use std::process::ExitCode;

use waste::cache::CacheError;
use waste::chat::ChatError;
use waste::compile::CompileError;
use waste::convert::ConvertError;
use waste::formats::{FormatError, shown};
use waste::generate::GenerateError;
use waste::models::ModelError;
use waste::text::TextError;
use waste_plan::file::FileError;
use waste_runtime::RuntimeError;

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The command line asks for something that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A file or text given by the user is not usable.
    #[error("{0}")]
    Input(String),
    /// A check found a difference.
    #[error("{0}")]
    Difference(String),
    /// More memory is needed than there is or than is allowed.
    #[error("{0}")]
    Memory(String),
    /// Ctrl-C; what was printed stays.
    #[error("interrupted")]
    Interrupted,
    /// Stdout cannot be written.
    #[error("stdout: {0}")]
    Output(std::io::Error),
    /// Model files.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Architectures.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Tokenizers and samplers.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Compiling.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// Plan files.
    #[error(transparent)]
    File(#[from] FileError),
    /// Executing.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// Generating.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// Conversations.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// Converting.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// The cache of plans.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl CliError {
    /// A file that the system refuses.
    pub(crate) fn io(path: &std::path::Path, err: &std::io::Error) -> Self {
        Self::Input(format!("{}: {err}", shown(&path.to_string_lossy())))
    }

    /// The exit code, as `main.rs` lists them.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Output(err) if err.kind() == std::io::ErrorKind::BrokenPipe => 0,
            Self::Usage(_) => 2,
            Self::Difference(_) => 3,
            _ if self.is_interrupt() => 130,
            _ if self.is_memory() => 4,
            _ => 1,
        }
    }

    /// Whether a weight packed into a plan is not what was packed.
    pub(crate) fn is_damaged_weight(&self) -> bool {
        matches!(
            self,
            Self::Runtime(RuntimeError::Damaged { .. })
                | Self::Generate(GenerateError::Runtime(RuntimeError::Damaged { .. }))
        )
    }

    fn is_interrupt(&self) -> bool {
        matches!(
            self,
            Self::Interrupted
                | Self::Runtime(RuntimeError::Cancelled)
                | Self::Generate(GenerateError::Runtime(RuntimeError::Cancelled))
                | Self::Chat(ChatError::Runtime(RuntimeError::Cancelled))
        )
    }

    fn is_memory(&self) -> bool {
        let runtime =
            |it: &RuntimeError| matches!(it, RuntimeError::Memory { .. } | RuntimeError::Allocation { .. });
        match self {
            Self::Memory(_) | Self::Compile(CompileError::Memory { .. }) => true,
            Self::Runtime(err) | Self::Compile(CompileError::Runtime(err)) => runtime(err),
            Self::Generate(GenerateError::Runtime(err)) => runtime(err),
            _ => false,
        }
    }

    /// Ends the program: prints the line, if there is anything to say, and gives the code.
    pub(crate) fn report(&self) -> ExitCode {
        let is_silent = self.code() == 0 || self.is_interrupt();
        if !is_silent {
            super::cx::complain(&format!("waste: {}", chain(self)));
        }
        ExitCode::from(self.code())
    }
}

/// The message and those of its causes that it does not already quote, on one line.
fn chain(err: &dyn Error) -> String {
    let mut line = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        let text = err.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = err.source();
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: {0}")]
        struct Quotes(#[source] std::io::Error);
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Hides(#[source] std::io::Error);
        let io = || std::io::Error::other("the\ncause");
        assert_eq!(chain(&Quotes(io())), "outer: the cause");
        assert_eq!(chain(&Hides(io())), "outer: the cause");
    }

    #[test]
    fn codes_follow_the_kind() {
        let memory = || RuntimeError::Memory { needs: 2, limit: 1 };
        let pipe = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let cases = [
            (CliError::Usage(String::new()), 2),
            (CliError::Input(String::new()), 1),
            (CliError::Difference(String::new()), 3),
            (CliError::Interrupted, 130),
            (CliError::Output(pipe), 0),
            (CliError::Runtime(memory()), 4),
            (CliError::Compile(CompileError::Runtime(memory())), 4),
            (CliError::Generate(GenerateError::Runtime(memory())), 4),
            (CliError::Runtime(RuntimeError::Cancelled), 130),
            (CliError::Runtime(RuntimeError::Panicked), 1),
        ];
        for (err, code) in cases {
            assert_eq!(err.code(), code, "{err:?}");
        }
    }
}
