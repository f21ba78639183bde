// The command palette, as data: everything that has a name, where it leads, and what fits some words.
import { clipped, functionName, place, visible } from "./format.js";

/**
 * @typedef {{group: string, label: string, detail: string, patch: object, words: string}} Jump `patch` is what the store is set to.
 */

const MOST = 40;

/**
 * @param {import("./store.js").Store} store
 * @param {{id: string, label: string}[]} panels
 * @returns {Jump[]} In the order in which groups are shown.
 */
export function jumpsOf(store, panels) {
  const { data, identity } = store;
  const jumps = [];
  const add = (group, label, detail, patch) => jumps.push({ group, label: clipped(label, 120), detail: clipped(detail, 120), patch, words: `${label} ${detail} ${group}`.slice(0, 600).toLowerCase() });
  for (const { id, label } of panels) add("Panel", label, "", { tab: id });
  for (const name of data.tableNames) add("Table", name, `${data.table(name).rows} rows`, { tab: "tables", table: name });
  (data.overview.actions ?? []).forEach((action) => add("Action", action.title, `${action.gain} ${action.where}`, { tab: "actions", ...(identity.has(action.id ?? "") ? { selected: action.id } : {}) }));
  each(data, "findings", (get, row) => add("Finding", get("title") ?? "", get("rule") ?? "", { tab: "findings", selected: `finding:${row}` }));
  each(data, "breaks", (get) => add("Graph break", get("source") ?? get("reason"), place(get("file"), get("line")), { tab: "breaks", selected: `break:${get("break_id")}` }));
  each(data, "graphs", (get) => add("Graph", `${get("compile_id") ?? get("graph_id")} ${functionName(get("name"))}`, get("phase") ?? "", { tab: "graph", selected: `graph:${get("graph_id")}` }));
  each(data, "partitions", (get) => add("Partition", get("partition_id"), `${get("node_count")} nodes`, { tab: "graph", groupBy: "partition", selected: `partition:${get("partition_id")}` }));
  addPlaces(data, add);
  each(data, "nodes", (get) => add("Operator", get("target") ?? "", [get("node"), get("module")].filter(Boolean).join(" "), { tab: "graph", selected: `node:${get("graph_id")}/${get("node")}` }));
  each(data, "graph_inputs", (get) => add("Input", get("name"), get("shape")?.join("×") ?? "", { tab: "graph", selected: `input:${get("graph_id")}/${get("input")}` }));
  each(data, "kernels", (get) => add("Kernel", get("kernel") ?? "", get("op_type") ?? "", { tab: "flame", selected: `kernel:${get("session_id")}/${get("kernel")}` }));
  return jumps;
}

function each(data, name, take) {
  const table = data.table(name);
  for (let row = 0; row < table.rows; row++) take((column) => table.get(row, column), row);
}

/** Lines and modules, each once. */
function addPlaces(data, add) {
  const [lines, modules] = [new Set(), new Set()];
  each(data, "nodes", (get) => {
    const [file, path] = [get("file"), get("module")];
    if (file && !lines.has(`${file}:${get("line")}`)) {
      lines.add(`${file}:${get("line")}`);
      add("Line", get("source")?.trim() || place(file, get("line")), place(file, get("line")), { tab: "source", selected: `line:${file}:${get("line")}` });
    }
    const module = path && `${get("graph_id")}/${path}`;
    if (module && !modules.has(module)) {
      modules.add(module);
      add("Module", visible(path), get("module_type") ?? "", { tab: "graph", groupBy: "module", selected: `module:${module}` });
    }
  });
}

/**
 * @param {Jump[]} jumps
 * @param {string} text
 * @returns {Jump[]} What holds all words; names that begin with them first, then in the order of groups.
 */
export function found(jumps, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const [best, good] = [[], []];
  for (const jump of jumps) {
    if (!words.every((word) => jump.words.includes(word))) continue;
    (words.length && jump.label.toLowerCase().startsWith(words[0]) ? best : good).push(jump);
    if (best.length >= MOST) break;
  }
  return [...best, ...good].slice(0, MOST);
}
