// The explorer: panels in tabs, linked by one selection, with the details of what is selected beside them.
import LABELS from "../../ortlens/views/panels.json" with { type: "json" };
import { actionCount, mountActions } from "./actions.js";
import { mountBreaks } from "./breaks.js";
import { createCommands } from "./commands.js";
import { mountDetails } from "./details.js";
import { button, el, keepEvents, together } from "./dom.js";
import { mountFindings } from "./findings.js";
import { visible } from "./format.js";
import { mountFlame } from "./flamepanel.js";
import { mountGraph } from "./graph/index.js";
import { prepareWhenIdle } from "./graph/prepared.js";
import { keyHelp, listenToKeys } from "./keys.js";
import { mountNumerics } from "./numerics.js";
import { mountOverview } from "./overview.js";
import { mountRoofline } from "./roofline.js";
import { mountSource } from "./source.js";
import { mountTables } from "./tables.js";
import { tileStrip } from "./tiles.js";
import { mountTimeline } from "./timeline.js";

/** @typedef {(root: HTMLElement, store: import("./store.js").Store) => () => void} Mount */

/** @type {Record<string, {mount: Mount|null, count?: (data: import("./data.js").Data) => number|string}>} */
const PARTS = {
  overview: { mount: mountOverview },
  actions: { mount: mountActions, count: actionCount },
  flame: { mount: mountFlame },
  graph: { mount: mountGraph },
  tables: { mount: mountTables },
  timeline: { mount: mountTimeline },
  roofline: { mount: mountRoofline },
  source: { mount: mountSource },
  breaks: { mount: mountBreaks, count: breakCounts },
  findings: { mount: mountFindings, count: (data) => data.table("findings").rows },
  numerics: { mount: mountNumerics },
  onnx: { mount: null },
};

/** Tabs from left to right: Python has the same list. */
const PANELS = Object.entries(LABELS).map(([id, label]) => ({ id, label, ...PARTS[id] }));

/** Breaks and recompiles are two things: their sum would be the count of neither. */
function breakCounts(data) {
  const [breaks, recompiles] = [data.table("breaks").rows, data.overview.recompile_count ?? data.table("recompiles").rows];
  return [breaks ? String(breaks) : null, recompiles ? `↻ ${recompiles}` : null].filter(Boolean).join("  ");
}

const THEMES = { auto: ["◐", "follows the page; click for light"], light: ["☀", "light; click for dark"], dark: ["☾", "dark; click to follow the page"] };

let views = 0; // several views stand in one page, and labels refer to elements by id

/**
 * @param {HTMLElement} root Element to fill.
 * @param {import("./store.js").Store} store
 * @param {{onnx?: Mount, tools?: HTMLElement[], page?: EventTarget}} [options] The panel of ONNX models, where there is one: its tab is hidden otherwise;
 *   what else the header holds; where Ctrl K is listened for besides the view, as the page where the view is all of it.
 * @returns {() => void} Takes everything down again.
 */
export function mountApp(root, store, options = {}) {
  const panels = PANELS.map((panel) => (panel.id === "onnx" ? { ...panel, mount: options.onnx ?? null } : panel)).filter((panel) => panel.mount);
  const prefix = `ortlens-${++views}`;
  const main = el("div.ol-main");
  const aside = el("aside.ol-details", { "aria-label": "Details of the selection" });
  const commands = createCommands(root, store, panels, options.page);
  const shell = el("div.ol-shell", {}, header(store, [goTo(commands), ...(options.tools ?? [])]), tileStrip(store), tabList(panels, store, prefix), el("div.ol-body", {}, main, aside));
  root.classList.add("ortlens");
  root.replaceChildren(shell);
  const unlisten = listenToKeys(root, store);
  keepEvents(root);
  const cleanups = [mountDetails(aside, store, new Set(panels.map((panel) => panel.id))), showPanels(main, panels, store, prefix, shell), followTheme(root, store), unlisten, commands.cleanup, prepareWhenIdle(store), keepInView(main, store)];
  return () => {
    together(cleanups)();
    root.replaceChildren();
    root.classList.remove("ortlens");
  };
}

/**
 * Says in the explorer's place that it could not start.
 * @param {HTMLElement} root
 * @param {Error} error
 * @param {string} instead What to use in its place.
 */
export function mountFailure(root, error, instead) {
  root.replaceChildren(el("p", { role: "alert" }, `The explorer could not start: ${error.message}. ${instead}`));
}

function header(store, tools) {
  const { meta, overview } = store.data;
  const theme = button("", () => store.set({ theme: { auto: "light", light: "dark", dark: "auto" }[store.get("theme")] }), { class: "ol-icon ol-theme" });
  const notes = [...meta.left_out, ...(meta.redacted ? ["paths are shortened and source text is left out"] : [])];
  return el(
    "header.ol-header",
    {},
    el("div.ol-name", { title: overview.title }, visible(meta.name || overview.title)),
    el("div.ol-verdict", { title: `${visible(meta.backend)}, ${meta.created}` }, overview.verdict),
    notes.length ? el("div.ol-note", { title: notes.join("\n") }, notes.join("; ")) : null,
    keyHelp(),
    theme,
    ...tools,
  );
}

const goTo = (commands) => button("Go to…", commands.open, { class: "ol-goto", title: "Go to an operator, line, finding, table or action (Ctrl K)" });

function tabList(panels, store, prefix) {
  const list = el("div.ol-tabs", { role: "tablist", "aria-label": "Panels" });
  for (const { id, label, count } of panels) {
    const number = count?.(store.data) || null;
    const tab = button(label, () => store.set({ tab: id }), { role: "tab", id: `${prefix}-tab-${id}`, "aria-controls": `${prefix}-${id}`, "data-tab": id });
    if (number) tab.append(el("span.ol-badge", {}, String(number)));
    list.append(tab);
  }
  list.addEventListener("keydown", (event) => moveAmongTabs(event, panels, store, list));
  return list;
}

function moveAmongTabs(event, panels, store, list) {
  const at = panels.findIndex((panel) => panel.id === store.get("tab"));
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: panels.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const { id } = panels[(to + panels.length) % panels.length];
  store.set({ tab: id });
  list.querySelector(`[data-tab="${id}"]`).focus();
}

const TAB_GAP = 10; // beside the chosen tab, so that it does not seem cut off

/** Scrolls the row of tabs, and nothing else, to the one that was chosen. */
function revealed(tab) {
  const row = tab.parentElement;
  const [left, right] = [tab.offsetLeft - row.offsetLeft, tab.offsetLeft - row.offsetLeft + tab.offsetWidth];
  row.scrollLeft = Math.min(left, Math.max(row.scrollLeft, right + TAB_GAP - row.clientWidth));
}

/** A panel is made when it is first shown, and kept: what was unfolded and scrolled to stays so. */
function showPanels(main, panels, store, prefix, shell) {
  const made = new Map();
  const show = () => {
    const wanted = panels.find((panel) => panel.id === store.get("tab")) ?? panels[0];
    shell.dataset.panel = wanted.id;
    for (const tab of shell.querySelectorAll("[role=tab]")) {
      const chosen = tab.dataset.tab === wanted.id;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      if (chosen) revealed(tab);
    }
    for (const [id, panel] of made) panel.root.hidden = id !== wanted.id;
    if (made.has(wanted.id)) made.get(wanted.id).catchUp();
    else made.set(wanted.id, makePanel(main, wanted, store, prefix));
  };
  show();
  const unsubscribe = store.subscribe(["tab"], show);
  return () => {
    unsubscribe();
    for (const { cleanup } of made.values()) cleanup();
  };
}

function makePanel(main, { id, mount }, store, prefix) {
  const root = el(`section.ol-panel.ol-panel-${id}`, { id: `${prefix}-${id}`, role: "tabpanel", "aria-labelledby": `${prefix}-tab-${id}` });
  main.append(root);
  const { seen, catchUp } = seenStore(store, root);
  try {
    return { root, catchUp, cleanup: mount(root, seen) };
  } catch (error) {
    // One panel that fails must not take the others with it.
    root.replaceChildren(el("p.ol-empty", { role: "alert" }, `This panel could not be drawn: ${error.message}. The other panels still work.`));
    console.error(error);
    return { root, catchUp, cleanup: () => {} };
  }
}

/** The store as a panel has it: a change behind another tab reaches it when it is shown, since what is hidden has no size to scroll by. */
function seenStore(store, root) {
  const late = new Map(); // listener -> what changed last
  const subscribe = (keys, listener) => store.subscribe(keys, (changed) => (root.hidden ? late.set(listener, changed) : listener(changed)));
  const catchUp = () => {
    const waiting = [...late];
    late.clear();
    for (const [listener, changed] of waiting) listener(changed);
  };
  return { seen: { ...store, subscribe }, catchUp };
}

/** The details take room on a narrow screen: what was clicked stays in view. */
function keepInView(main, store) {
  return store.subscribe(["chain"], () =>
    requestAnimationFrame(() => {
      const clicked = main.getRootNode().activeElement;
      if (clicked && main.contains(clicked) && clicked.matches("button, a, [tabindex]") && !clicked.matches("canvas, .olg-stage, .ol-grid")) clicked.scrollIntoView({ block: "nearest" });
    }),
  );
}

function followTheme(root, store) {
  const show = () => {
    const theme = store.get("theme");
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    const [sign, words] = THEMES[theme];
    const toggle = root.querySelector(".ol-theme");
    toggle.textContent = sign;
    toggle.title = words;
    toggle.setAttribute("aria-label", `Theme: ${words}`);
  };
  show();
  return store.subscribe(["theme"], show);
}
