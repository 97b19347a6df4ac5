//! The environment: the only place that reads variables.
//!
//! Invariants
//! - every `WASTE_` variable is the twin of a flag, and the flag wins;
//! - `waste info` prints each one in force.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use waste::formats::HubCache;

/// Every variable that is read.
const NAMES: [&str; 8] = [
    "WASTE_THREADS",
    "WASTE_BACKEND",
    "WASTE_CACHE",
    "WASTE_LOG",
    "HF_HUB_CACHE",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "HOME",
];

/// The variables that are set and not empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Env {
    set: Vec<(&'static str, OsString)>,
}

impl Env {
    /// Those of this process.
    pub(crate) fn read() -> Self {
        let var = |name| std::env::var_os(name).filter(|it| !it.is_empty()).map(|it| (name, it));
        Self { set: NAMES.into_iter().filter_map(var).collect() }
    }

    /// `WASTE_THREADS`, the twin of `--threads`.
    pub(crate) fn threads(&self) -> Option<String> {
        self.text("WASTE_THREADS")
    }

    /// `WASTE_BACKEND`, the twin of `--backend`.
    pub(crate) fn backend(&self) -> Option<String> {
        self.text("WASTE_BACKEND")
    }

    /// `WASTE_LOG`, the twin of `--log`.
    pub(crate) fn log(&self) -> Option<String> {
        self.text("WASTE_LOG")
    }

    /// Where compiled plans are kept: `WASTE_CACHE`, the twin of `--cache`, else `XDG_CACHE_HOME/waste`, else
    /// `HOME/.cache/waste`.
    pub(crate) fn plan_cache(&self) -> Option<PathBuf> {
        let own = self.path("WASTE_CACHE").map(Path::to_path_buf);
        own.or_else(|| self.path("XDG_CACHE_HOME").map(|it| it.join("waste")))
            .or_else(|| self.path("HOME").map(|it| it.join(".cache/waste")))
    }

    /// The local Hugging Face cache.
    pub(crate) fn hub(&self) -> Option<HubCache> {
        HubCache::from_vars(self.path("HF_HUB_CACHE"), self.path("HF_HOME"), self.path("HOME"))
    }

    /// Name and value of each variable in force.
    pub(crate) fn in_force(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.set.iter().map(|(name, value)| (*name, value.to_string_lossy().into_owned()))
    }

    fn path(&self, name: &str) -> Option<&Path> {
        self.set.iter().find(|it| it.0 == name).map(|it| Path::new(&it.1))
    }

    fn text(&self, name: &str) -> Option<String> {
        self.path(name).map(|it| it.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(set: &[(&'static str, &str)]) -> Env {
        Env { set: set.iter().map(|(name, value)| (*name, OsString::from(value))).collect() }
    }

    #[test]
    fn the_cache_has_an_order() {
        let all = [("WASTE_CACHE", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")];
        let at = |set: &[(&'static str, &str)]| env(set).plan_cache();
        assert_eq!(at(&all), Some("/a".into()));
        assert_eq!(at(&all[1..]), Some("/b/waste".into()));
        assert_eq!(at(&all[2..]), Some("/c/.cache/waste".into()));
        assert_eq!(at(&[]), None);
    }

    #[test]
    fn what_is_set_is_listed() {
        let env = env(&[("WASTE_THREADS", "3"), ("HOME", "/c")]);
        assert_eq!(env.threads().as_deref(), Some("3"));
        assert_eq!(env.backend(), None);
        let listed: Vec<_> = env.in_force().collect();
        assert_eq!(listed, [("WASTE_THREADS", "3".to_owned()), ("HOME", "/c".to_owned())]);
    }
}
