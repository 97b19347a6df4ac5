// Memory: all of it by kind as one bar, and scratch as a map of buffers over steps.

const KINDS = [
  ["weights", "weights", "packed, mapped from the plan"],
  ["states", "states", "caches and recurrent states"],
  ["experts", "expert cache", "records of experts"],
  ["scratch", "scratch", "shared by the programs"],
  ["io", "io", "token ids in, logits out"],
  ["text", "text", "the tokenizer"],
  ["thread", "threads", "scratch of their own"],
];

function drawMemory() {
  const m = data.memory;
  const parts = KINDS.map(([key, name, note]) => ({
    key, name,
    bytes: key === "thread" ? m.thread * m.threads : m[key],
    note: key === "thread" ? `${m.threads} × ${bytes(m.thread)}`
      : key === "states" ? plural(data.states.length, "state")
      : key === "experts" ? plural(m.slots, "record")
      : key === "scratch" ? `placed by ${m.placement}; arena ÷ lower bound ${(m.scratch / Math.max(1, m.bound)).toFixed(2)}` : note,
  })).filter((it) => it.bytes > 0);
  const bar = el("div", { class: "stack", role: "img", "aria-label": parts.map((it) => `${it.name} ${bytes(it.bytes)}`).join(", ") },
    ...parts.map((it) => el("span", { class: `part ${it.key}`, style: `flex-grow:${it.bytes}`, title: `${it.name} ${bytes(it.bytes)}` })));
  const rows = parts.map((it) => el("tr", {},
    el("th", { scope: "row" }, el("i", { class: `key ${it.key}` }), it.name), el("td", { class: "amount" }, grouped(it.bytes)),
    el("td", { class: "amount" }, percent(it.bytes, m.peak)), el("td", { class: "dim" }, it.note)));
  rows.push(el("tr", { class: "sum" }, el("th", { scope: "row" }, "peak"), el("td", { class: "amount" }, grouped(m.peak)),
    el("td", { class: "amount" }, bytes(m.peak)), el("td", { class: "dim" }, `stated, with ${m.threads} threads`)));
  byId("memory-body").replaceChildren(bar, el("div", { class: "scroll" }, el("table", { class: "plain" }, el("tbody", {}, ...rows))), layerBars(programs[0]));
}

// Weights and states of each layer as bars; what two layers share stands with the first.
function layerBars(program) {
  const seen = new Set(), size = (list, column, it) => {
    const key = `${it.space}${it.at}`;
    if (seen.has(key)) return 0;
    seen.add(key);
    return list[it.at]?.[column] ?? 0;
  };
  const layers = program.layers.map((layer) => {
    const all = program.steps.slice(layer.from, layer.to).flatMap((step) => [...step.reads, ...step.writes]);
    const sum = (space, list) => all.filter((it) => it.space === space).reduce((total, it) => total + size(list, 4, it), 0);
    return { layer, weights: sum("w", data.weights), states: sum("st", data.states) };
  });
  const most = Math.max(1, ...layers.map((it) => it.weights + it.states)), high = 92, wide = WIDE / layers.length;
  const bars = layers.map((it, at) => {
    const w = (high * it.weights) / most, s = (high * it.states) / most, x = at * wide + 0.5, name = layerName(it.layer);
    const text = [name, `weights ${bytes(it.weights)}`, `states ${bytes(it.states)}`];
    const every = Math.max(1, Math.ceil(layers.length / 34));
    const label = it.layer.label === "begin" ? "▸" : it.layer.label === "end" ? "■" : it.layer.label % every === 0 ? it.layer.label : "";
    return svg("g", { onmousemove: (event) => tip(text, event.clientX, event.clientY), onmouseleave: hideTip, onclick: () => choose(shown.program.layers[at] ?? it.layer) },
      svg("rect", { class: "hit", x, y: 0, width: wide, height: high + 16 }),
      svg("rect", { class: "fill weights", x, y: high - w, width: Math.max(1, wide - 2), height: w, rx: 1 }),
      svg("rect", { class: "fill states", x, y: high - w - s, width: Math.max(1, wide - 2), height: s, rx: 1 }),
      svg("text", { class: "label", x: x + wide / 2, y: high + 14, "text-anchor": "middle" }, label));
  });
  return el("figure", { class: "bylayer" }, svg("svg", { viewBox: `0 0 ${WIDE} ${high + 18}`, role: "img", "aria-label": "Weights and states of each layer" }, ...bars),
    el("figcaption", { class: "dim" }, `Weights and states of each layer; the largest has ${bytes(most)}.`));
}

// --- the map ------------------------------------------------------------------------------------------------------------------

const WIDE = 1100, HIGH = 380, LEFT = 74, TOP = 30, BOTTOM = 26;
const view = { all: false };

// Steps in 1, 2 or 5 times a power of ten, or bytes in powers of two, so that about `n` of them fit `most`.
function ticks(most, n, base) {
  const rough = Math.max(1, most / n);
  const step = base === 2 ? 2 ** Math.ceil(Math.log2(rough)) : [1, 2, 5, 10].map((it) => it * 10 ** Math.floor(Math.log10(rough))).find((it) => rough <= it);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
}

// A box as the beginning of a path.
const box = (x, y, w, h) => `M${x.toFixed(2)} ${y.toFixed(2)}h${w.toFixed(2)}v${h.toFixed(2)}h${(-w).toFixed(2)}z`;

// The whole program, small: where its layers are, how much is live, which part the map shows.
function overview(program, chosen) {
  const n = program.steps.length, high = 74, x = (at) => LEFT + ((WIDE - LEFT) * at) / n, y = (b) => 8 + (high - 22) * (1 - b / program.extent);
  const paths = Object.keys(FAMILY_NAMES).map((family) => {
    const d = program.buffers.filter((it) => it.step.family === family)
      .map((it) => box(x(it.first), y(it.offset + it.bytes), x(it.last + 1) - x(it.first), y(it.offset) - y(it.offset + it.bytes))).join("");
    return d ? svg("path", { d, class: `area ${family}` }) : null;
  });
  const bounds = program.layers.map((it) => svg("line", { class: "tick", x1: x(it.from), x2: x(it.from), y1: high - 14, y2: high - 8 }));
  const [from, to] = span(program, chosen);
  const brush = svg("rect", { class: "brush", x: x(from), y: 2, width: Math.max(3, x(to) - x(from)), height: high - 14, rx: 2 });
  const pick = (event) => {
    const rect = event.currentTarget.getBoundingClientRect();
    const at = Math.floor((((event.clientX - rect.left) / rect.width) * WIDE - LEFT) / (WIDE - LEFT) * n);
    const layer = program.layers.find((it) => it.from <= at && at < it.to);
    if (layer) { view.all = false; choose(layer); }
  };
  return svg("svg", { viewBox: `0 0 ${WIDE} ${high}`, class: "overview", onclick: pick, role: "img", "aria-label": `All ${n} steps; the marked part is shown below` },
    svg("text", { x: 0, y: 24, class: "label" }, "program"), ...paths, ...bounds,
    svg("path", { class: "peak", d: peakMark(x(program.peak + 0.5), 7) }), brush);
}

const peakMark = (x, y) => `M${x - 5} ${y - 6}h10l-5 7z`;

// The steps that the map shows.
const span = (program, layer) => (view.all ? [0, program.steps.length] : [layer.from, layer.to]);

function map(program, layer) {
  const [from, to] = span(program, layer), shown = program.buffers.filter((it) => it.first < to && from <= it.last);
  const most = Math.max(64, ...shown.map((it) => it.offset + it.bytes)) * 1.04;
  const x = (at) => LEFT + ((WIDE - LEFT - 6) * (Math.min(to, Math.max(from, at)) - from)) / (to - from);
  const y = (b) => TOP + (HIGH - TOP - BOTTOM) * (1 - b / most);
  const floor = y(0), wide = x(from + 1) - x(from);
  const grid = ticks(most, 6, 2).flatMap((it) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDE - 6, y1: y(it), y2: y(it) }),
    svg("text", { class: "label", x: LEFT - 8, y: y(it) + 4, "text-anchor": "end" }, bytes(it))]);
  const barriers = program.steps.slice(from, to).filter((it) => it.barrier).map((it) =>
    svg("line", { class: to - from > 120 ? "wall many" : "wall", x1: x(it.index), x2: x(it.index), y1: TOP, y2: floor }));
  const boxes = shown.map((it) => bufferBox(it, x, y, from, to));
  const every = Math.max(1, ...ticks(to - from, 26, 10).slice(1, 2));
  const steps = program.steps.slice(from, to).filter((it) => it.index % every === 0).map((it) =>
    svg("text", { class: "label step", x: x(it.index) + wide / 2, y: HIGH - 8, "text-anchor": "middle" }, `#${it.index}`));
  const isPeak = from <= program.peak && program.peak < to;
  const peak = isPeak ? [svg("path", { class: "peak", d: peakMark(x(program.peak) + wide / 2, TOP - 8) }),
    svg("text", { class: "label strong", x: Math.min(WIDE - 150, Math.max(LEFT, x(program.peak) + wide / 2 + 9)), y: TOP - 9 }, `peak: ${bytes(program.live[program.peak])} live at #${program.peak}`)] : [];
  const cursor = svg("rect", { id: "cursor", class: "cursor", x: -2 * WIDE, y: TOP, width: wide, height: floor - TOP });
  const drawing = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "map", role: "group", "aria-label": "Buffers in scratch" },
    ...grid, cursor, ...boxes, ...barriers, ...steps, ...peak,
    svg("line", { class: "axis", x1: LEFT, x2: WIDE - 6, y1: floor, y2: floor }));
  drawing.place = (step) => {
    const inside = from <= step && step < to;
    cursor.setAttribute("x", inside ? x(step) : -2 * WIDE);
  };
  return drawing;
}

// One buffer: its box, its name where there is room, and what hovering, focus and a click tell.
function bufferBox(it, x, y, from, to) {
  const left = x(it.first), width = Math.max(1, x(it.last + 1) - left - 1), top = y(it.offset + it.bytes), height = Math.max(1.5, y(it.offset) - top - 0.8);
  const cut = `${it.first < from ? " from-left" : ""}${it.last >= to ? " to-right" : ""}`;
  const name = `${valueName(it) || `#${it.step.index}`} ${it.step.kind}`;
  const texts = [];
  if (width > name.length * 6.6 + 10 && height > 15) texts.push(svg("text", { class: "name", x: left + 7, y: top + Math.min(height / 2 + 4, 17) }, name));
  if (width > 90 && height > 34) texts.push(svg("text", { class: "name dim", x: left + 7, y: top + 32 }, `${shapeOf(it)} · ${bytes(it.bytes)}`));
  const marks = it.over.filter((step) => from <= step.index && step.index < to && to - from < 200).map((step) =>
    svg("circle", { class: "over", cx: x(step.index) + 5, cy: top + height - 5, r: 2.5 }));
  return svg("g", {
    class: `buffer ${it.step.family}${cut}`, tabindex: 0, role: "img", "aria-label": describe(it).join(", "), "data-first": it.first, "data-last": it.last,
    onmousemove: (event) => { tip(describe(it), event.clientX, event.clientY); select(it.step.index, false); },
    onmouseleave: hideTip,
    onfocus: (event) => { const r = event.target.getBoundingClientRect(); tip(describe(it), r.left + r.width / 2, r.top); select(it.step.index, false); },
    onblur: hideTip,
    onclick: () => reveal(it.step.index),
    onkeydown: (event) => { if (event.key === "Enter") reveal(it.step.index); },
  }, svg("rect", { x: left + 0.5, y: top, width, height, rx: 2 }), ...marks, ...texts);
}

function describe(it) {
  const steps = it.first === it.last ? `step #${it.first}` : `steps #${it.first} – #${it.last}`;
  return [`${valueName(it)} ${it.step.kind}`.trim(), shapeOf(it), `${bytes(it.bytes)} at s[${hex(it.offset)}]`, `${steps}, ${layerName(it.step.layer)}`,
    ...weightNames(it.step).map(short), ...written(it)];
}

// What is written over a buffer in place, the part of it near the shown layer.
function written(it) {
  if (it.over.length === 0) return [];
  const near = it.over.filter((step) => step.layer === shown.layer), some = (near.length ? near : it.over).slice(0, 6);
  const rest = it.over.length - some.length;
  return [`written over in place: ${some.map((step) => `#${step.index} ${step.kind}`).join(", ")}${rest > 0 ? ` and ${plural(rest, "more step")}` : ""}`];
}

function drawMap(program, layer) {
  const m = data.memory, drawing = map(program, layer);
  const all = el("button", { type: "button", "aria-pressed": String(view.all), onclick: () => { view.all = !view.all; choose(layer); } }, "whole program");
  const go = (by) => { view.all = false; choose(program.layers[Math.min(program.layers.length - 1, Math.max(0, layer.index + by))]); };
  const tools = el("div", { class: "tools" },
    el("span", { class: "walk" }, el("button", { type: "button", onclick: () => go(-1), "aria-label": "previous layer" }, "‹"),
      el("b", {}, view.all ? "all layers" : layerName(layer)), el("button", { type: "button", onclick: () => go(1), "aria-label": "next layer" }, "›")), all,
    el("span", { class: "dim" }, `${bytes(program.live[program.peak])} live at most in ${program.name}; arena ${grouped(m.scratch)} bytes, lower bound ${grouped(m.bound)}`));
  const heads = [...new Set(program.buffers.map((it) => it.step.family))];
  byId("map-body").replaceChildren(tools, el("div", { class: "frame" }, overview(program, layer), drawing),
    el("p", { class: "legend" }, ...Object.keys(FAMILY_NAMES).filter((it) => heads.includes(it)).map((it) => el("span", {}, el("i", { class: `key ${it}` }), FAMILY_NAMES[it])),
      el("span", {}, el("i", { class: "key line" }), "barrier"), el("span", {}, el("i", { class: "key mark" }), "peak"), el("span", {}, el("i", { class: "key over" }), "written over in place")));
  return drawing;
}
