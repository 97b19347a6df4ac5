//! What each fuzz target does with its input: the entry functions of the readers, then whatever a caller does with a result.
//!
//! Invariant: an error is fine, a panic is a finding. Where a reader takes a path, the input becomes that file in a folder of this
//! process; whatever else the reader wants beside it comes from the tests' fixtures.
//!
//! Deliberately absent: expectations about which inputs are accepted; those are in the project's tests.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use waste::compile::{CompileOptions, compile};
use waste::formats::container::{Container, MatrixKind};
use waste::formats::{Adapter, ModelFiles, Source, parse_config};
use waste::models::{ImportOptions, import, trained_ctx};
use waste::progress::Silent;
use waste::text::{ChatTemplate, TextStart, TokenizerSpec};
use waste_plan::DType;
use waste_plan::file::PlanFile;
use waste_plan::validate::validate;
use waste_runtime::{ExpertOptions, Isa, Session, SessionOptions};

/// A target: its input is all it depends on.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: [(&str, Target); 15] = [
    ("gguf", gguf),
    ("safetensors", safetensors),
    ("index", index),
    ("container", container),
    ("record", record),
    ("section", section),
    ("tokenizer_json", tokenizer_json),
    ("tiktoken", tiktoken),
    ("ir_text", ir_text),
    ("plan_file", plan_file),
    ("plan_text", plan_text),
    ("session", session),
    ("config", config),
    ("adapter", adapter),
    ("chat_template", chat_template),
];

/// The file `name` of the tests' fixtures.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../data").join(name)
}

/// A GGUF: its table, every key in every type, every tensor's bytes.
pub fn gguf(input: &[u8]) {
    let path = write("gguf/m.gguf", input);
    if let Ok(files) = ModelFiles::open(&path, None) {
        touch(&files);
    }
}

/// A safetensors file beside an empty configuration.
pub fn safetensors(input: &[u8]) {
    write("safetensors/config.json", b"{}");
    let path = write("safetensors/model.safetensors", input);
    if let Ok(files) = ModelFiles::open(&path, None) {
        touch(&files);
    }
}

/// The index of a safetensors checkpoint of one shard, `a.safetensors`.
pub fn index(input: &[u8]) {
    link("index/a.safetensors", &data("adapters/llama-rslora/adapter_model.safetensors"));
    write("index/config.json", b"{}");
    let path = write("index/model.safetensors.index.json", input);
    if let Ok(files) = ModelFiles::open(&path, None) {
        touch(&files);
    }
}

/// The manifest of a container whose other files are whole.
pub fn container(input: &[u8]) {
    let folder = container_folder("container", &["experts-L1.bin"]);
    write("container/manifest.json", input);
    touch_container(&folder);
}

/// The beginning of a container's bank, the rest of which is whole.
pub fn record(input: &[u8]) {
    let folder = container_folder("record", &["manifest.json"]);
    let mut bank = fixture("containers/tiny-vq3r/experts-L1.bin");
    let len = input.len().min(bank.len());
    bank[..len].copy_from_slice(&input[..len]);
    write("record/experts-L1.bin", &bank);
    touch_container(&folder);
}

/// The tokenizer section of a plan.
pub fn section(input: &[u8]) {
    if let Ok(spec) = TokenizerSpec::from_section(input) {
        tokenize(spec);
    }
}

/// A `tokenizer.json`.
pub fn tokenizer_json(input: &[u8]) {
    if let Ok(spec) = TokenizerSpec::from_tokenizer_json("tokenizer.json", input) {
        tokenize(spec);
    }
}

/// tiktoken's ranks.
pub fn tiktoken(input: &[u8]) {
    if let Ok(spec) = TokenizerSpec::from_rank_file("ranks", input, "llama-bpe", &[(1 << 20, "<|end|>")]) {
        tokenize(spec);
    }
}

/// IR text. What parses is verified; what verifies prints to a text that is its own.
pub fn ir_text(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(module) = waste_ir::parse_module(text) else { return };
    if waste_ir::verify(&module).is_ok() {
        let printed = waste_ir::print_module(&module);
        let again = waste_ir::parse_module(&printed).expect("printed text parses");
        assert_eq!(waste_ir::print_module(&again), printed);
    }
}

/// A plan file.
pub fn plan_file(input: &[u8]) {
    for bytes in [input.to_vec(), mended_plan(input)] {
        if let Ok(file) = PlanFile::parse(&bytes)
            && validate(&file.plan).is_ok()
        {
            let _ = (file.plan.memory.peak(), waste_plan::text::print(&file.plan));
        }
    }
}

/// A plan file with its length and checksums made right, so that damage is also seen by what lies behind them.
fn mended_plan(input: &[u8]) -> Vec<u8> {
    const HEADER: usize = 64;
    const ENTRY: usize = 32;
    let mut out = input.to_vec();
    let len = out.len() as u64;
    if out.len() < HEADER {
        return out;
    }
    let sum = |bytes: &[u8]| waste_plan::file::crc32c(bytes).to_le_bytes();
    let word =
        |bytes: &[u8], at: usize| usize::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let table = HEADER..(HEADER + out[16].min(8) as usize * ENTRY).min(out.len());
    for at in table.clone().step_by(ENTRY).filter(|at| at + ENTRY <= table.end) {
        let (first, bytes) = (word(&out, at + 8), word(&out, at + 16));
        let crc = first.checked_add(bytes).and_then(|end| out.get(first..end)).map(sum);
        // Weights are not looked at when a file is parsed, and have checksums of their own.
        if let Some(crc) = crc.filter(|_| out[at..at + 4] != *b"wght") {
            out[at + 24..at + 28].copy_from_slice(&crc);
        }
    }
    out[24..32].copy_from_slice(&len.to_le_bytes());
    let crc = sum(&out[table]);
    out[20..24].copy_from_slice(&crc);
    let crc = sum(&out[..60]);
    out[60..64].copy_from_slice(&crc);
    out
}

/// The text of a plan. What parses prints to a text that is its own.
pub fn plan_text(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(plan) = waste_plan::text::parse(text) else { return };
    let _ = validate(&plan);
    let printed = waste_plan::text::print(&plan);
    assert_eq!(waste_plan::text::parse(&printed).as_ref(), Ok(&plan));
}

/// A saved session, restored into one of the model that the seeds were saved by.
pub fn session(input: &[u8]) {
    thread_local!(static SESSION: RefCell<Session> = RefCell::new(open_session()));
    // Damage is what a checksum is for; what lies behind it is reached with a right one.
    let body = input.len().saturating_sub(4);
    let mended = [&input[..body], &waste_plan::file::crc32c(&input[..body]).to_le_bytes()].concat();
    for bytes in [input, &mended] {
        let path = write("session/s.wses", bytes);
        SESSION.with_borrow_mut(|it| {
            if let Ok(ids) = it.restore(0, &path) {
                assert!(it.len(0) as usize <= ids.len());
                it.clear(0);
            }
        });
    }
}

/// A `config.json`, by itself and beside the weights of a small Llama, which is imported.
pub fn config(input: &[u8]) {
    let _ = parse_config("config.json", input);
    link("config/model.safetensors", &data("models/llama-rand-gqa-untied-f32/model.safetensors"));
    write("config/config.json", input);
    let Ok(files) = ModelFiles::open(&scratch().join("config"), None) else { return };
    let Ok(ctx) = trained_ctx(&files) else { return };
    let options = ImportOptions { ctx: ctx.min(128), batch: 1, chunk: 8, want: 1, kv: DType::F32 };
    if let Ok(module) = import(&files, &options) {
        waste_ir::verify(&module).expect("what imports verifies");
    }
}

/// The configuration of an adapter, beside its tensors.
pub fn adapter(input: &[u8]) {
    let source = Source::open(&data("adapters/llama-rslora/adapter_model.safetensors"));
    let source = source.expect("a fixture");
    if let Ok(adapter) = Adapter::parse("adapter_config.json", input.to_vec(), source) {
        assert!(adapter.layers().iter().all(|it| it.a.shape[0] == it.b.shape[1]));
    }
}

/// A chat template, rendered for the shortest conversation.
pub fn chat_template(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let words = vec![("eos_token".to_owned(), "<|im_end|>".to_owned())];
    if let Ok(template) = ChatTemplate::new("template", text.to_owned(), words) {
        let _ = template.turn_end(&["<|im_start|>", "<|im_end|>"]);
    }
}

/// What the seeds of [`session`] are saved by.
pub fn open_session() -> Session {
    let files = ModelFiles::open(&data("models/gpt2-rand-f32"), None).expect("a fixture");
    let options = CompileOptions { chunk: Some(8), ..CompileOptions::usual() };
    let compiled = compile(&files, &options, &mut |_| ()).expect("a fixture compiles");
    let options = SessionOptions {
        threads: 1,
        cpus: Vec::new(),
        isa: Isa::Portable,
        max_mem: None,
        verify: false,
        check_finite: false,
        profile: false,
        experts: ExpertOptions::default(),
    };
    Session::open(&compiled.load(&Silent).expect("it loads"), &options).expect("it opens")
}

/// Everything a file offers.
fn touch(files: &ModelFiles) {
    let meta = files.meta();
    let keys: Vec<String> = meta.keys().map(str::to_owned).collect();
    for key in &keys {
        let _ = (meta.get_u64(key), meta.get_f64(key), meta.get_bool(key), meta.get_str(key));
        let _ = (meta.get_strs(key), meta.get_ints::<i32>(key), meta.get_floats(key), meta.array_len(key));
    }
    for info in files.tensors().values() {
        assert_eq!(files.tensor_bytes(info).len() as u64, info.bytes);
    }
    files.header_hash().expect("the files are there");
    let _ = (TokenizerSpec::from_model(files).map(|it| it.map(tokenize)), trained_ctx(files));
}

/// A container's tables, and the last row of every matrix of every record that is sound.
fn touch_container(folder: &Path) {
    let Ok(container) = Container::open(folder) else { return };
    for tensor in container.tensors().values() {
        let mut out = vec![0.0; usize::try_from(tensor.cols()).expect("inside a file")];
        tensor.decode_row(container.trunk(), tensor.rows() - 1, &mut out);
    }
    for bank in container.banks().values() {
        for record in (0..bank.experts()).filter_map(|expert| container.record(bank, expert).ok()) {
            for kind in MatrixKind::ALL {
                let (matrix, books) = (bank.matrix(kind), container.books(bank, kind));
                let mut out = vec![0.0; matrix.cols as usize];
                record.decode_row(kind, matrix.rows - 1, &books, &mut out);
            }
        }
    }
}

fn tokenize(spec: TokenizerSpec) {
    let _ = spec.to_section();
    if let Ok(tokenizer) = spec.build()
        && let Ok(ids) = tokenizer.encode("ab <s> abc é\n 12")
    {
        let _ = tokenizer.decode(&ids, TextStart::Document);
    }
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(data(name)).expect("a fixture")
}

/// The folder of this process.
fn scratch() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| std::env::temp_dir().join(format!("waste-fuzz-{}", std::process::id())))
}

fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch().join(name);
    std::fs::create_dir_all(path.parent().expect("in a folder")).expect("a writable folder");
    std::fs::write(&path, bytes).expect("a writable folder");
    path
}

/// Puts a copy of `from` in place, once.
fn link(name: &str, from: &Path) {
    if !scratch().join(name).exists() {
        write(name, &std::fs::read(from).expect("a fixture"));
    }
}

/// A folder with the files of a small container, but for its manifest and first bank, of which `others` are put in place too.
fn container_folder(name: &str, others: &[&str]) -> PathBuf {
    let always = ["trunk.bin", "codebooks.bin", "experts-L2.bin", "experts-L3.bin"];
    for file in always.iter().chain(others) {
        link(&format!("{name}/{file}"), &data("containers/tiny-vq3r").join(file));
    }
    scratch().join(name)
}
