//! Fixtures with references, and ways to run them.
#![allow(dead_code, reason = "each test binary uses a part")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../../runtime/kernels/tests/common/amx.rs"]
mod amx;
#[path = "scratch.rs"]
pub(crate) mod scratch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use scratch::Scratch;
use sha2::{Digest, Sha256};
use waste::compile::{CompileOptions, compile};
use waste::formats::ModelFiles;
use waste::models::{ImportOptions, import};
use waste::progress::Silent;
use waste_ir::SourceId;
use waste_ir::interp::{Inputs, Interp, decode_weight};
use waste_plan::DType;
use waste_plan::ids::EntityRef;
use waste_runtime::{CpuFeatures, ExpertOptions, LoadedPlan, Session, SessionOptions, Token};

/// A prompt with its reference continuation.
#[derive(serde::Deserialize)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    #[serde(default)]
    pub(crate) greedy: Vec<u32>,
    #[serde(default)]
    pub(crate) gaps: Vec<f64>,
}

/// A model with float64 references.
pub(crate) struct Fixture {
    pub(crate) folder: PathBuf,
    pub(crate) files: ModelFiles,
    pub(crate) prompts: Vec<Prompt>,
    /// Logits of every position of each prompt, `[T · vocab]`.
    pub(crate) logits: Vec<Vec<f32>>,
    /// Removed with the fixture.
    pub(crate) scratch: Option<Scratch>,
}

#[derive(serde::Deserialize)]
struct Oracle {
    prompts: Vec<Prompt>,
}

impl Fixture {
    /// The model `name` of tests/data/models.
    pub(crate) fn open(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(name);
        Self::at(&folder, &folder)
    }

    /// The model at `model` with the references in `folder`.
    pub(crate) fn at(model: &Path, folder: &Path) -> Self {
        let files = ModelFiles::open(model, None).unwrap();
        let oracle: Oracle =
            serde_json::from_slice(&std::fs::read(folder.join("oracle.json")).unwrap()).unwrap();
        let bytes = std::fs::read(folder.join("oracle.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let logits = (0..oracle.prompts.len())
            .map(|i| f32s(tensors.tensor(&format!("logits.{i}")).unwrap().data()))
            .collect();
        Self { folder: folder.to_owned(), files, prompts: oracle.prompts, logits, scratch: None }
    }

    /// The same model with its matrices rounded to Q8_0 and Q4_1 in turn, in a folder of its own. No references.
    pub(crate) fn quantised(name: &str) -> Self {
        let original = Self::open(name);
        let written = Self::written(name, |path| quantise::write_gguf(&original, path));
        Self { prompts: original.prompts, ..written }
    }

    /// The GGUF file that `write` writes, in a folder of its own. No prompts, no references.
    pub(crate) fn written(name: &str, write: impl FnOnce(&Path)) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let scratch = Scratch::new(&format!("{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let path = scratch.path().join("model.gguf");
        write(&path);
        let files = ModelFiles::open(&path, None).unwrap();
        let folder = scratch.path().to_owned();
        Self { folder, files, prompts: Vec::new(), logits: Vec::new(), scratch: Some(scratch) }
    }

    /// Logits of every position by the f64 evaluator on the imported graphs, before any pass.
    pub(crate) fn evaluate(&self, ids: &[u32]) -> Vec<f32> {
        let n = u32::try_from(ids.len()).unwrap();
        let options = ImportOptions { ctx: n.max(32), batch: 1, chunk: n, want: n, kv: DType::F32 };
        let module = import(&self.files, &options).unwrap();
        let verified = waste_ir::verify::verify(&module).unwrap();
        let read = |source: SourceId, offset: u64, bytes: u64| {
            let at = usize::try_from(offset).unwrap();
            Ok(self.files.sources()[source.index()].bytes()[at..at + usize::try_from(bytes).unwrap()]
                .to_vec())
        };
        let weights = |id| decode_weight(&module, id, &read);
        let mut interp = Interp::new(verified, &weights);
        let token: Vec<i32> = ids.iter().map(|it| i32::try_from(*it).unwrap()).collect();
        let pos: Vec<i32> = (0..).take(ids.len()).collect();
        let outputs =
            interp.run("prefill", &Inputs::tokens(&token, &vec![0; ids.len()], &pos, &pos)).unwrap();
        outputs["logits"].f64s().iter().map(|it| *it as f32).collect()
    }

    pub(crate) fn compile(&self, options: &CompileOptions) -> LoadedPlan {
        compile(&self.files, options, &mut |_| ()).unwrap().load(&Silent).unwrap()
    }
}

pub(crate) fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap())).collect()
}

/// Every tier of this machine, and AMX: its own, or executed instruction by instruction where it has none.
pub(crate) fn tiers() -> Vec<(&'static str, CpuFeatures)> {
    let cpu = CpuFeatures::detect();
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    let cpu = amx::with_amx(cpu);
    cpu.tiers().map(|it| (it.name(), cpu.capped(it))).collect()
}

/// How to run.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) threads: usize,
    pub(crate) cpu: CpuFeatures,
    /// Most tokens a step; 0: what the plan takes.
    pub(crate) step: usize,
    pub(crate) experts: ExpertOptions,
}

impl Default for Run {
    fn default() -> Self {
        Self { threads: 1, cpu: CpuFeatures::detect(), step: 0, experts: ExpertOptions::default() }
    }
}

pub(crate) fn session(loaded: &LoadedPlan, how: &Run) -> Session {
    let options = SessionOptions {
        threads: how.threads,
        cpu: how.cpu,
        experts: how.experts.clone(),
        ..SessionOptions::default()
    };
    Session::open(loaded, &options).unwrap()
}

/// Logits of every position of each prompt, all prompts side by side in steps as full as the plan allows.
pub(crate) fn run(loaded: &LoadedPlan, how: &Run, prompts: &[&[u32]]) -> Vec<Vec<f32>> {
    let mut session = session(loaded, how);
    let most = if how.step > 0 { how.step } else { session.limits().0.min(session.limits().1) as usize };
    let mut left: BTreeMap<u32, &[u32]> = (0..).zip(prompts.iter().copied()).collect();
    let mut out = vec![Vec::new(); prompts.len()];
    while left.values().any(|it| !it.is_empty()) {
        let mut batch = Vec::new();
        for (row, ids) in &mut left {
            let (now, later) = ids.split_at(ids.len().min(most - batch.len()));
            batch.extend(now.iter().map(|id| Token { row: *row, id: *id }));
            *ids = later;
        }
        let want: Vec<u32> = (0..).take(batch.len()).collect();
        session.step(&batch, &want).unwrap();
        for (i, token) in batch.iter().enumerate() {
            out[token.row as usize].extend_from_slice(session.logits(i));
        }
    }
    out
}

/// `n` greedy tokens after `ids`.
pub(crate) fn greedy(loaded: &LoadedPlan, ids: &[u32], n: usize) -> Vec<u32> {
    let mut session = session(loaded, &Run::default());
    let most = session.limits().0 as usize;
    let mut out = Vec::new();
    let mut chunks = ids.chunks(most).peekable();
    while let Some(chunk) = chunks.next() {
        let batch: Vec<Token> = chunk.iter().map(|id| Token { row: 0, id: *id }).collect();
        let last = u32::try_from(chunk.len()).unwrap() - 1;
        session
            .step(&batch, if chunks.peek().is_none() { std::slice::from_ref(&last) } else { &[] })
            .unwrap();
    }
    while out.len() < n {
        out.push(session.next(0));
        if out.len() < n {
            session.step(&[Token { row: 0, id: *out.last().unwrap() }], &[0]).unwrap();
        }
    }
    out
}

pub(crate) fn hash(logits: &[f32]) -> String {
    let mut hash = Sha256::new();
    logits.iter().for_each(|it| hash.update(it.to_le_bytes()));
    hash.finalize().iter().map(|it| format!("{it:02x}")).collect()
}

/// ‖a − b‖ / ‖b‖.
pub(crate) fn rel_l2(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        found.iter().zip(expected).map(|(a, b)| f(f64::from(*a), f64::from(*b))).sum()
    };
    (sum(&|a, b| (a - b) * (a - b)) / sum(&|_, b| b * b)).sqrt()
}

#[path = "gguf.rs"]
pub(crate) mod gguf;
#[path = "quantise.rs"]
pub(crate) mod quantise;
