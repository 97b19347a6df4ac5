//! The sample is valid; each broken copy of it is refused at the right entity; random damage never faults.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::{At, validate};
use crate::schema::{Place, Plan, Rows, StepKind};
use crate::text::parse;

const TINY: &str = include_str!("../../testdata/tiny.plan.txt");

/// Recurrences, latent attention, and experts of records.
const HYBRID: &str = include_str!("../../testdata/hybrid.plan.txt");

fn errors(plan: &Plan) -> Vec<String> {
    validate(plan).err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

/// The errors of a sample after one replacement.
fn broken(sample: &str, from: &str, to: &str) -> Vec<String> {
    let text = sample.replacen(from, to, 1);
    assert_ne!(text, sample, "the sample has no '{from}'");
    errors(&parse(&text).unwrap())
}

#[test]
fn the_samples_are_valid() {
    for sample in [TINY, HYBRID] {
        assert_eq!(errors(&parse(sample).unwrap()), Vec::<String>::new());
    }
}

/// One replacement and the first error that it must cause.
const CASES: &[(&str, &str, &str)] = &[
    ("plan 1 ", "plan 9 ", "plan: schema version 9, this build reads 1"),
    ("batch 1", "batch 0", "plan: batch = 0, expected 1 … 16777216"),
    ("kv f32", "kv q8_0", "plan: caches of q8_0, expected f32 or f16"),
    ("scratch 7680", "scratch 7616", "plan: scratch of 7616 bytes is less than its lower bound 7680"),
    (
        "scratch 7680",
        "scratch 18446744073709551615",
        "plan: scratch memory of 18446744073709551615 bytes, at most 72057594037927936",
    ),
    ("sha256 \"01", "sha256 \"0G", "source 0: header_sha256"),
    ("weights 6720", "weights 6719", "weight 4: 1728 bytes at 0x1380 leave a space of 6719"),
    ("bytes 1360", "bytes 1361", "weight 0: 1361 bytes, but 1 × 40 × 32 of q8_0 as plain take Some(1360)"),
    ("at 0x580", "at 0x540", "weight 1: byte 0x540 belongs to weight 0 too"),
    ("at 0x580", "at 0x590", "weight 1: offset 0x590 is no multiple of 64"),
    ("at 0x580", "at 0xffffffffffffffc0", "weight 1: 128 bytes at 0xffffffffffffffc0 leave a space of 6720"),
    ("w8x16", "w4x16", "weight 2: q8_0 packed as w4x16"),
    ("q8_0[64,32]", "q8_0[64,33]", "weight 2: 33 columns are no blocks of q8_0"),
    ("@0[0x400]", "@1[0x400]", "weight 0: source 1 of 1"),
    ("@0[0x1880]", "@0[0x2000]", "weight 3: 32 × 32 of q8_0 at byte 8192 leave a source of 9216 bytes"),
    (":q8_0[32], ", ":q8_0[31], ", "weight 2: the parts have 63 rows, the weight 64"),
    ("]:f32[32]", "]:f32[31]", "weight 1: the parts have 31 elements, the weight 32"),
    ("f32[1,64,1,16]", "f32[1,60,1,16]", "state 0: 60 positions, expected a multiple of 32"),
    ("f32[1,64,1,16]", "f32[1,32,1,16]", "state 0: 32 positions, the options say 64"),
    ("f32[1,64,1,16]", "f32[2,64,1,16]", "state 0: 2 rows, the options say 1"),
    ("at 0x1000 bytes", "at 0xfc0 bytes", "state 1: byte 0xfc0 belongs to state 0 too"),
    ("port row", "port token", "port 1: token is declared twice"),
    ("port finite i32[2,1] at 0x280", "", "plan: no port finite"),
    ("port token i32[8,1] at 0x0", "", "plan: no port token"),
    ("port want i32[2,1]", "port want i32[1,1]", "port 3: want has 1 rows, programs use 2"),
    ("f32[2,40] at", "f32[2,39] at", "port 4: logits is f32[_, 39], expected f32[_, 40]"),
    ("at 0x240", "at 0x200", "port 5: byte 0x200 belongs to port 4 too"),
    ("\"prefill\"", "\"decode\"", "program 1: 'decode' is declared twice"),
    ("tokens 1 ", "tokens 0 ", "program 0: tokens = 0, expected 1 … 16777216"),
    ("tokens 8 want", "tokens 16 want", "port 0: token has 8 rows, programs use 16"),
    ("w0:q8_0", "w9:q8_0", "program 0 step 0: read 1: weight 9 of 5"),
    ("w0:q8_0[40,32] tile", "w0:q8_0[41,32] tile", "program 0 step 0: read 1: weight 0 is q8_0[40, 32]"),
    ("embed io[0x0]", "embed io[0x40]", "program 0 step 0: embed: read 0 is not the port token"),
    ("  #0    s[0x0]", "  #0    io[0x0]", "program 0 step 0: write 0: bytes 0x0 … 0x80 of io lie in no port"),
    ("| io[0x240]", "| io[0x40]", "program 0 step 14: write 0: writes the input row"),
    (
        "  #0    s[0x0]",
        "  #0    s[0x2]",
        "program 0 step 0: write 0: offset 0x2 or stride 128 is no multiple of 4",
    ),
    (
        "  #0    s[0x0]",
        "  #0    s[0x1e00]",
        "program 0 step 0: write 0: byte 0x1e80 of scratch, which has 0x1e00",
    ),
    (
        "s[0x400]:fx24[T,32]/512 =",
        "s[0x420]:fx24[T,32]/512 =",
        "program 0 step 1: write 0: offset 0x420 or stride 512 is no multiple of 64",
    ),
    ("[T,32]/128 =", "[T,32]/64 =", "program 0 step 0: write 0: stride 64 is less than a row of 128 bytes"),
    ("[T,32]/128 =", "[T,32] =", "program 0 step 0: write 0: stride 0 is less than a row of 128 bytes"),
    (
        "[T,32]/128 =",
        "[2*T,32]/128 =",
        "program 0 step 0: embed: writes f32 of Tokens(2) × 32, expected f32 of Tokens(1) × 32",
    ),
    (
        "embed io[0x0]:i32[T,1]/4, ",
        "embed ",
        "program 0 step 0: embed with 1 reads and 1 writes, expected 2 and 1",
    ),
    ("rms_norm s[0x0]", "rms_norm s[0x400]", "program 0 step 1: writes over read 0"),
    ("eps=1e-5, quant=fixed24", "eps=-1.0, quant=fixed24", "program 0 step 1: rms_norm: eps = -1"),
    (
        "quant=fixed24",
        "quant=fixed16",
        "program 0 step 1: rms_norm: writes fx24 of Tokens(1) × 32, expected fx16 of Tokens(1) × 32",
    ),
    ("quant=fixed24", "quant=f32", "program 0 step 1: rms_norm: quantises to f32"),
    (
        "linear s[0x400]:fx24[T,32]/512, w2",
        "linear s[0x400]:fx24[T,32]/512, w3",
        "program 0 step 3: read 1: weight 3 is q8_0[32, 32]",
    ),
    ("w2:q8_0[64,32]", "w0:q8_0[40,32]", "program 0 step 3: linear: a matrix packed as plain"),
    (
        "tile 8x48",
        "tile 8x40",
        "program 0 step 3: tiles of 8 × 40, expected columns in multiples of 16 or all 64",
    ),
    (
        "tile 8x48",
        "tile 0x48",
        "program 0 step 3: tiles of 0 × 48, expected columns in multiples of 16 or all 64",
    ),
    ("{head_dim=16", "{head_dim=5", "program 0 step 4: rope: 32 columns are no heads of 5"),
    ("heads=2", "heads=3", "program 0 step 8: attention: Tokens(1) rows of 32 columns for 3 heads of 16"),
    ("heads=2", "heads=0", "program 0 step 8: attention: 0 heads over 1"),
    (
        "/256, st0:f32[64,16], st1",
        "/256, st1:f32[64,16], st1",
        "program 0 step 8: attention: caches of the wrong kinds",
    ),
    ("st1:f32[64,16] =", "st2:f32[64,16] =", "program 0 step 6: write 0: state 2 of 2"),
    ("{residual}", "", "program 0 step 10: linear with 3 reads and 1 writes, expected 2 and 1"),
    (
        "select_rows s[0x0]:f32[T,32]/128, io[0xc0]:i32[R",
        "select_rows s[0x0]:f32[T,32]/128, io[0x80]:i32[T",
        "program 0 step 11: select_rows: read 1 is not the port want",
    ),
];

/// The same for the other sample, whose first program takes two tokens.
const HYBRID_CASES: &[(&str, &str, &str)] = &[
    ("tile 2x64 op 5 ", "tile 1x64 op 5 ", "program 0 step 5: tiles of 1 of 2 rows"),
    (
        "tile 2x64 op 5 ",
        "tile 2x8 op 5 ",
        "program 0 step 5: tiles of 2 × 8, expected columns in multiples of 64 or all 16",
    ),
    ("tile 2x8 op 12", "tile 1x8 op 12", "program 0 step 12: tiles of 1 of 2 rows"),
    (
        "tile 2x8 op 12",
        "tile 2x4 op 12",
        "program 0 step 12: tiles of 2 × 4, expected columns in multiples of 8 or all 16",
    ),
    (
        "tile 2x16 op 19",
        "tile 2x8 op 19",
        "program 0 step 19: tiles of 2 × 8, expected columns in multiples of 16 or all 16",
    ),
    (
        "tile 64x16 op 21",
        "tile 64x17 op 21",
        "program 0 step 20: tiles of 64 × 17, expected columns in multiples of 16 or all 32",
    ),
    (
        "tile 64x8 op 23",
        "tile 64x12 op 23",
        "program 0 step 22: tiles of 64 × 12, expected columns in multiples of 8 or all 16",
    ),
    ("tile 2x1 op 31", "tile 1x1 op 31", "program 0 step 30: tiles of 1 of 2 rows"),
    (
        "s[0x64c0]:i32[T,1]/4, s[0x6500]:i32[1,6]/24, s[0x6540]:i32[T,1]/4 =",
        "s[0x64c0]:i32[T,1]/8, s[0x6500]:i32[1,6]/24, s[0x6540]:i32[T,1]/4 =",
        "program 0 step 30: expert_sort: rows that do not follow each other",
    ),
    ("tile 1x64 op 32", "tile 2x64 op 32", "program 0 step 32: tiles of 2 experts"),
    (
        "tile 1x64 op 33",
        "tile 1x16 op 33",
        "program 0 step 33: tiles of 1 × 16, expected columns in multiples of 64 or all 32",
    ),
    (
        "tile 1x32 op 35",
        "tile 1x16 op 35",
        "program 0 step 35: tiles of 1 × 16, expected columns in multiples of 256 or all 32",
    ),
    (
        "s[0x6540]:i32[T,1]/4 tile 2x32 op 37",
        "s[0x6540]:i32[T,1]/8 tile 2x32 op 37",
        "program 0 step 38: expert_sum: rows that do not follow each other",
    ),
    ("{bank=0, body=6} tile 1x1 op 32", "{bank=0, body=5} tile 1x1 op 32", "program 0 step 31: step 5"),
    ("experts 8192 slots 2", "experts 4096 slots 2", "plan: an expert cache of 4096 bytes for 2 records"),
];

#[test]
fn each_fault_is_named_where_it_is() {
    let tiny = CASES.iter().map(|it| (TINY, it));
    for (sample, (from, to, expected)) in tiny.chain(HYBRID_CASES.iter().map(|it| (HYBRID, it))) {
        let found = broken(sample, from, to);
        let first = found.first().unwrap_or_else(|| panic!("'{from}' → '{to}' is not refused"));
        assert!(first.starts_with(expected), "'{from}' → '{to}':\n  {first}\nexpected\n  {expected}");
    }
}

#[test]
fn a_result_may_lie_over_what_its_kind_allows_only() {
    let mut plan = parse(TINY).unwrap();
    let step = &mut plan.programs[1].steps[10];
    assert!(matches!(step.kind, StepKind::Linear { residual: true, .. }));
    // One row further: no longer exactly over the residual.
    step.writes[0].place = Place::Scratch(128);
    assert_eq!(errors(&plan), ["program 1 step 10: writes over read 2"]);
}

#[test]
fn a_port_of_2_to_the_64_bytes_and_more_is_refused() {
    let mut plan = parse(TINY).unwrap();
    plan.model.vocab = 1 << 31;
    for rows in [1 << 31, u32::MAX] {
        (plan.ports[4].rows, plan.ports[4].cols) = (rows, plan.model.vocab);
        assert_eq!(errors(&plan)[0], "port 4: 18446744073709551615 bytes at 0x100 leave a space of 704");
    }
}

#[test]
fn errors_are_bounded() {
    let mut plan = parse(TINY).unwrap();
    let step = plan.programs[0].steps[0].clone();
    plan.programs[0].steps = vec![crate::schema::Step { writes: vec![], ..step }; 1000];
    assert_eq!(validate(&plan).unwrap_err().len(), 64);
}

#[test]
fn too_many_steps_are_refused_by_number() {
    let mut plan = parse(TINY).unwrap();
    let step = plan.programs[0].steps[14].clone();
    plan.programs[0].steps = vec![step; super::MAX_STEPS + 1];
    let found = validate(&plan).unwrap_err();
    assert_eq!((found.len(), found[0].at), (1, At::Plan));
}

#[test]
fn wild_operands_are_refused_without_overflow() {
    let wild = [0, 1, 63, 64, u64::MAX, u64::MAX - 63, 1 << 63, 1 << 32];
    let plan = parse(TINY).unwrap();
    for number in wild {
        for step in 0..plan.programs[1].steps.len() {
            let mut copy = plan.clone();
            let it = &mut copy.programs[1].steps[step].writes[0];
            it.stride = number;
            it.rows = Rows::Tokens(u32::try_from(number >> 32).unwrap());
            assert_ne!(errors(&copy), Vec::<String>::new(), "stride {number} of step {step}");
            let mut copy = plan.clone();
            let it = &mut copy.programs[1].steps[step].writes[0];
            it.place = match it.place {
                Place::Scratch(_) => Place::Scratch(number | 1 << 40),
                Place::Io(_) => Place::Io(number | 1 << 40),
                Place::Weight(_) | Place::State(_) => Place::State(u32::MAX),
            };
            assert_ne!(errors(&copy), Vec::<String>::new(), "offset {number} of step {step}");
        }
    }
}
