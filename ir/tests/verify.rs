//! The verifier on graphs that text cannot express.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use waste_ir::random::{self, Rng};
use waste_ir::{Def, Entity, Graph, GraphId, Module, OpId, ValueId, parse_module, print_module, verify};
use waste_plan::ids::EntityRef;

#[test]
fn random_modules_are_valid() {
    let plain = (0..150).map(random::decoder).chain((0..80).map(random::expert_decoder));
    for random in plain.chain((0..80).map(random::hybrid_decoder)) {
        if let Err(errors) = verify(&random.module) {
            panic!("{}\n{}", errors[0], print_module(&random.module));
        }
    }
}

#[test]
fn a_module_depends_on_nothing_but_its_seed() {
    let (lhs, rhs, other) = (random::decoder(9), random::decoder(9), random::decoder(10));
    assert_eq!((&lhs.module, &lhs.bytes), (&rhs.module, &rhs.bytes));
    assert_ne!(lhs.module, other.module);
}

/// Rules broken by `damage` to the prefill graph of a module with experts.
fn rules(damage: impl FnOnce(&mut Graph)) -> Vec<u16> {
    let mut module = random::expert_decoder(4).module;
    damage(&mut module.graphs[GraphId::new(1)]);
    let errors = verify(&module).err().unwrap_or_default();
    assert!(errors.iter().all(|it| !matches!(it.at, Entity::Op(graph, _) if graph != GraphId::new(1))));
    let mut rules: Vec<u16> = errors.iter().map(|it| it.rule).collect();
    rules.dedup();
    rules
}

#[test]
fn damaged_structure_is_named() {
    let first = |graph: &Graph| graph.order[0];
    assert!(rules(|_| {}).is_empty());
    assert_eq!(rules(|graph| graph.order.swap(0, 3)), [11]);
    assert_eq!(rules(|graph| graph.order.push(first(graph))), [10]);
    assert_eq!(rules(|graph| graph.order.push(OpId::new(9999))), [9]);
    assert_eq!(rules(|graph| graph.inputs.push(ValueId::new(9999))), [9]);
    assert_eq!(rules(|graph| graph.inputs.swap(0, 1)), [9]);
    assert_eq!(rules(|graph| graph.outputs[0].value = ValueId::new(9999)), [9]);
    assert_eq!(
        rules(|graph| {
            graph.ops[OpId::new(0)].operands.pop();
        }),
        [12]
    );
    assert_eq!(rules(|graph| graph.ops[OpId::new(0)].operands[0] = None), [12]);
    assert_eq!(rules(|graph| graph.ops[OpId::new(0)].operands[0] = Some(ValueId::new(9999))), [9]);
    assert_eq!(
        rules(|graph| {
            let last = graph.order.pop().unwrap();
            assert!(graph.ops[last].region.is_none());
        }),
        [10, 11]
    );
    // An op that reads its own result, and a region inside itself.
    assert_eq!(
        rules(|graph| {
            let op = first(graph);
            graph.ops[op].operands[0] = Some(graph.ops[op].results[0]);
        }),
        [11]
    );
    assert_eq!(
        rules(|graph| {
            let owner = *graph.order.iter().find(|it| graph.ops[**it].region.is_some()).unwrap();
            let region = graph.ops[owner].region.unwrap();
            graph.regions[region].order.insert(0, owner);
        }),
        [10]
    );
    assert_eq!(
        rules(|graph| {
            let weight = graph.values.values().find(|it| matches!(it.def, Def::Weight(_))).unwrap().clone();
            graph.values.push(weight);
        }),
        [9]
    );
}

/// Whatever happens to ids, the verifier answers; what it accepts can be printed and read.
#[test]
fn damaged_graphs_never_panic() {
    let mut rng = Rng::new(2);
    let (mut refused, mut accepted) = (0, 0);
    let modules = (0..4).flat_map(|seed| [random::expert_decoder(seed), random::hybrid_decoder(seed)]);
    for module in modules.map(|it| it.module) {
        for _ in 0..250 {
            let mut damaged = module.clone();
            damage(&mut damaged, &mut rng);
            let text = print_module(&damaged);
            match verify(&damaged) {
                Err(errors) => {
                    assert!(errors.iter().all(|it| !it.context.is_empty() && !it.message.is_empty()));
                    refused += 1;
                }
                Ok(_) => {
                    assert_eq!(parse_module(&text).unwrap(), damaged.canonical());
                    accepted += 1;
                }
            }
        }
    }
    assert!(refused > 300 && accepted > 10, "refused {refused}, accepted {accepted}");
}

fn damage(module: &mut Module, rng: &mut Rng) {
    let graph = &mut module.graphs[GraphId::new(rng.below(2) as usize)];
    let any = |rng: &mut Rng, n: usize| rng.below(u32::try_from(n).unwrap() + 1) as usize;
    let op = OpId::new(rng.below(u32::try_from(graph.ops.len()).unwrap()) as usize);
    let value = ValueId::new(any(rng, graph.values.len()));
    match rng.below(8) {
        0 | 1 => {
            let slot = any(rng, graph.ops[op].operands.len() - 1);
            graph.ops[op].operands[slot] = (rng.below(8) > 0).then_some(value);
        }
        2 => {
            let slot = any(rng, graph.order.len() - 1);
            graph.order[slot] = OpId::new(any(rng, graph.ops.len()));
        }
        3 => {
            let (a, b) = (any(rng, graph.order.len() - 1), any(rng, graph.order.len() - 1));
            graph.order.swap(a, b);
        }
        4 => graph.ops[op].results[0] = value,
        5 => {
            let region = &mut graph.regions[waste_ir::RegionId::new(0)];
            match rng.below(3) {
                0 => region.yields[0] = value,
                1 => region.args[0] = value,
                _ => region.order.insert(0, op),
            }
        }
        6 => {
            let i = any(rng, graph.outputs.len() - 1);
            graph.outputs[i].value = value;
        }
        _ => {
            let op = &mut graph.ops[op];
            op.region =
                if op.region.is_some() { None } else { Some(waste_ir::RegionId::new(rng.below(2) as usize)) };
        }
    }
}
