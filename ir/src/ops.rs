//! The op table: every op once, with its operands, attributes, results, formula and source.
//!
//! The table generates the enum, the names, and the generic attribute access that printer and parser use.
//! A new op also needs an arm in `infer`, `verify`, `interp` and the lowering: their matches are exhaustive.

use waste_plan::Math;

use crate::attrs::{Act, Attr, RopeScaling, RopeStyle, Scoring, UnaryKind};

macro_rules! ops {
    ($($(#[$doc:meta])* $name:literal $variant:ident ($($operand:literal),*) {$($attr:ident : $ty:ty),*} -> $results:literal;)+) => {
        /// An operation; operands and results live in [`OpData`](crate::OpData).
        #[allow(rustdoc::broken_intra_doc_links, reason = "the table writes shapes in brackets")]
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $($(#[$doc])* $variant {
                $(#[doc = concat!("`", stringify!($attr), "`: see the op.")] $attr: $ty),*
            },)+
        }

        impl Op {
            /// Every op name, in table order.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name in IR text.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name),+ }
            }

            /// Operand names in order; a trailing `?` marks an optional operand.
            #[must_use]
            pub const fn operand_names(&self) -> &'static [&'static str] {
                match self { $(Self::$variant { .. } => &[$($operand),*]),+ }
            }

            /// The number of results.
            #[must_use]
            pub const fn n_results(&self) -> usize {
                match self { $(Self::$variant { .. } => $results),+ }
            }

            /// Attributes to print, in declaration order: those that are not neutral.
            #[must_use]
            pub fn attrs(&self) -> Vec<(&'static str, String)> {
                #[allow(unused_mut, reason = "ops without attributes push nothing")]
                let mut out = Vec::new();
                match self {
                    $(Self::$variant { $($attr),* } => {
                        $(if !$attr.is_neutral() { out.push((stringify!($attr), $attr.print())); })*
                    })+
                }
                out
            }

            /// Makes an op from its name and printed attributes.
            ///
            /// # Errors
            /// A sentence naming the unknown op, or the missing, malformed or superfluous attribute.
            pub fn from_text(name: &str, given: &[(&str, &str)]) -> Result<Self, String> {
                match name {
                    $($name => {
                        let known: &[&str] = &[$(stringify!($attr)),*];
                        check_attrs(name, known, given)?;
                        Ok(Self::$variant { $($attr: find_attr::<$ty>(name, stringify!($attr), given)?),* })
                    })+
                    _ => Err(format!("unknown op '{name}'")),
                }
            }
        }
    };
}

fn check_attrs(op: &str, known: &[&str], given: &[(&str, &str)]) -> Result<(), String> {
    for (i, (key, _)) in given.iter().enumerate() {
        if !known.contains(key) {
            return Err(format!("'{op}' has no attribute '{key}'"));
        }
        if given[..i].iter().any(|it| it.0 == *key) {
            return Err(format!("attribute '{key}' given twice"));
        }
    }
    Ok(())
}

fn find_attr<A: Attr>(op: &str, key: &str, given: &[(&str, &str)]) -> Result<A, String> {
    match given.iter().find(|it| it.0 == key) {
        Some((_, text)) => {
            A::parse(text).ok_or_else(|| format!("'{text}' is no value for '{key}' of '{op}'"))
        }
        None => A::neutral().ok_or_else(|| format!("'{op}' needs the attribute '{key}'")),
    }
}

ops! {
    /// y[t] = w[ids[t]], decoded to f32.  ids: `i32[T]`, w: `any[V, n]`, y: `f32[T, n]`.
    "embed" Embed ("ids", "w") {} -> 1;
    /// Fixed-point activations in groups of 128 (numerics §2).  x: `f32[m, n]`, y: `fx[m, n]`.  The evaluator's identity.
    "quant_act" QuantAct ("x") { math: Math } -> 1;
    /// y = act(x · wᵀ + bias) + residual.  x: f32 or `fx[m, k]`, w: `any[n, k]`, bias: `f32[n]`, residual: `f32[m, n]`, y: `f32[m, n]`.
    "linear" Linear ("x", "w", "bias?", "residual?") { act: Act } -> 1;
    /// y = act(x · gateᵀ) ∘ (x · upᵀ).  x: f32 or `fx[m, k]`, gate, up: `any[n, k]`, y: `f32[m, n]`, or `fx[m, n]` by `quant`.
    /// Shazeer 2020, eq. 6.
    "linear_glu" LinearGlu ("x", "gate", "up") { act: Act, quant: Option<Math> } -> 1;
    /// y = lhs + rhs, elementwise.  f32, equal shapes.
    "add" Add ("lhs", "rhs") {} -> 1;
    /// y = lhs · rhs, elementwise.  f32, equal shapes.
    "mul" Mul ("lhs", "rhs") {} -> 1;
    /// y = kind(x), elementwise.  f32.
    "unary" Unary ("x") { kind: UnaryKind } -> 1;
    /// y = act(gate) ∘ up, elementwise.  f32, equal shapes.  Shazeer 2020.
    "glu" Glu ("gate", "up") { act: Act } -> 1;
    /// y[i] = x[i] / sqrt(mean(x²) + eps) · w[i] over the last dimension.  x: `f32[.., n]`, w: `f32[n]`, y: f32, or fx by `quant`.
    /// Zhang & Sennrich 2019, eq. 4; eps as in Llama.
    "rms_norm" RmsNorm ("x", "w") { eps: f32, quant: Option<Math> } -> 1;
    /// y[i] = (x[i] − mean) / sqrt(var + eps) · w[i] + b[i] over the last dimension.  x: `f32[m, n]`, w, b: `f32[n]`.
    /// Ba et al. 2016, biased variance.
    "layer_norm" LayerNorm ("x", "w", "b?") { eps: f32, quant: Option<Math> } -> 1;
    /// cos and sin of pos · freq_i for freq_i = base^(−2i/dims) after `scaling`, divided by factors[i] if given.
    /// pos: `i32[T]`, factors: `f32[dims/2]`, y: `f32[T, dims]`: all cosines, then all sines.  Su et al. 2021.
    "rope_angles" RopeAngles ("pos", "factors?") { dims: u32, base: f64, scaling: RopeScaling } -> 1;
    /// Rotates the first `dims` (of `angles`) elements of each head.  x: `f32[T, heads · head_dim]`, angles: `f32[T, dims]`.
    /// (a, b) → (a cos − b sin, b cos + a sin).  Su et al. 2021, eq. 34.
    "rope" Rope ("x", "angles") { head_dim: u32, style: RopeStyle } -> 1;
    /// The next version of a cache, x[t] stored at (row[t], pos[t]).  cache: `state[B, S, heads, d]`, x: `f32[T, heads · d]`.
    "kv_append" KvAppend ("cache", "x", "row", "pos") {} -> 1;
    /// Causal grouped attention over the cache: y[t, h] = softmax(scale · q[t, h] · k[row, ≤ pos, g]) · v, g = h / (H / heads).
    /// q: `f32[T, H · d]`, k: `state[B, S, heads, d]`, v: `state[B, S, heads, dv]`, y: `f32[T, H · dv]`.
    /// Vaswani et al. 2017, eq. 1; Ainslie et al. 2023; order of summation in numerics §3.
    "attention" Attention ("q", "k", "v", "row", "pos") { scale: f32 } -> 1;
    /// y[r] = x[want[r]].  x: `f32[T, n]`, want: `i32[R]`, y: `f32[R, n]`.
    "select_rows" SelectRows ("x", "want") {} -> 1;
    /// A view of columns start … start + len.  x: `f32[m, n]`, y: `f32[m, len]`.
    "slice" Slice ("x") { start: u32, len: u32 } -> 1;
    /// A row-major view with `cols` columns.  x: `f32[m, n]`, y: `f32[m · n / cols, cols]`.
    "reshape" Reshape ("x") { cols: u32 } -> 1;
    /// y[r] = the id of the largest x[r]; ties go to the lower id, NaN never wins.  x: `f32[R, V]`, y: `i32[R]`.
    "argmax" Argmax ("x") {} -> 1;
    /// y[r] = 1 if all of x[r] is finite, else 0.  x: `f32[R, V]`, y: `i32[R]`.
    "finite_check" FiniteCheck ("x") {} -> 1;
    /// The k best experts of each token: ids `i32[T, k]`, best first, and their weights `f32[T, k]`.  logits: `f32[T, E]`, bias: `f32[E]`
    /// (it only ranks).  `renorm` divides by the sum over the chosen, `scale` multiplies after.  DeepSeek-V3 report, eq. 12–15.
    "route_top_k" RouteTopK ("logits", "bias?") { k: u32, scoring: Scoring, renorm: bool, scale: f32 } -> 2;
    /// y[t] = Σ_e weight(t, e) · body(e, x[t]) over the experts of token t, ascending e.  x: `f32[T, h]`, ids: `i32[T, k]`, weights: `f32[T, k]`.
    /// The region has arguments (expert: `i32[1]`, x: `f32[N, h]`) and yields `f32[N, h']`.
    "for_each_expert" ForEachExpert ("x", "ids", "weights") { experts: u32 } -> 1;
    /// A view of one expert's matrix in a bank.  bank: `any[E, n, k]`, expert: `i32[1]`, y: `any[n, k]`.
    "bank_slice" BankSlice ("bank", "expert") {} -> 1;
}

impl Op {
    /// Whether the op only renames memory: no step, an alias for the planner.
    #[must_use]
    pub const fn is_view(&self) -> bool {
        matches!(self, Self::Slice { .. } | Self::Reshape { .. } | Self::BankSlice { .. })
    }

    /// Whether the op owns a region.
    #[must_use]
    pub const fn has_region(&self) -> bool {
        matches!(self, Self::ForEachExpert { .. })
    }
}
