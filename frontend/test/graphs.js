// Trees over recorded captures, and over nodes made up for what no real capture has.
import { readFileSync } from "node:fs";
import { createData, payloadFromBytes } from "../src/data.js";
import { groupsIn, setOpen } from "../src/graph/item.js";
import { createLabels } from "../src/graph/labels.js";
import { Layout } from "../src/graph/layout.js";
import { createOps } from "../src/graph/ops.js";
import { Font } from "../src/graph/text.js";
import { Tree } from "../src/graph/tree.js";
import { handMade } from "./pieces.js";

export const RECORDED = ["llama", "resnet", "training", "partitions"];
export const GROUPINGS = ["module", "partition"];

const kept = new Map();

/** @returns {Promise<import("../src/data.js").Data>} */
export async function recorded(name) {
  if (!kept.has(name)) kept.set(name, payloadFromBytes(readFileSync(new URL(`captures/${name}.payload.gz`, import.meta.url))));
  return createData(await kept.get(name));
}

export const treeOf = (data, groupBy = "module") => new Tree(createOps(data), groupBy);

export function layoutOf(tree) {
  return new Layout(tree, createLabels(tree), new Font());
}

/** Opens every group of a tree and lays all of it out. */
export function opened(tree) {
  for (const item of groupsIn(tree.root)) setOpen(item, true);
  const layout = layoutOf(tree);
  layout.place(tree.root);
  return layout;
}

/**
 * @param {{node: string, inputs?: string[], module?: string|null, partition?: string|null, target?: string, graph?: string}[]} nodes
 * @param {{inputs?: string[], weights?: string[]}} [about] The graph's own inputs.
 */
export function madeUp(nodes, { inputs = [], weights = [] } = {}) {
  const texts = [];
  const code = (text) => {
    if (text === null || text === undefined) return -1;
    if (!texts.includes(text)) texts.push(text);
    return texts.indexOf(text);
  };
  const text = (values) => ({ kind: "str", enc: "text", codes: values.map(code) });
  const lists = (values) => ({ kind: "list", enc: "lists", text: true, items: values.flat().map(code), lengths: values.map((list) => list.length) });
  const graphs = [...new Set(nodes.map(({ graph = "g0" }) => graph))];
  const tables = {
    graphs: {
      rows: graphs.length,
      columns: { graph_id: text(graphs), inputs: lists(graphs.map(() => inputs)), weights: lists(graphs.map(() => weights)), input_sizes: { kind: "list", enc: "lists", items: graphs.flatMap(() => inputs.map(() => 8)), lengths: graphs.map(() => inputs.length) } },
    },
    nodes: {
      rows: nodes.length,
      columns: {
        graph_id: text(nodes.map(({ graph = "g0" }) => graph)),
        node: text(nodes.map(({ node }) => node)),
        target: text(nodes.map(({ target = "aten.sin.default" }) => target)),
        inputs: lists(nodes.map(({ inputs: read = [] }) => read)),
        module: text(nodes.map(({ module = null }) => module)),
        partition_id: text(nodes.map(({ partition = "p0" }) => partition)),
        output_bytes: { kind: "int", enc: "ints", values: nodes.map(() => 4) },
      },
    },
  };
  return createData(handMade(tables, texts));
}

/** Nodes in a row, each reading the one before. */
export const chain = (count, about = () => ({})) => Array.from({ length: count }, (_, at) => ({ node: `n${at}`, inputs: at ? [`n${at - 1}`] : [], ...about(at) }));
