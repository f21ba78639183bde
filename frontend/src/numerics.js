// The heat map of errors: every value that ONNX Runtime computed, in graph order, against PyTorch's.
import { fitted, hatching, onThemeChange, palette } from "./canvas.js";
import { errorScale, sectionsOf } from "./cells.js";
import { button, el, link, onResize, perFrame, together } from "./dom.js";
import { clipped, count, counted, place, real, visible } from "./format.js";
import { emptyState, helpLine } from "./help.js";

const HEAD = 20; // pixels of the words above a partition
const SIZES = [[300, 22], [4000, 16], [Infinity, 9]]; // of a cell in pixels, by how many there are
const WORST = 12;
const FONT = "11px system-ui, sans-serif";

/**
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @returns {() => void}
 */
export function mountNumerics(root, store) {
  root.append(helpLine("numerics"));
  const sections = sectionsOf(store);
  if (!sections.length) {
    root.append(emptyState("numerics", store.data));
    return () => {};
  }
  const map = new HeatMap(root, store, sections);
  return () => map.destroy();
}

class HeatMap {
  constructor(root, store, sections) {
    this.store = store;
    this.sections = sections;
    this.cells = sections.flatMap((section) => section.cells);
    this.measure = "abs";
    this.active = Math.max(0, this.cells.findIndex((cell) => cell.first));
    this.size = SIZES.find(([most]) => this.cells.length <= most)[1];
    this.places = []; // left and top of each cell
    this.draw = perFrame(() => this.paint());
    this.canvas = el("canvas.ol-canvas", { tabindex: "0", role: "application", "aria-label": "Errors of the values in graph order. Arrows move between values, n goes to the next one out of tolerance, Enter selects." });
    this.holder = el("div.ol-scroll", {}, this.canvas);
    this.said = el("p.ol-status", { role: "status" });
    root.append(this.tools(), this.holder, this.said, this.worst());
    this.listen();
    this.say(this.active);
    this.cleanups = [store.subscribe(["chain"], () => this.follow()), onResize(this.holder, () => this.draw()), onThemeChange(store, () => this.recolour())];
    this.paint(); // a cell has its place now
    this.follow();
  }

  /** The first value of what is selected is brought into view. */
  follow() {
    const chosen = new Set((this.store.get("chain")?.nodes ?? []).map((found) => found.id));
    const at = this.cells.findIndex((cell) => chosen.has(cell.id));
    if (at >= 0) this.moveTo(chosen.has(this.cells[this.active].id) ? this.active : at);
    else this.draw();
  }

  tools() {
    const measures = [["abs", "absolute"], ["rel", "relative"]].map(([measure, words]) => {
      const choose = button(words, () => {
        this.measure = measure;
        for (const other of measures) other.setAttribute("aria-pressed", String(other === choose));
        this.draw();
      }, { "aria-pressed": String(measure === this.measure), title: `Largest ${words} difference` });
      return choose;
    });
    const key = [["ol-cross", "out of tolerance", "wrong"], ["ol-hatch", "not checked", "unchecked"]].filter(([, , state]) => this.cells.some((cell) => cell.state === state)).map(([kind, words]) => el("span", {}, el(`span.ol-swatch.${kind}`), words));
    this.legend = el("span.ol-ramp-key");
    const counts = (state) => this.cells.filter((cell) => cell.state === state).length;
    const said = `${counted(counts("ok") + counts("wrong"), "value")} checked, ${count(counts("wrong"))} out of tolerance, ${count(counts("unchecked"))} not checked`;
    return el("div.ol-tools", {}, el("span", {}, "difference: "), ...measures, this.legend, ...key, this.cells.some((cell) => cell.first) ? el("span", {}, "▲ first difference") : null, el("span.ol-soft", {}, said), (this.own = el("span", { role: "status" })));
  }

  paint() {
    const width = this.holder.clientWidth;
    if (!width) return;
    const measuring = this.canvas.getContext("2d");
    measuring.font = FONT;
    this.canvas.style.height = `${this.arrange(width, (text) => measuring.measureText(text).width)}px`;
    const { context } = fitted(this.canvas);
    const colours = (this.colours ??= palette(this.holder, ["back", "ink", "soft", "line", "run", "eager", "link"]));
    const scale = errorScale(this.cells, this.measure);
    const chosen = new Set((this.store.get("chain")?.nodes ?? []).map((found) => found.id));
    this.showRamp(scale);
    const own = this.cells.filter((cell) => chosen.has(cell.id)).length;
    this.own.textContent = own ? `${counted(own, "selected value")}, outlined` : "";
    context.font = FONT;
    context.textBaseline = "middle";
    for (const { text, left, top } of this.heads) {
      context.fillStyle = colours.soft;
      context.fillText(text, left, top + HEAD / 2);
    }
    const hatch = hatching(context, colours.soft, 5);
    this.cells.forEach((cell, at) => this.drawCell(context, colours, hatch, scale, cell, at, chosen.has(cell.id)));
    this.drawActive(context, colours);
  }

  /** Where each cell stands; returns the height of all. Partitions stand side by side where they are small. */
  arrange(width, textWidth) {
    const { size } = this;
    const across = Math.max(1, Math.floor((width - 8) / size));
    this.across = across;
    this.places = [];
    this.heads = [];
    let [left, top, tall] = [4, 0, 0];
    for (const { partition, graph, cells } of this.sections) {
      const [row] = this.store.data.index("graphs", "graph_id").get(graph) ?? [];
      const compiled = row === undefined ? graph : this.store.data.table("graphs").get(row, "compile_id");
      const text = clipped(`${partition}${compiled ? `, graph ${compiled}` : ""}: ${counted(cells.length, "value")}`, 60);
      const wide = Math.max(textWidth(text) + 18, Math.min(across, cells.length) * size + 14);
      if (left > 4 && left + wide > width) [left, top, tall] = [4, top + tall, 0];
      this.heads.push({ left, top, text });
      cells.forEach((_, at) => this.places.push([left + (at % across) * size, top + HEAD + Math.floor(at / across) * size]));
      tall = Math.max(tall, HEAD + Math.ceil(cells.length / across) * size + 4);
      left += wide;
    }
    return top + tall + 4;
  }

  drawCell(context, colours, hatch, scale, cell, at, chosen) {
    const [left, top] = this.places[at];
    const side = this.size - 2;
    context.globalAlpha = 1;
    context.strokeStyle = colours.line;
    context.strokeRect(left + 0.5, top + 0.5, side, side);
    if (cell.state === "unchecked") {
      context.fillStyle = hatch;
      context.fillRect(left + 1, top + 1, side - 1, side - 1);
    } else {
      context.globalAlpha = cell.state === "wrong" ? 1 : scale.share(cell[this.measure]);
      context.fillStyle = cell.state === "wrong" ? colours.eager : colours.run;
      context.fillRect(left + 1, top + 1, side - 1, side - 1);
      context.globalAlpha = 1;
      if (cell.state === "wrong") cross(context, colours.back, left + 1, top + 1, side - 1);
    }
    if (cell.first || cell.nonfinite) sign(context, colours, cell, left + this.size / 2 - 1, top + this.size / 2);
    if (chosen) outline(context, colours.link, left, top, side, 2);
  }

  drawActive(context, colours) {
    if (this.canvas.getRootNode().activeElement !== this.canvas || !this.places[this.active]) return;
    const [left, top] = this.places[this.active];
    outline(context, colours.ink, left - 1, top - 1, this.size, 2);
  }

  showRamp({ low, high }) {
    this.legend.replaceChildren(el("span.ol-swatch"), "identical ", `1e${low}`, el("span.ol-ramp", { role: "img", "aria-label": "from light to strong" }), `1e${high}`);
  }

  listen() {
    this.canvas.addEventListener("pointermove", (event) => this.say(this.at(event) ?? this.active));
    this.canvas.addEventListener("click", (event) => {
      const at = this.at(event);
      if (at !== null) this.choose(at);
    });
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    for (const name of ["focus", "blur"]) this.canvas.addEventListener(name, () => this.draw());
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const at = this.places.findIndex(([left, top]) => x >= left && x < left + this.size && y >= top && y < top + this.size);
    return at < 0 ? null : at;
  }

  choose(at) {
    this.moveTo(at);
    this.store.set({ selected: this.cells[at].id });
  }

  moveTo(at) {
    this.active = Math.max(0, Math.min(this.cells.length - 1, at));
    this.say(this.active);
    const top = this.places[this.active]?.[1] ?? 0;
    this.holder.scrollTop = Math.min(Math.max(this.holder.scrollTop, top + this.size - this.holder.clientHeight), Math.max(0, top - HEAD));
    this.draw();
  }

  /** The nearest cell of the next line, or of the one before. */
  beside(step) {
    const [x, y] = this.places[this.active] ?? [0, 0];
    const lines = this.places.map(([, top]) => top).filter((top) => (step > 0 ? top > y : top < y));
    if (!lines.length) return this.active;
    const line = lines.reduce((a, b) => (step > 0 ? Math.min(a, b) : Math.max(a, b)));
    let best = -1;
    this.places.forEach(([left, top], at) => {
      if (top === line && (best < 0 || Math.abs(left - x) < Math.abs(this.places[best][0] - x))) best = at;
    });
    return best;
  }

  onKey(event) {
    const next = () => this.cells.findIndex((cell, at) => at > this.active && cell.state === "wrong");
    const to = { ArrowRight: () => this.active + 1, ArrowLeft: () => this.active - 1, ArrowDown: () => this.beside(1), ArrowUp: () => this.beside(-1), Home: () => 0, End: () => this.cells.length - 1, n: () => (next() < 0 ? this.active : next()) }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (to) this.moveTo(to());
    else if (event.key === "Enter" || event.key === " ") this.choose(this.active);
    else return;
    event.preventDefault();
  }

  say(at) {
    const cell = this.cells[at];
    if (!cell || this.announced === at) return;
    this.announced = at;
    const nodes = this.store.data.table("nodes");
    const where = cell.node < 0 ? "" : `, ${nodes.get(cell.node, "target")}, ${place(nodes.get(cell.node, "file"), nodes.get(cell.node, "line"))}`;
    this.said.textContent = `${visible(cell.name)}${visible(where)}: ${this.words(cell)}`;
  }

  words(cell) {
    const numerics = this.store.data.table("numerics");
    if (cell.state === "unchecked") return cell.rows.map((row) => numerics.get(row, "note")).find(Boolean) || "not checked";
    const checked = cell.rows.filter((row) => numerics.get(row, "ok") !== null);
    const values = checked.filter((row) => numerics.get(row, "scope") === "value");
    const same = (row, other) => ["max_abs", "max_rel", "ok", "note"].every((name) => Object.is(numerics.get(row, name), numerics.get(other, name)));
    // What was handed out as it was computed needs no second sentence.
    const shown = checked.filter((row) => numerics.get(row, "scope") !== "output" || !values.some((value) => same(value, row)));
    return shown.map((row) => rowWords(numerics, row)).join("; ");
  }

  /** The accessible twin of what matters most: the values out of tolerance, or the largest errors. */
  worst() {
    const home = new Map(this.sections.flatMap(({ partition, cells }) => cells.map((cell) => [cell, partition])));
    const size = (cell) => (cell.abs === null ? -1 : Number.isNaN(cell.abs) ? Infinity : cell.abs);
    const wrong = this.cells.filter((cell) => cell.state === "wrong");
    const shown = (wrong.length ? wrong : this.cells.filter((cell) => cell.abs > 0).sort((a, b) => size(b) - size(a))).slice(0, WORST);
    if (!shown.length) return el("p.ol-soft", {}, "Every value checked inside partitions is bit-identical to PyTorch's.");
    const items = shown.map((cell) => el("li", {}, cell.first ? "▲ " : "", link(this.store, cell.id, visible(cell.name)), " ", el("span.ol-soft", {}, visible(`in ${home.get(cell)}: ${this.words(cell)}`))));
    return el("div.ol-worst", {}, el("h4", {}, wrong.length ? "Out of tolerance, in graph order" : "The largest differences inside partitions, which all match"), el("ul", {}, ...items));
  }

  recolour() {
    this.colours = null; // read off the style sheet when they are next needed
    this.draw();
  }

  destroy() {
    this.draw.cancel();
    together(this.cleanups)();
  }
}

function rowWords(numerics, row) {
  const get = (name) => numerics.get(row, name);
  const scope = { output: "as returned: ", value: "", op: "operator alone: ", call: "" }[get("scope")] ?? "";
  const parts = [
    get("max_abs") === 0 ? "identical" : get("max_abs") === null ? null : `differs by up to ${real(get("max_abs"))}`,
    get("max_rel") ? `relative ${real(get("max_rel"))}` : null,
    get("ok") ? null : "out of tolerance",
    get("nonfinite") ? `NaN or Inf: ${get("nonfinite")}` : null,
    get("closer_to_fp64") && get("max_abs") ? { ort: "ONNX Runtime is closer to float64", eager: "PyTorch is closer to float64", equal: "equally close to float64" }[get("closer_to_fp64")] : null,
    get("note") || null,
  ];
  return scope + parts.filter(Boolean).join(", ");
}

function cross(context, colour, left, top, side) {
  context.strokeStyle = colour;
  context.beginPath();
  context.moveTo(left + 2, top + 2);
  context.lineTo(left + side - 2, top + side - 2);
  context.moveTo(left + side - 2, top + 2);
  context.lineTo(left + 2, top + side - 2);
  context.stroke();
}

function sign(context, colours, cell, x, y) {
  context.textAlign = "center";
  context.lineWidth = 3;
  context.strokeStyle = colours.back;
  context.fillStyle = colours.ink;
  const text = cell.first ? "▲" : "∞";
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
  context.lineWidth = 1;
  context.textAlign = "left";
}

function outline(context, colour, left, top, side, wide) {
  context.strokeStyle = colour;
  context.lineWidth = wide;
  context.strokeRect(left + 0.5, top + 0.5, side, side);
  context.lineWidth = 1;
}
