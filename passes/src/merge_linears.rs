//! Make linears that read the same x one linear over concatenated rows; each result becomes a slice.
//!
//! Before / After: see snapshots/passes/merge-linears/basic.
//! Requires: phase canonical, after fuse-glu and before fuse-epilogue.  Refuses when: weight dtypes differ or only some have a bias (what
//! agrees is merged); a weight is read elsewhere too, is an expert's, or was merged before; there is an epilogue; a result is reshaped.
//! Numerics: preserves (each output row is summed as before).
//! Why: one pass over x, fewer steps and barriers: q, k, v become one.
//!
//! All graphs must merge a weight in the same company, so that its rows are stored once.

use std::collections::{BTreeSet, HashMap};

use smallvec::smallvec;
use waste_ir::{Act, Dim, Graph, Module, Op, OpId, TensorType, ValueId, WeightDecl, WeightId, WeightInit};
use waste_plan::DType;
use waste_plan::ids::{EntityRef, SecondaryMap};

use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::{Arg, Edit, Edits, Matcher, Miss, NewOp, apply, demand, place};

/// See the module.
#[derive(Debug)]
pub struct MergeLinears;

impl Pass for MergeLinears {
    const NAME: &'static str = "merge-linears";
    const NUMERICS: Numerics = Numerics::Preserves;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let groups: Vec<Vec<Group>> =
            module.graphs.values().map(|graph| find_groups(module, graph, cx)).collect();
        let exclusive = exclusive_weights(module, groups.iter().flatten());
        let mut merged = Merged::default();
        let mut all = Vec::with_capacity(groups.len());
        for (graph, groups) in module.graphs.values().zip(&groups) {
            let mut edits = Edits::new(None);
            for group in groups {
                if !group.parts.distinct().iter().all(|it| exclusive[*it]) {
                    cx.near_miss("a weight is read elsewhere too", || place(module, graph, group.ops[0]));
                } else if let Some(weights) = merged.get_or_add(module, &group.parts, cx) {
                    merge(graph, &group.ops, weights, &mut edits);
                }
            }
            all.push(edits);
        }
        apply(module, cx, &all, &merged.extra)
    }
}

/// Linears of one block that read the same x and agree in class, in execution order.
struct Group {
    ops: Vec<OpId>,
    parts: Parts,
}

/// The weights of a group, and its biases unless it has none.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Parts {
    weights: Vec<WeightId>,
    biases: Vec<WeightId>,
}

impl Parts {
    /// Weights and biases, each once.
    fn distinct(&self) -> BTreeSet<WeightId> {
        self.weights.iter().chain(&self.biases).copied().collect()
    }
}

/// A linear that may be merged with others of its class.
struct Candidate {
    op: OpId,
    weight: WeightId,
    bias: Option<WeightId>,
    dtype: DType,
    rows: u32,
}

impl Candidate {
    const fn class(&self) -> (DType, bool) {
        (self.dtype, self.bias.is_some())
    }
}

fn find_groups(module: &Module, graph: &Graph, cx: &mut PassCx<'_>) -> Vec<Group> {
    let m = Matcher::new(module, graph, cx.scratch);
    let reshaped = reshaped_values(graph);
    let mut groups = Vec::new();
    for site in shared_sites(&m) {
        let mut here = Vec::new();
        for op in site {
            match candidate(&m, op, &reshaped) {
                Ok(it) => here.push(it),
                Err(Miss::Near(reason)) => cx.near_miss(reason, || place(module, graph, op)),
                Err(Miss::Other) => {}
            }
        }
        for (i, first) in here.iter().enumerate() {
            if here[..i].iter().any(|it| it.class() == first.class()) {
                continue;
            }
            let alike: Vec<&Candidate> = here.iter().filter(|it| it.class() == first.class()).collect();
            if alike.iter().map(|it| u64::from(it.rows)).sum::<u64>() > u64::from(u32::MAX) {
                cx.near_miss("the rows together exceed 32 bits", || place(module, graph, first.op));
            } else if alike.len() > 1 {
                groups.push(group_of(&alike));
            } else if here.len() > 1 {
                let same_dtype = here.iter().any(|it| it.op != first.op && it.dtype == first.dtype);
                let reason = if same_dtype { "only some have a bias" } else { "the weight dtypes differ" };
                cx.near_miss(reason, || place(module, graph, first.op));
            }
        }
    }
    groups
}

fn group_of(alike: &[&Candidate]) -> Group {
    let weights = alike.iter().map(|it| it.weight).collect();
    let biases = alike.iter().filter_map(|it| it.bias).collect();
    Group { ops: alike.iter().map(|it| it.op).collect(), parts: Parts { weights, biases } }
}

/// The linears of each (block, x) that at least two read, in execution order.
fn shared_sites(m: &Matcher<'_>) -> Vec<Vec<OpId>> {
    let mut index: HashMap<(u32, ValueId), usize> = HashMap::new();
    let mut sites: Vec<Vec<OpId>> = Vec::new();
    for op in m.walk() {
        let data = &m.graph.ops[*op];
        if matches!(data.op, Op::Linear { .. }) {
            let site = *index.entry((m.block(*op), data.operand(0))).or_insert(sites.len());
            if site == sites.len() {
                sites.push(Vec::new());
            }
            sites[site].push(*op);
        }
    }
    sites.retain(|it| it.len() > 1);
    sites
}

fn candidate(m: &Matcher<'_>, op: OpId, reshaped: &SecondaryMap<ValueId, bool>) -> Result<Candidate, Miss> {
    let data = &m.graph.ops[op];
    let bare = matches!(data.op, Op::Linear { act: Act::None }) && data.optional(3).is_none();
    demand(bare, "the linear has an epilogue already")?;
    let weight = m.graph.weight(data.operand(1)).ok_or(Miss::Near("the weight is an expert's"))?;
    let decl = &m.module.weights[weight];
    demand(!matches!(decl.init, WeightInit::Concat(_)), "the weight was merged before")?;
    demand(!reshaped[data.results[0]], "the result is reshaped, which wants contiguous rows")?;
    let bias = data.optional(2).map(|it| m.graph.weight(it).ok_or(Miss::Near("the bias is no weight")));
    let rows = m.graph.ty(data.results[0]).shape.cols().expect("linears have known columns");
    Ok(Candidate { op, weight, bias: bias.transpose()?, dtype: decl.ty.dtype, rows })
}

fn reshaped_values(graph: &Graph) -> SecondaryMap<ValueId, bool> {
    let mut out = SecondaryMap::new(false);
    for data in graph.ops.values().filter(|it| matches!(it.op, Op::Reshape { .. })) {
        out[data.operand(0)] = true;
    }
    out
}

/// The weights that nothing reads but groups of one and the same company, once each.
fn exclusive_weights<'a>(
    module: &Module,
    groups: impl Iterator<Item = &'a Group>,
) -> SecondaryMap<WeightId, bool> {
    let mut uses = SecondaryMap::new(0u32);
    for graph in module.graphs.values() {
        for weight in graph.ops.values().flat_map(|it| it.uses()).filter_map(|it| graph.weight(it)) {
            uses[weight] += 1;
        }
    }
    let mut company: SecondaryMap<WeightId, Option<(&Parts, u32)>> = SecondaryMap::new(None);
    for group in groups {
        for weight in group.parts.distinct() {
            match &mut company[weight] {
                Some((parts, count)) if *parts == &group.parts => *count += 1,
                Some(_) => {}
                none @ None => *none = Some((&group.parts, 1)),
            }
        }
    }
    let mut out = SecondaryMap::new(false);
    for weight in module.weights.keys() {
        out[weight] = company[weight].is_some_and(|(_, count)| count == uses[weight]);
    }
    out
}

/// The merged weights made so far; graphs share them.
#[derive(Default)]
struct Merged {
    extra: Vec<WeightDecl>,
    known: HashMap<Parts, Option<(WeightId, Option<WeightId>)>>,
}

impl Merged {
    /// The concatenated weight and bias of `parts`; `None` if the budget of rewrites is spent.
    fn get_or_add(
        &mut self,
        module: &Module,
        parts: &Parts,
        cx: &mut PassCx<'_>,
    ) -> Option<(WeightId, Option<WeightId>)> {
        if let Some(known) = self.known.get(parts) {
            return *known;
        }
        let made = cx.permit().then(|| {
            let weight = self.concat(module, &parts.weights);
            (weight, (!parts.biases.is_empty()).then(|| self.concat(module, &parts.biases)))
        });
        self.known.insert(parts.clone(), made);
        made
    }

    fn concat(&mut self, module: &Module, parts: &[WeightId]) -> WeightId {
        let decls: Vec<&WeightDecl> = parts.iter().map(|it| &module.weights[*it]).collect();
        let rows = decls.iter().map(|it| it.ty.shape.dims()[0].known().expect("weights have known shapes"));
        let mut dims = decls[0].ty.shape.dims().to_vec();
        dims[0] = Dim::Const(rows.sum());
        self.extra.push(WeightDecl {
            name: decls.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join("+"),
            ty: TensorType::new(decls[0].ty.dtype, &dims),
            init: WeightInit::Concat(parts.to_vec()),
            books: None,
            packing: None,
        });
        WeightId::new(module.weights.len() + self.extra.len() - 1)
    }
}

/// The merged linear stands where the first of `ops` stood; each of them becomes a slice of it.
fn merge(graph: &Graph, ops: &[OpId], (weight, bias): (WeightId, Option<WeightId>), edits: &mut Edits) {
    let first = ops[0];
    let x = Arg::Old(graph.ops[first].operand(0));
    let linear = NewOp {
        op: Op::Linear { act: Act::None },
        operands: smallvec![Some(x), Some(Arg::Weight(weight)), bias.map(Arg::Weight), None],
    };
    let mut start = 0;
    for op in ops {
        let len = graph.ty(graph.ops[*op].results[0]).shape.cols().expect("linears have known columns");
        let slice = NewOp { op: Op::Slice { start, len }, operands: smallvec![Some(Arg::New(first, 0))] };
        edits[*op] = Some(if *op == first {
            Edit { ops: smallvec![linear.clone(), slice], results: smallvec![Arg::New(first, 1)] }
        } else {
            Edit { ops: smallvec![slice], results: smallvec![Arg::New(*op, 0)] }
        });
        start += len;
    }
}
