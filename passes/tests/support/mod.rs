//! What the test files of this crate share: options, and evaluation on seeded weights and inputs.
#![allow(clippy::unwrap_used, dead_code, reason = "tests; each file uses a part")]

use std::collections::BTreeMap;

use waste_ir::interp::Data;
use waste_ir::random::{RandomModule, Rng};
use waste_ir::{
    Dim, Graph, Inputs, Interp, Module, Steps, Tensor, TensorType, WeightId, WeightInit, print_module, verify,
};
use waste_passes::{Entry, Numerics, PipelineOptions, pipeline};
use waste_plan::{DType, Math, Tables};

/// Everything on, nothing bounded.
pub(crate) fn options() -> PipelineOptions {
    PipelineOptions {
        math: Math::Fixed24,
        tables: Tables::Fixed24,
        lookahead: 3,
        only: None,
        disabled: Vec::new(),
        rewrite_limit: None,
        verify: true,
    }
}

/// Every place of the pipeline.
pub(crate) fn all_passes() -> Vec<Entry> {
    pipeline(&options()).unwrap()
}

/// `module`, which must verify.
pub(crate) fn verified(module: Module) -> Module {
    if let Err(errors) = verify(&module) {
        panic!("{errors:#?}\n{}", print_module(&module));
    }
    module
}

/// Outputs and states of every graph, by name.
pub(crate) type Outputs = BTreeMap<String, Tensor>;

/// Runs every graph once, `prefill` first, over three tokens.
pub(crate) fn evaluate(module: &Module, weight: &dyn Fn(WeightId) -> Result<Vec<f64>, String>) -> Outputs {
    let source = |id| weight(id);
    let mut interp = Interp::new(verify(module).unwrap(), &source);
    let mut outputs = Outputs::new();
    let mut graphs: Vec<&Graph> = module.graphs.values().collect();
    graphs.sort_by_key(|it| it.name != "prefill");
    for graph in graphs {
        let found = interp.run(&graph.name, &inputs(module, graph)).unwrap();
        outputs.extend(found.into_iter().map(|(name, value)| (format!("{}.{name}", graph.name), value)));
    }
    for state in module.states.values() {
        let elements = interp.state(&state.name).unwrap().to_vec();
        outputs.insert(state.name.clone(), Tensor::matrix(1, elements));
    }
    outputs
}

/// Evaluates a hand-made case: each stored weight has numbers seeded by its place in the source.
pub(crate) fn evaluate_case(module: &Module) -> Outputs {
    evaluate(module, &|id| Ok(seeded_weight(module, id)))
}

/// Evaluates what passes made of a random module.
pub(crate) fn evaluate_random(random: &RandomModule, module: &Module) -> Outputs {
    evaluate(module, &|id| random.weight_of(module, id))
}

fn seeded_weight(module: &Module, id: WeightId) -> Vec<f64> {
    let decl = &module.weights[id];
    match &decl.init {
        WeightInit::Stored { offset, .. } | WeightInit::Transposed { offset, .. } => {
            numbers(*offset, decl.ty.shape.dims().iter().map(|it| it.known().unwrap() as usize).product())
        }
        WeightInit::Bank { parts, .. } => {
            let [_, n, k] = decl.ty.shape.dims() else { panic!("rule 6") };
            let size = (n.known().unwrap() * k.known().unwrap()) as usize;
            parts.iter().flat_map(|it| numbers(it.1, size)).collect()
        }
        WeightInit::Grouped { codes: Steps { first: seed, .. }, .. }
        | WeightInit::Records { indices: seed, .. } => {
            numbers(*seed, decl.ty.shape.dims().iter().map(|it| it.known().unwrap() as usize).product())
        }
        WeightInit::Merged { base, .. } => seeded_weight(module, *base),
        WeightInit::Concat(parts) => parts.iter().flat_map(|it| seeded_weight(module, *it)).collect(),
    }
}

fn numbers(seed: u64, n: usize) -> Vec<f64> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| f64::from(rng.signed())).collect()
}

/// Symbols are 3. Prefill: three tokens of row 0 from position 0. Else: the next token of each of three rows.
fn inputs(module: &Module, graph: &Graph) -> Inputs {
    let mut all = Inputs::default();
    for (i, input) in graph.inputs.iter().enumerate() {
        let data = &graph.values[*input];
        let shape = sizes(&data.ty);
        let n: usize = shape.iter().product();
        let data_of = if data.ty.dtype == DType::I32 {
            Data::I32((0..i32::try_from(n).unwrap()).map(|it| id(module, graph, &data.name, it)).collect())
        } else {
            Data::F64(numbers(1000 + i as u64, n))
        };
        all = all.with(&data.name, Tensor { shape, data: data_of });
    }
    all
}

fn id(module: &Module, graph: &Graph, input: &str, i: i32) -> i32 {
    let prefill = graph.name == "prefill";
    match input {
        "token" => (7 * i + 3) % i32::try_from(module.info.vocab).unwrap(),
        "row" => i * i32::from(!prefill && module.states.values().all(|it| rows(&it.ty) >= 3)),
        "pos" if prefill => i,
        "pos" => 3 + i * i32::from(module.states.values().any(|it| rows(&it.ty) < 3)),
        "want" => (i + 1) % 3,
        other => panic!("no ids for input '{other}'"),
    }
}

fn rows(state: &TensorType) -> u32 {
    state.shape.dims()[0].known().unwrap_or(3)
}

fn sizes(ty: &TensorType) -> Vec<usize> {
    let size = |it: &Dim| match *it {
        Dim::Const(n) => n as usize,
        Dim::Scaled { mul, .. } => 3 * mul as usize,
    };
    ty.shape.dims().iter().map(size).collect()
}

/// Outputs agree as `numerics` declares: to the bit, or to 1e-12 of the largest.
pub(crate) fn assert_equal_outputs(before: &Outputs, after: &Outputs, numerics: Numerics, what: &str) {
    assert!(!before.is_empty(), "{what}: nothing to compare");
    assert!(before.keys().eq(after.keys()), "{what}: {:?} {:?}", before.keys(), after.keys());
    for (name, expected) in before {
        let found = &after[name];
        assert_eq!(found.shape, expected.shape, "{what}: {name}");
        assert_eq!(found.i32s(), expected.i32s(), "{what}: {name}");
        let largest = expected.f64s().iter().fold(0.0, |it: f64, x| it.max(x.abs()));
        for (found, expected) in found.f64s().iter().zip(expected.f64s()) {
            assert!(expected.is_finite(), "{what}: {name} is not finite");
            let equal = match numerics {
                Numerics::Preserves => found.to_bits() == expected.to_bits(),
                Numerics::Reassociates => (found - expected).abs() <= 1e-12 * largest,
            };
            assert!(equal, "{what}: {name}: {found} is not {expected}");
        }
    }
}
