// The graph: what the model became, as boxes that open.
import { el, onResize, together } from "../dom.js";
import { emptyState, helpLine } from "../help.js";
import { createFinder } from "./finder.js";
import { keyListener, nextInTorch } from "./keyboard.js";
import { Minimap } from "./minimap.js";
import { opsOf } from "./prepared.js";
import { createSelection } from "./selection.js";
import { svg } from "./svg.js";
import { createBars } from "./toolbar.js";
import { View } from "./view.js";

let views = 0; // ids in a page are one space, and several views stand in it

/**
 * @param {HTMLElement} root
 * @param {import("../store.js").Store} store
 * @returns {() => void} Takes the graph down.
 */
export function mountGraph(root, store) {
  performance.mark("ortlens-graph-start");
  const ops = opsOf(store);
  root.classList.add("olg");
  if (!ops.nodes) {
    root.replaceChildren(helpLine("graph"), emptyState("graph", store.data));
    return () => root.replaceChildren();
  }
  const prefix = `olg${++views}-`;
  const world = svg("g");
  const hatch = hatching(prefix);
  const stage = el("div.olg-stage", { tabindex: "0", role: "tree", "aria-label": "Graph: arrows follow the wires, Enter expands and collapses, / searches, n goes to the next operator in PyTorch, Escape clears the selection, then leaves" });
  stage.append(svg("svg", { class: "olg-svg", role: "presentation" }, svg("defs", {}, hatch), world));
  root.replaceChildren(helpLine("graph"), stage); // the font is measured in place
  let bars = null;
  let map = null;
  const view = new View({ stage, world, hatch, prefix }, store, ops, (place) => {
    map?.follow(place);
    announce(stage, view);
  });
  view.build();
  const selection = createSelection(view, store);
  const next = (step) => pick(nextInTorch(view, step));
  bars = createBars(store, () => view, { next });
  map = new Minimap(stage, view);

  function pick(item) {
    if (!item) return;
    view.goTo(item);
    selection.choose(item);
    stage.focus({ preventScroll: true });
  }

  const finder = createFinder(bars.find, bars.findHome, store, () => view, { pick, back: () => stage.focus({ preventScroll: true }) });
  stage.addEventListener("keydown", keyListener(view, { select: selection.choose, find: () => bars.find.focus(), leave: () => (store.get("selected") === null ? leave(stage, bars) : store.set({ selected: null })) }));
  listenToClicks(stage, view, selection, store);
  stage.before(bars.top);
  stage.after(bars.foot);
  bars.top.append(bars.zoom); // in the drawing it would cover boxes
  bars.refresh();
  selection.follow();
  view.paint();
  performance.measure("ortlens-graph-open", "ortlens-graph-start");

  const rebuild = () => {
    view.build();
    selection.follow();
    finder.refresh();
    bars.refresh();
    view.ask();
  };
  const recolour = () => {
    view.scene.clear();
    bars.refresh();
    view.ask();
  };
  const cleanups = [
    store.subscribe(["groupBy", "graph"], rebuild),
    store.subscribe(["colorBy"], recolour),
    store.subscribe(["theme"], () => requestAnimationFrame(() => map.draw())),
    store.subscribe(["selected"], selection.follow),
    onResize(stage, () => view.resized()),
    finder.cleanup,
    () => view.stop(),
  ];
  stage.addEventListener("pointerenter", () => map.draw()); // no event says when a notebook changes its theme
  view.onLayout = bars.refresh;
  return () => {
    together(cleanups)();
    root.replaceChildren();
    root.classList.remove("olg");
  };
}

/** Drawn over what stays in PyTorch. */
function hatching(prefix) {
  const pattern = svg("pattern", { id: `${prefix}hatch`, width: 7, height: 7, patternUnits: "userSpaceOnUse" });
  pattern.append(svg("rect", { width: 7, height: 7, class: "olg-hatch-back" }), svg("rect", { width: 3, height: 7, class: "olg-hatch-line" }));
  return pattern;
}

/** The focus stays on the stage; `aria-activedescendant` names the current box, so that a repaint cannot lose it. */
function announce(stage, view) {
  const element = view.current && view.scene.elementOf(view.current);
  if (element) stage.setAttribute("aria-activedescendant", element.id);
  else stage.removeAttribute("aria-activedescendant");
}

/** Escape goes where Tab would: to what stands after the drawing, or before it. */
function leave(stage, bars) {
  (bars.foot.querySelector("button") ?? bars.top.querySelector("button"))?.focus();
  stage.blur();
}

function listenToClicks(stage, view, selection, store) {
  const itemAt = (event) => {
    const element = event.target.closest?.("[data-key]");
    return element ? view.scene.drawn.get(Number(element.dataset.key))?.item ?? null : null;
  };
  stage.addEventListener("click", (event) => {
    if (view.camera.dragged) return;
    const wire = event.target.closest?.("[data-id]");
    if (wire) return store.set({ selected: wire.dataset.id });
    const item = itemAt(event);
    if (!item) return;
    const stub = event.target.closest("[data-row]");
    if (stub) return followStub(Number(stub.dataset.row));
    if (event.target.closest(".olg-toggle")) return view.toggle(item);
    view.current = item;
    selection.choose(item);
    view.scene.remark();
    announce(stage, view);
  });
  stage.addEventListener("dblclick", (event) => {
    event.preventDefault();
    const item = itemAt(event);
    if (item?.parts && !event.target.closest(".olg-toggle, [data-row]")) view.toggle(item);
  });

  function followStub(row) {
    const item = view.tree.leaf(row);
    view.goTo(item);
    selection.choose(item);
  }
}
