//! The small closed vocabularies that ops and steps share: activations, elementwise functions, rotary styles, kinds of state.

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $word)] $variant),+ }
        impl $name {
            /// Every variant, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// The word in flags, IR text and plans.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
            /// Parses the word.
            #[must_use]
            pub fn from_name(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.name() == word)
            }
        }
    };
}
pub(crate) use words;

words! {
    /// An elementwise activation.
    Act {
        /// Identity.
        None = "none",
        /// x · sigmoid(x). Elfwing et al. 2017.
        Silu = "silu",
        /// 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))). Hendrycks & Gimpel 2016; GPT-2's `gelu_new`.
        GeluTanh = "gelu_tanh",
        /// 0.5 x (1 + erf(x / √2)). Hendrycks & Gimpel 2016.
        GeluErf = "gelu_erf",
        /// max(x, 0).
        Relu = "relu",
        /// Of a gate g and its partner u: β tanh(g/β) sigmoid(g) · λ tanh(u/λ), or · u where λ = 0. Kimi K3; only gated ops know β and λ.
        Situ = "situ",
    }
}

words! {
    /// An elementwise function of one operand.
    UnaryKind {
        /// See [`Act::Silu`].
        Silu = "silu",
        /// See [`Act::GeluTanh`].
        GeluTanh = "gelu_tanh",
        /// See [`Act::GeluErf`].
        GeluErf = "gelu_erf",
        /// See [`Act::Relu`].
        Relu = "relu",
        /// 1 / (1 + exp(−x)).
        Sigmoid = "sigmoid",
        /// ln(1 + exp(x)), x itself above 20.
        Softplus = "softplus",
        /// Hyperbolic tangent.
        Tanh = "tanh",
        /// e^x.
        Exp = "exp",
        /// −x.
        Neg = "neg",
    }
}

impl UnaryKind {
    /// The same function as the epilogue of a linear, if there is one.
    #[must_use]
    pub const fn as_act(self) -> Option<Act> {
        match self {
            Self::Silu => Some(Act::Silu),
            Self::GeluTanh => Some(Act::GeluTanh),
            Self::GeluErf => Some(Act::GeluErf),
            Self::Relu => Some(Act::Relu),
            Self::Sigmoid | Self::Softplus | Self::Tanh | Self::Exp | Self::Neg => None,
        }
    }
}

words! {
    /// Which two elements of a head a rotary embedding turns together.
    RopeStyle {
        /// i and i + dims/2: Hugging Face's row order.
        Half = "half",
        /// 2i and 2i + 1: the row order of GGUF's `llama`.
        Pair = "pair",
    }
}

words! {
    /// How router logits become scores.
    Scoring {
        /// Softmax over all experts.
        Softmax = "softmax",
        /// Sigmoid of each logit.
        Sigmoid = "sigmoid",
    }
}

words! {
    /// What a state holds and how it lies in memory. A cache (numerics §3) is `[row][head][tile of 32 positions]`, then as its kind says.
    StateKind {
        /// A cache; a tile is `[d][32]`.
        Keys = "keys",
        /// A cache; a tile is `[32][d]`.
        Values = "values",
        /// What a recurrence carries from token to token, row-major and double-buffered (numerics §5).
        Recurrent = "recurrent",
    }
}
