// The search field: a list of what fits, and marks on the boxes.
import { acted, el } from "../dom.js";
import { count, counted } from "../format.js";
import { listed, outsideOf, search } from "./search.js";
import { headOf, safe } from "./text.js";

/**
 * @param {HTMLInputElement} input
 * @param {HTMLElement} home
 * @param {import("../store.js").Store} store
 * @param {() => import("./view.js").View} view
 * @param {{pick: (item: import("./item.js").Item) => void, back: () => void}} actions
 * @returns {{refresh: () => void, cleanup: () => void}}
 */
export function createFinder(input, home, store, view, actions) {
  const list = el("ul.olg-found-list", { role: "listbox", hidden: true, "aria-label": "Found" });
  const listId = `${view().scene.paint.prefix}found`;
  list.id = listId;
  for (const [name, value] of Object.entries({ role: "combobox", "aria-controls": listId, "aria-expanded": "false", "aria-autocomplete": "list" })) input.setAttribute(name, value);
  home.append(list);
  let items = [];
  let at = -1;

  function refresh() {
    const found = search(view().tree, view().root, store.get("search") ?? "");
    if (input.value !== (store.get("search") ?? "")) input.value = store.get("search") ?? "";
    items = [...listed(view().tree, found), ...outsideOf(store.data, store.get("search") ?? "")];
    at = items.length ? 0 : -1;
    view().found = found.rows.map((row) => view().tree.place[row]).sort((a, b) => a - b);
    view().scene.remark();
    list.replaceChildren(...items.map(option), summary(found));
    mark();
  }

  const summary = ({ count: all, groups }) =>
    el("li.ol-soft", { role: "presentation" }, items.length ? (all + groups.length > items.length ? `${count(items.length)} of ${counted(all, "node")}` : counted(all, "node")) : "no match");

  function option(item, index) {
    const { labels, ops } = view();
    const where = item.selected ? "runs outside of the graphs" : item.row >= 0 ? `${safe(ops.name[item.row])}${ops.module[item.row] ? ` in ${safe(ops.module[item.row])}` : ""}` : labels.note(item);
    const entry = el(
      "li",
      { role: "option", id: `${listId}-${index}` },
      el("span.olg-found-name", {}, headOf(item.selected ? safe(item.title) : labels.title(item), 40)),
      el("span.ol-soft", {}, headOf(where, 60)),
      item.torch || item.selected ? el("span.olg-tag-torch", {}, "PyTorch") : null,
    );
    entry.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // the field keeps the focus until the choice is made
      pick(index);
    });
    return entry;
  }

  function mark() {
    items.forEach((_, index) => list.children[index].setAttribute("aria-selected", String(index === at)));
    if (at >= 0) input.setAttribute("aria-activedescendant", `${listId}-${at}`);
    else input.removeAttribute("aria-activedescendant");
    const chosen = list.children[at];
    if (!chosen) return;
    // Not scrollIntoView, which would scroll what is around the list too.
    if (chosen.offsetTop < list.scrollTop) list.scrollTop = chosen.offsetTop;
    const below = chosen.offsetTop + chosen.offsetHeight - list.clientHeight;
    if (below > list.scrollTop) list.scrollTop = below;
  }

  function show(open) {
    list.hidden = !open;
    if (open) list.style.left = `${Math.min(0, home.parentElement.getBoundingClientRect().right - home.getBoundingClientRect().left - list.offsetWidth)}px`;
    input.setAttribute("aria-expanded", String(open));
  }

  function pick(index) {
    if (!items[index]) return;
    show(false);
    if (items[index].selected) store.set({ tab: "source", selected: items[index].selected });
    else actions.pick(items[index]);
  }

  const keys = {
    ArrowDown: () => ((at = Math.min(items.length - 1, at + 1)), mark()),
    ArrowUp: () => ((at = Math.max(0, at - 1)), mark()),
    Enter: () => pick(at),
    Escape: () => {
      if (input.value) store.set({ search: "" });
      show(false);
      actions.back();
    },
  };
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    acted(event, keys);
  });
  input.addEventListener("input", () => {
    store.set({ search: input.value });
    show(input.value.trim() !== "");
  });
  input.addEventListener("blur", () => show(false));
  input.addEventListener("focus", () => show(input.value.trim() !== ""));
  return { refresh, cleanup: store.subscribe(["search"], refresh) };
}
