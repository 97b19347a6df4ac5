//! Seeded random decoder modules, with the bytes of their weights: the input of property tests in this and other crates.
//!
//! Invariants
//! - a module is a function of its seed, on every machine;
//! - every module is valid, in phase `imported`, and finite to evaluate: `decode` over sym `B`, `prefill` over syms `T` and `R`.
//!
//! The shapes vary over what the front ends build: grouped heads, biases, query and key norms, rotary or learned positions,
//! gated or plain feed-forward, one matrix for q, k, v or three, tied embeddings, float and integer weights, experts vector-quantised
//! or not; and hybrids of delta and latent attention.
//! Deliberately absent: realistic sizes, and any claim about the distribution.

mod graph;
mod hybrid;
mod weights;

use crate::attrs::{RopeScaling, RopeStyle, UnaryKind};
use crate::builder::Built;
use crate::graph::{Graph, ModelInfo, Module, SourceDecl, WeightId};
use crate::interp::decode_weight;
use crate::types::{Dim, SymDecl};

use weights::Weights;

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

/// A decoder with layers of delta attention and of latent attention.
#[must_use]
pub fn hybrid_decoder(seed: u64) -> RandomModule {
    let mut rng = Rng::new(seed);
    let cx = hybrid::Config::new(&mut rng);
    assemble(
        seed,
        rng,
        cx.vocab,
        |weights| weights.hybrid(&cx),
        |module, model, name, tokens, wanted| hybrid::build(module, &cx, model, name, tokens, wanted),
    )
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
        (((self.bits() >> 32) * n as u64) >> 32) as u32
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
            hidden: 32 * (1 + rng.below(3)),
            kv_heads,
            heads: kv_heads * (1 + rng.below(3)),
            head_dim,
            ff: 32 * (1 + rng.below(3)),
            vocab: 17 + rng.below(64),
            experts: experts.then(|| 2 + rng.below(3)),
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

fn generate(seed: u64, experts: bool) -> RandomModule {
    let mut rng = Rng::new(seed);
    let cx = Config::new(&mut rng, experts);
    let (n_layers, tied) = (1 + rng.below(2) as usize, rng.coin());
    assemble(
        seed,
        rng,
        cx.vocab,
        |weights| weights.model(&cx, n_layers, tied),
        |module, model, name, tokens, wanted| graph::build(module, &cx, model, name, tokens, wanted),
    )
}

/// The module of a model: weights by `declare`, then `decode` and `prefill` by `build`.
fn assemble<M>(
    seed: u64,
    rng: Rng,
    vocab: u32,
    declare: impl FnOnce(&mut Weights) -> M,
    build: impl Fn(&Module, &M, &str, Dim, Dim) -> Built<Graph>,
) -> RandomModule {
    let mut module = Module::default();
    let name = format!("random {seed}");
    module.info = ModelInfo { name, arch: "random".to_owned(), ctx_trained: POSITIONS, vocab };
    module.sources.push(SourceDecl { path: "random".to_owned(), bytes: 0, header_sha256: "00".repeat(32) });
    let mut sym = |name: &str, hi| module.syms.push(SymDecl { name: name.to_owned(), lo: 1, hi });
    let (b, t, r) = (Dim::sym(sym("B", ROWS)), Dim::sym(sym("T", 16)), Dim::sym(sym("R", 16)));
    let mut weights = Weights { rng, module, bytes: Vec::new() };
    let model = declare(&mut weights);
    let Weights { mut module, bytes, .. } = weights;
    for source in module.sources.values_mut() {
        source.bytes = bytes.len() as u64;
    }
    for (name, tokens, wanted) in [("decode", b, b), ("prefill", t, r)] {
        let graph = build(&module, &model, name, tokens, wanted).expect("operands that fit");
        module.graphs.push(graph);
    }
    RandomModule { module, bytes }
}
