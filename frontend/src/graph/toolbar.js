// The controls around the drawing: choices above it, the legend and warnings below it.
import { button, el } from "../dom.js";
import { count, counted, percent } from "../format.js";
import { MODES } from "./colours.js";
import { groupsIn } from "./item.js";
import { safe } from "./text.js";

/**
 * @typedef {object} Bars
 * @property {HTMLElement} top
 * @property {HTMLElement} foot
 * @property {HTMLElement} zoom Buttons to zoom.
 * @property {HTMLInputElement} find
 * @property {HTMLElement} findHome Where the list of what was found goes.
 * @property {() => void} refresh Shows the state anew.
 */

/**
 * @param {import("../store.js").Store} store
 * @param {() => import("./view.js").View} view
 * @param {{next: (step: number) => void}} actions
 * @returns {Bars}
 */
export function createBars(store, view, actions) {
  const choice = (label, key, options) => {
    const list = el("select", { "aria-label": label, title: label, on: { change: () => store.set({ [key]: list.value === "" ? null : list.value }) } });
    for (const [value, words] of options) list.append(el("option", { value }, words));
    return list;
  };
  const graphs = graphChoice(view(), choice);
  const grouping = ["module", "partition"].map((by) => button(by === "module" ? "Modules" : "Partitions", () => store.set({ groupBy: by }), { "data-by": by }));
  const colour = choice("Colour", "colorBy", Object.entries(MODES));
  const find = /** @type {HTMLInputElement} */ (el("input.olg-find", { type: "search", "data-find": true, placeholder: "Find  /", "aria-label": "Find an operator or a module", autocomplete: "off", spellcheck: "false" }));
  const findHome = el("span.olg-find-home", {}, find);
  const zoom = [
    button("−", () => view().camera.zoom(0.8), { title: "Zoom out (-)", "aria-label": "Zoom out" }),
    button("+", () => view().camera.zoom(1.25), { title: "Zoom in (+)", "aria-label": "Zoom in" }),
    button("Fit", () => view().fit(), { title: "Fit everything into view (0)" }),
  ];
  const openings = [
    button("Expand all", () => view().openAll(), { title: "Expand every group" }),
    button("Collapse all", () => view().closeAll(), { title: "Back to the initial view" }),
  ];
  const top = el(
    "div.ol-tools.olg-tools",
    {},
    graphs,
    el("span.olg-choice", { role: "group", "aria-label": "Boxes are" }, ...grouping),
    el("label.olg-label", {}, "colour ", colour),
    findHome,
    el("span.olg-openings", {}, ...openings),
  );
  const sentence = el("div.olg-sentence", { role: "status" });
  const legend = el("ul.ol-key.olg-legend", { "aria-label": "Legend" });
  const foot = el("div.olg-foot", {}, sentence, legend);

  function refresh() {
    if (graphs) graphs.value = store.get("graph") ?? "";
    colour.value = store.get("colorBy");
    for (const one of grouping) one.setAttribute("aria-pressed", String(one.dataset.by === store.get("groupBy")));
    sentence.replaceChildren(...sentenceOf(view(), actions));
    const { entries, note } = view().colours.legend(store.get("colorBy"));
    foot.classList.toggle("olg-by-one", store.get("colorBy") === "partition" && !entries.length);
    legend.replaceChildren(...sides(view().root), ...entries.map(entry), note ? el("li.ol-soft", {}, note) : "");
  }

  return { top, foot, zoom: el("div.olg-zoom", { role: "group", "aria-label": "Zoom" }, ...zoom), find, findHome, refresh };
}

function graphChoice({ tree, labels }, choice) {
  if (tree.graphs.length < 2) return null;
  const words = tree.graphs.map((item) => [item.graph.id, `${labels.title(item)}: ${[labels.note(item), labels.side(item)].filter(Boolean).join(", ")}`]);
  const old = tree.graphs.filter((item) => item.old).length;
  const all = old ? `all ${counted(tree.graphs.length - old, "graph")}, +${count(old)} earlier` : `all ${counted(tree.graphs.length, "graph")}`;
  return choice("Graph", "graph", [["", all], ...words]);
}

/** How much is in ONNX Runtime, and the way to what is not. */
function sentenceOf(view, actions) {
  const root = view.tree.counted(view.root);
  const whole = root.ort + root.torch;
  if (!whole) return [el("span", {}, "no nodes")];
  const ort = el("strong", {}, root.torch ? `${count(root.ort)} of ${counted(whole, "node")} (${percent(root.ort / whole)})` : `all ${counted(whole, "node")}`);
  const parts = [el("span", {}, ort, ` in ONNX Runtime`)];
  if (root.torch) {
    const step = (by, sign, words) => button(sign, () => actions.next(by), { title: words, "aria-label": words });
    parts.push(
      el("span.olg-stays", {}, el("span.olg-swatch-torch"), `${count(root.torch)} ${root.torch === 1 ? "stays" : "stay"} in PyTorch `, step(-1, "‹", "Previous node in PyTorch (p)"), step(1, "›", "Next node in PyTorch (n)")),
    );
  }
  return [...parts, ...warnings(view)];
}

function warnings(view) {
  const said = [];
  const old = view.root.kind === "all" ? view.tree.graphs.filter((graph) => graph.old).length : 0;
  const notes = old ? [el("span.ol-soft", {}, `${counted(old, "other version")} not counted: see recompiles`)] : [];
  const cycles = (view.root.kind === "graph" ? [view.root] : view.tree.graphs).filter((graph) => graph.cycle.length);
  for (const graph of cycles) said.push(`✗ partitions wait for each other: ${[...graph.cycle, graph.cycle[0]].map(safe).join(" → ")}`);
  const nodes = view.ops.data.table("nodes");
  if (nodes.total > nodes.rows) said.push(`the first ${count(nodes.rows)} of ${count(nodes.total)} nodes are shown; the frame .nodes has all`);
  if (view.leftClosed) said.push(`${counted(view.leftClosed, "group")} left collapsed: too many boxes to draw; expand them one by one`);
  return [...notes, ...said.map((words) => el("span.olg-warning", {}, words))];
}

function sides(root) {
  const opened = [...groupsIn(root)].filter((item) => item.open);
  return [
    root.ort ? el("li", {}, el("span.ol-swatch.olg-swatch-ort"), "plain: ONNX Runtime") : null,
    root.torch ? el("li", {}, el("span.olg-swatch-torch"), "hatched: PyTorch") : null,
    opened.some((item) => item.plan?.routes.some((route) => route.back)) ? el("li", {}, el("span.ol-swatch.olg-swatch-back"), `dotted: back to an earlier box${opened.some((item) => item.cycle?.length) ? "; red: partitions that wait for each other" : ""}`) : null,
    el("li", {}, el("span.ol-swatch.olg-swatch-round"), "round: input, output"),
  ].filter(Boolean);
}

function entry({ hue, words, strength = 0.3 }) {
  const swatch = hue ? el("span.ol-swatch.olg-swatch-hue", { style: `--hue:${hue};--strength:${Math.round(strength * 100)}%` }) : null;
  return el("li", {}, swatch, words);
}
