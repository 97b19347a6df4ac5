//! The checker against the planner it does not trust, and against a shadow executor that shares no code with it.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "checker/element.rs"]
mod element;
#[path = "checker/element_hybrid.rs"]
mod element_hybrid;
#[path = "checker/ideal.rs"]
mod ideal;
#[path = "checker/kernels.rs"]
mod kernels;
#[path = "checker/memory.rs"]
mod memory;
#[path = "checker/mutate_declaration.rs"]
mod mutate_declaration;
#[path = "checker/mutate_step.rs"]
mod mutate_step;
#[path = "checker/mutate.rs"]
mod mutate;
#[path = "checker/of_op.rs"]
mod of_op;
#[path = "checker/of_step.rs"]
mod of_step;
#[path = "checker/shadow.rs"]
mod shadow;
#[path = "checker/shadow_loops.rs"]
mod shadow_loops;
#[path = "checker/shadow_operands.rs"]
mod shadow_operands;
#[path = "checker/shadow_rules.rs"]
mod shadow_rules;
#[path = "checker/suite.rs"]
mod suite;
#[path = "checker/targets.rs"]
mod targets;
#[path = "checker/tiny.rs"]
mod tiny;

use ideal::{Call, Outcome};
use suite::Case;
use waste_ir::verify;
use waste_plan::schema::Plan;

/// The calls that each program is tried with: the largest, which continues its rows, and one with other counts, which begins one.
fn calls(plan: &Plan, program: usize) -> Vec<Call> {
    let it = &plan.programs[program];
    let (tokens, want) = (u64::from(it.tokens), u64::from(it.want));
    let rows = if it.name == "decode" { tokens } else { u64::from(plan.options.batch.min(2)) };
    let most = Call { tokens, want, rows, start: 2 };
    let tokens = (tokens - 1).max(1);
    vec![most, Call { tokens, want: 2.min(want).min(tokens), rows: rows.min(tokens), start: 0 }]
}

/// What each program leaves behind, for each call.
fn outcomes(case: &Case) -> Vec<Vec<(Call, Outcome)>> {
    let run = |i: usize| {
        let graph = case.module.graph(&case.plan.programs[i].name).unwrap();
        calls(&case.plan, i).into_iter().map(|call| (call, ideal::run(&case.module, graph, call))).collect()
    };
    (0..case.plan.programs.len()).map(run).collect()
}

/// The first harm that the shadow sees in `plan`. A program that equals that of `valid`, in a plan that differs nowhere else,
/// was found harmless before.
fn harm(plan: &Plan, valid: Option<&Plan>, outcomes: &[Vec<(Call, Outcome)>]) -> Option<String> {
    if let Some(harm) = shadow::misplaced(plan) {
        return Some(harm);
    }
    let weights = shadow::weight_tags(plan);
    let same = valid
        .filter(|it| Plan { programs: vec![], ..(*it).clone() } == Plan { programs: vec![], ..plan.clone() });
    for (i, (program, outcomes)) in plan.programs.iter().zip(outcomes).enumerate() {
        if same.is_some_and(|it| it.programs[i] == *program) {
            continue;
        }
        let most = (outcomes[0].0.tokens, outcomes[0].0.want);
        if (u64::from(program.tokens), u64::from(program.want)) != most {
            return Some(format!("{} takes other counts than its graph", program.name));
        }
        for (call, outcome) in outcomes {
            for order in 0..4 {
                if let Some(harm) = shadow::harm(plan, program, &weights, (*call, outcome), order) {
                    return Some(format!("{} {call:?}: {harm}", program.name));
                }
            }
        }
    }
    None
}

#[test]
fn random_plans_pass_all_three_judges() {
    for (i, case) in suite::cases(N_CASES).into_iter().enumerate() {
        let verified = verify(&case.module).unwrap();
        let text = waste_plan::text::print(&case.plan);
        let report = waste_codegen::check::check(&verified, &case.plan)
            .unwrap_or_else(|errors| panic!("case {i}: {}", lines(&errors)));
        assert_eq!(report.lower_bound, case.plan.memory.scratch_lower_bound);
        let found = harm(&case.plan, None, &outcomes(&case));
        assert_eq!(found, None, "case {i}");
        assert_eq!(waste_plan::text::parse(&text).as_ref(), Ok(&case.plan));
    }
}

fn lines(errors: &[waste_codegen::check::CheckError]) -> String {
    errors.iter().map(|it| format!("\n  {it}")).collect()
}

/// Plans of the suite.
const N_CASES: usize = 16;

/// Mutants of the test, all kinds and all cases together.
const N_MUTANTS: usize = 2000;

/// Every mutant that does harm is refused; of the harmless ones at most 1 % are, and those are listed.
#[test]
#[allow(
    clippy::print_stderr,
    reason = "the refused harmless mutants are listed for the reader of the test's output"
)]
fn harmful_mutants_are_refused() {
    let cases = suite::cases(N_CASES);
    let outcomes: Vec<_> = cases.iter().map(outcomes).collect();
    let mut rng = mutate::Rng::new(7);
    let (mut n_harmful, mut n_harmless) = (0, 0);
    let (mut missed, mut refused) = (Vec::new(), Vec::new());
    let mut n = 0;
    while n < N_MUTANTS {
        let i = rng.below(cases.len());
        let kind = mutate::KINDS[rng.below(mutate::KINDS.len())];
        let mut plan = cases[i].plan.clone();
        let Some(what) = mutate::mutate(&mut plan, kind, &mut rng) else { continue };
        if plan == cases[i].plan {
            continue;
        }
        n += 1;
        let harm = harm(&plan, Some(&cases[i].plan), &outcomes[i]);
        let verdict = waste_codegen::check::check(&verify(&cases[i].module).unwrap(), &plan);
        match (harm, verdict) {
            (Some(harm), Ok(_)) => missed.push(format!("case {i}, {what}\n    {harm}")),
            (Some(_), Err(_)) => n_harmful += 1,
            (None, Ok(_)) => n_harmless += 1,
            (None, Err(errors)) => refused.push(format!("case {i}, {what}{}", lines(&errors[..1]))),
        }
    }
    let n_quiet = n_harmless + refused.len();
    eprintln!(
        "{n_harmful} harmful mutants, all refused; {n_quiet} harmless, refused of them {}:",
        refused.len()
    );
    refused.iter().for_each(|it| eprintln!("  {it}"));
    assert!(missed.is_empty(), "harm that the checker did not see:\n  {}", missed.join("\n  "));
    assert!(
        n_harmful >= 400 && n_quiet >= 100,
        "{n_harmful} harmful and {n_quiet} harmless mutants say too little"
    );
    assert!(refused.len() * 100 <= n_quiet, "{} of {n_quiet} harmless mutants refused", refused.len());
}

/// The hand-written plan of the ground floor's tests computes the tiny module, and the shadow agrees.
#[test]
fn the_hand_written_plan_is_right() {
    let module = tiny::module();
    let plan = waste_plan::text::parse(include_str!("../../runtime/plan/testdata/tiny.plan.txt")).unwrap();
    let report = waste_codegen::check::check(&verify(&module).unwrap(), &plan)
        .unwrap_or_else(|errors| panic!("{}", lines(&errors)));
    assert_eq!((report.lower_bound, report.peak), (7680, plan.memory.peak()));
    assert_eq!(report.programs.iter().map(|it| it.barriers).collect::<Vec<_>>(), [11, 11]);
    let case = Case { module, plan };
    assert_eq!(harm(&case.plan, None, &outcomes(&case)), None);
}

/// Each `tests/filetests/check/*.plan.txt` is that plan, broken by hand: its `; error:` comments,
/// which stand before the offending lines, are all errors.
#[test]
fn broken_plans_are_refused_with_these_words() {
    let module = tiny::module();
    let verified = verify(&module).unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/filetests/check");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 12, "only {} broken plans", paths.len());
    let mut failures = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut expected: Vec<&str> =
            text.lines().filter_map(|it| it.split_once("; error: ")).map(|it| it.1).collect();
        let plan = waste_plan::text::parse(&text).unwrap();
        let errors = waste_codegen::check::check(&verified, &plan).err().unwrap_or_default();
        let mut found: Vec<String> = errors.iter().map(ToString::to_string).collect();
        found.sort();
        expected.sort_unstable();
        if found != expected || expected.is_empty() {
            failures.push(format!("{}\n  found {found:#?}\n  expected {expected:#?}", path.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
