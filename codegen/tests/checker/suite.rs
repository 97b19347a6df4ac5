//! The plans that the checker is tried on: random decoders through the real passes and the real planner.

use waste_codegen::{PlanError, PlanRequest};
use waste_ir::{Dim, Module, Op, Shape, SymDecl, TensorType, verify};
use waste_passes::PipelineOptions;
use waste_plan::schema::{Options, Plan};
use waste_plan::{DType, Math};

/// A final module and its plan.
pub(crate) struct Case {
    pub(crate) module: Module,
    pub(crate) plan: Plan,
}

/// The cases of the first `n` seeds that can be planned. Those of the others norm heads of one matrix for q, k and v: their rows
/// have gaps, which no operand can say. Arithmetic and passes vary with the seed.
pub(crate) fn cases(n: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in 0..2 * n as u64 {
        let disabled: &[&str] = if seed % 3 == 0 { &["merge-linears"] } else { &[] };
        match case(seed, disabled) {
            Ok(case) => cases.push(case),
            Err(error) => assert!(matches!(error, PlanError::StridedReshape(_)), "seed {seed}: {error}"),
        }
    }
    assert!(cases.len() >= n, "only {} of {} seeds can be planned", cases.len(), 2 * n);
    cases.truncate(n);
    cases
}

fn case(seed: u64, disabled: &[&str]) -> Result<Case, PlanError> {
    let mut module = waste_ir::random::decoder(seed).module;
    pad_states(&mut module);
    count_wanted(&mut module);
    for (name, hi) in [("T", 6), ("R", 4)] {
        module.syms.values_mut().filter(|it| it.name == name).for_each(|it| it.hi = hi);
    }
    let math = Math::ALL[usize::try_from(seed % 4).unwrap()];
    let disabled = disabled.iter().map(ToString::to_string).collect();
    let options = PipelineOptions {
        math,
        tables: waste_plan::Tables::Fixed24,
        only: None,
        disabled,
        rewrite_limit: None,
        verify: true,
    };
    waste_passes::run(&mut module, &options, &mut |_| {}).unwrap();
    let kv = module.states.values().next().map_or(DType::F32, |it| it.ty.dtype);
    let hi = |name: &str| module.syms.values().find(|it| it.name == name).unwrap().hi;
    let options = Options {
        ctx: waste_ir::random::POSITIONS,
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
        expert_slots: None,
    };
    let plan = waste_codegen::plan(&verify(&module).unwrap(), &request)?;
    Ok(Case { module, plan })
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
            let is_wanted =
                matches!(data.op, Op::SelectRows {}) || data.uses().any(|it| wanted.contains(&it));
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
