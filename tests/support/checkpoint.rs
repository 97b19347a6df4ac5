//! A small random checkpoint of the Kimi-Linear kind, as far as a conversion looks at one.

#![allow(dead_code, reason = "each test crate uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::scratch::{Noise, Scratch};

/// A checkpoint whose tensors can be changed before it is written.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    pub(crate) config: Value,
    /// Type, shape and bytes by name.
    pub(crate) tensors: BTreeMap<String, (&'static str, Vec<usize>, Vec<u8>)>,
}

/// The sizes of a checkpoint.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Layers with experts; one dense layer comes before.
    pub(crate) layers: usize,
    pub(crate) experts: usize,
    pub(crate) hidden: usize,
    pub(crate) inter: usize,
}

/// Roughly normal.
fn normal(noise: &mut Noise) -> f32 {
    let uniform = |it: u64| (it >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
    (0..4).map(|_| uniform(noise.next())).sum::<f32>() * 0.1
}

pub(crate) fn bf16(x: f32) -> [u8; 2] {
    half::bf16::from_f32(x).to_le_bytes()
}

impl Checkpoint {
    pub(crate) fn new(sizes: Sizes) -> Self {
        let Sizes { layers, experts, hidden, inter } = sizes;
        let config = json!({
            "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "hidden_size": hidden,
            "num_hidden_layers": layers + 1, "first_k_dense_replace": 1, "num_experts": experts,
            "moe_intermediate_size": inter, "q_lora_rank": null,
        });
        let mut it = Self { config, tensors: BTreeMap::new() };
        let mut noise = Noise(3);
        it.matrix("model.embed_tokens.weight", &[300, hidden], &mut noise);
        it.matrix("lm_head.weight", &[300, hidden], &mut noise);
        it.matrix("model.norm.weight", &[hidden], &mut noise);
        // Wide rows whose last group is not whole.
        it.matrix("model.layers.0.mlp.up_proj.weight", &[50, 200], &mut noise);
        it.matrix("model.layers.0.self_attn.q_conv1d.weight", &[2000, 1, 4], &mut noise);
        for layer in 1..=layers {
            let part = format!("model.layers.{layer}.block_sparse_moe");
            it.matrix(&format!("{part}.gate.weight"), &[experts, hidden], &mut noise);
            let bias: Vec<u8> = (0..experts).flat_map(|_| normal(&mut noise).to_le_bytes()).collect();
            it.tensors.insert(format!("{part}.gate.e_score_correction_bias"), ("F32", vec![experts], bias));
            for expert in 0..experts {
                for (name, shape) in
                    [("w1", [inter, hidden]), ("w3", [inter, hidden]), ("w2", [hidden, inter])]
                {
                    it.matrix(&format!("{part}.experts.{expert}.{name}.weight"), &shape, &mut noise);
                }
            }
        }
        it
    }

    /// A random tensor in bf16.
    fn matrix(&mut self, name: &str, shape: &[usize], noise: &mut Noise) {
        let bytes = (0..shape.iter().product()).flat_map(|_| bf16(normal(noise))).collect();
        self.tensors.insert(name.to_owned(), ("BF16", shape.to_vec(), bytes));
    }

    /// Writes it into a folder of `scratch`.
    pub(crate) fn write(&self, scratch: &Scratch, name: &str) -> PathBuf {
        let (mut table, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, (dtype, shape, bytes)) in &self.tensors {
            let start = data.len();
            data.extend(bytes);
            let row = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
            table.insert(name.clone(), row);
        }
        let table = Value::Object(table).to_string();
        let file = [&(table.len() as u64).to_le_bytes(), table.as_bytes(), &data].concat();
        scratch.write(&format!("{name}/model.safetensors"), file);
        scratch.write(&format!("{name}/config.json"), self.config.to_string());
        scratch.path().join(name)
    }
}
