//! Round trips: the sample, random plans, and errors with their places.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::{parse, print};
use crate::schema::*;
use crate::words::{Act, RopeStyle, Scoring, UnaryKind};
use crate::{DType, LowRank, Math, Packing, Tables, VqCode};

const TINY: &str = include_str!("../../testdata/tiny.plan.txt");

#[test]
fn the_sample_is_canonical() {
    assert_eq!(print(&parse(TINY).unwrap()), TINY);
}

/// Draws plans that need not make sense (xorshift64*).
struct Draw(u64);

impl Draw {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.bits() >> 33).unwrap() % n
    }
    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
    /// Small and large numbers alike.
    fn u64(&mut self) -> u64 {
        let shift = self.below(64);
        self.bits() >> shift
    }
    fn u32(&mut self) -> u32 {
        u32::try_from(self.u64() >> 32).unwrap()
    }
    fn f32(&mut self) -> f32 {
        let it = f32::from_bits(u32::try_from(self.bits() >> 32).unwrap());
        if it.is_finite() { it } else { -0.0 }
    }
    fn f64(&mut self) -> f64 {
        let it = f64::from_bits(self.bits());
        if it.is_finite() { it } else { 1e-300 }
    }
    fn string(&mut self) -> String {
        let chars = ['a', '"', '\\', ';', '\n', '\u{7f}', 'é', '雪', ' ', '{', '\0', '\u{301}'];
        (0..self.below(6)).map(|_| self.pick(&chars)).collect()
    }
    fn many<T>(&mut self, most: usize, make: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| make(self)).collect()
    }

    fn operand(&mut self) -> Operand {
        let n = self.u32();
        Operand {
            place: match self.below(4) {
                0 => Place::Scratch(self.u64()),
                1 => Place::Io(self.u64()),
                2 => Place::Weight(self.u32()),
                _ => Place::State(self.u32()),
            },
            dtype: self.pick(&DType::ALL),
            rows: self.pick(&[
                Rows::Fixed(n),
                Rows::Tokens(n),
                Rows::Want(n),
                Rows::Tokens(1),
                Rows::Want(1),
            ]),
            cols: self.u32(),
            stride: self.u64(),
        }
    }

    fn kind(&mut self) -> StepKind {
        let act = self.pick(Act::ALL);
        let (bias, residual) = (self.flag(), self.flag());
        let quant = if self.flag() { Some(self.pick(&Math::ALL)) } else { None };
        let situ =
            if act == Act::Situ { Situ { beta: self.f32(), linear: self.f32() } } else { Situ::default() };
        match self.below(40) {
            0 => StepKind::Embed,
            1 => StepKind::QuantAct { math: self.pick(&Math::ALL) },
            2 => StepKind::Linear { act, bias, residual },
            3 => StepKind::LinearGlu { act, situ, quant },
            4 => StepKind::Add,
            5 => StepKind::Mul,
            6 => StepKind::Unary { kind: self.pick(UnaryKind::ALL) },
            7 => StepKind::Glu { act, situ },
            8 => StepKind::RmsNorm { eps: self.f32(), quant },
            9 => StepKind::LayerNorm { eps: self.f32(), bias, quant },
            10 => StepKind::RopeAngles { freqs: self.many(4, Self::f64), factors: bias },
            11 => StepKind::Rope { head_dim: self.u32(), skip: self.u32(), style: self.pick(RopeStyle::ALL) },
            12 => StepKind::KvAppend,
            13 => StepKind::Attention { scale: self.f32(), heads: self.u32() },
            14 => StepKind::SelectRows,
            15 => StepKind::Argmax,
            16 => StepKind::FiniteCheck,
            17 => StepKind::Concat,
            18 => StepKind::ShortConv { act },
            19 => StepKind::L2Norm { dim: self.u32(), eps: self.f32(), scale: self.f32() },
            20 => StepKind::KdaGate { lower_bound: self.f32() },
            21 => StepKind::KdaStep,
            22 => StepKind::GatedRmsNorm { eps: self.f32() },
            23 => StepKind::HeadLinear,
            24 => StepKind::HeadLinearT,
            25 => StepKind::LatentAttention { scale: self.f32(), heads: self.u32(), rope: bias },
            26 => StepKind::AttnResMix { eps: self.f32(), blocks: bias },
            27 => StepKind::RouteTopK {
                scoring: self.pick(Scoring::ALL),
                groups: self.u32(),
                keep: self.u32(),
                renorm: residual,
                scale: self.f32(),
                bias,
            },
            28 => StepKind::ExpertSort { experts: self.u32() },
            29 => StepKind::ExpertGather,
            30 => StepKind::ExpertLinear { act, gather: bias },
            31 => StepKind::ExpertGlu { act, situ, quant, gather: bias },
            32 => StepKind::ExpertSum,
            33 => StepKind::LutBuild { code: self.pick(VqCode::ALL), tables: self.pick(Tables::ALL) },
            34 => StepKind::ExpertLut { gather: bias },
            35 => StepKind::ExpertPrefetch { bank: self.u32(), speculative: bias },
            36 => StepKind::ExpertWindow { bank: self.u32(), body: self.u32() },
            37 => StepKind::ExpertRelease { bank: self.u32(), body: self.u32() },
            38 => StepKind::ExpertVq {
                code: self.pick(VqCode::ALL),
                tables: self.pick(Tables::ALL),
                gather: bias,
            },
            _ => StepKind::Unary { kind: self.pick(UnaryKind::ALL) },
        }
    }

    fn step(&mut self) -> Step {
        Step {
            kind: self.kind(),
            reads: self.many(4, Self::operand),
            writes: self.many(2, Self::operand),
            tile: Tile { rows: self.u32(), cols: self.u32() },
            barrier: self.flag(),
            window: self.flag(),
            op: self.u32(),
        }
    }

    fn weight(&mut self) -> Weight {
        Weight {
            name: self.string(),
            dtype: self.pick(&DType::ALL),
            bank: self.pick(&[1, 1, 2, u32::MAX]),
            rows: self.u64(),
            cols: self.u64(),
            packing: self.pick(&Packing::ALL),
            bytes: self.u64(),
            offset: self.u64(),
            crc32c: self.u32(),
            parts: self.many(3, |it| Part {
                source: it.u32(),
                offset: it.u64(),
                scales: it.flag().then(|| it.u64()),
                stored: it.pick(&DType::ALL),
                rows: it.u64(),
                transposed: it.flag(),
                terms: it.many(2, |it| LowRank {
                    source: it.u32(),
                    stored: it.pick(&DType::ALL),
                    a: it.u64(),
                    b: it.u64(),
                    rank: it.u32(),
                    scale: f64::from(it.u32()) / 7.0,
                }),
            }),
            records: if self.flag() {
                Some(Records { bank: self.u32(), indices: self.u64(), scales: self.u64() })
            } else {
                None
            },
        }
    }

    fn memory(&mut self) -> Memory {
        Memory {
            weights: self.u64(),
            states: self.u64(),
            scratch: self.u64(),
            io: self.u64(),
            thread: self.u64(),
            text: self.u64(),
            experts: self.u64(),
            expert_slots: self.u64().max(1),
            scratch_lower_bound: self.u64(),
            placement: self.string(),
        }
    }

    fn plan(&mut self) -> Plan {
        Plan {
            version: self.u32(),
            producer: self.string(),
            target: self.string(),
            model: Model {
                name: self.string(),
                arch: self.string(),
                ctx_trained: self.u32(),
                vocab: self.u32(),
                params: self.u64(),
                source_bytes: self.u64(),
            },
            options: Options {
                ctx: self.u32(),
                batch: self.u32(),
                chunk: self.u32(),
                want: self.u32(),
                kv: self.pick(&DType::ALL),
                math: self.pick(&Math::ALL),
                lookahead: self.u32() % 3,
                passes: self.many(3, Self::string),
            },
            sources: self.many(2, |it| Source {
                path: it.string(),
                bytes: it.u64(),
                header_sha256: it.string(),
            }),
            banks: self.many(2, |it| Bank {
                layer: it.u32(),
                source: it.u32(),
                offset: it.u64(),
                bytes: it.u64(),
                experts: it.u32(),
                codebooks: it.u32(),
            }),
            weights: self.many(3, Self::weight),
            states: self.many(2, |it| State {
                name: it.string(),
                dtype: it.pick(&DType::ALL),
                kind: it.pick(&[StateKind::Keys, StateKind::Values]),
                shape: [it.u32(), it.u32(), it.u32(), it.u32()],
                bytes: it.u64(),
                offset: it.u64(),
            }),
            ports: self.many(3, |it| Port {
                name: it.pick(&PortName::ALL),
                dtype: it.pick(&DType::ALL),
                rows: it.u32(),
                cols: it.u32(),
                offset: it.u64(),
            }),
            memory: self.memory(),
            programs: self.many(2, |it| Program {
                name: it.string(),
                tokens: it.u32(),
                want: it.u32(),
                steps: it.many(12, Self::step),
            }),
            stop_ids: self.many(3, Self::u32),
        }
    }
}

#[test]
fn random_plans_come_back() {
    let mut draw = Draw(0x1234_5678_9abc_def1);
    for case in 0..2000 {
        let plan = draw.plan();
        let text = print(&plan);
        let back = parse(&text).unwrap_or_else(|errors| panic!("case {case}: {errors:?}\n{text}"));
        assert_eq!(back, plan, "case {case}\n{text}");
    }
}

/// Replaces `from` in the sample, once: the one error must begin where `at` stands in the broken text.
fn refused(from: &str, to: &str, at: &str, message: &str) {
    let text = TINY.replacen(from, to, 1);
    assert_ne!(text, TINY, "the sample has no '{from}'");
    let before = &text[..text.find(at).unwrap()];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|it| *it != '\n').count() + 1;
    assert_eq!(parse(&text), Err(vec![super::ParseError { line, column, message: message.into() }]));
}

#[test]
fn errors_name_line_and_column() {
    refused("arch \"llama\"", "arch llama", "llama", "expected a quoted string");
    refused("kv f32", "kv f23", "f23", "'f23' is no dtype");
    refused("weight w4", "weight w7", "w7", "number 7, expected 4");
    refused("stop [2]", "stop [2] 3", "3\nmemory", "superfluous text");
    refused("stop [2]", "stop [2]\nstop [3]", "\nmemory", "this line was there before");
    refused("\"tiny\"", "\"tiny\\q\"", "\"tiny", "an unknown escape in a string");
    refused("bytes 9216\n", "bytes 9216 \"\n", "\"\noptions", "an unclosed string");
    refused("{head_dim=16,", "{", "style=half", "expected the attribute 'head_dim'");
    refused("tile 8x48", "tile 8", "8 op", "'8' is no tile, expected rows x columns");
    refused(
        "bytes 1360",
        "bytes 99999999999999999999",
        "99999",
        "'99999999999999999999' is no whole number in range",
    );
    refused("eps=1e-5", "eps=1e99", "1e99", "'1e99' is no finite number");
    refused("= embed", "= embde", "tile 4x32", "unknown step kind 'embde'");
}

#[test]
fn a_missing_line_is_named() {
    let text = TINY.replacen("stop [2]\n", "", 1);
    assert_eq!(parse(&text).unwrap_err()[0].message, "no line 'stop'");
}

#[test]
fn every_bad_line_is_reported() {
    let text = TINY.replace("port ", "prot ");
    assert_eq!(parse(&text).unwrap_err().len(), 7);
}

#[test]
fn damaged_text_never_panics() {
    let mut draw = Draw(77);
    let mut refused = 0;
    for _ in 0..1000 {
        let mut bytes = TINY.as_bytes().to_vec();
        for _ in 0..=draw.below(3) {
            let at = draw.below(bytes.len());
            bytes[at] = u8::try_from(32 + draw.below(95)).unwrap();
        }
        let text = String::from_utf8(bytes).unwrap();
        match parse(&text) {
            Ok(plan) => drop(crate::validate::validate(&plan)),
            Err(errors) => {
                assert!(errors.iter().all(|it| it.line >= 1 && it.column >= 1));
                refused += 1;
            }
        }
    }
    assert!(refused > 200, "{refused}");
}
