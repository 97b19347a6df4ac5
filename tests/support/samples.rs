//! Models of every family in tests/data, compiled small.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use waste::compile::{CompileOptions, Compiled, compile};
use waste::formats::ModelFiles;

pub(crate) const LLAMA: &str = "models/llama-rand-gqa-untied-f32";

/// A checkpoint of every family, and both codes of containers.
pub(crate) const MODELS: [&str; 10] = [
    LLAMA,
    "models/gpt2-rand-f32",
    "models/deepseek-rand-bf16",
    "models/kimi-rand-bf16",
    "models/kimi-k3-rand-bf16",
    "models/mixtral-rand-bf16",
    "models/olmoe-rand-bf16",
    "containers/tiny-vq3r",
    "containers/tiny-vq4p",
    "containers/tinyk3-vq3r",
];

/// The place of a file or folder of tests/data.
pub(crate) fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// 64 positions, chunks of 16.
pub(crate) fn compiled(name: &str) -> Compiled {
    let options = CompileOptions { ctx: Some(64), chunk: Some(16), ..CompileOptions::usual() };
    compile(&ModelFiles::open(&model(name), None).unwrap(), &options, &mut |_| ()).unwrap()
}
