//! A GGUF of one file, or of several named `NAME-00001-of-0000N.gguf`.
//!
//! Source: llama.cpp's gguf-split: keys `split.no` (from 0), `split.count`, `split.tensors.count`; the
//! metadata of the first file holds for all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::error::{FormatError, Item, Result};
use super::super::model::Opened;
use super::super::source::Source;
use super::{GgufFile, parse};

const MAX_SHARDS: u64 = 4096;

/// Opens the GGUF that `path` belongs to: any shard names them all.
pub(crate) fn open(path: &Path) -> Result<Opened> {
    let paths = match shard_paths(path) {
        Some(paths) => paths,
        None => vec![path.to_path_buf()],
    };
    let mut first = None;
    let mut opened = Opened::default();
    for (idx, path) in paths.iter().enumerate() {
        if idx > 0 && !path.exists() {
            return Err(FormatError::Missing {
                file: opened.sources[0].name(),
                item: Item::file(&path.to_string_lossy()),
                hint: format!(" (part {} of {})", idx + 1, paths.len()),
            });
        }
        let source = Source::open(path)?;
        let GgufFile { meta, tensors, header } = parse(&source, idx)?;
        check_part(&meta, idx, paths.len())?;
        opened.add(source, header, tensors, BTreeMap::new())?;
        first.get_or_insert(meta);
    }
    if let Some(meta) = first {
        check_total(&meta, opened.tensors.len())?;
        opened.meta = Some(meta);
    }
    Ok(opened)
}

/// Whether `path` is a single GGUF or the first shard of one.
pub(crate) fn is_first(path: &Path) -> bool {
    shard_paths(path).is_none_or(|all| all[0] == path)
}

/// The paths of all shards, in order, if `path` is named like one.
fn shard_paths(path: &Path) -> Option<Vec<PathBuf>> {
    let name = path.file_name()?.to_str()?;
    let rest = name.strip_suffix(".gguf")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five = |text: &str| {
        let is_number = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| text.parse::<u64>().ok()).flatten()
    };
    let (number, count) = (five(number)?, five(count)?);
    if number == 0 || number > count || count > MAX_SHARDS {
        return None;
    }
    let part = |idx| path.with_file_name(format!("{stem}-{idx:05}-of-{count:05}.gguf"));
    Some((1..=count).map(part).collect())
}

fn check_part(meta: &super::Meta, idx: usize, count: usize) -> Result<()> {
    let said = meta.get_u64("split.count")?.unwrap_or(1);
    if said != count as u64 && !(said == 0 && count == 1) {
        return Err(meta.refuse("split.count", format!("{said}, but this is one of {count} files")));
    }
    if count > 1 {
        let no = meta.u64("split.no")?;
        if no != idx as u64 {
            return Err(meta.refuse("split.no", format!("{no}, but the name says {idx}")));
        }
    }
    Ok(())
}

fn check_total(meta: &super::Meta, found: usize) -> Result<()> {
    match meta.get_u64("split.tensors.count")? {
        Some(said) if said != found as u64 => {
            let reason = format!("{said}, but the files hold {found}");
            Err(meta.refuse("split.tensors.count", reason))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_shard_names_them_all() {
        let paths = shard_paths(Path::new("/m/a-b-00002-of-00003.gguf"));
        let want = ["/m/a-b-00001-of-00003.gguf", "/m/a-b-00002-of-00003.gguf", "/m/a-b-00003-of-00003.gguf"];
        assert_eq!(paths, Some(want.map(PathBuf::from).to_vec()));
    }

    #[test]
    fn other_names_are_single_files() {
        for name in [
            "a.gguf",
            "a-1-of-2.gguf",
            "a-00004-of-00003.gguf",
            "a-00000-of-00001.gguf",
            "a-0000x-of-00002.gguf",
        ] {
            assert_eq!(shard_paths(Path::new(name)), None, "{name}");
        }
    }
}
