// The findings: evidence, why it matters, what to do.
import { cards, followSelection } from "./breaks.js";
import { button, el, facts, link, prose, roving } from "./dom.js";
import { clipped, counted, place, visible } from "./format.js";
import { emptyState, helpLine } from "./help.js";

const SIGNS = { error: "✖", warning: "▲", info: "ℹ" };

/**
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @returns {() => void}
 */
export function mountFindings(root, store) {
  root.append(helpLine("findings"));
  const findings = store.data.table("findings");
  if (!findings.rows) {
    root.append(emptyState("findings", store.data));
    return () => {};
  }
  const rows = Array.from({ length: findings.rows }, (_, row) => row);
  const shown = cards(store, rows, "findings", (row) => findingCard(store, findings, row));
  root.append(severities(findings, rows, shown), ...shown);
  roving(root, "h4 .ol-link");
  return followSelection(root, store);
}

/** A toggle per severity, with how many there are. */
function severities(findings, rows, shown) {
  const tools = el("div.ol-tools");
  for (const severity of Object.keys(SIGNS)) {
    const own = rows.filter((row) => findings.get(row, "severity") === severity);
    if (!own.length) continue;
    const toggle = button(`${SIGNS[severity]} ${counted(own.length, severity === "info" ? "note" : severity)}`, () => {
      const on = toggle.getAttribute("aria-pressed") !== "true";
      toggle.setAttribute("aria-pressed", String(on));
      for (const row of own) if (shown[row]?.dataset.ids) shown[row].hidden = !on;
    }, { "aria-pressed": "true" });
    tools.append(toggle);
  }
  return tools;
}

/** What to do, or the action that does it: what one change mends says so once. */
function advice(store, todo, row) {
  const cause = store.data.overview.causes?.[row];
  if (cause) return el("p.ol-advice", {}, "Of the same cause as ", button(`action ${cause}`, () => store.set({ tab: "actions" }), { class: "ol-link" }));
  return todo ? el("p.ol-advice", {}, el("b", {}, "Do: "), ...prose(todo)) : null;
}

function findingCard(store, table, row) {
  const get = (name) => table.get(row, name);
  const id = store.identity.idOf("findings", row);
  const severity = get("severity");
  const gain = store.data.overview.gains[row];
  return el(
    `article.ol-event.ol-${severity}`,
    { "data-ids": id, "aria-label": `${severity}: ${clipped(get("title") ?? "", 200)}` },
    el("h4", {}, el("span.ol-sign", { title: severity, role: "img", "aria-label": severity }, SIGNS[severity] ?? "·"), " ", link(store, id, clipped(get("title") || "a finding without a title", 400))),
    advice(store, get("mitigation"), row),
    facts([
      ["gain", gain ? `${gain}, per ${store.data.overview.per}` : null],
      ["why it matters", get("hazard") ? visible(get("hazard")) : null],
      ["evidence", get("evidence") ? clipped(get("evidence"), 1500) : null],
      ["where", get("file") ? link(store, `line:${get("file")}:${get("line")}`, place(get("file"), get("line"))) : null],
      ["rule", get("rule")],
    ]),
  );
}

