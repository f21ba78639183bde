import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { Colours, MODES } from "../src/graph/colours.js";
import { createLabels } from "../src/graph/labels.js";
import { createMeasured } from "../src/graph/measured.js";
import { entriesOf } from "../src/lines.js";
import { openFirst } from "../src/graph/opening.js";
import { groupsIn } from "../src/graph/item.js";
import { listed, search } from "../src/graph/search.js";
import { Font, headOf, safe } from "../src/graph/text.js";
import { RECORDED, madeUp, recorded, treeOf } from "./graphs.js";
import { pieces } from "./pieces.js";

describe("what was measured", () => {
  let tree, measured, data;
  before(async () => {
    data = await pieces();
    tree = treeOf(data);
    measured = createMeasured(tree);
  });

  test("the time of all boxes is that of all kernels and of what PyTorch ran, as often as a call does", () => {
    const [kernels, fallbacks] = [data.table("kernels"), data.table("fallbacks")];
    const found = (table, key, id, column) => data.table(table).get(data.index(table, key).get(id)[0], column);
    const often = (graph) => entriesOf(data).get(graph);
    const graphOf = (session) => found("partitions", "partition_id", found("sessions", "session_id", session, "partition_id"), "graph_id");
    assert.equal(measured.timeFrom, "kernels");
    let whole = 0;
    for (let row = 0; row < kernels.rows; row++) if (kernels.get(row, "node") !== null) whole += kernels.get(row, "mean_ns") * often(graphOf(kernels.get(row, "session_id")));
    for (let row = 0; row < fallbacks.rows; row++) whole += fallbacks.get(row, "calls") ? (fallbacks.get(row, "total_ns") / fallbacks.get(row, "calls")) * often(fallbacks.get(row, "graph_id")) : 0;
    assert.ok(Math.abs(measured.totalTime - whole) < 1e-3 * whole);
    for (const item of groupsIn(tree.root)) {
      const parts = item.children.reduce((sum, child) => sum + (measured.timeOf(child) ?? 0), 0);
      assert.ok(Math.abs(parts - (measured.timeOf(item) ?? 0)) < 1);
    }
  });

  test("every compared value is found at its operation, and in every group around it", () => {
    const numerics = data.table("numerics");
    const checked = Array.from({ length: numerics.rows }, (_, row) => row).filter((row) => numerics.get(row, "ok") !== null && numerics.get(row, "scope") !== "call").length;
    assert.ok(checked > 0);
    assert.equal(measured.errorOf(tree.root).checked, checked);
  });

  test("without kernels the time of a partition stands at the groups that hold all of it, and at no operation", async () => {
    const other = await recorded("partitions");
    const whole = treeOf(other, "partition");
    const { timeFrom, timeOf } = createMeasured(whole);
    assert.equal(timeFrom, "sessions");
    for (const child of whole.root.children) if (child.kind === "partition") assert.ok(timeOf(child) > 0 && child.children.every((inner) => timeOf(inner) === null));
  });

  test("without a call there is no time", async () => {
    const { timeFrom, timeOf, hasErrors } = createMeasured(treeOf(await recorded("llama")));
    assert.deepEqual([timeFrom, timeOf(treeOf(await recorded("llama")).root), hasErrors], ["none", null, false]);
  });
});

for (const mode of Object.keys(MODES)) {
  test(`by ${mode}: whatever has a hue says in words what it means, or the legend does`, async () => {
    for (const name of RECORDED) {
      const tree = treeOf(await recorded(name));
      const colours = new Colours(tree, createLabels(tree), () => createMeasured(tree));
      const { entries, note } = colours.legend(mode);
      const hues = new Set([...entries.map(({ hue }) => hue), "neutral", null]);
      assert.ok(entries.every(({ words }) => words.length > 1));
      for (const item of groupsIn(tree.root)) {
        for (const child of item.children) {
          const look = colours.look(child, mode);
          const one = mode === "partition" && entries.length === 0; // one partition: the hue is ONNX Runtime's
          assert.ok(one || hues.has(look.hue) || look.tag !== "" || note !== "", `${name}: ${child.title} has ${look.hue}`);
        }
      }
    }
  });
}

describe("the opening view", () => {
  test("is small, whatever the model", async () => {
    for (const name of RECORDED) {
      const tree = treeOf(await recorded(name));
      openFirst(tree.root);
      const boxes = [...groupsIn(tree.root)].filter((item) => item.open).reduce((sum, item) => sum + item.parts.length, 0);
      assert.ok(boxes >= 5 && boxes <= 60, `${name}: ${boxes}`);
    }
  });

  test("layers that are alike stay folded; what PyTorch has a part in is open where there is room", async () => {
    const llama = treeOf(await recorded("llama"));
    openFirst(llama.root);
    const open = [...groupsIn(llama.root)].filter((item) => item.open).map((item) => item.title);
    assert.deepEqual(open, ["g0", "model"]);
    const partitions = treeOf(await recorded("partitions"));
    openFirst(partitions.root);
    assert.ok([...groupsIn(partitions.root)].find((item) => item.title === "blocks.0–21").open);
  });
});

describe("search", () => {
  test("all words must fit, in any of name, operator, module and partition", async () => {
    const tree = treeOf(await recorded("llama"));
    const { count, rows, groups } = search(tree, tree.root, "LAYERS.3.  mlp mm");
    assert.equal(count, 3);
    assert.ok(rows.every((row) => tree.ops.module[row].startsWith("model.layers.3.mlp")));
    assert.deepEqual(groups, []);
    assert.equal(search(tree, tree.root, "aten.mm.default").rows.length, 7 * 32 + 1);
    assert.ok(search(tree, tree.root, "LlamaMLP").groups.length > 0);
    assert.deepEqual(search(tree, tree.root, "  "), { rows: [], count: 0, groups: [] });
  });

  test("modules come first, and the list is short", async () => {
    const tree = treeOf(await recorded("llama"));
    const items = listed(tree, search(tree, tree.root, "self_attn"));
    assert.equal(items.length, 30);
    assert.equal(items[0].kind, "module");
  });
});

describe("names", () => {
  const font = new Font();
  test("are cut to their room, and what is cut inside an isolate is closed", () => {
    const arabic = safe("\u0645\u0631\u062d\u0628\u0627".repeat(20));
    const cut = font.clipped(arabic, 80, 12);
    assert.ok(font.widthOf(cut, 12) <= 80);
    assert.ok(cut.startsWith("\u2068") && cut.endsWith("…\u2069"));
    assert.equal(font.clipped("short", 200, 12), "short");
    assert.equal(headOf(arabic, 5), "\u2068\u0645\u0631\u062d…\u2069");
  });

  test("cannot break out of their isolate, turn the line round, or grow upwards", () => {
    assert.equal(safe("plain_name.0–31"), "plain_name.0–31");
    assert.equal(safe("a\u2069\u202eb"), "\u2068a\\u2069\\u202eb\u2069");
    assert.equal(safe(`z${"\u0301".repeat(50)}`), "\u2068z\u0301\u0301\u2069");
    assert.ok(safe("a".repeat(10_000)).length < 210);
  });

  test("a label's parts are isolated from each other", () => {
    const tree = treeOf(madeUp([{ node: "a", module: "\u0645\u0631" }, { node: "b", module: "x" }, { node: "c", module: "x" }]));
    assert.equal(createLabels(tree).note(tree.root.children[0]), "\u2068\u0645\u0631\u2069");
  });

  test("what is spoken says where it runs and why", async () => {
    const tree = treeOf(await recorded("partitions"));
    const labels = createLabels(tree);
    const torch = Array.from(tree.order).find((row) => tree.ops.side[row] === 1);
    assert.match(labels.spoken(tree.leaf(torch)), /^bessel_j0, .*stays in PyTorch: .*has no ONNX function/);
    assert.match(labels.spoken(tree.root), /11 of 123 nodes stay in PyTorch/);
  });
});
