"use strict";
// The plan as the other files see it: steps with names instead of places in arrays, numbers as people write them, and elements.

const data = JSON.parse(document.getElementById("plan").textContent);

// --- elements -----------------------------------------------------------------------------------------------------------------

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((it) => it !== null && it !== undefined));
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(byId("blank").namespaceURI, tag), attributes, children);
const byId = (id) => document.getElementById(id);

// --- numbers ------------------------------------------------------------------------------------------------------------------

const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
const hex = (n) => "0x" + n.toString(16);
const digits = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));

function scaled(n, base, units) {
  let at = 0;
  while (n >= base * 0.9995 && at + 1 < units.length) [n, at] = [n / base, at + 1];
  return at === 0 ? `${n} ${units[0]}`.trim() : `${digits(n)} ${units[at]}`;
}

const bytes = (n) => scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
const count = (n) => scaled(n, 1000, ["", "K", "M", "B", "T"]);
const flops = (n) => (n === 0 ? "–" : scaled(n, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"]));
const micros = (ns) => (ns >= 1e6 ? `${digits(ns / 1e6)} ms` : `${digits(ns / 1e3)} µs`);
const percent = (part, whole) => (whole > 0 ? `${digits((100 * part) / whole)} %` : "–");
const plural = (n, word) => `${grouped(n)} ${word}${n === 1 ? "" : "s"}`;

// --- families -----------------------------------------------------------------------------------------------------------------

// The colour of a step: what kind of work it is.
const FAMILIES = {
  matrix: ["linear", "linear_glu", "head_linear", "head_linear_t", "expert_linear", "expert_glu", "expert_lut", "expert_vq", "lut_build"],
  attention: ["attention", "latent_attention", "kv_append", "kda_step", "kda_gate", "short_conv"],
  norm: ["rms_norm", "layer_norm", "l2_norm", "gated_rms_norm", "attn_res_mix"],
  element: ["add", "mul", "unary", "glu", "rope", "rope_angles", "quant_act", "concat"],
  experts: ["route_top_k", "expert_sort", "expert_gather", "expert_sum", "expert_prefetch", "expert_window", "expert_release"],
};
const FAMILY_NAMES = {
  matrix: "products",
  attention: "attention and recurrence",
  norm: "norms",
  element: "elementwise and positions",
  experts: "routing of experts",
  ends: "ids, tables, choice",
};
const familyOf = (kind) => Object.keys(FAMILIES).find((it) => FAMILIES[it].includes(kind)) ?? "ends";

// --- steps --------------------------------------------------------------------------------------------------------------------

// Member `at` of a group: its template with the numbers put in.
function member(node, bind, at) {
  if (Array.isArray(node)) return node.map((it) => member(it, bind, at));
  if (typeof node !== "string" || !node.startsWith("$")) return node;
  if (node.startsWith("$$")) return node.slice(1);
  const bound = bind[Number(node.slice(1))];
  return Array.isArray(bound) ? bound[at] : bound.from + at * bound.by;
}

function operand([space, at, dtype, rows, cols, stride, from]) {
  return { space, at, dtype, rows, cols, stride, from };
}

function result([space, at, dtype, rows, cols, stride, value, bytes, first, last], step) {
  return { space, at, dtype, rows, cols, stride, value, bytes, first: step + first, last: step + last };
}

// Names and values in turn, as text: `eps=1e-5, residual`.
function attributes(list) {
  const small = (it) => (typeof it === "number" && it > 0 && it < 1e-3 ? it.toExponential() : it);
  const pairs = [];
  for (let i = 0; i < list.length; i += 2) pairs.push(list[i + 1] === true ? list[i] : `${list[i]}=${small(list[i + 1])}`);
  return pairs.join(", ");
}

function stepOf(raw, index, layer) {
  const [kind, cls, attrs, barrier, window, tileRows, tileCols, op, weights, states, others, flops, reads, writes] = raw;
  return {
    index, layer, kind, cls, op, flops, tileRows, tileCols,
    family: familyOf(kind),
    barrier: barrier === 1,
    window: window === 1,
    attrs: attributes(attrs),
    cost: { weights, states, others, bytes: weights + states + others },
    reads: reads.map(operand),
    writes: writes.map((it) => result(it, index)),
  };
}

// The list that groups and the group of each member make.
function unfold({ groups, order }) {
  const seen = groups.map(() => 0);
  return order.map((group) => member(groups[group].template, groups[group].bind, seen[group]++));
}

// Names come in pieces, so that those of equal layers fold.
for (const list of ["weights", "states"]) data[list] = unfold(data[list]).map(([name, ...rest]) => [name.join("."), ...rest]);

// A program with all its steps, layers and buffers.
function expand(raw) {
  const layers = raw.layers.map(([label, from, group, at], index) => ({ index, label, from, group, at }));
  const steps = [];
  for (const layer of layers) {
    const { template, bind } = raw.groups[layer.group];
    const list = member(template, bind, layer.at).map((it, i) => stepOf(it, layer.from + i, layer));
    layer.to = layer.from + list.length;
    steps.push(...list);
  }
  const buffers = steps.flatMap((step) =>
    step.writes.filter((it) => it.bytes > 0).map((it) => ({ ...it, step, offset: it.at })));
  for (const it of buffers) {
    it.over = [];
    for (let at = it.first; at <= it.last; at++) {
      if (at !== it.step.index && steps[at].writes.some((w) => w.space === "s" && w.bytes === 0 && it.offset <= w.at && w.at < it.offset + it.bytes)) it.over.push(steps[at]);
    }
  }
  const live = new Array(steps.length).fill(0);
  for (const it of buffers) for (let at = it.first; at <= it.last; at++) live[at] += it.bytes;
  return {
    ...raw, layers, steps, buffers,
    extent: Math.max(64, ...buffers.map((it) => it.offset + it.bytes)),
    peak: live.reduce((best, it, at) => (it > live[best] ? at : best), 0),
    live,
    barriers: steps.filter((it) => it.barrier).length,
    total: steps.reduce((sum, it) => ({
      weights: sum.weights + it.cost.weights, states: sum.states + it.cost.states,
      bytes: sum.bytes + it.cost.bytes, flops: sum.flops + it.flops,
    }), { weights: 0, states: 0, bytes: 0, flops: 0 }),
    run: (data.profile ?? []).find((it) => it.program === raw.name),
  };
}

const layerName = (layer) => (typeof layer.label === "number" ? `layer ${layer.label}` : layer.label);
const shapeOf = (it) => `${it.dtype}[${it.rows}, ${it.cols}]`;
const valueName = (it) => (it.value >= 0 ? `v${it.value}` : "");

// Where an operand lies, as `dump --stage plan` writes it.
function placeOf(it) {
  if (it.space === "w") return `w${it.at}`;
  if (it.space === "st") return data.states[it.at]?.[0] ?? `st${it.at}`;
  return `${it.space}[${hex(it.at)}]`;
}

const weightNames = (step) => step.reads.filter((it) => it.space === "w").map((it) => data.weights[it.at]?.[0] ?? "?");

// States that a step reads, or writes: an arrow before their names.
const stateNames = (step) => [...step.reads.filter((it) => it.space === "st").map(placeOf), ...step.writes.filter((it) => it.space === "st").map((it) => `→ ${placeOf(it)}`)];

// Nanoseconds of a step in one call, where they were measured.
function measured(program, step) {
  const run = program.run;
  return run?.steps ? run.steps[step.index] / Math.max(1, run.calls) : null;
}

const callText = ([tokens, want, past]) => (past > 0 ? `${plural(tokens, "token")} after ${grouped(past)}` : plural(tokens, "token"));
