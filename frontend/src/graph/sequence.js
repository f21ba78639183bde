// Between graphs there are no tensors to follow, only the order in which they run, and the break between them.
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

const FEW = 3; // earlier versions that are still drawn as what the others were made from

/** Pairs of graphs of which one runs after the other, or replaced it. */
function steps(tree) {
  const { data } = tree.ops;
  const table = data.table("graphs");
  const about = tree.graphs.map((item) => {
    const get = (column) => (item.graph.row < 0 ? null : table.get(item.graph.row, column));
    return { item, compiled: get("compile_id"), phase: get("phase"), replaces: get("recompile_of") };
  });
  const found = inOrder(about).map(([a, b]) => ({ from: a.item, to: b.item, ...parting(data, a, b) }));
  const few = about.filter(({ item }) => item.old).length <= FEW;
  for (const graph of about) {
    const before = replacedBy(about, graph);
    if (!before || (before.item.old && !graph.item.old && !few)) continue; // a wire from one box to all the others says nothing
    found.push({ from: before.item, to: graph.item, label: "↻ recompiled", more: safe(guardOf(data, graph.compiled)), id: `recompile:${graph.compiled}` });
  }
  return found;
}

const replacedBy = (about, graph) => (graph.replaces === null ? undefined : about.find(({ compiled, phase }) => compiled === graph.replaces && phase === graph.phase));

/** The versions that run now, each where its first version stood. */
function inOrder(about) {
  const families = new Map();
  for (const graph of about) {
    const first = origin(about, graph);
    const known = families.get(first);
    if (!known || !graph.item.old) families.set(first, graph);
  }
  const now = [...families.values()];
  const forward = now.filter(({ phase }) => phase !== "backward");
  const backward = now.filter(({ phase }) => phase === "backward");
  return [...pairs(forward), ...turn(forward, backward), ...pairs(backward)];
}

function origin(about, graph) {
  const seen = new Set(); // a damaged capture may say that two replaced each other
  let at = graph;
  for (let before = replacedBy(about, at); before && !seen.has(before); before = replacedBy(about, at)) {
    seen.add(before);
    at = before;
  }
  return at;
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
