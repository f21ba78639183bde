// Graph breaks and recompiles: where, why, what it costs, and what to change.
import { button, el, inlineFacts, link, prose, roving, together } from "./dom.js";
import { clipped, count, counted, functionName, place, time, visible } from "./format.js";
import { emptyState, helpLine } from "./help.js";

const MOST = 200; // cards of a kind

/** Of what the cost is the sum. */
const parts = (get) => (get("overhead_ns") && get("overhead_ns") + get("entering_ns") === get("cost_ns") ? ` (${time(get("overhead_ns"))} between the graphs, ${time(get("entering_ns"))} to enter the next)` : "");

/**
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @returns {() => void}
 */
export function mountBreaks(root, store) {
  root.append(helpLine("breaks"));
  const breaks = store.data.table("breaks");
  const recompiles = store.data.table("recompiles");
  if (!breaks.rows && !recompiles.rows) {
    root.append(emptyState("breaks", store.data));
    return () => {};
  }
  if (breaks.rows) root.append(el("h3", {}, counted(breaks.rows, "graph break")), ...cards(store, ranked(breaks), "breaks", (row) => breakCard(store, breaks, row)));
  if (recompiles.rows) root.append(el("h3", {}, recompileCount(store.data)), ...cards(store, recompileGroups(recompiles), "recompiles", (rows) => recompileCard(store, recompiles, rows)));
  roving(root, "h4 .ol-link");
  return followSelection(root, store);
}

/**
 * As many cards as anybody reads, and where the others are.
 * @template T
 * @param {import("./store.js").Store} store
 * @param {T[]} items
 * @param {string} table
 * @param {(item: T) => HTMLElement} card
 * @returns {HTMLElement[]}
 */
export function cards(store, items, table, card) {
  const shown = items.slice(0, MOST).map(card);
  const left = items.length - shown.length;
  if (!left) return shown;
  return [...shown, el("p", {}, button(`${count(left)} more, see the table ${table}`, () => store.set({ tab: "tables", table }), { class: "ol-link" }))];
}

/** Cards of what is selected are marked and brought into view, else those of what it is linked to. */
export function followSelection(root, store) {
  const follow = () => {
    const chain = store.get("chain");
    const linked = new Set(chain ? [chain.id, ...["breaks", "recompiles", "findings"].flatMap((step) => chain[step].map((found) => found.id))] : []);
    let first = null;
    for (const card of root.querySelectorAll("[data-ids]")) {
      const ids = card.dataset.ids.split("\n");
      const own = chain !== null && ids.includes(chain.id);
      card.setAttribute("aria-current", String(ids.some((id) => linked.has(id))));
      if (own || (first === null && card.getAttribute("aria-current") === "true")) first = card;
    }
    first?.scrollIntoView({ block: "nearest" });
  };
  follow();
  return together([store.subscribe(["chain"], follow)]);
}

/** Decode after prefill is compiled for the first time: no recompile, as everywhere. */
function recompileCount({ overview, table }) {
  const rows = table("recompiles").rows;
  const real = overview.recompile_count ?? rows;
  return real === rows ? counted(rows, "recompile") : `${counted(real, "recompile")}, and ${counted(rows - real, "first compilation")} of decode after prefill`;
}

/** The most expensive first, then the most frequent. */
function ranked(breaks) {
  const rows = Array.from({ length: breaks.rows }, (_, row) => row);
  const cost = (row) => [breaks.get(row, "cost_ns") ?? 0, breaks.get(row, "occurrences") ?? 0];
  return rows.sort((a, b) => cost(b)[0] - cost(a)[0] || cost(b)[1] - cost(a)[1]);
}

/** What a card is about, as a line of code, and the button that selects that line. */
function codeLine(store, file, line, source) {
  const id = `line:${file}:${line}`;
  const where = store.identity.has(id) ? link(store, id, place(file, line)) : place(file, line);
  return el("p.ol-card-code", {}, where, source ? el("code", {}, clipped(source.trim(), 300)) : null);
}

function breakCard(store, table, row) {
  const get = (name) => table.get(row, name);
  const id = store.identity.idOf("breaks", row);
  const hints = get("hints") ?? [];
  const [advice, rest] = get("advice") ? [get("advice"), hints] : [hints[0] ?? null, hints.slice(1)];
  const times = get("occurrences") > 1 ? `${count(get("occurrences"))} in total` : null;
  return el(
    "article.ol-event",
    { "data-ids": id, "aria-label": `Graph break at ${place(get("file"), get("line"))}` },
    el("h4", {}, el("span.ol-mark-break", { "aria-hidden": "true" }, "✂ "), link(store, id, clipped(get("reason") || "no reason was recorded", 300))),
    codeLine(store, get("file"), get("line"), get("source")),
    advice ? el("p.ol-advice", {}, el("b", {}, "Do: "), ...prose(advice)) : null,
    inlineFacts([
      ["cost", get("cost_ns") ? `${time(get("cost_ns"))} per call${parts(get)}, measured${store.data.overview.busy_sentence ? " on a busy machine" : ""}` : null],
      ["besides", get("between_ns") ? `${time(get("between_ns"))} per call of PyTorch and Python between the graphs` : null],
      ["function", get("function") ? functionName(get("function")) : null],
      ["boundaries", times],
      ["ends", graphLinks(store, get("compile_ids") ?? [])],
      ["PyTorch's id", get("gb_id")],
    ]),
    explanation(get("explanation"), rest),
    stack(get("user_stack") ?? []),
  );
}

function graphLinks(store, compileIds) {
  const known = store.data.index("graphs", "compile_id");
  const forward = (row) => store.data.table("graphs").get(row, "phase") !== "backward"; // which has its forward's id, and was not broken off
  const links = compileIds.flatMap((compiled) => (known.get(compiled) ?? []).filter(forward).map((row) => link(store, store.identity.idOf("graphs", row), `graph ${compiled}`)));
  return links.length ? el("span.ol-links", {}, ...links) : compileIds.join(", ");
}

function explanation(text, hints) {
  if (!text && !hints.length) return null;
  const list = hints.length ? el("ul", {}, ...hints.map((hint) => el("li", {}, clipped(hint, 2000)))) : null;
  return el("details", {}, el("summary", {}, "PyTorch's explanation", hints.length ? ` and ${counted(hints.length, "more hint")}` : ""), text ? el("p", {}, clipped(text, 3000)) : null, list);
}

function stack(frames) {
  if (!frames.length) return null;
  return el("details", {}, el("summary", {}, `Call stack: ${counted(frames.length, "frame")}`), el("ol.ol-stack", {}, ...frames.map((frame) => el("li", {}, el("code", {}, clipped(frame, 400))))));
}

/** Recompiles of one function belong together: the story is how its guards failed in turn. */
function recompileGroups(table) {
  const groups = new Map();
  for (let row = 0; row < table.rows; row++) {
    const key = JSON.stringify(["function", "file", "line"].map((name) => table.get(row, name)));
    if (groups.has(key)) groups.get(key).push(row);
    else groups.set(key, [row]);
  }
  return [...groups.values()].sort((a, b) => b.length - a.length);
}

function recompileCard(store, table, rows) {
  const get = (name) => table.get(rows[0], name);
  const ids = rows.map((row) => store.identity.idOf("recompiles", row));
  const advice = [...new Set(rows.map((row) => table.get(row, "advice")).filter(Boolean))];
  return el(
    "article.ol-event",
    { "data-ids": ids.join("\n"), "aria-label": `Recompiles of ${functionName(get("function"))}` },
    el("h4", {}, el("span.ol-mark-recompile", { "aria-hidden": "true" }, "↻ "), link(store, ids[0], `${functionName(get("function"))} was compiled again ${rows.length === 1 ? "once" : `${rows.length} times`}`)),
    codeLine(store, get("file"), get("line"), null),
    ...advice.slice(0, 3).map((text) => el("p.ol-advice", {}, el("b", {}, "Do: "), ...prose(text))),
    el("ul.ol-guards", {}, ...rows.slice(0, 12).map((row) => guardItem(store, table, row))),
    rows.length > 12 ? el("p.ol-soft", {}, `and ${rows.length - 12} more, see Tables`) : null,
  );
}

function guardItem(store, table, row) {
  const guard = (table.get(row, "guard") ?? table.get(row, "reason") ?? "a guard").split("  #")[0].trim();
  const values = table.get(row, "values") ?? [];
  const id = store.identity.idOf("recompiles", row);
  const full = button("why", () => store.set({ selected: id, tab: "tables", table: "recompiles" }), { class: "ol-link", title: visible(table.get(row, "reason") ?? "") });
  return el("li", {}, link(store, id, table.get(row, "compile_id")), " failed guard: ", el("code", {}, clipped(guard, 300)), values.length ? el("span.ol-soft", {}, ` seen: ${clipped(values.join(", "), 160)}`) : null, " ", full);
}
