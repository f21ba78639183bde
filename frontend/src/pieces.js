// The pieces that a model was cut into, in the order in which a call goes through them.
import { button, el, roving } from "./dom.js";
import { clipped, counted, functionName, place, visible } from "./format.js";

const MAX_BOXES = 60;
const DENSE = 10; // pieces beyond which their names have no room

/**
 * @typedef {{id: string, ort: boolean, nodes: number, label: string}} Piece
 * @typedef {{graph: string, row: number, pieces: Piece[], breaks: number[]}} Stretch A graph, with the rows of the
 *   breaks that end it.
 */

/**
 * @param {import("./data.js").Data} data
 * @returns {Stretch[]} The newest version of every graph.
 */
export function stretches(data) {
  const graphs = data.table("graphs");
  const breaks = breaksByCompileId(data);
  const current = new Set(data.overview.graphs.filter((graph) => graph.is_current).map((graph) => graph.graph_id));
  const pieces = piecesByGraph(data, current);
  const found = [];
  for (let row = 0; row < graphs.rows; row++) {
    const graph = graphs.get(row, "graph_id");
    if (!current.has(graph)) continue;
    found.push({ graph, row, pieces: pieces.get(graph) ?? [], breaks: endedBy(graphs, row, breaks) });
  }
  return found;
}

/** A backward has the id of its forward, and it is the forward that was broken off. */
function endedBy(graphs, row, breaks) {
  return graphs.get(row, "phase") === "backward" ? [] : (breaks.get(graphs.get(row, "compile_id")) ?? []);
}

function breaksByCompileId(data) {
  const breaks = data.table("breaks");
  const found = new Map();
  for (let row = 0; row < breaks.rows; row++) {
    for (const id of breaks.get(row, "compile_ids") ?? []) found.set(id, [...(found.get(id) ?? []), row]);
  }
  return found;
}

/** A partition stands where its first node is; PyTorch's nodes in a row are one piece. */
function piecesByGraph(data, wanted) {
  const nodes = data.table("nodes");
  const [graphs, names, targets, partitions, kinds] = ["graph_id", "node", "target", "partition_id", "kind"].map(nodes.column);
  const found = new Map();
  const byPartition = new Map();
  for (let row = 0; row < nodes.rows; row++) {
    if (!wanted.has(graphs[row]) || kinds[row] === "size") continue;
    if (!found.has(graphs[row])) found.set(graphs[row], []);
    const pieces = found.get(graphs[row]);
    const partition = partitions[row];
    const known = partition === null ? pieces.at(-1) : byPartition.get(partition);
    if (known && known.ort === (partition !== null)) known.nodes += 1;
    else pieces.push(pieceFrom(partition, `node:${graphs[row]}/${names[row]}`, targets[row]));
    if (partition !== null && !byPartition.has(partition)) byPartition.set(partition, pieces.at(-1));
  }
  return found;
}

function pieceFrom(partition, node, target) {
  return partition === null ? { id: node, ort: false, nodes: 1, label: target } : { id: `partition:${partition}`, ort: true, nodes: 1, label: partition };
}

/**
 * The pieces as a strip per graph, with what breaks it below.
 * @param {import("./store.js").Store} store
 * @param {number} limit Graphs that are shown.
 * @returns {HTMLElement}
 */
export function pieceStrip(store, limit) {
  const all = stretches(store.data);
  const list = el("ol.ol-strip");
  for (const stretch of all.slice(0, limit)) list.append(strip(store, stretch), ...stretch.breaks.map((row) => breakMark(store, row)));
  const left = all.length - limit;
  if (left > 0) list.append(el("li.ol-soft", {}, `and ${counted(left, "more graph")}, see Tables`));
  roving(list, "button");
  return el("div", {}, list, key(all.slice(0, limit)));
}

/** What the boxes mean, of those that are there. */
function key(shown) {
  const pieces = shown.flatMap((stretch) => stretch.pieces);
  const signs = [
    [pieces.some((piece) => piece.ort), "ol-piece-ort", "an ONNX model and its nodes"],
    [pieces.some((piece) => !piece.ort), "ol-piece-eager", "stays in PyTorch"],
  ];
  return el("p.ol-soft.ol-strip-key", {}, ...signs.filter(([there]) => there).map(([, kind, words]) => el("span", {}, el(`span.ol-swatch.${kind}`), words)));
}

function strip(store, { graph, row, pieces }) {
  const graphs = store.data.table("graphs");
  const phase = graphs.get(row, "phase");
  const name = phase === "inference" || phase === null ? functionName(graphs.get(row, "name")) : phase;
  const about = `graph ${graph}${graphs.get(row, "compile_id") ? `, compiled as ${graphs.get(row, "compile_id")}` : ""}, ${functionName(graphs.get(row, "name"))}`;
  const id = `graph:${graph}`;
  const head = button(clipped(`${graphs.get(row, "compile_id") ?? graph} ${name}`, 34), () => store.set({ selected: id, graph }), { class: "ol-link ol-strip-name", title: visible(about), "data-id": id });
  const dense = pieces.length > DENSE;
  const boxes = el(dense ? "div.ol-strip-boxes.ol-dense" : "div.ol-strip-boxes", {}, ...pieces.slice(0, MAX_BOXES).map((piece) => box(store, piece, dense)));
  if (pieces.length > MAX_BOXES) boxes.append(el("span.ol-soft", {}, ` and ${counted(pieces.length - MAX_BOXES, "more piece")}`));
  if (!pieces.length) boxes.append(el("span.ol-soft", {}, "no nodes recorded"));
  return el("li", {}, head, boxes);
}

/** Among many, names have no room: the number of a model stands, and PyTorch's are told by their hatching. */
function box(store, piece, dense) {
  const words = `${piece.ort ? "ONNX Runtime" : "PyTorch"}: ${clipped(piece.label ?? "an operator", 200)}, ${counted(piece.nodes, "node")}`;
  const full = piece.ort ? `${clipped(piece.label, 24)} · ${piece.nodes}` : clipped((piece.label ?? "").replace(/^\w+\./, ""), 24);
  const label = dense ? (piece.ort ? clipped(piece.label, 8) : "") : full;
  const made = button(label, () => store.set({ selected: piece.id }), { class: `ol-piece ol-piece-${piece.ort ? "ort" : "eager"}`, title: words, "aria-label": words, "data-id": piece.id });
  made.style.flexGrow = String(Math.sqrt(piece.nodes));
  return made;
}

function breakMark(store, row) {
  const breaks = store.data.table("breaks");
  const id = store.identity.idOf("breaks", row);
  const where = place(breaks.get(row, "file"), breaks.get(row, "line"));
  const words = `${where} ${clipped(breaks.get(row, "reason") ?? "", 80)}`;
  const mark = button(words, () => store.set({ selected: id }), { class: "ol-link", "data-id": id, title: words });
  return el("li.ol-break-mark", {}, el("span", { "aria-hidden": "true" }, "✂"), el("span.ol-soft", {}, "graph break "), mark);
}
