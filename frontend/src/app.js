// The explorer: panels in tabs, linked by one selection.
import { mountGraph } from "./graph/index.js";

/**
 * @param {HTMLElement} root Element to fill.
 * @param {import("./store.js").Store} store
 * @returns {() => void} Takes everything down again.
 */
export function mountApp(root, store) {
  root.classList.add("ortlens");
  const main = document.createElement("div");
  root.replaceChildren(main);
  const cleanup = mountGraph(main, store);
  return () => {
    cleanup();
    root.replaceChildren();
  };
}
