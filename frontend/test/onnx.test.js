// What is selected, in the words of one ONNX model, and back.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { createData, payloadFromBytes } from "../src/data.js";
import { idOfNode, modelFor, modelOf, selectedNames } from "../src/onnxlinks.js";
import { createStore } from "../src/store.js";

const data = createData(await payloadFromBytes(readFileSync(new URL("pieces.payload.gz", import.meta.url))));
const nodes = data.table("nodes");
const inOrt = Array.from({ length: nodes.rows }, (_, row) => row).find((row) => nodes.get(row, "onnx_nodes")?.length && data.table("kernels").column("node").includes(nodes.get(row, "node")));
const nodeId = `node:${nodes.get(inOrt, "graph_id")}/${nodes.get(inOrt, "node")}`;
const models = data.table("models");
const model = models.get(Array.from(models.column("partition_id")).indexOf(nodes.get(inOrt, "partition_id")), "model_id");

test("a node of the program is its ONNX nodes in its model, and in no other", () => {
  const store = createStore(data, { selected: nodeId });
  assert.deepEqual(selectedNames(store, model), [...new Set(nodes.get(inOrt, "onnx_nodes"))]);
  const other = Array.from(models.column("model_id")).find((id) => id !== model);
  assert.deepEqual(selectedNames(store, other), []);
});

test("a model as it runs is its kernels", () => {
  const kernels = data.table("kernels");
  const row = Array.from(kernels.column("kernel")).findIndex((_, at) => data.table("sessions").column("session_id").includes(kernels.get(at, "session_id")));
  const id = `kernel:${kernels.get(row, "session_id")}/${kernels.get(row, "kernel")}`;
  const store = createStore(data, { selected: id });
  const drawing = `${modelFor(store, null)}.optimized`;
  assert.deepEqual(selectedNames(store, drawing), [kernels.get(row, "kernel")]);
  assert.equal(idOfNode(store, drawing, kernels.get(row, "kernel")), id);
});

test("a model as a whole highlights nothing", () => {
  for (const selected of [`model:${model}`, `partition:${nodes.get(inOrt, "partition_id")}`, `graph:${nodes.get(inOrt, "graph_id")}`]) {
    assert.deepEqual(selectedNames(createStore(data, { selected }), model), []);
  }
  assert.deepEqual(selectedNames(createStore(data), model), []);
});

test("what is shown stays when it belongs to what is selected", () => {
  const graph = createStore(data, { selected: `graph:${nodes.get(inOrt, "graph_id")}` });
  const [first, second] = graph.get("chain").models.map(({ id }) => id.slice("model:".length));
  assert.equal(modelFor(graph, null), first);
  if (second) assert.equal(modelFor(graph, second), second);
  assert.equal(modelFor(createStore(data), "m0"), null);
});

test("a name that the capture does not know has no id", () => {
  const store = createStore(data);
  assert.equal(idOfNode(store, model, "nobody"), null);
  assert.equal(idOfNode(store, "nobody", "x"), null);
  assert.equal(idOfNode(store, model, nodes.get(inOrt, "onnx_nodes")[0]), `onnx:${model}/${nodes.get(inOrt, "onnx_nodes")[0]}`);
  assert.equal(modelOf("m0.optimized"), "m0");
});
