//! The ops of hybrid models against values worked out by hand.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/by_hand.rs"]
mod by_hand;

use std::f64::consts::PI;

use waste_ir::interp::Data;
use waste_ir::{Inputs, Interp, Module, Tensor, decode_weight, verify};

use by_hand::{case, close, module, run, weight};

/// Inputs `x`, `y`, … as matrices, then rows and positions.
fn inputs(matrices: &[(&str, usize, &[f64])], row: &[i32], pos: &[i32]) -> Inputs {
    let places = Inputs::default().with("row", Tensor::ids(row)).with("pos", Tensor::ids(pos));
    matrices.iter().fold(places, |it, (name, cols, x)| it.with(name, Tensor::matrix(*cols, x.to_vec())))
}

/// The outputs `y` of calls one after the other.
fn calls(module: &Module, all: &[Inputs]) -> Vec<Vec<f64>> {
    let verified = verify(module).unwrap_or_else(|it| panic!("{}", it[0]));
    let source = |id| weight(module, id);
    let mut interp = Interp::new(verified, &source);
    all.iter().map(|it| interp.run("g", it).unwrap()["y"].f64s().to_vec()).collect()
}

#[test]
fn heads_have_matrices_of_their_own() {
    let bank = "weight \"1 2 3 4\": f32[2, 1, 2] = f32 @0+0";
    let graph = |op: &str, ty: &str, cols: u32| {
        module(
            bank,
            &format!("x: f32[2*T, {cols}]"),
            &format!("v0: {ty} = {op} x, w\"1 2 3 4\" return y: v0"),
        )
    };
    let of = |module: &Module, cols: usize, x: &[f64]| {
        run(module, &Inputs::default().with("x", Tensor::matrix(cols, x.to_vec()))).f64s().to_vec()
    };
    let by_rows = graph("head_linear", "f32[2*T, 1]", 2);
    close(&of(&by_rows, 2, &[1.0, 1.0, 1.0, 1.0, 2.0, 0.0, 0.0, 2.0]), &[3.0, 7.0, 2.0, 8.0]);
    let by_columns = graph("head_linear_t", "f32[2*T, 2]", 1);
    close(&of(&by_columns, 1, &[2.0, 3.0]), &[2.0, 4.0, 9.0, 12.0]);
}

#[test]
fn norms_and_gates() {
    // 3² + 4² + 11 = 6².
    let x = [3.0, 4.0, 0.0, 5.0];
    let op = "l2_norm x {dim=2, eps=11.0, scale=2.0}";
    case("", op, "f32[T, 4]", &x, 4, &[1.0, 4.0 / 3.0, 0.0, 5.0 / 3.0]);
    // 2 tanh(ln 3 / 2) = 1 and sigmoid(ln 3) = 3/4.
    let ln3 = 3f64.ln();
    case("", "glu x, x {act=situ, beta=2.0, linear=2.0}", "f32[T, 1]", &[ln3], 1, &[0.75]);
    case("", "glu x, x {act=situ, beta=2.0}", "f32[T, 1]", &[ln3], 1, &[0.75 * ln3]);
    // mean square 12.5 + 3.5 = 4²; gates of 1/2 and 3/4.
    let w = "weight \"1 2\": f32[2] = f32 @0+0";
    let op = "v0: f32[T, 2] = gated_rms_norm x, g, w\"1 2\" {eps=3.5} return y: v0";
    let gated = module(w, "x: f32[T, 2], g: f32[T, 2]", op);
    let given = inputs(&[("x", 2, &[3.0, 4.0]), ("g", 2, &[0.0, ln3])], &[], &[]);
    close(run(&gated, &given).f64s(), &[0.375, 1.5]);
    case("", "concat x, x", "f32[T, 4]", &[1.0, 2.0, 3.0, 4.0], 2, &[1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
}

#[test]
fn decays() {
    // a = 2; b = 0 and ln 3: softplus ln 2 and ln 4, sigmoid(a b) 1/2 and 9/10.
    let z = [0.0, 3f64.ln()];
    let w =
        format!("weight \"{}\": f32[1] = f32 @0+0 weight \"1 1\": f32[2] = f32 @0+0", std::f64::consts::LN_2);
    let op = |attrs: &str| format!("kda_gate x, w\"{}\", w\"1 1\"{attrs}", std::f64::consts::LN_2);
    let x = z.map(|it| it - 1.0);
    case(&w, &op(""), "f32[T, 2]", &x, 2, &[0.25, 0.0625]);
    case(&w, &op(" {lower_bound=-1.0}"), "f32[T, 2]", &x, 2, &[(-0.5f64).exp(), (-0.9f64).exp()]);
}

#[test]
fn mixing_with_earlier_blocks() {
    // Scores 0, and v / sqrt(v² + 3) · 2 · ln 3 / 2: ln 3 / 2 for v = 1.
    let ln3 = 3f64.ln();
    let w = format!("weight \"2\": f32[1] = f32 @0+0 weight \"{ln3}\": f32[1] = f32 @0+0");
    let ops =
        format!("v0: f32[T, 1] = attn_res_mix x, w\"2\", w\"{ln3}\", blocks=b {{eps=3.0}} return y: v0");
    let mix = module(&w, "x: f32[T, 1], b: f32[T, 2]", &ops);
    // p = 1 : 3 : 1.
    let given = inputs(&[("x", 1, &[0.0]), ("b", 2, &[1.0, 0.0])], &[], &[]);
    close(run(&mix, &given).f64s(), &[0.6]);
    case(&w, &format!("attn_res_mix x, w\"2\", w\"{ln3}\" {{eps=3.0}}"), "f32[T, 1]", &[7.0], 1, &[7.0]);
}

#[test]
fn part_of_a_head_turns() {
    let op = "rope x, w\"0 1\" {head_dim=4, style=pair, skip=2}";
    let w = "weight \"0 1\": f32[1, 2] = f32 @0+0";
    let module = module(w, "x: f32[1, 4]", &format!("v0: f32[1, 4] = {op} return y: v0"));
    let x = inputs(&[("x", 4, &[1.0, 2.0, 3.0, 4.0])], &[], &[]);
    close(run(&module, &x).f64s(), &[1.0, 2.0, -4.0, 3.0]);
}

/// Frequencies 1 and 0.1. 40 positions hold 1.5 turns of pair 0.63 and 0.1 turns of pair 1.8, so the ramp rises from 0 to 2.
#[test]
fn yarn_divides_slow_pairs() {
    assert!((2.0 * (40.0 / (1.5 * 2.0 * PI)).ln() / 100f64.ln()).floor() == 0.0);
    assert!((2.0 * (40.0 / (0.1 * 2.0 * PI)).ln() / 100f64.ln()).ceil() == 2.0);
    let op = "rope_angles pos {dims=4, base=100.0, scaling=yarn{factor=4.0, fast=1.5, slow=0.1, orig=40}}";
    let module = module("", "pos: i32[T]", &format!("v0: f32[T, 4] = {op} return y: v0"));
    let y = run(&module, &Inputs::default().with("pos", Tensor::ids(&[1])));
    close(y.f64s(), &[1f64.cos(), 0.0625f64.cos(), 1f64.sin(), 0.0625f64.sin()]);
}

#[test]
fn a_short_convolution_remembers_its_row() {
    let conv = module(
        "weight \"1 10 2 20\": f32[2, 2] = f32 @0+0 state @r: f32[2, 1, 1, 2] recurrent",
        "x: f32[T, 2], row: i32[T], pos: i32[T]",
        "v0, v1: f32[T, 2], f32[2, 1, 1, 2] = short_conv @r, x, w\"1 10 2 20\", row, pos return y: v0, @r: v1",
    );
    let x = |x: &[f64], row: &[i32], pos: &[i32]| inputs(&[("x", 2, x)], row, pos);
    let found = calls(
        &conv,
        &[
            x(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[0, 0, 1], &[0, 1, 0]),
            x(&[1.0, 1.0, 1.0, 1.0], &[1, 0], &[1, 2]),
            x(&[1.0, 1.0], &[0], &[0]),
        ],
    );
    close(&found[0], &[10.0, 40.0, 31.0, 84.0, 50.0, 120.0]);
    close(&found[1], &[15.0, 32.0, 13.0, 28.0]);
    close(&found[2], &[10.0, 20.0]);
}

#[test]
fn the_delta_rule_corrects_what_the_decayed_state_says() {
    let step = module(
        "state @s: f32[2, 1, 2, 1] recurrent",
        "q: f32[T, 2], k: f32[T, 2], v: f32[T, 1], d: f32[T, 2], b: f32[T, 1], row: i32[T], pos: i32[T]",
        "v0, v1: f32[T, 1], f32[2, 1, 2, 1] = kda_step @s, q, k, v, d, b, row, pos return y: v0, @s: v1",
    );
    let token = |q: &[f64], k: &[f64], v: f64, d: &[f64], b: f64, pos: i32| {
        inputs(&[("q", 2, q), ("k", 2, k), ("v", 1, &[v]), ("d", 2, d), ("b", 1, &[b])], &[1], &[pos])
    };
    let found = calls(
        &step,
        &[
            // S = k · 0.5 · 4 = (2, 4), o = 2 + 40.
            token(&[1.0, 10.0], &[1.0, 2.0], 4.0, &[9.0, 9.0], 0.5, 0),
            // S = (1, 1), u = 3, S = (1, 1) + (2, 1) · (5 − 3), o = 5 − 3.
            token(&[1.0, -1.0], &[2.0, 1.0], 5.0, &[0.5, 0.25], 1.0, 1),
            // The row begins anew.
            token(&[1.0, 0.0], &[1.0, 0.0], 7.0, &[1.0, 1.0], 1.0, 0),
        ],
    );
    close(&found[0], &[42.0]);
    close(&found[1], &[2.0]);
    close(&found[2], &[7.0]);
}

#[test]
fn latents_are_keys_and_values_of_all_heads() {
    let attend = |width: u32, rope: &str| {
        module(
            &format!("state @c: f32[2, 4, 1, {width}] keys"),
            &format!("q: f32[2*T, 1], r: f32[2*T, 1], c: f32[T, {width}], row: i32[T], pos: i32[T]"),
            &format!(
                "v0: f32[2, 4, 1, {width}] = kv_append @c, c, row, pos
                 v1: f32[2*T, 1] = latent_attention q, v0, row, pos{rope} {{scale=0.5}} return y: v1, @c: v0"
            ),
        )
    };
    let ln3 = 3f64.ln();
    // Latents 0 and 2 ln 3: head 0 sees 1 : 1, head 1 sees 1 : 3.
    let given = [("q", 1, &[0.0, 0.0, 0.0, 1.0][..]), ("r", 1, &[0.0; 4]), ("c", 1, &[0.0, 2.0 * ln3])];
    let found = calls(&attend(1, ""), &[inputs(&given, &[1, 1], &[0, 1])]);
    close(&found[0], &[0.0, 0.0, ln3, 1.5 * ln3]);
    // The rotated part decides, and is no value: keys (1 | 0) and (5 | 2 ln 3).
    let given =
        [("q", 1, &[0.0; 4][..]), ("r", 1, &[0.0, 0.0, 0.0, 1.0]), ("c", 2, &[1.0, 0.0, 5.0, 2.0 * ln3])];
    let found = calls(&attend(2, ", q_rope=r"), &[inputs(&given, &[1, 1], &[0, 1])]);
    close(&found[0], &[1.0, 1.0, 3.0, 4.0]);
}

/// The two best of a group speak for it, and a dropped group never wins.
#[test]
fn groups_of_experts() {
    let x: Vec<f64> = [1.0, 5.0, 1.0, 4.0, 4.0, 0.5].iter().map(|it: &f64| it.ln()).collect();
    let top = |attrs: &str, decls: &str, bias: &str| {
        let ops = format!(
            "v0, v1: i32[T, 2], f32[T, 2] = route_top_k x{bias} {{k=2, {attrs}}} return y: v1, ids: v0"
        );
        let module = module(decls, "x: f32[T, 6]", &ops);
        let source = |id| weight(&module, id);
        let mut interp = Interp::new(verify(&module).unwrap_or_else(|it| panic!("{}", it[0])), &source);
        let out = interp.run("g", &inputs(&[("x", 6, &x)], &[], &[])).unwrap();
        (out["ids"].i32s().to_vec(), out["y"].f64s().to_vec())
    };
    let softmax = "scoring=softmax, renorm=false, scale=1.0";
    let (ids, weights) = top(&format!("{softmax}, groups=2"), "", "");
    assert_eq!(ids, [3, 4], "8 beats 6");
    close(&weights, &[4.0 / 15.5, 4.0 / 15.5]);
    assert_eq!(top(softmax, "", "").0, [1, 3]);
    let bias = "weight \"0.2 0 0 0 0 0\": f32[6] = f32 @0+0";
    let (ids, weights) = top(&format!("{softmax}, groups=2"), bias, ", bias=w\"0.2 0 0 0 0 0\"");
    assert_eq!(ids, [1, 0], "the bias ranks groups");
    close(&weights, &[5.0 / 15.5, 1.0 / 15.5]);
    assert_eq!(top(&format!("{softmax}, groups=6, keep=2"), "", "").0, [1, 3], "one speaks for itself");
}

#[test]
fn experts_gather_several_operands() {
    let experts = module(
        "weight \"10 20\": f32[2, 1, 1] = f32 @0+0",
        "x: f32[T, 1], z: f32[T, 1], i: i32[T, 1], p: f32[T, 1]",
        "v6: f32[T, 1] = for_each_expert x, i, p, z=z {experts=2} {
            ^(v0: i32[1], v1: f32[T, 1], v2: f32[T, 1])
            v3: f32[1, 1] = bank_slice w\"10 20\", v0
            v4: f32[T, 1] = linear v1, v3
            v5: f32[T, 1] = add v4, v2
            yield v5
          } return y: v6",
    );
    let ids = Tensor { shape: vec![2, 1], data: Data::I32(vec![1, 0]) };
    let given = [("x", 1, &[3.0, 5.0][..]), ("z", 1, &[100.0, 200.0]), ("p", 1, &[0.5, 2.0])];
    close(run(&experts, &inputs(&given, &[], &[]).with("i", ids)).f64s(), &[80.0, 500.0]);
}

#[test]
fn a_bank_is_gathered_from_its_places() {
    let module = module(
        "weight \"b\": f32[3, 1, 2] = bank f16 @0+8, @0+0 += 4 * 2",
        "x: f32[3*T, 2]",
        "v0: f32[3*T, 1] = head_linear x, w\"b\" return y: v0",
    );
    verify(&module).unwrap();
    let bytes: Vec<u8> =
        [0x3c00u16, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600].iter().flat_map(|it| it.to_le_bytes()).collect();
    let read = |_, offset: u64, len: u64| Ok(bytes[offset as usize..][..len as usize].to_vec());
    let found = decode_weight(&module, module.weights.keys().next().unwrap(), &read).unwrap();
    assert_eq!(found, [5.0, 6.0, 1.0, 2.0, 3.0, 4.0]);
}
