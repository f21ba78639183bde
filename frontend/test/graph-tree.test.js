import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { around, groupsIn } from "../src/graph/item.js";
import { MAX_CHILDREN } from "../src/graph/fold.js";
import { openFirst } from "../src/graph/opening.js";
import { sequenceWires } from "../src/graph/sequence.js";
import { shortTarget } from "../src/graph/tree.js";
import { GROUPINGS, RECORDED, chain, madeUp, opened, recorded, treeOf } from "./graphs.js";
import { pieces } from "./pieces.js";

const titles = (item) => item.children.map((child) => child.title);
const find = (tree, title) => [...groupsIn(tree.root)].find((item) => item.title === title);

for (const name of [...RECORDED, "pieces"]) {
  for (const groupBy of GROUPINGS) {
    test(`${name} by ${groupBy}: every node stands in one box, and every count is the sum of its children`, async () => {
      const data = await (name === "pieces" ? pieces() : recorded(name));
      const tree = treeOf(data, groupBy);
      assert.equal(new Set(tree.order).size, tree.ops.count);
      for (let row = 0; row < tree.ops.count; row++) {
        const leaf = tree.leaf(row);
        assert.equal(leaf.row, row);
        assert.equal(tree.order[leaf.low], row);
        assert.ok(around(leaf).every((outer) => outer.holds(leaf)));
      }
      for (const item of groupsIn(tree.root)) {
        assert.equal(item.size, item.children.reduce((sum, child) => sum + child.size, 0));
        assert.equal(item.torch, item.children.reduce((sum, child) => sum + child.torch, 0));
        assert.equal(item.ort, item.children.reduce((sum, child) => sum + child.ort, 0));
        assert.ok(item.parts.length <= MAX_CHILDREN);
      }
      const { ort, torch } = tree.counted(tree.root);
      assert.deepEqual([ort, ort + torch], [data.overview.coverage.ort_node_count, data.overview.coverage.node_count]);
    });
  }
}

describe("by module", () => {
  test("32 equal layers are one box, named after its ends", async () => {
    const tree = treeOf(await recorded("llama"));
    const layers = find(tree, "layers.0–31");
    assert.equal(layers.kind, "fold");
    assert.deepEqual([layers.times, layers.kinds, layers.children.length, layers.note], [32, 1, 32, "LlamaDecoderLayer"]);
    assert.equal(new Set(layers.children.map((layer) => layer.size)).size, 1);
    assert.equal(layers.children[7].title, "layers.7");
    assert.equal(tree.byId.get("module:g0/model.layers")[0], layers);
    assert.equal(tree.byId.get("module:g0/model.layers.7")[0], layers.children[7]);
  });

  test("a first layer that differs stays beside the fold of the others", async () => {
    const tree = treeOf(await recorded("resnet"));
    assert.deepEqual(titles(find(tree, "stages.1.layers")), ["layers.0", "layers.1–3"]);
    assert.deepEqual(titles(find(tree, "stages.2.layers")), ["layers.0", "layers.1–5"]);
  });

  test("only neighbours are folded: what runs between layers stands between them, and no wire leads back", () => {
    const modules = Array.from({ length: 6 }, (_, at) => [`net.blocks.${at}`, `net.blocks.${at}`, ...(at > 2 ? [null] : [])]).flat();
    const tree = treeOf(madeUp(chain(modules.length, (at) => ({ module: modules[at] }))));
    assert.deepEqual(titles(tree.root), ["net.blocks.0–3", "sin", "net.blocks.4", "sin", "net.blocks.5", "sin"]);
    opened(tree);
    for (const group of groupsIn(tree.root)) assert.ok(group.plan.routes.every((route) => !route.back));
  });

  test("layers that PyTorch has a part in are not folded with those that it has none in", async () => {
    const blocks = find(treeOf(await recorded("partitions")), "blocks.0–21");
    assert.deepEqual([blocks.times, blocks.kinds, blocks.note], [22, 2, "2 kinds"]);
    assert.ok(blocks.children.every((block, at) => block.torch === at % 2));
  });

  test("a module that holds nothing but another one is that one, under both ids", () => {
    const tree = treeOf(madeUp([{ node: "a", module: "outer.inner" }, { node: "b", module: "outer.inner" }, { node: "c" }]));
    const [module] = tree.root.children;
    assert.equal(module.title, "outer.inner");
    assert.equal(tree.byId.get("module:g0/outer")[0], module);
    assert.equal(tree.byId.get("module:g0/outer.inner")[0], module);
  });

  test("a module of one operation is that operation, and says whose it is", () => {
    const tree = treeOf(madeUp([{ node: "a", module: "net.act" }, { node: "b" }]));
    assert.deepEqual([tree.root.children[0].title, tree.root.children[0].note, tree.root.children[0].id], ["sin", "net.act", "node:g0/a"]);
  });

  test("what a module does itself between its submodules is one box, before and after each on its own", () => {
    const own = (from, count) => Array.from({ length: count }, (_, at) => ({ node: `o${from + at}`, module: "net" }));
    const tree = treeOf(madeUp([...own(0, 6), { node: "x", module: "net.sub" }, { node: "y", module: "net.sub" }, ...own(6, 7), { node: "z" }]));
    assert.deepEqual(titles(tree.root.children[0]), ["6 operators", "sub", "7 operators"]);
  });

  test("a path of 5,000 modules does not reach the stack's end", () => {
    const path = Array(5000).fill("m").join(".");
    const tree = treeOf(madeUp(chain(6, (at) => ({ module: `${path}.${at % 2}` }))));
    assert.ok(Math.max(...[...groupsIn(tree.root)].map((item) => item.depth)) < 30);
    assert.equal(tree.root.ort, 6);
  });

  test("sums of gradients, which no module made, stand where what they sum comes from", async () => {
    const tree = treeOf(await recorded("training"));
    const backward = tree.graphs[3];
    assert.deepEqual(backward.children.map((child) => child.title), ["115 inputs", "lm_head", "transformer", "52 outputs"]);
    const layers = [...groupsIn(backward)].find((item) => item.title === "h.3–0");
    assert.deepEqual([layers.times, layers.kinds], [4, 1]);
  });

  test("nodes without a module stand beside the modules", () => {
    const tree = treeOf(madeUp([{ node: "a" }, { node: "b", module: "net" }, { node: "c", module: "net" }]));
    assert.deepEqual(tree.root.children.map((child) => child.kind), ["op", "module"]);
  });
});

describe("by partition", () => {
  test("partitions and what PyTorch runs between them stand in running order", async () => {
    const tree = treeOf(await recorded("partitions"), "partition");
    const kinds = tree.root.children.filter((child) => child.kind === "partition" || child.torch);
    assert.equal(kinds.filter((child) => child.kind === "partition").length, 12);
    assert.deepEqual(kinds.map((child) => (child.torch ? "PyTorch" : child.title)), Array.from({ length: 23 }, (_, at) => (at % 2 ? "PyTorch" : `p${at / 2}`)));
    assert.ok(kinds.every((child) => !child.torch || !child.ort));
  });

  test("nodes in PyTorch that hang together are one piece, unless a partition runs between them", () => {
    const nodes = [
      { node: "a", partition: null },
      { node: "b", inputs: ["a"], partition: null },
      { node: "c", inputs: ["b"], partition: "p0" },
      { node: "d", inputs: ["c", "b"], partition: null },
    ];
    const pieces = treeOf(madeUp(nodes), "partition").root.children;
    assert.deepEqual(pieces.map((piece) => [piece.kind, piece.size]), [["torch", 2], ["partition", 1], ["op", 1]]);
  });

  test("a size that PyTorch computes for a partition stands in that partition", () => {
    const data = madeUp([{ node: "a" }, { node: "s", partition: null }, { node: "b", inputs: ["s", "a"] }]);
    const columns = data.table("nodes");
    const tree = treeOf({ ...data, table: (name) => (name === "nodes" ? { ...columns, column: (wanted) => (wanted === "kind" ? ["compute", "size", "compute"] : columns.column(wanted)) } : data.table(name)) }, "partition");
    assert.deepEqual(tree.root.children.map((child) => [child.kind, child.size]), [["partition", 3]]);
    assert.deepEqual([tree.root.ort, tree.root.torch], [2, 0]);
  });

  test("partitions that wait for each other are told, in order", () => {
    const nodes = [{ node: "a" }, { node: "b", inputs: ["a", "d"], partition: "p1" }, { node: "c", inputs: ["b"] }, { node: "d", inputs: ["c"], partition: "p1" }];
    const tree = treeOf(madeUp(nodes), "partition");
    assert.deepEqual([...tree.root.cycle].sort(), ["p0", "p1"]);
    assert.deepEqual(titles(tree.root), ["p0", "p1"]);
  });

  test("recorded cuts hold no cycle", async () => {
    for (const name of RECORDED) for (const graph of treeOf(await recorded(name), "partition").graphs) assert.deepEqual(graph.cycle, []);
  });
});

describe("sizes", () => {
  test("20,000 nodes without modules are pages of pages, all about equal", () => {
    const tree = treeOf(madeUp(chain(20_000)));
    const groups = [...groupsIn(tree.root)];
    assert.ok(groups.every((item) => item.parts.length <= MAX_CHILDREN));
    assert.deepEqual(titles(tree.root).slice(0, 2), ["1–100 of 20,000", "101–200 of 20,000"]);
    const sizes = groups.filter((item) => item.kind === "page").map((item) => item.size);
    assert.equal(Math.min(...sizes), Math.max(...sizes));
  });

  test("several graphs stand under one root; one graph is the root", async () => {
    const tree = treeOf(await recorded("training"));
    assert.deepEqual([tree.root.kind, titles(tree.root)], ["all", ["g0", "g1", "g2", "g3"]]);
    assert.equal(treeOf(await recorded("llama")).root.kind, "graph");
  });

  test("a graph of no node, and of one", () => {
    assert.equal(treeOf(madeUp([])).root.size, 0);
    assert.deepEqual(titles(treeOf(madeUp([{ node: "relu", target: "aten.relu.default" }])).root), ["relu"]);
  });

  test("more than four inputs are one box; weights stand at their first reader", () => {
    const inputs = ["a", "b", "c", "d", "e", "w"];
    const tree = treeOf(madeUp([{ node: "n", inputs }, { node: "m", inputs: ["n", "w"] }], { inputs, weights: ["w"] }));
    assert.deepEqual(titles(tree.root), ["5 inputs", "sin", "sin"]);
    assert.deepEqual([...tree.ops.weights], [[0, [{ name: "w", shape: null, bytes: 8, shared: true }]]]);
  });
});

test("names like those of an object's own parts are names", () => {
  const names = ["constructor", "__proto__", "toString", "", "<script>alert(1)</script>", "a".repeat(10_000)];
  const tree = treeOf(madeUp(names.map((node, at) => ({ node, inputs: at ? [names[at - 1]] : [], module: `${names.at(-at)}.x`, target: node }))));
  assert.equal(tree.root.ort, names.length);
  assert.equal(tree.ops.inRow.length, names.length - 1);
});

test("operators are named without their namespace and overload", () => {
  const cases = { "aten.add.Tensor": "add", "operator.mul": "mul", "prims.convert_element_type.default": "convert_element_type", "mylib::fused.default": "fused", relu: "relu", "": "operator" };
  for (const [target, name] of Object.entries(cases)) assert.equal(shortTarget(target), name);
  assert.equal(shortTarget(null), "operator");
});

describe("a model that was compiled anew", () => {
  test("shows what runs now in order, each parted by its break; what was replaced is one closed box", async () => {
    const tree = treeOf(await pieces());
    const now = tree.root.children.filter((item) => item.kind === "graph");
    const earlier = tree.root.children.at(-1);
    assert.deepEqual(now.map((item) => item.title), ["g8", "g9", "g10", "g11", "g12", "g15"]);
    assert.deepEqual([earlier.kind, earlier.title, earlier.children.length, earlier.old], ["versions", "10 other versions", 10, true]);
    assert.ok(now.every((item) => !item.old) && earlier.children.every((item) => item.old));
    openFirst(tree.root);
    assert.equal(earlier.open, false);
    const { wires } = sequenceWires(tree, tree.root);
    assert.deepEqual(wires.map(({ from, to }) => [from, to]), [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]);
    assert.equal(new Set(wires.map(({ id }) => id)).size, 5);
    assert.ok(wires.every(({ id, label }) => id.startsWith("break:") && label === "✂ graph break"));
    assert.ok(sequenceWires(tree, earlier).wires.some(({ id }) => id.startsWith("recompile:")));
  });

  test("two that say they replaced each other do not hang the order", async () => {
    const data = await pieces();
    const of = data.table("graphs").column("recompile_of");
    const compiled = data.table("graphs").column("compile_id");
    const first = compiled.indexOf(of.find((value) => value !== null));
    of[first] = compiled[of.findIndex((value) => value === compiled[first])];
    const tree = treeOf(data);
    assert.ok(sequenceWires(tree, tree.root).wires.length >= 4);
  });
});
