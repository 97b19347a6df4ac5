//! What each fuzz target does with its input: the entry functions of the readers, then whatever a caller does with a result.
//!
//! Invariant: an error is fine, a panic is a finding. Where a reader takes a path, the input becomes that file in a folder of this
//! process; whatever else the reader wants beside it comes from the tests' fixtures.
//!
//! Deliberately absent: expectations about which inputs are accepted; those are in the project's tests.

#![forbid(unsafe_code)]

mod places;

use std::cell::RefCell;
use std::path::Path;
use std::sync::{Once, OnceLock};

pub use places::{clean, data};
use places::{container_folder, fixture, link, scratch, write};
use waste::compile::{CompileOptions, compile};
use waste::formats::container::{Container, MatrixKind};
use waste::formats::{Adapter, ModelFiles, Source, parse_config};
use waste::models::{ImportOptions, import, merge_adapters, trained_ctx};
use waste::progress::Silent;
use waste::report::budget::Trace;
use waste::report::hidden::Hidden;
use waste::report::npy::NpyReader;
use waste::report::npz::Npz;
use waste::text::{ChatInput, ChatTemplate, TextStart, Tokenizer, TokenizerSpec, Zoned};
use waste_ir::Module;
use waste_plan::DType;
use waste_plan::file::PlanFile;
use waste_plan::validate::validate;
use waste_runtime::{CpuFeatures, Isa, Learned, LoadedPlan, Session, SessionOptions};

/// A target: its input is all it depends on.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: [(&str, Target); 20] = [
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
    ("learned", learned),
    ("routing", routing),
    ("config", config),
    ("adapter", adapter),
    ("adapter_tensors", adapter_tensors),
    ("chat_template", chat_template),
    ("messages", messages),
    ("npz", npz),
];

/// A vocabulary of a few tokens, as `tokenizers` writes it.
pub const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens":
[{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
"normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
"post_processor": null, "decoder": {"type": "ByteLevel"},
"model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
"fuse_unk": false, "byte_fallback": false, "vocab": {"<s>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5, "Ġ": 6}, "merges": ["a b", "ab c"]}}"#;

/// What the adapters of the fixtures are made for.
const ADAPTED: &str = "models/llama-rand-gqa-untied-f32";

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
    for bytes in [input, &mended(input)] {
        let path = write("session/s.wses", bytes);
        SESSION.with_borrow_mut(|it| {
            if let Ok(ids) = it.restore(0, &path) {
                assert!(it.len(0) as usize <= ids.len());
                it.clear(0);
            }
        });
    }
}

/// A list of used experts, and a session of its model that reads them.
pub fn learned(input: &[u8]) {
    static PLAN: OnceLock<LoadedPlan> = OnceLock::new();
    let plan = PLAN.get_or_init(experts_plan);
    for bytes in [input, &mended(input)] {
        let path = write("learned/s.hot", bytes);
        if let Ok(mut list) = Learned::load(plan.plan(), &path) {
            list.add(&list.clone());
            let mut session = Session::open(plan, &session_options()).expect("it opens");
            session.warm(&list).expect("what is listed is read, or is not there");
            list.save(plan.plan(), &path).expect("a writable folder");
            assert_eq!(Learned::load(plan.plan(), &path).expect("just written"), list);
        }
    }
}

/// `input` with its last four bytes made the checksum of all before: damage is what a checksum is for, and what lies behind it is
/// reached with a right one.
fn mended(input: &[u8]) -> Vec<u8> {
    let body = &input[..input.len().saturating_sub(4)];
    [body, &waste_plan::file::crc32c(body).to_le_bytes()].concat()
}

/// A trace of routings, and caches over it.
pub fn routing(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(trace) = Trace::parse(text) {
        let rates = [1, 3, u64::MAX].map(|slots| trace.hit_rate(slots));
        assert!(rates.iter().all(|it| (0.0..=1.0).contains(it)), "{rates:?}");
    }
}

/// A `config.json`, by itself and beside the weights of a small Llama, which is imported.
pub fn config(input: &[u8]) {
    let _ = parse_config("config.json", input);
    link("config/model.safetensors", &data(ADAPTED).join("model.safetensors"));
    write("config/config.json", input);
    let Ok(files) = ModelFiles::open(&scratch().join("config"), None) else { return };
    let Ok(ctx) = trained_ctx(&files) else { return };
    let options = ImportOptions { ctx: ctx.min(128), ..IMPORT };
    if let Ok(module) = import(&files, &options) {
        waste_ir::verify(&module).expect("what imports verifies");
    }
}

/// The configuration of an adapter, beside its tensors.
pub fn adapter(input: &[u8]) {
    let source = Source::open(&data("adapters/llama-rslora/adapter_model.safetensors"));
    merge(Adapter::parse("adapter_config.json", input.to_vec(), source.expect("a fixture")));
}

/// The tensors of an adapter, beside its configuration.
pub fn adapter_tensors(input: &[u8]) {
    link("adapter/adapter_config.json", &data("adapters/llama-rslora/adapter_config.json"));
    write("adapter/adapter_model.safetensors", input);
    merge(Adapter::open(&scratch().join("adapter")));
}

/// Merges an adapter into a small Llama.
fn merge(adapter: waste::formats::Result<Adapter>) {
    static BASE: OnceLock<(ModelFiles, Module)> = OnceLock::new();
    let Ok(adapter) = adapter else { return };
    assert!(adapter.layers().iter().all(|it| it.a.shape[0] == it.b.shape[1]));
    let (files, module) = BASE.get_or_init(|| {
        let files = ModelFiles::open(&data(ADAPTED), None).expect("a fixture");
        let module = import(&files, &IMPORT).expect("a fixture");
        (files, module)
    });
    let mut module = module.clone();
    if merge_adapters(&mut module, files.format(), &[adapter]).is_ok() {
        waste_ir::verify(&module).expect("what is merged verifies");
    }
}

const IMPORT: ImportOptions = ImportOptions { ctx: 128, batch: 1, chunk: 8, want: 1, kv: DType::F32 };

/// A chat template, rendered for the shortest conversation.
pub fn chat_template(input: &[u8]) {
    renderers_may_panic();
    let Ok(text) = std::str::from_utf8(input) else { return };
    let words = vec![("eos_token".to_owned(), "<|im_end|>".to_owned())];
    if let Ok(template) = ChatTemplate::new("template", text.to_owned(), words) {
        let _ = template.turn_end(&["<|im_start|>", "<|im_end|>"]);
    }
}

/// A panic inside the renderer's crate ends its thread, which is reported as an error: no finding, though libFuzzer's hook would end the
/// process.
fn renderers_may_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() != Some("chat template") {
                before(info);
            }
        }));
    });
}

/// A conversation, rendered by a common template.
pub fn messages(input: &[u8]) {
    renderers_may_panic();
    static RENDERS: OnceLock<(ChatTemplate, Tokenizer)> = OnceLock::new();
    let Ok(input) = ChatInput::from_json("messages", input, &Zoned::default()) else { return };
    let (template, tokenizer) = RENDERS.get_or_init(|| {
        let source = String::from_utf8(fixture("chat/chatml.jinja")).expect("a fixture");
        let spec = TokenizerSpec::from_tokenizer_json("tokenizer.json", TOKENIZER.as_bytes());
        let tokenizer = spec.and_then(TokenizerSpec::build).expect("a tokenizer");
        (ChatTemplate::new("chatml", source, Vec::new()).expect("a fixture"), tokenizer)
    });
    if let Ok(rendered) = template.render(&input, tokenizer) {
        let _ = (rendered.text(), rendered.ids(tokenizer));
    }
}

/// An archive of arrays, as hidden states of a small Llama; and an array alone.
pub fn npz(input: &[u8]) {
    static PLAN: OnceLock<LoadedPlan> = OnceLock::new();
    if let Ok(mut rows) = NpyReader::new(input, 2, 3) {
        while let Ok(Some(_)) = rows.next_row() {}
    }
    let Ok(mut npz) = Npz::open(&write("npz/a.npz", input)) else { return };
    let names: Vec<String> = npz.arrays().keys().cloned().collect();
    for name in names {
        let _ = (npz.floats(&name), npz.integers(&name));
    }
    let plan = PLAN.get_or_init(|| load(ADAPTED, CompileOptions::usual()));
    if let Ok(hidden) = Hidden::read(&mut npz, plan.plan()) {
        assert!(hidden.points.values().all(|it| it.row(hidden.ids.len() - 1).is_some()));
    }
}

/// What the seeds of [`session`] are saved by.
pub fn open_session() -> Session {
    let plan = load("models/gpt2-rand-f32", CompileOptions { chunk: Some(8), ..CompileOptions::usual() });
    Session::open(&plan, &session_options()).expect("it opens")
}

/// What the seeds of [`learned`] are lists of.
pub fn experts_plan() -> LoadedPlan {
    load("containers/tiny-vq3r", CompileOptions { chunk: Some(8), ..CompileOptions::usual() })
}

fn load(model: &str, options: CompileOptions) -> LoadedPlan {
    let files = ModelFiles::open(&data(model), None).expect("a fixture");
    let compiled = compile(&files, &options, &mut |_| ()).expect("a fixture compiles");
    compiled.load(&Silent).expect("it loads")
}

/// One thread, on the rows that every machine has.
pub fn session_options() -> SessionOptions {
    SessionOptions {
        cpu: CpuFeatures::detect().capped(Isa::Portable),
        verify: false,
        ..SessionOptions::default()
    }
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
        let matrices = MatrixKind::ALL.map(|it| (it, bank.matrix(it), container.books(bank, it)));
        for record in (0..bank.experts()).filter_map(|expert| container.record(bank, expert).ok()) {
            for (kind, matrix, books) in &matrices {
                let mut out = vec![0.0; matrix.cols as usize];
                record.decode_row(*kind, matrix.rows - 1, books, &mut out);
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
