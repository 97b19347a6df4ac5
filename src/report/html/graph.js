// The graph: a card for each kind of layer, a row for each step, and values as lines on the left.

const ROW = 30, LANE = 11;

// The values that a layer's steps write or read: from which row to which, and where they are read. Rows outside are −1 and n.
function valuesOf(program, layer) {
  const n = layer.to - layer.from, found = new Map();
  const value = (writer) => {
    if (!found.has(writer)) found.set(writer, { writer, start: Math.max(-1, writer - layer.from), end: -1, readers: [] });
    return found.get(writer);
  };
  for (let at = layer.from; at < program.steps.length; at++) {
    for (const read of program.steps[at].reads) {
      const writer = read.from > 0 ? at - read.from : null;
      if (writer === null || writer >= layer.to || (writer < layer.from && at >= layer.to)) continue;
      const it = value(writer);
      it.end = Math.max(it.end, Math.min(n, at - layer.from));
      if (at < layer.to) it.readers.push(at - layer.from);
    }
    if (at >= layer.to && at > layer.to + 4 * n) break;
  }
  return [...found.values()].sort((a, b) => a.start - b.start || b.end - a.end);
}

// Gives each value the first lane that is free from its start to its end.
function lanesOf(values) {
  const busy = [];
  for (const it of values) {
    let lane = busy.findIndex((end) => end <= it.start);
    if (lane < 0) lane = busy.length;
    busy[lane] = it.end;
    it.lane = lane;
  }
  return busy.length;
}

// The lines of a layer as one drawing, rows being ROW high.
function wires(program, layer) {
  const values = valuesOf(program, layer), lanes = lanesOf(values), n = layer.to - layer.from;
  const node = lanes * LANE + 10, width = node + 8, y = (row) => row * ROW + ROW / 2;
  const x = (lane) => node - 10 - lane * LANE;
  const lines = values.map((it) => {
    const at = x(it.lane), from = it.start < 0 ? 0 : y(it.start), to = it.end >= n ? n * ROW : y(it.end);
    const bend = (row, down) => `M${node} ${y(row)} C${at} ${y(row)} ${at} ${y(row)} ${at} ${y(row) + down * ROW * 0.45}`;
    let path = it.start < 0 ? `M${at} 0` : `${bend(it.start, 1)}`;
    path += ` M${at} ${it.start < 0 ? 0 : from + ROW * 0.45} V${it.end >= n ? to : Math.max(from, to - ROW * 0.45)}`;
    for (const row of it.readers) path += ` ${bend(row, -1)}`;
    const writer = program.steps[it.writer];
    return svg("path", { d: path, class: `wire ${writer.family}`, "data-writer": it.writer });
  });
  const dots = program.steps.slice(layer.from, layer.to).map((step, row) =>
    svg("circle", { cx: node, cy: y(row), r: 4, class: `dot ${step.family}` }));
  return svg("svg", { width, height: n * ROW, class: "wires", "aria-hidden": "true" }, ...lines, ...dots);
}

function stepRow(program, step, most) {
  const names = [...weightNames(step).map(short), ...stateNames(step)], out = step.writes.find((it) => it.space !== "st"), time = measured(program, step);
  const [op, layout] = [step.kind, step.cls.slice(step.kind.length).trim()];
  const bar = el("span", { class: `share ${step.family}`, style: `width:${(100 * step.cost.bytes) / most}%` });
  return el("tr", {
    id: `step-${step.index}`, class: step.barrier ? "barrier" : null, "data-step": step.index, tabindex: 0,
    onmouseenter: () => select(step.index), onfocus: () => select(step.index),
  },
    el("td", { class: "num" }, `#${step.index}`),
    el("td", { class: "op" }, el("b", { class: `ink ${step.family}` }, op), layout ? el("span", { class: "pill" }, layout) : null,
      step.window ? el("span", { class: "pill" }, "loop") : null),
    el("td", { class: "shape" }, out ? shapeOf(out) : "–", out && valueName(out) ? el("i", {}, valueName(out)) : null),
    el("td", { class: "names" }, el("span", { title: [...weightNames(step), step.attrs].join("\n") }, names.length ? el("span", {}, names.join(", ")) : null, step.attrs ? el("i", {}, step.attrs) : null)),
    el("td", { class: "amount" }, bytes(step.cost.bytes), bar),
    el("td", { class: "amount" }, flops(step.flops)),
    program.run?.steps ? el("td", { class: "amount" }, micros(time)) : null);
}

// A weight's name without what its layer says already.
const short = (name) => name.split("+").map((it) => it.replace(/^(model\.layers|blk|h|transformer\.h)\.\d+\./, "").replace(/\.weight$/, "")).join(" + ");

// `0–2, 4–6`
function ranges(numbers) {
  const runs = [];
  for (const n of numbers) {
    const last = runs.at(-1);
    if (last && last[1] + 1 === n) last[1] = n;
    else runs.push([n, n]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
}

// The layers of a group, and which of them is drawn.
function card(program, group, chosen) {
  const members = program.layers.filter((it) => it.group === group);
  const layer = members.includes(chosen) ? chosen : members[0];
  const steps = program.steps.slice(layer.from, layer.to);
  const sum = steps.reduce((all, it) => [all[0] + it.cost.bytes, all[1] + it.flops], [0, 0]);
  const numbers = members.map((it) => it.label).filter((it) => typeof it === "number");
  const title = numbers.length ? `Layer${members.length > 1 ? "s" : ""} ${ranges(numbers)}` : layer.label === "begin" ? "Beginning" : "End";
  const move = (by) => choose(members[(members.indexOf(layer) + by + members.length) % members.length]);
  const walk = members.length > 1
    ? el("span", { class: "walk" },
      el("button", { type: "button", onclick: () => move(-1), "aria-label": "previous layer" }, "‹"),
      el("span", {}, `showing ${layerName(layer)}`),
      el("button", { type: "button", onclick: () => move(1), "aria-label": "next layer" }, "›"))
    : null;
  const heads = ["", "op · kernel", "result", "weights and states · attributes", "bytes", "operations"].concat(program.run?.steps ? ["measured"] : []);
  const most = Math.max(1, ...steps.map((it) => it.cost.bytes));
  return el("article", { class: "card", "data-layer": layer.index },
    el("header", {}, el("h3", {}, title), el("span", { class: "dim" },
      `${members.length > 1 ? `${members.length} × ` : ""}${plural(steps.length, "step")}, ${bytes(sum[0])}, ${flops(sum[1])}${members.length > 1 ? " each" : ""}`), walk),
    el("div", { class: "flow" }, wires(program, layer),
      el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((it) => el("th", { scope: "col" }, it)))),
        el("tbody", {}, ...steps.map((it) => stepRow(program, it, most))))));
}

// All layers in order, one cell each.
function strip(program, chosen) {
  const cells = program.layers.map((it) => el("button", {
    type: "button", class: `cell g${it.group % 6}`, "aria-pressed": String(it === chosen), title: layerName(it), onclick: () => choose(it),
  }, typeof it.label === "number" ? it.label : it.label === "begin" ? "▸" : "■"));
  return el("div", { class: "strip", role: "group", "aria-label": "Layers" }, ...cells);
}

function drawGraph(program, chosen) {
  const groups = [...new Set(program.layers.map((it) => it.group))];
  byId("graph-body").replaceChildren(strip(program, chosen), legend(program), ...groups.map((it) => card(program, it, chosen)));
}

function legend(program) {
  const present = Object.keys(FAMILY_NAMES).filter((it) => program.steps.some((step) => step.family === it));
  return el("p", { class: "legend" }, ...present.map((it) => el("span", {}, el("i", { class: `key ${it}` }), FAMILY_NAMES[it])),
    el("span", {}, el("i", { class: "key line" }), "barrier: all threads meet"));
}
