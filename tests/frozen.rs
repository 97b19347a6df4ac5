//! Plan files that earlier builds wrote: they still load, are what their graphs say, and give the logits they gave then.
//!
//! A file of `tests/data/plans` is never written anew. A build that cannot read one has another version of the schema, and
//! refuses the one before the last by both numbers (`runtime/plan/src/file.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/program.rs"]
mod program;
#[path = "support/scratch.rs"]
mod scratch;

use std::path::{Path, PathBuf};

use program::Waste;
use scratch::Scratch;

/// The plans, each with the hash of its logits beside it.
fn plans() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/plans");
    let all = std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let mut plans: Vec<_> = all.filter(|it| it.extension().is_some_and(|it| it == "wplan")).collect();
    plans.sort();
    let hash = |it: &PathBuf| std::fs::read_to_string(it.with_extension("sha256")).unwrap().trim().to_owned();
    plans.into_iter().map(|it| (it.clone(), hash(&it))).collect()
}

#[test]
fn frozen_plans_run_as_they_did() {
    let scratch = Scratch::new("frozen");
    let plans = plans();
    assert!(plans.len() >= 2, "{} plans", plans.len());
    for (plan, hash) in plans {
        let name = plan.display();
        Waste::new(&scratch).arg("check").arg(&plan).run().ok();
        let flags = ["--tokens", "1,5,9,2,7,3,11,4,6,8", "-n", "6", "-q", "--hash"];
        let done = Waste::new(&scratch).arg("exec").arg(&plan).args(flags).run().ok();
        assert_eq!(done.stderr.trim(), format!("logits sha256:{hash}"), "{name}");
    }
}
