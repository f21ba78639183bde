import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { createData } from "../src/data.js";
import { createIdentity, STEPS, weaker } from "../src/identity.js";
import { handMade, pieces } from "./pieces.js";

const ids = (links) => links.map((link) => link.id);

describe("a real capture", () => {
  let data, identity;
  before(async () => {
    data = await pieces();
    identity = createIdentity(data);
  });

  test("every row of every table has an id that leads back to it, or to what it is about", () => {
    const own = ["graphs", "nodes", "partitions", "models", "sessions", "kernels", "breaks", "recompiles", "findings", "runs"];
    for (const name of data.tableNames) {
      for (let row = 0; row < data.table(name).rows; row++) {
        const id = identity.idOf(name, row);
        assert.ok(identity.has(id), `${name} ${row}: ${id}`);
        if (own.includes(name)) assert.deepEqual(identity.rowOf(id), { table: name, row });
      }
    }
  });

  test("everything that a chain names exists and has a label", () => {
    for (const name of ["graphs", "nodes", "partitions", "sessions", "kernels", "breaks", "recompiles", "findings"]) {
      for (let row = 0; row < data.table(name).rows; row++) {
        const chain = identity.chain(identity.idOf(name, row));
        for (const step of STEPS) for (const { id } of chain[step]) assert.ok(identity.has(id) && identity.label(id).length > 0, `${chain.id}: ${id}`);
      }
    }
  });

  test("the chain of a kernel and that of its line meet, in both directions", () => {
    const kernels = data.table("kernels");
    let met = 0;
    for (let row = 0; row < kernels.rows; row++) {
      const id = identity.idOf("kernels", row);
      const chain = identity.chain(id);
      for (const line of ids(chain.lines)) {
        assert.ok(ids(identity.chain(line).kernels).includes(id), `${line} does not lead to ${id}`);
        met += 1;
      }
      for (const node of ids(chain.nodes)) assert.ok(ids(identity.chain(node).kernels).includes(id));
    }
    assert.ok(met > 20);
  });

  test("a chain is as sure as the kernel says", () => {
    const kernels = data.table("kernels");
    const fused = Array.from(kernels.column("confidence")).indexOf("fused");
    assert.ok(fused >= 0);
    const chain = identity.chain(identity.idOf("kernels", fused));
    assert.ok(chain.nodes.length > 1);
    assert.deepEqual(new Set(chain.nodes.map((link) => link.confidence)), new Set(["fused"]));
  });

  test("a selected ONNX node or kernel leaves its neighbours out", () => {
    const chain = identity.chain(identity.idOf("kernels", 0));
    assert.deepEqual(ids(chain.kernels), [chain.id]);
    const onnx = identity.chain(chain.onnx[0].id);
    assert.deepEqual(ids(onnx.onnx), [onnx.id]);
    assert.equal(onnx.kind, "onnx");
  });

  test("a module holds the nodes of the modules inside it, a line those of all graphs", () => {
    const graph = data.table("graphs").get(0, "graph_id");
    const outer = identity.nodeRows(`module:${graph}/layers`);
    const inner = identity.nodeRows(`module:${graph}/layers.0.fc`);
    assert.ok(inner.length > 0 && inner.every((row) => outer.includes(row)) && outer.length > inner.length);
    const break0 = identity.chain("break:b0");
    assert.equal(break0.lines.length, 1);
    assert.ok(break0.graphs.length >= 1);
  });

  test("a run leads to its session, a finding to its subject", () => {
    const run = identity.chain("run:0");
    assert.equal(run.sessions[0].id, `session:${data.table("runs").get(0, "session_id")}`);
    const about = data.table("findings").get(0, "subject");
    assert.deepEqual(ids(identity.chain("finding:0").graphs), [`graph:${about}`]);
  });

  test("an id that names nothing has no chain", () => {
    for (const id of ["node:g0/none", "nonsense", "", "constructor:x", "line::", "run:999999", "run:-1", "finding:1e3", "run:"]) {
      assert.equal(identity.chain(id), null);
      assert.equal(identity.has(id), false);
    }
  });
});

describe("hostile names", () => {
  const name = 'a/b:"<script>\u202e';
  const columns = (row) => Object.fromEntries(Object.entries(row).map(([key, value]) => [key, Array.isArray(value) ? { kind: "list", enc: "lists", text: false, items: value, lengths: [value.length] } : { kind: "str", enc: "const", value }]));
  const one = (row) => ({ rows: 1, total: 1, columns: columns(row) });

  test("names with slashes and colons are looked up, never taken apart", () => {
    const data = createData(
      handMade({
        nodes: one({ graph_id: name, node: name, target: "t", module: name, file: name, line: 3, partition_id: name, onnx_nodes: [name], onnx_confidences: ["fused"] }),
        partitions: one({ partition_id: name, graph_id: name }),
        models: one({ model_id: name, partition_id: name }),
      }),
    );
    const identity = createIdentity(data);
    const chain = identity.chain(`line:${name}:3`);
    assert.deepEqual(chain.nodes, [{ id: `node:${name}/${name}`, confidence: "exact" }]);
    assert.deepEqual(chain.onnx, [{ id: `onnx:${name}/${name}`, confidence: "fused" }]);
    assert.deepEqual(identity.chain(`onnx:${name}/${name}`).nodes, [{ id: `node:${name}/${name}`, confidence: "fused" }]);
  });

  test("a partition that a node names and the capture lacks is no link", () => {
    const identity = createIdentity(createData(handMade({ nodes: one({ graph_id: "g0", node: "add", file: "net.py", line: 3, partition_id: "p9" }) })));
    const chain = identity.chain("node:g0/add");
    assert.deepEqual([ids(chain.partitions), ids(chain.graphs), ids(chain.lines)], [[], [], ["line:net.py:3"]]);
  });

  test("an empty capture has no ids", () => {
    const identity = createIdentity(createData(handMade({})));
    assert.equal(identity.chain("graph:g0"), null);
  });
});

test("the less sure of two", () => {
  assert.equal(weaker("exact", "inferred"), "inferred");
  assert.equal(weaker("none", "fused"), "none");
});
