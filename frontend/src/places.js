// Everything that ids are looked up in. Names may hold any character, so no id is ever taken apart.
import KEYS from "../../ortlens/views/ids.json" with { type: "json" };

/** The kind of an id and the columns that make it up, by table; `ortlens/views/selection.py` has them from the same file. */
export { KEYS };

/** @returns {string} Id of a user line. */
export const lineId = (file, line) => `line:${file}:${line}`;

/** Everything that ids are looked up in, made once per capture. */
export class Places {
  constructor(data) {
    this.data = data;
    this.rows = new Map(); // id -> {table, row}
    for (const [name, [kind, ...columns]] of Object.entries(KEYS)) this.#addTable(name, kind, columns);
    this.#addNodes();
    this.#addLines();
    this.#addKernels();
    this.sessionsOf = data.index("sessions", "partition_id");
    this.modelsOf = data.index("models", "partition_id");
  }

  /** The row that an id names. Calls and findings have no names but their rows: a hundred thousand entries less. */
  row(id) {
    const numbered = /^(run|finding):(\d+)$/.exec(id);
    if (!numbered) return this.rows.get(id);
    const found = { table: `${numbered[1]}s`, row: Number(numbered[2]) };
    return found.row < this.data.table(found.table).rows ? found : undefined;
  }

  #put(id, table, row) {
    if (!this.rows.has(id)) this.rows.set(id, { table, row });
  }

  #addTable(name, kind, columns) {
    const table = this.data.table(name);
    const parts = columns.map((column) => table.column(column));
    for (let row = 0; row < table.rows; row++) this.#put(`${kind}:${parts.map((part) => part[row]).join("/")}`, name, row);
  }

  #addNodes() {
    const nodes = this.data.table("nodes");
    const [graphs, names, modules, files, lines, onnx, partitions] = ["graph_id", "node", "module", "file", "line", "onnx_nodes", "partition_id"].map(nodes.column);
    const modelOf = new Map();
    const models = this.data.table("models");
    for (let row = 0; row < models.rows; row++) modelOf.set(models.get(row, "partition_id"), models.get(row, "model_id"));
    this.modelOf = modelOf;
    this.modules = new Map(); // module id -> rows of nodes, those of inner modules too
    this.lines = new Map(); // line id -> rows of nodes
    this.onnx = new Map(); // onnx id -> rows of nodes
    this.nodeOf = new Map(); // graph -> name -> row
    for (let row = 0; row < nodes.rows; row++) {
      within(this.nodeOf, graphs[row], () => new Map()).set(names[row], row);
      if (files[row]) within(this.lines, lineId(files[row], lines[row]), () => []).push(row);
      for (const path of outwards(modules[row])) within(this.modules, `module:${graphs[row]}/${path}`, () => []).push(row);
      const model = modelOf.get(partitions[row]);
      if (model) for (const name of onnx[row] ?? []) within(this.onnx, `onnx:${model}/${name}`, () => []).push(row);
    }
  }

  /** A line where only a graph starts or breaks is one too; it has no nodes. */
  #addLines() {
    for (const name of this.data.tableNames) {
      const table = this.data.table(name);
      const [files, lines] = [table.column("file"), table.column("line")];
      for (let row = 0; row < table.rows; row++) if (files[row]) within(this.lines, lineId(files[row], lines[row]), () => []);
    }
  }

  #addKernels() {
    const kernels = this.data.table("kernels");
    this.kernelsOf = new Map(); // row of nodes -> rows of kernels
    for (let row = 0; row < kernels.rows; row++) {
      for (const node of this.kernelNodes(row)) within(this.kernelsOf, node, () => []).push(row);
    }
  }

  /** Rows of the nodes that a kernel computes. */
  kernelNodes(row) {
    const kernels = this.data.table("kernels");
    const session = this.rows.get(`session:${kernels.get(row, "session_id")}`);
    if (!session) return [];
    const partition = this.rows.get(`partition:${this.data.table("sessions").get(session.row, "partition_id")}`);
    const known = partition && this.nodeOf.get(this.data.table("partitions").get(partition.row, "graph_id"));
    if (!known) return [];
    const several = kernels.get(row, "nodes");
    const names = several?.length ? several : [kernels.get(row, "node")];
    return names.map((name) => known.get(name)).filter((found) => found !== undefined);
  }
}

/** @returns {any} What a map has under a key; made where there is nothing. */
export function within(map, key, make) {
  if (!map.has(key)) map.set(key, make());
  return map.get(key);
}

/** A module path and those around it: `a.b.c`, `a.b`, `a`. */
function outwards(path) {
  const paths = [];
  for (let at = path ? path.length : 0; at > 0; at = path.lastIndexOf(".", at - 1)) paths.push(path.slice(0, at));
  return paths;
}

