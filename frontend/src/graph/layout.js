// Positions of boxes: one run of dagre per opened group, kept by what it was given, so that equal layers cost one run.
import dagre from "@dagrejs/dagre";
import { columnsOf } from "./columns.js";
import { rankedLayout } from "./rank.js";
import { wiresOf } from "./wires.js";
import { sequenceWires } from "./sequence.js";

export const HEADER = 28; // of an opened group
const PAD = 14;
const GAPS = { across: 16, down: 34 };
const LABEL = { w: 60, h: 16 }; // bytes at a border between partitions
const MOST_BOXES = 200; // for dagre; it takes a second beyond
const MOST_WIRES = 400;
const MANY = 7; // boxes without a wire between them stand in lines, not in one row
const MOST_KEPT = 3000;
const TAG = 36; // for the name of a partition
const STUB = 124; // pixels that the words of a stub may widen a box to: what is cut is in the details
const WIDTHS = { op: [72, 96, 120, 148, 180, 220], group: [140, 168, 200, 236, 268] };

/**
 * @typedef {object} Route
 * @property {number[]} points x, y, x, y ... in the group.
 * @property {boolean} wrapped Whether it goes along a gutter, see columns.js.
 * @property {boolean} back Whether it runs against the order, as one wire of a cycle must.
 * @property {{x: number, y: number}|null} label Centre of its label.
 *
 * @typedef {object} Plan Where the children of a group stand.
 * @property {number} w @property {number} h Of the opened box.
 * @property {{x: number, y: number}[]} places Top left corners, in the group.
 * @property {Route[]} routes One per wire.
 * @property {number} inX @property {number} outX Where wires enter at the top and leave at the bottom.
 * @property {boolean} plain Whether the ranked layout was used.
 */

export class Layout {
  /**
   * @param {import("./tree.js").Tree} tree
   * @param {import("./labels.js").Labels} labels
   * @param {import("./text.js").Font} font
   */
  constructor(tree, labels, font) {
    this.tree = tree;
    this.labels = labels;
    this.font = font;
    this.kept = new Map();
    this.runs = 0;
  }

  /** Gives an item, and all that is open inside it, a size and places. */
  place(item) {
    if (!item.stale) return;
    item.stale = false;
    if (!item.open) {
      this.sizeClosed(item);
      return;
    }
    item.wires ??= this.wires(item);
    for (const child of item.children) this.place(child);
    item.plan = this.plan(item);
    item.children.forEach((child, at) => {
      child.x = item.plan.places[at].x;
      child.y = item.plan.places[at].y;
    });
    item.w = item.plan.w;
    item.h = item.plan.h;
  }

  wires(item) {
    if (item.ofGraphs) return sequenceWires(this.tree, item);
    return wiresOf(this.tree, item, item.kind !== "graph");
  }

  sizeClosed(item) {
    const stub = this.labels.stub(item);
    const width = (text, size) => this.font.widthOf(text.slice(0, 60), size);
    const isGroup = item.parts !== null;
    const [note, side] = [this.labels.note(item), this.labels.side(item)];
    const second = width(note, 11) * 0.9 + (side ? width(side, 11) + 8 : item.ort ? TAG : 0); // measured in bold
    const text = Math.max(width(this.labels.title(item), 12.5) + (isGroup ? 16 : 0), second, stub ? Math.min(width(`⇢ ${stub.text}`, 11), STUB) : 0);
    const widths = isGroup ? WIDTHS.group : WIDTHS.op;
    item.w = widths.find((most) => most >= text + 24) ?? widths.at(-1);
    item.h = (isGroup ? 56 : 38) + (stub ? 14 : 0);
  }

  plan(item) {
    const boxes = item.children.map(({ w, h, open, plan }) => ({ w, h, inX: open ? plan.inX : w / 2, outX: open ? plan.outX : w / 2 }));
    const { wires } = item.wires;
    const key = planKey(boxes, wires);
    let found = this.kept.get(key);
    if (!found) {
      if (this.kept.size >= MOST_KEPT) this.kept.delete(this.kept.keys().next().value);
      this.kept.set(key, (found = planOf(boxes, wires, this.font)));
      this.runs++;
    }
    return found;
  }
}

function planKey(boxes, wires) {
  const parts = boxes.map(({ w, h, inX, outX }) => `${w},${h},${inX},${outX}`);
  for (const { from, to, cuts, label } of wires) parts.push(`${from}>${to}${cuts ? "c" : ""}${label ?? ""}`);
  return parts.join(";");
}

/** @returns {Plan} */
export function planOf(boxes, wires, font) {
  const linked = wires.some(({ from, to }) => from >= 0 && to >= 0) || boxes.length < MANY;
  const small = boxes.length <= MOST_BOXES && wires.length <= MOST_WIRES && linked;
  let laid = null;
  try {
    laid = small ? withDagre(boxes, wires, font) : null;
  } catch {
    laid = null; // dagre fails on a few graphs; the plain layout draws those
  }
  const plain = laid === null;
  laid ??= { ...ranked(boxes, wires), doors: {} };
  const widest = most([0, ...wires.map(({ label }) => (label ? font.widthOf(label, 11) + 12 : 0))]);
  return shifted(boxes, wires, columnsOf(boxes, wires, laid, widest), plain);
}

function withDagre(boxes, wires, font) {
  const graph = new dagre.graphlib.Graph({ multigraph: false });
  graph.setGraph({ nodesep: GAPS.across, ranksep: GAPS.down, edgesep: 8, ranker: "network-simplex" });
  boxes.forEach(({ w, h }, at) => graph.setNode(String(at), { width: w, height: h }));
  const name = (end, side) => {
    if (end >= 0) return String(end);
    if (!graph.hasNode(side)) graph.setNode(side, { width: 1, height: 1 });
    return side;
  };
  for (const wire of wires) graph.setEdge(name(wire.from, "in"), name(wire.to, "out"), edgeOf(wire, font));
  dagre.layout(graph);
  const places = boxes.map((_, at) => graph.node(String(at)));
  const routes = wires.map(({ from, to }) => graph.edge(from < 0 ? "in" : String(from), to < 0 ? "out" : String(to)));
  return { places, routes, doors: { in: graph.node("in")?.x, out: graph.node("out")?.x } };
}

const edgeOf = (wire, font) => {
  const [width, height] = labelSize(wire, font);
  const weight = wire.from < 0 || wire.to < 0 ? 1 : 2; // what flows through a group keeps straight, what comes from afar goes around
  return width ? { width, height, labelpos: "c", weight } : { weight };
};

/** A label of a break has its reason below it. */
function labelSize({ label, more, cuts }, font) {
  if (!label) return cuts ? [LABEL.w, LABEL.h] : [0, 0];
  return [Math.max(font.widthOf(label, 11), more ? Math.min(240, font.widthOf(more, 11)) : 0) + 12, more ? 32 : LABEL.h];
}

function ranked(boxes, wires) {
  const inner = wires.filter(({ from, to }) => from >= 0 && to >= 0);
  const places = rankedLayout(boxes, inner, GAPS);
  const routes = wires.map(({ from, to }) => ({ points: from < 0 || to < 0 ? [] : [places[from], places[to]] }));
  return { places, routes };
}

/** From centres, wherever they lie, to corners inside the opened box; wires from border to border. */
function shifted(boxes, wires, { places, routes, doors }, plain) {
  const lefts = places.map((place, at) => place.x - boxes[at].w / 2);
  const xs = routes.flatMap(({ points }) => points.map((point) => point.x));
  const left = least([...lefts, ...xs]) - PAD;
  const right = most([...places.map((place, at) => place.x + boxes[at].w / 2), ...xs]) + PAD;
  const top = least(places.map((place, at) => place.y - boxes[at].h / 2)) - HEADER - (doors.in === undefined ? 10 : 18);
  const bends = routes.flatMap(({ points }, at) => (wires[at].to < 0 ? points.slice(0, -1) : points)); // a door needs no row of its own
  const bottom = most([...places.map((place, at) => place.y + boxes[at].h / 2), ...bends.map(({ y }) => y)]) + PAD;
  const [w, h] = boxes.length ? [Math.max(170, right - left), bottom - top] : [170, HEADER + PAD];
  const slack = boxes.length ? Math.max(0, (170 - (right - left)) / 2) : 0;
  const corners = places.map(({ x, y }, at) => ({ x: x - boxes[at].w / 2 - left + slack, y: y - boxes[at].h / 2 - top }));
  const inX = (doors.in ?? places[0]?.x ?? left + w / 2) - left + slack;
  const outX = (doors.out ?? places.at(-1)?.x ?? left + w / 2) - left + slack;
  const moved = routes.map((route) => ({ ...route, points: route.points.map(({ x, y }) => ({ x: x - left + slack, y: y - top })), x: route.x - left + slack, y: route.y - top }));
  const ends = { corners, boxes, inX, outX, h };
  return { w, h, places: corners, inX, outX, plain, routes: wires.map((wire, at) => bordered(wire, moved[at], ends)) };
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

/** A wire from the bottom of one box to the top of another. */
function bordered({ from, to }, route, { corners, boxes, inX, outX, h }) {
  if (!route.points.length) return { points: [], back: false, wrapped: false, label: null }; // the plain layout draws no wires to doors
  const start = from < 0 ? { x: inX, y: HEADER } : { x: corners[from].x + boxes[from].outX, y: corners[from].y + boxes[from].h };
  const end = to < 0 ? { x: outX, y: h } : { x: corners[to].x + boxes[to].inX, y: corners[to].y };
  const back = end.y < start.y && !route.wrapped;
  const inner = back ? route.points.map(({ x, y }) => ({ x, y })) : route.points.slice(1, -1);
  const points = back ? inner : [start, ...inner, end];
  return { points: points.flatMap(({ x, y }) => [x, y]), back, wrapped: Boolean(route.wrapped), label: Number.isFinite(route.x) ? { x: route.x, y: route.y } : null };
}
