// The flame graph as data: frames in depth-first order, what they are called, and where they lie for each thing that is measured.
// Python makes the frames (ortlens/views/flame.py); names and sizes are read off the tables.
import { bytes, clipped, flops, functionName, place, time, visible } from "./format.js";

export const METRICS = [
  ["time", "Time", time],
  ["flops", "FLOPs", flops],
  ["bytes", "Bytes", bytes],
  ["compile", "Compile time", time],
];

const TABLES = { graph: "graphs", ort: "nodes", torch: "nodes", kernel: "kernels", session: "sessions", break: "breaks", between: "breaks" };

/** What each kind is, in words; modules and graphs say it themselves. */
export const KIND_WORDS = {
  graph: "graph",
  module: "module",
  ort: "operator in ONNX Runtime",
  torch: "operator in PyTorch",
  kernel: "kernel of ONNX Runtime",
  session: "session",
  foreign: "the graph, in another backend",
  bind: "binding the inputs",
  output: "returning the outputs",
  residual: "rest of the graph",
  guards: "entering compiled code: look-up, guards, wrappers",
  between: "PyTorch and Python between graphs",
  break: "graph break",
  phase: "phase of compiling",
};
const NAMES = { foreign: "the graph", bind: "bind", output: "output", residual: "rest", guards: "entering compiled code", between: "Python" };

/**
 * @typedef {object} Flame
 * @property {number} count Frames.
 * @property {string[]} kind @property {number[]} depth @property {Int32Array} parent @property {Int32Array} end First frame after the subtree.
 * @property {(frame: number, metric?: string) => string} name The root is no call where compiling is measured. @property {(frame: number) => string|null} id What selecting it selects.
 * @property {(metric: string) => {value: Float64Array, from: Float64Array, to: Float64Array, total: number, most: number}} laid Values, and places
 *   as parts of the whole; `most` is the deepest row.
 * @property {boolean} isMeasured @property {boolean} hasKernels
 */

/**
 * @param {import("./data.js").Data} data
 * @returns {Flame}
 */
export function flameOf(data) {
  const packed = data.flame ?? { kinds: [], phases: [], depth: [], kind: [], ref: [], ns: [], paths: [] };
  const count = packed.depth.length;
  const kind = packed.kind.map((code) => packed.kinds[code]);
  const { parent, end } = linked(packed.depth);
  const paths = modulePaths(kind, packed.paths);
  const get = (frame, column) => (packed.ref[frame] < 0 ? null : data.table(TABLES[kind[frame]]).get(packed.ref[frame], column));
  const graphOf = (frame) => {
    let at = frame;
    while (at >= 0 && kind[at] !== "graph") at = parent[at];
    return at < 0 ? null : get(at, "graph_id");
  };
  const laid = new Map();
  return {
    count,
    kind,
    depth: packed.depth,
    parent,
    end,
    isMeasured: Boolean(packed.is_measured),
    hasKernels: Boolean(packed.has_kernels),
    get,
    name: (frame, metric) => (kind[frame] === "call" ? (metric === "compile" ? "compiling" : `one ${packed.base ?? "call"}`) : nameOf(kind, frame, get, paths, parent, packed)),
    id: (frame) => idOf(kind, frame, get, paths, graphOf),
    laid: (metric) => {
      if (!laid.has(metric)) laid.set(metric, layOut(metric, { count, kind, parent, end, depth: packed.depth, get, packed, data }));
      return laid.get(metric);
    },
  };
}

function linked(depth) {
  const parent = new Int32Array(depth.length).fill(-1);
  const end = new Int32Array(depth.length).fill(depth.length);
  const open = [];
  depth.forEach((level, frame) => {
    while (open.length > level) end[open.pop()] = frame;
    parent[frame] = open.at(-1) ?? -1;
    open.push(frame);
  });
  return { parent, end };
}

function modulePaths(kind, paths) {
  const found = new Map();
  let next = 0;
  kind.forEach((name, frame) => name === "module" && found.set(frame, paths[next++]));
  return found;
}

function nameOf(kind, frame, get, paths, parent, packed) {
  switch (kind[frame]) {
    case "graph": {
      const role = get(frame, "role") ?? (get(frame, "phase") === "inference" ? null : get(frame, "phase"));
      const name = get(frame, "name") || !role ? functionName(get(frame, "name")) : null; // a backward has none of its own
      return [get(frame, "compile_id") ?? get(frame, "graph_id"), name, role].filter(Boolean).join(" ");
    }
    case "module": {
      const [path, outer] = [paths.get(frame), paths.get(parent[frame])];
      return visible(outer && path.startsWith(`${outer}.`) ? path.slice(outer.length + 1) : path);
    }
    case "ort":
    case "torch":
      return clipped((get(frame, "target") ?? get(frame, "node") ?? "").replace(/^aten\./, "").replace(/\.default$/, ""), 60);
    case "kernel":
      return clipped(get(frame, "op_type") ?? "kernel", 60);
    case "session":
      return get(frame, "partition_id") ? `${visible(get(frame, "partition_id"))} in ONNX Runtime` : "the graph";
    case "break":
      return `✂ at the graph break, ${place(get(frame, "file"), get(frame, "line"))}`;
    case "phase":
      return packed.phases[packed.ref[frame]];
    case "guards":
    case "between":
      if (get(frame, "file") !== null) return `Python at the graph break, ${place(get(frame, "file"), get(frame, "line"))}`;
      return kind.includes("break") ? `${NAMES[kind[frame]]} elsewhere` : NAMES[kind[frame]];
    default:
      return NAMES[kind[frame]];
  }
}

/** Where the price of a break lies: the slab is only a part of it. */
export function breakWords(get) {
  const [overhead, entering] = ["overhead_ns", "entering_ns"].map(get);
  return overhead && entering ? `: ${time(overhead)} here, and ${time(entering)} to enter the next graph` : "";
}

function idOf(kind, frame, get, paths, graphOf) {
  switch (kind[frame]) {
    case "graph":
      return `graph:${get(frame, "graph_id")}`;
    case "module":
      return `module:${graphOf(frame)}/${paths.get(frame)}`;
    case "ort":
    case "torch":
      return `node:${get(frame, "graph_id")}/${get(frame, "node")}`;
    case "kernel":
      return `kernel:${get(frame, "session_id")}/${get(frame, "kernel")}`;
    case "session":
      return get(frame, "session_id") === null ? null : `session:${get(frame, "session_id")}`;
    case "break":
    case "between":
      return get(frame, "break_id") === null ? null : `break:${get(frame, "break_id")}`;
    default:
      return null;
  }
}

/** Values add up from the leaves where Python does not say more: a graph's time is that of the ledger. */
function layOut(metric, { count, kind, parent, end, depth, get, packed, data }) {
  const value = new Float64Array(count); // what is said
  const width = new Float64Array(count); // what is drawn
  if (metric === "time") {
    for (let frame = 0; frame < count; frame++) {
      if (kind[frame] === "phase") continue;
      width[frame] = (packed.width ?? packed.ns)[frame];
      value[frame] = kind[frame] === "module" ? width[frame] : packed.ns[frame];
    }
    if (count) width[0] = packed.ns[0];
  } else {
    const own = (frame) => {
      if (metric === "compile") return kind[frame] === "phase" ? packed.ns[frame] : 0;
      return kind[frame] === "ort" || kind[frame] === "torch" ? (get(frame, metric) ?? 0) : 0;
    };
    for (let frame = count - 1; frame >= 0; frame--) {
      value[frame] += own(frame);
      width[frame] = value[frame];
      if (parent[frame] >= 0) value[parent[frame]] += value[frame];
    }
    if (metric === "compile" && count) value[0] = data.overview.compile_ns;
  }
  return { ...placed(count, width, parent, end, depth), value, total: value[0] ?? 0 };
}

function placed(count, width, parent, end, depth) {
  const [from, to] = [new Float64Array(count), new Float64Array(count)];
  const used = new Float64Array(count); // how far the children of a frame have filled it
  const whole = width[0] || 1;
  let most = 0;
  for (let frame = 0; frame < count; frame++) {
    const outer = parent[frame];
    const start = outer < 0 ? 0 : from[outer] + used[outer];
    const room = outer < 0 ? 1 : to[outer] - start;
    const own = Math.max(0, Math.min(width[frame] / whole, room));
    from[frame] = start;
    to[frame] = start + own;
    if (outer >= 0) used[outer] += own;
    if (own > 0) most = Math.max(most, depth[frame]);
  }
  return { from, to, most };
}
