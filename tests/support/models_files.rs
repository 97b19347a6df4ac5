//! Small models for the tests of front ends: fixtures with references, and made-up tensor tables.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use waste::formats::ModelFiles;
use waste::models::{ImportOptions, ModelError, import};
use waste_ir::Module;
use waste_plan::DType;

use super::scratch::Scratch;

pub(crate) const OPTIONS: ImportOptions =
    ImportOptions { ctx: 64, batch: 2, chunk: 8, want: 3, kv: DType::F32 };

/// The folder of fixture `name`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(name)
}

pub(crate) fn json(path: &Path) -> Json {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Tensor names with types and shapes.
#[derive(Clone, Default)]
pub(crate) struct Table(pub(crate) BTreeMap<String, (&'static str, Vec<u64>)>);

impl Table {
    pub(crate) fn add(&mut self, name: &str, shape: &[u64]) {
        self.0.insert(name.to_owned(), ("F32", shape.to_vec()));
    }

    /// A model.safetensors of these tensors in `dir`, all zero; the data takes no space on disk.
    pub(crate) fn write(&self, dir: &Path) {
        let mut at = 0;
        let mut rows = serde_json::Map::new();
        for (name, (dtype, shape)) in &self.0 {
            let width = match *dtype {
                "F32" => 4,
                "F16" | "BF16" => 2,
                _ => 1,
            };
            let end = at + width * shape.iter().product::<u64>();
            rows.insert(
                name.clone(),
                serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]}),
            );
            at = end;
        }
        let header = Json::Object(rows).to_string();
        let path = dir.join("model.safetensors");
        std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(8 + header.len() as u64 + at).unwrap();
    }
}

/// Sizes of a made-up Llama-like model.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) layers: u64,
    pub(crate) hidden: u64,
    pub(crate) ffn: u64,
    pub(crate) heads: u64,
    pub(crate) kv_heads: u64,
    pub(crate) head_dim: u64,
    pub(crate) vocab: u64,
}

pub(crate) const TINY: Sizes =
    Sizes { layers: 1, hidden: 8, ffn: 16, heads: 2, kv_heads: 1, head_dim: 4, vocab: 10 };

impl Sizes {
    pub(crate) fn config(self, model_type: &str, class: &str) -> Json {
        serde_json::json!({
            "architectures": [class],
            "model_type": model_type,
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true,
            "bos_token_id": 1,
            "torch_dtype": "float32",
            "rope_scaling": null,
        })
    }

    /// Tensors under Hugging Face's names, with the biases of Qwen2 or the norms of Qwen3 if asked for.
    pub(crate) fn table(self, qkv_bias: bool, qk_norm: bool) -> Table {
        let mut t = Table::default();
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        t.add("model.embed_tokens.weight", &[self.vocab, self.hidden]);
        t.add("model.norm.weight", &[self.hidden]);
        for i in 0..self.layers {
            let name = |part: &str| format!("model.layers.{i}.{part}");
            for (part, rows) in [("q", q), ("k", kv), ("v", kv)] {
                t.add(&name(&format!("self_attn.{part}_proj.weight")), &[rows, self.hidden]);
                if qkv_bias {
                    t.add(&name(&format!("self_attn.{part}_proj.bias")), &[rows]);
                }
                if qk_norm && part != "v" {
                    t.add(&name(&format!("self_attn.{part}_norm.weight")), &[self.head_dim]);
                }
            }
            t.add(&name("self_attn.o_proj.weight"), &[self.hidden, q]);
            t.add(&name("input_layernorm.weight"), &[self.hidden]);
            t.add(&name("post_attention_layernorm.weight"), &[self.hidden]);
            t.add(&name("mlp.gate_proj.weight"), &[self.ffn, self.hidden]);
            t.add(&name("mlp.up_proj.weight"), &[self.ffn, self.hidden]);
            t.add(&name("mlp.down_proj.weight"), &[self.hidden, self.ffn]);
        }
        t
    }
}

/// `config` with `edits` (dotted keys; null removes).
pub(crate) fn edited(config: &Json, edits: &[(&str, Json)]) -> Json {
    let mut out = config.clone();
    for (path, value) in edits {
        let mut at = &mut out;
        for part in path.split('.') {
            if !at.is_object() {
                *at = serde_json::json!({});
            }
            at = &mut at[part];
        }
        *at = value.clone();
    }
    out
}

/// Imports a made-up model.
pub(crate) fn import_made(
    dir: &Scratch,
    config: &Json,
    table: &Table,
    opts: &ImportOptions,
) -> Result<Module, ModelError> {
    dir.write("config.json", config.to_string());
    table.write(dir.path());
    import(&ModelFiles::open(dir.path(), None).unwrap(), opts)
}
