// The verdict: four tiles above the tabs. Python makes their words (ortlens/views/tiles.py), here they are drawn and lead to the evidence.
import { shareBar } from "./bars.js";
import { button, el } from "./dom.js";

/**
 * @param {import("./store.js").Store} store
 * @returns {HTMLElement|null} Null for data without a verdict.
 */
export function tileStrip(store) {
  const tiles = store.data.overview.tiles ?? [];
  if (!tiles.length) return null;
  return el("div.ol-tiles", { role: "group", "aria-label": "Verdict", "data-dry": store.data.overview.dry_run ? "true" : null }, ...tiles.map((tile) => tileOf(store, tile)));
}

function tileOf(store, tile) {
  const { title, word, detail, sign, state, share, call } = tile;
  const made = button("", () => show(store, tile), { class: `ol-tile ol-tile-${state}`, "data-tile": tile.name, title: `${detail}. Click for the evidence.` });
  const bar = share === null ? null : shareBar(share, `${title}: ${word}`);
  bar?.setAttribute("aria-hidden", "true"); // the word above it says the same
  made.append(
    el("span.ol-tile-title", {}, title),
    el("span.ol-tile-word", {}, sign ? el("span.ol-tile-sign", { "aria-hidden": "true" }, `${sign} `) : null, word),
    bar ?? "",
    el("span.ol-tile-detail", {}, detail, call ? el("code", {}, ` ${call}`) : null),
  );
  return made;
}

/** What is wrong is selected as well; a card of the overview is brought into view. */
function show(store, { tab, selected, card }) {
  const patch = { tab, card: null };
  if (selected && store.identity.has(selected)) patch.selected = selected;
  store.set(patch);
  if (card) store.set({ card });
}
