//! Configuration keys: which are understood, which change nothing, and the refusal of all others.
//!
//! Invariant: after [`refuse_unknown`], every key was read by a front end, is listed here as harmless, or has the value
//! that turns its feature off.

use waste_ir::{Act, UnaryKind};

use crate::formats::{FormatError, Meta, ModelFiles, shown};

/// Keys of config.json that do not change what the model computes: training, sampling defaults, bookkeeping, text.
/// A trailing `*` stands for any rest.
const HARMLESS: &[&str] = &[
    "_*",
    "attention_dropout",
    "attn_implementation",
    "attn_pdrop",
    "aux_loss_alpha",
    "auto_map.*",
    "bad_words_ids*",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cls_token_id",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "ep_size",
    "exponential_decay_length_penalty*",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label.*",
    "initializer_range",
    "is_llama_config",
    "label2id.*",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "max_window_layers",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads*",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "seq_aux",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params.*",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config.*",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_*",
    "use_bfloat16",
    "use_cache",
];

/// As [`HARMLESS`], of GGUF, after the architecture's prefix.
const HARMLESS_GGUF: &[&str] =
    &["rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout"];

/// Refuses the first key of a config.json that could change the result and was not read.
pub(super) fn refuse_unknown(meta: &Meta) -> Result<(), FormatError> {
    refuse_unread(meta, "", HARMLESS)
}

/// Refuses the first key of a GGUF about `arch` that could change the result and was not read.
pub(super) fn refuse_unknown_gguf(meta: &Meta, arch: &str) -> Result<(), FormatError> {
    refuse_unread(meta, &format!("{arch}."), HARMLESS_GGUF)
}

fn refuse_unread(meta: &Meta, prefix: &str, harmless: &[&str]) -> Result<(), FormatError> {
    let unread: Vec<&str> = meta.unused().collect();
    for key in unread {
        let Some(name) = key.strip_prefix(prefix) else { continue };
        if harmless.iter().any(|it| matches(it, name)) || is_off(meta, key) {
            continue;
        }
        return Err(meta.refuse(key, "is not understood and may change what the model computes"));
    }
    Ok(())
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

/// Whether `key` has a value that turns a feature off: false, 0, or an empty list.
fn is_off(meta: &Meta, key: &str) -> bool {
    meta.array_len(key) == Some(0)
        || meta.get_bool(key).is_ok_and(|it| it == Some(false))
        || meta.get_f64(key).is_ok_and(|it| it == Some(0.0))
}

/// Refuses `key` if it is true.
pub(super) fn refuse_true(meta: &Meta, key: &str) -> Result<(), FormatError> {
    match meta.get_bool(key)? {
        Some(true) => Err(meta.refuse(key, "true is not supported")),
        Some(false) | None => Ok(()),
    }
}

/// A count or size that must be at least 1.
pub(super) fn positive(meta: &Meta, key: &str) -> Result<u32, FormatError> {
    get_positive(meta, key)?.ok_or_else(|| meta.missing(key))
}

/// As [`positive`], if there.
pub(super) fn get_positive(meta: &Meta, key: &str) -> Result<Option<u32>, FormatError> {
    match meta.get_u32(key)? {
        Some(0) => Err(meta.refuse(key, "0, expected at least 1")),
        other => Ok(other),
    }
}

/// The number that keeps a norm from dividing by zero, as kernels take it.
pub(super) fn epsilon(meta: &Meta, key: &str, default: Option<f64>) -> Result<f32, FormatError> {
    let value = meta.get_f64(key)?.or(default).ok_or_else(|| meta.missing(key))?;
    #[expect(clippy::cast_possible_truncation, reason = "kernels take f32")]
    let eps = value as f32;
    if eps > 0.0 && eps.is_finite() {
        return Ok(eps);
    }
    Err(meta.refuse(key, format!("{value}, expected a positive number")))
}

/// The activation that `key` names; `default` if it is not there.
/// Names: transformers 5, `ACT2FN`.
pub(super) fn activation(meta: &Meta, key: &str, default: Act) -> Result<Act, FormatError> {
    Ok(match meta.get_str(key)? {
        None => default,
        Some("silu" | "swish") => Act::Silu,
        Some("gelu") => Act::GeluErf,
        Some("gelu_new" | "gelu_pytorch_tanh") => Act::GeluTanh,
        Some("relu") => Act::Relu,
        Some(other) => {
            let known = "silu, gelu, gelu_new, gelu_pytorch_tanh and relu are";
            return Err(meta.refuse(key, format!("'{}' is not supported ({known})", shown(other))));
        }
    })
}

/// `act` as an elementwise op; `None` for the identity and for what needs a gate.
pub(super) const fn unary(act: Act) -> Option<UnaryKind> {
    match act {
        Act::None | Act::Situ => None,
        Act::Silu => Some(UnaryKind::Silu),
        Act::GeluTanh => Some(UnaryKind::GeluTanh),
        Act::GeluErf => Some(UnaryKind::GeluErf),
        Act::Relu => Some(UnaryKind::Relu),
    }
}

/// Layers of a model that is only declared, at most: no tensors bound them.
const MOST_DECLARED: usize = 4096;

/// The number of layers that `key` says: at most as many as there are tensors.
pub(super) fn layers(files: &ModelFiles, key: &str) -> Result<u32, FormatError> {
    let meta = files.meta();
    let n_tensors = match files.container() {
        Some(it) if it.declared().is_some() => MOST_DECLARED,
        Some(it) => it.tensors().len(),
        None => files.tensors().len(),
    };
    let n = positive(meta, key)?;
    if n as usize > n_tensors {
        return Err(meta.refuse(key, format!("{n} layers, but there are {n_tensors} tensors")));
    }
    Ok(n)
}

/// Counts all keys that start with `prefix` as used: they are about what the model does not have.
pub(super) fn ignore_all(meta: &Meta, prefix: &str) {
    meta.keys().filter(|it| it.starts_with(prefix)).for_each(|it| meta.ignore(it));
}

/// `n` times `each` columns.
pub(super) fn columns(meta: &Meta, key: &str, n: u32, each: u32) -> Result<u32, FormatError> {
    n.checked_mul(each).ok_or_else(|| meta.refuse(key, format!("{n} times {each} columns")))
}
