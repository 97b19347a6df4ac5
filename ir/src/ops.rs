//! The op table: every op once, with its operands, attributes, results, formula and source.
//!
//! The table generates the enum, the names, and the generic attribute access that printer and parser use. An attribute with a
//! value after `=` is left out of the text where it has that value.
//! A new op also needs an arm in `infer`, `verify`, `interp` and the lowering: their matches are exhaustive.

use waste_plan::{Math, Tables, VqCode};

use crate::attrs::{Act, Attr, RopeScaling, RopeStyle, Scoring, UnaryKind};

macro_rules! ops {
    ($($(#[$doc:meta])* $name:literal $variant:ident ($($operand:literal),*) {$($attr:ident : $ty:ty $(= $neutral:expr)?),*} -> $results:literal;)+) => {
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

            /// Whether `name` is that of an op without results, which text writes without `=`.
            #[must_use]
            pub fn is_statement(name: &str) -> bool {
                match name { $($name => $results == 0,)+ _ => false }
            }

            /// Attributes to print, in declaration order: those that are not neutral.
            #[must_use]
            pub fn attrs(&self) -> Vec<(&'static str, String)> {
                #[allow(unused_mut, reason = "ops without attributes push nothing")]
                let mut out = Vec::new();
                match self {
                    $(Self::$variant { $($attr),* } => {
                        $(if !$attr.is_neutral() $(&& differs($attr, &$neutral))? {
                            out.push((stringify!($attr), $attr.print()));
                        })*
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
                        Ok(Self::$variant {
                            $($attr: find_attr(name, stringify!($attr), given, &[$($neutral)?])?),*
                        })
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

/// The attribute `key`; where it is not given, the op's own neutral value, or that of its type.
fn find_attr<A: Attr + Copy>(
    op: &str,
    key: &str,
    given: &[(&str, &str)],
    neutral: &[A],
) -> Result<A, String> {
    match given.iter().find(|it| it.0 == key) {
        Some((_, text)) => {
            A::parse(text).ok_or_else(|| format!("'{text}' is no value for '{key}' of '{op}'"))
        }
        None => {
            let neutral = neutral.first().copied().or_else(A::neutral);
            neutral.ok_or_else(|| format!("'{op}' needs the attribute '{key}'"))
        }
    }
}

/// Whether an attribute is other than neutral for its op.
fn differs<A: PartialEq>(value: &A, neutral: &A) -> bool {
    value != neutral
}

ops! {
    /// y[t] = w[ids[t]], decoded to f32.  ids: `i32[T]`, w: `any[V, n]`, y: `f32[T, n]`.
    "embed" Embed ("ids", "w") {} -> 1;
    /// Fixed-point activations in groups of 128 (numerics §2).  x: `f32[m, n]`, y: `fx[m, n]`.  The evaluator's identity.
    "quant_act" QuantAct ("x") { math: Math } -> 1;
    /// y = act(x · wᵀ + bias) + residual.  x: f32 or `fx[m, k]`, w: `any[n, k]`, before phase legal also `vq[n, k]`, bias: `f32[n]`, residual: `f32[m, n]`, y: `f32[m, n]`.
    "linear" Linear ("x", "w", "bias?", "residual?") { act: Act } -> 1;
    /// y = act(x · gateᵀ) ∘ (x · upᵀ).  x: f32 or `fx[m, k]`, gate, up: `any[n, k]`, y: `f32[m, n]`, or `fx[m, n]` by `quant`.
    /// `beta` and `linear` as in [`Op::Glu`].  Shazeer 2020, eq. 6.
    "linear_glu" LinearGlu ("x", "gate", "up") { act: Act, quant: Option<Math>, beta: f32 = 1.0, linear: f32 = 0.0 } -> 1;
    /// y[r] = x[r] · bank[r mod H]ᵀ: each head has its own matrix.  x: f32 or `fx[m·H, k]`, bank: `any[H, n, k]`, y: `f32[m·H, n]`.
    /// The value half of absorbed latent attention, DeepSeek-V2 report 2024, §2.1.
    "head_linear" HeadLinear ("x", "bank") {} -> 1;
    /// y[r] = x[r] · bank[r mod H].  x: `f32[m·H, n]`, bank: `any[H, n, k]`, y: `f32[m·H, k]`, the sum ascending over n.
    /// The key half of absorbed latent attention.
    "head_linear_t" HeadLinearT ("x", "bank") {} -> 1;
    /// y = lhs + rhs, elementwise.  f32, equal shapes.
    "add" Add ("lhs", "rhs") {} -> 1;
    /// y = lhs · rhs, elementwise.  f32, equal shapes.
    "mul" Mul ("lhs", "rhs") {} -> 1;
    /// y = kind(x), elementwise.  f32.
    "unary" Unary ("x") { kind: UnaryKind } -> 1;
    /// y = act(gate) ∘ up, elementwise.  f32, equal shapes.  Shazeer 2020.  `situ` alone knows β = `beta` and λ = `linear`:
    /// y = β tanh(gate/β) sigmoid(gate) · λ tanh(up/λ), or · up itself where λ = 0.  Kimi K3.
    "glu" Glu ("gate", "up") { act: Act, beta: f32 = 1.0, linear: f32 = 0.0 } -> 1;
    /// The columns of both.  lhs: `f32[m, a]`, rhs: `f32[m, b]`, y: `f32[m, a + b]`.
    "concat" Concat ("lhs", "rhs") {} -> 1;
    /// y[i] = x[i] / sqrt(mean(x²) + eps) · w[i] over the last dimension.  x: `f32[.., n]`, w: `f32[n]`, y: f32, or fx by `quant`.
    /// Zhang & Sennrich 2019, eq. 4; eps as in Llama.
    "rms_norm" RmsNorm ("x", "w") { eps: f32, quant: Option<Math> } -> 1;
    /// y[i] = (x[i] − mean) / sqrt(var + eps) · w[i] + b[i] over the last dimension.  x: `f32[m, n]`, w, b: `f32[n]`.
    /// Ba et al. 2016, biased variance.
    "layer_norm" LayerNorm ("x", "w", "b?") { eps: f32, quant: Option<Math> } -> 1;
    /// y = scale · x / sqrt(Σ x² + eps) over each `dim` columns.  x, y: `f32[m, n]`.  fla, `l2norm`.
    "l2_norm" L2Norm ("x") { dim: u32, eps: f32, scale: f32 } -> 1;
    /// y = rms_norm(x) ∘ w ∘ sigmoid(gate) over each d columns.  x, gate, y: `f32[m, n]`, w: `f32[d]`.  Kimi Linear report 2025, §4.
    "gated_rms_norm" GatedRmsNorm ("x", "gate", "w") { eps: f32 } -> 1;
    /// Attention over the residuals of earlier blocks: y = Σ_i p_i v_i over v = x, then each block, with
    /// p = softmax(Σ_j v_j / sqrt(mean(v²) + eps) · norm_j · proj_j).  x, y: `f32[T, h]`, norm, proj: `f32[h]`, blocks: `f32[T, nb·h]`.
    /// Kimi K3, AttnRes.
    "attn_res_mix" AttnResMix ("x", "norm", "proj", "blocks?") { eps: f32 } -> 1;
    /// cos and sin of pos · freq_i for freq_i = base^(−2i/dims) after `scaling`, divided by factors[i] if given.
    /// pos: `i32[T]`, factors: `f32[dims/2]`, y: `f32[T, dims]`: all cosines, then all sines.  Su et al. 2021.
    "rope_angles" RopeAngles ("pos", "factors?") { dims: u32, base: f64, scaling: RopeScaling } -> 1;
    /// Rotates `dims` (of `angles`) elements of each head, from element `skip`.  x: `f32[T, heads · head_dim]`, angles: `f32[T, dims]`.
    /// (a, b) → (a cos − b sin, b cos + a sin).  Su et al. 2021, eq. 34.
    "rope" Rope ("x", "angles") { head_dim: u32, style: RopeStyle, skip: u32 = 0 } -> 1;
    /// The next version of a cache, x[t] stored at (row[t], pos[t]).  cache: `state[B, S, heads, d]`, x: `f32[T, heads · d]`.
    "kv_append" KvAppend ("cache", "x", "row", "pos") {} -> 1;
    /// Causal grouped attention over the cache: y[t, h] = softmax(scale · q[t, h] · k[row, ≤ pos, g]) · v, g = h / (H / heads).
    /// q: `f32[T, H · d]`, k: `state[B, S, heads, d]`, v: `state[B, S, heads, dv]`, y: `f32[T, H · dv]`.
    /// Vaswani et al. 2017, eq. 1; Ainslie et al. 2023; order of summation in numerics §3.
    "attention" Attention ("q", "k", "v", "row", "pos") { scale: f32 } -> 1;
    /// Causal attention over latents that every head shares: y[t, h] = softmax(scale · (q · c[≤ pos] + q_rope · r[≤ pos])) · c, a position
    /// of the cache being c | r.  q: `f32[T·H, kl]`, q_rope: `f32[T·H, r]`, cache: `state[B, S, 1, kl + r]`, y: `f32[T·H, kl]`.
    /// DeepSeek-V2 report 2024, §2.1, absorbed; order of summation in numerics §3.
    "latent_attention" LatentAttention ("q", "cache", "row", "pos", "q_rope?") { scale: f32 } -> 1;
    /// A causal convolution along each row's tokens, channel by channel: y[t, c] = act(Σ_j w[c, j] · in[t − K + 1 + j, c]), and the next
    /// ring: the last K − 1 inputs of each row, oldest first.  `in` is x, before this call the ring of row[t]; where pos is 0 the row begins
    /// and all before it is 0.  ring: `state[B, 1, K − 1, C]`, x, y: `f32[T, C]`, w: `f32[C, K]`.  Kimi Linear report 2025, §4.
    "short_conv" ShortConv ("ring", "x", "w", "row", "pos") { act: Act } -> 2;
    /// exp(g), the factor by which a state decays: per head with a = exp(a_log), b = z + dt_bias: g = −a · softplus(b), or
    /// `lower_bound` · sigmoid(a · b) if that is not 0.  z, y: `f32[T, H · D]`, a_log: `f32[H]`, dt_bias: `f32[H · D]`.
    /// Kimi Linear report 2025, §4; the bounded form: Kimi K3.
    "kda_gate" KdaGate ("z", "a_log", "dt_bias") { lower_bound: f32 = 0.0 } -> 1;
    /// Kimi delta attention, token by token and head by head: S ← diag(decay) S; u = Sᵀ k; S ← S + k (beta · (v − u))ᵀ; o = Sᵀ q;
    /// and the next S of each row. Where pos is 0, S begins as 0.  s: `state[B, H, Dk, Dv]`, q, k, decay: `f32[T, H · Dk]`, v, o: `f32[T, H · Dv]`,
    /// beta: `f32[T, H]`.  Kimi Linear report 2025, eq. 1.
    "kda_step" KdaStep ("s", "q", "k", "v", "decay", "beta", "row", "pos") {} -> 2;
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
    /// (it only ranks).  `renorm` divides by the sum over the chosen, `scale` multiplies after.  The experts form `groups` of equal size, of
    /// which the `keep` best compete: a group's rank is the sum of its two best biased scores.  DeepSeek-V3 report, eq. 12–15, §2.1.2.
    "route_top_k" RouteTopK ("logits", "bias?") {
        k: u32, scoring: Scoring, renorm: bool, scale: f32, groups: u32 = 1, keep: u32 = 1
    } -> 2;
    /// r[t] = Σ_e weight(t, e) · body(e, x[t], y[t], z[t]) over the experts of token t, ascending e.  x, y, z: f32 or `fx[T, ..]`, ids: `i32[T, k]`,
    /// weights: `f32[T, k]`; lookup tables stand in for f32.  The region has arguments (expert: `i32[1]`, then one `[N, ..]` for each of x, y, z that is there) and
    /// yields `f32[N, h']`.
    "for_each_expert" ForEachExpert ("x", "ids", "weights", "y?", "z?") { experts: u32 } -> 1;
    /// A view of one expert's matrix in a bank.  bank: `any[E, n, k]`, expert: `i32[1]`, y: `any[n, k]`.
    "bank_slice" BankSlice ("bank", "expert") {} -> 1;
    /// The (token, expert) pairs of a call by expert, then token.  ids: `i32[T, k]`; order: `i32[T·k]`, the place t · k + rank of each pair in
    /// `ids`; groups: `i32[2·(E + 1)]`, (expert, its first pair) of each expert that has any, then (E, T·k) to the end; slots: `i32[T·k]`, the
    /// k pairs of each token, ascending.
    "expert_sort" ExpertSort ("ids") { experts: u32 } -> 3;
    /// y[p] = x[token of pair p].  x: `f32[T, n]`, order: `i32[T·k]`, y: `f32[T·k, n]`.
    "expert_gather" ExpertGather ("x", "order") {} -> 1;
    /// y[p] = act(x[p] · bank[expert of pair p]ᵀ); with `gather`, x[token of pair p].  x: f32 or `fx[T·k or T, n]`, bank: `any[E, m, n]`,
    /// order, groups: of [`Op::ExpertSort`], y: `f32[T·k, m]`.
    "expert_linear" ExpertLinear ("x", "bank", "order", "groups") { act: Act, gather: bool = false } -> 1;
    /// y[p] = act(x[p] · gate[e]ᵀ) ∘ (x[p] · up[e]ᵀ), e the expert of pair p; operands as in [`Op::ExpertLinear`], the rest as in
    /// [`Op::LinearGlu`].
    "expert_glu" ExpertGlu ("x", "gate", "up", "order", "groups") {
        act: Act, gather: bool = false, quant: Option<Math>, beta: f32 = 1.0, linear: f32 = 0.0
    } -> 1;
    /// T[v][s][c] = Σ_d x[8v + d] · books[s][c][d] of each row: what an expert's index stream looks its products up in.  x: `f32[m, k]`,
    /// books: `f32[stages, entries, 8]`, y: `lut[m, k]` by `code` and `tables`.  numerics §4.  The evaluator keeps x.
    "lut_build" LutBuild ("x", "books") { code: VqCode, tables: Tables } -> 1;
    /// y = x · wᵀ by the tables of x: y[r] = scale_r Σ_v Σ_s T[v][s][index_s(r, v)].  lut: `lut[m, k]`, w: `vq[n, k]`, y: `f32[m, n]`.
    "lut_apply" LutApply ("lut", "w") {} -> 1;
    /// y[p] = [`Op::LutApply`] of lut[p] and the matrix of pair p's expert; with `gather`, of lut[token of pair p].  lut: `lut[T·k or T, n]`,
    /// bank: `vq[E, m, n]`, order, groups: of [`Op::ExpertSort`], y: `f32[T·k, m]`.
    "expert_lut" ExpertLut ("lut", "bank", "order", "groups") { gather: bool = false } -> 1;
    /// y[p] = x[p] · bank[expert of pair p]ᵀ by tables that are made for it: [`Op::LutBuild`] and [`Op::ExpertLut`] in one.
    /// x: `f32[T·k or T, n]`, bank: `vq[E, m, n]`, order, groups: of [`Op::ExpertSort`], books: `f32[stages, entries, 8]`, y: `f32[T·k, m]`.
    "expert_vq" ExpertVq ("x", "bank", "order", "groups", "books") {
        code: VqCode, tables: Tables, gather: bool = false
    } -> 1;
    /// y[t] = Σ weight · x[p] over the pairs p of token t, ascending (numerics §1).  x: `f32[T·k, n]`, weights: `f32[T, k]`, y: `f32[T, n]`.
    "expert_sum" ExpertSum ("x", "weights", "order", "slots") {} -> 1;
    /// These experts of a bank may be wanted soon, the likeliest first: no result, and nothing depends on it.  ids: `i32[T, n]`, of a
    /// [`Op::RouteTopK`]; bank: `any[E, n, k]`, any of the matrices that lie together.
    "expert_hint" ExpertHint ("ids", "bank") {} -> 0;
}

impl Op {
    /// Whether the op only renames memory: no step, an alias for the planner.
    #[must_use]
    pub const fn is_view(&self) -> bool {
        matches!(self, Self::Slice { .. } | Self::Reshape { .. } | Self::BankSlice { .. })
    }

    /// Whether the op is there for what it does: it stays although nobody reads a result.
    #[must_use]
    pub const fn has_effect(&self) -> bool {
        matches!(self, Self::ExpertHint {})
    }

    /// The result that is the next version of the state in operand 0, if the op replaces one.
    #[must_use]
    pub const fn next_state(&self) -> Option<usize> {
        match self {
            Self::KvAppend {} => Some(0),
            Self::ShortConv { .. } | Self::KdaStep {} => Some(1),
            _ => None,
        }
    }

    /// Whether the op owns a region.
    #[must_use]
    pub const fn has_region(&self) -> bool {
        matches!(self, Self::ForEachExpert { .. })
    }
}
