//! The module of the plan in `runtime/plan/testdata/tiny.plan.txt`: one attention block, rotary, quantised, tied head.

use waste_ir::{
    Act, Built, Dim, Graph, GraphBuilder, ModelInfo, Module, Op, Phase, RopeScaling, RopeStyle, SourceDecl,
    StateDecl, StateKind, SymDecl, TensorType, WeightId, WeightInit,
};
use waste_plan::{DType, Math, Packing};

/// The module, final.
pub(crate) fn module() -> Module {
    let info = ModelInfo { name: "tiny".into(), arch: "llama".into(), ctx_trained: 64, vocab: 40 };
    let mut module = Module { info, ..Module::default() };
    let header_sha256 = "0123456789abcdef".repeat(4);
    let source = module.sources.push(SourceDecl { path: "tiny.gguf".into(), bytes: 9216, header_sha256 });
    let mut weight = |name: &str, dtype, dims: &[u32], offset, packing| {
        let dims: Vec<Dim> = dims.iter().map(|it| Dim::Const(*it)).collect();
        let init = WeightInit::Stored { source, offset, stored: dtype };
        let id = module.add_weight(name, TensorType::new(dtype, &dims), init);
        module.weights[id].packing = packing;
        id
    };
    let w8 = Some(Packing::W8);
    let table = weight("token_embd.weight", DType::Q8_0, &[40, 32], 0x400, Some(Packing::Plain));
    let norm = weight("blk.0.attn_norm.weight", DType::F32, &[32], 0xc00, Some(Packing::Plain));
    let parts = vec![
        weight("blk.0.attn_q.weight", DType::Q8_0, &[32, 32], 0x1000, None),
        weight("blk.0.attn_k.weight", DType::Q8_0, &[16, 32], 0x1440, None),
        weight("blk.0.attn_v.weight", DType::Q8_0, &[16, 32], 0x1660, None),
    ];
    let out = weight("blk.0.attn_output.weight", DType::Q8_0, &[32, 32], 0x1880, w8);
    let head = weight("token_embd.weight.rows", DType::Q8_0, &[40, 32], 0x400, w8);
    let name = "blk.0.attn_q.weight+blk.0.attn_k.weight+blk.0.attn_v.weight";
    let ty = TensorType::matrix(DType::Q8_0, Dim::Const(64), 32);
    let qkv = module.add_weight(name, ty, WeightInit::Concat(parts));
    module.weights[qkv].packing = w8;
    for (name, kind) in [("k.0", StateKind::Keys), ("v.0", StateKind::Values)] {
        let ty = TensorType::new(DType::F32, &[1, 64, 1, 16].map(Dim::Const));
        module.states.push(StateDecl { name: name.into(), ty, kind });
    }
    for (program, tokens, want) in [("decode", ("B", 1), ("Q", 1)), ("prefill", ("T", 8), ("R", 2))] {
        let [tokens, want] = [tokens, want]
            .map(|(name, hi)| Dim::sym(module.syms.push(SymDecl { name: name.into(), lo: 1, hi })));
        let graph = graph(&module, program, (tokens, want), [table, norm, qkv, out, head]).unwrap();
        module.graphs.push(graph);
    }
    module
}

fn graph(module: &Module, name: &str, (tokens, want): (Dim, Dim), weights: [WeightId; 5]) -> Built<Graph> {
    let mut b = GraphBuilder::new(module, name, Phase::Final);
    let ids = |n| TensorType::new(DType::I32, &[n]);
    let [token, row, pos] = ["token", "row", "pos"].map(|it| b.input(it, ids(tokens)));
    let want = b.input("want", ids(want));
    let [table, norm, qkv, out, head] = weights.map(|it| b.weight(it));
    let states: Vec<_> = module.states.keys().map(|it| b.state(it)).collect();
    let quant = Some(Math::Fixed24);
    let rms = Op::RmsNorm { eps: 1e-5, quant };
    let result = |b: &GraphBuilder<'_>, op| b.graph().ops[op].results[0];

    let x = b.embed(token, table)?;
    let fx = b.push(rms.clone(), &[Some(x), Some(norm)], None)?;
    let fx = result(&b, fx);
    let angles = b.rope_angles(pos, None, 16, 10_000.0, RopeScaling::None)?;
    let all = b.linear(fx, qkv)?;
    let q = b.slice(all, 0, 32)?;
    let v = b.slice(all, 48, 16)?;
    let q = b.rope(q, angles, 16, RopeStyle::Half)?;
    let k = b.slice(all, 32, 16)?;
    let k = b.rope(k, angles, 16, RopeStyle::Half)?;
    let keys = b.kv_append(states[0], k, row, pos)?;
    let values = b.kv_append(states[1], v, row, pos)?;
    let y = b.attention(q, (keys, values), row, pos, 0.25)?;
    let fx = b.quant_act(y, Math::Fixed24)?;
    let x = b.push(Op::Linear { act: Act::None }, &[Some(fx), Some(out), None, Some(x)], None)?;
    let x = result(&b, x);
    let x = b.select_rows(x, want)?;
    let fx = b.push(rms, &[Some(x), Some(norm)], None)?;
    let fx = result(&b, fx);
    let logits = b.linear(fx, head)?;
    let next = b.argmax(logits)?;
    let finite = b.finite_check(logits)?;
    for (name, value) in
        [("logits", logits), ("next", next), ("finite", finite), ("@k.0", keys), ("@v.0", values)]
    {
        b.output(name, value);
    }
    Ok(b.finish())
}
