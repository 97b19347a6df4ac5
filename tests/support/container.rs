//! A container written byte by byte from its description, apart from the code that reads and writes them in the program.

#![allow(dead_code, reason = "each test crate uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::scratch::{Noise, Scratch};

pub(crate) const HIDDEN: usize = 16;
pub(crate) const INTER: usize = 72;
pub(crate) const EXPERTS: usize = 3;

/// Stages, entries, index bits, bytes a vector, and the format byte of a record.
#[derive(Clone, Copy)]
pub(crate) struct Code(pub(crate) usize, pub(crate) usize, pub(crate) usize, pub(crate) usize, pub(crate) u8);

pub(crate) const VQ3R: Code = Code(3, 256, 8, 3, 4);
pub(crate) const VQ2R: Code = Code(2, 256, 8, 2, 4);
pub(crate) const VQ4P: Code = Code(4, 64, 6, 3, 8);

/// The files of a small container, to be damaged before they are written.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) manifest: Value,
    pub(crate) trunk: Vec<u8>,
    pub(crate) codebooks: Vec<u8>,
    /// The bank of layer 1; layer 0 is dense.
    pub(crate) bank: Vec<u8>,
}

/// Little-endian halves that are small finite numbers.
fn halves(noise: &mut Noise, n: usize) -> Vec<u8> {
    let half = |it: u64| (0x3000 | (it as u16 & 0x87ff)).to_le_bytes();
    (0..n).flat_map(|_| half(noise.next())).collect()
}

fn bytes(noise: &mut Noise, n: usize) -> Vec<u8> {
    (0..n).map(|_| noise.next() as u8).collect()
}

/// Rows and columns of gate, up and down.
pub(crate) const SHAPES: [(usize, usize); 3] = [(INTER, HIDDEN), (INTER, HIDDEN), (HIDDEN, INTER)];

/// Where the streams and then the scales of a record start, and where they end.
pub(crate) fn offsets(code: Code) -> ([usize; 3], [usize; 3], usize) {
    let mut at = 48;
    let streams = SHAPES.map(|(rows, cols)| {
        let start = at;
        at += rows.div_ceil(64) * 64 * (cols / 8) * code.3;
        start
    });
    let scales = SHAPES.map(|(rows, _)| {
        let start = at;
        at += 2 * rows;
        start
    });
    (streams, scales, at)
}

fn record(noise: &mut Noise, code: Code, expert: usize) -> Vec<u8> {
    let (streams, scales, end) = offsets(code);
    let mut body = bytes(noise, scales[0] - 48);
    body.extend(halves(noise, (end - scales[0]) / 2));
    let blocks = end.div_ceil(4096);
    let mut out = Vec::new();
    out.extend(0x5058_4557u32.to_le_bytes());
    for half in [1, expert as u16] {
        out.extend(half.to_le_bytes());
    }
    out.extend([code.4, 0]);
    for half in [0u16, 0, 0] {
        out.extend(half.to_le_bytes());
    }
    for word in [blocks, streams[0], streams[1], streams[2], scales[0]] {
        out.extend((word as u32).to_le_bytes());
    }
    out.extend(crc32fast::hash(&body).to_le_bytes());
    out.extend([0; 8]);
    out.extend(body);
    out.resize(blocks * 4096, 0);
    out
}

impl Parts {
    pub(crate) fn new(code: Code) -> Self {
        let mut noise = Noise(7);
        let mut codebooks = Vec::new();
        for id in 0..3 * code.0 as u16 {
            codebooks.extend(0x4b42_4357u32.to_le_bytes());
            codebooks.extend(id.to_le_bytes());
            codebooks.extend([4, 8]);
            codebooks.extend((code.1 as u32).to_le_bytes());
            codebooks.extend([0; 4]);
            codebooks.extend(halves(&mut noise, code.1 * 8));
        }
        let bank: Vec<u8> = (0..EXPERTS).flat_map(|it| record(&mut noise, code, it)).collect();
        let mut trunk = Vec::new();
        let mut table = Vec::new();
        let mut add = |name: &str, fmt: u32, rows: usize, cols: usize, row_bytes: usize, groups: usize| {
            let off = trunk.len();
            if fmt == 0 {
                (0..rows * cols).for_each(|it| trunk.extend((it as f32 - 3.5).to_le_bytes()));
            } else {
                trunk.extend(bytes(&mut noise, rows * row_bytes));
            }
            let mut row = json!({"name": name, "fmt": fmt, "off": off, "shape": [rows, cols]});
            if fmt != 0 {
                row["group"] = json!(128);
                row["scale_off"] = json!(trunk.len());
                trunk.extend(halves(&mut noise, rows * groups));
            }
            row["bytes"] = json!(trunk.len() - off);
            table.push(row);
        };
        add("plain", 0, 3, 5, 20, 0);
        add("eight", 2, 4, 200, 256, 2);
        add("four", 3, 4, 200, 128, 2);
        add("three", 7, 4, 200, 97, 2);
        let config = json!({
            "model_type": "kimi_linear", "hidden_size": HIDDEN, "num_hidden_layers": 2, "first_k_dense_replace": 1,
            "num_experts": EXPERTS, "moe_intermediate_size": INTER, "moe_renormalize": false,
            "linear_attn_config": {"kda_layers": [1, 2]},
        });
        let manifest = json!({
            "format_version": 0, "arch": "test", "tensor_prefix": "", "config": config,
            "expert_quant": {
                "fmt": "ignored", "stages": code.0, "vec_dim": 8, "entries": code.1, "index_block": 64,
                "index_bits": code.2, "bits_per_weight": 3.0,
            },
            "layers": {"1": {"file": "experts-L1.bin", "experts": EXPERTS, "bytes": bank.len(), "codebook_base": 0}},
            "trunk": table,
        });
        Self { manifest, trunk, codebooks, bank }
    }

    /// Bytes of one record.
    pub(crate) fn record_bytes(&self) -> usize {
        self.bank.len() / EXPERTS
    }

    /// Corrects the checksum of every record.
    pub(crate) fn seal(&mut self, code: Code) {
        let (_, _, end) = offsets(code);
        let len = self.record_bytes();
        for record in self.bank.chunks_mut(len) {
            let crc = crc32fast::hash(&record[48..end]);
            record[36..40].copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// Writes the files into a folder of `scratch`.
    pub(crate) fn write(&self, scratch: &Scratch, name: &str) -> PathBuf {
        scratch.write(&format!("{name}/manifest.json"), self.manifest.to_string());
        scratch.write(&format!("{name}/trunk.bin"), &self.trunk);
        scratch.write(&format!("{name}/codebooks.bin"), &self.codebooks);
        scratch.write(&format!("{name}/experts-L1.bin"), &self.bank);
        scratch.path().join(name)
    }
}
