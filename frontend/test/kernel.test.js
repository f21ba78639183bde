import assert from "node:assert/strict";
import { test } from "node:test";
import { asker, bytesOf } from "../src/kernel.js";

/** A widget's model whose other side is a function of what it is sent. */
function modelAnswering(answer) {
  const listeners = new Set();
  return {
    listeners,
    on: (_event, listener) => listeners.add(listener),
    off: (_event, listener) => listeners.delete(listener),
    send: (message) => answer(message, (reply, buffers = []) => [...listeners].forEach((listener) => listener(reply, buffers))),
  };
}

test("an answer's bytes are those of its window, not of the whole buffer", async () => {
  const larger = Uint8Array.from([9, 1, 2, 9]);
  const model = modelAnswering(({ ask, id, number }, reply) => reply({ answer: number, ask, id }, [new DataView(larger.buffer, 1, 2)]));
  const bytes = await asker(model, () => true)("model", { id: "m0" });
  assert.deepEqual([...bytes], [1, 2]);
  assert.equal(model.listeners.size, 0);
});

test("answers find those who asked, in whatever order they come", async () => {
  const asked = [];
  const model = modelAnswering((message, reply) => asked.push({ message, reply }));
  const ask = asker(model, () => true);
  const both = [ask("model", { id: "a" }), ask("model", { id: "b" })];
  for (const { message, reply } of asked.reverse()) reply({ answer: message.number }, [new TextEncoder().encode(message.id)]);
  assert.deepEqual((await Promise.all(both)).map((bytes) => new TextDecoder().decode(bytes)), ["a", "b"]);
});

test("what Python could not do is said", async () => {
  const model = modelAnswering(({ number }, reply) => reply({ answer: number, error: "KeyError: 'm9'" }));
  await assert.rejects(asker(model, () => true)("model", { id: "m9" }), /KeyError: 'm9'/);
});

test("without a kernel nobody waits", async () => {
  const model = modelAnswering(() => assert.fail("nobody is there to be asked"));
  await assert.rejects(asker(model, () => false)("models"), /start the notebook's kernel/);
});

test("a kernel that does not answer is given up", async () => {
  const model = modelAnswering(() => {});
  await assert.rejects(asker(model, () => true, 20)("models"), /did not answer within 0.02 seconds/);
  assert.equal(model.listeners.size, 0);
});

test("bytes come as they are handed over", () => {
  assert.deepEqual([...bytesOf(Uint8Array.from([1, 2]).buffer)], [1, 2]);
  assert.deepEqual([...bytesOf(Uint8Array.from([0, 1, 2]).subarray(1))], [1, 2]);
});
