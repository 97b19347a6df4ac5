//! Seeded random decoder modules, with the bytes of their weights: the input of property tests in this and other crates.
//!
//! Invariants
//! - a module is a function of its seed, on every machine;
//! - every module is valid, in phase `imported`, and finite to evaluate: `decode` over sym `B`, `prefill` over syms `T` and `R`.
//!
//! The shapes vary over what the front ends build: grouped heads, biases, query and key norms, rotary or learned positions,
//! gated or plain feed-forward, one matrix for q, k, v or three, tied embeddings, float and integer weights.
//! Deliberately absent: realistic sizes, and any claim about the distribution.

use waste_plan::DType;

use crate::attrs::{Act, RopeScaling, RopeStyle, Scoring, UnaryKind};
use crate::builder::{Built, GraphBuilder};
use crate::graph::{
    Graph, ModelInfo, Module, Phase, SourceDecl, StateDecl, StateId, StateKind, ValueId, WeightId,
    WeightInit,
};
use crate::interp::decode_weight;
use crate::types::{Dim, SymDecl, TensorType};

/// Rows of the caches of a random module: sequences it can hold.
pub const ROWS: u32 = 3;
/// Positions of the caches of a random module.
pub const POSITIONS: u32 = 48;

/// A module and the bytes of its only source.
#[derive(Clone, Debug)]
pub struct RandomModule {
    /// The module; its source `@0` has the path `random`.
    pub module: Module,
    /// The bytes of source `@0`.
    pub bytes: Vec<u8>,
}

impl RandomModule {
    /// The decoded elements of a weight: a [`WeightSource`](crate::WeightSource) for the evaluator.
    ///
    /// # Errors
    /// If `id` is a weight that a pass declared outside the bytes.
    pub fn weight(&self, id: WeightId) -> Result<Vec<f64>, String> {
        self.weight_of(&self.module, id)
    }

    /// The same for a module that passes made of this one.
    ///
    /// # Errors
    /// If `id` lies outside the bytes.
    pub fn weight_of(&self, module: &Module, id: WeightId) -> Result<Vec<f64>, String> {
        decode_weight(module, id, &|_, offset, len| {
            let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
            let bytes = range.and_then(|(at, len)| self.bytes.get(at..at.checked_add(len)?));
            bytes.map(<[u8]>::to_vec).ok_or_else(|| format!("no {len} bytes at {offset}"))
        })
    }
}

/// A dense decoder.
#[must_use]
pub fn decoder(seed: u64) -> RandomModule {
    generate(seed, false)
}

/// A decoder whose feed-forward layers are routed experts.
#[must_use]
pub fn expert_decoder(seed: u64) -> RandomModule {
    generate(seed, true)
}

/// SplitMix64 (Steele et al. 2014): small, seedable, the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator of the stream of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub const fn below(&mut self, n: u32) -> u32 {
        let high = (self.bits() >> 32) * n as u64;
        #[expect(clippy::cast_possible_truncation, reason = "below n, which is a u32")]
        let below = (high >> 32) as u32;
        below
    }

    /// One of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(u32::try_from(items.len()).expect("few items")) as usize]
    }

    /// True half of the time.
    pub const fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// A number in `-1 .. 1`.
    pub fn signed(&mut self) -> f32 {
        f32::from(u16::try_from(self.bits() >> 48).expect("16 bits")) / 32768.0 - 1.0
    }
}

/// What a seed chooses.
struct Config {
    hidden: u32,
    kv_heads: u32,
    heads: u32,
    head_dim: u32,
    ff: u32,
    vocab: u32,
    experts: Option<u32>,
    rope: Option<(u32, RopeStyle, RopeScaling)>,
    gated: bool,
    layer_norm: bool,
    merged_qkv: bool,
    qk_norm: bool,
    biases: bool,
    act: UnaryKind,
    eps: f32,
}

impl Config {
    fn new(rng: &mut Rng, experts: bool) -> Self {
        let head_dim = rng.pick(&[16, 32]);
        let kv_heads = 1 + rng.below(2);
        let scaling = rng.pick(&[
            RopeScaling::None,
            RopeScaling::Linear { factor: 2.5 },
            RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, orig: 16 },
        ]);
        let dims = rng.pick(&[head_dim, head_dim / 2]);
        let style = rng.pick(RopeStyle::ALL);
        Self {
            hidden: 32 * (1 + rng.below(4)),
            kv_heads,
            heads: kv_heads * (1 + rng.below(3)),
            head_dim,
            ff: 32 * (1 + rng.below(5)),
            vocab: 17 + rng.below(64),
            experts: experts.then(|| 2 + rng.below(4)),
            rope: (rng.below(4) > 0).then_some((dims, style, scaling)),
            gated: rng.below(3) > 0,
            layer_norm: rng.below(3) == 0,
            merged_qkv: rng.below(3) == 0,
            qk_norm: rng.below(3) == 0,
            biases: rng.coin(),
            act: rng.pick(&[UnaryKind::Silu, UnaryKind::GeluTanh, UnaryKind::GeluErf, UnaryKind::Relu]),
            eps: rng.pick(&[1e-5, 1e-6]),
        }
    }
}

/// Weights of a norm: w, and b of a layer norm.
type Norm = (WeightId, Option<WeightId>);
/// Weights of a linear: w and bias.
type Linear = (WeightId, Option<WeightId>);

struct Layer {
    attn_norm: Norm,
    qkv: Vec<Linear>,
    qk_norm: Option<(WeightId, WeightId)>,
    out: Linear,
    ff_norm: Norm,
    ff: Vec<Linear>,
    router: Option<WeightId>,
    cache: (StateId, StateId),
}

struct Model {
    embed: WeightId,
    positions: Option<WeightId>,
    layers: Vec<Layer>,
    norm: Norm,
    head: WeightId,
}

/// Declares weights and makes up their bytes.
struct Weights {
    rng: Rng,
    module: Module,
    bytes: Vec<u8>,
}

impl Weights {
    /// A weight of `dims`; `stored` may be a narrower float than the declared `dtype`.
    fn add(&mut self, name: &str, dtype: DType, dims: &[u32], stored: DType, transposed: bool) -> WeightId {
        let offset = self.bytes.len() as u64;
        let n: u32 = dims.iter().product();
        for _ in 0..n / stored.block().expect("a weight dtype").elems {
            self.block(stored, !name.contains("norm.weight"));
        }
        self.bytes.resize(self.bytes.len().next_multiple_of(32), 0);
        let dims: Vec<Dim> = dims.iter().copied().map(Dim::Const).collect();
        let source = self.module.sources.keys().next().expect("the one source");
        let init = match transposed {
            true => WeightInit::Transposed { source, offset, stored },
            false => WeightInit::Stored { source, offset, stored },
        };
        self.module.add_weight(name, TensorType::new(dtype, &dims), init)
    }

    /// One block with magnitudes around 0.1; around 1 and positive if not `centred`.
    fn block(&mut self, stored: DType, centred: bool) {
        let value = if centred { 0.2 * self.rng.signed() } else { 1.0 + 0.3 * self.rng.signed() };
        match stored {
            DType::F32 => self.bytes.extend(value.to_le_bytes()),
            DType::BF16 => self.bytes.extend(&value.to_le_bytes()[2..]),
            DType::F16 => self.bytes.extend(f16_bits(value).to_le_bytes()),
            DType::Q8_0 => {
                self.bytes.extend(f16_bits(value / 100.0).to_le_bytes());
                self.fill(32);
            }
            DType::Q4_0 => {
                self.bytes.extend(f16_bits(value / 8.0).to_le_bytes());
                self.fill(16);
            }
            DType::Q4_1 => {
                self.bytes.extend(f16_bits(value / 8.0).to_le_bytes());
                self.bytes.extend(f16_bits(-value).to_le_bytes());
                self.fill(16);
            }
            DType::I32 | DType::Fx24 | DType::Fx16 | DType::Fx8 => unreachable!("no weight dtype"),
        }
    }

    fn fill(&mut self, n: usize) {
        for _ in 0..n {
            self.bytes.push(self.rng.bits().to_le_bytes()[7]);
        }
    }

    fn matrix(&mut self, name: &str, rows: u32, cols: u32) -> WeightId {
        self.matrices(name, &[rows, cols])
    }

    /// A matrix, or a bank of them, of any weight dtype that fits its columns.
    fn matrices(&mut self, name: &str, dims: &[u32]) -> WeightId {
        let all = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_1];
        let fits = if dims.last().is_some_and(|it| it % 32 == 0) { &all[..] } else { &all[..3] };
        let dtype = self.rng.pick(fits);
        let transposed = dims.len() == 2 && dtype.is_float() && self.rng.below(4) == 0;
        self.add(name, dtype, dims, dtype, transposed)
    }

    fn vector(&mut self, name: &str, n: u32) -> WeightId {
        let stored = self.rng.pick(&[DType::F32, DType::F16, DType::BF16]);
        self.add(name, DType::F32, &[n], stored, false)
    }

    fn linear(&mut self, name: &str, rows: u32, cols: u32, bias: bool) -> Linear {
        let w = self.matrix(&format!("{name}.weight"), rows, cols);
        (w, bias.then(|| self.vector(&format!("{name}.bias"), rows)))
    }

    fn norm(&mut self, name: &str, cx: &Config) -> Norm {
        let w = self.vector(&format!("{name}.weight"), cx.hidden);
        let bias = cx.layer_norm && self.rng.coin();
        (w, bias.then(|| self.vector(&format!("{name}.bias"), cx.hidden)))
    }

    fn state(&mut self, name: String, kind: StateKind, cx: &Config) -> StateId {
        let dims = [ROWS, POSITIONS, cx.kv_heads, cx.head_dim].map(Dim::Const);
        self.module.states.push(StateDecl { name, ty: TensorType::new(DType::F32, &dims), kind })
    }

    fn layer(&mut self, i: usize, cx: &Config) -> Layer {
        let at = |part: &str| format!("blk.{i}.{part}");
        let (q, kv) = (cx.heads * cx.head_dim, cx.kv_heads * cx.head_dim);
        let qkv = match cx.merged_qkv {
            true => vec![self.linear(&at("attn_qkv"), q + 2 * kv, cx.hidden, cx.biases)],
            false => [("attn_q", q), ("attn_k", kv), ("attn_v", kv)]
                .map(|(name, rows)| self.linear(&at(name), rows, cx.hidden, cx.biases))
                .into(),
        };
        let ups: &[&str] = if cx.gated { &["ffn_gate", "ffn_up"] } else { &["ffn_up"] };
        let ff = match cx.experts {
            Some(n) => {
                let mut banks: Vec<Linear> =
                    ups.iter().map(|it| (self.matrices(&at(it), &[n, cx.ff, cx.hidden]), None)).collect();
                banks.push((self.matrices(&at("ffn_down"), &[n, cx.hidden, cx.ff]), None));
                banks
            }
            None => {
                let mut linears: Vec<Linear> =
                    ups.iter().map(|it| self.linear(&at(it), cx.ff, cx.hidden, cx.biases)).collect();
                linears.push(self.linear(&at("ffn_down"), cx.hidden, cx.ff, cx.biases));
                linears
            }
        };
        Layer {
            attn_norm: self.norm(&at("attn_norm"), cx),
            qkv,
            qk_norm: cx.qk_norm.then(|| {
                let mut norm = |name| self.vector(&at(name), cx.head_dim);
                (norm("attn_q_norm.weight"), norm("attn_k_norm.weight"))
            }),
            out: self.linear(&at("attn_output"), cx.hidden, q, cx.biases),
            ff_norm: self.norm(&at("ffn_norm"), cx),
            ff,
            router: cx.experts.map(|n| self.matrix(&at("ffn_gate_inp.weight"), n, cx.hidden)),
            cache: (
                self.state(format!("k.{i}"), StateKind::Keys, cx),
                self.state(format!("v.{i}"), StateKind::Values, cx),
            ),
        }
    }
}

/// The f16 nearest to zero from `value`, which must be 0 or of normal magnitude below 65504.
fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let exponent = (bits >> 23 & 0xff).saturating_sub(112);
    let magnitude = if exponent == 0 { 0 } else { exponent << 10 | bits >> 13 & 0x3ff };
    u16::try_from(bits >> 16 & 0x8000 | magnitude).expect("16 bits")
}

fn generate(seed: u64, experts: bool) -> RandomModule {
    let mut rng = Rng::new(seed);
    let cx = Config::new(&mut rng, experts);
    let mut module = Module::default();
    let name = format!("random {seed}");
    module.info =
        ModelInfo { name, arch: "random".to_owned(), ctx_trained: POSITIONS, vocab: cx.vocab };
    module.sources.push(SourceDecl { path: "random".to_owned(), bytes: 0, header_sha256: "00".repeat(32) });
    let mut sym = |name: &str, hi| module.syms.push(SymDecl { name: name.to_owned(), lo: 1, hi });
    let (b, t, r) = (Dim::sym(sym("B", ROWS)), Dim::sym(sym("T", 16)), Dim::sym(sym("R", 16)));
    let n_layers = 1 + rng.below(3) as usize;
    let tied = rng.coin();
    let mut weights = Weights { rng, module, bytes: Vec::new() };
    let embed = weights.matrix("token_embd.weight", cx.vocab, cx.hidden);
    let model = Model {
        embed,
        positions: cx.rope.is_none().then(|| weights.matrix("position_embd.weight", POSITIONS, cx.hidden)),
        layers: (0..n_layers).map(|i| weights.layer(i, &cx)).collect(),
        norm: weights.norm("output_norm", &cx),
        head: if tied { embed } else { weights.matrix("output.weight", cx.vocab, cx.hidden) },
    };
    let Weights { mut module, bytes, .. } = weights;
    for source in module.sources.values_mut() {
        source.bytes = bytes.len() as u64;
    }
    for (name, tokens, wanted) in [("decode", b, b), ("prefill", t, r)] {
        let graph = graph(&module, &cx, &model, name, tokens, wanted).expect("operands that fit");
        module.graphs.push(graph);
    }
    RandomModule { module, bytes }
}

fn graph(module: &Module, cx: &Config, model: &Model, name: &str, tokens: Dim, wanted: Dim) -> Built<Graph> {
    let mut b = GraphBuilder::new(module, name, Phase::Imported);
    let ids = |n| TensorType::new(DType::I32, &[n]);
    let [token, row, pos] = ["token", "row", "pos"].map(|it| b.input(it, ids(tokens)));
    let want = b.input("want", ids(wanted));
    let angles = match cx.rope {
        Some((dims, _, scaling)) => Some(b.rope_angles(pos, None, dims, 10000.0, scaling)?),
        None => None,
    };
    let embed = b.weight(model.embed);
    let mut x = b.embed(token, embed)?;
    if let Some(positions) = model.positions {
        let positions = b.weight(positions);
        let positions = b.embed(pos, positions)?;
        x = b.add(x, positions)?;
    }
    let mut states = Vec::new();
    for layer in &model.layers {
        let y = norm(&mut b, cx, x, layer.attn_norm)?;
        let y = attention(&mut b, cx, layer, y, Place { row, pos, angles }, &mut states)?;
        x = b.add(y, x)?;
        let y = norm(&mut b, cx, x, layer.ff_norm)?;
        let y = match layer.router {
            Some(router) => experts(&mut b, cx, layer, router, y)?,
            None => feed_forward(&mut b, cx, layer, y)?,
        };
        x = b.add(x, y)?;
    }
    let x = b.select_rows(x, want)?;
    let x = norm(&mut b, cx, x, model.norm)?;
    let head = b.weight(model.head);
    let logits = b.linear(x, head)?;
    let next = b.argmax(logits)?;
    let finite = b.finite_check(logits)?;
    b.output("logits", logits);
    b.output("next", next);
    b.output("finite", finite);
    for (name, value) in states {
        b.output(&name, value);
    }
    Ok(b.finish())
}

fn norm(b: &mut GraphBuilder<'_>, cx: &Config, x: ValueId, (w, bias): Norm) -> Built {
    let w = b.weight(w);
    let bias = bias.map(|it| b.weight(it));
    if cx.layer_norm { b.layer_norm(x, w, bias, cx.eps) } else { b.rms_norm(x, w, cx.eps) }
}

fn linear(b: &mut GraphBuilder<'_>, x: ValueId, (w, bias): Linear) -> Built {
    let w = b.weight(w);
    match bias.map(|it| b.weight(it)) {
        Some(bias) => b.linear_bias(x, w, bias),
        None => b.linear(x, w),
    }
}

/// Where tokens stand: their rows, positions, and rotary angles.
struct Place {
    row: ValueId,
    pos: ValueId,
    angles: Option<ValueId>,
}

fn attention(
    b: &mut GraphBuilder<'_>,
    cx: &Config,
    layer: &Layer,
    x: ValueId,
    at: Place,
    states: &mut Vec<(String, ValueId)>,
) -> Built {
    let (q_cols, kv_cols) = (cx.heads * cx.head_dim, cx.kv_heads * cx.head_dim);
    let [mut q, mut k, v] = match layer.qkv[..] {
        [q, k, v] => [linear(b, x, q)?, linear(b, x, k)?, linear(b, x, v)?],
        _ => {
            let qkv = linear(b, x, layer.qkv[0])?;
            let mut part = |start, len| b.slice(qkv, start, len);
            [part(0, q_cols)?, part(q_cols, kv_cols)?, part(q_cols + kv_cols, kv_cols)?]
        }
    };
    if let Some((qw, kw)) = layer.qk_norm {
        q = head_norm(b, cx, q, qw, q_cols)?;
        k = head_norm(b, cx, k, kw, kv_cols)?;
    }
    if let (Some(angles), Some((_, style, _))) = (at.angles, cx.rope) {
        q = b.rope(q, angles, cx.head_dim, style)?;
        k = b.rope(k, angles, cx.head_dim, style)?;
    }
    let mut append = |state, x| {
        let cache = b.state(state);
        let next = b.kv_append(cache, x, at.row, at.pos)?;
        states.push((format!("@{}", b.module().states[state].name), next));
        Ok(next)
    };
    let (k, v) = (append(layer.cache.0, k)?, append(layer.cache.1, v)?);
    let scale = if cx.head_dim == 16 { 0.25 } else { 0.176_776_69 };
    let y = b.attention(q, (k, v), at.row, at.pos, scale)?;
    linear(b, y, layer.out)
}

/// RMS norm of each head by itself.
fn head_norm(b: &mut GraphBuilder<'_>, cx: &Config, x: ValueId, w: WeightId, cols: u32) -> Built {
    let heads = b.reshape(x, cx.head_dim)?;
    let w = b.weight(w);
    let heads = b.rms_norm(heads, w, cx.eps)?;
    b.reshape(heads, cols)
}

fn feed_forward(b: &mut GraphBuilder<'_>, cx: &Config, layer: &Layer, x: ValueId) -> Built {
    let y = match layer.ff[..] {
        [gate, up, _] => {
            let (gate, up) = (linear(b, x, gate)?, linear(b, x, up)?);
            b.glu(gate, up, cx.act.as_act().unwrap_or(Act::Silu))?
        }
        _ => {
            let up = linear(b, x, layer.ff[0])?;
            b.unary(up, cx.act)?
        }
    };
    linear(b, y, layer.ff[layer.ff.len() - 1])
}

fn experts(b: &mut GraphBuilder<'_>, cx: &Config, layer: &Layer, router: WeightId, x: ValueId) -> Built {
    let n = cx.experts.expect("a layer with a router has experts");
    let logits = linear(b, x, (router, None))?;
    let scoring = if cx.gated { Scoring::Softmax } else { Scoring::Sigmoid };
    let routes = b.route_top_k(logits, None, n.min(2), scoring, cx.biases, 1.0)?;
    let x_ty = b.graph().ty(x).clone();
    let (_, args) = b.open_region(&[TensorType::new(DType::I32, &[Dim::Const(1)]), x_ty]);
    let matrix = |b: &mut GraphBuilder<'_>, i: usize| {
        let bank = b.weight(layer.ff[i].0);
        b.bank_slice(bank, args[0])
    };
    let up = matrix(b, layer.ff.len() - 2)?;
    let up = b.linear(args[1], up)?;
    let y = if cx.gated {
        let gate = matrix(b, 0)?;
        let gate = b.linear(args[1], gate)?;
        b.glu(gate, up, Act::Silu)?
    } else {
        b.unary(up, cx.act)?
    };
    let down = matrix(b, layer.ff.len() - 1)?;
    let y = b.linear(y, down)?;
    let region = b.close_region(&[y]);
    b.for_each_expert(x, routes, n, region)
}
