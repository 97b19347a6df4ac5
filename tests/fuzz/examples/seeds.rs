//! Writes the seed corpus from the tests' fixtures: `cargo run -p waste-fuzz --example seeds`.

use std::path::Path;

use waste::compile::{CompileOptions, compile};
use waste::formats::ModelFiles;
use waste::progress::Silent;
use waste::report::npy::NpyWriter;
use waste::text::TokenizerSpec;
use waste_fuzz::{TOKENIZER, data, experts_plan, open_session, session_options};
use waste_runtime::{Session, Token};

#[path = "../../support/gguf.rs"]
mod gguf;

fn main() {
    let put = |target: &str, name: &str, bytes: &[u8]| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join(name), bytes).expect("a file");
    };
    let read = |name: &str| std::fs::read(data(name)).expect("a fixture");

    let words = ["<s>", "a", "b", "ab"];
    let model = gguf::Gguf::new()
        .str("general.architecture", "llama")
        .u32("llama.context_length", 64)
        .f32("llama.rope.freq_base", 1e4)
        .bool("tokenizer.ggml.add_bos_token", true)
        .strs("tokenizer.ggml.tokens", &words)
        .f32s("tokenizer.ggml.scores", &[0.0, -1.0, -2.0, -0.5])
        .tensor("token_embd.weight", &[32, 4], 8, &[1; 136])
        .tensor("output_norm.weight", &[32], 0, &[0; 128]);
    put("gguf", "llama", &model.bytes());
    let adapter = read("adapters/llama-rslora/adapter_model.safetensors");
    put("safetensors", "bf16", &adapter);
    let name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
    put(
        "index",
        "one",
        format!(r#"{{"metadata": {{"total_size": 2}}, "weight_map": {{"{name}": "a.safetensors"}}}}"#)
            .as_bytes(),
    );
    put("container", "vq3r", &read("containers/tiny-vq3r/manifest.json"));
    put("record", "vq3r", &read("containers/tiny-vq3r/experts-L1.bin")[..128]);
    let spec =
        TokenizerSpec::from_tokenizer_json("tokenizer.json", TOKENIZER.as_bytes()).expect("a tokenizer");
    put("section", "bpe", &spec.to_section());
    put("tokenizer_json", "bpe", TOKENIZER.as_bytes());
    put("tokenizer_json", "last_id", TOKENIZER.replace("\"abc\": 5", "\"abc\": 4294967295").as_bytes());
    put("tiktoken", "last_id", b"YQ== 0\nYg== 4294967295\n");
    put("tiktoken", "ranks", &read("container/tiktoken.model"));
    put("config", "llama", &read("models/llama-rand-gqa-untied-f32/config.json"));
    put("config", "rope", &read("models/llama-rand-llama3rope-f16/config.json"));
    put("adapter", "rslora", &read("adapters/llama-rslora/adapter_config.json"));
    put("adapter", "patterns", &read("adapters/llama-patterns/adapter_config.json"));
    put("adapter_tensors", "rslora", &adapter);
    put(
        "messages",
        "three",
        br#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a <|im_end|> b"},
{"role": "assistant", "content": [{"type": "text", "text": "c"}]}]"#,
    );
    put(
        "messages",
        "more",
        br#"{"messages": [{"role": "user", "content": "a"}], "tools": null, "add_generation_prompt": true}"#,
    );
    put("routing", "two", b"{\"layers\": [[0, 3], [1, 2]]}\n\n{\"layers\": [[3, 0], [2, 7]]}\n");
    put("npz", "numpy", &read("hidden/llama-rand-gqa-untied-f32.npz"));
    let mut npy = NpyWriter::new(Vec::new(), 2, 3).expect("memory");
    [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]].iter().for_each(|it| npy.row(it).expect("memory"));
    put("npz", "npy", &npy.finish().expect("memory"));
    put("chat_template", "chatml", &read("chat/chatml.jinja"));
    put("chat_template", "helpers", &read("chat/helpers.jinja"));

    let files = ModelFiles::open(&data("models/gpt2-rand-f32"), None).expect("a fixture");
    let lora = vec![data("adapters/gpt2")];
    let options = CompileOptions { chunk: Some(8), lora, ..CompileOptions::usual() };
    let mut compiled = compile(&files, &options, &mut |_| ()).expect("a fixture compiles");
    // Places of files are those of the machine at hand: seeds name none.
    for (i, source) in compiled.module.sources.values_mut().enumerate() {
        source.path = format!("{i}.safetensors");
    }
    for (i, source) in compiled.plan.sources.iter_mut().enumerate() {
        source.path = format!("{i}.safetensors");
    }
    compiled.ir = waste_ir::print_module(&compiled.module);
    put("ir_text", "gpt2", compiled.ir.as_bytes());
    put("plan_text", "gpt2", waste_plan::text::print(&compiled.plan).as_bytes());
    let path = std::env::temp_dir().join(format!("waste-seed-{}", std::process::id()));
    compiled.write(&path, false, &Silent).expect("a writable folder");
    put("plan_file", "gpt2", &std::fs::read(&path).expect("written"));

    let mut session = open_session();
    let ids = [1, 2, 3, 5, 8];
    session.step(&ids.map(|id| Token { row: 0, id }), &[4]).expect("it runs");
    session.save(0, &ids, &path).expect("a writable folder");
    put("session", "gpt2", &std::fs::read(&path).expect("written"));

    let plan = experts_plan();
    let mut session = Session::open(&plan, &session_options()).expect("it opens");
    session.step(&ids.map(|id| Token { row: 0, id }), &[4]).expect("it runs");
    session.learned().expect("a plan with experts").save(plan.plan(), &path).expect("a writable folder");
    put("learned", "vq3r", &std::fs::read(&path).expect("written"));
    std::fs::remove_file(&path).expect("its own file");
}
