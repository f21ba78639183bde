// Keys that mean the same in every panel, and where all of them are written down.
import { el } from "./dom.js";

/** @type {[string, string][]} */
const KEYS = [
  ["Tab", "goes from part to part"],
  ["← →", "among tabs, boxes, calls"],
  ["↑ ↓", "among rows, lines, cards; in the graph along the wires"],
  ["Enter", "selects; opens a box of the graph"],
  ["Esc", "selects nothing; then leaves the graph"],
  ["/", "finds: in the graph, the tables, the source"],
  ["n p", "in the graph the next and the last operation in PyTorch; in Numerics the next value out of tolerance"],
  ["+ − 0", "in the graph and the timeline: larger, smaller, all of it"],
  ["g t", "in the timeline: the next gap that is known, a typical call"],
];

/**
 * Escape selects nothing, / goes to the field that finds. What a panel used itself comes here as prevented.
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
