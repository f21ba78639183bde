// Moving through the graph by keys: along wires, among neighbours, in and out of groups.
import { acted } from "../dom.js";
import { TORCH } from "./ops.js";

/**
 * @param {import("./view.js").View} view
 * @param {{select: (item: import("./item.js").Item) => void, find: () => void, leave: () => void}} actions
 * @returns {(event: KeyboardEvent) => void}
 */
export function keyListener(view, actions) {
  const keys = {
    ArrowDown: () => go(below(view)),
    ArrowUp: () => go(above(view)),
    ArrowLeft: () => go(beside(view, -1)),
    ArrowRight: () => go(beside(view, 1)),
    Home: () => go(view.root.children[0]),
    End: () => go(view.root.children.at(-1)),
    Backspace: () => go(outside(view)),
    Enter: () => (view.current?.parts ? view.toggle(view.current) : view.current && actions.select(view.current)),
    n: () => go(nextInTorch(view, 1)),
    p: () => go(nextInTorch(view, -1)),
    "/": actions.find,
    "+": () => view.camera.zoom(1.25),
    "=": () => view.camera.zoom(1.25),
    "-": () => view.camera.zoom(0.8),
    0: () => view.fit(),
    Escape: actions.leave,
  };
  keys[" "] = keys.Enter;

  function go(item) {
    if (!item) return;
    view.current = item;
    if (view.shown(item)) view.camera.reveal(view.placeOf(item));
    else view.goTo(item);
    actions.select(item);
  }

  return (event) => acted(event, keys) && event.stopPropagation();
}

const first = (view) => view.root.children[0];

function below(view) {
  const { current } = view;
  if (!current) return first(view);
  return current.open ? current.children[0] : (neighbours(view, current, "out")[0] ?? outside(view));
}

function above(view) {
  const { current } = view;
  if (!current) return first(view);
  return neighbours(view, current, "in")[0] ?? outside(view);
}

function beside(view, step) {
  const { current } = view;
  if (!current || current === view.root) return first(view);
  return current.parent.children[current.index + step] ?? null;
}

function outside(view) {
  const { current } = view;
  return current && current !== view.root && current.parent !== view.root ? current.parent : null;
}

/**
 * @param {import("./view.js").View} view
 * @param {import("./item.js").Item} item
 * @param {"in"|"out"} direction
 * @returns {import("./item.js").Item[]} Boxes in sight that a box reads, the latest first, or that read it, the earliest first.
 */
export function neighbours(view, item, direction) {
  const { order, place, ops } = view.tree;
  const [start, rows] = direction === "in" ? [ops.inStart, ops.inRow] : [ops.outStart, ops.outRow];
  const far = new Set();
  for (let at = item.low; at < item.high; at++) {
    for (let link = start[order[at]]; link < start[order[at] + 1]; link++) {
      const row = rows[link];
      if (place[row] < item.low || place[row] >= item.high) far.add(row);
    }
  }
  const sorted = [...far].sort((a, b) => (direction === "in" ? place[b] - place[a] : place[a] - place[b]));
  return [...new Set(sorted.map((row) => view.boxOf(row)).filter(Boolean))];
}

/** @returns {import("./item.js").Item|null} The next operator that stays in PyTorch, in the order of the boxes, round the end. */
export function nextInTorch(view, step) {
  const { order, ops } = view.tree;
  const places = view.tree.counted(view.root).items.flatMap((item) => placesInTorch(order, ops, item));
  if (!places.length) return null;
  const { current } = view;
  const from = current === null ? (step > 0 ? -1 : Infinity) : step > 0 && current.parts ? current.low - 1 : current.low;
  const found = step > 0 ? places.find((place) => place > from) ?? places[0] : places.findLast((place) => place < from) ?? places.at(-1);
  return view.tree.leaf(order[found]);
}

function placesInTorch(order, ops, { low, high }) {
  const places = [];
  for (let at = low; at < high; at++) if (ops.side[order[at]] === TORCH) places.push(at);
  return places;
}
