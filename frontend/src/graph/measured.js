// What was measured about nodes: time from kernels and from PyTorch's own operators, errors from the comparison.
import { entriesOf } from "../lines.js";

/**
 * @typedef {object} Measured
 * @property {"kernels"|"sessions"|"none"} timeFrom Whether the time of each operator is known, or of whole partitions alone.
 * @property {(item: import("./item.js").Item) => number|null} timeOf ns per call; null where nothing was measured.
 * @property {number} totalTime ns per call of all that is known.
 * @property {boolean} hasErrors
 * @property {(item: import("./item.js").Item) => {bad: number, checked: number, worst: number|null, first: boolean}|null} errorOf
 */

/**
 * @param {import("./tree.js").Tree} tree
 * @returns {Measured}
 */
export function createMeasured(tree) {
  const times = rowTimes(tree);
  const errors = rowErrors(tree);
  const inOrder = (values) => {
    const sums = new Float64Array(tree.order.length + 1);
    for (let at = 0; at < tree.order.length; at++) sums[at + 1] = sums[at] + (values[tree.order[at]] ?? 0);
    return sums;
  };
  const sums = inOrder(times.rows);
  const spans = spansOf(tree, times.partitions);

  function timeOf(item) {
    if (times.from === "none") return null;
    const whole = spans.filter(({ low, high }) => low >= item.low && high <= item.high);
    const known = sums[item.high] - sums[item.low] + whole.reduce((sum, { ns }) => sum + ns, 0);
    return known > 0 ? known : null;
  }

  function errorOf(item) {
    let found = null;
    for (let at = item.low; at < item.high; at++) {
      const own = errors.get(tree.order[at]);
      if (own) found = found ? joined(found, own) : own;
    }
    return found;
  }

  return { timeFrom: times.from, timeOf, totalTime: timeOf(tree.root) ?? 0, hasErrors: errors.size > 0, errorOf };
}

const joined = (a, b) => ({ bad: a.bad + b.bad, checked: a.checked + b.checked, worst: worse(a.worst, b.worst), first: a.first || b.first });

/** Of two errors the larger; NaN is the largest of all. */
const worse = (a, b) => (a === null || Number.isNaN(b) ? b : b === null || Number.isNaN(a) ? a : Math.max(a, b));

/** Rows of nodes by graph and name. */
function finder(tree) {
  const byGraph = new Map(tree.ops.graphs.map((graph) => [graph.id, new Map(graph.nodes.map((row) => [tree.ops.name[row], row]))]));
  const { data } = tree.ops;
  const graphOf = new Map(Array.from(data.table("partitions").column("partition_id"), (id, row) => [id, data.table("partitions").get(row, "graph_id")]));
  return { graphOf, inGraph: (graph, name) => byGraph.get(graph)?.get(name), inPartition: (partition, name) => byGraph.get(graphOf.get(partition))?.get(name) };
}

function rowTimes(tree) {
  const { data } = tree.ops;
  const find = finder(tree);
  const rows = [];
  const add = (row, ns) => row !== undefined && ns > 0 && (rows[row] = (rows[row] ?? 0) + ns);
  const [fallbacks, entries] = [data.table("fallbacks"), entriesOf(data)];
  const often = (graph) => entries.get(graph) ?? 1;
  for (let at = 0; at < fallbacks.rows; at++) {
    const calls = fallbacks.get(at, "calls");
    if (calls) add(find.inGraph(fallbacks.get(at, "graph_id"), fallbacks.get(at, "node")), fallbacks.get(at, "total_ns") / calls * often(fallbacks.get(at, "graph_id")));
  }
  const sessions = data.table("sessions");
  const partitionOf = new Map(Array.from(sessions.column("session_id"), (id, row) => [id, sessions.get(row, "partition_id")]));
  const kernels = data.table("kernels");
  for (let at = 0; at < kernels.rows; at++) {
    const partition = partitionOf.get(kernels.get(at, "session_id"));
    add(find.inPartition(partition, kernels.get(at, "node")), kernels.get(at, "mean_ns") * often(find.graphOf.get(partition)));
  }
  const partitions = kernels.rows ? new Map() : sessionTimes(sessions, (partition) => often(find.graphOf.get(partition)));
  const from = kernels.rows ? "kernels" : rows.length || partitions.size ? "sessions" : "none";
  return { rows, partitions, from };
}

/** Time per call of each partition, over all of its sessions; `often` is how often a call runs it. */
function sessionTimes(sessions, often) {
  const sums = new Map();
  for (let row = 0; row < sessions.rows; row++) {
    const calls = sessions.get(row, "calls");
    const own = sums.get(sessions.get(row, "partition_id")) ?? { ns: 0, calls: 0 };
    sums.set(sessions.get(row, "partition_id"), { ns: own.ns + (sessions.get(row, "total_ns") ?? 0), calls: own.calls + (calls ?? 0) });
  }
  return new Map([...sums].filter(([, { calls }]) => calls > 0).map(([id, { ns, calls }]) => [id, (ns / calls) * often(id)]));
}

/** Where partitions begin and end in the order of the boxes: one is counted in a group that holds all of it. */
function spansOf(tree, partitions) {
  if (!partitions.size) return [];
  const spans = new Map();
  tree.order.forEach((row, at) => {
    const partition = tree.ops.partition[row];
    if (!partitions.has(partition)) return;
    const span = spans.get(partition) ?? { low: at, high: at, ns: partitions.get(partition) };
    spans.set(partition, { ...span, high: at + 1 });
  });
  return [...spans.values()];
}

function rowErrors(tree) {
  const table = tree.ops.data.table("numerics");
  const find = finder(tree);
  const errors = new Map();
  for (let at = 0; at < table.rows; at++) {
    const row = find.inPartition(table.get(at, "partition_id"), table.get(at, "node"));
    if (row === undefined) continue;
    const ok = table.get(at, "ok");
    const own = { bad: ok === false ? 1 : 0, checked: ok === null ? 0 : 1, worst: table.get(at, "max_abs"), first: Boolean(table.get(at, "first_divergence")) };
    errors.set(row, errors.has(row) ? joined(errors.get(row), own) : own);
  }
  return errors;
}
