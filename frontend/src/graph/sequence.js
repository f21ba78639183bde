// Between graphs there are no tensors to follow, only the order in which they run: what parts them is named.
import { safe } from "./text.js";

/**
 * @param {import("./tree.js").Tree} tree
 * @param {import("./item.js").Item} item Whose children are graphs, or pages of them.
 * @returns {import("./wires.js").Wires} Each wire has `label`, `more` to say where there is room, and the `id` of a break or recompile.
 */
export function sequenceWires(tree, item) {
  const childOf = new Map();
  item.children.forEach((child, at) => graphsIn(child).forEach((graph) => childOf.set(graph, at)));
  const wires = new Map();
  for (const { from, to, ...about } of steps(tree)) {
    const [a, b] = [childOf.get(from), childOf.get(to)];
    if (a === undefined || b === undefined || a === b) continue;
    const key = `${a}>${b}`;
    if (!wires.has(key)) wires.set(key, { from: a, to: b, count: 1, cut: 0, cuts: false, ...about });
  }
  return { wires: [...wires.values()], stubs: new Map(), returned: new Set() };
}

const graphsIn = (item) => (item.kind === "graph" ? [item] : item.parts.flatMap(graphsIn));

/** Pairs of graphs of which one runs after the other. */
function steps(tree) {
  const { data } = tree.ops;
  const table = data.table("graphs");
  const about = tree.graphs.map((item) => {
    const get = (column) => (item.graph.row < 0 ? null : table.get(item.graph.row, column));
    return { item, compiled: get("compile_id"), phase: get("phase"), replaces: get("recompile_of") };
  });
  const first = about.filter(({ replaces }) => replaces === null);
  const forward = first.filter(({ phase }) => phase !== "backward");
  const backward = first.filter(({ phase }) => phase === "backward");
  const found = [...pairs(forward), ...turn(forward, backward), ...pairs(backward)].map(([a, b]) => ({ from: a.item, to: b.item, ...parting(data, a, b) }));
  for (const graph of about.filter(({ replaces }) => replaces !== null)) {
    const original = about.find(({ compiled, phase }) => compiled === graph.replaces && phase === graph.phase);
    if (original) found.push({ from: original.item, to: graph.item, label: "↻ recompiled", more: safe(guardOf(data, graph.compiled)), id: `recompile:${graph.compiled}` });
  }
  return found;
}

/** What failed, as Dynamo says it, without its comment. */
function guardOf(data, compiled) {
  const [row] = data.index("recompiles", "compile_id").get(compiled) ?? [];
  const recorded = row === undefined ? null : (data.table("recompiles").get(row, "guard") ?? data.table("recompiles").get(row, "reason"));
  return recorded ? recorded.split("  #")[0].trim() : "a guard failed";
}

const pairs = (graphs) => graphs.slice(1).map((graph, at) => [graphs[at], graph]);

/** The backward begins where the forward ended. */
const turn = (forward, backward) => (forward.length && backward.length ? [[forward.at(-1), backward[0]]] : []);

function parting(data, a, b) {
  if (a.phase !== "backward" && b.phase === "backward") return { label: "backward begins" };
  const breaks = data.table("breaks");
  const row = (data.index("breaks", "compile_ids").get(a.compiled) ?? [])[0];
  if (row === undefined || a.phase === "backward") return {};
  return { label: "✂ graph break", more: safe(breaks.get(row, "reason") ?? ""), id: `break:${breaks.get(row, "break_id")}` };
}
