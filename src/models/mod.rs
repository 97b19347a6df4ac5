//! Front ends: from a model's files to graphs over its weights, one file an architecture.
//!
//! | file | holds |
//! |---|---|
//! | `llama` | Llama 2 and 3, Mistral without a window, SmolLM2, Qwen2, Qwen3, Mixtral, OLMoE, Qwen3-MoE; safetensors and GGUF |
//! | `gpt2` | GPT-2; safetensors and GGUF |
//! | `kimi` | Kimi-Linear and Kimi K3; safetensors and containers |
//! | `deepseek` | DeepSeek-V3 and R1, Kimi K2; safetensors and GGUF |
//! | `hybrid` | the decoder of Kimi and DeepSeek: delta or latent attention, dense or routed feed-forward |
//! | `kda`, `mla`, `moe`, `ffn` | delta attention, latent attention, routed experts, gated feed-forward: shared by families |
//! | `keys`, `rope` | configuration keys by value; what is not understood is refused by name |
//! | `weights` | tensors by name and shape; what is left over is refused by name |
//! | `lora` | adapters merged into the weights of an imported model |
//! | `program` | what all decoders share: symbols, inputs, states, outputs |
//!
//! [`import`] gives a module with two graphs over the same weights and caches:
//!
//! | graph | inputs | outputs |
//! |---|---|---|
//! | `decode` | token, row, pos: `i32[B]`, want: `i32[Q]` | logits: `f32[Q, vocab]`, next, finite: `i32[Q]`, each state |
//! | `prefill` | token, row, pos: `i32[T]`, want: `i32[R]` | logits: `f32[R, vocab]`, next, finite: `i32[R]`, each state |
//!
//! with B in 1..=batch, Q in 0..=batch, T in 1..=chunk, R in 0..=want.
//!
//! Invariants
//! - no weight byte is read: importing takes milliseconds, whatever the model's size;
//! - a key or tensor that could change the result is used or refused, never ignored;
//! - tensors keep their own names, so that messages and dumps can be compared with the file.
//!
//! Deliberately absent: fusions and any other rewriting (that is `waste-passes`), text, defaults of options.

mod deepseek;
mod ffn;
mod gpt2;
mod hybrid;
mod kda;
mod keys;
mod kimi;
mod llama;
mod lora;
mod mla;
mod moe;
mod program;
mod rope;
mod weights;

use waste_ir::{BuildError, Module};
use waste_plan::DType;

use crate::formats::{Format, FormatError, ModelFiles, shown};
pub use lora::{adapter_decl, merge as merge_adapters};
pub use weights::source_decls;

/// What a model is imported for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportOptions {
    /// Positions of each row's cache, at least 1; the cache is rounded up to whole tiles of 32.
    pub ctx: u32,
    /// Sequences side by side, at least 1.
    pub batch: u32,
    /// Most tokens of one prefill step, at least 1.
    pub chunk: u32,
    /// Most rows of logits of one prefill step, at least 1.
    pub want: u32,
    /// Element type of the caches: f32 or f16.
    pub kv: DType,
}

/// Why a model cannot be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A key or tensor is missing, unreadable, or not understood.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A tensor is not as the configuration says.
    #[error("{file}: tensor '{tensor}' has shape {found:?}, expected {expected:?}")]
    Shape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Row-major, as the file says.
        found: Vec<u64>,
        /// Row-major, as the configuration says.
        expected: Vec<u64>,
    },
    /// A tensor is stored in a type that its use does not allow.
    #[error("{file}: tensor '{tensor}' is stored as {found}, expected {expected}")]
    StoredAs {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The stored type.
        found: &'static str,
        /// What its use allows.
        expected: &'static str,
    },
    /// An adapter does not fit the model.
    #[error("{file}: module '{module}' {reason}")]
    Adapter {
        /// The adapter's file.
        file: String,
        /// The module that it adapts.
        module: String,
        /// What does not fit.
        reason: String,
    },
    /// The model was asked for what it cannot do.
    #[error("{option} {value}: {reason}")]
    Option {
        /// The option, such as `ctx`.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        reason: String,
    },
    /// The configuration asks for sizes that do not fit each other.
    #[error("{file}: {source}")]
    Build {
        /// The file with the configuration.
        file: String,
        /// The op that could not be built.
        source: BuildError,
    },
}

/// A result of this module.
pub type Result<T> = std::result::Result<T, ModelError>;

/// Lowers the model in `files` to graphs.
///
/// # Errors
/// Any [`ModelError`], with the key, tensor or option at fault.
pub fn import(files: &ModelFiles, opts: &ImportOptions) -> Result<Module> {
    opts.check()?;
    match Family::of(files)? {
        Family::Llama(variant) => llama::import(files, variant, opts),
        Family::Gpt2 => gpt2::import(files, opts),
        Family::Kimi => kimi::import(files, opts),
        Family::DeepSeek => deepseek::import(files, opts),
    }
}

/// Positions that the model was trained for.
///
/// # Errors
/// If the architecture is not supported or does not say.
pub fn trained_ctx(files: &ModelFiles) -> Result<u32> {
    match Family::of(files)? {
        Family::Llama(variant) => llama::trained_ctx(files, variant),
        Family::Gpt2 => gpt2::trained_ctx(files),
        Family::Kimi => kimi::trained_ctx(files),
        Family::DeepSeek => deepseek::trained_ctx(files),
    }
}

impl ImportOptions {
    fn check(&self) -> Result<()> {
        let counts = [("ctx", self.ctx), ("batch", self.batch), ("chunk", self.chunk), ("want", self.want)];
        if let Some((option, value)) = counts.into_iter().find(|it| it.1 == 0) {
            return Err(refused(option, value, "must be at least 1"));
        }
        if !matches!(self.kv, DType::F32 | DType::F16) {
            return Err(refused("kv", self.kv.name(), "must be f32 or f16"));
        }
        Ok(())
    }
}

fn refused(option: &'static str, value: impl ToString, reason: impl Into<String>) -> ModelError {
    ModelError::Option { option, value: value.to_string(), reason: reason.into() }
}

/// A front end, and which of its models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Llama(llama::Variant),
    Gpt2,
    Kimi,
    DeepSeek,
}

/// The names of supported architectures: in config.json, its class, in GGUF, and the front end.
const FAMILIES: [(&str, &str, &str, Family); 11] = [
    ("llama", "LlamaForCausalLM", "llama", Family::Llama(llama::Variant::Llama)),
    ("mistral", "MistralForCausalLM", "", Family::Llama(llama::Variant::Mistral)),
    ("qwen2", "Qwen2ForCausalLM", "qwen2", Family::Llama(llama::Variant::Qwen2)),
    ("qwen3", "Qwen3ForCausalLM", "qwen3", Family::Llama(llama::Variant::Qwen3)),
    ("mixtral", "MixtralForCausalLM", "", Family::Llama(llama::Variant::Mixtral)),
    ("olmoe", "OlmoeForCausalLM", "olmoe", Family::Llama(llama::Variant::Olmoe)),
    ("qwen3_moe", "Qwen3MoeForCausalLM", "qwen3moe", Family::Llama(llama::Variant::Qwen3Moe)),
    ("gpt2", "GPT2LMHeadModel", "gpt2", Family::Gpt2),
    ("kimi_linear", "KimiLinearForCausalLM", "", Family::Kimi),
    ("deepseek_v3", "DeepseekV3ForCausalLM", "deepseek2", Family::DeepSeek),
    ("kimi_k2", "DeepseekV3ForCausalLM", "", Family::DeepSeek),
];

impl Family {
    fn of(files: &ModelFiles) -> Result<Self> {
        match files.format() {
            Format::Gguf => Self::of_gguf(files),
            Format::Safetensors | Format::Container => Self::of_config(files),
        }
    }

    fn of_gguf(files: &ModelFiles) -> Result<Self> {
        let meta = files.meta();
        if let Some(kind) = meta.get_str("general.type")?.filter(|it| *it != "model") {
            let reason = format!("'{}' is not supported (only 'model' is)", shown(kind));
            return Err(meta.refuse("general.type", reason).into());
        }
        let name = meta.str("general.architecture")?;
        let known = FAMILIES.iter().find(|it| !it.2.is_empty() && it.2 == name);
        known.map(|it| it.3).ok_or_else(|| unsupported(files, "general.architecture", name))
    }

    /// By `model_type`; the class must be the decoder with a language model head of that type.
    fn of_config(files: &ModelFiles) -> Result<Self> {
        let meta = files.meta();
        let classes = meta.get_strs("architectures")?.unwrap_or_default();
        let known = match meta.get_str("model_type")? {
            Some(name) => {
                let known = FAMILIES.iter().find(|it| it.0 == name);
                known.ok_or_else(|| unsupported(files, "model_type", name))?
            }
            None => {
                let class = classes.first().ok_or_else(|| meta.missing("model_type"))?;
                let known = FAMILIES.iter().find(|it| it.1 == *class);
                known.ok_or_else(|| unsupported(files, "architectures", class))?
            }
        };
        match classes.iter().find(|it| **it != known.1) {
            Some(class) => Err(unsupported(files, "architectures", class)),
            None => Ok(known.3),
        }
    }
}

fn unsupported(files: &ModelFiles, key: &str, found: &str) -> ModelError {
    let names: Vec<&str> =
        FAMILIES.iter().map(|it| if key == "architectures" { it.1 } else { it.0 }).collect();
    let reason = format!("'{}' is not supported ({} are)", shown(found), names.join(", "));
    files.meta().refuse(key, reason).into()
}
