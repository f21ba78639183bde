// The values of the numerics panel: one cell per node that ONNX Runtime runs, in graph order.

/** Where results, effects and gradients of the call are listed, which belong to no partition. */
const WHOLE_CALL = "the whole call";

/**
 * @typedef {object} Cell
 * @property {number} node Row of `nodes`; -1 for a value whose node is not there.
 * @property {string} id @property {string} name
 * @property {number[]} rows Rows of `numerics` about it; none when it was not checked.
 * @property {"ok"|"wrong"|"unchecked"} state @property {boolean} first The first out of tolerance.
 * @property {string|null} nonfinite @property {number|null} abs @property {number|null} rel The worst of its rows.
 *
 * @typedef {{partition: string, graph: string|null, cells: Cell[]}} Section
 */

/**
 * @param {import("./store.js").Store} store
 * @returns {Section[]} The partitions of which any value was checked, and the others of the newest graphs.
 */
export function sectionsOf({ data, identity }) {
  const numerics = data.table("numerics");
  if (!numerics.rows) return [];
  const rowsOf = new Map();
  for (let row = 0; row < numerics.rows; row++) {
    const key = JSON.stringify([numerics.get(row, "partition_id"), numerics.get(row, "node")]);
    rowsOf.set(key, [...(rowsOf.get(key) ?? []), row]);
  }
  const checked = data.index("numerics", "partition_id");
  const current = new Set(data.overview.graphs.filter((graph) => graph.is_current).map((graph) => graph.graph_id));
  const sections = new Map();
  const sectionOf = (partition, graph) => {
    if (!sections.has(partition)) sections.set(partition, { partition, graph, cells: [] });
    return sections.get(partition);
  };
  const nodes = data.table("nodes");
  const [graphs, names, partitions, kinds] = ["graph_id", "node", "partition_id", "kind"].map(nodes.column);
  for (let row = 0; row < nodes.rows; row++) {
    if (partitions[row] === null || kinds[row] === "effect") continue;
    const key = JSON.stringify([partitions[row], names[row]]);
    const own = rowsOf.get(key) ?? [];
    rowsOf.delete(key);
    // A number made of sizes is no value to compare; where one was compared all the same, it is shown.
    if (!own.length && (kinds[row] === "size" || !(checked.has(partitions[row]) || current.has(graphs[row])))) continue;
    sectionOf(partitions[row], graphs[row]).cells.push(cellFrom(numerics, row, `node:${graphs[row]}/${names[row]}`, names[row], own));
  }
  for (const own of rowsOf.values()) {
    const partition = numerics.get(own[0], "partition_id") ?? WHOLE_CALL;
    const name = numerics.get(own[0], "node");
    sectionOf(partition, null).cells.push(cellFrom(numerics, -1, identity.idOf("numerics", own[0]) ?? `node:/${name}`, name, own));
  }
  return [...sections.values()];
}

function cellFrom(numerics, node, id, name, rows) {
  const checked = rows.filter((row) => numerics.get(row, "ok") !== null);
  const wrong = checked.some((row) => numerics.get(row, "ok") === false);
  return {
    node,
    id,
    name,
    rows,
    state: wrong ? "wrong" : checked.length ? "ok" : "unchecked",
    first: rows.some((row) => numerics.get(row, "first_divergence") === true),
    nonfinite: rows.map((row) => numerics.get(row, "nonfinite")).find((value) => value !== null) ?? null,
    abs: worst(numerics, checked, "max_abs"),
    rel: worst(numerics, checked, "max_rel"),
  };
}

function worst(numerics, rows, name) {
  const values = rows.map((row) => numerics.get(row, name)).filter((value) => value !== null);
  return values.length ? values.reduce((a, b) => (Number.isNaN(a) || b <= a ? a : b)) : null;
}

/**
 * A logarithmic scale over the errors that there are.
 * @param {Cell[]} cells
 * @param {"abs"|"rel"} measure
 * @returns {{low: number, high: number, share: (error: number|null) => number}} Powers of ten; `share` is 0 for no error
 *   and 1 for the largest.
 */
export function errorScale(cells, measure) {
  const errors = cells.map((cell) => cell[measure]).filter((error) => error > 0 && Number.isFinite(error));
  const low = errors.length ? Math.floor(Math.log10(Math.min(...extremes(errors)))) : -8;
  const high = Math.max(low + 1, errors.length ? Math.ceil(Math.log10(Math.max(...extremes(errors)))) : -7);
  const share = (error) => {
    if (error === null || error === 0) return 0;
    if (!Number.isFinite(error)) return 1;
    return 0.15 + 0.85 * Math.min(1, Math.max(0, (Math.log10(error) - low) / (high - low)));
  };
  return { low, high, share };
}

/** Arguments of a call are bounded; thousands of errors are not. */
function extremes(values) {
  let [low, high] = [values[0], values[0]];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}
