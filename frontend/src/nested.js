// What lies above and below the calls of a thread: the graphs that they belong to, the kernels inside them, the memory that they take.
import { bytes, counted, functionName, time } from "./format.js";

/**
 * @typedef {object} Slice
 * @property {number} from @property {number} to On the drawn axis.
 * @property {string} id What it selects.
 * @property {string} label
 * @property {string} words What it is, in a sentence.
 * @property {number} height Share of the lane's height, 0 to 1.
 * @property {number[]} rows Rows of `runs` that it belongs to.
 *
 * @typedef {object} Nested A lane of slices instead of calls.
 * @property {string} label
 * @property {"call"|"graph"|"kernel"|"memory"} kind
 * @property {number[]} rows Rows of `runs` that slices begin with, in order of their start.
 * @property {(row: number) => Slice[]} slices In order of their start.
 */

/**
 * @param {import("./data.js").Data} data
 * @param {{start: ArrayLike<number>, total: ArrayLike<number>, bind: ArrayLike<number>, run: ArrayLike<number>}} calls
 * @returns {{above: (rows: number[]) => Nested[], below: (rows: number[]) => Nested[]}} Lanes for the calls of a thread; none for what was
 *   not recorded.
 */
export function nestedLanes(data, calls) {
  const runs = data.table("runs");
  const [sessionOf, graphOf] = ["session_id", "graph_id"].map((name) => runs.column(name));
  const sessions = data.table("sessions");
  const about = (row, column) => {
    const [found] = data.index("sessions", "session_id").get(sessionOf[row]) ?? [];
    return found === undefined ? null : sessions.get(found, column);
  };
  const end = (row) => calls.start[row] + calls.total[row];

  const graphRow = (row) => (data.index("graphs", "graph_id").get(graphOf[row]) ?? [-1])[0];
  const starts = startsOf(data, graphOf);
  const base = data.flame?.base ?? "call";

  /** Calls of the functions that were compiled: as many entries of their first graph as a call makes, and what follows. */
  function modelCalls(rows, entries) {
    const found = [];
    let open = null;
    for (const entry of entries) {
      const target = targetOf(data, graphRow(entry[0]));
      const start = starts.get(target);
      const begins = start?.ids.has(graphOf[entry[0]]);
      if (begins && (open?.target !== target || open.begun >= start.often)) found.push((open = { target, entries: 0, begun: 0, rows: [] }));
      if (open?.target !== target) open = null; // the rest of a call whose beginning was not kept, or of one that another interrupted
      open?.rows.push(...entry);
      if (open) Object.assign(open, { entries: open.entries + 1, begun: open.begun + (begins ? 1 : 0) });
    }
    if (!found.some((call) => call.entries > 1)) return []; // it would repeat the graphs
    const byFirst = new Map(found.map((call, place) => [call.rows[0], { ...call, place }]));
    const slices = (row) => {
      const { target, rows: own, entries: count, place } = byFirst.get(row);
      const [from, to] = [calls.start[row], end(own.at(-1))];
      const name = functionName(target);
      const words = `${base === "call" ? "Call" : "Run"} ${place + 1} of ${name} in view: ${time(to - from)} from its first to its last run, ${counted(count, "graph")}`;
      return [{ from, to, id: `graph:${graphOf[row]}`, label: `${name} ${place + 1}`, words, height: 1, rows: own }];
    };
    return [{ label: base === "call" ? "calls of the model" : "runs of compiled code", kind: "call", rows: found.map((call) => call.rows[0]), slices }];
  }

  function graphs(rows) {
    const entries = entriesOf(rows, (row) => graphOf[row], (row) => about(row, "partition_id") ?? sessionOf[row]);
    if (entries.length === rows.length && new Set(rows.map((row) => graphOf[row])).size < 2) return []; // it would repeat the calls
    const byFirst = new Map(entries.map((entry) => [entry[0], entry]));
    const slices = (row) => {
      const own = byFirst.get(row);
      const [from, to] = [calls.start[row], end(own.at(-1))];
      const words = `${graphOf[row]} entered for ${time(to - from)}, from its first to its last run: ${counted(own.length, "run")}`;
      return [{ from, to, id: `graph:${graphOf[row]}`, label: graphOf[row], words, height: 1, rows: own }];
    };
    return [...modelCalls(rows, entries), { label: "graphs", kind: "graph", rows: entries.map(([row]) => row), slices }];
  }

  const kernels = data.table("kernels");
  const kernelsOf = (row) => data.index("kernels", "session_id").get(sessionOf[row]) ?? [];

  function kernelSlices(row) {
    const own = kernelsOf(row);
    const lengths = own.map((kernel) => kernels.get(kernel, "mean_ns") ?? 0);
    const room = calls.run[row];
    const factor = Math.min(1, room / (lengths.reduce((sum, ns) => sum + ns, 0) || 1));
    let at = calls.start[row] + calls.bind[row];
    return own.map((kernel, place) => {
      const [name, type] = ["kernel", "op_type"].map((column) => kernels.get(kernel, column));
      const from = at;
      at += lengths[place] * factor;
      const words = `${type} ${name}: ${time(lengths[place])} per run, the mean of profiled calls, not of this one; order and start are not recorded`;
      return { from, to: at, id: `kernel:${sessionOf[row]}/${name}`, label: type, words, height: 1, rows: [row] };
    });
  }

  const most = Math.max(0, ...Array.from({ length: sessions.rows }, (_, row) => sessions.get(row, "arena_bytes") ?? 0));

  function memorySlices(row) {
    const size = about(row, "arena_bytes");
    const session = sessionOf[row];
    const words = `Activations of ${session}: ${bytes(size)} at their peak in profiled calls, not in this one`;
    return [{ from: calls.start[row], to: end(row), id: `session:${session}`, label: bytes(size), words, height: size / most, rows: [row] }];
  }

  const lane = (label, kind, rows, slices) => (rows.length ? [{ label, kind, rows, slices }] : []);
  return {
    above: graphs,
    below: (rows) => [
      ...lane("kernels ≈ profile", "kernel", kernels.rows ? rows.filter((row) => kernelsOf(row).length) : [], kernelSlices),
      ...lane("memory ≈ profile", "memory", most ? rows.filter((row) => about(row, "arena_bytes")) : [], memorySlices),
    ],
  };
}

const targetOf = (data, row) => (row < 0 ? null : (data.table("graphs").get(row, "target") ?? data.table("graphs").get(row, "name")));

/**
 * The graphs that calls begin with, by function: those of the frame that Dynamo compiled first, of which calls were kept.
 *
 * @returns {Map<string, {ids: Set<string>, often: number}>} `often` is how many entries of these a call makes; 1 where nobody counted.
 */
function startsOf(data, graphOf) {
  const graphs = data.table("graphs");
  const called = new Set(graphOf);
  const first = new Map();
  for (let row = 0; row < graphs.rows; row++) {
    const [id, compiled, phase] = ["graph_id", "compile_id", "phase"].map((name) => graphs.get(row, name));
    const frame = Number(/(\d+)\/\d+$/.exec(compiled ?? "")?.[1] ?? NaN);
    if (Number.isNaN(frame) || phase === "backward" || !called.has(id)) continue;
    const target = targetOf(data, row);
    const known = first.get(target);
    const entries = graphs.get(row, "entries_per_call") ?? 0;
    if (!known || frame < known.frame) first.set(target, { frame, ids: new Set([id]), often: entries });
    else if (frame === known.frame) {
      known.ids.add(id);
      known.often += entries;
    }
  }
  return first;
}

/** A graph is entered anew when another one was, or when a partition of it runs again. */
function entriesOf(rows, graphOf, partitionOf) {
  const entries = [];
  let seen = new Set();
  for (const row of rows) {
    const partition = partitionOf(row);
    const open = entries.at(-1);
    if (!open || graphOf(open[0]) !== graphOf(row) || seen.has(partition)) {
      entries.push([row]);
      seen = new Set();
    } else open.push(row);
    seen.add(partition);
  }
  return entries;
}
