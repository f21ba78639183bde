// What the graph is made from, kept per view, and made ahead where it takes long: who looks at the overview of a large model
// is likely to open its graph next.
import { createOps } from "./ops.js";
import { Tree } from "./tree.js";

const LARGE = 4000; // nodes below which nobody would notice

const kept = new WeakMap(); // store -> what was made for it; goes with it

/** @returns {import("./ops.js").Ops} */
export function opsOf(store) {
  if (!kept.has(store)) kept.set(store, { ops: createOps(store.data), trees: new Map() });
  return kept.get(store).ops;
}

/**
 * @param {import("../store.js").Store} store
 * @param {"module"|"partition"} groupBy
 * @returns {Tree}
 */
export function treeOf(store, groupBy) {
  const ops = opsOf(store);
  const { trees } = kept.get(store);
  if (!trees.has(groupBy)) trees.set(groupBy, new Tree(ops, groupBy));
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
