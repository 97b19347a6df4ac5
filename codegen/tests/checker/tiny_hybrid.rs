//! The module of the plan in `runtime/plan/testdata/hybrid.plan.txt`: a layer of delta attention, one of latent attention, and two
//! experts of vector-quantised records.

use waste_ir::{
    Act, Built, Dim, Graph, GraphBuilder, ModelInfo, Module, Op, Phase, Scoring, SourceDecl, StateDecl,
    StateId, StateKind, SymDecl, TensorType, UnaryKind, ValueId, WeightId, WeightInit,
};
use waste_plan::{DType, Packing, Tables, VqCode};

/// Columns of the residual stream.
const HIDDEN: u32 = 32;
/// Heads of either attention, and columns of each.
const HEADS: u32 = 2;
const HEAD: u32 = 8;
/// Columns of the latents.
const LATENTS: u32 = 16;

/// Weights and states by name, so that the graph reads like one.
struct Parts {
    module: Module,
    offset: u64,
}

impl Parts {
    fn weight(&mut self, name: &str, dims: &[u32], packing: Packing) {
        let source = self.module.sources.keys().next().unwrap();
        let ty = TensorType::new(DType::F32, &dims.iter().map(|it| Dim::Const(*it)).collect::<Vec<_>>());
        let (offset, stored) = (self.offset, DType::F32);
        let bytes = 4 * u64::from(dims.iter().product::<u32>());
        self.offset += bytes;
        let init = match *dims {
            [bank, ..] if dims.len() == 3 => {
                let step = bytes / u64::from(bank);
                let parts = (0..u64::from(bank)).map(|it| (source, offset + it * step)).collect();
                WeightInit::Bank { stored, parts }
            }
            _ => WeightInit::Stored { source, offset, stored },
        };
        let id = self.module.add_weight(name, ty, init);
        self.module.weights[id].packing = Some(packing);
    }

    /// A bank in records: all index streams, then all scales.
    fn records(&mut self, name: &str, [rows, cols]: [u32; 2], indices: u64, scales: u64) {
        self.weight(&format!("{name}.books"), &[4, 64, 8], Packing::Columns);
        let books = self.id(&format!("{name}.books"));
        let source = self.module.sources.keys().nth(1).unwrap();
        let ty = TensorType::new(DType::Vq4p, &[2, rows, cols].map(Dim::Const));
        let init = WeightInit::Records { source, first: 4096, stride: 4096, indices, scales };
        let id = self.module.add_vq_bank(name, ty, init, books);
        self.module.weights[id].packing = Some(Packing::Record);
    }

    fn state(&mut self, name: &str, kind: StateKind, dims: [u32; 4]) {
        let ty = TensorType::new(DType::F32, &dims.map(Dim::Const));
        self.module.states.push(StateDecl { name: name.into(), ty, kind });
    }

    fn id(&self, name: &str) -> WeightId {
        self.module.weights.iter().find(|it| it.1.name == name).unwrap().0
    }
}

/// The module, final.
pub(crate) fn module() -> Module {
    let info = ModelInfo { name: "hybrid".into(), arch: "kimi".into(), ctx_trained: 64, vocab: 40 };
    let mut it = Parts { module: Module { info, ..Module::default() }, offset: 0x100 };
    for (path, bytes) in [("hybrid.gguf", 1 << 18), ("experts.bin", 12_288)] {
        let header_sha256 = "0123456789abcdef".repeat(4);
        it.module.sources.push(SourceDecl { path: path.into(), bytes, header_sha256 });
    }
    let wide = HEADS * HEAD;
    it.weight("embed", &[40, HIDDEN], Packing::Plain);
    for (name, n) in [("norm", HIDDEN), ("a_log", HEADS), ("dt_bias", wide), ("o_norm", HEAD)] {
        it.weight(name, &[n], Packing::Plain);
    }
    for (name, rows, cols) in [
        ("q", wide, HIDDEN),
        ("k", wide, HIDDEN),
        ("v", wide, HIDDEN),
        ("decay", wide, HIDDEN),
        ("beta", HEADS, HIDDEN),
        ("gate_o", wide, HIDDEN),
        ("o", HIDDEN, wide),
        ("mla_q", wide, HIDDEN),
        ("latent", LATENTS, HIDDEN),
        ("mla_o", HIDDEN, wide),
        ("router", 2, HIDDEN),
        ("head", 40, HIDDEN),
    ] {
        it.weight(name, &[rows, cols], Packing::F32);
    }
    it.weight("conv", &[wide, 3], Packing::Plain);
    it.weight("keys", &[HEADS, HEAD, LATENTS], Packing::Plain);
    it.weight("values", &[HEADS, HEAD, LATENTS], Packing::F32);
    // A stream of 32 rows fills one block of 64: 64 · 3 bytes a position.
    it.records("gate", [HIDDEN, HIDDEN], 0, 2304);
    it.records("up", [HIDDEN, HIDDEN], 768, 2368);
    it.records("down", [HIDDEN, HIDDEN], 1536, 2432);
    it.state("ring", StateKind::Recurrent, [2, 1, 2, wide]);
    it.state("delta", StateKind::Recurrent, [2, HEADS, HEAD, HEAD]);
    it.state("cache", StateKind::Keys, [2, 64, 1, LATENTS]);
    for (program, tokens, want) in [("decode", ("B", 2), ("Q", 2)), ("prefill", ("T", 4), ("R", 2))] {
        let [tokens, want] = [tokens, want]
            .map(|(name, hi)| Dim::sym(it.module.syms.push(SymDecl { name: name.into(), lo: 1, hi })));
        let graph = Body::new(&it, program, tokens, want).graph().unwrap();
        it.module.graphs.push(graph);
    }
    it.module
}

/// A graph being built.
struct Body<'m> {
    parts: &'m Parts,
    b: GraphBuilder<'m>,
    token: ValueId,
    places: (ValueId, ValueId),
    want: ValueId,
}

impl<'m> Body<'m> {
    fn new(parts: &'m Parts, name: &str, tokens: Dim, want: Dim) -> Self {
        let mut b = GraphBuilder::new(&parts.module, name, Phase::Final);
        let ids = |n| TensorType::new(DType::I32, &[n]);
        let [token, row, pos] = ["token", "row", "pos"].map(|it| b.input(it, ids(tokens)));
        let want = b.input("want", ids(want));
        Self { parts, b, token, places: (row, pos), want }
    }

    /// The results of `op`, whose optional operands at the end may be left out.
    fn op<const N: usize>(&mut self, op: Op, operands: &[ValueId]) -> Built<[ValueId; N]> {
        let mut operands: Vec<_> = operands.iter().copied().map(Some).collect();
        operands.resize(op.operand_names().len(), None);
        let id = self.b.push(op, &operands, None)?;
        Ok(self.b.graph().ops[id].results.to_vec().try_into().expect("results by the op table"))
    }

    fn weight(&mut self, name: &str) -> ValueId {
        self.b.weight(self.parts.id(name))
    }

    fn state(&mut self, name: &str) -> (StateId, ValueId) {
        let id = self.parts.module.states.iter().find(|it| it.1.name == name).unwrap().0;
        (id, self.b.state(id))
    }

    fn linear(&mut self, x: ValueId, w: &str) -> Built {
        let w = self.weight(w);
        self.b.linear(x, w)
    }

    /// With a residual.
    fn out(&mut self, y: ValueId, w: &str, x: ValueId) -> Built {
        let w = self.weight(w);
        let op = self.b.push(Op::Linear { act: Act::None }, &[Some(y), Some(w), None, Some(x)], None)?;
        Ok(self.b.graph().ops[op].results[0])
    }

    fn norm(&mut self, x: ValueId) -> Built {
        let w = self.weight("norm");
        self.b.rms_norm(x, w, 1e-5)
    }

    /// The stream after the layer, and the next states.
    fn delta(&mut self, x: ValueId) -> Built<(ValueId, ValueId, ValueId)> {
        let (row, pos) = self.places;
        let h = self.norm(x)?;
        let (q, k, v) = (self.linear(h, "q")?, self.linear(h, "k")?, self.linear(h, "v")?);
        let ((_, ring), conv) = (self.state("ring"), self.weight("conv"));
        let [q, next_ring] = self.op(Op::ShortConv { act: Act::Silu }, &[ring, q, conv, row, pos])?;
        let l2 = |scale| Op::L2Norm { dim: HEAD, eps: 1e-6, scale };
        let [q] = self.op(l2(0.5), &[q])?;
        let [k] = self.op(l2(1.0), &[k])?;
        let z = self.linear(h, "decay")?;
        let (a_log, dt_bias) = (self.weight("a_log"), self.weight("dt_bias"));
        let [decay] = self.op(Op::KdaGate { lower_bound: 0.0 }, &[z, a_log, dt_bias])?;
        let beta = self.linear(h, "beta")?;
        let beta = self.b.unary(beta, UnaryKind::Sigmoid)?;
        let (_, old) = self.state("delta");
        let [o, next] = self.op(Op::KdaStep {}, &[old, q, k, v, decay, beta, row, pos])?;
        let (gate, norm) = (self.linear(h, "gate_o")?, self.weight("o_norm"));
        let [o] = self.op(Op::GatedRmsNorm { eps: 1e-5 }, &[o, gate, norm])?;
        Ok((self.out(o, "o", x)?, next_ring, next))
    }

    fn latent(&mut self, x: ValueId) -> Built<(ValueId, ValueId)> {
        let (row, pos) = self.places;
        let h = self.norm(x)?;
        let (q, entry) = (self.linear(h, "mla_q")?, self.linear(h, "latent")?);
        let (_, old) = self.state("cache");
        let cache = self.b.kv_append(old, entry, row, pos)?;
        let q = self.b.reshape(q, HEAD)?;
        let (keys, values) = (self.weight("keys"), self.weight("values"));
        let [q] = self.op(Op::HeadLinearT {}, &[q, keys])?;
        let [context] = self.op(Op::LatentAttention { scale: 0.25 }, &[q, cache, row, pos])?;
        let [o] = self.op(Op::HeadLinear {}, &[context, values])?;
        let o = self.b.reshape(o, HEADS * HEAD)?;
        Ok((self.out(o, "mla_o", x)?, cache))
    }

    fn experts(&mut self, x: ValueId) -> Built {
        let h = self.norm(x)?;
        let logits = self.linear(h, "router")?;
        let route =
            Op::RouteTopK { k: 1, scoring: Scoring::Sigmoid, renorm: true, scale: 2.0, groups: 1, keep: 1 };
        let [ids, weights] = self.op(route, &[logits])?;
        let build = Op::LutBuild { code: VqCode::Vq4p, tables: Tables::Fixed16 };
        let [gate_books, up_books, down_books] =
            ["gate.books", "up.books", "down.books"].map(|it| self.weight(it));
        let [gate, up, down] = ["gate", "up", "down"].map(|it| self.weight(it));
        let [of_gate] = self.op(build.clone(), &[h, gate_books])?;
        let [of_up] = self.op(build.clone(), &[h, up_books])?;
        let [order, groups, slots] = self.op(Op::ExpertSort { experts: 2 }, &[ids])?;
        let [gate] = self.op(Op::ExpertLut { gather: true }, &[of_gate, gate, order, groups])?;
        let [up] = self.op(Op::ExpertLut { gather: true }, &[of_up, up, order, groups])?;
        let y = self.b.situ(gate, up, 4.0, 25.0)?;
        let [of_down] = self.op(build, &[y, down_books])?;
        let [y] = self.op(Op::ExpertLut { gather: false }, &[of_down, down, order, groups])?;
        let [y] = self.op(Op::ExpertSum {}, &[y, weights, order, slots])?;
        self.b.add(x, y)
    }

    fn graph(mut self) -> Built<Graph> {
        let embed = self.weight("embed");
        let x = self.b.embed(self.token, embed)?;
        let (x, ring, delta) = self.delta(x)?;
        let (x, cache) = self.latent(x)?;
        let x = self.experts(x)?;
        let x = self.b.select_rows(x, self.want)?;
        let h = self.norm(x)?;
        let logits = self.linear(h, "head")?;
        let (next, finite) = (self.b.argmax(logits)?, self.b.finite_check(logits)?);
        for (name, value) in [
            ("logits", logits),
            ("next", next),
            ("finite", finite),
            ("@ring", ring),
            ("@delta", delta),
            ("@cache", cache),
        ] {
            self.b.output(name, value);
        }
        Ok(self.b.finish())
    }
}
