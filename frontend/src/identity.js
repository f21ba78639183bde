// The links from a source line to the kernel that ONNX Runtime ran. Everything that can be selected has one
// id, which Python uses too:
//   graph:g0  partition:p0  node:g0/addmm  module:g0/layers.0.attn  line:/path/file.py:12  model:m0  onnx:m0/addmm/Gemm
//   input:g0/arg0_1  session:s0  kernel:s0/<kernel>  break:b0  recompile:0/1  finding:<row>  run:<row>
// Names may hold any character, so ids are looked up, never taken apart.

import { KEYS, lineId, Places } from "./places.js";

/**
 * @typedef {object} Link
 * @property {string} id
 * @property {"exact"|"fused"|"inferred"|"none"} confidence How sure it is that this belongs to what is selected.
 *
 * @typedef {object} Chain
 * @property {string} id What is selected.
 * @property {string} kind The part of the id before the colon.
 * @property {string} label Its name for people.
 * @property {Link[]} lines @property {Link[]} modules @property {Link[]} nodes @property {Link[]} partitions
 * @property {Link[]} models @property {Link[]} onnx @property {Link[]} sessions @property {Link[]} kernels
 * @property {Link[]} graphs @property {Link[]} graph_inputs @property {Link[]} breaks @property {Link[]} recompiles @property {Link[]} findings
 *
 * @typedef {object} Identity
 * @property {(id: string) => Chain|null} chain Null for an id that names nothing here.
 * @property {(table: string, row: number) => string|null} idOf Id of a row of a table.
 * @property {(id: string) => {table: string, row: number}|null} rowOf The row that an id names; null for modules, lines
 *   and ONNX nodes, which have none.
 * @property {(id: string) => number[]} nodeRows Rows of `nodes` that an id stands for.
 * @property {(id: string) => string} label
 * @property {(id: string) => boolean} has
 */

/** Links of a chain in reading order: from what the user wrote to what the machine ran. */
export const STEPS = ["lines", "modules", "graphs", "graph_inputs", "nodes", "partitions", "models", "onnx", "sessions", "kernels", "breaks", "recompiles", "findings"];

const RANK = { exact: 0, fused: 1, inferred: 2, none: 3 };

/** Tables whose rows are about something that has an id of its own. */
const ABOUT = {
  fallbacks: (get) => `node:${get("graph_id")}/${get("node")}`,
  findings: (_get, row) => `finding:${row}`,
  runs: (_get, row) => `run:${row}`,
  actions: (get) => get("subject_id"),
  ledger: (get) => `graph:${get("graph_id")}`,
  roofline: (get) => `kernel:${get("session_id")}/${get("kernel")}`,
};

/** @returns {"exact"|"fused"|"inferred"|"none"} A chain is as sure as its least sure link. */
export const weaker = (a, b) => (RANK[b] > RANK[a] ? b : a);
const stronger = (a, b) => (RANK[b] < RANK[a] ? b : a);

/** Links without repetition, the surest confidence of each, in order of first mention. */
class Links {
  #found = new Map();
  add(id, confidence = "exact") {
    const known = this.#found.get(id);
    this.#found.set(id, known === undefined ? confidence : stronger(known, confidence));
  }
  list() {
    return [...this.#found].map(([id, confidence]) => ({ id, confidence }));
  }
}

/**
 * @param {import("./data.js").Data} data
 * @returns {Identity}
 */
export function createIdentity(data) {
  let made = null;
  const places = () => (made ??= new Places(data)); // a view that nobody touches needs none of it
  const nodes = data.table("nodes");

  function idOf(table, row) {
    const get = (column) => data.table(table).get(row, column);
    if (ABOUT[table]) return ABOUT[table](get, row);
    if (table === "numerics") return numericId(get);
    const key = KEYS[table];
    return key ? `${key[0]}:${key.slice(1).map(get).join("/")}` : null;
  }

  function numericId(get) {
    const partition = places().row(`partition:${get("partition_id")}`);
    if (partition) return `node:${data.table("partitions").get(partition.row, "graph_id")}/${get("node")}`;
    return get("file") === null ? null : `line:${get("file")}:${get("line")}`; // of a whole call: its function
  }

  const rowOf = (id) => places().row(id) ?? null;
  const rowsWhere = (column, value) => data.index("nodes", column).get(value) ?? [];

  /** Rows of nodes, with how sure each is. */
  function nodesOf(id) {
    const found = rowOf(id);
    const sure = (rows) => rows.map((row) => [row, "exact"]);
    if (!found) return withoutRow(id);
    const get = (column) => data.table(found.table).get(found.row, column);
    switch (found.table) {
      case "nodes":
        return [[found.row, "exact"]];
      case "graphs":
        return sure(rowsWhere("graph_id", get("graph_id")));
      case "graph_inputs":
        return sure(rowsWhere("graph_id", get("graph_id")).filter((row) => nodes.get(row, "inputs")?.includes(get("input"))));
      case "kernels":
        return places().kernelNodes(found.row).map((row) => [row, get("confidence") ?? "none"]);
      case "partitions":
      case "models":
      case "sessions":
        return sure(rowsWhere("partition_id", get("partition_id")));
      case "runs":
        return get("session_id") === null ? sure(rowsWhere("graph_id", get("graph_id"))) : nodesOf(`session:${get("session_id")}`);
      case "recompiles":
        return sure(graphsCompiled([get("compile_id")]).flatMap((graph) => rowsWhere("graph_id", graph)));
      case "findings":
        return subjectNodes(get);
      default:
        return sure(places().lines.get(lineId(get("file"), get("line"))) ?? []);
    }
  }

  function withoutRow(id) {
    const { modules, lines, onnx } = places();
    const rows = modules.get(id) ?? lines.get(id) ?? [];
    return onnx.has(id) ? onnx.get(id).map((row) => [row, onnxConfidence(row, id)]) : rows.map((row) => [row, "exact"]);
  }

  function onnxConfidence(row, id) {
    const at = (nodes.get(row, "onnx_nodes") ?? []).findIndex((name) => id.endsWith(`/${name}`));
    return nodes.get(row, "onnx_confidences")?.[at] ?? "exact";
  }

  /** A finding names its subject by id or by name; where that names nothing, its line does. */
  function subjectNodes(get) {
    const id = subjectId(get("subject"));
    if (id) return nodesOf(id);
    const placed = places().lines.get(lineId(get("file"), get("line")));
    return (placed ?? rowsWhere("target", get("subject"))).map((row) => [row, "exact"]);
  }

  function subjectId(subject) {
    if (!subject) return null;
    const kinds = ["graph", "partition", "session", "break", "node", "model"];
    const kind = kinds.find((candidate) => rowOf(`${candidate}:${subject}`));
    if (kind) return `${kind}:${subject}`;
    const kernel = `kernel:${subject.replace(":", "/")}`; // written `s0:name`
    return rowOf(kernel) ? kernel : null;
  }

  function graphsCompiled(compiled) {
    const wanted = new Set(compiled);
    const graphs = data.table("graphs");
    return Array.from(graphs.column("graph_id")).filter((_, row) => wanted.has(graphs.get(row, "compile_id")));
  }

  function chain(id) {
    if (!has(id)) return null;
    const links = Object.fromEntries(STEPS.map((step) => [step, new Links()]));
    const found = rowOf(id);
    if (found) addOwn(links, found);
    else if (places().lines.has(id)) links.lines.add(id);
    for (const [row, confidence] of nodesOf(id)) addNode(links, row, confidence, id);
    addSiblings(links, id);
    const lists = Object.fromEntries(STEPS.map((step) => [step, links[step].list().filter((link) => named(step, link.id))]));
    return { id, kind: id.slice(0, id.indexOf(":")), label: label(id), ...lists };
  }

  /** What the row itself names, known also where no node is. */
  function addOwn(links, { table, row }) {
    const get = (column) => data.table(table).get(row, column);
    if (get("file")) links.lines.add(lineId(get("file"), get("line")));
    if (get("graph_id")) links.graphs.add(`graph:${get("graph_id")}`);
    if (get("partition_id")) links.partitions.add(`partition:${get("partition_id")}`);
    if (get("model_id")) links.models.add(`model:${get("model_id")}`);
    if (get("session_id")) links.sessions.add(`session:${get("session_id")}`);
    if (table === "kernels") for (const onnx of kernelOnnx(idOf(table, row))) links.onnx.add(onnx, get("confidence") ?? "none");
    if (table === "breaks") for (const graph of graphsCompiled(get("compile_ids") ?? [])) links.graphs.add(`graph:${graph}`);
    if (table === "recompiles") for (const graph of graphsCompiled([get("compile_id"), get("of_compile_id")])) links.graphs.add(`graph:${graph}`);
    const subject = table === "findings" ? subjectId(get("subject")) : null;
    const own = subject && rowOf(subject);
    if (own && own.table !== "findings") addOwn(links, own);
    if (KEYS[table]) links[table]?.add(idOf(table, row));
  }

  function addNode(links, row, confidence, id) {
    const { modelOf, sessionsOf, kernelsOf } = places();
    const graph = nodes.get(row, "graph_id");
    links.nodes.add(`node:${graph}/${nodes.get(row, "node")}`, confidence);
    links.graphs.add(`graph:${graph}`); // whichever of the nodes it is, they are all of this graph and partition
    if (id === idOf("nodes", row)) for (const name of nodes.get(row, "inputs") ?? []) links.graph_inputs.add(`input:${graph}/${name}`);
    if (nodes.get(row, "file")) links.lines.add(lineId(nodes.get(row, "file"), nodes.get(row, "line")), confidence);
    if (nodes.get(row, "module")) links.modules.add(`module:${graph}/${nodes.get(row, "module")}`, confidence);
    const partition = nodes.get(row, "partition_id");
    if (partition === null) return;
    links.partitions.add(`partition:${partition}`);
    const model = modelOf.get(partition);
    if (model) links.models.add(`model:${model}`);
    const sures = nodes.get(row, "onnx_confidences") ?? [];
    if (model) (nodes.get(row, "onnx_nodes") ?? []).forEach((name, at) => addOnnx(links, `onnx:${model}/${name}`, weaker(confidence, sures[at] ?? "exact"), id));
    for (const session of sessionsOf.get(partition) ?? []) if (!/^(session|kernel|run):/.test(id)) links.sessions.add(idOf("sessions", session));
    for (const kernel of kernelsOf.get(row) ?? []) addKernel(links, kernel, confidence, id);
  }

  // Of a selected ONNX node or kernel, its neighbours under the same node are not meant.
  function addOnnx(links, onnx, confidence, id) {
    const known = id.startsWith("kernel:") && kernelOnnx(id).length > 0; // the profile names them itself
    if (!known && (!id.startsWith("onnx:") || onnx === id)) links.onnx.add(onnx, confidence);
  }

  function addKernel(links, row, confidence, id) {
    const kernel = idOf("kernels", row);
    if (id.startsWith("kernel:") && kernel !== id) return;
    if (id.startsWith("session:") && `session:${data.table("kernels").get(row, "session_id")}` !== id) return;
    const named = kernelOnnx(kernel);
    if (id.startsWith("onnx:") && named.length && !named.includes(id)) return;
    links.kernels.add(kernel, weaker(confidence, data.table("kernels").get(row, "confidence") ?? "none"));
  }

  /** Ids of the ONNX nodes that a kernel computes, where the profile lists them. */
  function kernelOnnx(kernel) {
    const get = (column) => data.table("kernels").get(rowOf(kernel).row, column);
    const session = rowOf(`session:${get("session_id")}`);
    const model = session && places().modelOf.get(data.table("sessions").get(session.row, "partition_id"));
    return model ? (get("onnx_nodes") ?? []).map((name) => `onnx:${model}/${name}`).filter((onnx) => places().onnx.has(onnx)) : [];
  }

  /** Models, sessions, breaks and findings that are about what was found so far. */
  function addSiblings(links, id) {
    const partitions = links.partitions.list();
    for (const { id: partition } of partitions) {
      const name = partition.slice("partition:".length);
      for (const row of places().modelsOf.get(name) ?? []) links.models.add(idOf("models", row));
      if (/^(session|kernel|run):/.test(id)) continue; // those are of one session
      for (const row of places().sessionsOf.get(name) ?? []) links.sessions.add(idOf("sessions", row));
    }
    const lines = new Set(links.lines.list().map((link) => link.id));
    const graphs = data.table("graphs");
    for (let row = 0; row < graphs.rows; row++) if (id === lineId(graphs.get(row, "file"), graphs.get(row, "line"))) links.graphs.add(idOf("graphs", row));
    for (const [table, step] of [["breaks", "breaks"], ["recompiles", "recompiles"], ["findings", "findings"]]) {
      const { rows, get } = data.table(table);
      for (let row = 0; row < rows; row++) {
        const related = idOf(table, row);
        if (related === id || (get(row, "file") && lines.has(lineId(get(row, "file"), get(row, "line"))))) links[step].add(related);
        else if (table === "findings" && subjectId(get(row, "subject")) === id) links[step].add(related);
      }
    }
  }

  /** Whether there is what a row refers to; in a part of a capture, it may be missing. Of lines, tables and panels read no rows. */
  const named = (step, id) => step === "lines" || has(id);

  function has(id) {
    const { modules, lines, onnx } = places();
    return rowOf(id) !== null || modules.has(id) || lines.has(id) || onnx.has(id);
  }

  function label(id) {
    const found = rowOf(id);
    const get = (column) => data.table(found.table).get(found.row, column);
    const rest = id.slice(id.indexOf(":") + 1);
    if (!found) return id.startsWith("line:") ? shortPlace(rest) : rest.slice(rest.indexOf("/") + 1);
    if (found.table === "graphs") return [get("compile_id") ?? rest, get("name"), get("role") ?? (get("phase") === "inference" ? null : get("phase"))].filter(Boolean).join(" ");
    if (found.table === "graph_inputs") return get("name");
    if (found.table === "nodes") return get("node");
    if (found.table === "kernels") return get("kernel");
    if (found.table === "breaks" || found.table === "findings") return get("reason") ?? get("title") ?? rest;
    if (found.table === "runs") return `call ${get("call")} of ${get("session_id") ?? get("graph_id")}`;
    return rest;
  }

  const nodeRows = (id) => nodesOf(id).map(([row]) => row);
  return { chain, idOf, rowOf, nodeRows, label, has };
}

/** @returns {string} The last folder and the file of a path that ends in `:line`. */
function shortPlace(place) {
  return place.replaceAll("\\", "/").split("/").slice(-2).join("/").replace(/^\//, "");
}
