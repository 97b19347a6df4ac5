//! What the test files of this crate share.
#![allow(clippy::unwrap_used, dead_code, reason = "tests; each file uses a part")]

use waste_ir::{Module, print_module, verify};
use waste_passes::{Entry, Numerics, PipelineOptions, pipeline};
use waste_plan::Math;

/// Everything on, nothing bounded.
pub(crate) fn options() -> PipelineOptions {
    PipelineOptions {
        math: Math::Fixed24,
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

pub(crate) fn assert_equal_outputs(_before: &Module, _after: &Module, _numerics: Numerics, _what: &str) {}
