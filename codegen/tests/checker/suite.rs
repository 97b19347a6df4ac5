//! The plans that the checker is tried on: random decoders through the real passes and the real planner.

use waste_codegen::PlanRequest;
use waste_ir::{Def, Dim, Graph, Module, Op, Shape, SymDecl, TensorType, verify};
use waste_passes::PipelineOptions;
use waste_plan::schema::{Options, Plan};
use waste_plan::{DType, Math};

/// A final module and its plan.
pub(crate) struct Case {
    pub(crate) module: Module,
    pub(crate) plan: Plan,
}

/// The case of a seed: arithmetic and passes vary with it.
pub(crate) fn case(seed: u64) -> Case {
    let mut module = waste_ir::random::decoder(seed).module;
    pad_states(&mut module);
    count_wanted(&mut module);
    let math = Math::ALL[usize::try_from(seed % 4).unwrap()];
    let disabled = if seed % 3 == 0 { vec!["merge-linears".to_owned()] } else { Vec::new() };
    let options = PipelineOptions { math, only: None, disabled, rewrite_limit: None, verify: true };
    waste_passes::run(&mut module, &options, &mut |_| {}).unwrap();
    let kv = module.states.values().next().map_or(DType::F32, |it| it.ty.dtype);
    let hi = |name: &str| module.syms.values().find(|it| it.name == name).unwrap().hi;
    let options = Options {
        ctx: 64,
        batch: hi("B"),
        chunk: hi("T"),
        want: hi("R"),
        kv,
        math,
        passes: vec!["all".into()],
    };
    let request = PlanRequest {
        producer: "test".into(),
        options,
        params: 1,
        source_bytes: 1,
        text_bytes: 0,
        stop_ids: vec![0],
    };
    let plan = waste_codegen::plan(&verify(&module).unwrap(), &request).unwrap();
    Case { module, plan }
}

/// Caches in plans hold whole tiles of 32 positions.
fn pad_states(module: &mut Module) {
    let pad = |ty: &mut TensorType| {
        if let [b, Dim::Const(s), heads, d] = *ty.shape.dims() {
            ty.shape = Shape::new(&[b, Dim::Const(s.next_multiple_of(64)), heads, d]);
        }
    };
    module.states.values_mut().for_each(|it| pad(&mut it.ty));
    for graph in module.graphs.values_mut() {
        graph.values.values_mut().for_each(|it| pad(&mut it.ty));
    }
}

/// Gives `decode` a symbol of its own for wanted rows, as the front ends do.
fn count_wanted(module: &mut Module) {
    let hi = module.syms.values().next().unwrap().hi;
    let sym = module.syms.push(SymDecl { name: "Q".into(), lo: 1, hi });
    for graph in module.graphs.values_mut().filter(|it| it.name == "decode") {
        let mut wanted: Vec<_> = graph.input("want").into_iter().collect();
        for op in graph.order.clone() {
            let data = &graph.ops[op];
            let is_wanted = matches!(data.op, Op::SelectRows {}) || data.uses().any(|it| wanted.contains(&it));
            if is_wanted {
                wanted.extend(data.results.iter().copied());
            }
        }
        for value in wanted {
            let ty = &mut graph.values[value].ty;
            let mut dims = ty.shape.dims().to_vec();
            dims[0] = Dim::sym(sym);
            ty.shape = Shape::new(&dims);
        }
    }
}

/// The op results of a graph that are no views, for tests that want some work to do.
pub(crate) fn n_steps(graph: &Graph) -> usize {
    graph.values.values().filter(|it| matches!(it.def, Def::Op(op, _) if !graph.ops[op].op.is_view())).count()
}
