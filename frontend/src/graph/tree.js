// The tree of boxes: graphs, then modules, or segments and the modules in them.
import { fold, paged } from "./fold.js";
import { Item, groupsIn } from "./item.js";
import { partsByModule } from "./modules.js";
import { INPUT, OP, ORT, TORCH } from "./ops.js";
import { segmentsOf } from "./segments.js";

const FEW_INPUTS = 4; // more stand in one box

/**
 * @typedef {object} Making What the parts of a tree are made from.
 * @property {import("./ops.js").Ops} ops
 * @property {Map<string, string|null>} types Class of a module, by path.
 * @property {(graph: string) => boolean} adopts Whether operators that no module made go to the module that they read from.
 * @property {Map<number, {note: string, ids: string[]}>} solo Modules of a single operator, by its row.
 * @property {(rows: number[]) => string} commonest The commonest operators of some rows.
 */

export class Tree {
  /**
   * @param {import("./ops.js").Ops} ops
   * @param {"module"|"partition"} groupBy
   */
  constructor(ops, groupBy) {
    this.ops = ops;
    this.groupBy = groupBy;
    this.order = new Int32Array(ops.count); // rows in the order of the boxes
    this.place = new Int32Array(ops.count); // the other way round
    this.homes = new Array(ops.count); // group of each row
    this.slots = new Int32Array(ops.count); // its number in there
    this.byId = new Map(); // groups of an id; a module may have one per segment that holds a part of it
    this.solo = new Map();
    this.short = new Map();
    const phases = ops.data.index("graphs", "phase").get("backward") ?? [];
    const backward = new Set(phases.map((row) => ops.data.table("graphs").get(row, "graph_id")));
    const making = { ops, adopts: (graph) => backward.has(graph), types: typesOf(ops.data), solo: this.solo, commonest: (rows) => commonest(rows.map((row) => this.operator(row))) };
    /** One box per graph. */
    this.graphs = ops.graphs.map((graph) => graphItem(making, graph, groupBy));
    const codes = new Map();
    const codeOf = (row) => within(codes, ops.target[row]) * 3 + ops.side[row];
    for (const graph of this.graphs) fold(graph, codeOf);
    const current = new Map((ops.data.overview?.graphs ?? []).map((graph) => [graph.graph_id, graph.is_current]));
    for (const graph of this.graphs) graph.old = current.get(graph.graph.id) === false; // a recompilation took its place
    /** All graphs; with one graph, that graph. */
    this.root = this.graphs.length === 1 ? this.graphs[0] : new Item("all", "the whole model", versions(this.graphs));
    this.number();
  }

  /** Gives every group its parent, its depth, its range of operators and its counts. */
  number() {
    const groups = [...groupsIn(this.root)];
    for (const item of groups) {
      item.tree = this;
      for (let at = 0; at < item.parts.length; at++) {
        const part = item.parts[at];
        if (!(part instanceof Item)) continue;
        part.parent = item;
        part.index = at;
        part.depth = item.depth + 1;
      }
      for (const id of [item.id, ...(item.also ?? [])]) if (id) within(this.byId, id, []).push(item);
    }
    this.numberRows(this.root, 0);
  }

  /** What counts as the model: of all graphs those that no recompilation replaced; of what is chosen, all of it. */
  counted(root) {
    const items = root.kind === "all" ? this.graphs.filter((graph) => !graph.old) : [root];
    return { items, ort: items.reduce((sum, item) => sum + item.ort, 0), torch: items.reduce((sum, item) => sum + item.torch, 0) };
  }

  numberRows(item, from) {
    let next = (item.low = from);
    for (let at = 0; at < item.parts.length; at++) {
      const part = item.parts[at];
      if (part instanceof Item) {
        next = this.numberRows(part, next);
        item.ort += part.ort;
        item.torch += part.torch;
      } else {
        if (this.ops.side[part] === ORT) item.ort++;
        else if (this.ops.side[part] === TORCH) item.torch++;
        this.homes[part] = item;
        this.slots[part] = at;
        this.place[part] = next;
        this.order[next++] = part;
      }
    }
    return (item.high = next);
  }

  /** @returns {Item} The box of a row. */
  leaf(row) {
    return this.homes[row].children[this.slots[row]];
  }

  leafItem(row, parent, index) {
    const { ops } = this;
    const terminal = ops.role[row] !== OP;
    const kind = terminal ? (ops.role[row] === INPUT ? "input" : "output") : "op";
    const item = new Item(kind, terminal ? ops.name[row] : this.operator(row));
    item.row = row;
    item.id = terminal ? ops.terminalIds[row - ops.nodes] : `node:${ops.graph[row]}/${ops.name[row]}`;
    item.note = this.solo.get(row)?.note ?? "";
    item.parent = parent;
    item.index = index;
    item.depth = parent.depth + 1;
    item.low = this.place[row];
    item.high = item.low + 1;
    item.ort = ops.side[row] === ORT ? 1 : 0;
    item.torch = ops.side[row] === TORCH ? 1 : 0;
    return item;
  }

  /** The name of a row's operator, without its namespace and overload. */
  operator(row) {
    const target = this.ops.target[row];
    if (!this.short.has(target)) this.short.set(target, shortTarget(target));
    return this.short.get(target);
  }
}

/** The newest version of each graph stands in the open; the others are one box beside it. */
function versions(graphs) {
  const [now, before] = [graphs.filter((graph) => !graph.old), graphs.filter((graph) => graph.old)];
  if (!now.length || !before.length) return paged(graphs);
  const earlier = new Item("versions", before.length === 1 ? "1 other version" : `${before.length} other versions`, paged(before));
  earlier.note = "made by recompiles";
  earlier.old = true;
  return [...paged(now), earlier];
}

function within(map, key, made = map.size) {
  if (!map.has(key)) map.set(key, made);
  return map.get(key);
}

/** Payloads name the modules as pairs. */
const typesOf = (data) => new Map((data.modules ?? []).map((entry) => (Array.isArray(entry) ? entry : [entry.path, entry.type])));

function graphItem(making, graph, groupBy) {
  const { parts, cycle } =
    groupBy === "partition" ? partsByPiece(making, graph) : { parts: partsByModule(making, graph.id, graph.nodes), cycle: [] };
  const entry = graph.inputs.length > FEW_INPUTS ? [new Item("inputs", `${graph.inputs.length} inputs`, graph.inputs)] : graph.inputs;
  const item = new Item("graph", graph.id, [...entry, ...parts, ...graph.outputs]);
  item.id = `graph:${graph.id}`;
  item.graph = graph;
  item.cycle = cycle;
  return item;
}

function partsByPiece(making, graph) {
  const { segments, cycle } = segmentsOf(making.ops, graph.nodes);
  const parts = segments.map((segment) => {
    const inner = partsByModule(making, graph.id, segment.rows);
    return segment.partition === null && segment.rows.length === 1 ? inner[0] : segmentItem(making, segment, inner);
  });
  return { parts, cycle };
}

function segmentItem(making, { partition, rows }, parts) {
  const only = parts.length === 1 && parts[0].kind === "module" ? parts[0] : null; // says no more than the segment does
  const item = new Item(partition === null ? "torch" : "partition", partition ?? making.commonest(rows), only?.parts ?? parts);
  item.id = partition === null ? null : `partition:${partition}`;
  item.note = only?.title ?? (partition === null ? "" : () => making.commonest(rows));
  return item;
}

/** @returns {string} `aten.add.Tensor` as `add`, `operator.mul` as `mul`, `mylib::op.default` as `op`. */
export function shortTarget(target) {
  const [space, rest] = (target || "operator").split("::");
  const parts = (rest ?? space).split(".");
  const short = rest !== undefined ? parts[0] : parts.length > 2 ? parts[parts.length - 2] : parts[parts.length - 1];
  return short || target;
}

/** @returns {string} The three commonest of some words. */
function commonest(words) {
  const counts = new Map();
  for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  const first = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 3);
  return first.map(([word]) => word).join(", ") + (counts.size > 3 ? ", …" : "");
}
