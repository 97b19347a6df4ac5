//! What keeps a template, which is a program from a stranger, from taking the process along.
//!
//! | what | how |
//! |---|---|
//! | steps | counted (fuel) |
//! | nesting | each level takes a step or a character, and the thread's stack has room for all of them |
//! | output | counted |
//! | memory | that of the process is watched, where the system tells it |
//! | time | watched, for steps that are long by themselves |
//! | one allocation | filters refuse sizes that no conversation has: what cannot be allocated ends a process |
//!
//! The renderer cannot be stopped between steps, so a template that takes too much is left behind to run into the end of its fuel:
//! a program does best to end then.
//!
//! Not kept: operators have no guard, since the engine offers none. A list that is multiplied by a huge number, or doubled some
//! thirty times, is lazy, but turning it around (`[::-1]`) or adding to it further asks for all of its memory at once.

use std::io::{self, Write};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use waste_runtime::sys::peak_rss;

use crate::text::error::{Result, TextError};

/// Steps of a template at most. A conversation of a thousand messages takes some hundred thousand.
pub(super) const FUEL: u64 = 1_000_000;

/// Bytes of stack: 1 KiB a step. What is nested is compared, printed and dropped level by level, which takes half of that at most;
/// the parser takes 210 bytes for each of a template. Only what is touched is memory.
const STACK: usize = (FUEL as usize) << 10;

/// Bytes of the rendered text at most.
const MAX_OUTPUT: usize = 64 << 20;

/// Bytes that the process may grow by while a template runs, beyond all it ever had.
const MAX_GROWTH: u64 = 512 << 20;

/// How long a template may run. A conversation takes milliseconds.
const MAX_TIME: Duration = Duration::from_secs(20);

/// How often memory and time are looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Items of a list, and the width of a text, that a filter takes at most.
const MAX_SIZE: usize = 1 << 20;

/// Runs `job` on a thread of its own, and gives up on it if it takes too long, or the process grows too much.
pub(super) fn watched<T: Send + 'static>(job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    watched_for(MAX_TIME, job)
}

fn watched_for<T: Send + 'static>(
    most: Duration,
    job: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = sync_channel(1);
    let (start, at_first) = (Instant::now(), peak_rss());
    let run = move || {
        // Nobody listens any more if the template was given up.
        let _ = sender.send(job());
    };
    let spawned = std::thread::Builder::new().name("chat template".into()).stack_size(STACK).spawn(run);
    let thread = spawned.map_err(|err| TextError::Encode(format!("no thread for the template: {err}")))?;
    let limit = |reason: String| Err(TextError::TemplateLimit(reason));
    loop {
        match receiver.recv_timeout(LOOK) {
            Ok(done) => {
                // It has sent its result, and ends.
                let _ = thread.join();
                return done;
            }
            Err(RecvTimeoutError::Disconnected) => return limit("it made the renderer fail".into()),
            Err(RecvTimeoutError::Timeout) => {
                let grown = peak_rss().zip(at_first).map_or(0, |(now, then)| now.saturating_sub(then));
                if grown > MAX_GROWTH {
                    return limit(format!("it takes more than {} MiB of memory", MAX_GROWTH >> 20));
                }
                if start.elapsed() > most {
                    return limit(format!("it does not end within {} s", most.as_secs_f32()));
                }
            }
        }
    }
}

/// A text that may only grow so far.
#[derive(Default)]
pub(super) struct Bounded {
    pub(super) bytes: Vec<u8>,
}

impl Write for Bounded {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + more.len() > MAX_OUTPUT {
            return Err(io::Error::other(format!("it writes more than {} MiB", MAX_OUTPUT >> 20)));
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Puts a guard before each of the engine's filters that allocates by a size it is given.
pub(super) fn guard_filters(env: &mut Environment<'_>) {
    let sized = [
        ("batch", Value::from_function(filters::batch)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("format", Value::from_function(filters::format)),
        ("groupby", Value::from_function(filters::groupby)),
        ("indent", Value::from_function(filters::indent)),
        ("list", Value::from_function(filters::list)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("reverse", Value::from_function(filters::reverse)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("slice", Value::from_function(filters::slice)),
        ("sort", Value::from_function(filters::sort)),
        ("sum", Value::from_function(filters::sum)),
        ("unique", Value::from_function(filters::unique)),
        ("zip", Value::from_function(filters::zip)),
    ];
    for (name, filter) in sized {
        env.add_filter(name, move |state: &State<'_, '_>, args: Rest<Value>| {
            args.iter().try_for_each(|it| check_size(name, it))?;
            filter.call(state, &args)
        });
    }
}

/// Python's methods of values, but for sizes that no conversation has.
pub(super) fn method(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> std::result::Result<Value, Error> {
    if name == "format" {
        check_size(name, value)?;
    }
    args.iter().try_for_each(|it| check_size(name, it))?;
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Refuses an `argument` of the filter or method `name` that is larger, or asks for more, than anything in a conversation.
fn check_size(name: &str, argument: &Value) -> std::result::Result<(), Error> {
    let is_large = match argument.kind() {
        ValueKind::Number if matches!(name, "batch" | "indent" | "slice") => {
            argument.as_usize().is_some_and(|it| it > MAX_SIZE)
        }
        ValueKind::Seq | ValueKind::Iterable => argument.len().is_some_and(|it| it > MAX_SIZE),
        // The width of a format.
        ValueKind::String if name == "format" => has_large_number(argument.as_str().unwrap_or_default()),
        ValueKind::Map if argument.is_kwargs() => {
            let mut keys = argument.try_iter()?;
            return keys.try_for_each(|key| check_size(name, &argument.get_item(&key)?));
        }
        _ => false,
    };
    if is_large {
        let reason = format!("{name}: no size above {MAX_SIZE} is taken");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    Ok(())
}

fn has_large_number(text: &str) -> bool {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|it| !it.is_empty());
    numbers.any(|it| it.parse().map_or(true, |it: usize| it > MAX_SIZE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_given_up() {
        let endless = || loop {
            std::thread::park();
        };
        let err = watched_for::<()>(Duration::from_millis(20), endless).expect_err("it never ends");
        assert_eq!(err.to_string(), "chat template: it does not end within 0.02 s");
        assert_eq!(watched(|| Ok(7)).expect("it ends"), 7);
    }

    #[test]
    fn widths_are_found_in_formats() {
        assert!(!has_large_number("%d of %3.2f, 2026-03-09"));
        assert!(has_large_number("%1048577d") && has_large_number("{:99999999999999999999}"));
    }
}
