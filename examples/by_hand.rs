//! Builds a graph by hand, compiles it and runs it: a bigram model, whose next letter depends on the last one only.
//!
//! `cargo run --example by_hand`
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use waste::compile::{CompileOptions, compile_module};
use waste::formats::Source;
use waste::progress::Silent;
use waste_ir::{Dim, GraphBuilder, ModelInfo, Module, Phase, SourceDecl, SymDecl, TensorType, WeightInit};
use waste_plan::DType;
use waste_runtime::{Session, SessionOptions, Token};

const LETTERS: &[u8] = b" abcdefghijklmnopqrstuvwxyz";
const TEXT: &str = " the cat sat on the mat and the rat ran at the cat ";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let compiled = {
        let bytes = weights();
        let (module, n) = (module(bytes.len() as u64)?, bytes.len());
        assert_eq!(n, 2 * LETTERS.len() * LETTERS.len() * 4);
        let source = Source::from_bytes("counts", bytes);
        let options = CompileOptions { chunk: Some(8), ctx: Some(64), ..CompileOptions::usual() };
        compile_module(module, vec![source], &options, &mut |_| ())?
    };
    print!("{}", compiled.ir);

    let mut session = Session::open(&compiled.load(&Silent)?, &SessionOptions::default())?;
    let mut id = LETTERS.iter().position(|it| *it == b'c').map_or(0, |it| it as u32);
    let mut text = String::new();
    for _ in 0..12 {
        text.push(char::from(LETTERS[id as usize]));
        session.step(&[Token { row: 0, id }], &[0])?;
        id = session.next(0);
    }
    println!("{text}");
    Ok(())
}

/// An identity table of letters, then how often letter i (row) follows letter k (column) in the text.
fn weights() -> Vec<u8> {
    let n = LETTERS.len();
    let index = |it: u8| LETTERS.iter().position(|letter| *letter == it).expect("a letter");
    let mut counts = vec![0f32; n * n];
    for pair in TEXT.as_bytes().windows(2) {
        counts[index(pair[1]) * n + index(pair[0])] += 1.0;
    }
    let identity = (0..n * n).map(|i| if i / n == i % n { 1f32 } else { 0.0 });
    identity.chain(counts).flat_map(f32::to_le_bytes).collect()
}

/// Two graphs over the two weights: one token a step, or a few.
fn module(bytes: u64) -> Result<Module, Box<dyn std::error::Error>> {
    let n = u32::try_from(LETTERS.len())?;
    let mut module = Module {
        info: ModelInfo { name: "bigram".into(), arch: "by-hand".into(), ctx_trained: 64, vocab: n },
        ..Module::default()
    };
    let source =
        module.sources.push(SourceDecl { path: "counts".into(), bytes, header_sha256: "0".repeat(64) });
    let ty = TensorType::matrix(DType::F32, Dim::Const(n), n);
    let stored = |offset| WeightInit::Stored { source, offset, stored: DType::F32 };
    let letters = module.add_weight("letters", ty.clone(), stored(0));
    let follows = module.add_weight("follows", ty, stored(u64::from(n * n * 4)));
    let mut sym = |name: &str, lo, hi| Dim::sym(module.syms.push(SymDecl { name: name.into(), lo, hi }));
    let sizes = [("decode", sym("B", 1, 1), sym("Q", 0, 1)), ("prefill", sym("T", 1, 8), sym("R", 0, 1))];
    for (name, tokens, want) in sizes {
        let mut b = GraphBuilder::new(&module, name, Phase::Imported);
        let ids = |dim| TensorType::new(DType::I32, &[dim]);
        let token = b.input("token", ids(tokens));
        b.input("row", ids(tokens));
        b.input("pos", ids(tokens));
        let want = b.input("want", ids(want));
        let (letters, follows) = (b.weight(letters), b.weight(follows));
        let x = b.embed(token, letters)?;
        let x = b.select_rows(x, want)?;
        let logits = b.linear(x, follows)?;
        let (next, finite) = (b.argmax(logits)?, b.finite_check(logits)?);
        b.output("logits", logits);
        b.output("next", next);
        b.output("finite", finite);
        let graph = b.finish();
        module.graphs.push(graph);
    }
    Ok(module)
}
