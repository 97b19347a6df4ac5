//! Milliseconds to print, parse and verify a module of 5,000 ops: median, least and most of 21 runs.
#![allow(clippy::print_stdout, reason = "a bench reports on stdout")]

use std::time::Instant;

use waste_ir::{
    Dim, GraphBuilder, Module, Phase, SourceDecl, TensorType, WeightInit, parse_module, print_module, verify,
};
use waste_plan::DType;

const LAYERS: usize = 1000;

/// Residual layers of five ops and three weights each.
fn module() -> Module {
    let mut module = Module::default();
    let source = SourceDecl { path: "m.gguf".into(), bytes: 1 << 20, header_sha256: "00".repeat(32) };
    let source = module.sources.push(source);
    let init = |stored| WeightInit::Stored { source, offset: 0x1000, stored };
    let mut layers = Vec::new();
    for i in 0..LAYERS {
        let mut add = |name: &str, dtype, dims: &[u32]| {
            let dims: Vec<Dim> = dims.iter().copied().map(Dim::Const).collect();
            module.add_weight(&format!("blk.{i}.{name}.weight"), TensorType::new(dtype, &dims), init(dtype))
        };
        layers.push((
            add("ffn_norm", DType::F32, &[64]),
            add("ffn_up", DType::Q8_0, &[128, 64]),
            add("ffn_down", DType::Q4_0, &[64, 128]),
        ));
    }
    let mut b = GraphBuilder::new(&module, "decode", Phase::Imported);
    let mut x = b.input("x", TensorType::matrix(DType::F32, Dim::Const(1), 64));
    for (norm, up, down) in layers {
        let [norm, up, down] = [norm, up, down].map(|it| b.weight(it));
        let y = b.rms_norm(x, norm, 1e-5).expect("operands that fit");
        let y = b.linear(y, up).expect("operands that fit");
        let y = b.unary(y, waste_ir::UnaryKind::Silu).expect("operands that fit");
        let y = b.linear(y, down).expect("operands that fit");
        x = b.add(x, y).expect("operands that fit");
    }
    b.output("y", x);
    let graph = b.finish();
    module.graphs.push(graph);
    module
}

fn report(what: &str, mut run: impl FnMut()) {
    let mut ms: Vec<f64> = (0..21)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    ms.sort_by(f64::total_cmp);
    println!("{what:8} {:7.2} ms ({:.2} … {:.2})", ms[10], ms[0], ms[20]);
}

fn main() {
    let module = module();
    let text = print_module(&module);
    println!("{} ops, {} bytes of text", 5 * LAYERS, text.len());
    report("print", || assert_eq!(print_module(&module).len(), text.len()));
    report("parse", || assert_eq!(parse_module(&text).map(|it| it.weights.len()), Ok(3 * LAYERS)));
    report("verify", || assert!(verify(&module).is_ok()));
}
