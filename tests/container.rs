//! Containers: a well-formed one is read exactly, a hostile one is refused in one line.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/container.rs"]
mod container;
#[path = "support/container_hostile.rs"]
mod hostile;
#[path = "support/scratch.rs"]
mod scratch;

use std::path::Path;

use container::{Code, EXPERTS, Parts, SHAPES, VQ2R, VQ3R, VQ4P, offsets};
use scratch::Scratch;
use waste::formats::container::{Container, MatrixKind, TrunkFormat, VqCode};
use waste::formats::{Format, ModelFiles};
use waste::text::TokenizerSpec;

/// Opens a container and reads all its headers; a refusal must be one short line.
pub(crate) fn open(folder: &Path) -> Result<Container, String> {
    let res = Container::open(folder).and_then(|it| it.check_headers().map(|()| it));
    res.map_err(|err| {
        let message = err.to_string();
        assert!(!message.contains('\n') && message.len() < 800, "one short line: {message}");
        message
    })
}

fn half(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

#[test]
fn a_folder_with_a_manifest_is_a_container() {
    let dir = Scratch::new("container-open");
    let files = ModelFiles::open(&Parts::new(VQ3R).write(&dir, "c"), None).unwrap();
    assert_eq!(files.format(), Format::Container);
    // Two of trunk and codebooks, one bank.
    assert_eq!((files.sources().len(), files.tensors().len()), (3, 0));
    let meta = files.meta();
    assert_eq!(meta.get_bool("moe_renormalize").unwrap(), Some(false), "the value, not the presence");
    assert_eq!(meta.get_ints::<u32>("linear_attn_config.kda_layers").unwrap(), Some(vec![1, 2]));
    let container = files.container().unwrap();
    assert_eq!((container.code(), container.prefix(), container.arch()), (VqCode::Vq3r, "", "test"));
    let before = files.header_hash().unwrap();
    let mut other = Parts::new(VQ3R);
    other.manifest["config"]["moe_renormalize"] = true.into();
    let other = ModelFiles::open(&other.write(&dir, "c"), None).unwrap();
    assert_ne!(other.header_hash().unwrap(), before);
}

#[test]
fn trunk_rows_decode_by_their_formulas() {
    let dir = Scratch::new("container-trunk");
    let parts = Parts::new(VQ3R);
    let container = open(&parts.write(&dir, "c")).unwrap();
    let row = |name: &str, row: u64| {
        let tensor = container.tensor(name).unwrap();
        let mut out = vec![0.0; usize::try_from(tensor.cols()).unwrap()];
        tensor.decode_row(container.trunk(), row, &mut out);
        out
    };
    assert_eq!(row("plain", 1), [1.5, 2.5, 3.5, 4.5, 5.5]);
    assert_eq!(container.tensor("plain").unwrap().fmt, TrunkFormat::F32);
    let at = |name: &str| {
        let tensor = container.tensor(name).unwrap();
        let index = |it: u64| usize::try_from(it).unwrap();
        (index(tensor.offset), index(tensor.scale_offset))
    };
    for (row_idx, weight) in [(0, 0), (1, 127), (2, 128), (3, 199)] {
        let (i, r) = (weight, usize::try_from(row_idx).unwrap());
        let (off, scales) = at("eight");
        let q = i8::from_le_bytes([parts.trunk[off + r * 256 + i]]);
        assert_eq!(
            row("eight", row_idx)[i],
            f32::from(q) * half(&parts.trunk, scales + 2 * (2 * r + i / 128))
        );
        let (off, scales) = at("four");
        let q = parts.trunk[off + r * 128 + i / 2] >> if i % 2 == 1 { 4 } else { 0 } & 15;
        let scale = half(&parts.trunk, scales + 2 * (2 * r + i / 128));
        assert_eq!(row("four", row_idx)[i], (f32::from(q) - 8.0) * scale);
        let (off, scales) = at("three");
        let bits = &parts.trunk[off + r * 97..off + (r + 1) * 97];
        let bit = |it: usize| f32::from(bits[it / 8] >> (it % 8) & 1);
        let code = bit(3 * i) + 2.0 * bit(3 * i + 1) + 4.0 * bit(3 * i + 2);
        assert_eq!(
            row("three", row_idx)[i],
            (code - 4.0) * half(&parts.trunk, scales + 2 * (2 * r + i / 128))
        );
    }
}

/// The weight at (row, col) of matrix `kind` of `expert`, straight from the description of the format.
fn weight(parts: &Parts, code: Code, expert: usize, kind: usize, row: usize, col: usize) -> f64 {
    let Code(stages, entries, bits, bytes, _) = code;
    let (streams, scales, _) = offsets(code);
    let record = &parts.bank[expert * parts.record_bytes()..];
    let (position, positions) = (col / 8, SHAPES[kind].1 / 8);
    let at = streams[kind] + ((row / 64) * positions + position) * 64 * bytes + (row % 64) * bytes;
    let word = (0..bytes).fold(0u32, |word, it| word | u32::from(record[at + it]) << (8 * it));
    let sum: f64 = (0..stages)
        .map(|stage| {
            let index = (word >> (bits * stage)) as usize & ((1 << bits) - 1);
            let book = (kind * stages + stage) * (16 + entries * 16);
            f64::from(half(&parts.codebooks, book + 16 + 2 * (8 * index + col % 8)))
        })
        .sum();
    f64::from(half(record, scales[kind] + 2 * row)) * sum
}

#[test]
fn expert_rows_decode_by_their_formula() {
    let dir = Scratch::new("container-experts");
    for code in [VQ3R, VQ2R, VQ4P] {
        let parts = Parts::new(code);
        let container = open(&parts.write(&dir, "c")).unwrap();
        let bank = &container.banks()[&1];
        assert_eq!((bank.layer(), bank.experts() as usize), (1, EXPERTS));
        for expert in [0, EXPERTS - 1] {
            let record = container.record(bank, u32::try_from(expert).unwrap()).unwrap();
            record.check_crc().unwrap();
            record.check_scales().unwrap();
            for (idx, kind) in MatrixKind::ALL.into_iter().enumerate() {
                let (rows, cols) = SHAPES[idx];
                let books = container.books(bank, kind);
                let mut out = vec![0.0; cols];
                for row in [0, 1, rows - 1] {
                    record.decode_row(kind, u32::try_from(row).unwrap(), &books, &mut out);
                    for (col, w) in out.iter().enumerate() {
                        assert_eq!(*w, weight(&parts, code, expert, idx, row, col) as f32);
                    }
                }
            }
        }
    }
}

#[test]
fn a_configuration_inside_another_has_its_prefix() {
    let dir = Scratch::new("container-outer");
    let mut parts = Parts::new(VQ4P);
    let inner = parts.manifest["config"].take();
    parts.manifest["config"] = serde_json::json!({"text_config": inner, "vision_config": {"a": 1}});
    let container = open(&parts.write(&dir, "c")).unwrap();
    assert_eq!(container.prefix(), "language_model.");
    assert_eq!(container.config().u32("num_experts").unwrap() as usize, EXPERTS);
}

/// Every text of the oracle, its ids by tiktoken, control tokens recognised.
#[test]
fn a_containers_ranks_give_the_ids_of_tiktoken() {
    let dir = Scratch::new("container-ranks");
    let folder = Parts::new(VQ3R).write(&dir, "c");
    let fixture = |name: &str| {
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/container").join(name)).unwrap()
    };
    let spec = || TokenizerSpec::from_model(&ModelFiles::open(&folder, None).unwrap()).unwrap();
    assert!(spec().is_none());
    dir.write("c/tokenizer.model", fixture("tiktoken.model"));
    dir.write("c/tokenizer_config.json", fixture("tokenizer_config.json"));
    let tokenizer = spec().unwrap().build().unwrap();
    let oracle: serde_json::Value = serde_json::from_slice(&fixture("tokenizer_oracle.json")).unwrap();
    let cases = oracle["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 41);
    for case in cases {
        let (text, ids) = (case["text"].as_str().unwrap(), &case["ids"]);
        let found = tokenizer.encode_with_specials(text).unwrap();
        assert_eq!(serde_json::json!(found), *ids, "{text:?}");
    }
    assert_eq!(tokenizer.control_id("<|im_end|>"), Some(1010));
    dir.write("c/specials.json", r#"[{"id": 1010, "text": "<|other|>"}]"#);
    assert_eq!(spec().unwrap().build().unwrap().control_id("<|other|>"), Some(1010), "it comes first");
}
