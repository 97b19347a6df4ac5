//! What all decoders share: symbols, inputs, states, outputs, and the two programs around one body.

use std::collections::BTreeMap;

use waste_ir::{
    Built, Dim, Graph, GraphBuilder, Module, Phase, StateDecl, StateId, StateKind, SymDecl, SymId,
    TensorType, ValueId, WeightId,
};
use waste_plan::DType;
use waste_plan::schema::KV_TILE;

use super::weights::Linear;
use super::{ImportOptions, ModelError, Result, refused};

/// The caches of one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cache {
    k: StateId,
    v: StateId,
}

/// Declares `k.N` and `v.N: kv[batch, S, kv_heads, head_dim]` for each layer, S being ctx rounded up to whole tiles.
pub(super) fn add_caches(
    module: &mut Module,
    opts: &ImportOptions,
    n_layers: u32,
    kv_heads: u32,
    head_dim: u32,
) -> Result<Vec<Cache>> {
    let positions = cache_positions(opts)?;
    let dims = [opts.batch, positions, kv_heads, head_dim].map(Dim::Const);
    let mut add = |name: String, kind| {
        module.states.push(StateDecl { name, ty: TensorType::new(opts.kv, &dims), kind })
    };
    let layer =
        |i| Cache { k: add(format!("k.{i}"), StateKind::Keys), v: add(format!("v.{i}"), StateKind::Values) };
    Ok((0..n_layers).map(layer).collect())
}

/// Positions of a cache: ctx rounded up to whole tiles.
pub(super) fn cache_positions(opts: &ImportOptions) -> Result<u32> {
    let positions = opts.ctx.checked_next_multiple_of(KV_TILE);
    positions.ok_or_else(|| refused("ctx", opts.ctx, "is more than any cache holds"))
}

/// One graph being built: its inputs, and the newest version of each state that was replaced.
pub(super) struct Body<'m> {
    pub(super) b: GraphBuilder<'m>,
    pub(super) token: ValueId,
    pub(super) pos: ValueId,
    row: ValueId,
    want: ValueId,
    versions: BTreeMap<StateId, ValueId>,
}

impl Body<'_> {
    /// y = x · wᵀ, plus the bias if there is one.
    pub(super) fn linear(&mut self, x: ValueId, linear: Linear) -> Built {
        let w = self.b.weight(linear.w);
        match linear.bias {
            None => self.b.linear(x, w),
            Some(bias) => {
                let bias = self.b.weight(bias);
                self.b.linear_bias(x, w, bias)
            }
        }
    }

    /// y = x · wᵀ.
    pub(super) fn apply(&mut self, x: ValueId, w: WeightId) -> Built {
        let w = self.b.weight(w);
        self.b.linear(x, w)
    }

    /// Row and position of each token.
    pub(super) const fn places(&self) -> (ValueId, ValueId) {
        (self.row, self.pos)
    }

    /// The newest version of a state.
    pub(super) fn state(&mut self, state: StateId) -> ValueId {
        self.versions.get(&state).copied().unwrap_or_else(|| self.b.state(state))
    }

    /// Replaces a state.
    pub(super) fn replace(&mut self, state: StateId, version: ValueId) {
        self.versions.insert(state, version);
    }

    /// Appends `x` to a cache: its next version.
    pub(super) fn append(&mut self, cache: StateId, x: ValueId) -> Built {
        let old = self.state(cache);
        let new = self.b.kv_append(old, x, self.row, self.pos)?;
        self.replace(cache, new);
        Ok(new)
    }

    /// Appends the keys and values of this call to the caches of a layer, then attends to them.
    pub(super) fn attend(&mut self, cache: Cache, [q, k, v]: [ValueId; 3], head_dim: u32) -> Built {
        let (keys, values) = (self.append(cache.k, k)?, self.append(cache.v, v)?);
        #[expect(clippy::cast_possible_truncation, reason = "kernels take f32")]
        let scale = (1.0 / f64::from(head_dim).sqrt()) as f32;
        self.b.attention(q, (keys, values), self.row, self.pos, scale)
    }

    /// The rows of `x` whose logits are wanted.
    pub(super) fn wanted(&mut self, x: ValueId) -> Built {
        self.b.select_rows(x, self.want)
    }
}

/// Adds the graphs `decode` and `prefill`, both with `body`, which gives the logits of the wanted rows.
/// `file` is to blame if the configuration's sizes do not fit each other.
pub(super) fn add_programs(
    module: &mut Module,
    opts: &ImportOptions,
    file: &str,
    body: impl Fn(&mut Body<'_>) -> Built,
) -> Result<()> {
    let mut sym = |name: &str, lo, hi| module.syms.push(SymDecl { name: name.to_owned(), lo, hi });
    let decode = ("decode", sym("B", 1, opts.batch), sym("Q", 0, opts.batch));
    let prefill = ("prefill", sym("T", 1, opts.chunk), sym("R", 0, opts.want));
    for (name, tokens, wanted) in [decode, prefill] {
        let graph = program(module, name, tokens, wanted, &body);
        let graph = graph.map_err(|source| ModelError::Build { file: file.to_owned(), source })?;
        module.graphs.push(graph);
    }
    Ok(())
}

fn program(
    module: &Module,
    name: &str,
    tokens: SymId,
    wanted: SymId,
    body: impl Fn(&mut Body<'_>) -> Built,
) -> Built<Graph> {
    let mut b = GraphBuilder::new(module, name, Phase::Imported);
    let ids = |sym| TensorType::new(DType::I32, &[Dim::sym(sym)]);
    let (token, row) = (b.input("token", ids(tokens)), b.input("row", ids(tokens)));
    let (pos, want) = (b.input("pos", ids(tokens)), b.input("want", ids(wanted)));
    let mut cx = Body { b, token, row, pos, want, versions: BTreeMap::new() };

    let logits = body(&mut cx)?;
    let Body { mut b, versions, .. } = cx;
    let next = b.argmax(logits)?;
    let finite = b.finite_check(logits)?;
    b.output("logits", logits);
    b.output("next", next);
    b.output("finite", finite);
    for (state, version) in versions {
        b.output(&format!("@{}", module.states[state].name), version);
    }
    Ok(b.finish())
}
