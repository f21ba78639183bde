// The command palette: Ctrl K, a few letters, Enter.
import { acted, el } from "./dom.js";
import { found, jumpsOf } from "./jumps.js";

let views = 0; // several stand in one page, and options are named by ids

/**
 * @param {HTMLElement} root The view.
 * @param {import("./store.js").Store} store
 * @param {{id: string, label: string}[]} panels
 * @param {EventTarget} [page] The page, where the view is all of it: Ctrl K is heard there too. Keys of the view do not reach it.
 * @returns {{open: () => void, cleanup: () => void}}
 */
export function createCommands(root, store, panels, page) {
  const prefix = `ortlens-command-${++views}`;
  let shown = null;
  let jumps = null;

  function open() {
    if (shown) return shown.field.select();
    jumps ??= jumpsOf(store, panels);
    const back = root.getRootNode().activeElement;
    const list = el("ul.ol-palette-list", { role: "listbox", id: `${prefix}-list`, "aria-label": "What fits" });
    const field = el("input.ol-palette-field", { type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": `${prefix}-list`, "aria-label": "Go to an operator, line, finding, table or action", placeholder: "Go to an operator, line, finding, table or action" });
    const dialog = el("div.ol-palette", { role: "dialog", "aria-modal": "true", "aria-label": "Go to" }, field, list);
    const cover = el("div.ol-palette-cover", { on: { pointerdown: (event) => event.target === cover && close() } }, dialog);
    shown = { cover, field, list, back, hits: [], at: 0 };
    field.addEventListener("input", refresh);
    dialog.addEventListener("keydown", onKey);
    list.addEventListener("click", (event) => {
      const item = event.target.closest("[data-at]");
      if (item) take(Number(item.dataset.at));
    });
    root.append(cover);
    refresh();
    field.focus();
  }

  function close() {
    if (!shown) return;
    const { cover, back } = shown;
    shown = null;
    cover.remove();
    if (back?.isConnected) back.focus?.();
  }

  function refresh() {
    shown.hits = found(jumps, shown.field.value);
    shown.at = 0;
    shown.list.replaceChildren(...(shown.hits.length ? shown.hits.map(option) : [el("li.ol-soft", {}, "Nothing fits these words.")]));
    mark();
  }

  const option = (jump, at) => el("li", { role: "option", id: `${prefix}-${at}`, "data-at": at }, el("span.ol-palette-group", {}, jump.group), el("span.ol-palette-label", {}, jump.label), el("span.ol-soft", {}, jump.detail));

  function mark() {
    [...shown.list.querySelectorAll("[data-at]")].forEach((item, at) => item.setAttribute("aria-selected", String(at === shown.at)));
    const active = shown.list.querySelector("[aria-selected=true]");
    if (active) shown.field.setAttribute("aria-activedescendant", active.id);
    else shown.field.removeAttribute("aria-activedescendant");
    active?.scrollIntoView({ block: "nearest" });
  }

  function take(at) {
    const jump = shown.hits[at];
    if (!jump) return;
    close();
    store.set(jump.patch);
    root.querySelector("[role=tab][aria-selected=true]")?.focus();
  }

  function onKey(event) {
    const last = shown.hits.length - 1;
    const acts = { ArrowDown: () => (shown.at = Math.min(last, shown.at + 1)), ArrowUp: () => (shown.at = Math.max(0, shown.at - 1)), Enter: () => take(shown.at), Escape: close, Tab: close };
    event.stopPropagation();
    if (acted(event, acts) && shown) mark();
  }

  const listen = (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey || event.key.toLowerCase() !== "k") return;
    event.preventDefault();
    open();
  };
  const places = [root, page].filter(Boolean);
  for (const place of places) place.addEventListener("keydown", listen);
  return {
    open,
    cleanup: () => {
      for (const place of places) place.removeEventListener("keydown", listen);
      close();
    },
  };
}
