// Tables: costs by class of op, what the passes did, weights and states. A heading that begins with ">" stands over numbers.

const heading = (it) => (typeof it === "string" && it.startsWith(">")
  ? el("th", { scope: "col", class: "amount" }, it.slice(1)) : el("th", { scope: "col" }, it));
const table = (heads, rows, cls = "plain") => el("div", { class: "scroll" }, el("table", { class: cls },
  el("thead", {}, el("tr", {}, ...heads.map(heading))), el("tbody", {}, ...rows)));
const cells = (...items) => items.map((it) => (it instanceof Node ? it : el("td", {}, String(it))));
const amount = (text) => el("td", { class: "amount" }, text);

// Steps of a program by class, from the plan alone.
function predicted(program) {
  const all = new Map();
  for (const step of program.steps) {
    const it = all.get(step.cls) ?? { name: step.cls, family: step.family, steps: 0, bytes: 0, flops: 0 };
    it.steps += 1;
    it.bytes += step.cost.bytes;
    it.flops += step.flops;
    all.set(step.cls, it);
  }
  return [...all.values()].sort((a, b) => b.bytes - a.bytes || b.flops - a.flops);
}

const meter = (cls, share) => el("span", { class: `share ${cls}`, style: `width:${(100 * Math.min(1, share)).toFixed(2)}%` });

function costsWithoutProfile(program) {
  const classes = predicted(program), most = Math.max(1, ...classes.map((it) => it.bytes)), ops = Math.max(1, ...classes.map((it) => it.flops));
  const rows = classes.map((it) => el("tr", {}, el("th", { scope: "row" }, el("b", { class: `ink ${it.family}` }, it.name)), amount(it.steps),
    el("td", { class: "amount wide" }, bytes(it.bytes), meter(it.family, it.bytes / most)), amount(percent(it.bytes, program.total.bytes)),
    el("td", { class: "amount wide" }, flops(it.flops), meter(it.family, it.flops / ops)), amount(percent(it.flops, program.total.flops))));
  return [
    el("p", { class: "lead" }, `Predicted from the plan, for a call of ${callText(program.call)}. With `, el("code", {}, "waste bench PLAN --profile -o json > p.json"),
      " and ", el("code", {}, "waste dump PLAN --html --profile p.json"), " measured times stand beside it."),
    table(["op", ">steps", ">bytes", ">share", ">operations", ">share"], rows)];
}

// Predicted time: the bytes that must move, at the speed of the bandwidth probe.
function costsWithProfile(run) {
  const calls = Math.max(1, run.calls), total = run.classes.reduce((sum, it) => sum + it.ns, 0);
  const roof = run.roof, time = (it) => (roof ? (it.weight_bytes + it.state_bytes + it.other_bytes) / roof : 0);
  const most = Math.max(1, ...run.classes.map((it) => Math.max(it.ns, time(it)))), all = { steps: 0, bytes: 0, flops: 0, ns: 0, time: 0 };
  const rows = run.classes.map((it) => {
    const moved = it.weight_bytes + it.state_bytes + it.other_bytes, family = familyOf(it.op.split(" ")[0]);
    all.steps += it.steps; all.bytes += moved; all.flops += it.flops; all.ns += it.ns; all.time += time(it);
    return el("tr", {}, el("th", { scope: "row" }, el("b", { class: `ink ${family}` }, it.op)), amount(it.steps),
      amount(bytes(Math.round(moved / calls))), amount(flops(Math.round(it.flops / calls))),
      amount(roof ? micros(time(it) / calls) : "–"), amount(micros(it.ns / calls)),
      el("td", { class: "bars" }, el("div", {}, meter(`${family} measured`, it.ns / most), roof ? el("span", { class: "goal", style: `left:${((100 * time(it)) / most).toFixed(2)}%` }) : null)),
      amount(roof ? percent(time(it), it.ns) : "–"), amount(percent(it.ns, total)));
  });
  rows.push(el("tr", { class: "sum" }, el("th", { scope: "row" }, "all"), amount(all.steps), amount(bytes(Math.round(all.bytes / calls))), amount(flops(Math.round(all.flops / calls))),
    amount(roof ? micros(all.time / calls) : "–"), amount(micros(all.ns / calls)), el("td", {}), amount(roof ? percent(all.time, all.ns) : "–"), amount("100 %")));
  const [prompt, gen, depth] = run.tests, test = [prompt ? `prompt of ${grouped(prompt)}` : "", gen ? `${plural(gen, "token")} generated` : "", depth ? `after ${grouped(depth)}` : ""];
  return [
    el("h3", {}, run.program, el("span", { class: "dim" }, ` ${test.filter(Boolean).join(", ")}; ${plural(run.calls, "call")}, ${plural(run.threads, "thread")}, ${run.backend ?? ""}`)),
    el("p", { class: "lead" }, roof ? `Averages of a call. Predicted: the bytes that must move, at the ${roof.toFixed(2)} GB/s that a probe of the same working set read in the same run. Above 100 %, a cache held them.`
      : "Averages of a call. There was no bandwidth probe, so no time is predicted."),
    table(["op", ">steps", ">bytes", ">operations", ">predicted", ">measured", el("span", {}, "measured and predicted ", el("i", { class: "key goal" })), ">predicted ÷ measured", ">of all time"], rows)];
}

function drawCosts(program) {
  const runs = (data.profile ?? []).filter((it) => it.program === program.name);
  byId("costs-body").replaceChildren(...(runs.length ? runs.flatMap(costsWithProfile) : costsWithoutProfile(program)));
}

function drawPasses() {
  const rows = data.passes.map(([name, rewrites, missed]) => el("tr", {}, el("th", { scope: "row" }, name), amount(rewrites || "–"),
    amount(missed.reduce((sum, it) => sum + it[1], 0) || "–"), el("td", { class: "misses" }, ...missed.map(miss))));
  byId("passes-body").replaceChildren(rows.length ? table(["pass", ">rewrites", ">refused", "why, and what would have to change"], rows)
    : el("p", { class: "dim" }, "The plan holds no report."));
}

// A reason for which a pass left ops as they were.
const miss = ([reason, n, first, cost, change]) => el("div", { class: "miss" },
  el("b", {}, `${grouped(n)} × ${reason}`), el("span", {}, `first at ${first}`), cost ? el("span", {}, `costs ${cost}`) : null, change ? el("span", { class: "change" }, change) : null);

function drawTables() {
  const weights = data.weights.map(([name, dtype, packing, shape, size, offset]) => el("tr", {}, ...cells(
    el("th", { scope: "row", class: "long" }, name.replaceAll("+", " + ")), dtype, packing, shape.join(" × "), amount(grouped(size)), amount(hex(offset)))));
  const states = data.states.map(([name, kind, dtype, shape, size, offset]) => el("tr", {}, ...cells(
    el("th", { scope: "row" }, name), kind, dtype, shape.join(" × "), amount(grouped(size)), amount(hex(offset)))));
  const layouts = new Map();
  for (const [, dtype, packing, , size] of data.weights) {
    const key = `${dtype} as ${packing}`, it = layouts.get(key) ?? [0, 0];
    layouts.set(key, [it[0] + 1, it[1] + size]);
  }
  const sums = [...layouts].sort((a, b) => b[1][1] - a[1][1]).map(([name, [n, size]]) => el("tr", {}, el("th", { scope: "row" }, name), amount(n), amount(grouped(size)), amount(bytes(size))));
  byId("tables-body").replaceChildren(
    table(["weights by layout", ">how many", ">bytes", ""], sums),
    el("details", {}, el("summary", {}, `All ${plural(weights.length, "weight")}`), table(["name", "type", "layout", "shape", ">bytes", ">offset"], weights)),
    el("details", {}, el("summary", {}, `All ${plural(states.length, "state")}`), table(["name", "kind", "type", "shape", ">bytes", ">offset"], states)));
}
