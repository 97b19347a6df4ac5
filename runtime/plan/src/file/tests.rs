#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;

use super::*;
use crate::dtype::{DType, Math};
use crate::pack::Packing;
use crate::schema::{
    Memory, Model, Operand, Options, Part, Place, Port, PortName, Program, Rows, Source, State, StateKind,
    Step, StepKind, Tile, Weight,
};
use crate::words::{Act, RopeStyle};

/// A folder of its own for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("waste-plan-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.join("m.wplan")
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut out: Vec<String> = entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        out.sort();
        out
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// SplitMix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn u32(&mut self, n: u32) -> u32 {
        u32::try_from(self.below(n.into())).unwrap()
    }

    fn operand(&mut self) -> Operand {
        let place = match self.below(4) {
            0 => Place::Scratch(self.next() >> self.below(64)),
            1 => Place::Io(self.below(1 << 20)),
            2 => Place::Weight(self.u32(900)),
            _ => Place::State(self.u32(90)),
        };
        let rows = [Rows::Fixed(self.u32(9)), Rows::Tokens(1), Rows::Want(2)][self.below(3) as usize];
        let dtype = DType::ALL[self.below(DType::ALL.len() as u64) as usize];
        Operand { place, dtype, rows, cols: self.u32(9000), stride: self.below(1 << 16) }
    }

    fn step(&mut self) -> Step {
        let kind = match self.below(5) {
            0 => StepKind::Linear { act: Act::Silu, bias: self.below(2) == 1, residual: true },
            1 => StepKind::RmsNorm { eps: f32::from_bits(self.u32(0x7f00_0000)), quant: Some(Math::Fixed24) },
            2 => {
                let freqs = (0..self.below(5)).map(|_| f64::from_bits(self.below(0x7fe0_0000_0000_0000)));
                StepKind::RopeAngles { freqs: freqs.collect(), factors: false }
            }
            3 => StepKind::Rope { head_dim: self.u32(256), skip: self.u32(2), style: RopeStyle::Half },
            _ => StepKind::Add,
        };
        let reads = (0..self.below(4)).map(|_| self.operand()).collect();
        let tile = Tile { rows: self.u32(64), cols: 16 };
        Step {
            kind,
            reads,
            writes: vec![self.operand()],
            tile,
            barrier: self.below(2) == 1,
            window: false,
            op: self.u32(5000),
        }
    }

    /// Steps with layers: a prefix, then blocks that differ in numbers only, now and then broken by a stranger.
    fn steps(&mut self) -> Vec<Step> {
        let mut out: Vec<Step> = (0..self.below(4)).map(|_| self.step()).collect();
        for _ in 0..self.below(3) {
            let block: Vec<Step> = (0..=self.below(6)).map(|_| self.step()).collect();
            for layer in 0..self.u32(12) {
                out.extend(block.iter().cloned().map(|mut step| {
                    step.op += layer;
                    step.writes[0].stride += u64::from(layer * 64);
                    step
                }));
                if self.below(20) == 0 {
                    out.push(self.step());
                }
            }
        }
        out
    }
}

fn weight(name: &str, offset: u64, bytes: u64) -> Weight {
    Weight {
        name: name.to_owned(),
        dtype: DType::Q4_1,
        bank: 1,
        rows: 16,
        cols: 32,
        packing: Packing::W4M,
        bytes,
        offset,
        crc32c: 0,
        parts: vec![Part {
            source: 0,
            offset: 4096,
            scales: None,
            stored: DType::Q4_1,
            rows: 16,
            transposed: false,
            terms: Vec::new(),
        }],
        records: None,
    }
}

fn plan(programs: Vec<Program>) -> Plan {
    Plan {
        version: VERSION,
        producer: "waste test".into(),
        target: "cpu".into(),
        model: Model {
            name: "tiny \"quoted\" $0 1.5".into(),
            arch: "llama".into(),
            ctx_trained: 64,
            vocab: 32,
            params: 1 << 40,
            source_bytes: 12,
        },
        options: Options {
            ctx: 64,
            batch: 1,
            chunk: 8,
            want: 1,
            kv: DType::F32,
            math: Math::Fixed24,
            lookahead: 0,
            passes: vec!["cse".into(), "dce".into()],
        },
        sources: vec![Source { path: "m.gguf".into(), bytes: 99, header_sha256: "ab".into() }],
        banks: vec![],
        weights: vec![weight("a", 0, 64), weight("b", 64, 30), weight("c", 128, 200)],
        states: vec![State {
            name: "k.0".into(),
            dtype: DType::F32,
            kind: StateKind::Keys,
            shape: [1, 64, 1, 4],
            bytes: 1024,
            offset: 0,
        }],
        ports: vec![Port { name: PortName::Token, dtype: DType::I32, rows: 8, cols: 1, offset: 0 }],
        memory: Memory { placement: "by size".into(), ..Memory::default() },
        programs,
        stop_ids: vec![2, 7],
    }
}

fn layers(n: u32) -> Vec<Program> {
    let mut random = Random(5);
    let block: Vec<Step> = (0..12).map(|_| random.step()).collect();
    let layer = |i: u32| {
        block.iter().cloned().map(move |mut step| {
            step.op += 12 * i;
            for it in step.reads.iter_mut().chain(&mut step.writes) {
                if let Place::Weight(index) | Place::State(index) = &mut it.place {
                    *index += 7 * i;
                }
            }
            step
        })
    };
    let steps: Vec<Step> = (0..n).flat_map(layer).collect();
    let program = |name: &str| Program { name: name.into(), tokens: 8, want: 1, steps: steps.clone() };
    vec![program("decode"), program("prefill")]
}

/// A whole file with weights, written to a folder of its own.
fn file(name: &str, weights: WeightsAt) -> Vec<u8> {
    let folder = Folder::new(name);
    write(&folder.path(), weights).unwrap();
    assert_eq!(folder.names(), ["m.wplan"]);
    std::fs::read(folder.path()).unwrap()
}

fn write(path: &Path, weights: WeightsAt) -> Result<Plan, FileError> {
    let mut out = PlanWriter::create(path, &plan(layers(5)), "module {}\n", b"tokens", weights)?;
    if weights == WeightsAt::Inside {
        out.weight(0, &[1; 40])?;
        out.weight(0, &[2; 24])?;
        out.weight(1, &[3; 30])?;
        out.weight(2, &[4; 200])?;
    }
    out.finish()
}

#[test]
fn any_plan_comes_back_equal() {
    let mut random = Random(1);
    for _ in 0..300 {
        let programs = (0..random.below(3)).map(|i| Program {
            name: format!("p{i}"),
            tokens: random.u32(99),
            want: 1,
            steps: random.steps(),
        });
        let plan = plan(programs.collect());
        let text = doc::encode(&plan).unwrap();
        assert_eq!(doc::decode(text.as_bytes()).unwrap(), plan);
    }
}

#[test]
fn ninety_three_layers_are_stored_once() {
    let (few, many) = (doc::encode(&plan(layers(2))).unwrap(), doc::encode(&plan(layers(93))).unwrap());
    let flat: usize = layers(93).iter().map(|it| serde_json::to_string(&it.steps).unwrap().len()).sum();
    assert!(many.len() < flat / 8, "{} bytes for {flat} of steps", many.len());
    let lines = |text: &str| text.lines().count();
    assert!(lines(&many) < lines(&few) + 100, "{} lines", lines(&many));
    assert!(many.lines().all(|it| it.len() < 2000), "one step a line");
    assert_eq!(many.matches("\"times\":93").count(), 2);
}

#[test]
fn numbers_that_are_not_finite_are_refused() {
    let mut programs = layers(1);
    programs[0].steps[0].kind = StepKind::RmsNorm { eps: f32::NAN, quant: None };
    assert!(matches!(doc::encode(&plan(programs)), Err(FileError::Unwritable { .. })));
}

#[test]
fn a_file_reads_back() {
    let bytes = file("back", WeightsAt::Inside);
    let read = PlanFile::parse(&bytes).unwrap();
    let mut expected = plan(layers(5));
    let weights = &bytes[read.weights.clone().unwrap()];
    for (it, range) in expected.weights.iter_mut().zip([0..64, 64..94, 128..328]) {
        it.crc32c = crc32c(&weights[range]);
    }
    assert_eq!(read.plan, expected);
    assert_eq!((read.ir, read.text), ("module {}\n", &b"tokens"[..]));
    assert_eq!((weights.len(), &weights[62..66], &weights[94..128]), (328, &[2, 2, 3, 3][..], &[0; 34][..]));
    assert_eq!(read.weights.unwrap().start % 64, 0);
    assert_eq!(bytes, file("again", WeightsAt::Inside), "the same bytes each time");
}

#[test]
fn weights_may_stay_outside() {
    let bytes = file("outside", WeightsAt::Outside);
    let read = PlanFile::parse(&bytes).unwrap();
    assert_eq!((read.weights, read.plan), (None, plan(layers(5))));
}

#[test]
fn wrong_weights_leave_no_file() {
    let folder = Folder::new("wrong");
    let start = || PlanWriter::create(&folder.path(), &plan(vec![]), "", b"", WeightsAt::Inside).unwrap();
    let cases: [(&[(usize, usize)], &str); 5] = [
        (&[(0, 65)], "weight 'a' has 64 bytes, 65 were given"),
        (&[(0, 63), (1, 1)], "weight 'a' has 64 bytes, 63 were given"),
        (&[(0, 64), (1, 30), (0, 1)], "weight 0 comes after weight 1"),
        (&[(0, 64), (3, 1)], "weight 3 comes after weight 0"),
        (&[(0, 64), (1, 30)], "weight 'c' has 200 bytes, 0 were given"),
    ];
    for (calls, message) in cases {
        let mut out = start();
        let calls: Result<Vec<()>, _> = calls.iter().map(|(idx, n)| out.weight(*idx, &vec![0; *n])).collect();
        let err = calls.and_then(|_| out.finish()).unwrap_err();
        assert_eq!(err.to_string(), message);
        assert!(folder.names().is_empty(), "{:?}", folder.names());
    }
}

#[test]
fn what_a_killed_writer_left_is_removed_and_a_live_one_is_spared() {
    let folder = Folder::new("killed");
    std::fs::write(folder.0.join(".m.wplan.0.part"), b"half a plan").unwrap();
    let live = PlanWriter::create(&folder.path(), &plan(vec![]), "", b"", WeightsAt::Outside).unwrap();
    assert_eq!(folder.names(), [".m.wplan.0.part"]);
    write(&folder.path(), WeightsAt::Inside).unwrap();
    assert_eq!(folder.names(), [".m.wplan.0.part", "m.wplan"]);
    live.finish().unwrap();
    assert_eq!(folder.names(), ["m.wplan"]);
    let bytes = std::fs::read(folder.path()).unwrap();
    assert_eq!(PlanFile::parse(&bytes).unwrap().plan, plan(vec![]));
}

/// Sets a u32 of the header and makes its CRC right again.
fn patched(bytes: &[u8], at: usize, value: u32) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let crc = crc32c(&out[..60]);
    out[60..64].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Changes row `row` of the section table and makes all CRCs right again.
fn with_row(bytes: &[u8], row: usize, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let sections = 4;
    change(&mut out[64 + 32 * row..64 + 32 * (row + 1)]);
    let crc = crc32c(&out[64..64 + 32 * sections]);
    patched(&out, 20, crc)
}

#[test]
fn each_mismatch_has_its_own_message() {
    let bytes = file("messages", WeightsAt::Inside);
    let message = |bytes: &[u8]| PlanFile::parse(bytes).unwrap_err().to_string();
    let put =
        |at: usize, value: u64| move |row: &mut [u8]| row[at..at + 8].copy_from_slice(&value.to_le_bytes());
    assert_eq!(message(b"GGUF\x03"), "not a plan file: it starts with \"GGUF\", expected \"WPLN\"");
    assert_eq!(message(b""), "not a plan file: it starts with \"\", expected \"WPLN\"");
    assert!(message(&patched(&bytes, 4, VERSION + 1)).starts_with(&format!("plan version {}", VERSION + 1)));
    let cut = message(&bytes[..bytes.len() - 1]);
    assert_eq!(
        cut,
        format!(
            "the file has {} bytes, its header says {} (interrupted copy?)",
            bytes.len() - 1,
            bytes.len()
        )
    );
    assert!(message(&patched(&bytes, 16, 65)).contains("65 sections, at most 64"));
    assert!(message(&patched(&bytes, 8, u32::MAX)).contains("not in the file"));
    let unknown = with_row(&bytes, 2, |row| row[..4].copy_from_slice(b"zzzz"));
    assert!(message(&unknown).starts_with("section 'zzzz' at"), "{}", message(&unknown));
    let twice = with_row(&bytes, 1, |row| row[..4].copy_from_slice(b"json"));
    assert!(message(&twice).contains("occurs twice"));
    assert!(message(&with_row(&bytes, 1, put(8, 65))).contains("multiple of 64"));
    assert!(message(&with_row(&bytes, 1, put(8, 64))).contains("overlaps"));
    assert!(message(&with_row(&bytes, 3, put(16, u64::MAX))).contains("needs 18446744073709551615 bytes"));
    assert!(message(&with_row(&bytes, 3, put(16, 64))).contains("has 64 bytes, the plan's weights need 328"));
    let json_at = bytes.windows(6).position(|it| it == b"\"plan\"").unwrap();
    let mut flipped = bytes.clone();
    flipped[json_at + 20] ^= 1;
    assert!(message(&flipped).starts_with("section 'json' at 0xc0: CRC-32C is"), "{}", message(&flipped));
}

#[test]
fn unknown_optional_sections_are_skipped() {
    let bytes = file("optional", WeightsAt::Inside);
    let renamed = with_row(&bytes, 1, |row| row[..4].copy_from_slice(b"next"));
    let read = PlanFile::parse(&renamed).unwrap();
    assert_eq!((read.ir, read.text), ("", &b"tokens"[..]));
}

#[test]
fn repetitions_cannot_blow_up() {
    let step = serde_json::to_string(&layers(1)[0].steps[0]).unwrap();
    let text = |times: &str, bind: &str, steps: &str| {
        let plan = doc::encode(&plan(layers(1)[..1].to_vec())).unwrap();
        let (head, _) = plan.split_once("\"steps\":[\n").unwrap();
        format!("{head}\"steps\":[[{{\"times\":{times},\"bind\":[{bind}],\"steps\":[{steps}]}}]]}}")
    };
    let message = |text: String| doc::decode(text.as_bytes()).unwrap_err().to_string();
    assert!(doc::decode(text("3", "", &step).as_bytes()).is_ok());
    assert!(message(text("4000000000", "", &step)).contains("expands to more than"));
    assert!(message(text("4000000000", "", "")).contains("a group without steps"));
    assert!(message(text("2", "[1]", &step)).contains("binding 0 has 1 numbers, expected 2"));
    assert!(message(text("2", "[\"x\"]", &step)).contains("invalid type"));
    assert!(message(text("1", "", "{\"op\":\"$0\"}")).contains("placeholder '$0' of 0"));
    assert!(message(text("1", "[1]", "{\"op\":\"$9\"}")).contains("placeholder '$9' of 1"));
    assert!(message(text("1", "", "7")).contains("step 0"));
}

#[test]
fn a_changed_file_is_refused_or_equal() {
    let bytes = file("fuzz", WeightsAt::Inside);
    let whole = PlanFile::parse(&bytes).unwrap();
    for len in (0..256).chain((256..bytes.len()).step_by(97)) {
        assert!(PlanFile::parse(&bytes[..len]).is_err(), "{len} bytes");
    }
    let places = (0..192 + 64).chain((256..bytes.len()).step_by(31));
    for at in places {
        for flip in [1u8, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            if let Ok(read) = PlanFile::parse(&changed) {
                assert_eq!(read, whole, "byte {at} ^ {flip:#x}");
            }
        }
    }
}

/// The CRCs made right after each change, so that what lies behind them is reached.
#[test]
fn a_forged_file_never_panics() {
    let bytes = file("forged", WeightsAt::Inside);
    let mut random = Random(9);
    let json = PlanFile::parse(&bytes).map(|_| 192..192 + json_len(&bytes)).unwrap();
    let mut refused = 0;
    for _ in 0..3000 {
        let mut changed = bytes.clone();
        for _ in 0..=random.below(2) {
            let at = match random.below(3) {
                0 => 64 + random.below(128) as usize,
                1 => random.below(60) as usize,
                _ => json.start + random.below(json.len() as u64) as usize,
            };
            changed[at] = random.next() as u8;
        }
        let json_crc = crc32c(&changed[json.clone()]);
        changed[64 + 24..64 + 28].copy_from_slice(&json_crc.to_le_bytes());
        let table_crc = crc32c(&changed[64..192]);
        changed = patched(&changed, 20, table_crc);
        refused += usize::from(PlanFile::parse(&changed).is_err());
    }
    assert!(refused > 1000, "only {refused} of 3000 forgeries were noticed by structure alone");
}

fn json_len(bytes: &[u8]) -> usize {
    usize::try_from(u64::from_le_bytes(bytes[64 + 16..64 + 24].try_into().unwrap())).unwrap()
}
