// What to do, in one list: breaks, operators in PyTorch, recompiles and findings, ranked by what they bring.
import { followSelection } from "./breaks.js";
import { copyFrom } from "./clipboard.js";
import { button, el, link, prose, roving } from "./dom.js";
import { clipped, count, counted } from "./format.js";
import { emptyState, helpLine } from "./help.js";

const SIGNS = { measured: "●", estimated: "◐" };

/**
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @returns {() => void}
 */
export function mountActions(root, store) {
  root.append(helpLine("actions"));
  const actions = store.data.overview.actions ?? [];
  if (!actions.length) {
    root.append(emptyState("actions", store.data));
    return () => {};
  }
  if (store.data.overview.dry_run) root.append(el("p.ol-banner", { role: "note" }, "A dry run: nothing ran, so no gain is known."));
  root.append(el("ol.ol-actions", {}, ...actions.map((action, at) => actionCard(store, action, at))));
  roving(root, "h4 .ol-link");
  return followSelection(root, store);
}

function actionCard(store, action, at) {
  const { id, title, is_code: isCode, where, kind, gain, sure, confidence, why, do: todo, count: times } = action;
  const name = isCode ? el("code", {}, clipped(title, 200)) : clipped(title, 300);
  const known = id && store.identity.has(id);
  const often = times > 1 ? ` × ${count(times)}` : "";
  return el(
    `li.ol-event.ol-action.ol-action-${action.subject}`,
    { "data-ids": known ? id : null },
    el("h4", {}, el("span.ol-rank", { "aria-hidden": "true" }, `${at + 1} `), known ? link(store, id, name) : name),
    el("p.ol-action-facts", {}, el("b", {}, gain), sure === "unknown" ? null : el("span.ol-soft", {}, `${SIGNS[sure]} ${confidence}`), el("span.ol-chip", {}, kind + often), el("span.ol-soft", {}, where)),
    todo ? el("p.ol-advice", {}, el("b", {}, "Do: "), ...prose(clipped(todo, 800))) : null,
    change(action),
    ...action.paste.map((line) => pasteLine(store, line)),
    ...consequences(action),
    el("p.ol-action-why", {}, el("span.ol-soft", {}, `Why: ${clipped(why, 400)} `), issueButton(action)),
  );
}

/** @returns {HTMLElement[]} What else has its cause. */
export const consequences = ({ consequences: found = [] }) => (found.length ? [el("ul.ol-reasons.ol-soft", { "aria-label": "Of the same cause" }, ...found.map((sentence) => el("li", {}, ...prose(sentence))))] : []);

/** The line before and after, where a rule can write it. */
function change({ before, after }) {
  if (before === null || after === null) return null;
  return el("div.ol-diff", { role: "group", "aria-label": "The change" }, el("div.ol-diff-before", {}, el("span", {}, "− before "), el("code", {}, clipped(before, 300))), el("div.ol-diff-after", {}, el("span", {}, "+ after "), after ? el("code", {}, clipped(after, 300)) : el("i", {}, "delete the line")));
}

function pasteLine(store, line) {
  const copy = button("Copy", () => copyFrom(copy, line, { done: "Copied", name: "Setting" }), { class: "ol-copy-id", "aria-label": `Copy ${line}` });
  return el("p.ol-paste", {}, el("span.ol-soft", {}, "or paste "), el("code", {}, line), copy, ...tryButton(store, line));
}

/** Measures a setting, and undoes it: only a live lens can. */
function tryButton({ attempt }, line) {
  if (!attempt) return [];
  const said = el("span.ol-soft", { role: "status" });
  const measure = async () => {
    if (made.ariaBusy === "true") return;
    made.ariaBusy = "true";
    said.textContent = "Measuring, in turns with the model as it is…";
    said.textContent = clipped(await attempt(line).catch((error) => error.message), 400);
    made.ariaBusy = "false";
  };
  const made = button("Try", measure, { class: "ol-copy-id", "aria-label": `Try ${line}`, title: "Calls the model with and without it, in turns, and undoes it" });
  return [made, said];
}

function issueButton({ issue }) {
  const made = button("Copy as issue", () => copyFrom(made, issue, { done: "Copied", name: "Issue" }), { class: "ol-copy-id", title: "The line, the reason, the cost and what to do, as Markdown" });
  return made;
}

/** @returns {string} How many there are, for the tab. */
export const actionCount = (data) => (data.overview.actions?.length ? String(data.overview.actions.length) : null);

/** @returns {string} What leads to the list from a part of it. */
export function allActions({ overview }) {
  const count = overview.actions?.length ?? 0;
  return count > overview.looks.length ? `All ${counted(count, "action")}` : "Details in Actions";
}
