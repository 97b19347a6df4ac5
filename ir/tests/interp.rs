//! The evaluator against values worked out by hand, and its invariance under how a prompt is split.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/by_hand.rs"]
mod by_hand;

use std::cell::Cell;

use waste_ir::interp::Data;
use waste_ir::random::{self, RandomModule, Rng};
use waste_ir::{Inputs, Interp, InterpError, Tensor, decode_weight, verify};

use by_hand::{case, close, module, run, weight};

#[test]
fn linears() {
    let w = "weight \"1 2 3 4 5 6\": f32[2, 3] = f32 @0+0 weight \"10 -20\": f32[2] = f32 @0+0";
    case(
        "weight \"1 2 3 4 5 6\": f32[2, 3] = f32 @0+0",
        "linear x, w\"1 2 3 4 5 6\"",
        "f32[T, 2]",
        &[1.0, 0.0, 2.0, 0.0, 1.0, 0.0],
        3,
        &[7.0, 16.0, 2.0, 5.0],
    );
    let op = "linear x, w\"1 2 3 4 5 6\", bias=w\"10 -20\" {act=relu}";
    case(w, op, "f32[T, 2]", &[1.0, 0.0, 2.0], 3, &[17.0, 0.0]);
    let square = "weight \"0 1 1 0\": f32[2, 2] = f32 @0+0 weight \"1 1 1 -1\": f32[2, 2] = f32 @0+0";
    let op = "linear x, w\"0 1 1 0\", residual=x {act=relu} v1: f32[T, 2] = linear v0, w\"1 1 1 -1\"";
    case(square, op, "f32[T, 2]", &[3.0, -4.0], 2, &[3.0, -1.0]);
    // relu(swapped) ∘ (sum, difference).
    let op = "linear_glu x, w\"0 1 1 0\", w\"1 1 1 -1\" {act=relu}";
    case(square, op, "f32[T, 2]", &[3.0, 4.0], 2, &[28.0, -3.0]);
}

#[test]
fn elementwise() {
    let f = |kind: &str, x: &[f64], expected: &[f64]| {
        case("", &format!("unary x {{kind={kind}}}"), &format!("f32[T, {}]", x.len()), x, x.len(), expected);
    };
    f("relu", &[-1.0, 2.0], &[0.0, 2.0]);
    f("neg", &[-1.0, 2.0], &[1.0, -2.0]);
    f("silu", &[1.0, 0.0], &[0.731_058_578_630_004_9, 0.0]);
    f("sigmoid", &[0.0, 3f64.ln()], &[0.5, 0.75]);
    f("gelu_tanh", &[1.0, -1.0], &[0.841_191_990_608_276_8, -0.158_808_009_391_723_2]);
    f("gelu_erf", &[1.0, -1.0], &[0.841_344_746_068_542_9, -0.158_655_253_931_457_05]);
    f("softplus", &[0.0, 21.0], &[std::f64::consts::LN_2, 21.0]);
    f("exp", &[0.0, 2f64.ln()], &[1.0, 2.0]);
    f("tanh", &[0.0, 3f64.ln() / 2.0], &[0.0, 0.5]);
    case("", "add x, x", "f32[T, 2]", &[1.0, 2.0], 2, &[2.0, 4.0]);
    case("", "mul x, x", "f32[T, 2]", &[3.0, -2.0], 2, &[9.0, 4.0]);
    case("", "glu x, x {act=relu}", "f32[T, 2]", &[3.0, -2.0], 2, &[9.0, 0.0]);
    case(
        "",
        "slice x {start=1, len=2}",
        "f32[T, 2]",
        &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        3,
        &[2.0, 3.0, 5.0, 6.0],
    );
    case("", "reshape x {cols=1}", "f32[3*T, 1]", &[1.0, 2.0, 3.0], 3, &[1.0, 2.0, 3.0]);
}

#[test]
fn norms() {
    let w = "weight \"1 2\": f32[2] = f32 @0+0";
    // mean square 12.5 + 3.5 = 4².
    case(w, "rms_norm x, w\"1 2\" {eps=3.5}", "f32[T, 2]", &[3.0, 4.0], 2, &[0.75, 2.0]);
    // mean 2, variance 1 + 3 = 2².
    case(w, "layer_norm x, w\"1 2\" {eps=3.0}", "f32[T, 2]", &[1.0, 3.0], 2, &[-0.5, 1.0]);
    let wb = "weight \"2 4\": f32[2] = f32 @0+0 weight \"1 1\": f32[2] = f32 @0+0";
    case(wb, "layer_norm x, w\"2 4\", b=w\"1 1\" {eps=3.0}", "f32[T, 2]", &[1.0, 3.0], 2, &[0.0, 3.0]);
}

#[test]
fn rotations() {
    for (style, expected) in [("half", [-3.0, -4.0, 1.0, 2.0]), ("pair", [-2.0, 1.0, -4.0, 3.0])] {
        // cos = 0, sin = 1: a quarter turn of both pairs.
        let op = format!("rope x, w\"0 0 1 1\" {{head_dim=4, style={style}}}");
        let w = "weight \"0 0 1 1\": f32[1, 4] = f32 @0+0";
        let module = module(w, "x: f32[1, 4]", &format!("v0: f32[1, 4] = {op} return y: v0"));
        let y = run(&module, &Inputs::default().with("x", Tensor::matrix(4, vec![1.0, 2.0, 3.0, 4.0])));
        close(y.f64s(), &expected);
    }
    let angles = |attrs: &str, factors: &str, n: u32, pos: i32| {
        let w = if factors.is_empty() { "" } else { "weight \"2 4\": f32[2] = f32 @0+0" };
        let op = format!("rope_angles pos{factors} {{dims={n}, {attrs}}}");
        let module = module(w, "pos: i32[T]", &format!("v0: f32[T, {n}] = {op} return y: v0"));
        run(&module, &Inputs::default().with("pos", Tensor::ids(&[pos]))).f64s().to_vec()
    };
    let expected = |angles: &[f64]| -> Vec<f64> {
        angles.iter().map(|it| it.cos()).chain(angles.iter().map(|it| it.sin())).collect()
    };
    close(&angles("base=100.0", "", 4, 3), &expected(&[3.0, 0.3]));
    close(&angles("base=100.0", ", factors=w\"2 4\"", 4, 3), &expected(&[1.5, 0.075]));
    close(&angles("base=100.0, scaling=linear{factor=4.0}", "", 4, 3), &expected(&[0.75, 0.075]));
    // Wave lengths 2π, 2π·10, 2π·100 for 40 trained positions: kept (below 40/4), blended, divided (above 40/0.5).
    let llama3 = "base=1000.0, scaling=llama3{factor=8.0, low=0.5, high=4.0, orig=40}";
    let wave = 20.0 * std::f64::consts::PI;
    let smooth = (40.0 / wave - 0.5) / (4.0 - 0.5);
    close(
        &angles(llama3, "", 6, 1),
        &expected(&[1.0, (1.0 - smooth) * 0.1 / 8.0 + smooth * 0.1, 0.01 / 8.0]),
    );
}

#[test]
fn rows_and_choices() {
    let params = "x: f32[T, 3], i: i32[T]";
    let ids = |op: &str, x: &[f64], i: &[i32]| {
        let module = module("", params, &format!("v0: {op} return y: v0"));
        let inputs = Inputs::default().with("x", Tensor::matrix(3, x.to_vec())).with("i", Tensor::ids(i));
        run(&module, &inputs)
    };
    let x = [1.0, 7.0, 7.0, f64::NAN, -2.0, f64::NEG_INFINITY, f64::NAN, f64::NAN, f64::NAN];
    assert_eq!(ids("i32[T] = argmax x", &x, &[0, 0, 0]).i32s(), [1, 1, 0]);
    assert_eq!(ids("i32[T] = finite_check x", &x, &[0, 0, 0]).i32s(), [1, 0, 0]);
    let y = ids("f32[T, 3] = select_rows x, i", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[1, 1]);
    assert_eq!(y.f64s(), [4.0, 5.0, 6.0, 4.0, 5.0, 6.0]);
    let table = "weight \"1 2 3 4\": f32[2, 2] = f32 @0+0";
    let module = module(table, "i: i32[T]", "v0: f32[T, 2] = embed i, w\"1 2 3 4\" return y: v0");
    assert_eq!(run(&module, &Inputs::default().with("i", Tensor::ids(&[1, 0]))).f64s(), [3.0, 4.0, 1.0, 2.0]);
}

#[test]
fn routing() {
    let logits = Tensor::matrix(3, vec![1f64.ln(), 2f64.ln(), 5f64.ln()]);
    let top = |rest: &str, decls: &str| {
        let ops = format!("v0, v1: i32[T, 2], f32[T, 2] = route_top_k x{rest} return ids: v0, y: v1");
        let module = module(decls, "x: f32[T, 3]", &ops);
        let source = |id| weight(&module, id);
        let mut interp = Interp::new(verify(&module).unwrap(), &source);
        let outputs = interp.run("g", &Inputs::default().with("x", logits.clone())).unwrap();
        (outputs["ids"].i32s().to_vec(), outputs["y"].f64s().to_vec())
    };
    let (ids, weights) = top(" {k=2, scoring=softmax, renorm=false, scale=2.0}", "");
    assert_eq!(ids, [2, 1]);
    close(&weights, &[1.25, 0.5]);
    let (ids, weights) = top(" {k=2, scoring=sigmoid, renorm=true, scale=1.0}", "");
    assert_eq!(ids, [2, 1]);
    close(&weights, &[5.0 / 9.0, 4.0 / 9.0]);
    let bias = "weight \"1 0 0\": f32[3] = f32 @0+0";
    let (ids, weights) = top(", bias=w\"1 0 0\" {k=2, scoring=softmax, renorm=false, scale=1.0}", bias);
    assert_eq!(ids, [0, 2]);
    close(&weights, &[0.125, 0.625]);
}

const EXPERTS: &str = "v4: f32[T, 1] = for_each_expert x, i, p {experts=2} {
    ^(v0: i32[1], v1: f32[T, 1])
    v2: f32[1, 1] = bank_slice w\"10 20\", v0
    v3: f32[T, 1] = linear v1, v2
    yield v3
  } return y: v4";

fn expert_inputs(ids: &[i32]) -> Inputs {
    let ids = Tensor { shape: vec![ids.len() / 2, 2], data: Data::I32(ids.to_vec()) };
    let inputs = Inputs::default().with("x", Tensor::matrix(1, vec![3.0, 5.0])).with("i", ids);
    inputs.with("p", Tensor::matrix(2, vec![0.5, 0.25, 1.0, 2.0]))
}

#[test]
fn experts() {
    let bank = "weight \"10 20\": f32[2, 1, 1] = f32 @0+0";
    let module = module(bank, "x: f32[T, 1], i: i32[T, 2], p: f32[T, 2]", EXPERTS);
    close(run(&module, &expert_inputs(&[1, 0, 0, 1])).f64s(), &[37.5, 250.0]);
    close(run(&module, &expert_inputs(&[0, 0, 1, 1])).f64s(), &[22.5, 300.0]);
    let source = |id| weight(&module, id);
    let error = Interp::new(verify(&module).unwrap(), &source).run("g", &expert_inputs(&[0, 2, 0, 0]));
    assert!(matches!(error, Err(InterpError::Op { message, .. }) if message == "expert 2 of 2"));
}

#[test]
fn attention_reads_its_row_up_to_its_position() {
    let module = module(
        "state @k: f32[2, 4, 1, 1] keys state @v: f32[2, 4, 1, 1] values",
        "q: f32[T, 2], k: f32[T, 1], v: f32[T, 1], row: i32[T], pos: i32[T]",
        "v0: f32[2, 4, 1, 1] = kv_append @k, k, row, pos
         v1: f32[2, 4, 1, 1] = kv_append @v, v, row, pos
         v2: f32[T, 2] = attention q, v0, v1, row, pos {scale=0.5}
         return y: v2, @k: v0, @v: v1",
    );
    let source = |id| weight(&module, id);
    let mut interp = Interp::new(verify(&module).unwrap(), &source);
    let mut call = |q: &[f64], k: &[f64], v: &[f64], row: &[i32], pos: &[i32]| {
        let f = |cols, x: &[f64]| Tensor::matrix(cols, x.to_vec());
        let inputs = Inputs::default().with("q", f(2, q)).with("k", f(1, k)).with("v", f(1, v));
        interp.run("g", &inputs.with("row", Tensor::ids(row)).with("pos", Tensor::ids(pos)))
    };
    let ln3 = 3f64.ln();
    // Two heads share one key head. Row 1: weights 1 : 1 for q = 0, and 1 : 3 for q = 2 (scale 0.5) over keys 0, ln 3.
    let y = call(&[9.0, 9.0, 0.0, 2.0], &[0.0, ln3], &[1.0, 5.0], &[1, 1], &[0, 1]).unwrap();
    close(y["y"].f64s(), &[1.0, 1.0, 3.0, 4.0]);
    // The next call sees them still; another row does not.
    let y = call(&[0.0, 0.0, 0.0, 0.0], &[7.0, 7.0], &[9.0, 8.0], &[1, 0], &[2, 0]).unwrap();
    close(y["y"].f64s(), &[5.0, 5.0, 8.0, 8.0]);
    for (row, pos) in [(2, 0), (-1, 0), (0, 4), (0, -1)] {
        let error = call(&[0.0, 0.0], &[0.0], &[0.0], &[row], &[pos]);
        let expected = format!("row {row}, position {pos} of a cache of 2 rows of 4");
        assert!(matches!(error, Err(InterpError::Op { message, .. }) if message == expected));
    }
}

#[test]
fn a_cache_beyond_reason_is_refused() {
    let module = module(
        "state @k: f32[4294967295, 1073741824, 1, 1] keys",
        "x: f32[T, 1], i: i32[T]",
        "v0: f32[4294967295, 1073741824, 1, 1] = kv_append @k, x, i, i return @k: v0",
    );
    let source = |id| weight(&module, id);
    let inputs = Inputs::default().with("x", Tensor::matrix(1, vec![1.0])).with("i", Tensor::ids(&[0]));
    let error = Interp::new(verify(&module).unwrap(), &source).run("g", &inputs).unwrap_err().to_string();
    assert!(error.contains("a cache of more than 1073741824 elements"), "{error}");
}

#[test]
fn inputs_are_checked() {
    let module = module("", "x: f32[2*T, 3], y: f32[T, 3]", "return y: y");
    let verified = verify(&module).unwrap();
    let source = |id| weight(&module, id);
    let mut interp = Interp::new(verified, &source);
    let f = |rows: usize, cols: usize| Tensor::matrix(cols, vec![0.0; rows * cols]);
    let mut message = |x: Tensor, y: Tensor| {
        interp.run("g", &Inputs::default().with("x", x).with("y", y)).map_err(|it| it.to_string()).err()
    };
    assert_eq!(message(f(4, 3), f(2, 3)), None);
    assert_eq!(message(f(4, 3), f(1, 3)).unwrap(), "input 'y': found the shape [1, 3], expected f32[T, 3]");
    assert_eq!(message(f(3, 3), f(1, 3)).unwrap(), "input 'x': found the shape [3, 3], expected f32[2*T, 3]");
    assert_eq!(message(f(2, 2), f(1, 3)).unwrap(), "input 'x': found the shape [2, 2], expected f32[2*T, 3]");
    assert_eq!(message(f(18, 3), f(9, 3)).unwrap(), "input 'x': T = 9 is not in 1..=8");
    assert!(message(Tensor::ids(&[1]), f(1, 3)).is_some());
    assert!(matches!(interp.run("h", &Inputs::default()), Err(InterpError::NoGraph(_))));
    let missing = interp.run("g", &Inputs::default()).unwrap_err();
    assert_eq!(missing.to_string(), "input 'x': it is missing");
}

#[test]
fn weights_are_decoded_transposed_and_joined() {
    let module = module(
        "weight \"h\": f16[1, 2] = f16 @0+2
         weight \"t\": f32[2, 3] = transpose f32 @0+8
         weight \"a\": f16[2, 2] = concat \"h\", \"h\"",
        "x: f32[T, 2], z: f32[T, 3]",
        "v0: f32[T, 2] = linear x, w\"a\" v1: f32[T, 2] = linear z, w\"t\" return y: v0, z: v1",
    );
    let mut bytes = vec![0xff; 2];
    bytes.extend([0x00, 0x3c, 0x00, 0xc0]); // 1, −2
    bytes.extend([0xff; 2]);
    bytes.extend([1f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|it| it.to_le_bytes()));
    let read = |_, offset: u64, len: u64| Ok(bytes[offset as usize..][..len as usize].to_vec());
    let all: Vec<Vec<f64>> =
        module.weights.keys().map(|it| decode_weight(&module, it, &read).unwrap()).collect();
    assert_eq!(all[0], [1.0, -2.0]);
    assert_eq!(all[1], [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    assert_eq!(all[2], [1.0, -2.0, 1.0, -2.0]);
    let short = |_, _, len: u64| Ok(vec![0; len as usize - 1]);
    assert_eq!(
        decode_weight(&module, module.weights.keys().next().unwrap(), &short).unwrap_err(),
        "found 3 bytes, expected 4"
    );
}

#[test]
fn weights_beyond_what_is_kept_are_asked_for_again() {
    let random = random::decoder(1);
    let verified = verify(&random.module).unwrap();
    let asked = Cell::new(0);
    let source = |id| {
        asked.set(asked.get() + 1);
        random.weight(id)
    };
    let asks_in_two_steps = |interp: Interp<'_>| {
        let mut interp = interp;
        let logits = [0, 1].map(|pos| {
            interp.run("decode", &Inputs::tokens(&[3], &[0], &[pos], &[0])).unwrap()["logits"].clone()
        });
        (asked.take(), logits)
    };
    let (once, kept) = asks_in_two_steps(Interp::new(verified, &source));
    let (twice, forgotten) = asks_in_two_steps(Interp::new(verified, &source).keeping(0));
    let (between, _) = asks_in_two_steps(Interp::new(verified, &source).keeping(100));
    assert!(once < between && between < twice && twice >= 2 * once, "{once} {between} {twice}");
    assert_eq!(kept, forgotten);
}

/// Logits of the last token of `tokens` in `row`, fed in calls of at most `chunk` tokens.
fn feed(interp: &mut Interp<'_>, tokens: &[i32], row: i32, chunk: usize) -> Vec<f64> {
    let mut logits = Vec::new();
    for (i, part) in tokens.chunks(chunk).enumerate() {
        let graph = if part.len() == 1 { "decode" } else { "prefill" };
        let pos: Vec<i32> = (0..part.len()).map(|it| i32::try_from(i * chunk + it).unwrap()).collect();
        let last = i32::try_from(part.len() - 1).unwrap();
        let inputs = Inputs::tokens(part, &vec![row; part.len()], &pos, &[last]);
        logits = interp.run(graph, &inputs).unwrap()["logits"].f64s().to_vec();
    }
    logits
}

#[test]
fn the_split_of_a_prompt_changes_no_bit() {
    let plain = (0..12).map(random::decoder).chain((0..8).map(random::expert_decoder));
    for random in plain.chain((0..12).map(random::hybrid_decoder)) {
        let RandomModule { module, .. } = &random;
        let verified = verify(module).unwrap();
        let source = |id| random.weight(id);
        let mut rng = Rng::new(5);
        let tokens: Vec<i32> = (0..13).map(|_| rng.below(module.info.vocab).cast_signed()).collect();
        let mut interp = Interp::new(verified, &source);
        let whole = feed(&mut interp, &tokens, 0, 16);
        assert!(whole.iter().all(|it| it.is_finite()) && whole.iter().any(|it| *it != whole[0]));
        for (row, chunk) in [(1, 1), (2, 5), (0, 3)] {
            assert_eq!(feed(&mut interp, &tokens, row, chunk), whole, "{} chunk {chunk}", module.info.name);
        }
        // A step of three rows at different positions, each continued from where it is.
        feed(&mut interp, &tokens[..12], 1, 16);
        feed(&mut interp, &tokens[..3], 0, 16);
        let batch = Inputs::tokens(&[tokens[12], tokens[3], tokens[0]], &[1, 0, 2], &[12, 3, 0], &[0, 1, 2]);
        let outputs = interp.run("decode", &batch).unwrap();
        assert_eq!(outputs["logits"].row(0).unwrap(), whole);
        assert_eq!(outputs["finite"].i32s(), [1, 1, 1]);
        // The history matters: other tokens, other logits.
        let mut other = tokens.clone();
        other[0] = (tokens[0] + 1) % module.info.vocab.cast_signed();
        assert_ne!(feed(&mut interp, &other, 0, 16), whole);
    }
}
