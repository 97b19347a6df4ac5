//! Random hybrids: layers of delta attention and of latent attention, dense or routed feed-forward, residuals of earlier blocks.

use waste_plan::{DType, VqCode};

use super::weights::Weights;
use super::{POSITIONS, ROWS, Rng};
use crate::attrs::{Act, RopeScaling, RopeStyle, Scoring, UnaryKind};
use crate::builder::{Built, GraphBuilder};
use crate::graph::{Graph, Module, Phase, StateDecl, StateId, StateKind, ValueId, WeightId};
use crate::ops::Op;
use crate::types::{Dim, TensorType};

/// What a seed chooses.
pub(super) struct Config {
    pub(super) vocab: u32,
    hidden: u32,
    heads: u32,
    /// Columns of a head of delta attention.
    head_dim: u32,
    taps: u32,
    /// Columns of the latents, and of a head's key, rotated key and value.
    latents: [u32; 4],
    rotates: bool,
    ff: u32,
    experts: u32,
    /// Groups of experts and how many compete.
    groups: (u32, u32),
    situ: Option<(f32, f32)>,
    lower_bound: f32,
    is_gated: bool,
    mixes: bool,
}

impl Config {
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self {
            vocab: 17 + rng.below(64),
            hidden: 32 * (1 + rng.below(2)),
            heads: 1 + rng.below(3),
            head_dim: rng.pick(&[8, 16, 32]),
            taps: 2 + rng.below(3),
            latents: [rng.pick(&[24, 32]), rng.pick(&[8, 12]), rng.pick(&[4, 8]), rng.pick(&[8, 10, 32])],
            rotates: rng.coin(),
            ff: 32 * (1 + rng.below(2)),
            experts: 4,
            groups: rng.pick(&[(1, 1), (2, 1)]),
            situ: rng.pick(&[None, Some((4.0, 25.0)), Some((2.0, 0.0))]),
            lower_bound: rng.pick(&[0.0, -5.0]),
            is_gated: rng.coin(),
            mixes: rng.coin(),
        }
    }
}

pub(super) struct Model {
    embed: WeightId,
    layers: Vec<Layer>,
    final_norm: WeightId,
    head: WeightId,
}

struct Layer {
    attn_norm: WeightId,
    attn: Attention,
    mix: Option<(WeightId, WeightId)>,
    ff_norm: WeightId,
    /// Router, then gate, up, down.
    router: Option<WeightId>,
    ff: [WeightId; 3],
}

enum Attention {
    Delta {
        qkv: [(WeightId, WeightId, StateId); 3],
        small: [WeightId; 7],
        state: StateId,
    },
    Latent {
        q: WeightId,
        kv_a: WeightId,
        norm: WeightId,
        banks: [WeightId; 2],
        gate: Option<WeightId>,
        out: WeightId,
        cache: StateId,
    },
}

impl Weights {
    pub(super) fn hybrid(&mut self, cx: &Config) -> Model {
        let embed = self.matrix("embed.weight", cx.vocab, cx.hidden);
        let first = self.rng.below(2);
        Model {
            embed,
            layers: (0..3).map(|i| self.hybrid_layer(i, cx, (i + first).is_multiple_of(2))).collect(),
            final_norm: self.vector("norm.weight", cx.hidden),
            head: self.matrix("head.weight", cx.vocab, cx.hidden),
        }
    }

    fn recurrent(&mut self, name: String, dims: [u32; 3]) -> StateId {
        let dims = [ROWS, dims[0], dims[1], dims[2]].map(Dim::Const);
        let ty = TensorType::new(DType::F32, &dims);
        self.module.states.push(StateDecl { name, ty, kind: StateKind::Recurrent })
    }

    fn hybrid_layer(&mut self, i: u32, cx: &Config, is_delta: bool) -> Layer {
        let at = |part: &str| format!("{i}.{part}");
        let attn_norm = self.vector(&at("attn_norm.weight"), cx.hidden);
        let attn = if is_delta { self.delta(i, cx) } else { self.latent(i, cx) };
        let mix = (cx.mixes && i > 0).then(|| {
            (self.vector(&at("mix_norm.weight"), cx.hidden), self.vector(&at("mix_proj"), cx.hidden))
        });
        let ff_norm = self.vector(&at("ff_norm.weight"), cx.hidden);
        let router = self.rng.coin().then(|| self.matrix(&at("router"), cx.experts, cx.hidden));
        let shapes = [("gate", cx.ff, cx.hidden), ("up", cx.ff, cx.hidden), ("down", cx.hidden, cx.ff)];
        let ff = match router {
            Some(_) => self.experts(cx.experts, shapes.map(|(name, rows, cols)| (at(name), rows, cols))),
            None => shapes.map(|(name, rows, cols)| self.matrix(&at(name), rows, cols)),
        };
        Layer { attn_norm, attn, mix, ff_norm, router, ff }
    }

    /// Banks of experts, each somewhere, or all of them vector-quantised in records.
    fn experts(&mut self, n: u32, matrices: [(String, u32, u32); 3]) -> [WeightId; 3] {
        match self.rng.pick(&[None, Some(VqCode::Vq2r), Some(VqCode::Vq4p)]) {
            Some(code) => {
                let banks = self.coded_banks(n, &matrices, code);
                banks.try_into().expect("a bank for each of three matrices")
            }
            None => matrices.map(|(name, rows, cols)| self.bank(&name, n, rows, cols)),
        }
    }

    fn delta(&mut self, i: u32, cx: &Config) -> Attention {
        let cols = cx.heads * cx.head_dim;
        let qkv = ["q", "k", "v"].map(|part| {
            let w = self.matrix(&format!("{i}.{part}"), cols, cx.hidden);
            let conv = self.float_matrix(&format!("{i}.{part}_conv"), cols, cx.taps);
            (w, conv, self.recurrent(format!("ring_{part}.{i}"), [1, cx.taps - 1, cols]))
        });
        let mut matrix = |part: &str, rows, cols| self.matrix(&format!("{i}.{part}"), rows, cols);
        let (decay, beta) = (matrix("decay", cols, cx.hidden), matrix("beta", cx.heads, cx.hidden));
        let (gate, out) = (matrix("o_gate", cols, cx.hidden), matrix("o", cx.hidden, cols));
        let mut vector = |part: &str, n| self.vector(&format!("{i}.{part}"), n);
        let (a_log, dt_bias) = (vector("a_log", cx.heads), vector("dt_bias", cols));
        let norm = vector("o_norm.weight", cx.head_dim);
        let state = self.recurrent(format!("delta.{i}"), [cx.heads, cx.head_dim, cx.head_dim]);
        Attention::Delta { qkv, small: [decay, beta, gate, out, a_log, dt_bias, norm], state }
    }

    fn latent(&mut self, i: u32, cx: &Config) -> Attention {
        let [latents, nope, rope, value] = cx.latents;
        let name = |part: &str| format!("{i}.{part}");
        let dims = [ROWS, POSITIONS, 1, latents + rope].map(Dim::Const);
        let ty = TensorType::new(DType::F32, &dims);
        Attention::Latent {
            q: self.matrix(&name("q"), cx.heads * (nope + rope), cx.hidden),
            kv_a: self.matrix(&name("kv_a"), latents + rope, cx.hidden),
            norm: self.vector(&name("kv_norm.weight"), latents),
            banks: [("keys", nope), ("values", value)]
                .map(|(part, rows)| self.bank(&name(part), cx.heads, rows, latents)),
            gate: cx.is_gated.then(|| self.matrix(&name("gate_o"), cx.heads * value, cx.hidden)),
            out: self.matrix(&name("o"), cx.hidden, cx.heads * value),
            cache: self.module.states.push(StateDecl {
                name: format!("latent.{i}"),
                ty,
                kind: StateKind::Keys,
            }),
        }
    }
}

/// A graph being built, with the places of its tokens.
struct Body<'m, 'c> {
    b: GraphBuilder<'m>,
    cx: &'c Config,
    places: (ValueId, ValueId),
    angles: Option<ValueId>,
    states: Vec<(StateId, ValueId)>,
}

pub(super) fn build(
    module: &Module,
    cx: &Config,
    model: &Model,
    name: &str,
    tokens: Dim,
    wanted: Dim,
) -> Built<Graph> {
    let mut b = GraphBuilder::new(module, name, Phase::Imported);
    let ids = |n| TensorType::new(DType::I32, &[n]);
    let [token, row, pos] = ["token", "row", "pos"].map(|it| b.input(it, ids(tokens)));
    let want = b.input("want", ids(wanted));
    let scaling = RopeScaling::Yarn { factor: 4.0, fast: 2.0, slow: 1.0, orig: 16 };
    let uses_latents = model.layers.iter().any(|it| matches!(it.attn, Attention::Latent { .. }));
    let angles = match cx.rotates && uses_latents {
        true => Some(b.rope_angles(pos, None, cx.latents[2], 100.0, scaling)?),
        false => None,
    };
    let mut body = Body { b, cx, places: (row, pos), angles, states: Vec::new() };
    let embed = body.b.weight(model.embed);
    let mut x = body.b.embed(token, embed)?;
    let first = x;
    for layer in &model.layers {
        let h = body.norm(x, layer.attn_norm)?;
        let y = body.attention(&layer.attn, h)?;
        x = body.b.add(x, y)?;
        if let Some((norm, proj)) = layer.mix {
            let weights = (body.b.weight(norm), body.b.weight(proj));
            x = body.b.attn_res_mix(x, weights, Some(first), 1e-5)?;
        }
        let h = body.norm(x, layer.ff_norm)?;
        let y = body.feed_forward(layer, h)?;
        x = body.b.add(x, y)?;
    }
    let x = body.b.select_rows(x, want)?;
    let x = body.norm(x, model.final_norm)?;
    let logits = body.linear(x, model.head)?;
    let Body { mut b, states, .. } = body;
    let next = b.argmax(logits)?;
    let finite = b.finite_check(logits)?;
    b.output("logits", logits);
    b.output("next", next);
    b.output("finite", finite);
    for (state, value) in states {
        b.output(&format!("@{}", module.states[state].name), value);
    }
    Ok(b.finish())
}

impl Body<'_, '_> {
    fn linear(&mut self, x: ValueId, w: WeightId) -> Built {
        let w = self.b.weight(w);
        self.b.linear(x, w)
    }

    fn norm(&mut self, x: ValueId, w: WeightId) -> Built {
        let w = self.b.weight(w);
        self.b.rms_norm(x, w, 1e-5)
    }

    fn attention(&mut self, attn: &Attention, x: ValueId) -> Built {
        match attn {
            Attention::Delta { qkv, small, state } => self.delta(qkv, *small, *state, x),
            Attention::Latent { q, kv_a, norm, banks, gate, out, cache } => {
                let o = self.latent([*q, *kv_a, *norm], *banks, *cache, x)?;
                let o = match gate {
                    Some(gate) => {
                        let gate = self.linear(x, *gate)?;
                        let gate = self.b.unary(gate, UnaryKind::Sigmoid)?;
                        self.b.mul(o, gate)?
                    }
                    None => o,
                };
                self.linear(o, *out)
            }
        }
    }

    fn delta(
        &mut self,
        qkv: &[(WeightId, WeightId, StateId); 3],
        [decay, beta, gate, out, a_log, dt_bias, norm]: [WeightId; 7],
        state: StateId,
        x: ValueId,
    ) -> Built {
        let mut mixed = Vec::new();
        for (w, conv, ring) in qkv {
            let y = self.linear(x, *w)?;
            let (old, conv) = (self.b.state(*ring), self.b.weight(*conv));
            let (y, next) = self.b.short_conv(old, y, conv, self.places)?;
            self.states.push((*ring, next));
            mixed.push(self.b.unary(y, UnaryKind::Silu)?);
        }
        let q = self.b.l2_norm(mixed[0], self.cx.head_dim, 1e-6, 0.25)?;
        let k = self.b.l2_norm(mixed[1], self.cx.head_dim, 1e-6, 1.0)?;
        let z = self.linear(x, decay)?;
        let (a_log, dt_bias) = (self.b.weight(a_log), self.b.weight(dt_bias));
        let decay = self.b.kda_gate(z, a_log, dt_bias, self.cx.lower_bound)?;
        let beta = self.linear(x, beta)?;
        let beta = self.b.unary(beta, UnaryKind::Sigmoid)?;
        let old = self.b.state(state);
        let (o, next) = self.b.kda_step(old, [q, k, mixed[2], decay, beta], self.places)?;
        self.states.push((state, next));
        let gate = self.linear(x, gate)?;
        let norm = self.b.weight(norm);
        let o = self.b.gated_rms_norm(o, gate, norm, 1e-5)?;
        self.linear(o, out)
    }

    fn latent(
        &mut self,
        [q, kv_a, norm]: [WeightId; 3],
        [keys, values]: [WeightId; 2],
        cache: StateId,
        x: ValueId,
    ) -> Built {
        let [latents, nope, rope, value] = self.cx.latents;
        let (mut q, mut both) = (self.linear(x, q)?, self.linear(x, kv_a)?);
        if let Some(angles) = self.angles {
            q = self.b.rope_from(q, angles, nope + rope, RopeStyle::Pair, nope)?;
            both = self.b.rope_from(both, angles, latents + rope, RopeStyle::Pair, latents)?;
        }
        let c = self.b.slice(both, 0, latents)?;
        let c = self.norm(c, norm)?;
        let r = self.b.slice(both, latents, rope)?;
        let entry = self.b.concat(c, r)?;
        let old = self.b.state(cache);
        let next = self.b.kv_append(old, entry, self.places.0, self.places.1)?;
        self.states.push((cache, next));
        let q = self.b.reshape(q, nope + rope)?;
        let (q_nope, q_rope) = (self.b.slice(q, 0, nope)?, self.b.slice(q, nope, rope)?);
        let (keys, values) = (self.b.weight(keys), self.b.weight(values));
        let absorbed = self.b.head_linear_t(q_nope, keys)?;
        let context = self.b.latent_attention((absorbed, Some(q_rope)), next, self.places, 0.25)?;
        let o = self.b.head_linear(context, values)?;
        self.b.reshape(o, self.cx.heads * value)
    }

    fn act(&mut self, gate: ValueId, up: ValueId) -> Built {
        match self.cx.situ {
            Some((beta, linear)) => self.b.situ(gate, up, beta, linear),
            None => self.b.glu(gate, up, Act::Silu),
        }
    }

    fn feed_forward(&mut self, layer: &Layer, x: ValueId) -> Built {
        let [gate, up, down] = layer.ff;
        let Some(router) = layer.router else {
            let (gate, up) = (self.linear(x, gate)?, self.linear(x, up)?);
            let h = self.act(gate, up)?;
            return self.linear(h, down);
        };
        let logits = self.linear(x, router)?;
        let (groups, keep) = self.cx.groups;
        let route = Op::RouteTopK { k: 2, scoring: Scoring::Sigmoid, renorm: true, scale: 1.5, groups, keep };
        let route = self.b.push(route, &[Some(logits), None], None)?;
        let routes = (self.b.graph().ops[route].results[0], self.b.graph().ops[route].results[1]);
        let x_ty = self.b.graph().ty(x).clone();
        let (_, args) = self.b.open_region(&[TensorType::new(DType::I32, &[Dim::Const(1)]), x_ty]);
        let [gate, up, down] = [gate, up, down].map(|it| self.b.weight(it));
        let gate = self.b.bank_slice(gate, args[0])?;
        let gate = self.b.linear(args[1], gate)?;
        let up = self.b.bank_slice(up, args[0])?;
        let up = self.b.linear(args[1], up)?;
        let h = self.act(gate, up)?;
        let down = self.b.bank_slice(down, args[0])?;
        let y = self.b.linear(h, down)?;
        let region = self.b.close_region(&[y]);
        self.b.for_each_expert(x, routes, self.cx.experts, region)
    }
}
