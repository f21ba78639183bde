// The ONNX models as Netron draws them, one at a time, linked with everything else node by node.
import { onThemeChange } from "./canvas.js";
import { unpackedBytes } from "./data.js";
import { button, el, roving, together } from "./dom.js";
import { clipped, count } from "./format.js";
import { emptyState, helpLine } from "./help.js";
import { createFrame } from "./onnxframe.js";
import { OPTIMIZED, idOfNode, modelFor, modelOf, selectedNames } from "./onnxlinks.js";

/**
 * @typedef {object} Models
 * @property {string[]} ids Models that are at hand: `m0`, and `m0.optimized` as ONNX Runtime runs it.
 * @property {() => Promise<Uint8Array>|Uint8Array|null} frame The frame's page, gzip'd; null where Netron is missing.
 * @property {(id: string) => Promise<Uint8Array>|Uint8Array} model A model without its weights, gzip'd.
 * @property {string[]} [notes] Sentences about what is not there, and why.
 */

/** Nodes above which a model is drawn only when asked for. */
const LARGE = 2000;

/** Seconds that Netron's layout takes at most, roughly. On one core 12,000 nodes took from 13 s, in a row, to 121 s, tangled. */
const layoutSeconds = (nodes) => (nodes / 1100) ** 2;

/**
 * @param {Models} models
 * @returns {import("./app.js").Mount} The panel.
 */
export const onnxPanel = (models) => (root, store) => mountOnnx(root, store, models);

function mountOnnx(root, store, models) {
  const table = store.data.table("models");
  if (!table.rows) {
    root.replaceChildren(helpLine("onnx"), emptyState("onnx", store.data));
    return () => {};
  }
  const list = el("div.ol-onnx-list", { role: "group", "aria-label": "Models" });
  const status = el("div.ol-onnx-status", { role: "status" });
  const tools = el("div.ol-onnx-tools");
  const stage = el("div.ol-onnx-stage");
  const notes = (models.notes ?? []).map((note) => el("p.ol-soft", {}, note));
  root.replaceChildren(helpLine("onnx"), ...notes, el("div.ol-onnx", {}, list, el("div.ol-onnx-view", {}, el("div.ol-onnx-bar", {}, status, tools), stage)));

  const view = { root, store, models, table, list, status, tools, stage, shown: null, variant: "", frame: null, drawn: null, busy: null, agreed: new Set(), ask: 0 };
  for (let row = 0; row < table.rows; row++) list.append(entry(view, row));
  roving(list, "button");
  const cleanups = [store.subscribe(["selected", "chain"], () => followSelection(view)), onThemeChange(store, () => view.frame?.theme(isDark(root))), () => removeFrame(view)];
  show(view, modelFor(store, null) ?? firstAtHand(view));
  return together(cleanups);
}

function entry(view, row) {
  const { table, models, store } = view;
  const get = (column) => table.get(row, column);
  const id = get("model_id");
  const lines = [
    el("span.ol-onnx-name", {}, clipped(get("partition_id"), 40), el("span.ol-soft", {}, ` ${clipped(id, 40)}`)),
    el("span", {}, `${count(get("node_count"))} nodes`),
    el("span.ol-soft", {}, clipped((get("ops") ?? []).slice(0, 3).join(" "), 60)),
  ];
  const choose = () => {
    store.set({ selected: `model:${id}` });
    show(view, id);
  };
  const made = button("", choose, { class: "ol-onnx-entry", "data-model": id, title: clipped((get("ops") ?? []).join(" "), 400), disabled: !models.ids.includes(id) });
  made.append(...lines);
  return made;
}

const firstAtHand = ({ table, models }) => Array.from(table.column("model_id")).find((id) => models.ids.includes(id)) ?? null;
const drawingOf = (view) => (view.shown === null ? null : view.shown + view.variant);

function followSelection(view) {
  const wanted = modelFor(view.store, view.shown);
  if (wanted !== null && wanted !== view.shown) show(view, wanted);
  else if (view.drawn === drawingOf(view)) highlight(view);
}

/** A click in Netron comes back as a selection: what is highlighted there already needs no second scroll. */
function highlight(view) {
  if (view.clicked !== null && view.clicked === view.store.get("selected")) return;
  view.clicked = null;
  view.frame?.select(selectedNames(view.store, view.drawn));
}

// ---- one model ----

function show(view, model) {
  view.shown = model;
  if (model === null || !view.models.ids.includes(model + view.variant)) view.variant = "";
  for (const made of view.list.children) made.setAttribute("aria-pressed", String(made.dataset.model === model));
  view.tools.replaceChildren(...(model === null ? [] : toolsOf(view)));
  if (model === null || !view.models.ids.includes(model)) {
    removeFrame(view);
    say(view, model === null ? "None of the models is on this page." : `Model ${clipped(model, 40)} is not on this page.`);
  } else if (view.drawn !== drawingOf(view) && view.busy !== drawingOf(view)) draw(view);
}

function nodesOf(view) {
  const { row } = view.store.identity.rowOf(`model:${view.shown}`);
  return (view.variant ? view.table.get(row, "optimized_node_count") : null) ?? view.table.get(row, "node_count") ?? 0;
}

function toolsOf(view) {
  const { shown, models } = view;
  if (!models.ids.includes(shown)) return [];
  const variant = (value, label, title) =>
    button(label, () => change(view, value), { "aria-pressed": String(view.variant === value), title });
  const both = models.ids.includes(shown + OPTIMIZED)
    ? [variant("", "As converted", "The model before ONNX Runtime's rewrites"), variant(OPTIMIZED, "As it runs", "After ONNX Runtime's own rewrites: every box is a kernel")]
    : [];
  return [...both, button("Save .onnx", () => save(view), { title: "The model without weight values, for other viewers" })];
}

function change(view, variant) {
  if (view.variant === variant) return;
  view.variant = variant;
  show(view, view.shown);
}

async function draw(view) {
  const drawing = drawingOf(view);
  const nodes = nodesOf(view);
  if (nodes > LARGE && !view.agreed.has(drawing)) return askFirst(view, drawing, nodes);
  const ask = ++view.ask; // a later one makes this one stale
  if (view.busy) removeFrame(view); // a layout cannot be stopped but with its frame
  Object.assign(view, { busy: drawing, drawn: null, clicked: null });
  const stop = progress(view, nodes);
  view.stopProgress = stop;
  try {
    const [html, bytes] = await Promise.all([view.frame ? null : unpacked(view.models.frame()), unpacked(view.models.model(drawing))]);
    if (ask !== view.ask) return;
    if (html !== null && !html.length) return noViewer(view);
    if (!view.frame) makeFrame(view, new TextDecoder().decode(html));
    view.frame.element.hidden = false;
    view.frame.open({ id: drawing, bytes, names: selectedNames(view.store, drawing) });
  } catch (error) {
    if (ask === view.ask) failed(view, error.message);
  }
}

const unpacked = async (packed) => {
  const bytes = await packed;
  return bytes ? unpackedBytes(bytes) : new Uint8Array();
};

function makeFrame(view, html) {
  view.stage.replaceChildren();
  view.frame = createFrame(view.stage, html, (message) => hear(view, message));
  view.frame.theme(isDark(view.root));
}

function removeFrame(view) {
  view.stopProgress?.();
  view.frame?.remove();
  Object.assign(view, { frame: null, drawn: null, busy: null, ask: view.ask + 1 });
  view.stage.replaceChildren();
}

function hear(view, message) {
  if (message.type === "opened" && message.id === view.busy) {
    view.stopProgress();
    Object.assign(view, { drawn: message.id, busy: null });
    say(view, `${sentence(view)}, drawn in ${(message.ms / 1000).toFixed(1)} s, without weight values.`);
    highlight(view);
  } else if (message.type === "failed") failed(view, message.message);
  else if (message.type === "selected" && message.id === view.drawn) pick(view, message.name);
  else if (message.type === "leave") view.list.querySelector("[aria-pressed=true]")?.focus();
}

function pick(view, name) {
  const id = idOfNode(view.store, view.drawn, String(name));
  const known = id ?? `model:${view.shown}`;
  say(view, id ? `${clipped(String(name), 120)}: see the details for its source line.` : `${clipped(String(name), 120)} was added by the conversion; it has no source line.`);
  view.clicked = known;
  view.store.set({ selected: known });
}

const sentence = (view) => `Model ${clipped(view.shown, 40)} ${view.variant ? "as ONNX Runtime runs it" : "as converted"}`;

// ---- what is said ----

function say(view, text, ...more) {
  view.status.replaceChildren(text, ...more);
}

/** Says how far it is while a model is drawn; a layout reports no progress, so the elapsed time is shown. */
function progress(view, nodes) {
  view.stopProgress?.();
  const started = performance.now();
  const update = () => {
    const seconds = Math.round((performance.now() - started) / 1000);
    say(view, `Drawing ${count(nodes)} nodes…${seconds > 1 ? ` ${seconds} s` : ""}`);
  };
  update();
  const timer = setInterval(update, 1000);
  return () => clearInterval(timer);
}

function askFirst(view, drawing, nodes) {
  removeFrame(view);
  say(view, "");
  const seconds = layoutSeconds(nodes);
  const time = seconds < 90 ? `${Math.max(10, Math.round(seconds / 10) * 10)} seconds` : `${Math.round(seconds / 60)} minutes`;
  const agree = button("Draw it", () => {
    view.agreed.add(drawing);
    draw(view);
  });
  view.stage.replaceChildren(el("div.ol-empty", {}, el("p", {}, `This model has ${count(nodes)} nodes. Netron takes up to ${time} to lay it out; the Graph panel shows the same nodes at once.`), agree));
}

function noViewer(view) {
  removeFrame(view);
  say(view, `${sentence(view)} can be saved and opened with any viewer of ONNX models: Netron is not on this page.`);
}

function failed(view, message) {
  removeFrame(view);
  say(view, `${sentence(view)} could not be drawn: ${clipped(message, 300)} `, button("Try again", () => draw(view)));
}

// ---- what else ----

async function save(view) {
  try {
    const url = URL.createObjectURL(new Blob([await unpacked(view.models.model(drawingOf(view)))], { type: "application/octet-stream" }));
    el("a", { href: url, download: `${modelOf(view.shown)}${view.variant}.onnx` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  } catch (error) {
    say(view, `The model could not be saved: ${clipped(error.message, 300)}`);
  }
}

/** Whether a view is dark, whoever decided it: the system, the notebook, or its own button. */
function isDark(root) {
  const probe = el("span");
  probe.style.color = "light-dark(#000, #fff)";
  root.append(probe);
  const dark = getComputedStyle(probe).color === "rgb(255, 255, 255)";
  probe.remove();
  return dark;
}
