//! The model that ships in the program, so that a first run needs no download.
//!
//! Invariant: a folder with the model's files holds exactly the bytes of this build, or is made anew: it is put together under a
//! temporary name and renamed into place.
//!
//! Deliberately absent: any way around files. Unpacked, it is a model like any other, which plans can name as their source.

use std::io;
use std::path::{Path, PathBuf};

/// Its name wherever a model can be named. A file or folder of that name goes first.
pub const NAME: &str = "kimi-tiny";

/// What to continue when nothing else is asked for.
pub const PROMPT: &str = "In the beginning";

/// Its files; the credit for its texts lies beside its weights.
const FILES: [(&str, &[u8]); 5] = [
    ("README.md", include_bytes!("../examples/kimi-tiny/README.md")),
    ("config.json", include_bytes!("../examples/kimi-tiny/config.json")),
    ("tokenizer.json", include_bytes!("../examples/kimi-tiny/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../examples/kimi-tiny/tokenizer_config.json")),
    ("model.safetensors", include_bytes!("../examples/kimi-tiny/model.safetensors")),
];

/// The model's folder below `cache`, unpacked there if it is not yet.
///
/// # Errors
/// If the folder cannot be read or written.
pub fn unpack(cache: &Path) -> io::Result<PathBuf> {
    let folder = cache.join("models").join(NAME);
    if is_whole(&folder) {
        return Ok(folder);
    }
    let part = cache.join("models").join(format!(".{NAME}.{}.part", std::process::id()));
    std::fs::create_dir_all(&part)?;
    for (name, bytes) in FILES {
        std::fs::write(part.join(name), bytes)?;
    }
    let renamed = std::fs::rename(&part, &folder).or_else(|_| {
        // A folder of another build, or of a run at the same time, is in the way.
        if is_whole(&folder) {
            return Ok(());
        }
        std::fs::remove_dir_all(&folder)?;
        std::fs::rename(&part, &folder)
    });
    if part.exists() {
        // NOTE: what another run put in place first makes this copy superfluous; a leftover is only a waste of space.
        let _ = std::fs::remove_dir_all(&part);
    }
    renamed.map(|()| folder)
}

fn is_whole(folder: &Path) -> bool {
    FILES.iter().all(|(name, bytes)| std::fs::read(folder.join(name)).is_ok_and(|it| it == *bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_damaged_copy_is_made_anew() {
        let cache = std::env::temp_dir().join(format!("waste-embedded-{}", std::process::id()));
        let folder = unpack(&cache).unwrap();
        let config = folder.join("config.json");
        let whole = std::fs::read(&config).unwrap();
        std::fs::write(&config, "{}").unwrap();
        assert_eq!(unpack(&cache).unwrap(), folder);
        assert_eq!(std::fs::read(&config).unwrap(), whole);
        assert_eq!(std::fs::read_dir(cache.join("models")).unwrap().count(), 1, "nothing is left behind");
        std::fs::remove_dir_all(&cache).unwrap();
    }
}
