//! The pre-tokenisers that GGUF's `tokenizer.ggml.pre` names.
//!
//! Source: llama.cpp's `llm_tokenizer_bpe` (src/llama-vocab.cpp) for the names and patterns.
//!
//! Deliberately absent: all other names; they are refused, since a near miss changes ids silently.

use serde_json::json;

/// The names understood, for error messages.
pub(crate) const NAMES: &str =
    "gpt-2, gpt-4o, smollm, llama-bpe, qwen2, deepseek-v3, kimi-k2 and default are";

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const KIMI: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// `pat_str` of tiktoken's o200k_base.
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// One named pre-tokeniser and what goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreTokenizer {
    /// Split one after the other, before bytes become characters.
    patterns: &'static [&'static str],
    /// Whether GPT-2's own pattern is applied last.
    gpt2: bool,
    /// Whether a piece that is a token needs no merges.
    pub(crate) ignore_merges: bool,
    /// Whether text is brought to Unicode's composed form first.
    pub(crate) nfc: bool,
    /// Whether BOS is put in front where the file does not say.
    pub(crate) add_bos: bool,
}

const PLAIN: PreTokenizer =
    PreTokenizer { patterns: &[], gpt2: true, ignore_merges: false, nfc: false, add_bos: false };

/// The pre-tokeniser called `name`.
pub(crate) fn by_name(name: &str) -> Option<PreTokenizer> {
    Some(match name {
        "gpt-2" | "gpt2" => PLAIN,
        // Every numeric character alone: also ½, ² and digits of other scripts.
        "smollm" => PreTokenizer { patterns: &[r"\p{N}"], ..PLAIN },
        "llama-bpe" | "llama3" | "llama-v3" => PreTokenizer {
            patterns: &[
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
            gpt2: false,
            ignore_merges: true,
            add_bos: true,
            ..PLAIN
        },
        "qwen2" => PreTokenizer {
            patterns: &[
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
            gpt2: false,
            nfc: true,
            ..PLAIN
        },
        // Runs of Han alone; elsewhere a capital begins a word. Source: `pat_str` of Kimi's tokenization_kimi.py.
        "kimi-k2" => PreTokenizer { patterns: &[KIMI], gpt2: false, ignore_merges: true, ..PLAIN },
        "gpt-4o" => PreTokenizer { patterns: &[O200K], gpt2: false, ignore_merges: true, ..PLAIN },
        // Numbers, then runs of Han and Kana, then words that a mark may begin.
        "deepseek-v3" => PreTokenizer {
            patterns: &[
                r"\p{N}{1,3}",
                "[一-龥\u{3040}-ゟ゠-ヿ]+",
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
            ],
            gpt2: false,
            add_bos: true,
            ..PLAIN
        },
        "default" => PreTokenizer {
            patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
            gpt2: false,
            ..PLAIN
        },
        _ => return None,
    })
}

impl PreTokenizer {
    /// The pre-tokeniser in the JSON of the `tokenizers` crate.
    pub(crate) fn json(&self) -> String {
        let split = |it: &&str| json!({"type": "Split", "pattern": {"Regex": it}, "behavior": "Isolated", "invert": false});
        let mut parts: Vec<_> = self.patterns.iter().map(split).collect();
        parts.push(json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": self.gpt2,
        }));
        json!({"type": "Sequence", "pretokenizers": parts}).to_string()
    }

    /// The normaliser in the JSON of the `tokenizers` crate.
    pub(crate) fn normalizer(&self) -> Option<String> {
        self.nfc.then(|| json!({"type": "NFC"}).to_string())
    }
}
