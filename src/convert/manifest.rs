//! manifest.json of a new container: the same bytes for the same tables, and one line a tensor.

use serde_json::json;

use super::matrix::Matrix;
use super::source::Checkpoint;
use super::{BankEntry, ConvertOptions, TrunkFormat, TrunkTensor};
use crate::formats::container::{ROW_BLOCK, VEC_DIM};

/// Files that are taken over as they are.
pub(super) const SIDE_FILES: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tiktoken.model",
    "specials.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
];

/// The text of the manifest.
pub(super) fn text(
    checkpoint: &Checkpoint<'_>,
    options: &ConvertOptions,
    tensors: &[Matrix<'_>],
    table: &[TrunkTensor],
    banks: &[(u32, BankEntry)],
) -> String {
    let code = options.experts;
    let bits = 8 * code.position_bytes() / code.stages();
    let quant = json!({
        "fmt": code.name().to_uppercase(),
        "stages": code.stages(),
        "vec_dim": VEC_DIM,
        "entries": code.entries(),
        "index_block": ROW_BLOCK,
        "index_bits": bits,
        "bits_per_weight": code.position_bytes() as f64,
    });
    let bank = |(layer, entry): &(u32, BankEntry)| {
        let BankEntry { file, experts, bytes, codebook_base } = entry;
        let row = json!({"file": file, "experts": experts, "bytes": bytes, "codebook_base": codebook_base});
        format!("  \"{layer}\": {row}")
    };
    let tensor = |(matrix, tensor): (&Matrix<'_>, &TrunkTensor)| {
        let TrunkTensor { fmt, shape, group, offset, scale_offset } = tensor;
        let bytes = tensor.payload_bytes() + tensor.scale_bytes();
        let mut row =
            json!({"name": matrix.name(), "fmt": fmt.id(), "off": offset, "shape": shape, "bytes": bytes});
        if *fmt != TrunkFormat::F32 {
            row["group"] = json!(group);
            row["scale_off"] = json!(scale_offset);
        }
        format!("  {row}")
    };
    let lines = |all: Vec<String>| all.join(",\n");
    format!(
        "{{\n \"format_version\": 0,\n \"arch\": {},\n \"tensor_prefix\": {},\n \"config\": {},\n \"expert_quant\": {quant},\n \
         \"layers\": {{\n{}\n }},\n \"trunk\": [\n{}\n ]\n}}\n",
        json!(checkpoint.arch),
        json!(checkpoint.prefix),
        checkpoint.config,
        lines(banks.iter().map(bank).collect()),
        lines(tensors.iter().zip(table).map(tensor).collect()),
    )
}
