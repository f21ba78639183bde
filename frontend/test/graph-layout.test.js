import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { HEADER, planOf } from "../src/graph/layout.js";
import { groupsIn, setOpen } from "../src/graph/item.js";
import { rankedLayout } from "../src/graph/rank.js";
import { HUB, wiresOf } from "../src/graph/wires.js";
import { Font } from "../src/graph/text.js";
import { GROUPINGS, RECORDED, chain, layoutOf, madeUp, opened, recorded, treeOf } from "./graphs.js";

const FONT = new Font();
const boxes = (count) => Array.from({ length: count }, () => ({ w: 100, h: 40, inX: 50, outX: 50 }));
const wire = (from, to, about = {}) => ({ from, to, count: 1, cut: 0, cuts: false, ...about });
const inARow = (count) => Array.from({ length: count - 1 }, (_, at) => wire(at, at + 1));

function assertApart(children) {
  const sorted = [...children].sort((a, b) => a.x - b.x);
  sorted.forEach((a, at) => {
    for (let next = at + 1; next < sorted.length && sorted[next].x < a.x + a.w - 0.01; next++) {
      const b = sorted[next];
      assert.ok(b.y >= a.y + a.h - 0.01 || a.y >= b.y + b.h - 0.01, `${a.title} and ${b.title} overlap`);
    }
  });
}

for (const name of RECORDED) {
  for (const groupBy of GROUPINGS) {
    test(`${name} by ${groupBy}, all open: boxes lie apart, inside their group; wires go from border to border`, async () => {
      const tree = treeOf(await recorded(name), groupBy);
      opened(tree);
      for (const item of groupsIn(tree.root)) {
        assertApart(item.children);
        for (const { x, y, w, h } of item.children) assert.ok(x >= 0 && y >= HEADER && x + w <= item.w && y + h <= item.h + 0.01);
        item.wires.wires.forEach(({ from, to }, at) => {
          const { points, back } = item.plan.routes[at];
          if (!points.length || back) return;
          if (from >= 0) assert.ok(Math.abs(points[1] - (item.children[from].y + item.children[from].h)) < 0.01);
          if (to >= 0) assert.ok(Math.abs(points.at(-1) - item.children[to].y) < 0.01);
          for (let bend = 0; bend < points.length; bend += 2) assert.ok(points[bend] >= -1 && points[bend] <= item.w + 1 && points[bend + 1] <= item.h + 1);
        });
      }
    });
  }
}

describe("wires", () => {
  test("of a real capture: what is drawn and what is named are all edges between the boxes", async () => {
    for (const name of RECORDED) {
      const tree = treeOf(await recorded(name));
      const { ops } = tree;
      for (const item of groupsIn(tree.root)) {
        if (item.kind === "all") continue;
        const { wires, stubs } = wiresOf(tree, item, false);
        const told = new Set(wires.map(({ from, to }) => `${from}>${to}`));
        const childOf = (row) => item.children.findIndex((child) => child.holds(tree.leaf(row)));
        for (let at = item.low; at < item.high; at++) {
          const row = tree.order[at];
          const to = childOf(row);
          for (let link = ops.inStart[row]; link < ops.inStart[row + 1]; link++) {
            const from = childOf(ops.inRow[link]);
            if (from >= 0 && from !== to) assert.ok(told.has(`${from}>${to}`) || stubs.get(to)?.includes(ops.inRow[link]));
          }
        }
      }
    }
  });

  test("a value that feeds many boxes is named at each instead of drawn", async () => {
    const tree = treeOf(await recorded("llama"));
    const layers = [...groupsIn(tree.root)].find((item) => item.title === "layers.0–31");
    const { wires, stubs } = wiresOf(tree, layers, true);
    assert.equal(stubs.size, 32);
    for (const rows of stubs.values()) assert.ok(rows.length >= 2, "the mask, and the rope tables");
    assert.equal(wires.filter(({ from, to }) => from >= 0 && to >= 0).length, 31);
  });

  test("what goes from one partition to another says its bytes, each value once", () => {
    const nodes = [{ node: "a" }, { node: "b", inputs: ["a"], partition: null }, { node: "c", inputs: ["a"], partition: null }, { node: "d", inputs: ["b", "c"], partition: "p1" }];
    const { wires } = wiresOf(treeOf(madeUp(nodes), "partition"), treeOf(madeUp(nodes), "partition").root, false);
    assert.deepEqual(wires.map(({ from, to, cut }) => [from, to, cut]), [[0, 1, 4], [0, 2, 4], [1, 3, 4], [2, 3, 4]]);
  });

  test(`up to ${HUB} readers are drawn`, () => {
    const fan = (count) => [{ node: "s" }, ...Array.from({ length: count }, (_, at) => ({ node: `n${at}`, inputs: ["s"] }))];
    const made = (count) => treeOf(madeUp(fan(count)));
    assert.equal(wiresOf(made(HUB), made(HUB).root).wires.length, HUB);
    const beyond = wiresOf(made(HUB + 1), made(HUB + 1).root);
    assert.deepEqual([beyond.wires.length, beyond.stubs.size], [0, HUB + 1]);
  });
});

describe("plans", () => {
  test("equal layers cost one run", async () => {
    const tree = treeOf(await recorded("llama"));
    const layout = opened(tree);
    assert.ok([...groupsIn(tree.root)].length > 400);
    assert.ok(layout.runs < 20, `${layout.runs} runs`);
  });

  test("opening a group lays out that group and those around it alone", async () => {
    const tree = treeOf(await recorded("llama"));
    const layout = layoutOf(tree);
    setOpen(tree.root, true);
    layout.place(tree.root);
    const before = layout.runs;
    const model = tree.root.children.find((item) => item.title === "model");
    setOpen(model, true);
    layout.place(tree.root);
    assert.equal(layout.runs, before + 2);
  });

  test("the same boxes and wires give the same plan, after others too", () => {
    const first = planOf(boxes(9), inARow(9), FONT);
    planOf(boxes(30), inARow(30), FONT);
    assert.deepEqual(planOf(boxes(9), inARow(9), FONT), first);
  });

  test("what dagre fails on, and what is too large for it, is laid out plainly", () => {
    const bad = planOf([{ w: NaN, h: NaN, inX: 0, outX: 0 }, ...boxes(3)], inARow(4), FONT);
    assert.equal(bad.places.length, 4);
    const large = planOf(boxes(390), inARow(390), FONT);
    assert.ok(large.plain);
    assert.equal(large.routes.length, 389);
  });

  test("a ring is drawn, and the wire against the order is told apart", () => {
    const { routes } = planOf(boxes(3), [wire(0, 1), wire(1, 2), wire(2, 0)], FONT);
    assert.equal(routes.filter(({ back }) => back).length, 1);
    assert.ok(routes.every(({ points }) => points.length >= 4));
  });

  test("a long chain stands in columns of about a window's shape, and reads down, then across", () => {
    const { w, h, places, routes } = planOf(boxes(48), inARow(48), FONT);
    assert.ok(w / h > 0.8 && w / h < 3, `${w} x ${h}`);
    for (let at = 1; at < 48; at++) assert.ok(places[at].x > places[at - 1].x + 50 || places[at].y > places[at - 1].y);
    assert.equal(routes.filter(({ wrapped }) => wrapped).length, new Set(places.map(({ x }) => Math.round(x))).size - 1);
  });

  test("many boxes without wires are lines, no ribbon", () => {
    const { w, h } = planOf(boxes(114), [], FONT);
    assert.ok(w / h < 6, `${w} x ${h}`);
  });
});

test("the plain layout puts readers below what they read, and knows cycles", () => {
  const wires = [wire(0, 2), wire(1, 2), wire(2, 3), wire(3, 1)];
  const places = rankedLayout(boxes(4), wires, { across: 10, down: 20 });
  assert.ok(places[2].y > places[0].y && places[3].y > places[2].y);
  assert.equal(places[0].y, places[1].y);
});

test("20,000 nodes, all open, take seconds and not minutes", () => {
  const tree = treeOf(madeUp(chain(20_000, (at) => ({ module: `layers.${Math.floor(at / 100)}.part${Math.floor(at / 20) % 5}` }))));
  const started = performance.now();
  const layout = opened(tree);
  assert.ok(performance.now() - started < 20_000);
  assert.ok(layout.runs < 30);
});
