// A strip per graph: its partitions, and what PyTorch runs between them, in the order in which a call goes through them.
import { button, el, roving } from "./dom.js";
import { clipped, count, counted, functionName, place, visible } from "./format.js";

const MAX_BOXES = 60;
const MAX_BREAKS = 4; // before one graph
const DENSE = 10; // segments beyond which their names have no room

/**
 * @typedef {{id: string, ort: boolean, nodes: number, label: string}} Segment
 * @typedef {{graph: string, row: number, segments: Segment[], breaks: number[]}} Stretch A graph, with the rows of the
 *   breaks that a call meets before it.
 */

/**
 * @param {import("./data.js").Data} data
 * @returns {Stretch[]} The newest version of every graph, in the order in which a call enters them.
 */
export function stretches(data) {
  const { graphs, ahead } = data.overview.call_order ?? { graphs: [], ahead: {} };
  const segments = segmentsByGraph(data, new Set(graphs));
  const rowOf = data.index("graphs", "graph_id");
  return graphs.filter((graph) => rowOf.has(graph)).map((graph) => ({ graph, row: rowOf.get(graph)[0], segments: segments.get(graph) ?? [], breaks: ahead[graph] ?? [] }));
}

/** A partition takes the place of its first node; consecutive nodes in PyTorch are one segment. */
function segmentsByGraph(data, wanted) {
  const nodes = data.table("nodes");
  const [graphs, names, targets, partitions, kinds] = ["graph_id", "node", "target", "partition_id", "kind"].map(nodes.column);
  const found = new Map();
  const byPartition = new Map();
  for (let row = 0; row < nodes.rows; row++) {
    if (!wanted.has(graphs[row]) || kinds[row] === "size") continue;
    if (!found.has(graphs[row])) found.set(graphs[row], []);
    const segments = found.get(graphs[row]);
    const partition = partitions[row];
    const known = partition === null ? segments.at(-1) : byPartition.get(partition);
    if (known && known.ort === (partition !== null)) known.nodes += 1;
    else segments.push(segmentFrom(partition, `node:${graphs[row]}/${names[row]}`, targets[row]));
    if (partition !== null && !byPartition.has(partition)) byPartition.set(partition, segments.at(-1));
  }
  return found;
}

function segmentFrom(partition, node, target) {
  return partition === null ? { id: node, ort: false, nodes: 1, label: target } : { id: `partition:${partition}`, ort: true, nodes: 1, label: partition };
}

/**
 * One strip per graph, with the breaks that come before it above.
 * @param {import("./store.js").Store} store
 * @param {number} limit Graphs that are shown.
 * @returns {HTMLElement}
 */
export function partitionStrip(store, limit) {
  const all = stretches(store.data);
  const list = el("ol.ol-strip");
  for (const stretch of all.slice(0, limit)) list.append(...breakMarks(store, stretch.breaks), strip(store, stretch));
  const left = all.length - limit;
  if (left <= 0) list.append(...breakMarks(store, store.data.overview.call_order?.behind ?? []));
  if (left > 0) list.append(el("li.ol-soft", {}, `and ${counted(left, "more graph")}, see Tables`));
  roving(list, "button");
  return el("div", {}, list, key(all.slice(0, limit)));
}

/** The meaning of the boxes that are shown. */
function key(shown) {
  const segments = shown.flatMap((stretch) => stretch.segments);
  const signs = [
    [segments.some((segment) => segment.ort), "ol-segment-ort", "partition in ONNX Runtime, with its node count"],
    [segments.some((segment) => !segment.ort), "ol-segment-eager", "stays in PyTorch"],
  ];
  return el("p.ol-soft.ol-strip-key", {}, ...signs.filter(([there]) => there).map(([, kind, words]) => el("span", {}, el(`span.ol-swatch.${kind}`), words)));
}

function strip(store, { graph, row, segments }) {
  const graphs = store.data.table("graphs");
  const phase = graphs.get(row, "role") ?? graphs.get(row, "phase");
  const name = phase === "inference" || phase === null ? functionName(graphs.get(row, "name")) : phase;
  const about = `graph ${graph}${graphs.get(row, "compile_id") ? `, compiled as ${graphs.get(row, "compile_id")}` : ""}, ${functionName(graphs.get(row, "name"))}`;
  const id = `graph:${graph}`;
  const head = button(clipped(`${graphs.get(row, "compile_id") ?? graph} ${name}`, 34), () => store.set({ selected: id, graph }), { class: "ol-link ol-strip-name", title: visible(about), "data-id": id });
  const dense = segments.length > DENSE;
  const boxes = el(dense ? "div.ol-strip-boxes.ol-dense" : "div.ol-strip-boxes", {}, ...segments.slice(0, MAX_BOXES).map((segment) => box(store, segment, dense)));
  if (segments.length > MAX_BOXES) boxes.append(el("span.ol-soft", {}, ` and ${count(segments.length - MAX_BOXES)} more`));
  if (!segments.length) boxes.append(el("span.ol-soft", {}, "no nodes recorded"));
  return el("li", {}, head, boxes);
}

/** Many boxes leave no room for names: partitions show their id only, and hatching marks PyTorch. */
function box(store, segment, dense) {
  const words = `${segment.ort ? "ONNX Runtime" : "PyTorch"}: ${clipped(segment.label ?? "an operator", 200)}, ${counted(segment.nodes, "node")}`;
  const full = segment.ort ? `${clipped(segment.label, 24)} · ${segment.nodes}` : `${clipped((segment.label ?? "").replace(/^\w+\./, ""), 24)}${segment.nodes > 1 ? ` + ${segment.nodes - 1}` : ""}`;
  const label = dense ? (segment.ort ? clipped(segment.label, 8) : "") : full;
  const made = button(label, () => store.set({ selected: segment.id }), { class: `ol-segment ol-segment-${segment.ort ? "ort" : "eager"}`, title: words, "aria-label": words, "data-id": segment.id });
  made.style.flexGrow = String(Math.sqrt(segment.nodes));
  return made;
}

function breakMarks(store, rows) {
  const marks = rows.slice(0, MAX_BREAKS).map((row) => breakMark(store, row));
  const left = rows.length - marks.length;
  if (left) marks.push(el("li.ol-break-mark", {}, button(`and ${counted(left, "more graph break")}`, () => store.set({ tab: "breaks" }), { class: "ol-link" })));
  return marks;
}

function breakMark(store, row) {
  const breaks = store.data.table("breaks");
  const id = store.identity.idOf("breaks", row);
  const where = place(breaks.get(row, "file"), breaks.get(row, "line"));
  const words = `${where} ${clipped(breaks.get(row, "reason") ?? "", 80)}`;
  const mark = button(words, () => store.set({ selected: id }), { class: "ol-link", "data-id": id, title: words });
  return el("li.ol-break-mark", {}, el("span", { "aria-hidden": "true" }, "✂"), el("span.ol-soft", {}, "graph break "), mark);
}
