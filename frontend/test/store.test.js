import assert from "node:assert/strict";
import { test } from "node:test";
import { createStore } from "../src/store.js";
import { pieces } from "./pieces.js";

test("the chain follows what is selected", async () => {
  const store = createStore(await pieces());
  assert.equal(store.get("chain"), null);
  store.set({ selected: "break:b0" });
  assert.equal(store.get("chain").kind, "break");
  store.set({ selected: "break:none" });
  assert.equal(store.get("chain"), null);
  assert.equal(store.get("selected"), "break:none");
});

test("listeners hear of what really changed, once, and no more after leaving", async () => {
  const store = createStore(await pieces());
  const heard = [];
  const leave = store.subscribe(["tab", "chain"], (changed) => heard.push([...changed]));
  store.set({ tab: "overview" });
  store.set({ tab: "graph", search: "x" });
  store.set({ search: "y" });
  store.set({ selected: "break:b0" });
  leave();
  store.set({ tab: "tables" });
  assert.deepEqual(heard, [["tab", "search"], ["selected", "chain"]]);
});

test("what a listener sets is told in a further round", async () => {
  const store = createStore(await pieces());
  const order = [];
  store.subscribe(["selected"], () => {
    order.push("first");
    store.set({ tab: "graph" });
    order.push("first done");
  });
  store.subscribe(["tab"], () => order.push(`second ${store.get("tab")}`));
  store.set({ selected: "break:b0" });
  assert.deepEqual(order, ["first", "first done", "second graph"]);
});

test("a listener that fails leaves the store usable", async () => {
  const store = createStore(await pieces());
  const leave = store.subscribe(["tab"], () => {
    throw new Error("broken");
  });
  assert.throws(() => store.set({ tab: "graph" }), /broken/);
  leave();
  const heard = [];
  store.subscribe(["search"], (changed) => heard.push([...changed]));
  store.set({ search: "a" });
  assert.deepEqual(heard, [["search"]]);
});

test("stores are independent of each other", async () => {
  const data = await pieces();
  const [one, two] = [createStore(data, { tab: "graph" }), createStore(data)];
  one.set({ selected: "break:b0" });
  assert.equal(two.get("selected"), null);
  assert.equal(two.get("tab"), "overview");
});
