//! `org/repo[:quant]` in the local Hugging Face cache.
//!
//! Layout: `HUB/models--ORG--REPO/{refs/main, snapshots/REVISION/FILE, blobs/…}`; files are links to blobs.
//!
//! Invariants
//! - nothing is written, locked or fetched;
//! - neither the argument nor `refs/main` can name a folder outside the cache.
//!
//! Deliberately absent: the network, and reading of environment variables (the caller passes them in).

use std::path::{Path, PathBuf};

use super::error::{FormatError, Result, shown};
use super::source::read_small;

/// Where the cache is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCache {
    /// The folder that holds `models--…`.
    pub root: PathBuf,
}

impl HubCache {
    /// The cache by the rules of `huggingface_hub`: `HF_HUB_CACHE`, else `HF_HOME/hub`, else
    /// `HOME/.cache/huggingface/hub`. The arguments are those variables; `None` if none is set.
    #[must_use]
    pub fn from_vars(
        hf_hub_cache: Option<&Path>,
        hf_home: Option<&Path>,
        home: Option<&Path>,
    ) -> Option<Self> {
        let root = hf_hub_cache
            .map(Path::to_path_buf)
            .or_else(|| hf_home.map(|it| it.join("hub")))
            .or_else(|| home.map(|it| it.join(".cache/huggingface/hub")))?;
        Some(Self { root })
    }

    /// The folder or file that `name` stands for.
    ///
    /// # Errors
    /// If the repository is not in the cache, or no file or several fit the quantisation.
    pub(crate) fn resolve(&self, name: &RepoName<'_>) -> Result<PathBuf> {
        let RepoName { org, repo, quant } = *name;
        let base = self.root.join(format!("models--{org}--{repo}"));
        let absent = |what: String| {
            let reason = format!("{what}; only the local cache is searched, nothing is downloaded");
            FormatError::not_a_model(Path::new(&format!("{org}/{repo}")), reason)
        };
        let at = shown(&base.to_string_lossy());
        let revision = read_small(&base.join("refs/main"), 256)?
            .and_then(|text| String::from_utf8(text).ok())
            .ok_or_else(|| absent(format!("not in the Hugging Face cache ({at}/refs/main)")))?;
        let revision = revision.trim();
        if revision.is_empty() || !revision.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(absent(format!("{at}/refs/main holds no revision")));
        }
        let folder = base.join("snapshots").join(revision);
        match quant {
            None => Ok(folder),
            Some(quant) => pick_quant(&folder, quant),
        }
    }
}

/// The parts of `org/repo[:quant]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepoName<'a> {
    org: &'a str,
    repo: &'a str,
    quant: Option<&'a str>,
}

impl<'a> RepoName<'a> {
    /// Parses a model argument; `None` if it does not look like a repository.
    pub(crate) fn parse(arg: &'a str) -> Option<Self> {
        let (name, quant) = match arg.split_once(':') {
            Some((name, quant)) => (name, Some(quant)),
            None => (arg, None),
        };
        let (org, repo) = name.split_once('/')?;
        let is_name = |it: &str| {
            let plain = it.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
            plain && !it.is_empty() && !it.starts_with('.')
        };
        let fits = is_name(org) && is_name(repo) && quant.is_none_or(is_name);
        fits.then_some(Self { org, repo, quant })
    }
}

/// The one GGUF of `folder` whose name has `quant` as a part (`-` and `.` separate, case does not matter);
/// of a sharded one, the first shard.
fn pick_quant(folder: &Path, quant: &str) -> Result<PathBuf> {
    let all = super::model::gguf_files(folder)?;
    let wanted = quant.to_ascii_lowercase();
    let fits = |path: &&PathBuf| {
        let stem = path.file_stem().map(|it| it.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        stem.split(['-', '.']).any(|part| part == wanted)
    };
    let found: Vec<&PathBuf> = all.iter().filter(fits).collect();
    match found[..] {
        [one] => Ok(one.clone()),
        [] => Err(several(folder, &format!("no GGUF here is of '{quant}'"), all.iter())),
        _ => Err(several(folder, &format!("several GGUFs here are of '{quant}'"), found.into_iter())),
    }
}

/// An error that lists the files a user can choose from.
pub(crate) fn several<'a>(
    folder: &Path,
    reason: &str,
    choice: impl Iterator<Item = &'a PathBuf>,
) -> FormatError {
    let names: Vec<String> =
        choice.take(12).filter_map(|path| path.file_name().map(|it| shown(&it.to_string_lossy()))).collect();
    let list = if names.is_empty() { String::new() } else { format!(" (there are {})", names.join(", ")) };
    FormatError::not_a_model(folder, format!("{reason}{list}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_names_cannot_leave_the_cache() {
        let full = RepoName { org: "HuggingFaceTB", repo: "SmolLM2-135M.x", quant: Some("Q4_1") };
        assert_eq!(RepoName::parse("HuggingFaceTB/SmolLM2-135M.x:Q4_1"), Some(full));
        assert!(RepoName::parse("a/b").is_some_and(|it| it.quant.is_none()));
        for bad in ["a", "/b", "a/", "../b", "a/..", "a/b/c", "a/b:", "a\\b/c", "a/b:../x", "C:/x"] {
            assert_eq!(RepoName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_variables_have_an_order() {
        let at = |a: Option<&str>, b: Option<&str>, c: Option<&str>| {
            HubCache::from_vars(a.map(Path::new), b.map(Path::new), c.map(Path::new)).map(|it| it.root)
        };
        assert_eq!(at(Some("x"), Some("y"), Some("z")), Some("x".into()));
        assert_eq!(at(None, Some("y"), Some("z")), Some("y/hub".into()));
        assert_eq!(at(None, None, Some("z")), Some("z/.cache/huggingface/hub".into()));
        assert_eq!(at(None, None, None), None);
    }
}
