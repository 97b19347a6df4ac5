//! Small graphs whose results are worked out by hand.

use waste_ir::{Inputs, Interp, Module, Tensor, parse_module, verify};

/// A module around one graph; weights of the graph are declared by `decls` and their values made by [`weight`].
pub(crate) fn module(decls: &str, params: &str, ops: &str) -> Module {
    let text = format!(
        "module \"m\" arch=a ctx=1 vocab=1 {{ source @0 \"m\" bytes=4096 header=sha256:00 sym T in 1..=8 {decls}
         graph @g({params}) phase=canonical {{ {ops} }} }}"
    );
    parse_module(&text).unwrap_or_else(|it| panic!("{it}\n{text}"))
}

/// The values of a weight are its name: numbers separated by blanks.
pub(crate) fn weight(module: &Module, id: waste_ir::WeightId) -> Result<Vec<f64>, String> {
    module.weights[id].name.split(' ').map(|it| it.parse().map_err(|it| format!("{it}"))).collect()
}

pub(crate) fn run(module: &Module, inputs: &Inputs) -> Tensor {
    let verified = verify(module).unwrap_or_else(|it| panic!("{}", it[0]));
    let source = |id| weight(module, id);
    let mut outputs = Interp::new(verified, &source).run("g", inputs).unwrap();
    outputs.remove("y").unwrap()
}

#[track_caller]
pub(crate) fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{found:?} {expected:?}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-12 * b.abs().max(1.0), "{found:?} {expected:?}");
    }
}

/// y = op over x: `f32[T, cols]`, with weights.
#[track_caller]
pub(crate) fn case(decls: &str, op: &str, ty: &str, x: &[f64], cols: usize, expected: &[f64]) {
    let params = format!("x: f32[T, {cols}]");
    let module = module(decls, &params, &format!("v0: {ty} = {op} return y: v0"));
    let y = run(&module, &Inputs::default().with("x", Tensor::matrix(cols, x.to_vec())));
    close(y.f64s(), expected);
}
