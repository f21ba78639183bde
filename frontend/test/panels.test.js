// What the panels compute before they draw.
import assert from "node:assert/strict";
import { test } from "node:test";
import { callAt, callsOf, firstAfter, sliceAt } from "../src/calls.js";
import { callTimes } from "../src/calltimes.js";
import { errorScale, sectionsOf } from "../src/cells.js";
import { createData } from "../src/data.js";
import { flameOf, METRICS } from "../src/flame.js";
import { createGaps, typicalCalls } from "../src/gaps.js";
import { bytes } from "../src/format.js";
import { testFrom } from "../src/grid.js";
import { tokensOf } from "../src/highlight.js";
import { callersOf, sourceFiles } from "../src/lines.js";
import { stretches } from "../src/partitions.js";
import { nextLine } from "../src/source.js";
import { createStore } from "../src/store.js";
import { anywhere } from "../src/tables.js";
import { niceStep } from "../src/timelinedraw.js";
import { handMade, pieces } from "./pieces.js";

test("the pieces of a real model: every partition once, every break before a graph", async () => {
  const data = await pieces();
  const found = stretches(data);
  const partitions = found.flatMap((stretch) => stretch.segments.filter((piece) => piece.ort).map((piece) => piece.id));
  assert.equal(new Set(partitions).size, partitions.length);
  assert.equal(partitions.length, data.overview.coverage.partition_count);
  const nodes = found.flatMap((stretch) => stretch.segments).reduce((sum, piece) => sum + piece.nodes, 0);
  assert.equal(nodes, data.overview.coverage.node_count);
  assert.equal(new Set(found.flatMap((stretch) => stretch.breaks)).size, 5);
});

test("lines carry the nodes of the newest graphs, their time and what happened there", async () => {
  const store = createStore(await pieces());
  const [file] = sourceFiles(store);
  assert.ok(file.own && file.file.endsWith("record.py"));
  const line = file.lines.find((candidate) => candidate.source?.includes(".mode("));
  assert.equal(line.inEager, 3);
  assert.ok(line.inOrt > 0 && line.ortNs > 0 && line.eagerNs > 0);
  assert.deepEqual(line.marks.map((mark) => mark.kind).slice(0, 1), ["fallback"]);
  const kinds = new Set(file.lines.flatMap((candidate) => candidate.marks.map((mark) => mark.kind)));
  assert.deepEqual(kinds, new Set(["fallback", "break", "recompile", "finding"]));
  const total = file.lines.reduce((sum, candidate) => sum + candidate.inOrt + candidate.inEager, 0);
  assert.equal(total, store.data.overview.coverage.node_count);
  for (const mark of file.lines.flatMap((candidate) => candidate.marks)) assert.ok(store.identity.has(mark.id));
});

test("calls keep their order and lengths when pauses are shortened", async () => {
  const data = await pieces();
  const [short, long] = [callsOf(data, true), callsOf(data, false)];
  assert.ok(short.end <= long.end);
  const runs = data.table("runs");
  for (let row = 1; row < short.rows; row++) assert.ok(short.start[row] >= short.start[row - 1]);
  const middle = runs.rows >> 1;
  assert.equal(short.clock(short.start[middle]), runs.get(middle, "start_ns") - runs.get(0, "start_ns"));
  assert.equal(long.clock(long.start[middle]), long.start[middle]);
  const lanes = short.lanes.filter((lane) => lane.id);
  assert.equal(lanes.reduce((sum, lane) => sum + lane.rows.length, 0), runs.rows);
  const lane = lanes[0];
  assert.equal(callAt(short, lane, short.start[lane.rows[3]] + 1), lane.rows[3]);
  assert.equal(callAt(short, lane, short.start[lane.rows[0]] - 5), -1);
});

test("a pause of minutes is shortened, and said", () => {
  const ints = (values) => ({ kind: "int", enc: "ints", values });
  const count = 20;
  const start = Array.from({ length: count }, (_, row) => row * 1000 + (row >= 10 ? 60e9 : 0));
  const same = (value) => ints(Array(count).fill(value));
  const runs = { rows: count, columns: { start_ns: ints(start), total_ns: same(600), bind_ns: same(100), run_ns: same(400), output_ns: same(100), session_id: { kind: "str", enc: "const", value: "s0" } } };
  const calls = callsOf(createData(handMade({ runs })), true);
  assert.equal(calls.pauses.length, 1);
  assert.ok(Math.abs(calls.pauses[0].ns - 60e9) < 1000);
  assert.ok(calls.end < 1e6);
});

test("how many values are at most a limit", () => {
  assert.deepEqual([0, 1, 3, 9].map((limit) => firstAfter([1, 1, 3, 5], limit)), [0, 2, 3, 4]);
});

test("ticks are of 1, 2 or 5 and leave room for words", () => {
  for (const span of [7, 1234, 9.9e5, 3e12]) {
    const step = niceStep(span, 900);
    assert.match(step.toExponential(), /^[125]e/);
    assert.ok((step / span) * 900 >= 89);
  }
});

test("every node that ONNX Runtime runs has a cell, in graph order", async () => {
  const store = createStore(await pieces());
  const sections = sectionsOf(store);
  const cells = sections.flatMap((section) => section.cells);
  const rows = cells.flatMap((cell) => cell.rows);
  assert.equal(rows.length, store.data.table("numerics").rows);
  assert.equal(new Set(rows).size, rows.length);
  const checked = cells.filter((cell) => cell.state !== "unchecked").length;
  assert.ok(store.data.overview.tiles.find((tile) => tile.name === "correct").detail.startsWith(`${checked} values compared`));
  for (const { cells: own } of sections) for (let at = 1; at < own.length; at++) assert.ok(own[at].node > own[at - 1].node);
});

test("the scale of errors spans them, and survives NaN, Inf and none", () => {
  const cell = (abs) => ({ abs, rel: null });
  const scale = errorScale([cell(0), cell(1e-7), cell(3e-3), cell(NaN), cell(Infinity), cell(null)], "abs");
  assert.deepEqual([scale.low, scale.high], [-7, -2]);
  assert.equal(scale.share(0), 0);
  assert.equal(scale.share(NaN), 1);
  assert.ok(scale.share(1e-7) < scale.share(1e-5) && scale.share(1e-5) < scale.share(3e-3));
  assert.equal(errorScale([cell(0)], "abs").share(0), 0);
});

test("filters compare numbers with units, and find words", () => {
  const values = [1000, null, 2_500_000, NaN];
  const column = { name: "ns", number: true, value: (row) => values[row], text: (row) => String(values[row]) };
  const kept = (text) => [0, 1, 2, 3].filter(testFrom(text, column));
  assert.deepEqual(kept(">1.5 ms"), [2]);
  assert.deepEqual(kept("<= 1us"), [0]);
  assert.deepEqual(kept("= 1,000"), [0]);
  assert.deepEqual(kept("25"), [2]);
  assert.deepEqual(kept("> nonsense"), []);
});

test("cells tell wrong, unchecked and not finite apart; the worst row of a value counts", () => {
  const text = (...values) => ({ kind: "str", enc: "text", codes: values.map((value) => (value === null ? -1 : names.indexOf(value))) });
  const names = ["g0", "a", "b", "c", "d", "p0", "compute", "ort"];
  const plain = (kind, enc, ...values) => ({ kind, enc, values });
  const nodes = { rows: 4, columns: { graph_id: text("g0", "g0", "g0", "g0"), node: text("a", "b", "c", "d"), partition_id: text("p0", "p0", "p0", null), kind: text("compute", "compute", "compute", "compute") } };
  const numerics = {
    rows: 4,
    columns: {
      partition_id: text("p0", "p0", "p0", "p0"),
      node: text("a", "a", "b", "c"),
      ok: plain("bool", "bools", 1, 0, 1, null),
      max_abs: plain("float", "floats", 1e-7, 0.5, "NaN", null),
      max_rel: plain("float", "floats", 0, 0, 0, null),
      first_divergence: plain("bool", "bools", 0, 1, 0, 0),
      nonfinite: text(null, null, "ort", null),
    },
  };
  const store = createStore(createData(handMade({ nodes, numerics }, names)));
  const [{ cells }] = sectionsOf(store);
  assert.deepEqual(cells.map((cell) => [cell.name, cell.state, cell.first, cell.nonfinite]), [["a", "wrong", true, null], ["b", "ok", false, "ort"], ["c", "unchecked", false, null]]);
  assert.equal(cells[0].abs, 0.5);
  assert.ok(Number.isNaN(cells[1].abs));
  assert.equal(cells[2].abs, null);
});

test("a gap between two calls is what PyTorch runs there, or the graph break that was crossed", async () => {
  const store = createStore(await pieces());
  const { data } = store;
  const calls = callsOf(data, true);
  const between = createGaps(store);
  const { rows } = calls.lanes.find((lane) => lane.whole);
  const gaps = rows.slice(1).map((row, at) => ({ ...between(rows[at], row), before: rows[at], after: row }));
  const kinds = new Set(gaps.map(({ id }) => id?.split(":")[0] ?? null));
  assert.ok(kinds.has("node") && kinds.has("break"));
  const partitionOf = (row) => data.table("sessions").get(store.identity.rowOf(`session:${data.table("runs").get(row, "session_id")}`).row, "partition_id");
  const graphOf = (row) => data.table("partitions").get(store.identity.rowOf(`partition:${partitionOf(row)}`).row, "graph_id");
  for (const { id, words, before, after } of gaps) {
    if (id?.startsWith("node:") && graphOf(before) === graphOf(after)) {
      const { row } = store.identity.rowOf(id);
      assert.equal(data.table("nodes").get(row, "graph_id"), graphOf(before));
      assert.equal(data.table("nodes").get(row, "partition_id"), null);
      assert.match(words, /PyTorch runs/);
    }
    if (id?.startsWith("break:")) {
      const { ahead } = data.overview.call_order;
      assert.equal(ahead[graphOf(after)].at(-1), store.identity.rowOf(id).row);
      assert.notEqual(graphOf(before), graphOf(after));
    }
  }
});

test("a line of Python keeps its text and is coloured by what its parts are", () => {
  const line = "if x.is_in and not y[1e-3]: return f'if {\\'a\\'}' + \"# no\"  # if 2";
  const tokens = tokensOf(line);
  assert.equal(tokens.map(([text]) => text).join(""), line);
  assert.deepEqual(tokens.filter(([, kind]) => kind === "keyword").map(([text]) => text), ["if", "and", "not", "return"]);
  assert.deepEqual(tokens.filter(([, kind]) => kind === "string").map(([text]) => text), ["f'if {\\'a\\'}'", '"# no"']);
  assert.deepEqual(tokens.filter(([, kind]) => kind === "comment").map(([text]) => text), ["# if 2"]);
  assert.deepEqual(tokens.filter(([, kind]) => kind === "number").map(([text]) => text), ["1e-3"]);
  for (const plain of ["x1 = torch.is", "self.none, TRUE", "'open", ""]) assert.ok(tokensOf(plain).every(([, kind]) => kind !== "keyword" && kind !== "string"));
});

test("callers are the frames of the user's own files, the nearest first", () => {
  const stack = ["<frozen runpy>:198 _run", "/a/main.py:9 <module>", "/v/lib/python3.11/site-packages/t/m.py:3 call", "C:\\me\\net.py:5 step", "/a/net.py:7 forward"];
  assert.deepEqual(callersOf(stack), [{ file: "C:\\me\\net.py", line: 5, function: "step" }, { file: "/a/main.py", line: 9, function: "<module>" }]);
  assert.deepEqual(callersOf([]), []);
});

test("a typical call is the one nearest to the median, also where the session that ran last is rare", async () => {
  const calls = callsOf(await pieces(), true);
  const { from, to } = typicalCalls(calls);
  const { rows } = calls.lanes.find((lane) => lane.whole);
  const sessions = calls.lanes.filter((lane) => lane.id);
  const inside = rows.filter((row) => calls.start[row] >= from && calls.start[row] + calls.total[row] <= to);
  const last = sessions.find((lane) => lane.rows.at(-1) === rows.at(-1));
  assert.ok(last.rows.includes(inside.at(-1)));
  assert.equal(inside.filter((row) => last.rows.includes(row)).length, 1);
  assert.equal(inside.length, new Set(inside.map((row) => sessions.findIndex((lane) => lane.rows.includes(row)))).size);
  const ints = (values) => ({ kind: "int", enc: "ints", values });
  const lengths = [90, 10, 11, 10, 90, 12, 10, 10, 90];
  const own = { kind: "str", enc: "text", codes: lengths.map((ns) => Number(ns === 90)) };
  const runs = { rows: 9, columns: { start_ns: ints(lengths.map((_, at) => at * 100)), total_ns: ints(lengths), session_id: own, graph_id: own } };
  const planted = typicalCalls(callsOf(createData(handMade({ runs }, ["g0", "g1"])), true));
  assert.ok(Math.abs(planted.to - planted.from - 1.06 * 11) < 1e-6 && planted.from > 190 && planted.to < 212);
});

test("calls of the model begin with its first graph and hold what it enters until the next", async () => {
  const data = await pieces();
  const calls = callsOf(data, true);
  const lane = calls.lanes.find(({ kind }) => kind === "call");
  const graph = calls.lanes.find(({ kind }) => kind === "graph");
  const idOf = (row) => data.table("runs").get(row, "graph_id");
  const frame = (row) => data.table("graphs").get(data.index("graphs", "graph_id").get(idOf(row))[0], "compile_id").split("/")[0];
  const made = lane.rows.flatMap((row) => lane.slices(row));
  assert.ok(made.length > 2);
  for (const { rows, from, to } of made) {
    assert.equal(frame(rows[0]), "0");
    assert.equal(new Set(rows.map(frame)).size, 6, "one graph per piece");
    assert.ok(rows.every((row) => calls.start[row] >= from && calls.start[row] + calls.total[row] <= to));
  }
  const entries = graph.rows.filter((row) => frame(row) === "0").length;
  assert.equal(made.length, entries);
});

test("a call enters the code of three blocks, of which the first version was replaced", () => {
  const column = (kind, values) => (kind === "str" ? { kind, enc: "text", codes: values } : { kind, enc: kind === "int" ? "ints" : "floats", values });
  const texts = ["g0", "g1", "1/0", "1/1", "net", "inference"];
  const graphs = (entries) => ({ rows: 2, columns: { graph_id: column("str", [0, 1]), compile_id: column("str", [2, 3]), target: column("str", [4, 4]), phase: column("str", [5, 5]), entries_per_call: column("float", entries) } });
  const start = Array.from({ length: 12 }, (_, row) => Math.floor(row / 3) * 10000 + (row % 3) * 120);
  const same = (value) => column("int", Array(12).fill(value));
  const runs = { rows: 12, columns: { start_ns: column("int", start), total_ns: same(100), bind_ns: same(0), run_ns: same(100), output_ns: same(0), thread: same(1), session_id: { kind: "str", enc: "const", value: null }, graph_id: column("str", [0, ...Array(11).fill(1)]) } };
  const lane = (entries, base) => callsOf(createData({ ...handMade({ runs, graphs: graphs(entries) }, texts), flame: { base } }), true).lanes.find(({ kind }) => kind === "call");
  const calls = lane([null, 3], "call");
  assert.equal(calls.label, "calls of the model");
  assert.deepEqual(calls.rows, [0, 3, 6, 9]);
  assert.ok(!lane([null, null], "run"), "each run is a graph of its own lane");
});

test("a call has its graph above it and kernels inside its run, no wider than the run", async () => {
  const data = await pieces();
  const calls = callsOf(data, true);
  const lanes = Object.fromEntries(calls.lanes.filter((lane) => lane.kind).map((lane) => [lane.kind, lane]));
  const { rows } = calls.lanes.find((lane) => lane.whole);
  const entries = lanes.graph.rows.flatMap((row) => lanes.graph.slices(row));
  assert.deepEqual(entries.flatMap((entry) => entry.rows), rows);
  for (const { id, from, to, rows: own } of entries) {
    assert.ok(own.every((row) => id === `graph:${data.table("runs").get(row, "graph_id")}`));
    assert.equal(new Set(own.map((row) => data.table("runs").get(row, "session_id"))).size, own.length);
    assert.ok(own.every((row) => calls.start[row] >= from && calls.start[row] + calls.total[row] <= to));
  }
  const { identity } = createStore(data);
  for (const row of lanes.kernel.rows) {
    const kernels = lanes.kernel.slices(row);
    const session = data.table("runs").get(row, "session_id");
    assert.deepEqual(kernels.map(({ id }) => identity.rowOf(id).row), data.index("kernels", "session_id").get(session));
    assert.ok(kernels[0].from === calls.start[row] + calls.bind[row]);
    assert.ok(kernels.at(-1).to <= calls.start[row] + calls.bind[row] + calls.run[row] + 1e-3);
    assert.equal(sliceAt(calls, lanes.kernel, (kernels.at(-1).from + kernels.at(-1).to) / 2).id, kernels.at(-1).id);
  }
  assert.ok(lanes.kernel.rows.length > 0);
  const peaks = lanes.memory.rows.flatMap((row) => lanes.memory.slices(row));
  assert.equal(Math.max(...peaks.map(({ height }) => height)), 1);
  assert.ok(peaks.every(({ id, label }) => label === bytes(data.table("sessions").get(identity.rowOf(id).row, "arena_bytes"))));
});

test("the histogram of a session counts its calls and marks the percentiles of its row", async () => {
  const data = await pieces();
  const calls = callsOf(data, true);
  for (const lane of calls.lanes.filter(({ id }) => id?.startsWith("session:"))) {
    const { bins, at, marks, kept, shortest, longest } = callTimes(data, calls, lane);
    assert.equal(bins.reduce((sum, number) => sum + number, 0), lane.rows.length);
    assert.equal(kept, lane.rows.length);
    assert.deepEqual([at(shortest), at(longest)], [0, shortest === longest ? 0 : 1]);
    const [row] = data.index("sessions", "session_id").get(lane.id.slice(8));
    assert.deepEqual(marks, [50, 90, 99].map((percent) => [percent, data.table("sessions").get(row, `p${percent}_ns`)]));
  }
});

test("no call is typical of a model that was called once", () => {
  const runs = { rows: 1, columns: { start_ns: { kind: "int", enc: "ints", values: [5] }, total_ns: { kind: "int", enc: "ints", values: [9] }, session_id: { kind: "str", enc: "const", value: "s0" } } };
  assert.equal(typicalCalls(callsOf(createData(handMade({ runs })), true)), null);
});

test("strips are in the order of a call, with the breaks that it meets before each", () => {
  const texts = ["1/0", "2/0", "g0", "g1", "g2", "b0", "b1"];
  const text = (...values) => ({ kind: "str", enc: "text", codes: values.map((value) => texts.indexOf(value)) });
  const graphs = { rows: 3, columns: { graph_id: text("g0", "g1", "g2"), compile_id: text("1/0", "2/0", "2/0") } };
  const breaks = { rows: 2, columns: { break_id: text("b0", "b1") } };
  const call_order = { graphs: ["g0", "g2"], ahead: { g2: [0, 1] }, behind: [] };
  const found = stretches(createData(handMade({ graphs, breaks }, texts, { call_order })));
  assert.deepEqual(found.map(({ graph, row, breaks: rows }) => [graph, row, rows]), [["g0", 0, []], ["g2", 2, [0, 1]]]);
});

test("the next line that holds some words, round the end and back", () => {
  const files = [{ file: "a", lines: [{ line: 1, source: "x = f(y)" }, { line: 2, source: null }] }, { file: "b", lines: [{ line: 7, source: "Y = 1" }] }];
  const next = (selected, step = 1) => nextLine(files, files[1], selected, " y ", step);
  assert.deepEqual([next(null), next("line:b:7"), next("line:a:1"), next("line:a:1", -1)], ["line:b:7", "line:a:1", "line:b:7", "line:b:7"]);
  assert.equal(nextLine(files, files[0], null, "nowhere", 1), null);
  assert.equal(nextLine(files, files[0], null, "  ", 1), null);
});

test("words are found in any column of a row, all of them", () => {
  const columns = [["Conv", "Gemm"], ["layers.1", "layers.12"]].map((values) => ({ text: (row) => values[row] }));
  const rows = (text) => [0, 1].filter(anywhere(text, columns));
  assert.deepEqual([rows("conv"), rows("layers.1"), rows("gemm layers.12"), rows("conv layers.12")], [[0], [0, 1], [1], []]);
  assert.equal(anywhere("   ", columns), null);
});

test("frames of the flame graph lie inside what holds them, for each thing that is measured", async () => {
  const flame = flameOf(await pieces());
  for (const [metric] of METRICS) {
    const { from, to, value, total } = flame.laid(metric);
    assert.ok(total > 0, metric);
    for (let frame = 1; frame < flame.count; frame++) {
      const outer = flame.parent[frame];
      assert.ok(from[frame] >= from[outer] - 1e-9 && to[frame] <= to[outer] + 1e-9, `${metric} ${flame.name(frame)}`);
      assert.ok(value[frame] >= 0);
    }
  }
});

test("the flame graph's sums are those of the tables", async () => {
  const data = await pieces();
  const flame = flameOf(data);
  const [ledger, nodes] = [data.table("ledger"), data.table("nodes")];
  const sum = (table, column, keep = () => true) => Array.from({ length: table.rows }, (_, row) => row).filter(keep).reduce((all, row) => all + (table.get(row, column) ?? 0), 0);
  assert.equal(flame.laid("time").total, sum(ledger, "ns"));
  assert.equal(flame.laid("compile").total, data.overview.compile_ns);
  assert.deepEqual(["time", "compile"].map((metric) => flame.name(0, metric)), ["one call", "compiling"]);
  const current = new Set(data.overview.graphs.filter((graph) => graph.is_current).map((graph) => graph.graph_id));
  const shown = (row) => (current.has(nodes.get(row, "graph_id")) || data.index("ledger", "graph_id").has(nodes.get(row, "graph_id"))) && nodes.get(row, "kind") !== "size";
  assert.equal(flame.laid("flops").total, sum(nodes, "flops", shown));
});

test("what a frame is about can be selected", async () => {
  const store = createStore(await pieces());
  const flame = flameOf(store.data);
  for (let frame = 0; frame < flame.count; frame++) {
    const id = flame.id(frame);
    if (id !== null) assert.ok(store.identity.has(id), id);
  }
});
