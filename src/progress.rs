//! How far long work has come.
//!
//! Libraries report through [`Progress`]; [`Bar`] draws it on stderr, and only where stderr is a terminal.
//!
//! Deliberately absent: estimates of the work to come; the worker knows its total.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Told how much of a piece of work is done.
pub trait Progress: Sync {
    /// `done` of `total` units (bytes, as a rule) are finished.
    fn update(&self, done: u64, total: u64);
}

/// Reports to nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn update(&self, _done: u64, _total: u64) {}
}

/// A bar of bytes on stderr; nothing where stderr is no terminal. It is gone when dropped.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar named `what`, such as `packing`.
    ///
    /// # Panics
    /// Never: the template is a constant that a test parses.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        let style = ProgressStyle::with_template(TEMPLATE).expect("a constant that a test parses");
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what);
        Self { bar }
    }
}

const TEMPLATE: &str = "{msg:>12} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";

impl Progress for Bar {
    fn update(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_takes_any_numbers() {
        let bar = Bar::new("packing");
        for (done, total) in [(0, 0), (1, 2), (u64::MAX, u64::MAX), (5, 2)] {
            bar.update(done, total);
            assert_eq!((bar.bar.position(), bar.bar.length()), (done, Some(total)));
        }
    }
}
