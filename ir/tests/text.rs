//! The laws of the text form, over random modules, and hostile text.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use waste_ir::random::{self, Rng};
use waste_ir::{Inputs, Interp, Module, Verified, parse_module, print_graph, print_module, verify};

fn modules() -> impl Iterator<Item = Module> {
    let plain = (0..120).map(random::decoder).chain((0..60).map(random::expert_decoder));
    plain.chain((0..60).map(random::hybrid_decoder)).map(|it| it.module)
}

#[test]
fn a_module_is_what_its_text_says() {
    for module in modules() {
        let text = print_module(&module);
        let parsed = parse_module(&text).unwrap_or_else(|it| panic!("{it}\n{text}"));
        assert_eq!(parsed, module.canonical(), "{text}");
        assert_eq!(print_module(&parsed), text);
        assert_eq!(parsed.canonical(), parsed);
    }
}

#[test]
fn a_graph_prints_as_in_its_module() {
    let module = random::expert_decoder(3).module;
    let whole = print_module(&module);
    for graph in module.graphs.values() {
        let indented: String = print_graph(&module, graph).lines().map(|it| format!("  {it}\n")).collect();
        assert!(whole.contains(&indented), "{indented}");
    }
}

#[test]
fn white_space_and_comments_mean_nothing() {
    let module = random::expert_decoder(7).module;
    let text = print_module(&module);
    let mut loose = String::new();
    for line in text.lines() {
        loose.push_str(&line.replace(", ", " , ").replace(" = ", "="));
        loose.push_str("   ; a comment { with \"marks\n\r\n\t");
    }
    // `a{b=1 , c=2}` is one attribute value: inside it white space is not free, so only the scaling is kept as it was.
    let loose = loose
        .replace("{factor=8.0 , low=1.0 , high=4.0 , orig=16}", "{factor=8.0, low=1.0, high=4.0, orig=16}");
    assert_eq!(print_module(&parse_module(&loose).unwrap()), text);
}

#[test]
fn any_name_survives() {
    let mut module = random::decoder(1).module;
    let odd =
        ["", "two words", "quote\" and \\", "line\nbreak\t\r\u{7f}", "ümläut", "w", "1x", "a..b", "v0."];
    for name in odd {
        module.info.name = name.to_owned();
        module.info.arch = name.to_owned();
        module.syms.values_mut().next().unwrap().name = name.to_owned();
        module.weights.values_mut().next().unwrap().name = name.to_owned();
        module.states.values_mut().next().unwrap().name = name.to_owned();
        for graph in module.graphs.values_mut() {
            let first = graph.inputs[0];
            graph.values[first].name = name.to_owned();
            graph.outputs[0].name = name.to_owned();
        }
        let text = print_module(&module);
        let parsed = parse_module(&text).unwrap_or_else(|it| panic!("{it}\n{text}"));
        assert_eq!(parsed, module.canonical());
    }
}

#[test]
fn errors_say_where_what_and_found() {
    let cases = [
        ("", "line 1, column 1: expected 'module', found the end of the text"),
        ("module \"m\" arch=a ctx=1 vocab=x {", "line 1, column 31: expected a vocabulary size, found 'x'"),
        (
            "module \"m\" arch=a ctx=4294967296 vocab=1 {}",
            "line 1, column 23: expected a number of positions, found '4294967296'",
        ),
        ("module \"m", "line 1, column 8: this string has no end on its line"),
        ("module \"m\\q\"", "line 1, column 10: unknown escape in a string"),
        ("module \"m\\u{d800}\"", "line 1, column 10: unknown escape in a string"),
        ("; ü\n  module €", "line 2, column 10: unexpected character '€'"),
        ("source @1 \"x\" bytes=1 header=sha256:00", "line 2, column 9: expected source @0, found @1"),
        ("sym T in 1..=2 sym T in 1..=2", "line 2, column 20: this symbol is declared twice"),
        ("state @s: f32[N] keys", "line 2, column 15: no symbol \"N\" is declared before"),
        ("state @s: f33[1] keys", "line 2, column 11: expected a dtype, found 'f33'"),
        ("weight \"a\": f32[1] = concat \"b\"", "line 2, column 29: no weight \"b\" is declared before"),
        ("weight \"a\": f32[1] = f32 @0+0", "line 2, column 27: there is no source @0"),
        (
            "graph @g() phase=imported { return x: v0 }",
            "line 2, column 39: no value \"v0\" is defined before",
        ),
        ("graph @g(x: f32[1, 2]) phase=early {", "line 2, column 30: expected a phase, found 'early'"),
        ("graph @g(x: f32[1, 2], x: f32[1, 2])", "line 2, column 24: this value is defined twice"),
        (
            "graph @g(x: f32[1, 2]) phase=final { v0: f32[1, 2] = frob x",
            "line 2, column 54: unknown op 'frob'",
        ),
        (
            "graph @g(x: f32[1, 2]) phase=final { v0: f32[1, 2] = add x }",
            "line 2, column 54: 'add' takes 2 unnamed operands, found 1",
        ),
        (
            "graph @g(x: f32[1, 2]) phase=final { v0: f32[1, 2] = add x, x, bias=x }",
            "line 2, column 54: 'add' has no optional operand 'bias'",
        ),
        (
            "graph @g(x: f32[1, 2]) phase=final { v0: f32[1, 2] = unary x {kind=cube} }",
            "line 2, column 54: 'cube' is no value for 'kind' of 'unary'",
        ),
        (
            "graph @g(x: f32[1, 2]) phase=final { v0: f32[1, 2] = unary x return }",
            "line 2, column 54: 'unary' needs the attribute 'kind'",
        ),
    ];
    let (mut found, mut wanted) = (String::new(), String::new());
    for (text, expected) in cases {
        let text = match text.split(' ').next() {
            Some("source" | "sym" | "weight" | "state" | "graph") => {
                format!("module \"m\" arch=a ctx=1 vocab=1 {{\n{text}")
            }
            _ => text.to_owned(),
        };
        found.push_str(&format!("{}\n", parse_module(&text).unwrap_err()));
        wanted.push_str(&format!("{expected}\n"));
    }
    assert_eq!(found, wanted);
}

#[test]
fn regions_nest_only_so_deep() {
    let open = "v: f32[1, 1] = for_each_expert x, i, x {experts=1} { ^() ";
    let text = |n: usize| {
        format!(
            "module \"m\" arch=a ctx=1 vocab=1 {{ graph @g(x: f32[1, 1], i: i32[1, 1]) phase=imported {{ {}",
            open.repeat(n)
        )
    };
    let message = parse_module(&text(100_000)).unwrap_err().message;
    assert!(message.starts_with("expected at most 16 nested regions"), "{message}");
    let message = parse_module(&text(16)).unwrap_err().message;
    assert_eq!(message, "expected the name of a result, found the end of the text");
}

#[test]
fn damaged_text_is_refused_or_read_but_never_panics() {
    let mut rng = Rng::new(1);
    let (mut refused, mut read, mut valid) = (0, 0, 0);
    for seed in 0..6 {
        let text = print_module(&random::expert_decoder(seed).module).into_bytes();
        for _ in 0..150 {
            let mut damaged = text.clone();
            for _ in 0..1 + rng.below(3) {
                damage(&mut damaged, &mut rng);
            }
            match parse_module(&String::from_utf8_lossy(&damaged)) {
                Ok(module) => {
                    let text = print_module(&module);
                    assert_eq!(print_module(&parse_module(&text).unwrap()), text);
                    if let Ok(verified) = verify(&module) {
                        evaluate(verified);
                        valid += 1;
                    }
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 200 && read > 10 && valid > 3, "refused {refused}, read {read}, valid {valid}");
}

/// Whatever the verifier accepts can be evaluated, or fails with an error.
fn evaluate(module: Verified<'_>) {
    let zeros = |id| {
        let dims = module.module().weights[id].ty.shape.dims();
        let n = dims.iter().try_fold(1u32, |n, dim| n.checked_mul(dim.known()?)).filter(|it| *it < 1 << 22);
        n.map(|it| vec![0.0; it as usize]).ok_or_else(|| "too large".to_owned())
    };
    let mut interp = Interp::new(module, &zeros);
    for graph in module.module().graphs.values() {
        let _ = interp.run(&graph.name, &Inputs::tokens(&[1, 2], &[0, 1], &[0, 3], &[0, 1]));
    }
}

fn damage(text: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.below(u32::try_from(text.len()).unwrap()) as usize;
    match rng.below(4) {
        0 => text[at] = rng.pick(b"{}[]()@:=,*+^.\"\\;w09azT-_\n\xc3"),
        1 => text.insert(at, rng.pick(b"{}[]()@:=,*+^.\"\\;w09azT-_\n\xc3")),
        2 => {
            text.remove(at);
        }
        _ => {
            let end = (at + rng.below(40) as usize).min(text.len());
            let piece = text[at..end].to_vec();
            let to = rng.below(u32::try_from(text.len()).unwrap()) as usize;
            text.splice(to..to, piece);
        }
    }
}

/// Generous: a slow machine in debug takes a tenth of this; a quadratic parser takes minutes.
#[test]
fn five_thousand_ops_are_read_at_once() {
    let mut text = String::from(
        "module \"m\" arch=a ctx=1 vocab=1 {\n  graph @g(x: f32[1, 8]) phase=imported {\n    v0: f32[1, 8] = add x, x\n",
    );
    for i in 1..5000 {
        text.push_str(&format!("    v{i}: f32[1, 8] = add v{}, x\n", i - 1));
    }
    text.push_str("    return y: v4999\n  }\n}\n");
    let module = parse_module(&text).unwrap();
    assert_eq!(module.graphs.values().next().unwrap().ops.len(), 5000);
    assert_eq!(print_module(&module), text);
}
