// The roofline: how many operations per second each kernel reached, against the machine's measured peaks.
import { button, el, onResize, perFrame, roving, together } from "./dom.js";
import { clipped, counted, percent, real, time, visible } from "./format.js";
import { svg, svgText } from "./graph/svg.js";
import { emptyState, helpLine } from "./help.js";

const HEIGHT = 300;
const MARGIN = { left: 62, right: 14, top: 22, bottom: 34 };
const DASHES = [null, "7 4", "2 3", "7 3 2 3"]; // of several roofs, in their order
const LISTED = 12;
const RADII = [4, 13]; // of the kernel with the least and with the most time, in pixels

/**
 * @typedef {object} Point A kernel.
 * @property {string} id @property {string} name @property {number} ns @property {number|null} x FLOP per byte. @property {number|null} y FLOP per second.
 * @property {string} words What it reached. @property {number} lost Nanoseconds above its limit. @property {string} roof Key of its roof.
 *
 * @param {import("./data.js").Data} data
 * @returns {{points: Point[], roofs: {key: string, words: string, flops: number, bytes: number}[]}} Kernels that lose most first.
 */
export function rooflineOf(data) {
  const table = data.table("roofline");
  const roofs = new Map();
  const points = Array.from({ length: table.rows }, (_, row) => {
    const get = (column) => table.get(row, column);
    const [dtype, threads, flops, bytes] = ["dtype", "threads", "peak_flops_per_s", "peak_bytes_per_s"].map(get);
    const roof = `${dtype} ${threads}`;
    if (flops && bytes && !roofs.has(roof)) roofs.set(roof, { key: roof, words: `${dtype}, ${threads ? counted(threads, "thread") : "GPU"}`, flops, bytes });
    const [ns, reached] = [get("mean_ns"), get("reached")];
    const [peak, over] = get("bound") === "compute" ? ["compute peak", "at the compute peak"] : ["memory bandwidth", "faster than memory: its data stay in caches"];
    const known = get("flops") ? `${rate(get("flops_per_s"))}, ${get("intensity") ? `${real(get("intensity"))} FLOP per byte` : "bytes not known"}` : "operations not counted";
    return {
      id: `kernel:${get("session_id")}/${get("kernel")}`,
      name: [get("op_type"), get("node")].filter(Boolean).map((part) => clipped(part, 40)).join(" from "),
      ns,
      x: get("intensity"),
      y: get("flops_per_s"),
      lost: ns * Math.max(0, 1 - reached),
      words: `${reached < 1 ? `${percent(reached)} of the ${peak}` : over}; ${known}`,
      roof,
    };
  });
  return { points: points.sort((a, b) => b.lost - a.lost), roofs: [...roofs.values()] };
}

const rate = (perSecond) => `${real(perSecond / 1e9)} GFLOP/s`;

/** @returns {number[]} Powers of ten within a range, and its twos and fives where there are few. */
export function ticks(low, high) {
  const found = [];
  const few = Math.log10(high / low) < 2.5;
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of few ? [1, 2, 5] : [1]) found.push(factor * 10 ** power);
  }
  return found.filter((value) => value >= low && value <= high);
}

/**
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @returns {() => void}
 */
export function mountRoofline(root, store) {
  root.append(helpLine("roofline"));
  const { points, roofs } = rooflineOf(store.data);
  if (!points.length) {
    root.append(emptyState(store.data.table("kernels").rows ? "profiled" : "roofline", store.data));
    return () => {};
  }
  const placed = points.filter((point) => point.x && point.y && roofs.some((roof) => roof.key === point.roof));
  const said = el("p.ol-status", { role: "status" });
  const say = (point) => (said.textContent = point ? `${point.name}: ${time(point.ns)} per run, ${point.words}` : unplaced(points.length - placed.length));
  const choose = (point) => store.set({ selected: point.id });
  const holder = el("div.ol-roofline");
  const list = rows(points, choose, say);
  const mark = () => {
    const linked = chosen(store);
    for (const row of list.querySelectorAll("li")) row.classList.toggle("ol-linked", linked.has(row.dataset.id));
    for (const dot of holder.querySelectorAll(".ol-roof-dot")) dot.classList.toggle("ol-roof-chosen", linked.has(dot.dataset.id));
    (holder.querySelector(".ol-roof-chosen") ?? list.querySelector(".ol-linked"))?.scrollIntoView({ block: "nearest" });
  };
  const draw = perFrame(() => {
    if (!holder.clientWidth) return;
    holder.replaceChildren(...chart(holder.clientWidth, placed, roofs, { choose, say }));
    mark();
  });
  root.append(...(placed.length ? [holder] : []), said, list);
  say(null);
  mark();
  draw();
  return together([store.subscribe(["chain"], mark), onResize(holder, draw), () => draw.cancel()]);
}

const chosen = (store) => new Set([store.get("selected"), ...(store.get("chain")?.kernels ?? []).map((found) => found.id)]);

const unplaced = (number) => (number ? `${counted(number, "kernel")} without counted operations ${number === 1 ? "is" : "are"} in the list only.` : "");

/** The twin of the picture for keyboards and screen readers, with the kernels that have no place in it. */
function rows(points, choose, say) {
  const most = points[0].lost;
  const items = points.slice(0, LISTED).filter((point) => point.lost > 0).map((point) => {
    const bar = el("span.ol-longest-bar", { "aria-hidden": "true" }, el("span.ol-flame-kernel"));
    bar.firstChild.style.width = `${Math.max(1, (100 * point.lost) / most)}%`;
    const name = button(point.name, () => choose(point), { class: "ol-link", "data-id": point.id });
    name.addEventListener("focus", () => say(point));
    return el("li", { "data-id": point.id }, bar, el("b", {}, time(point.lost)), name, el("span.ol-soft", {}, `of ${time(point.ns)} per run; ${point.words}`));
  });
  const more = points.length - items.length;
  const list = el("ol", {}, ...items);
  roving(list, ".ol-link");
  const rest = items.length ? `${counted(more, "more kernel")}, at the limit or nearer to it, in the table roofline` : "Every kernel is as fast as the machine's peaks.";
  return el("div.ol-longest", {}, el("h3", {}, "Time above the limit of the machine"), list, more > 0 ? el("p.ol-soft", {}, rest) : null);
}

function chart(width, points, roofs, { choose, say }) {
  const peaks = roofs.filter((roof) => points.some((point) => point.roof === roof.key));
  const ridges = peaks.map((roof) => roof.flops / roof.bytes);
  const [left, right] = [Math.min(...points.map((point) => point.x), ...ridges) / 2, Math.max(...points.map((point) => point.x), ...ridges) * 2];
  const [low, high] = [Math.min(...points.map((point) => point.y)) / 2, Math.max(...peaks.map((roof) => roof.flops), ...points.map((point) => point.y)) * 1.6];
  const scale = (value, from, to, start, end) => start + ((end - start) * Math.log(value / from)) / Math.log(to / from);
  const x = (value) => scale(value, left, right, MARGIN.left, width - MARGIN.right);
  const y = (value) => scale(value, low, high, HEIGHT - MARGIN.bottom, MARGIN.top);
  const words = `${counted(points.length, "kernel")} by floating-point operations per byte and per second, under ${peaks.map((roof) => `${rate(roof.flops)} and ${real(roof.bytes / 1e9)} GB/s (${roof.words})`).join("; ")}. The list has the same in words.`;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": words });
  for (const value of ticks(left, right)) drawn.append(svg("line", { class: "ol-roof-grid", x1: x(value), x2: x(value), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }), svgText(real(value), x(value), HEIGHT - MARGIN.bottom + 14, { "text-anchor": "middle" }));
  for (const value of ticks(low, high)) drawn.append(svg("line", { class: "ol-roof-grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }), svgText(real(value / 1e9), MARGIN.left - 6, y(value) + 4, { "text-anchor": "end" }));
  drawn.append(svgText("FLOP per byte", width - MARGIN.right, HEIGHT - 4, { "text-anchor": "end" }), svgText("GFLOP/s", 4, 11));
  peaks.forEach((roof, at) => drawn.append(roofLine(roof, at, { left, right, low }, x, y)));
  const most = Math.max(...points.map((point) => point.ns));
  for (const point of [...points].sort((a, b) => b.ns - a.ns)) {
    const radius = RADII[0] + (RADII[1] - RADII[0]) * Math.sqrt(point.ns / most);
    const dot = svg("circle", { class: "ol-roof-dot", cx: x(point.x), cy: y(point.y), r: radius, "data-id": point.id });
    const title = svg("title");
    title.textContent = `${visible(point.name)}: ${time(point.ns)} per run, ${point.words}`;
    dot.append(title);
    dot.addEventListener("click", () => choose(point));
    dot.addEventListener("pointerenter", () => say(point));
    drawn.append(dot);
  }
  return [drawn, el("ul.ol-key", { "aria-label": "Peaks of the machine" }, ...peaks.map(keyOf))];
}

/** The slope of memory up to the ridge, and the flat peak behind it. */
function roofLine(roof, at, { left, right, low }, x, y) {
  const ridge = roof.flops / roof.bytes;
  const start = Math.max(left, low / roof.bytes);
  const path = `M${x(start)},${y(start * roof.bytes)} L${x(ridge)},${y(roof.flops)} L${x(right)},${y(roof.flops)}`;
  return svg("path", { class: "ol-roof-line", d: path, ...dashed(at) });
}

/** What a line is, below the picture: beside the line, dots and ticks would lie over the words. */
function keyOf(roof, at) {
  const line = svg("svg", { width: 26, height: 8, "aria-hidden": "true" });
  line.append(svg("path", { class: "ol-roof-line", d: "M0,4 L26,4", ...dashed(at) }));
  return el("li", {}, line, ` ${rate(roof.flops)}, ${real(roof.bytes / 1e9)} GB/s (${roof.words})`);
}

const dashed = (at) => (DASHES[at % DASHES.length] ? { "stroke-dasharray": DASHES[at % DASHES.length] } : {});
