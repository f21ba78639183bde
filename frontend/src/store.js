// The state of one view: what is selected and how it is shown. One store per view, so that several stand in one page.
import { createIdentity } from "./identity.js";

/**
 * @typedef {object} State
 * @property {string|null} selected Id of what is selected; see identity.js for the ids.
 * @property {import("./identity.js").Chain|null} chain What `selected` is linked to. Follows from it: never set it.
 * @property {string} tab Panel that is shown.
 * @property {"module"|"partition"} groupBy How the graph is folded.
 * @property {"partition"|"phase"|"time"|"error"|"reason"} colorBy What the colours of the graph mean.
 * @property {string|null} graph Id of the graph that is shown; null for all of them.
 * @property {string} search What is looked for.
 * @property {"auto"|"light"|"dark"} theme
 * @property {string} table Table that the panel of tables shows.
 * @property {"time"|"flops"|"bytes"|"compile"} metric What the widths of the flame graph are.
 * @property {string|null} card Card of the overview that was asked for.
 *
 * @typedef {object} Store
 * @property {import("./data.js").Data} data
 * @property {import("./identity.js").Identity} identity
 * @property {(key: keyof State) => any} get
 * @property {(patch: Partial<State>) => void} set Subscribers hear of keys whose value really changed.
 * @property {(line: string) => Promise<string>} [attempt] Tries a setting, and says what it brings; absent without a live lens.
 * @property {(keys: (keyof State)[], listener: (changed: Set<string>) => void) => () => void} subscribe Returns the way back.
 */

/**
 * @param {import("./data.js").Data} data
 * @param {Partial<State>} [initial]
 * @returns {Store}
 */
export function createStore(data, initial = {}) {
  const identity = createIdentity(data);
  const state = {
    selected: null,
    chain: null,
    tab: "overview",
    groupBy: "module",
    colorBy: "partition",
    graph: data.table("graphs").rows > 1 ? null : data.table("graphs").get(0, "graph_id"),
    search: "",
    theme: "auto",
    table: "graphs",
    metric: "time",
    card: null,
  };
  const listeners = new Set();
  const waiting = new Set();
  let notifying = false;

  function put(patch) {
    for (const [key, value] of Object.entries(patch)) {
      if (key === "chain" || Object.is(state[key], value)) continue;
      state[key] = value;
      waiting.add(key);
      if (key === "selected") {
        state.chain = value === null ? null : identity.chain(value);
        waiting.add("chain");
      }
    }
  }

  // A listener may set more: that change is published in a further round, so that no listener is entered twice at once.
  function publish() {
    if (notifying) return;
    notifying = true;
    try {
      while (waiting.size) {
        const changed = new Set(waiting);
        waiting.clear();
        for (const listener of [...listeners]) {
          if (listeners.has(listener) && listener.keys.some((key) => changed.has(key))) listener.heard(changed);
        }
      }
    } finally {
      notifying = false;
      waiting.clear();
    }
  }

  put(initial);
  waiting.clear();
  return {
    data,
    identity,
    get: (key) => state[key],
    set(patch) {
      put(patch);
      publish();
    },
    subscribe(keys, listener) {
      const entry = { keys, heard: listener };
      listeners.add(entry);
      return () => listeners.delete(entry);
    },
  };
}
