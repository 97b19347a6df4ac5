//! A small Kimi-Linear whose numbers are written twice: as a container, by the description of the format, and as a checkpoint.
//!
//! Codes, scales and centroids are drawn; bytes and weights are both computed from them, so no reader of the program is used.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::scratch::{Noise, Scratch};

/// How experts are coded: stages, entries, bits of an index, bytes of a vector's indices, the format byte of a record.
#[derive(Clone, Copy)]
pub(crate) struct Code {
    pub(crate) name: &'static str,
    stages: usize,
    entries: usize,
    bits: usize,
    bytes: usize,
    format: u8,
}

pub(crate) const VQ3R: Code = Code { name: "vq3r", stages: 3, entries: 256, bits: 8, bytes: 3, format: 4 };
pub(crate) const VQ2R: Code = Code { name: "vq2r", stages: 2, entries: 256, bits: 8, bytes: 2, format: 5 };
pub(crate) const VQ4P: Code = Code { name: "vq4p", stages: 4, entries: 64, bits: 6, bytes: 3, format: 8 };

const PREFIX: &str = "language_model.";
const HIDDEN: usize = 160;
const INTER: usize = 72;
const EXPERTS: usize = 4;
const VOCAB: usize = 48;
const HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const COLS: usize = HEADS * HEAD_DIM;
const LATENTS: usize = 64;
/// Rows and columns of gate, up and down.
const SHAPES: [(usize, usize); 3] = [(INTER, HIDDEN), (INTER, HIDDEN), (HIDDEN, INTER)];

/// Bits of a trunk format, and its number in a manifest.
#[derive(Clone, Copy)]
enum Format {
    F32,
    Grouped(usize, u32),
}

const Q8G: Format = Format::Grouped(8, 2);
const Q4G: Format = Format::Grouped(4, 3);
const Q3G: Format = Format::Grouped(3, 7);

/// Both forms of the model.
#[derive(Clone)]
pub(crate) struct Made {
    noise: u64,
    code: Code,
    trunk: Vec<u8>,
    index: Vec<Json>,
    codebooks: Vec<u8>,
    pub(crate) banks: Vec<Vec<u8>>,
    /// By name without prefix.
    weights: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

/// A number in −1 … 1.
fn signed(noise: &mut Noise) -> f32 {
    (noise.next() >> 40) as f32 / 8_388_608.0 - 1.0
}

/// Puts the low `bits` of `code` at bit `at`, lowest first.
fn put_bits(bytes: &mut [u8], at: usize, bits: usize, code: usize) {
    for bit in 0..bits {
        bytes[(at + bit) / 8] |= u8::try_from(code >> bit & 1).unwrap() << ((at + bit) % 8);
    }
}

fn half(value: f32) -> half::f16 {
    half::f16::from_f32(value)
}

impl Made {
    /// Of all norms: what a checkpoint has for latents anyway.
    pub(crate) const EPS: f32 = 1e-6;

    pub(crate) fn new(code: Code) -> Self {
        let mut made = Self {
            noise: 11,
            code,
            trunk: Vec::new(),
            index: Vec::new(),
            codebooks: Vec::new(),
            banks: Vec::new(),
            weights: BTreeMap::new(),
        };
        made.tensor("model.embed_tokens.weight", &[VOCAB, HIDDEN], Q8G);
        for layer in 0..3 {
            made.layer(layer);
        }
        made.tensor("model.norm.weight", &[HIDDEN], Format::F32);
        made.tensor("lm_head.weight", &[VOCAB, HIDDEN], Q8G);
        made.tensor("vision.patch.weight", &[4, 8], Format::F32);
        let vision = made.index.last_mut().unwrap();
        vision["name"] = "vision.patch.weight".into();
        made.weights.remove("vision.patch.weight");
        made
    }

    fn layer(&mut self, layer: usize) {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        for norm in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
            self.tensor(&name(norm), &[HIDDEN], Format::F32);
        }
        let attn = |part: &str| name(&format!("self_attn.{part}.weight"));
        if layer < 2 {
            for part in ["q", "k", "v"] {
                self.tensor(&attn(&format!("{part}_proj")), &[COLS, HIDDEN], Q4G);
                self.tensor(&attn(&format!("{part}_conv1d")), &[COLS, 1, 4], Format::F32);
            }
            for part in ["f", "g"] {
                self.tensor(&attn(&format!("{part}_a_proj")), &[HEAD_DIM, HIDDEN], Q4G);
                // Sixteen columns: no whole group of any kernel.
                self.tensor(&attn(&format!("{part}_b_proj")), &[COLS, HEAD_DIM], Q3G);
            }
            self.tensor(&attn("b_proj"), &[HEADS, HIDDEN], Q4G);
            self.tensor(&name("self_attn.A_log"), &[1, 1, HEADS, 1], Format::F32);
            self.tensor(&name("self_attn.dt_bias"), &[COLS], Format::F32);
            self.tensor(&attn("o_norm"), &[HEAD_DIM], Format::F32);
        } else {
            self.tensor(&attn("q_proj"), &[HEADS * 16, HIDDEN], Q8G);
            self.tensor(&attn("kv_a_proj_with_mqa"), &[LATENTS + 8, HIDDEN], Q3G);
            self.tensor(&attn("kv_a_layernorm"), &[LATENTS], Format::F32);
            self.tensor(&attn("kv_b_proj"), &[HEADS * 24, LATENTS], Q4G);
        }
        self.tensor(&attn("o_proj"), &[HIDDEN, COLS], Q4G);
        if layer == 0 {
            return self.feed_forward(&name("mlp"), 96);
        }
        let moe = |part: &str| name(&format!("block_sparse_moe.{part}"));
        self.tensor(&moe("gate.weight"), &[EXPERTS, HIDDEN], Q4G);
        self.tensor(&moe("gate.e_score_correction_bias"), &[EXPERTS], Format::F32);
        self.feed_forward(&moe("shared_experts"), INTER);
        self.experts(layer);
    }

    fn feed_forward(&mut self, name: &str, inter: usize) {
        self.tensor(&format!("{name}.gate_proj.weight"), &[inter, HIDDEN], Q3G);
        self.tensor(&format!("{name}.up_proj.weight"), &[inter, HIDDEN], Q3G);
        self.tensor(&format!("{name}.down_proj.weight"), &[HIDDEN, inter], Q4G);
    }

    fn tensor(&mut self, name: &str, shape: &[usize], format: Format) {
        let (mut noise, cols) = (Noise(self.noise), *shape.last().unwrap());
        let (rows, offset) = (shape.iter().rev().skip(1).product::<usize>(), self.trunk.len());
        let is_norm = name.contains("norm");
        let mut values = Vec::new();
        let mut entry = json!({"name": format!("{PREFIX}{name}"), "off": offset, "shape": shape, "bytes": 1});
        match format {
            Format::F32 => {
                entry["fmt"] = 0.into();
                values.extend((0..rows * cols).map(|_| match is_norm {
                    true => 1.0 + 0.3 * signed(&mut noise),
                    false => 0.5 * signed(&mut noise),
                }));
                values.iter().for_each(|it| self.trunk.extend(it.to_le_bytes()));
            }
            Format::Grouped(bits, id) => {
                let (groups, mut scales) = (cols.div_ceil(128), Vec::new());
                let most = [0, 0, 0, 3, 7, 0, 0, 0, 127][bits];
                for _ in 0..rows {
                    let mut bytes = vec![0; groups * bits * 16 + usize::from(bits == 3)];
                    for group in 0..groups {
                        // Large inputs to the lengths of q and k: their eps is not what is compared.
                        let scale =
                            half((1.5 + signed(&mut noise)) * 2.0 / (most as f32 * (cols as f32).sqrt()));
                        scales.extend(scale.to_le_bytes());
                        for i in group * 128..cols.min((group + 1) * 128) {
                            let q = i32::try_from(noise.below(2 * most + 1)).unwrap() - most as i32;
                            let code = if bits == 8 { q & 255 } else { q + (1 << (bits - 1)) };
                            put_bits(&mut bytes, bits * i, bits, usize::try_from(code).unwrap());
                            values.push(scale.to_f32() * q as f32);
                        }
                    }
                    self.trunk.extend(bytes);
                }
                entry["fmt"] = id.into();
                entry["group"] = 128.into();
                entry["scale_off"] = self.trunk.len().into();
                self.trunk.extend(scales);
            }
        }
        self.noise = noise.next();
        self.index.push(entry);
        self.weights.insert(name.to_owned(), (shape.to_vec(), values));
    }

    /// The bank of `layer` and its codebooks.
    fn experts(&mut self, layer: usize) {
        let (mut noise, code) = (Noise(self.noise), self.code);
        let base = self.codebooks.len() / self.book_bytes();
        let mut books: Vec<Vec<half::f16>> = Vec::new();
        for id in base..base + 3 * code.stages {
            let book: Vec<half::f16> =
                (0..code.entries * 8).map(|_| half(0.3 * signed(&mut noise))).collect();
            // Magic; id, format 4 and length 8; entries; nothing.
            let word = |it: usize| u32::try_from(it).unwrap();
            let header = [0x4b42_4357u32, word(id) | 0x0804_0000, word(code.entries), 0];
            header.iter().for_each(|it| self.codebooks.extend(it.to_le_bytes()));
            book.iter().for_each(|it| self.codebooks.extend(it.to_le_bytes()));
            books.push(book);
        }
        let mut bank = Vec::new();
        for expert in 0..EXPERTS {
            let (mut streams, mut scales) = (Vec::new(), Vec::new());
            for (kind, (rows, cols)) in SHAPES.into_iter().enumerate() {
                let mut stream = vec![0; rows.div_ceil(64) * 64 * (cols / 8) * code.bytes];
                let mut values = Vec::with_capacity(rows * cols);
                for row in 0..rows {
                    let scale = half((1.5 + signed(&mut noise)) / (cols as f32).sqrt());
                    scales.extend(scale.to_le_bytes());
                    for position in 0..cols / 8 {
                        let at = (row / 64 * (cols / 8) + position) * 64 * code.bytes + row % 64 * code.bytes;
                        let mut sums = [0.0; 8];
                        for stage in 0..code.stages {
                            let entry = noise.below(code.entries);
                            put_bits(&mut stream[at..], stage * code.bits, code.bits, entry);
                            let book = &books[kind * code.stages + stage][8 * entry..][..8];
                            sums.iter_mut().zip(book).for_each(|(sum, it)| *sum += it.to_f64());
                        }
                        values.extend(sums.map(|it| (scale.to_f64() * it) as f32));
                    }
                }
                streams.push(stream);
                let matrix = ["w1", "w3", "w2"][kind];
                let name = format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}.weight");
                self.weights.insert(name, (vec![rows, cols], values));
            }
            bank.extend(record(code, [layer, expert, base], &streams, &scales));
        }
        self.noise = noise.next();
        self.banks.push(bank);
    }

    fn book_bytes(&self) -> usize {
        16 + self.code.entries * 16
    }

    /// Bytes of one record.
    pub(crate) fn record_bytes(&self) -> usize {
        self.banks[0].len() / EXPERTS
    }

    /// The row of tensor `name` in the manifest.
    pub(crate) fn trunk_entry(&mut self, name: &str) -> &mut Json {
        self.index.iter_mut().find(|it| it["name"] == name).unwrap()
    }

    fn config() -> Json {
        json!({
            "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"],
            "hidden_size": HIDDEN, "num_hidden_layers": 3, "first_k_dense_replace": 1,
            "intermediate_size": 96, "moe_intermediate_size": INTER, "num_experts": EXPERTS,
            "num_experts_per_token": 2, "num_shared_experts": 1, "moe_renormalize": true,
            "routed_scaling_factor": 1.5, "num_attention_heads": HEADS, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8, "v_head_dim": 16, "kv_lora_rank": LATENTS, "mla_use_nope": true,
            "rms_norm_eps": Self::EPS, "vocab_size": VOCAB, "tie_word_embeddings": false, "hidden_act": "silu",
            "linear_attn_config": {
                "head_dim": HEAD_DIM, "num_heads": HEADS, "short_conv_kernel_size": 4,
                "kda_layers": [1, 2], "full_attn_layers": [3],
            },
        })
    }

    /// The container `name` in `dir`.
    pub(crate) fn write_container(&self, dir: &Scratch, name: &str) -> PathBuf {
        let code = self.code;
        let mut layers = serde_json::Map::new();
        for (i, bank) in self.banks.iter().enumerate() {
            let file = format!("experts-L{}.bin", i + 1);
            dir.write(&format!("{name}/{file}"), bank);
            let base = i * 3 * code.stages;
            let entry = json!({"file": file, "experts": EXPERTS, "bytes": bank.len(), "codebook_base": base});
            layers.insert((i + 1).to_string(), entry);
        }
        let manifest = json!({
            "format_version": 0, "arch": "test", "tensor_prefix": PREFIX, "config": Self::config(),
            "expert_quant": {
                "stages": code.stages, "vec_dim": 8, "entries": code.entries, "index_block": 64,
                "index_bits": code.bits,
            },
            "layers": layers, "trunk": self.index,
        });
        dir.write(&format!("{name}/trunk.bin"), &self.trunk);
        dir.write(&format!("{name}/codebooks.bin"), &self.codebooks);
        dir.write(&format!("{name}/manifest.json"), manifest.to_string()).parent().unwrap().to_path_buf()
    }

    /// The checkpoint `name` in `dir`.
    pub(crate) fn write_checkpoint(&self, dir: &Scratch, name: &str) -> PathBuf {
        let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = self
            .weights
            .iter()
            .map(|(name, (shape, values))| {
                (name.clone(), shape.clone(), values.iter().flat_map(|it| it.to_le_bytes()).collect())
            })
            .collect();
        let view = |shape: &[usize], bytes| {
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), bytes).unwrap()
        };
        let views = bytes.iter().map(|(name, shape, bytes)| (name.as_str(), view(shape, bytes)));
        let file = safetensors::serialize(views, None).unwrap();
        let mut config = Self::config();
        config["max_position_embeddings"] = 4096.into();
        dir.write(&format!("{name}/config.json"), config.to_string());
        dir.write(&format!("{name}/model.safetensors"), file).parent().unwrap().to_path_buf()
    }
}

/// The record of an expert: header, index streams, row scales, zeros.
fn record(code: Code, [layer, expert, base]: [usize; 3], streams: &[Vec<u8>], scales: &[u8]) -> Vec<u8> {
    let body = [&streams.concat()[..], scales].concat();
    let up = 48 + streams[0].len();
    let down = up + streams[1].len();
    let correction = down + streams[2].len();
    let blocks = (48 + body.len()).div_ceil(4096);
    let mut out = Vec::new();
    out.extend(0x5058_4557u32.to_le_bytes());
    [layer, expert].iter().for_each(|it| out.extend((*it as u16).to_le_bytes()));
    out.extend([code.format, 0]);
    [base, 0, 0].iter().for_each(|it| out.extend((*it as u16).to_le_bytes()));
    [blocks, 48, up, down, correction].iter().for_each(|it| out.extend((*it as u32).to_le_bytes()));
    out.extend(crc32fast::hash(&body).to_le_bytes());
    out.extend([0; 8]);
    out.extend(body);
    out.resize(blocks * 4096, 0);
    out
}
