//! Where inputs lie: a folder of this process, beside files of the fixtures.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The file `name` of the tests' fixtures.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../data").join(name)
}

/// Removes the folder of this process, if there is one.
pub fn clean() {
    // What cannot be removed is left to the system, whose folder it is in.
    let _ = std::fs::remove_dir_all(scratch());
}

pub(crate) fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(data(name)).expect("a fixture")
}

/// The folder of this process.
pub(crate) fn scratch() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| std::env::temp_dir().join(format!("waste-fuzz-{}", std::process::id())))
}

pub(crate) fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch().join(name);
    std::fs::create_dir_all(path.parent().expect("in a folder")).expect("a writable folder");
    std::fs::write(&path, bytes).expect("a writable folder");
    path
}

/// Puts a copy of `from` in place, once.
pub(crate) fn link(name: &str, from: &Path) {
    if !scratch().join(name).exists() {
        write(name, &std::fs::read(from).expect("a fixture"));
    }
}

/// A folder with the files of a small container, but for its manifest and first bank, of which `others` are put in place too.
pub(crate) fn container_folder(name: &str, others: &[&str]) -> PathBuf {
    let always = ["trunk.bin", "codebooks.bin", "experts-L2.bin", "experts-L3.bin"];
    for file in always.iter().chain(others) {
        link(&format!("{name}/{file}"), &data("containers/tiny-vq3r").join(file));
    }
    scratch().join(name)
}
