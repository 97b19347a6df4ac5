//! The cache under a session's steps.

use std::time::{Duration, Instant};

use waste_plan::record::{MAGIC, bank_sha256};
use waste_plan::schema::StepKind;
use waste_plan::text::parse;

use crate::look::StepView;
use crate::stream::ExpertOptions;
use crate::weights::WeightBuffer;
use crate::{LoadedPlan, RuntimeError, Session, SessionOptions, Token};

/// A record of the sample plan, all codes and scales zero.
fn record(expert: u16) -> Vec<u8> {
    let mut out = MAGIC.to_le_bytes().to_vec();
    // Layer 0, six-bit indices, codebook 0; one block; where gate, up, down and the scales begin.
    out.extend([0, 0]);
    out.extend(expert.to_le_bytes());
    out.extend([8, 0, 0, 0, 0, 0, 0, 0]);
    [1u32, 0, 0x300, 0x600, 0x900].iter().for_each(|it| out.extend(it.to_le_bytes()));
    out.resize(4096, 0);
    out
}

/// The sample plan with experts, its weights zero and one slot for its two experts.
fn open(path: &std::path::Path) -> Session {
    let mut plan = parse(include_str!("../../../plan/testdata/hybrid.plan.txt")).unwrap();
    std::fs::write(path, [vec![0; 4096], record(0), record(1)].concat()).unwrap();
    plan.sources[1].path = path.to_str().unwrap().to_owned();
    let header = |expert: u32| Ok::<_, ()>(*record(u16::try_from(expert).unwrap()).first_chunk().unwrap());
    plan.sources[1].header_sha256 = bank_sha256(2, header).unwrap();
    let weights = WeightBuffer::new(plan.memory.weights).unwrap();
    let loaded = LoadedPlan::from_parts(plan, weights, "", &[]).unwrap();
    let experts = ExpertOptions { slots: Some(1), readers: 1, ..ExpertOptions::default() };
    Session::open(&loaded, &SessionOptions { verify: false, experts, ..SessionOptions::default() }).unwrap()
}

/// A step that panics ends as one that is cancelled does: nothing stays promised or held, and the wish to cancel is over with it.
#[test]
fn a_step_that_panics_gives_its_experts_back() {
    let path = std::env::temp_dir().join(format!("waste-steps-{}.bin", std::process::id()));
    let mut session = open(&path);
    let batch = [Token { row: 0, id: 1 }];
    let cancel = session.cancel_flag();
    let mut fail = |view: &StepView<'_>| {
        if matches!(view.step().kind, StepKind::RouteTopK { .. }) {
            cancel.store(true, std::sync::atomic::Ordering::Relaxed);
            panic!("fails on purpose");
        }
    };
    let res = session.step_seen(&batch, &[0], &mut fail);
    assert!(matches!(res, Err(RuntimeError::Panicked)), "{res:?}");
    assert_eq!(session.len(0), 0);
    // The only slot is no longer promised to the expert that the step was about to use.
    let cache = session.expert_source().unwrap().cache();
    let deadline = Instant::now() + Duration::from_secs(5);
    while cache.prefetch(0, &[1]) == 0 {
        assert!(Instant::now() < deadline, "the slot is promised to a step that is over");
        std::thread::sleep(Duration::from_millis(1));
    }
    session.step(&batch, &[0]).unwrap();
    assert_eq!(session.len(0), 1);
    std::fs::remove_file(path).unwrap();
}
