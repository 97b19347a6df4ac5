// What is shown, and what a choice changes.

const programs = data.programs.map(expand);
const shown = { program: programs[0], layer: null, drawing: null };

// The layer that says most: the middle one of the largest group.
function usual(program) {
  const most = program.layers.reduce((best, it) => {
    const size = (layer) => program.layers.filter((other) => other.group === layer.group).length;
    return size(it) > size(best) ? it : best;
  }, program.layers[0]);
  const members = program.layers.filter((it) => it.group === most.group);
  return members[Math.floor(members.length / 2)];
}

function drawIntro() {
  const { model, options, memory } = data, program = shown.program;
  const facts = [
    [bytes(memory.peak), "peak memory"],
    [bytes(program.total.weights + program.total.states), `from memory a call of ${callText(program.call)}`],
    [flops(program.total.flops), "operations in it"],
    [grouped(program.steps.length), `steps of ${program.name}`],
    [grouped(program.barriers), "barriers"],
    [(memory.scratch / Math.max(1, memory.bound)).toFixed(2), "arena ÷ lower bound"],
  ];
  byId("intro").replaceChildren(
    el("h1", {}, model.name),
    el("p", { class: "lead" }, [model.arch, `${count(model.params)} parameters`, `context ${grouped(options.ctx)}`, `batch ${options.batch}`, `chunk ${options.chunk}`,
      `caches ${options.kv}`, `arithmetic ${options.math}`].join(" · ")),
    el("dl", { class: "facts" }, ...facts.map(([value, name]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
}

function choose(layer) {
  shown.layer = layer;
  shown.drawing = drawMap(shown.program, layer);
  drawGraph(shown.program, layer);
}

function draw(program) {
  shown.program = program;
  byId("programs").replaceChildren(...programs.map((it) =>
    el("button", { type: "button", "aria-pressed": String(it === program), onclick: () => draw(it) }, it.name)));
  drawIntro();
  choose(usual(program));
  drawCosts(program);
}

// Marks a step in the graph, and in the map what it touches.
function select(index, move = true) {
  for (const it of document.querySelectorAll("tr.on, .buffer.on, .wire.on")) it.classList.remove("on");
  byId(`step-${index}`)?.classList.add("on");
  for (const it of document.querySelectorAll(`.wire[data-writer="${index}"]`)) it.classList.add("on");
  if (!move) return;
  shown.drawing.place(index);
  for (const it of shown.drawing.querySelectorAll(".buffer")) {
    it.classList.toggle("on", Number(it.dataset.first) <= index && index <= Number(it.dataset.last));
  }
}

// Brings a step's row into view, drawing its layer if another of the same kind is drawn.
function reveal(index) {
  const layer = shown.program.steps[index].layer;
  if (layer !== shown.layer) { view.all = false; choose(layer); }
  const row = byId(`step-${index}`);
  row.scrollIntoView({ block: "center" });
  row.focus({ preventScroll: true });
}

function tip(lines, x, y) {
  const it = byId("tip");
  it.replaceChildren(...lines.map((line, at) => el(at === 0 ? "b" : "span", {}, line)));
  it.hidden = false;
  it.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - it.offsetWidth - 8))}px`;
  it.style.top = `${y + 18 + it.offsetHeight < innerHeight ? y + 16 : y - it.offsetHeight - 12}px`;
}

function hideTip() { byId("tip").hidden = true; }

addEventListener("keydown", (event) => {
  if (event.target.closest?.("input, summary, button") || event.ctrlKey || event.metaKey || event.altKey) return;
  const row = event.target.closest?.("tr[data-step]"), layers = shown.program.layers, at = layers.indexOf(shown.layer);
  const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key], step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (event.key === "Escape") hideTip();
  else if (move && layers[at + move]) { view.all = false; choose(layers[at + move]); }
  else if (row && step) (byId(`step-${Number(row.dataset.step) + step}`) ?? row).focus();
  else return;
  event.preventDefault();
});

drawMemory();
drawPasses();
drawTables();
byId("about").textContent = `${data.producer}, target ${data.target}. Keys: ← → layers, ↑ ↓ steps, Tab buffers, Enter from a buffer to its step.`;
draw(programs[0]);
