// The nodes of a capture as flat arrays: where each runs, what it reads, what reads it. Graphs of 50,000 nodes are walked
// several times while the view opens, so there are no objects per node here.
import { within } from "../places.js";

/** Where a node runs. Sizes and checks are nobody's work: they count on neither side. */
export const ORT = 0;
export const TORCH = 1;
export const NEITHER = 2;

/** What a row of `Ops` is: a node of the table, or a terminal that stands after them. */
export const OP = 0;
export const INPUT = 1;
export const OUTPUT = 2;

/**
 * @typedef {object} Weight
 * @property {string} name Of the parameter or buffer in the program, where that is known.
 * @property {ArrayLike<number|string>|null} shape
 * @property {number} bytes
 * @property {boolean} shared Whether several nodes read it; it stands at the first.
 *
 * @typedef {object} Ops
 * @property {import("../data.js").Data} data
 * @property {number} count Rows: nodes, then terminals.
 * @property {number} nodes Rows that are nodes, with the same numbers as in the table.
 * @property {Uint8Array} role `OP`, `INPUT` or `OUTPUT`.
 * @property {Uint8Array} side `ORT`, `TORCH` or `NEITHER`.
 * @property {ArrayLike<string>} graph Graph of each row.
 * @property {ArrayLike<string>} name
 * @property {ArrayLike<string|null>} target
 * @property {ArrayLike<string|null>} module
 * @property {ArrayLike<string|null>} partition
 * @property {Float64Array} bytes What it hands on.
 * @property {Int32Array} inStart @property {Int32Array} inRow Rows that it reads: `inRow[inStart[r] .. inStart[r + 1]]`.
 * @property {Int32Array} outStart @property {Int32Array} outRow Rows that read it.
 * @property {Map<number, Weight[]>} weights
 * @property {(string|null)[]} terminalIds Ids of the rows behind the nodes. @property {(ArrayLike<number|string>|null)[]} shapes Of the same.
 * @property {GraphRows[]} graphs
 *
 * @typedef {object} GraphRows
 * @property {string} id
 * @property {number} row Row of `graphs`; -1 where the table lacks it.
 * @property {number[]} nodes @property {number[]} inputs @property {number[]} outputs Rows of `Ops`.
 */

/**
 * @param {import("../data.js").Data} data
 * @returns {Ops}
 */
export function createOps(data) {
  const graphs = graphsOf(data);
  const terminals = [];
  const links = []; // reader, source, reader, source ...
  const weights = new Map();
  const nodes = data.table("nodes").rows;
  for (const graph of graphs) wire(data, graph, { terminals, links, weights, nodes });
  return { data, graphs, weights, ...columns(data, terminals), ...adjacency(nodes + terminals.length, links) };
}

function graphsOf(data) {
  const ids = data.table("graphs").column("graph_id");
  const rows = data.index("nodes", "graph_id");
  const known = Array.from(ids, (id, row) => ({ id, row, nodes: rows.get(id) ?? [], inputs: [], outputs: [] }));
  const listed = new Set(ids);
  const strays = [...rows].filter(([id]) => !listed.has(id)).map(([id, found]) => ({ id, row: -1, nodes: found, inputs: [], outputs: [] }));
  return [...known, ...strays];
}

/** Resolves the names that the nodes of one graph read. */
function wire(data, graph, { terminals, links, weights, nodes }) {
  const table = data.table("nodes");
  const [names, inputs] = [table.column("node"), table.column("inputs")];
  const [isOutput, itemOutputs] = [table.column("is_output"), table.column("item_outputs")];
  const rowOf = new Map();
  for (const row of graph.nodes) rowOf.set(names[row], row);
  const entries = entriesOf(data, graph);
  const readers = new Map();
  for (const row of graph.nodes) {
    for (const name of inputs[row] ?? []) {
      const source = rowOf.get(name);
      if (source !== undefined) links.push(row, source);
      else if (entries.has(name)) within(readers, name, () => []).push(row);
    }
  }
  for (const [name, rows] of readers) {
    const { isWeight, bytes, ...known } = entries.get(name);
    if (isWeight) within(weights, rows[0], () => []).push({ name: known.name, shape: known.shape, bytes, shared: rows.length > 1 });
    else addTerminal(INPUT, known.name, bytes, rows, known);
  }
  const returned = graph.nodes.filter((row) => isOutput[row] || itemOutputs[row]?.length);
  if (returned.length) addTerminal(OUTPUT, returned.length === 1 ? "output" : `${returned.length} outputs`, 0, returned);

  function addTerminal(role, name, bytes, rows, { id, shape } = { id: null, shape: null }) {
    const own = nodes + terminals.length;
    terminals.push({ role, name, bytes, graph: graph.id, id, shape });
    (role === INPUT ? graph.inputs : graph.outputs).push(own);
    for (const row of rows) role === INPUT ? links.push(row, own) : links.push(own, row);
  }
}

/** Names that a graph takes from outside, with what the program calls them, their shapes and sizes. */
function entriesOf(data, { id, row }) {
  const get = (column) => (row < 0 ? null : data.table("graphs").get(row, column)) ?? [];
  const [names, sizes, held, table] = [get("inputs"), get("input_sizes"), new Set(get("weights")), data.table("graph_inputs")];
  const entry = (at) => [table.get(at, "input"), { id: `input:${id}/${table.get(at, "input")}`, name: table.get(at, "name"), shape: table.get(at, "shape") }];
  const known = new Map((data.index("graph_inputs", "graph_id").get(id) ?? []).map(entry));
  return new Map(names.map((name, at) => [name, { id: null, name, shape: null, ...known.get(name), bytes: sizes[at] ?? 0, isWeight: held.has(name) }]));
}

function columns(data, terminals) {
  const table = data.table("nodes");
  const nodes = table.rows;
  const count = nodes + terminals.length;
  const [partition, kind, roaming] = ["partition_id", "kind", "roaming"].map(table.column);
  const role = new Uint8Array(count);
  const side = new Uint8Array(count).fill(NEITHER);
  const bytes = new Float64Array(count);
  const sizes = table.column("output_bytes");
  for (let row = 0; row < nodes; row++) {
    side[row] = roaming[row] || (kind[row] ?? "compute") !== "compute" ? NEITHER : partition[row] !== null ? ORT : TORCH;
    bytes[row] = sizes[row] ?? 0;
  }
  terminals.forEach((terminal, at) => {
    role[nodes + at] = terminal.role;
    bytes[nodes + at] = terminal.bytes;
  });
  const extended = (values, of) => {
    const all = new Array(count); // a loop: Array.from would take ten times as long
    for (let row = 0; row < nodes; row++) all[row] = values[row];
    for (let row = nodes; row < count; row++) all[row] = of(terminals[row - nodes]);
    return all;
  };
  const none = () => null;
  const name = extended(table.column("node"), (terminal) => terminal.name);
  const graph = extended(table.column("graph_id"), (terminal) => terminal.graph);
  const [target, module] = ["target", "module"].map((wanted) => extended(table.column(wanted), none));
  return { count, nodes, role, side, bytes, graph, name, target, module, partition: extended(partition, none), terminalIds: terminals.map(({ id }) => id), shapes: terminals.map(({ shape }) => shape) };
}

/** Both directions of `reader, source` pairs as offsets and rows. */
function adjacency(count, links) {
  const inStart = new Int32Array(count + 1);
  const outStart = new Int32Array(count + 1);
  for (let at = 0; at < links.length; at += 2) {
    inStart[links[at] + 1]++;
    outStart[links[at + 1] + 1]++;
  }
  for (let row = 0; row < count; row++) {
    inStart[row + 1] += inStart[row];
    outStart[row + 1] += outStart[row];
  }
  const inRow = new Int32Array(links.length / 2);
  const outRow = new Int32Array(links.length / 2);
  const [inAt, outAt] = [inStart.slice(), outStart.slice()];
  for (let at = 0; at < links.length; at += 2) {
    inRow[inAt[links[at]]++] = links[at + 1];
    outRow[outAt[links[at + 1]]++] = links[at];
  }
  return { inStart, inRow, outStart, outRow };
}
