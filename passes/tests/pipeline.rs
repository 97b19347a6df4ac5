//! The pipeline as a whole: choosing passes, the budget of rewrites, reports, and random modules.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use support::{options, verified};
use waste_ir::random::{decoder, expert_decoder};
use waste_ir::{Module, Op, Phase, WeightInit, print_module};
use waste_passes::pipeline::find;
use waste_passes::{PassError, PipelineOptions, PipelineReport, optional_passes, pipeline, run};
use waste_plan::{Math, Packing};

fn optimized(module: &Module, options: &PipelineOptions) -> (Module, PipelineReport) {
    let mut module = module.clone();
    let report = run(&mut module, options, &mut |_| {}).unwrap();
    (verified(module), report)
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|it| (*it).to_owned()).collect()
}

fn listed(options: &PipelineOptions) -> Vec<&'static str> {
    pipeline(options).unwrap().iter().map(|it| it.name).collect()
}

#[test]
fn optional_passes_are_chosen_by_name() {
    let only = PipelineOptions { only: Some(names(&["fuse-glu"])), ..options() };
    let chosen =
        ["raise-canonical", "legalize-vq", "fuse-glu", "quantize-acts", "flatten-experts", "select-layout"];
    assert_eq!(listed(&only), chosen);
    let none = PipelineOptions { only: Some(Vec::new()), ..options() };
    assert_eq!(
        listed(&none),
        ["raise-canonical", "legalize-vq", "quantize-acts", "flatten-experts", "select-layout"]
    );
    let without = PipelineOptions { disabled: names(&["cse"]), ..options() };
    assert!(!listed(&without).contains(&"cse"), "both places of a pass are disabled");
    assert_eq!(listed(&without).len(), listed(&options()).len() - 2);
}

#[test]
fn a_wrong_name_is_refused_with_the_nearest() {
    let wrong = PipelineOptions { disabled: names(&["fuse-epilog"]), ..options() };
    let error = pipeline(&wrong).unwrap_err();
    assert_eq!(error.to_string(), "unknown pass 'fuse-epilog'; the nearest is 'fuse-epilogue'");
    let wrong = PipelineOptions { only: Some(names(&["csee"])), ..options() };
    assert!(matches!(pipeline(&wrong), Err(PassError::Unknown { nearest: "cse", .. })));
    let entries = pipeline(&options()).unwrap();
    assert!(matches!(find(&entries, "quant-acts"), Err(PassError::Unknown { nearest: "quantize-acts", .. })));
    assert_eq!(find(&entries, "dce").unwrap().name, "dce");
}

#[test]
fn a_mandatory_pass_cannot_be_disabled() {
    for name in ["raise-canonical", "legalize-vq", "quantize-acts", "flatten-experts", "select-layout"] {
        let wrong = PipelineOptions { disabled: names(&[name]), ..options() };
        let error = pipeline(&wrong).unwrap_err();
        assert_eq!(error.to_string(), format!("pass '{name}' is mandatory and cannot be disabled"));
    }
}

#[test]
fn an_invalid_module_is_refused_before_any_pass() {
    let mut module = decoder(1).module;
    for graph in module.graphs.values_mut() {
        graph.order.swap(0, 1);
        graph.order.reverse();
    }
    let given = module.clone();
    let error = run(&mut module, &options(), &mut |_| panic!("a pass ran")).unwrap_err();
    assert!(matches!(&error, PassError::Invalid { pass: "import", errors } if !errors.is_empty()), "{error}");
    assert_eq!(module, given);
}

#[test]
fn random_modules_become_final_and_verify() {
    for seed in 0..60 {
        let module = if seed % 3 == 0 { expert_decoder(seed).module } else { decoder(seed).module };
        let (after, report) = optimized(&module, &options());
        assert!(after.graphs.values().all(|it| it.phase == Phase::Final));
        let is_part = |id| {
            after
                .weights
                .values()
                .any(|it| matches!(&it.init, WeightInit::Concat(parts) if parts.contains(&id)))
        };
        assert!(after.weights.iter().all(|(id, it)| it.packing.is_some() || is_part(id)), "seed {seed}");
        assert_eq!(report.passes.len(), listed(&options()).len());
        let (again, _) = optimized(&module, &options());
        assert_eq!(print_module(&again), print_module(&after), "seed {seed}: not deterministic");
        let reparsed = waste_ir::parse_module(&print_module(&after)).unwrap();
        assert_eq!(reparsed, after.canonical(), "seed {seed}");
    }
}

#[test]
fn math_f32_leaves_no_fixed_point_value() {
    for seed in 0..20 {
        let (after, _) = optimized(&decoder(seed).module, &PipelineOptions { math: Math::F32, ..options() });
        let values = after.graphs.values().flat_map(|it| it.values.values());
        assert!(values.clone().count() > 0 && values.clone().all(|it| it.ty.dtype.fx().is_none()));
    }
}

#[test]
fn one_quantised_input_serves_all_its_readers() {
    for seed in 0..40 {
        let (after, _) = optimized(&decoder(seed).module, &options());
        for graph in after.graphs.values() {
            let quantised: Vec<_> = graph
                .ops
                .values()
                .filter(|it| matches!(it.op, Op::QuantAct { .. }))
                .map(|it| it.operand(0))
                .collect();
            let distinct: std::collections::BTreeSet<_> = quantised.iter().collect();
            assert_eq!(distinct.len(), quantised.len(), "seed {seed}: a value is quantised twice");
        }
    }
}

#[test]
fn tables_read_row_by_row_stay_plain() {
    let seed = (0..)
        .find(|it| decoder(*it).module.weights.values().any(|it| it.name.starts_with("position")))
        .unwrap();
    let (after, _) = optimized(&decoder(seed).module, &options());
    let table = after.weights.values().find(|it| it.name.starts_with("position")).unwrap();
    assert_eq!(table.packing, Some(Packing::Plain));
}

#[test]
fn a_budget_bounds_the_optional_rewrites() {
    let module = decoder(7).module;
    let optional = |report: &PipelineReport| -> u32 {
        let names = optional_passes();
        report.passes.iter().filter(|it| names.contains(&it.name)).map(|it| it.rewrites).sum()
    };
    let (full, report) = optimized(&module, &options());
    let all = optional(&report);
    assert!(all > 3, "a module with something to rewrite");
    let mut texts = Vec::new();
    for limit in 0..=all {
        let limited = PipelineOptions { rewrite_limit: Some(limit), ..options() };
        let (after, report) = optimized(&module, &limited);
        assert_eq!(optional(&report), limit);
        texts.push(print_module(&after));
    }
    let none = PipelineOptions { only: Some(Vec::new()), ..options() };
    assert_eq!(texts[0], print_module(&optimized(&module, &none).0));
    assert_eq!(texts[all as usize], print_module(&full));
    assert!(texts.windows(2).all(|it| it[0] != it[1]), "each rewrite shows");
}

#[test]
fn the_observer_sees_each_pass_and_its_result() {
    let mut module = decoder(7).module;
    let mut seen = Vec::new();
    let mut last = print_module(&module);
    let report = run(&mut module, &options(), &mut |event| {
        let now = print_module(event.module);
        assert_eq!(now != last, event.changed.is_yes(), "{}", event.pass);
        last = now;
        seen.push(event.pass);
    })
    .unwrap();
    assert_eq!(seen, listed(&options()));
    assert_eq!(last, print_module(&module));
    let table = report.table(true);
    assert!(seen.iter().all(|it| table.contains(it)) && table.contains("ms"));
}

#[test]
fn the_report_is_a_table() {
    let (_, report) = optimized(&decoder(7).module, &options());
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../snapshots/passes");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("report", report.table(false)));
}
