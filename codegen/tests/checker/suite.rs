//! The plans that the checker is tried on: random decoders and hybrids through the real passes and the real planner.

use waste_codegen::{PlanError, PlanRequest};
use waste_ir::random::RandomModule;
use waste_ir::{Dim, Module, Op, Shape, SymDecl, TensorType, verify};
use waste_passes::PipelineOptions;
use waste_plan::ids::EntityRef;
use waste_plan::schema::{Options, Plan};
use waste_plan::{DType, Math, StateKind, Tables};

/// A final module and its plan.
pub(crate) struct Case {
    pub(crate) module: Module,
    pub(crate) plan: Plan,
}

/// Cases of the suite: dense decoders, hybrids of delta attention, latent attention and experts, and decoders whose experts are
/// vector-quantised records.
pub(crate) fn cases(n: usize) -> Vec<Case> {
    let (n_dense, n_records) = (n / 4, n / 4);
    let mut cases = of_seeds(n_dense, waste_ir::random::decoder, |_| true);
    // Tables are large: plans with smaller ones say as much.
    let is_small = |case: &Case| case.plan.memory.scratch < 400_000;
    cases.extend(of_seeds(n - n_dense - n_records, waste_ir::random::hybrid_decoder, is_small));
    let has_records = |case: &Case| is_small(case) && !case.plan.banks.is_empty();
    cases.extend(of_seeds(n_records, waste_ir::random::expert_decoder, has_records));
    for kind in ["expert_lut", "expert_vq"] {
        let has =
            |it: &&Case| it.plan.programs.iter().flat_map(|it| &it.steps).any(|it| it.kind.name() == kind);
        assert!(cases.iter().filter(has).count() >= 2, "few plans with {kind}");
    }
    cases
}

/// The cases of the first `n` seeds that can be planned and are `wanted`. Those that cannot cut heads out of a matrix of several
/// things: their rows have gaps, which no operand can say. Arithmetic and passes vary with the seed.
fn of_seeds(n: usize, random: fn(u64) -> RandomModule, wanted: impl Fn(&Case) -> bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in 0..16 * n as u64 {
        if cases.len() == n {
            break;
        }
        let disabled: &[&str] = if seed % 3 == 0 { &["merge-linears"] } else { &[] };
        let module = random(seed).module;
        if has_integer_keys(&module) {
            continue;
        }
        match case(seed, module, disabled) {
            Ok(case) => cases.extend(Some(case).filter(&wanted)),
            Err(error) => assert!(matches!(error, PlanError::StridedReshape(_)), "seed {seed}: {error}"),
        }
    }
    assert_eq!(cases.len(), n, "of {} seeds few can be planned", 16 * n);
    cases
}

/// Whether a key matrix of latent attention is of integers: front ends widen those, no kernel takes them.
fn has_integer_keys(module: &Module) -> bool {
    module.graphs.values().any(|graph| {
        let banks = graph.ops.values().filter(|it| matches!(it.op, Op::HeadLinearT {}));
        banks.map(|it| graph.ty(it.operand(1)).dtype).any(|it| !it.is_float())
    })
}

fn case(seed: u64, mut module: Module, disabled: &[&str]) -> Result<Case, PlanError> {
    pad_states(&mut module);
    count_wanted(&mut module);
    // With more tokens, experts make their own tables.
    let tokens = if seed % 2 == 0 { 6 } else { 9 };
    for (name, hi) in [("T", tokens), ("R", 4)] {
        module.syms.values_mut().filter(|it| it.name == name).for_each(|it| it.hi = hi);
    }
    let math = Math::ALL[usize::try_from(seed % 4).unwrap()];
    let disabled = disabled.iter().map(ToString::to_string).collect();
    let tables = Tables::Fixed24;
    let options = PipelineOptions {
        math,
        tables,
        lookahead: 2,
        only: None,
        disabled,
        rewrite_limit: None,
        verify: true,
    };
    waste_passes::run(&mut module, &options, &mut |_| {}).unwrap();
    let caches = module.states.values().filter(|it| it.kind != StateKind::Recurrent);
    let kv = caches.map(|it| it.ty.dtype).next().unwrap_or(DType::F32);
    let hi = |name: &str| module.syms.values().find(|it| it.name == name).unwrap().hi;
    let options = Options {
        ctx: waste_ir::random::POSITIONS,
        batch: hi("B"),
        chunk: hi("T"),
        want: hi("R"),
        kv,
        math,
        lookahead: 2,
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
    let is_cache: Vec<bool> = module.states.values().map(|it| it.kind != StateKind::Recurrent).collect();
    let pad = |ty: &mut TensorType| {
        if let [b, Dim::Const(s), heads, d] = *ty.shape.dims() {
            ty.shape = Shape::new(&[b, Dim::Const(s.next_multiple_of(64)), heads, d]);
        }
    };
    module.states.values_mut().filter(|it| it.kind != StateKind::Recurrent).for_each(|it| pad(&mut it.ty));
    for graph in module.graphs.values_mut() {
        let states: Vec<_> = graph.values.keys().filter_map(|it| Some((it, graph.state(it)?))).collect();
        for (value, state) in states {
            if is_cache[state.index()] {
                pad(&mut graph.values[value].ty);
            }
        }
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
