//! Every subset of the optional passes leaves the evaluator's outputs as they were, on random modules.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::collections::HashSet;

use support::{Outputs, assert_equal_outputs, evaluate_random, options, verified};
use waste_ir::print_module;
use waste_ir::random::{RandomModule, decoder, expert_decoder};
use waste_passes::{Numerics, PipelineOptions, optional_passes, pipeline, run};

/// A module, its outputs without passes, and the forms that were compared with them already.
struct Subject {
    random: RandomModule,
    outputs: Outputs,
    compared: HashSet<String>,
    what: String,
}

impl Subject {
    fn new(random: RandomModule) -> Self {
        let outputs = evaluate_random(&random, &random.module);
        let what = random.module.info.name.clone();
        Self { random, outputs, compared: HashSet::new(), what }
    }

    /// Runs the optional passes whose bits are set in `subset`.
    fn check(&mut self, subset: usize) {
        let names = optional_passes();
        let chosen = names.iter().enumerate().filter(|it| subset >> it.0 & 1 == 1);
        let chosen: Vec<String> = chosen.map(|it| (*it.1).to_owned()).collect();
        let only = PipelineOptions { only: Some(chosen.clone()), ..options() };
        let exact = pipeline(&only).unwrap().iter().all(|it| it.numerics == Numerics::Preserves);
        let mut module = self.random.module.clone();
        run(&mut module, &only, &mut |_| {}).unwrap();
        let module = verified(module);
        if self.compared.insert(print_module(&module)) {
            let numerics = if exact { Numerics::Preserves } else { Numerics::Reassociates };
            let found = evaluate_random(&self.random, &module);
            assert_equal_outputs(&self.outputs, &found, numerics, &format!("{} with {chosen:?}", self.what));
        }
    }
}

/// Of some random modules the one on which the most optional passes find something to do.
fn liveliest(make: fn(u64) -> RandomModule) -> RandomModule {
    let busy_passes = |random: &RandomModule| {
        let report = run(&mut random.module.clone(), &options(), &mut |_| {}).unwrap();
        let busy = report.passes.iter().filter(|it| it.rewrites > 0).map(|it| it.name);
        busy.filter(|it| optional_passes().contains(it)).collect::<HashSet<_>>().len()
    };
    (0..30).map(make).max_by_key(busy_passes).unwrap()
}

#[test]
fn all_subsets_on_two_modules() {
    for random in [liveliest(decoder), liveliest(expert_decoder)] {
        let mut subject = Subject::new(random);
        for subset in 0..1 << optional_passes().len() {
            subject.check(subset);
        }
        assert!(subject.compared.len() >= 12, "{}: {} forms", subject.what, subject.compared.len());
    }
}

#[test]
fn two_subsets_each_on_many_modules() {
    let n_subsets = 1 << optional_passes().len();
    for seed in 0..90u64 {
        let mut subject = Subject::new(if seed % 3 == 0 { expert_decoder(seed) } else { decoder(seed) });
        subject.check(usize::try_from(seed).unwrap() * 37 % n_subsets);
        subject.check(n_subsets - 1);
    }
}
