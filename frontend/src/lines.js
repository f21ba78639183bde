// Per source line: its nodes, its time, and the events on it.

/**
 * @typedef {object} Line
 * @property {number} line @property {string|null} source
 * @property {number} inOrt Compute nodes that ONNX Runtime runs. @property {number} inEager Those that PyTorch runs.
 * @property {number} ortNs Time of its kernels per call. @property {number} eagerNs Time of its PyTorch operators per call.
 * @property {string} [state] Where a call runs its operators. @property {number} [outside] How many of them outside of graphs.
 * @property {{kind: "fallback"|"break"|"recompile"|"finding"|"graph", id: string, words: string, callers?: Caller[]}[]} marks
 * @typedef {{file: string, line: number, function: string}} Caller
 *
 * @typedef {object} SourceFile
 * @property {string} file @property {Line[]} lines In order. @property {number} nodes @property {number} ns @property {boolean} own
 *   False for what is installed.
 */

const INSTALLED = /[\\/](site-packages|dist-packages|lib[\\/]python3[^\\/]*)[\\/]/;

/**
 * @param {import("./store.js").Store} store
 * @returns {SourceFile[]} The user's own files first, then those with the most nodes.
 */
export function sourceFiles(store) {
  const files = new Map();
  const lineOf = (file, number) => {
    if (!files.has(file)) files.set(file, new Map());
    const lines = files.get(file);
    if (!lines.has(number)) lines.set(number, { line: number, source: null, inOrt: 0, inEager: 0, ortNs: 0, eagerNs: 0, marks: [] });
    return lines.get(number);
  };
  const current = new Set(store.data.overview.graphs.filter((graph) => graph.is_current).map((graph) => graph.graph_id));
  addNodes(store, lineOf, current);
  addKernels(store, lineOf, current);
  addFallbacks(store, lineOf, current);
  addEvents(store, lineOf);
  const states = new Map((store.data.overview.line_states ?? []).map((found) => [found.id, found]));
  eachPlaced(store.data.table("call_lines"), (_, file, number) => Object.assign(lineOf(file, number), states.get(`line:${file}:${number}`)));
  eachPlaced(store.data.table("numerics"), (_, file, number) => lineOf(file, number)); // of a whole result, the head of its function
  return [...files].map(([file, lines]) => fileFrom(file, [...lines.values()])).sort((a, b) => Number(b.own) - Number(a.own) || b.nodes - a.nodes);
}

function fileFrom(file, lines) {
  const nodes = lines.reduce((sum, line) => sum + line.inOrt + line.inEager, 0);
  const ns = lines.reduce((sum, line) => sum + line.ortNs + line.eagerNs, 0);
  return { file, lines: lines.sort((a, b) => a.line - b.line), nodes, ns, own: !INSTALLED.test(file) };
}

function eachPlaced(table, act) {
  const files = table.column("file");
  const lines = table.column("line");
  for (let row = 0; row < table.rows; row++) if (files[row] && lines[row] !== null) act(row, files[row], lines[row]);
}

/** Recompiled code is counted once, as its newest version. */
function addNodes({ data }, lineOf, current) {
  const nodes = data.table("nodes");
  eachPlaced(nodes, (row, file, number) => {
    const line = lineOf(file, number);
    line.source ??= nodes.get(row, "source");
    if (nodes.get(row, "kind") === "size" || !current.has(nodes.get(row, "graph_id"))) return;
    if (nodes.get(row, "partition_id") === null) line.inEager += 1;
    else line.inOrt += 1;
  });
}

function addKernels({ data, identity }, lineOf, current) {
  const kernels = data.table("kernels");
  const runs = runsPerCall({ data, identity });
  const graphOf = (row) => {
    const session = identity.rowOf(`session:${kernels.get(row, "session_id")}`);
    const partition = session && identity.rowOf(`partition:${data.table("sessions").get(session.row, "partition_id")}`);
    return partition && data.table("partitions").get(partition.row, "graph_id");
  };
  eachPlaced(kernels, (row, file, number) => {
    if (current.has(graphOf(row))) lineOf(file, number).ortNs += (kernels.get(row, "mean_ns") ?? 0) * (runs.get(kernels.get(row, "session_id")) ?? 1);
  });
}

/** How often a call enters each graph, or a run of compiled code, where nobody counted calls. */
export const entriesOf = (data) => new Map(data.overview.graphs.map(({ graph_id: id, entries }) => [id, entries ?? 1]));

/** How often a call runs each session: the entries of its graph, shared among the sessions of a partition by their calls. */
export function runsPerCall({ data, identity }) {
  const sessions = data.table("sessions");
  const calls = new Map();
  for (let row = 0; row < sessions.rows; row++) calls.set(sessions.get(row, "partition_id"), (calls.get(sessions.get(row, "partition_id")) ?? 0) + (sessions.get(row, "calls") ?? 0));
  const [entries, found] = [entriesOf(data), new Map()];
  for (let row = 0; row < sessions.rows; row++) {
    const partition = identity.rowOf(`partition:${sessions.get(row, "partition_id")}`);
    const often = (partition && entries.get(data.table("partitions").get(partition.row, "graph_id"))) ?? 1;
    const all = calls.get(sessions.get(row, "partition_id"));
    found.set(sessions.get(row, "session_id"), often * (all ? (sessions.get(row, "calls") ?? 0) / all : 1));
  }
  return found;
}

function addFallbacks({ data, identity }, lineOf, current) {
  const [fallbacks, entries] = [data.table("fallbacks"), entriesOf(data)];
  eachPlaced(fallbacks, (row, file, number) => {
    const line = lineOf(file, number);
    line.source ??= fallbacks.get(row, "source");
    if (!current.has(fallbacks.get(row, "graph_id"))) return;
    const calls = fallbacks.get(row, "calls");
    const measured = fallbacks.get(row, "call_ns");
    if (measured !== null && measured !== undefined) line.eagerNs += measured;
    else if (calls) line.eagerNs += (fallbacks.get(row, "total_ns") / calls) * entries.get(fallbacks.get(row, "graph_id"));
    const words = `${fallbacks.get(row, "target")} stays in PyTorch: ${fallbacks.get(row, "reason") || data.overview.reasons[fallbacks.get(row, "reason_code")]}`;
    if (!line.marks.some((mark) => mark.words === words)) line.marks.push({ kind: "fallback", id: identity.idOf("fallbacks", row), words });
  });
}

function addEvents({ data, identity }, lineOf) {
  const events = [
    ["breaks", "break", (get) => `graph break: ${get("reason")}`],
    ["recompiles", "recompile", (get) => `compiled again: ${(get("guard") ?? get("reason") ?? "a guard failed").split("  #")[0]}`],
    ["findings", "finding", (get) => `${get("severity")}: ${get("title")}`],
  ];
  for (const [name, kind, words] of events) {
    const table = data.table(name);
    eachPlaced(table, (row, file, number) => {
      const line = lineOf(file, number);
      line.source ??= table.get(row, "source");
      const callers = name === "breaks" ? callersOf(table.get(row, "user_stack") ?? []) : [];
      line.marks.push({ kind, id: identity.idOf(name, row), words: words((column) => table.get(row, column)), callers });
    });
  }
}

/** The user's own frames of a stack `file:line function`, outermost first, that lead to its last; the nearest first. */
export function callersOf(stack) {
  const frames = stack.slice(0, -1).map((text) => /^(.*):(\d+) (.*)$/.exec(text));
  const own = frames.filter((found) => found && !found[1].startsWith("<") && !INSTALLED.test(found[1]));
  return own.map(([, file, line, name]) => ({ file, line: Number(line), function: name })).reverse();
}
