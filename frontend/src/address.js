// What is shown, in the address: a report's link leads to the tab, the selection and the view that its sender saw.

/** State that the address holds, with what it is when the address says nothing. */
const KEPT = { tab: "overview", selected: null, graph: null, table: "graphs", metric: "time", groupBy: "module", colorBy: "partition" };
const CHOICES = { metric: ["time", "flops", "bytes", "compile"], groupBy: ["module", "partition"], colorBy: ["partition", "phase", "time", "error", "reason"] };

/**
 * @param {string} hash As `location.hash`.
 * @param {import("./store.js").Store} store
 * @returns {object} What of it this capture has; the rest is as it is at the beginning.
 */
export function stateFromHash(hash, store) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const state = {};
  for (const [key, usual] of Object.entries(KEPT)) {
    const value = said.get(key);
    if (value !== null && isKnown(key, value, store)) state[key] = value;
    else if (key !== "graph" || said.size) state[key] = key === "graph" ? store.get("graph") : usual;
  }
  return state;
}

function isKnown(key, value, store) {
  if (key === "selected") return store.identity.has(value);
  if (key === "graph") return store.data.index("graphs", "graph_id").has(value);
  if (key === "table") return store.data.tableNames.includes(value);
  return CHOICES[key]?.includes(value) ?? /^[a-z]{1,20}$/.test(value);
}

/** @returns {string} The fragment for what is shown; empty at the beginning. */
export function hashOf(store) {
  const said = new URLSearchParams();
  const lone = store.data.table("graphs").rows === 1;
  for (const [key, usual] of Object.entries(KEPT)) {
    const value = store.get(key);
    if (value !== usual && value !== null && !(key === "graph" && lone)) said.set(key, value);
  }
  return said.toString();
}

/**
 * Keeps both alike, both ways.
 * @param {import("./store.js").Store} store
 * @returns {() => void} Stops it.
 */
export function followAddress(store) {
  const read = () => {
    if (isOurs(location.hash)) store.set(stateFromHash(location.hash, store));
  };
  const write = () => {
    const hash = hashOf(store);
    if (hash === location.hash.replace(/^#/, "") || (!hash && !isOurs(location.hash))) return;
    try {
      history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
    } catch {
      // a frame without an address of its own
    }
  };
  read();
  addEventListener("hashchange", read);
  const unsubscribe = store.subscribe(Object.keys(KEPT), write);
  return () => {
    removeEventListener("hashchange", read);
    unsubscribe();
  };
}

/** Other fragments lead to sections of the page. */
const isOurs = (hash) => Object.keys(KEPT).some((key) => new URLSearchParams(hash.replace(/^#/, "")).has(key));
