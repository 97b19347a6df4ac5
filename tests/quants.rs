//! Models whose matrices are stored in GGML's formats of several bit planes, against the same models in f32: decoded here, independently, and
//! run by the f64 evaluator.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests, which show their figures")]

#[path = "support/blocks.rs"]
mod blocks;
mod support;

use blocks::{FORMATS, Format};
use support::gguf::Gguf;
use support::{Fixture, Run, hash, rel_l2, run};
use waste::compile::{CompileOptions, compile};
use waste::formats::ModelFiles;
use waste::progress::Silent;
use waste_plan::Math;
use waste_runtime::{CpuFeatures, Isa};

const VOCAB: u32 = 80;
const LAYERS: u32 = 2;
const IDS: [u32; 19] = [3, 71, 11, 5, 9, 13, 2, 17, 4, 8, 19, 23, 79, 0, 41, 42, 43, 6, 60];

/// Which format a matrix is stored in.
type FormatOf<'a> = dyn Fn(&str) -> Format + 'a;

/// A Llama of random blocks with `hidden` inputs in heads of 32: as it is stored, and its twin in f32.
fn models(name: &str, [hidden, ff]: [u32; 2], format_of: &FormatOf<'_>) -> [Fixture; 2] {
    let kv = 64;
    let meta = || {
        Gguf::new()
            .str("general.architecture", "llama")
            .u32("llama.block_count", LAYERS)
            .u32("llama.context_length", 128)
            .u32("llama.embedding_length", hidden)
            .u32("llama.feed_forward_length", ff)
            .u32("llama.attention.head_count", hidden / 32)
            .u32("llama.attention.head_count_kv", if hidden % 64 == 0 { 2 } else { 1 })
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .f32("llama.rope.freq_base", 10000.0)
            .u32("llama.vocab_size", VOCAB)
    };
    let kv = if hidden % 64 == 0 { kv } else { 32 };
    let mut seed = u64::from(hidden) + name.bytes().map(u64::from).sum::<u64>();
    let (mut stored, mut twin) = (meta(), meta());
    let mut matrix = |stored: Gguf, twin: Gguf, name: &str, rows: u32, cols: u32| {
        let format = format_of(name);
        let bytes = format.random((rows * cols) as usize, &mut seed);
        let wide: Vec<u8> = format.decode(&bytes).iter().flat_map(|it| (*it as f32).to_le_bytes()).collect();
        let dims = [u64::from(cols), u64::from(rows)];
        (stored.tensor(name, &dims, format.kind, &bytes), twin.tensor(name, &dims, 0, &wide))
    };
    let mut shapes = vec![("token_embd".to_owned(), VOCAB, hidden), ("output".to_owned(), VOCAB, hidden)];
    for i in 0..LAYERS {
        let at = |part: &str| format!("blk.{i}.{part}");
        shapes.extend([
            (at("attn_q"), hidden, hidden),
            (at("attn_k"), kv, hidden),
            (at("attn_v"), kv, hidden),
            (at("attn_output"), hidden, hidden),
            (at("ffn_gate"), ff, hidden),
            (at("ffn_up"), ff, hidden),
            (at("ffn_down"), hidden, ff),
        ]);
    }
    for (name, rows, cols) in shapes {
        (stored, twin) = matrix(stored, twin, &format!("{name}.weight"), rows, cols);
    }
    let ones: Vec<u8> = (0..hidden).flat_map(|_| 1f32.to_le_bytes()).collect();
    let layers = (0..LAYERS).flat_map(|i| ["attn_norm", "ffn_norm"].map(|it| format!("blk.{i}.{it}")));
    for norm in layers.chain(["output_norm".to_owned()]) {
        let add = |it: Gguf| it.tensor(&format!("{norm}.weight"), &[u64::from(hidden)], 0, &ones);
        (stored, twin) = (add(stored), add(twin));
    }
    [("stored", stored), ("f32", twin)].map(|(kind, gguf)| {
        Fixture::written(&format!("{name}-{kind}"), |path| std::fs::write(path, gguf.bytes()).unwrap())
    })
}

/// Sizes that are whole blocks of `format`, and no whole activation groups where that is possible.
fn sizes(format: &Format) -> [u32; 2] {
    if format.elems == 256 { [256, 512] } else { [160, 96] }
}

fn options(math: Math) -> CompileOptions {
    CompileOptions { chunk: Some(32), want: Some(32), math, ..CompileOptions::usual() }
}

fn check(name: &str, sizes: [u32; 2], format_of: &FormatOf<'_>) {
    let [stored, twin] = models(name, sizes, format_of);
    let expected = twin.evaluate(&IDS);
    assert!(rel_l2(&stored.evaluate(&IDS), &expected) <= 1e-6, "{name}: the evaluator's decode");
    for (math, bound) in
        [(Math::Fixed24, 1e-5), (Math::F32, 1e-5), (Math::Fixed16, 5e-4), (Math::Fixed8, 0.2)]
    {
        let loaded = stored.compile(&options(math));
        let logits = run(&loaded, &Run::default(), &[&IDS]).remove(0);
        let error = rel_l2(&logits, &expected);
        println!("{name} {}: {error:.2e}", math.name());
        assert!(error <= bound, "{name} {}: relative L2 {error:.2e}", math.name());
        for how in [
            Run { step: 1, ..Run::default() },
            Run { step: 5, threads: 2, ..Run::default() },
            Run { cpu: CpuFeatures::detect().capped(Isa::Portable), ..Run::default() },
        ] {
            let other = run(&loaded, &how, &[&IDS]).remove(0);
            assert_eq!(hash(&other), hash(&logits), "{name} {} in steps of {}", math.name(), how.step);
        }
    }
}

#[test]
fn logits_agree_with_an_independent_decode() {
    for format in FORMATS {
        check(format.name, sizes(&format), &|_| format);
    }
}

/// What `llama-quantize` calls Q4_K_M: embedding, head, values and half of the down projections in Q6_K; q, k and v are not merged whole.
#[test]
fn formats_may_be_mixed() {
    let named = |name: &str| *FORMATS.iter().find(|it| it.name == name).unwrap();
    let format_of = |tensor: &str| match tensor {
        "token_embd.weight" | "output.weight" | "blk.1.ffn_down.weight" => named("Q6_K"),
        it if it.contains("attn_v") => named("Q6_K"),
        it if it.contains("attn_output") => named("Q5_K"),
        _ => named("Q4_K"),
    };
    check("mixed", [256, 512], &format_of);
}

#[test]
fn an_exponent_that_is_no_number_is_refused_by_name() {
    let mxfp4 = FORMATS[9];
    let [stored, _] = models("nan-exponent", sizes(&mxfp4), &|_| mxfp4);
    let path = stored.folder.join("model.gguf");
    let info = stored.files.tensor("blk.1.ffn_up.weight").unwrap();
    let at = usize::try_from(info.offset).unwrap() + 3 * 17;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at] = 255;
    let other = path.with_file_name("other.gguf");
    std::fs::write(&other, bytes).unwrap();
    let files = ModelFiles::open(&other, None).unwrap();
    let compiled = compile(&files, &options(Math::Fixed24), &mut |_| ()).unwrap();
    let error = compiled.load(&Silent).unwrap_err().to_string();
    let expected = format!("'blk.1.ffn_up.weight' at {at:#x}: has an exponent of 255");
    assert!(error.contains("other.gguf") && error.contains(&expected), "{error}");
    assert!(compiled.write(&stored.folder.join("m.wplan"), true, &Silent).is_err());
}
