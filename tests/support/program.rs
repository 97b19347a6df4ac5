//! The built program: how to call it, and what came of it.

#![allow(dead_code, reason = "each test crate uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::scratch::Scratch;

/// A call of `waste`, with nothing of the caller's environment but the search path.
pub(crate) struct Waste {
    command: Command,
    stdin: Vec<u8>,
}

impl Waste {
    /// The program in the folder of `scratch`, with its cache there.
    pub(crate) fn new(scratch: &Scratch) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waste"));
        command.env_clear().env("WASTE_CACHE", scratch.path().join("cache")).env("HOME", scratch.path());
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command.current_dir(scratch.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command, stdin: Vec::new() }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn stdin(mut self, text: impl AsRef<[u8]>) -> Self {
        self.stdin = text.as_ref().to_vec();
        self
    }

    /// Starts it; its stdin is closed after what was given.
    pub(crate) fn spawn(mut self) -> Child {
        let mut child = self.command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::spawn(move || {
            // A program that does not read its stdin is no fault of the test.
            let _ = stdin.write_all(&self.stdin);
        });
        child
    }

    pub(crate) fn run(self) -> Done {
        let shown = format!("{:?}", self.command);
        let done = self.spawn().wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Done { shown, code: done.status.code(), stdout: text(done.stdout), stderr: text(done.stderr) }
    }
}

/// What a call came to.
pub(crate) struct Done {
    shown: String,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    /// It must have succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}: {}", self.shown, self.stderr);
        self
    }

    /// It must have failed with `code` and one line that contains `part`.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, part: &str) {
        assert_eq!(self.code, Some(code), "{}: {}", self.shown, self.stderr);
        let is_one_line = self.stderr.starts_with("waste: ") && self.stderr.trim_end().lines().count() == 1;
        assert!(is_one_line && self.stderr.contains(part), "{}: {}", self.shown, self.stderr);
    }

    /// Its stdout as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

/// The model in `from` with a tokenizer of bytes: ids 0 to 255, then `<bos>` and `<eos>`.
pub(crate) fn folder_with_tokenizer(scratch: &Scratch, from: &Path) -> PathBuf {
    let folder = scratch.path().join("text-model");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(name), folder.join(name)).unwrap();
    }
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255u8 {
        vocab.insert(byte_character(byte).to_string(), byte.into());
    }
    let level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [control(256, "<bos>"), control(257, "<eos>")],
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [],
        },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

fn control(id: u32, text: &str) -> serde_json::Value {
    serde_json::json!({
        "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })
}

/// GPT-2's character for a byte: itself where it is printable, else the next free one from 256.
fn byte_character(byte: u8) -> char {
    let is_plain = |it: u8| matches!(it, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_plain(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|it| !is_plain(*it)).count();
    char::from_u32(256 + u32::try_from(before).unwrap()).unwrap()
}
