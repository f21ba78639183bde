// The flame graph: one call of the model, each frame as wide as its time.
import { onThemeChange, palette } from "./canvas.js";
import { acted, button, el, onResize, perFrame, roving, together } from "./dom.js";
import { count, counted, percent, place } from "./format.js";
import { breakWords, flameOf, KIND_WORDS, METRICS } from "./flame.js";
import { COLOURS, drawFlame, ROW } from "./flamedraw.js";
import { emptyState, HELP, helpLine, hint } from "./help.js";

const KEY = [["ort", "ONNX Runtime"], ["foreign", ""], ["torch", "PyTorch"], ["bind", "bind"], ["output", "output"], ["guards", "entering compiled code"], ["between", "Python"], ["break", "graph break"], ["residual", "rest"], ["kernel", "kernel"], ["phase", "phase of compiling"]];
const LONGEST = 10;
const SPECK = 2; // pixels below which a frame is looked at closer
const LEAST = 1e-6; // part of the whole that fills the view at most

/**
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @returns {() => void}
 */
export function mountFlame(root, store) {
  root.append(helpLine("flame"));
  const flame = flameOf(store.data);
  const metrics = METRICS.filter(([name]) => flame.laid(name).total > 0);
  if (!metrics.length) {
    root.append(emptyState("flame", store.data));
    return () => {};
  }
  const panel = new Panel(root, store, flame, metrics);
  return () => panel.destroy();
}

class Panel {
  constructor(root, store, flame, metrics) {
    Object.assign(this, { store, flame, metrics });
    this.view = { from: 0, to: 1, current: 0, linked: new Set(), found: null, focused: false };
    this.zoomed = 0;
    this.canvas = el("canvas.ol-canvas", { tabindex: "0", role: "application", "aria-label": "Flame graph. Arrows move among frames, Enter selects, plus zooms to a frame, minus and Escape zoom out, 0 shows all, slash searches." });
    this.holder = el("div.ol-scroll.ol-flame", {}, this.canvas);
    this.said = el("p.ol-status", { role: "status" });
    this.crumbs = el("div.ol-crumbs", { role: "group", "aria-label": "What is zoomed to" });
    this.draw = perFrame(() => this.paint());
    this.longest = el("div.ol-longest");
    root.append(...this.notes(), this.tools(), this.crumbs, this.holder, this.said, this.longest);
    this.cleanups = [
      store.subscribe(["chain"], () => this.follow()),
      store.subscribe(["metric"], () => this.measure()),
      onResize(this.holder, () => this.draw()),
      onThemeChange(store, () => {
        this.colours = null;
        this.draw();
      }),
    ];
    this.listen();
    this.measure();
    this.follow();
  }

  /** What must be known before any width is believed. */
  notes() {
    const { overview } = this.store.data;
    if (overview.dry_run) return [el("p.ol-banner", { role: "note" }, "A dry run: nothing ran, so no width is a time. Call explain() without dry_run=True to measure.")];
    const notes = [];
    const fill = hint(this.store.data, "measure");
    if (!this.flame.laid("time").total) notes.push("No call was recorded, so no width is a time.");
    else if (!this.flame.isMeasured) notes.push([HELP.ledger.missing, fill && `To fill it in: ${fill}.`].filter(Boolean).join(" "));
    if (this.flame.laid("time").total && !this.flame.hasKernels && overview.coverage.ort_node_count) notes.push(`Operators in ONNX Runtime have no time of their own yet: ${hint(this.store.data, "profile")}.`);
    return notes.length ? [el("p.ol-soft.ol-flame-note", {}, notes.join(" "))] : [];
  }

  tools() {
    this.switches = this.metrics.map(([name, label]) => button(label, () => this.store.set({ metric: name }), { "data-metric": name }));
    const group = el("div.ol-switch", { role: "group", "aria-label": "Width" }, ...this.switches);
    roving(group, "button");
    this.find = el("input", { type: "search", placeholder: "Find  /", "aria-label": "Find frames", "data-find": true });
    this.find.addEventListener("input", () => this.search());
    this.hits = el("span.ol-soft", { role: "status" });
    this.key = el("span.ol-flame-key");
    const zoom = [button("+", () => this.zoomTo(this.view.current), { title: "Zoom to the current frame (+)", "aria-label": "Zoom to the current frame" }), button("−", () => this.zoomOut(), { title: "Zoom out (-)", "aria-label": "Zoom out" }), button("All", () => this.zoomTo(0), { title: "Show all (0)", "aria-label": "Show all" })];
    return el("div.ol-tools", {}, el("span.ol-soft", {}, "width"), group, ...zoom, this.find, this.hits, this.key);
  }

  /** Widths of what is measured. */
  measure() {
    const wanted = this.metrics.find(([name]) => name === this.store.get("metric")) ?? this.metrics[0];
    const [name, , format] = wanted;
    this.metric = name;
    Object.assign(this.view, { laid: this.flame.laid(name), format, metric: name });
    const drawn = new Set(this.flame.kind.filter((kind, frame) => this.width(frame) > 0));
    this.key.replaceChildren(...KEY.filter(([kind]) => drawn.has(kind) || (kind === "ort" && drawn.has("session"))).map(([kind, words]) => el("span", {}, el(`span.ol-swatch.ol-flame-${kind}`), words || this.store.data.overview.foreign)));
    for (const element of this.switches) element.setAttribute("aria-pressed", String(element.dataset.metric === name));
    this.canvas.style.height = `${(this.view.laid.most + 1) * ROW}px`;
    if (!(this.width(this.zoomed) > 0)) this.zoomed = 0;
    this.zoomTo(this.zoomed);
    this.search();
    this.say(this.view.current);
    this.list();
  }

  /** What takes most, as a list: the twin of the picture. Parts of one name are one row. */
  list() {
    const { laid, format } = this.view;
    const [values, frames] = [new Map(), new Map()];
    for (let frame = 1; frame < this.flame.count; frame++) {
      if (!this.isLeaf(frame) || !(laid.value[frame] > 0)) continue;
      const key = `${this.name(frame)}\n${this.flame.kind[frame]}`;
      values.set(key, (values.get(key) ?? 0) + laid.value[frame]);
      if (!frames.has(key)) frames.set(key, []);
      frames.get(key).push(frame);
    }
    const ranked = [...values].sort((a, b) => b[1] - a[1]).slice(0, LONGEST);
    const most = ranked[0]?.[1] || 1;
    const rows = ranked.map(([key, value]) => this.row(frames.get(key), value, value / most, format));
    this.longest.replaceChildren(el("h3", {}, `What takes most: ${METRICS.find(([name]) => name === this.metric)[1]}`), el("ol", {}, ...rows));
    roving(this.longest, ".ol-link");
  }

  row(frames, value, share, format) {
    const [frame] = frames.sort((a, b) => this.view.laid.value[b] - this.view.laid.value[a]);
    const kind = this.flame.kind[frame];
    const bar = el("span.ol-longest-bar", { "aria-hidden": "true" }, el(`span.ol-flame-${kind === "session" ? "ort" : kind}`));
    bar.firstChild.style.width = `${Math.max(1, share * 100)}%`;
    const times = frames.length > 1 ? ` in ${counted(frames.length, ["bind", "output", "residual", "foreign"].includes(kind) ? "graph" : "frame")}` : "";
    return el("li", {}, bar, el("b", {}, format(value)), button(this.name(frame) + times, () => this.choose(frame), { class: "ol-link" }), el("span.ol-soft", {}, KIND_WORDS[kind]));
  }

  /** Frames that are not sums of others: operators, slabs, phases. */
  isLeaf = (frame) => !["call", "graph", "module", "kernel"].includes(this.flame.kind[frame]);

  name = (frame) => this.flame.name(frame, this.metric);

  width = (frame) => this.view.laid.to[frame] - this.view.laid.from[frame];

  paint() {
    if (!this.canvas.clientWidth) return;
    performance.mark("ortlens-flame-start");
    this.view.focused = this.canvas.getRootNode().activeElement === this.canvas;
    this.canvas.dataset.drawn = drawFlame(this.canvas, this.flame, this.view, (this.colours ??= palette(this.holder, COLOURS)));
    performance.measure("ortlens-flame-draw", "ortlens-flame-start");
  }

  zoomTo(frame) {
    if (!(this.width(frame) > 0)) return;
    this.zoomed = frame;
    Object.assign(this.view, { from: this.view.laid.from[frame], to: this.view.laid.to[frame] });
    const path = [];
    for (let at = frame; frame > 0 && at >= 0; at = this.flame.parent[at]) path.unshift(at);
    this.crumbs.hidden = frame === 0;
    this.crumbs.replaceChildren(...path.flatMap((at) => [at === path[0] ? "" : " › ", button(this.name(at), () => this.zoomTo(at), { class: "ol-link", "aria-current": at === frame ? "true" : null })]));
    this.draw();
  }

  zoomOut() {
    this.zoomTo(Math.max(0, this.flame.parent[this.zoomed]));
  }

  /** Around a place of the view, by wheel. */
  zoomAt(part, factor) {
    const { from, to } = this.view;
    const span = Math.min(1, Math.max(LEAST, (to - from) * factor));
    const at = from + part * (to - from);
    const start = Math.max(0, Math.min(1 - span, at - part * span));
    Object.assign(this.view, { from: start, to: start + span });
    this.draw();
  }

  pan(part) {
    const span = this.view.to - this.view.from;
    const from = Math.max(0, Math.min(1 - span, this.view.from + part * span));
    Object.assign(this.view, { from, to: from + span });
    this.draw();
  }

  frameAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const at = this.view.from + ((event.clientX - box.left) / box.width) * (this.view.to - this.view.from);
    const row = Math.floor((event.clientY - box.top) / ROW);
    for (let frame = 0; frame < this.flame.count; ) {
      const { from, to } = this.view.laid;
      if (at < from[frame] || at >= to[frame]) frame = this.flame.end[frame];
      else if (this.flame.depth[frame] === row) return frame;
      else frame++;
    }
    return -1;
  }

  listen() {
    let drag = null;
    const { canvas } = this;
    const forGraph = (event) => event.ctrlKey || event.metaKey || canvas.getRootNode().activeElement === canvas;
    canvas.addEventListener("wheel", (event) => {
      if (!forGraph(event)) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / box.width);
      else this.zoomAt((event.clientX - box.left) / box.width, Math.exp(event.deltaY * 0.0025));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => (drag = { x: event.clientX, moved: false }));
    canvas.addEventListener("pointermove", (event) => {
      if (drag && (drag.moved || Math.abs(event.clientX - drag.x) > 4)) {
        if (!drag.moved) canvas.setPointerCapture(event.pointerId);
        drag.moved = true;
        this.pan((drag.x - event.clientX) / canvas.clientWidth);
        drag.x = event.clientX;
      } else if (!drag) this.say(this.frameAt(event));
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => setTimeout(() => (drag = null)));
    canvas.addEventListener("click", (event) => !drag?.moved && this.choose(this.frameAt(event)));
    canvas.addEventListener("dblclick", (event) => this.zoomTo(this.frameAt(event)));
    canvas.addEventListener("pointerleave", () => this.say(this.view.current));
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => this.draw());
  }

  choose(frame) {
    if (frame < 0) return;
    this.view.current = frame;
    this.say(frame);
    const id = this.flame.id(frame);
    if (id && this.store.identity.has(id)) this.store.set({ selected: id });
    this.draw();
  }

  onKey(event) {
    const acts = {
      ArrowDown: () => this.go(this.childOf(this.view.current)),
      ArrowUp: () => this.go(this.flame.parent[this.view.current]),
      ArrowRight: () => this.go(this.beside(1)),
      ArrowLeft: () => this.go(this.beside(-1)),
      Enter: () => this.choose(this.view.current),
      "+": () => this.zoomTo(this.view.current),
      "=": () => this.zoomTo(this.view.current),
      "-": () => this.zoomOut(),
      0: () => this.zoomTo(0),
    };
    if (event.key === "Escape" && this.zoomed > 0 && this.store.get("selected") === null) acts.Escape = () => this.zoomOut();
    acted(event, acts);
  }

  /** The widest of what is inside. */
  childOf(frame) {
    let best = -1;
    for (let child = frame + 1; child < this.flame.end[frame]; child = this.flame.end[child]) if (this.width(child) > 0 && (best < 0 || this.width(child) > this.width(best))) best = child;
    return best;
  }

  /** The next frame of the row. */
  beside(step) {
    const { current } = this.view;
    for (let at = current + step; at >= 0 && at < this.flame.count; at += step) if (this.flame.depth[at] === this.flame.depth[current] && this.width(at) > 0) return at;
    return -1;
  }

  go(frame) {
    if (frame < 0) return;
    this.view.current = frame;
    this.reveal(frame);
    this.say(frame);
    this.draw();
  }

  reveal(frame) {
    const { from, to } = this.view.laid;
    const pixels = (this.width(frame) / (this.view.to - this.view.from)) * this.canvas.clientWidth;
    if (from[frame] >= this.view.to || to[frame] <= this.view.from || pixels < SPECK) this.zoomTo(this.flame.parent[frame]);
    this.holder.scrollTop = Math.max(Math.min(this.holder.scrollTop, this.flame.depth[frame] * ROW), (this.flame.depth[frame] + 1) * ROW - this.holder.clientHeight);
  }

  say(frame) {
    if (frame < 0 || frame >= this.flame.count) return;
    const { laid, format } = this.view;
    const kind = this.flame.kind[frame];
    const file = ["ort", "torch", "kernel", "break"].includes(kind) ? this.flame.get(frame, "file") : null;
    const what = kind === "call" ? "" : `, ${kind === "module" || kind === "graph" ? `${KIND_WORDS[kind]} of ${counted(this.inside(frame), "operator")}` : KIND_WORDS[kind]}`;
    this.said.textContent = `${this.name(frame)}${what}: ${format(laid.value[frame])}${frame ? `, ${percent(this.width(frame))} of the whole` : ""}${file && kind !== "break" ? `, ${place(file, this.flame.get(frame, "line"))}` : ""}${kind === "break" ? breakWords((name) => this.flame.get(frame, name)) : ""}`;
  }

  inside(frame) {
    let found = 0;
    for (let at = frame + 1; at < this.flame.end[frame]; at++) if (this.flame.kind[at] === "ort" || this.flame.kind[at] === "torch") found++;
    return found;
  }

  /** What is found stands out; what is inside of it counts once. */
  search() {
    const wanted = this.find.value.trim().toLowerCase();
    this.view.found = wanted ? new Set() : null;
    let [hits, sum, width] = [0, 0, 0];
    for (let frame = 0, covered = 0; wanted && frame < this.flame.count; frame++) {
      if (!(this.width(frame) > 0) || (frame && !this.matches(frame, wanted))) continue;
      if (!frame) continue;
      hits++;
      for (let at = frame; at < this.flame.end[frame]; at++) this.view.found.add(at);
      if (frame < covered) continue;
      covered = this.flame.end[frame];
      sum += this.view.laid.value[frame];
      width += this.width(frame);
    }
    this.hits.textContent = wanted ? (hits ? `${counted(hits, "frame")}: ${this.view.format(sum)}, ${percent(width)}` : "no frame") : "";
    this.draw();
  }

  matches(frame, wanted) {
    if (this.name(frame).toLowerCase().includes(wanted)) return true;
    return ["ort", "torch", "kernel"].includes(this.flame.kind[frame]) && ["source", "module", "node"].some((column) => String(this.flame.get(frame, column) ?? "").toLowerCase().includes(wanted));
  }

  /** What is selected elsewhere is outlined here. */
  follow() {
    const chain = this.store.get("chain");
    const precise = chain && chain.kind !== "graph" ? ["nodes", "kernels", "breaks"] : [];
    const wanted = new Set(chain ? [chain.id, ...precise.flatMap((step) => chain[step].map((found) => found.id))] : []);
    this.view.linked = new Set();
    if (wanted.size) for (let frame = 0; frame < this.flame.count; frame++) if (wanted.has(this.flame.id(frame))) this.view.linked.add(frame);
    const wide = [...this.view.linked].filter((frame) => this.width(frame) > 0);
    this.canvas.dataset.linked = wide.length;
    const own = wide.find((frame) => this.flame.id(frame) === chain.id);
    if (own !== undefined) this.go(own);
    else if (wide.length) {
      this.said.textContent = `${count(wide.length)} frames belong to what is selected`;
      if (!wide.includes(this.view.current)) this.reveal(wide[0]);
    } else this.say(this.view.current);
    this.draw();
  }

  destroy() {
    this.draw.cancel();
    together(this.cleanups)();
  }
}
