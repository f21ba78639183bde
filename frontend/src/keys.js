// Keys that work in every panel, and the list of all keys.
import { el } from "./dom.js";

/** @type {[string, string][]} */
const KEYS = [
  ["Tab", "moves between sections"],
  ["← →", "move between tabs, boxes, calls"],
  ["↑ ↓", "move between rows, lines, cards; in the graph along the wires"],
  ["Enter", "selects; expands a box of the graph"],
  ["Ctrl K", "goes to an operator, line, finding, table or action"],
  ["Esc", "clears the selection, then leaves the graph"],
  ["/", "searches the graph, the tables, the source"],
  ["n p", "graph: next and previous node in PyTorch; numerics: next value out of tolerance"],
  ["+ − 0", "flame, graph and timeline: zoom in, zoom out, show all"],
  ["wheel", "scrolls the page; with Ctrl, or once the drawing has the focus, zooms"],
  ["g t", "timeline: next known gap, a typical call"],
];

/**
 * Escape clears the selection, / goes to the search field. A key that a panel handled itself arrives here as prevented.
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @returns {() => void} Stops it.
 */
export function listenToKeys(root, store) {
  const onKey = (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest("input:not([type=checkbox]), textarea, select");
    if (event.key === "Escape" && !(typing?.type === "search" && typing.value)) store.set({ selected: null }); // the browser empties such a field
    if (event.key === "/" && !typing) find(root, event);
  };
  root.addEventListener("keydown", onKey);
  return () => root.removeEventListener("keydown", onKey);
}

function find(root, event) {
  const field = [...root.querySelectorAll("[data-find]")].find((candidate) => !candidate.closest("[hidden]"));
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select();
}

/** @returns {HTMLElement} The keys, behind a button. */
export function keyHelp() {
  const rows = KEYS.flatMap(([key, words]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, words)]);
  const help = el("details.ol-keys", {}, el("summary", {}, "Keys"), el("dl.ol-facts.ol-keys-list", {}, ...rows));
  help.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !help.open) return;
    event.preventDefault();
    help.open = false;
    help.firstChild.focus();
  });
  return help;
}
