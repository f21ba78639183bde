// What the graph is made from, kept per view, and made ahead where it takes long: who looks at the overview of a large model
// is likely to open its graph next.
import { createOps } from "./ops.js";
import { Tree } from "./tree.js";

const LARGE = 4000; // nodes below which nobody would notice

const kept = { ops: new WeakMap(), trees: new WeakMap() }; // by data, which several views share; by identity: what is open is a view's own

/** @returns {import("./ops.js").Ops} */
export function opsOf({ data }) {
  if (!kept.ops.has(data)) kept.ops.set(data, createOps(data));
  return kept.ops.get(data);
}

/**
 * @param {import("../store.js").Store} store
 * @param {"module"|"partition"} groupBy
 * @returns {Tree}
 */
export function treeOf(store, groupBy) {
  if (!kept.trees.has(store.identity)) kept.trees.set(store.identity, new Map());
  const trees = kept.trees.get(store.identity);
  if (!trees.has(groupBy)) trees.set(groupBy, new Tree(opsOf(store), groupBy));
  return trees.get(groupBy);
}

/**
 * Makes the graph of a large model while the browser has nothing else to do, in two steps that are each soon over.
 * @param {import("../store.js").Store} store
 * @returns {() => void} Stops it.
 */
export function prepareWhenIdle(store) {
  if (store.data.table("nodes").rows < LARGE) return () => {};
  const [ask, stop] = globalThis.requestIdleCallback ? [requestIdleCallback, cancelIdleCallback] : [setTimeout, clearTimeout];
  const prepare = (make, then) =>
    ask(() => {
      try {
        make();
        waiting = then?.();
      } catch {
        // The panel says what is wrong when it is opened.
      }
    });
  let waiting = prepare(() => opsOf(store), () => prepare(() => treeOf(store, store.get("groupBy") === "partition" ? "partition" : "module")));
  return () => stop(waiting);
}
