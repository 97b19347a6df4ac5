//! The graphs of a random module.

use waste_plan::DType;

use super::Config;
use super::weights::{Layer, Linear, Model, Norm};
use crate::attrs::{Act, Scoring};
use crate::builder::{Built, GraphBuilder};
use crate::graph::{Graph, Module, Phase, ValueId, WeightId};
use crate::types::{Dim, TensorType};

pub(super) fn build(
    module: &Module,
    cx: &Config,
    model: &Model,
    name: &str,
    tokens: Dim,
    wanted: Dim,
) -> Built<Graph> {
    let mut b = GraphBuilder::new(module, name, Phase::Imported);
    let ids = |n| TensorType::new(DType::I32, &[n]);
    let [token, row, pos] = ["token", "row", "pos"].map(|it| b.input(it, ids(tokens)));
    let want = b.input("want", ids(wanted));
    let angles = match cx.rope {
        Some((dims, _, scaling)) => Some(b.rope_angles(pos, None, dims, 10000.0, scaling)?),
        None => None,
    };
    let embed = b.weight(model.embed);
    let mut x = b.embed(token, embed)?;
    if let Some(positions) = model.positions {
        let positions = b.weight(positions);
        let positions = b.embed(pos, positions)?;
        x = b.add(x, positions)?;
    }
    let mut states = Vec::new();
    for layer in &model.layers {
        let y = norm(&mut b, cx, x, layer.attn_norm)?;
        let y = attention(&mut b, cx, layer, y, Place { row, pos, angles }, &mut states)?;
        x = b.add(y, x)?;
        let y = norm(&mut b, cx, x, layer.ff_norm)?;
        let y = match layer.router {
            Some(router) => experts(&mut b, cx, layer, router, y)?,
            None => feed_forward(&mut b, cx, layer, y)?,
        };
        x = b.add(x, y)?;
    }
    let x = b.select_rows(x, want)?;
    let x = norm(&mut b, cx, x, model.norm)?;
    let head = b.weight(model.head);
    let logits = b.linear(x, head)?;
    let next = b.argmax(logits)?;
    let finite = b.finite_check(logits)?;
    b.output("logits", logits);
    b.output("next", next);
    b.output("finite", finite);
    for (name, value) in states {
        b.output(&name, value);
    }
    Ok(b.finish())
}

fn norm(b: &mut GraphBuilder<'_>, cx: &Config, x: ValueId, (w, bias): Norm) -> Built {
    let w = b.weight(w);
    let bias = bias.map(|it| b.weight(it));
    if cx.layer_norm { b.layer_norm(x, w, bias, cx.eps) } else { b.rms_norm(x, w, cx.eps) }
}

fn linear(b: &mut GraphBuilder<'_>, x: ValueId, (w, bias): Linear) -> Built {
    let w = b.weight(w);
    match bias.map(|it| b.weight(it)) {
        Some(bias) => b.linear_bias(x, w, bias),
        None => b.linear(x, w),
    }
}

/// Where tokens stand: their rows, positions, and rotary angles.
struct Place {
    row: ValueId,
    pos: ValueId,
    angles: Option<ValueId>,
}

fn attention(
    b: &mut GraphBuilder<'_>,
    cx: &Config,
    layer: &Layer,
    x: ValueId,
    at: Place,
    states: &mut Vec<(String, ValueId)>,
) -> Built {
    let (q_cols, kv_cols) = (cx.heads * cx.head_dim, cx.kv_heads * cx.head_dim);
    let [mut q, mut k, v] = match layer.qkv[..] {
        [q, k, v] => [linear(b, x, q)?, linear(b, x, k)?, linear(b, x, v)?],
        _ => {
            let qkv = linear(b, x, layer.qkv[0])?;
            let mut part = |start, len| b.slice(qkv, start, len);
            [part(0, q_cols)?, part(q_cols, kv_cols)?, part(q_cols + kv_cols, kv_cols)?]
        }
    };
    if let Some((qw, kw)) = layer.qk_norm {
        q = head_norm(b, cx, q, qw, q_cols)?;
        k = head_norm(b, cx, k, kw, kv_cols)?;
    }
    if let (Some(angles), Some((_, style, _))) = (at.angles, cx.rope) {
        q = b.rope(q, angles, cx.head_dim, style)?;
        k = b.rope(k, angles, cx.head_dim, style)?;
    }
    let mut append = |state, x| {
        let cache = b.state(state);
        let next = b.kv_append(cache, x, at.row, at.pos)?;
        states.push((format!("@{}", b.module().states[state].name), next));
        Ok(next)
    };
    let (k, v) = (append(layer.cache.0, k)?, append(layer.cache.1, v)?);
    let scale = if cx.head_dim == 16 { 0.25 } else { 0.176_776_69 };
    let y = b.attention(q, (k, v), at.row, at.pos, scale)?;
    linear(b, y, layer.out)
}

/// RMS norm of each head by itself.
fn head_norm(b: &mut GraphBuilder<'_>, cx: &Config, x: ValueId, w: WeightId, cols: u32) -> Built {
    let heads = b.reshape(x, cx.head_dim)?;
    let w = b.weight(w);
    let heads = b.rms_norm(heads, w, cx.eps)?;
    b.reshape(heads, cols)
}

fn feed_forward(b: &mut GraphBuilder<'_>, cx: &Config, layer: &Layer, x: ValueId) -> Built {
    let y = match layer.ff[..] {
        [gate, up, _] => {
            let (gate, up) = (linear(b, x, gate)?, linear(b, x, up)?);
            b.glu(gate, up, cx.act.as_act().unwrap_or(Act::Silu))?
        }
        _ => {
            let up = linear(b, x, layer.ff[0])?;
            b.unary(up, cx.act)?
        }
    };
    linear(b, y, layer.ff[layer.ff.len() - 1])
}

fn experts(b: &mut GraphBuilder<'_>, cx: &Config, layer: &Layer, router: WeightId, x: ValueId) -> Built {
    let n = cx.experts.expect("a layer with a router has experts");
    let logits = linear(b, x, (router, None))?;
    let scoring = if cx.gated { Scoring::Softmax } else { Scoring::Sigmoid };
    let routes = b.route_top_k(logits, None, n.min(2), scoring, cx.biases, 1.0)?;
    let x_ty = b.graph().ty(x).clone();
    let (_, args) = b.open_region(&[TensorType::new(DType::I32, &[Dim::Const(1)]), x_ty]);
    let matrix = |b: &mut GraphBuilder<'_>, i: usize| {
        let bank = b.weight(layer.ff[i].0);
        b.bank_slice(bank, args[0])
    };
    let up = matrix(b, layer.ff.len() - 2)?;
    let up = b.linear(args[1], up)?;
    let y = if cx.gated {
        let gate = matrix(b, 0)?;
        let gate = b.linear(args[1], gate)?;
        b.glu(gate, up, Act::Silu)?
    } else {
        b.unary(up, cx.act)?
    };
    let down = matrix(b, layer.ff.len() - 1)?;
    let y = b.linear(y, down)?;
    let region = b.close_region(&[y]);
    b.for_each_expert(x, routes, n, region)
}
