import assert from "node:assert/strict";
import { test } from "node:test";
import { createData, payloadFromBase64, payloadFromBytes, rowsByValue } from "../src/data.js";
import { bytes, handMade, payload, pieces } from "./pieces.js";

const table = (rows, columns) => ({ rows, total: rows, meaning: "", columns });

test("base64 and bytes give the same payload", async () => {
  assert.deepEqual(await payloadFromBase64(bytes().toString("base64")), await payload());
});

test("a window into a larger buffer is honoured", async () => {
  const raw = bytes();
  const larger = new Uint8Array(raw.length + 20);
  larger.set(raw, 7);
  assert.deepEqual(await payloadFromBytes(new DataView(larger.buffer, 7, raw.length)), await payload());
});

test("every column of a real capture has a value per row, of its kind", async () => {
  const data = await pieces();
  for (const name of data.tableNames) {
    const { rows, columns } = data.table(name);
    for (const column of columns.values()) {
      assert.equal(column.values.length, rows, `${name}.${column.name}`);
      const kind = { str: "string", int: "number", float: "number", bool: "boolean", list: "object" }[column.kind];
      for (const value of column.values) assert.ok(value === null || typeof value === kind, `${name}.${column.name} holds ${value}`);
      assert.ok(column.meaning.length > 5);
    }
  }
});

test("values come out as they were recorded", async () => {
  const data = await pieces();
  const runs = data.table("runs");
  assert.equal(runs.rows, 400);
  for (let row = 0; row < runs.rows; row++) {
    assert.equal(runs.get(row, "total_ns"), runs.get(row, "bind_ns") + runs.get(row, "run_ns") + runs.get(row, "output_ns"));
    if (row) assert.ok(runs.get(row, "start_ns") > runs.get(row - 1, "start_ns"));
  }
  const nodes = data.table("nodes");
  const median = Array.from(nodes.column("target")).indexOf("aten.mode.default");
  const { node, shape, partition_id, supported, reason_code } = nodes.row(median);
  assert.deepEqual({ node, shape, partition_id, supported, reason_code }, { node: "mode", shape: [4, 1], partition_id: null, supported: false, reason_code: "no_converter" });
});

test("a table or column that the capture lacks is there, empty", async () => {
  const data = await pieces();
  assert.equal(data.table("nothing").rows, 0);
  assert.equal(data.table("runs").get(3, "nothing"), null);
  assert.equal(data.table("runs").column("constructor")[0], null);
  assert.equal(data.table("nothing").column("x").length, 0);
  assert.equal(data.index("nothing", "x").size, 0);
});

test("every encoding is read", () => {
  const data = createData(
    handMade(
      {
        t: table(3, {
          c: { kind: "str", enc: "const", value: "same" },
          nan: { kind: "float", enc: "const", value: "NaN" },
          s: { kind: "str", enc: "text", codes: [1, -1, 0] },
          d: { kind: "str", enc: "text", codes: { base: 0, delta: [1, -1] } },
          i: { kind: "int", enc: "ints", values: [1, null, 3] },
          j: { kind: "int", enc: "ints", values: { base: 10, delta: [5, -20] } },
          sum: { kind: "int", enc: "sum", of: ["j", "j"] },
          f: { kind: "float", enc: "floats", values: [0.5, "-Infinity", null] },
          b: { kind: "bool", enc: "bools", values: [1, 0, null] },
          l: { kind: "list", enc: "lists", text: true, items: [0, 1, 1], lengths: [2, -1, 1] },
          m: { kind: "list", enc: "lists", text: false, items: [4, "s0"], lengths: [2, 0], codes: [0, 1, 0] },
        }),
      },
      ["a", "b"],
    ),
  ).table("t");
  const all = (name) => Array.from(data.column(name));
  assert.deepEqual(all("c"), ["same", "same", "same"]);
  assert.ok(Number.isNaN(all("nan")[2]));
  assert.deepEqual(all("s"), ["b", null, "a"]);
  assert.deepEqual(all("d"), ["a", "b", "a"]);
  assert.deepEqual(all("i"), [1, null, 3]);
  assert.deepEqual(all("j"), [10, 15, -5]);
  assert.deepEqual(all("sum"), [20, 30, -10]);
  assert.deepEqual(all("f"), [0.5, -Infinity, null]);
  assert.deepEqual(all("b"), [true, false, null]);
  assert.deepEqual(all("l"), [["a", "b"], null, ["b"]]);
  assert.deepEqual(all("m"), [[4, "s0"], [], [4, "s0"]]);
});

test("what a newer version wrote is refused in words, a column of it left out", () => {
  assert.throws(() => createData({ ...handMade({}), version: 99 }), /version 99/);
  for (const other of [null, [], {}, { version: "1" }]) assert.throws(() => createData(other), /not the data of a capture/);
  const data = createData(handMade({ t: table(1, { x: { kind: "int", enc: "magic" }, y: { kind: "int", enc: "ints", values: [7] } }) }));
  assert.deepEqual(data.table("t").unread, ["x"]);
  assert.deepEqual([data.table("t").get(0, "x"), data.table("t").get(0, "y"), [...data.table("t").columns.keys()]], [null, 7, ["y"]]);
});

test("rows by value: missing ones nowhere, items of lists each", () => {
  assert.deepEqual([...rowsByValue(["a", null, "b", "a"])], [["a", [0, 3]], ["b", [2]]]);
  assert.deepEqual([...rowsByValue([["x", "y", "x"], ["y"], null])], [["x", [0]], ["y", [0, 1]]]);
});
