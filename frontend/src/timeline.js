// The timeline of calls: where a call spends its time, and what lies between the calls.
import { callAt, callsOf, firstAfter, sliceAt } from "./calls.js";
import { callTimesFigure } from "./calltimes.js";
import { onThemeChange, palette } from "./canvas.js";
import { acted, button, el, onResize, perFrame, together } from "./dom.js";
import { count, counted, time } from "./format.js";
import { createGaps, typicalCalls } from "./gaps.js";
import { emptyState, helpLine } from "./help.js";
import { COLOURS, drawTimeline, LABEL, LANE, TOP } from "./timelinedraw.js";

/**
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @returns {() => void}
 */
export function mountTimeline(root, store) {
  root.append(helpLine("timeline"));
  if (!store.data.table("runs").rows) {
    root.append(emptyState("timeline", store.data));
    return () => {};
  }
  const timeline = new Timeline(root, store);
  return () => timeline.destroy();
}

const MOST_GAPS = 2000; // that are looked through for what is selected
const READABLE = 3; // pixels of a usual call below which an opening view would show specks

class Timeline {
  constructor(root, store) {
    this.store = store;
    this.gap = createGaps(store);
    this.calls = callsOf(store.data, true);
    this.view = { from: 0, to: this.calls.end, lane: 0, row: -1, slice: null, between: null, linked: new Set(), dim: null, focused: false };
    this.view.lane = this.laneOfCalls();
    this.draw = perFrame(() => this.paint());
    this.canvas = el("canvas.ol-canvas", { tabindex: "0", role: "application", "aria-label": "Timeline of calls. Left and right move between calls, up and down between lanes of graphs, calls, kernels and sessions, g to the next gap, plus and minus zoom, 0 shows everything, t shows a typical call, Enter selects." });
    this.holder = el("div.ol-scroll", {}, this.canvas);
    this.said = el("p.ol-status", { role: "status" });
    this.times = el("div");
    root.append(this.tools(), this.holder, this.said, this.times);
    this.size();
    this.open();
    this.listen();
    this.cleanups = [
      store.subscribe(["chain"], () => this.follow()),
      onResize(this.holder, () => this.draw()),
      onThemeChange(store, () => this.recolour()),
    ];
    this.follow();
  }

  tools() {
    const pauses = el("input", { type: "checkbox" });
    pauses.checked = true;
    pauses.addEventListener("change", () => {
      this.calls = callsOf(this.store.data, pauses.checked);
      this.fit();
    });
    const key = ["bind", "run", "output"].map((part) => el("span", {}, el(`span.ol-swatch.ol-fill-${part}`), part));
    const gap = el("span", {}, el("span.ol-swatch.ol-hatch"), "PyTorch and Python");
    const zoom = (label, words, act) => button(label, act, { title: words, "aria-label": words });
    const kinds = new Set(this.calls.lanes.map((lane) => lane.kind));
    const profiled = kinds.has("kernel") || kinds.has("memory");
    const marked = profiled ? el("span", { title: "Means and peaks of a profile, not of the calls that are drawn" }, el("span.ol-swatch.ol-flame-kernel"), "≈ from a profile of other calls") : null;
    this.figures = el("span.ol-soft");
    return el(
      "div.ol-tools",
      {},
      ...key,
      gap,
      marked,
      zoom("+", "Zoom in (+)", () => this.zoom(0.5)),
      zoom("−", "Zoom out (-)", () => this.zoom(2)),
      zoom("All", "Show all calls (0)", () => this.fit()),
      typicalCalls(this.calls) ? zoom("Typical", "Show a call of typical duration (t)", () => this.typical()) : null,
      el("label", {}, pauses, " shorten long pauses"),
      this.figures,
    );
  }

  size() {
    this.canvas.dataset.lanes = JSON.stringify(this.calls.lanes.map((lane) => lane.kind ?? lane.id ?? "calls")); // a drawing tells a test nothing
    this.canvas.style.height = `${TOP + this.calls.lanes.length * LANE + 4}px`;
  }

  /** All calls where they are more than specks, else a typical one. */
  open() {
    const usual = Float64Array.from(this.calls.total).sort()[this.calls.rows >> 1];
    const width = (this.holder.clientWidth || 900) - LABEL;
    if ((usual / this.calls.end) * width < READABLE) this.typical();
  }

  typical() {
    const view = typicalCalls(this.calls);
    if (view) Object.assign(this.view, view);
    this.draw();
  }

  fit() {
    Object.assign(this.view, { from: 0, to: this.calls.end });
    this.draw();
  }

  paint() {
    if (!this.canvas.clientWidth) return;
    Object.assign(this.view, { top: this.holder.scrollTop, bottom: this.holder.scrollTop + this.holder.clientHeight });
    this.view.focused = this.canvas.getRootNode().activeElement === this.canvas;
    drawTimeline(this.canvas, this.calls, { ...this.view, gap: this.gap }, (this.colours ??= palette(this.holder, COLOURS)));
    this.figures.textContent = this.inView();
  }

  inView() {
    const { start, total } = this.calls;
    const after = firstAfter(start, this.view.from);
    const first = after && start[after - 1] + total[after - 1] > this.view.from ? after - 1 : after; // one may reach into the view
    const last = firstAfter(start, this.view.to);
    let busy = 0;
    for (let row = first; row < last; row++) busy += total[row];
    const left = this.calls.lanesLeft ? `; ${counted(this.calls.lanesLeft, "more session")} without a lane` : "";
    const of = last - first < this.calls.rows ? ` of ${count(this.calls.rows)}` : "";
    const own = this.view.dim ? `; ${count(this.view.dim.size)} selected` : "";
    return `${count(last - first)}${of} ${this.calls.rows === 1 ? "call" : "calls"} in view: ${time(busy)} in calls, ${time(Math.max(0, this.view.to - this.view.from - busy))} between${own}${left}`;
  }

  /** What is selected elsewhere stands out here; the view moves only when nothing of it is to be seen. */
  follow() {
    const chain = this.store.get("chain");
    const rows = chain ? this.rowsOf(chain) : [];
    this.view.dim = rows.length ? new Set(rows) : null;
    this.view.row = chain?.kind === "run" ? Number(chain.id.slice(4)) : -1;
    if (this.view.row >= 0 && !this.calls.lanes[this.view.lane].rows.includes(this.view.row)) this.view.lane = this.laneOfCalls();
    this.view.slice = null;
    this.view.linked = new Set(chain ? [chain.id, ...chain.kernels.map((found) => found.id)] : []);
    this.showTimes(chain);
    this.view.between = chain && !rows.length ? this.followGap(chain) : null;
    const { start } = this.calls;
    const own = this.view.row >= 0 ? [this.view.row] : rows;
    const shown = own.some((row) => start[row] >= this.view.from && start[row] <= this.view.to);
    if (own.length && !shown) this.centre(this.middle(own[0]));
    if (this.view.row >= 0 || this.view.between) this.showLane(this.view.lane);
    else if (rows.length) this.showLane(this.calls.lanes.findIndex((lane) => lane.id && lane.rows.includes(rows[0])));
    this.draw();
  }

  /** The lane of all calls that has the marked one; the first of all calls, where the keyboard begins. */
  laneOfCalls() {
    const { lanes } = this.calls;
    const found = lanes.findIndex((lane) => lane.whole && lane.rows.includes(this.view.row));
    return Math.max(0, found >= 0 ? found : lanes.findIndex((lane) => lane.whole));
  }

  /** Of the selected session, else of the one that takes the most time. */
  showTimes(chain) {
    const lanes = this.calls.lanes.filter((lane) => lane.id);
    const own = new Set(chain ? [chain.id, ...chain.sessions.map((found) => found.id)] : []);
    const costliest = (some) => some.reduce((best, lane) => (best && best.cost >= lane.cost ? best : lane), null);
    const lane = costliest(lanes.filter(({ id }) => own.has(id))) ?? costliest(lanes);
    if (!lane || lane === this.timed) return;
    this.timed = lane;
    this.times.replaceChildren(callTimesFigure(this.store.data, this.calls, lane));
  }

  /** Rows around the gap that what is selected explains: in view, or else the first of all. */
  followGap(chain) {
    const wanted = new Set([chain.id, ...chain.nodes.map((found) => found.id)]);
    const gap = this.gapsOf(wanted, this.view.from, this.view.to) ?? this.gapsOf(wanted, -Infinity, Infinity);
    if (!gap) return null;
    this.said.textContent = gap.words;
    const at = this.calls.start[gap.rows[1]];
    if (at < this.view.from || at > this.view.to) this.centre(at);
    return gap.rows;
  }

  gapsOf(wanted, from, to) {
    for (const lane of this.calls.lanes.filter((candidate) => candidate.whole)) {
      const first = firstAfter(lane.rows, from, (index) => this.calls.start[lane.rows[index]]);
      for (let at = Math.max(1, first); at < Math.min(lane.rows.length, first + MOST_GAPS) && this.calls.start[lane.rows[at]] <= to; at++) {
        if (wanted.has(this.gap(lane.rows[at - 1], lane.rows[at]).id)) return this.gapBefore(lane, at);
      }
    }
    return null;
  }

  rowsOf(chain) {
    if (chain.kind === "run") return this.rowsOfSession(Number(chain.id.slice(4)));
    const sessions = new Set(chain.sessions.map((found) => found.id));
    return this.calls.lanes.filter((lane) => sessions.has(lane.id) || lane.id === chain.id).flatMap((lane) => lane.rows);
  }

  rowsOfSession(row) {
    const lane = this.calls.lanes.find((candidate) => candidate.id && candidate.rows.includes(row));
    return lane ? lane.rows : [row];
  }

  middle = (row) => this.calls.start[row] + this.calls.total[row] / 2;

  centre(at) {
    this.pan(at - (this.view.from + this.view.to) / 2);
  }

  pan(by) {
    const span = this.view.to - this.view.from;
    const from = Math.max(-span * 0.1, Math.min(this.calls.end - span * 0.9, this.view.from + by));
    Object.assign(this.view, { from, to: from + span });
    this.draw();
  }

  zoom(factor, around = (this.view.from + this.view.to) / 2) {
    const span = Math.min(this.calls.end * 1.2, Math.max(200, (this.view.to - this.view.from) * factor));
    const share = (around - this.view.from) / (this.view.to - this.view.from);
    Object.assign(this.view, { from: around - share * span, to: around + (1 - share) * span });
    this.pan(0);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = (box.width - LABEL) / (this.view.to - this.view.from);
    const x = event.clientX - box.left;
    return { place: this.view.from + (x - LABEL) / scale, lane: Math.floor((event.clientY - box.top - TOP) / LANE), label: x < LABEL, scale };
  }

  found(event) {
    const { place, lane, label, scale } = this.at(event);
    const hit = this.calls.lanes[lane];
    if (hit?.slices) return { lane, hit, label, place, row: -1, slice: label ? null : sliceAt(this.calls, hit, place, 1 / scale) };
    return { lane, hit, label, place, row: hit && !label ? callAt(this.calls, hit, place, 2 / scale) : -1, slice: null };
  }

  listen() {
    let drag = null;
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && this.canvas.getRootNode().activeElement !== this.canvas) return; // it scrolls the page
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(((event.deltaX || event.deltaY) / this.canvas.clientWidth) * (this.view.to - this.view.from));
      else this.zoom(1.0015 ** event.deltaY, this.at(event).place);
    }, { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, moved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!drag) return this.say(this.found(event));
      if (Math.abs(event.clientX - drag.x) > 3) drag.moved = true;
      if (!drag.moved) return;
      this.pan(((drag.x - event.clientX) / (this.canvas.clientWidth - LABEL)) * (this.view.to - this.view.from));
      drag.x = event.clientX;
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.choose(this.found(event));
      drag = null;
    });
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    this.holder.addEventListener("scroll", () => this.draw(), { passive: true });
    for (const name of ["focus", "blur"]) this.canvas.addEventListener(name, () => this.draw());
  }

  choose({ lane, hit, label, row, place, slice }) {
    if (!hit) return;
    this.view.lane = lane;
    if (hit.slices) return this.chooseSlice(slice);
    const gap = hit.whole && !label && row < 0 ? this.gapAt(hit, place) : null;
    const id = row >= 0 ? `run:${row}` : label ? hit.id : (gap?.id ?? null);
    if (id) this.store.set({ selected: id });
    this.view.between = gap?.id ? gap.rows : null;
    this.draw();
  }

  chooseSlice(slice) {
    if (!slice) return;
    this.store.set({ selected: slice.id });
    Object.assign(this.view, { row: slice.rows[0], slice, between: null });
    this.said.textContent = slice.words;
    this.draw();
  }

  say({ hit, row, label, place, slice }) {
    const gap = hit?.whole && !label && row < 0 ? this.gapAt(hit, place) : null;
    if (slice) this.said.textContent = slice.words;
    else if (row >= 0) this.said.textContent = this.words(row);
    else if (gap) this.said.textContent = gap.words;
    else if (hit && !label) this.said.textContent = `${time(this.calls.clock(place))} after the first call`;
    this.canvas.style.cursor = slice || row >= 0 || gap?.id || (label && hit?.id) ? "pointer" : "grab";
  }

  /** What lies between the calls around a place. */
  gapAt(lane, place) {
    const at = firstAfter(lane.rows, place, (index) => this.calls.start[lane.rows[index]]);
    return this.gapBefore(lane, at);
  }

  gapBefore({ rows }, at) {
    if (at < 1 || at >= rows.length) return null;
    const runs = this.store.data.table("runs");
    const [before, after] = [rows[at - 1], rows[at]];
    const ns = runs.get(after, "start_ns") - runs.get(before, "start_ns") - this.calls.total[before];
    const found = this.gap(before, after);
    return { ...found, rows: [before, after], words: `${time(Math.max(0, ns))} between ${this.name(before)} and ${this.name(after)}: ${found.words}` };
  }

  name(row) {
    const runs = this.store.data.table("runs");
    return runs.get(row, "session_id") ?? runs.get(row, "graph_id");
  }

  /** The gap after the marked call, or the next one that anything is known of. */
  nextGap() {
    const lane = this.calls.lanes.find((candidate) => candidate.whole && (this.view.row < 0 || candidate.rows.includes(this.view.row)));
    if (!lane) return;
    const { rows } = lane;
    let at = this.view.row < 0 ? firstAfter(rows, this.view.from, (index) => this.calls.start[rows[index]]) : rows.indexOf(this.view.row) + 1;
    while (at < rows.length && !this.gapBefore(lane, Math.max(1, at))?.id) at += 1;
    const gap = this.gapBefore(lane, Math.max(1, at));
    if (!gap) return;
    this.store.set({ selected: gap.id });
    this.view.row = gap.rows[1];
    this.view.slice = null;
    this.view.between = gap.rows;
    this.reveal(this.view.row);
    this.said.textContent = gap.words;
    this.draw();
  }

  reveal(row) {
    const { start, total } = this.calls;
    if (start[row] < this.view.from || start[row] + total[row] > this.view.to) this.centre(this.middle(row));
  }

  words(row) {
    const { bind, run, output, total, clock, start } = this.calls;
    const runs = this.store.data.table("runs");
    const split = total[row] === bind[row] + run[row] + output[row] ? `: bind ${time(bind[row])}, run ${time(run[row])}, output ${time(output[row])}` : "";
    return `Call ${count(runs.get(row, "call") ?? row)} of ${this.name(row)}, ${time(clock(start[row]))} after the first call, took ${time(total[row])}${split}`;
  }

  onKey(event) {
    const acts = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.fit(), t: () => this.typical(), g: () => this.nextGap(), Home: () => this.step(-Infinity), End: () => this.step(Infinity),
      ArrowRight: () => (event.shiftKey ? this.pan((this.view.to - this.view.from) / 8) : this.step(1)),
      ArrowLeft: () => (event.shiftKey ? this.pan((this.view.from - this.view.to) / 8) : this.step(-1)),
      ArrowDown: () => this.toLane(1), ArrowUp: () => this.toLane(-1),
      Enter: () => this.choose({ lane: this.view.lane, hit: this.calls.lanes[this.view.lane], label: this.view.row < 0, row: this.view.row, slice: this.view.slice }),
    };
    acted(event, acts);
  }

  toLane(by) {
    this.view.lane = Math.max(0, Math.min(this.calls.lanes.length - 1, this.view.lane + by));
    this.showLane(this.view.lane);
    this.step(0);
  }

  showLane(at) {
    const top = TOP + at * LANE;
    this.holder.scrollTop = Math.min(Math.max(this.holder.scrollTop, top + LANE - this.holder.clientHeight), top - TOP);
  }

  /** To the next call of the lane, or to the one nearest to where the view is. */
  step(by) {
    const lane = this.calls.lanes[this.view.lane];
    if (lane.slices) return this.stepSlice(lane, by);
    const { rows } = lane;
    this.view.slice = null;
    const here = rows.indexOf(this.view.row);
    const near = Math.max(0, firstAfter(rows, this.view.from, (index) => this.calls.start[rows[index]]) - 1);
    const to = Math.max(0, Math.min(rows.length - 1, here < 0 ? near : here + by));
    this.view.row = rows[to];
    this.view.between = null;
    this.reveal(rows[to]);
    this.said.textContent = this.words(rows[to]);
    this.draw();
  }

  /** Likewise among slices; the last of one call is followed by the first of the next. */
  stepSlice({ rows, slices }, by) {
    const { start } = this.calls;
    const where = this.view.row < 0 ? this.view.from : start[this.view.row];
    let at = Math.max(0, firstAfter(rows, where, (index) => start[rows[index]]) - 1);
    if (!Number.isFinite(by)) at = by < 0 ? 0 : rows.length - 1;
    let own = slices(rows[at]);
    const here = own.findIndex(({ from }) => from === this.view.slice?.from);
    let place = here < 0 ? Math.max(0, by === Infinity ? by : 0) : here + by;
    if (place >= own.length && at + 1 < rows.length) [own, place] = [slices(rows[at + 1]), 0];
    else if (place < 0 && at > 0) [own, place] = [slices(rows[at - 1]), Infinity];
    const slice = own[Math.max(0, Math.min(own.length - 1, place))];
    Object.assign(this.view, { row: slice.rows[0], slice, between: null });
    this.reveal(slice.rows[0]);
    this.said.textContent = slice.words;
    this.draw();
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
