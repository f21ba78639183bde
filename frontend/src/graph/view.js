// The state of one graph view: which groups are open, where the view looks, what is current. Everything else asks it.
import { Camera } from "./camera.js";
import { Colours } from "./colours.js";
import { around, groupsIn, setOpen } from "./item.js";
import { createLabels } from "./labels.js";
import { Layout } from "./layout.js";
import { createMeasured } from "./measured.js";
import { openFirst, ROOMS } from "./opening.js";
import { treeOf } from "./prepared.js";
import { Scene } from "./scene.js";
import { fontOf } from "./text.js";

const MOST_OPEN = 30_000; // boxes; what is more stays closed, and is said
const MINIMAP = 160; // pixels of width that it covers
const READABLE = 0.91; // scale of an opening view at least: words of 11 units have 10 pixels
const HATCHED = 0.6; // scale below which hatching grows against the drawing

export class View {
  /**
   * @param {{stage: HTMLElement, world: SVGElement, hatch: SVGElement, prefix: string}} elements
   * @param {import("../store.js").Store} store
   * @param {import("./ops.js").Ops} ops
   * @param {() => void} changed Called when the camera or what is drawn changed.
   */
  constructor({ stage, world, hatch, prefix }, store, ops, changed) {
    this.store = store;
    this.ops = ops;
    this.stage = stage;
    this.world = world;
    this.hatch = hatch;
    this.hatchScale = 0;
    this.changed = changed;
    this.trees = new Map(); // by grouping
    this.camera = new Camera(stage, () => this.ask());
    this.scene = new Scene(world, { prefix, font: fontOf(stage), labels: null, look: (item) => this.colours.look(item, store.get("colorBy")) });
    this.scene.marks = (item) => this.marks(item);
    this.current = null; // where the keyboard is
    this.chosen = new Set(); // items of the selection
    this.linked = []; // places of operators of the selection, sorted
    this.found = []; // places of operators that the search found, sorted
    this.leftClosed = 0; // groups
    this.waiting = 0; // for the next frame
    this.late = null; // where to go when the view is seen
    this.width = 0;
    this.onLayout = () => {};
  }

  /** Shows the graph and grouping that the store names. */
  build() {
    const groupBy = this.store.get("groupBy") === "partition" ? "partition" : "module";
    if (!this.trees.has(groupBy)) this.trees.set(groupBy, this.treeOf(groupBy));
    const { tree, labels, layout, colours } = this.trees.get(groupBy);
    const graph = this.store.get("graph");
    const root = (graph !== null && tree.byId.get(`graph:${graph}`)?.[0]) || tree.root;
    const same = this.tree === tree && this.root === root;
    Object.assign(this, { tree, labels, layout, colours, root });
    this.scene.paint.labels = labels;
    if (same) return;
    this.current = null;
    this.leftClosed = 0;
    if (root.open) this.layout.place(root);
    else this.openReadable();
    this.home();
  }

  /** As much as is read at one glance; where even the least is not, its top is shown. */
  openReadable() {
    for (const room of ROOMS) {
      openFirst(this.root, room);
      this.layout.place(this.root);
      if (this.camera.scaleOf(this.root) >= READABLE) return;
    }
  }

  treeOf(groupBy) {
    const tree = treeOf(this.store, groupBy);
    const labels = createLabels(tree);
    let measured = null;
    return { tree, labels, layout: new Layout(tree, labels, this.scene.paint.font), colours: new Colours(tree, labels, () => (measured ??= createMeasured(tree))) };
  }

  /** The opening view: all of it where that can be read, else its top. */
  home() {
    this.scene.clear();
    this.camera.fit(this.root, READABLE, MINIMAP);
    const [first] = this.root.children;
    if (first) this.camera.lookAcross(first.x + first.w / 2, this.root.w);
  }

  fit() {
    this.camera.fit(this.root);
  }

  /** The same for a view that is hidden behind another tab: it moves when it comes up. */
  goToWhenSeen(item) {
    if (this.width) this.goTo(item);
    else this.late = item; // also where it is shown already, and its opening view is still to come
  }

  resized() {
    const width = this.stage.clientWidth;
    if (!this.width && width && !this.late) {
      this.openReadable();
      this.home();
    }
    else if (this.width && this.chosen.size && this.root.holds([...this.chosen][0])) this.camera.reveal(this.placeOf([...this.chosen][0])); // what was clicked stays in view
    this.width = width;
    if (this.late) this.goTo(this.late);
    this.late = null;
    this.ask();
  }

  stop() {
    cancelAnimationFrame(this.waiting);
    this.root = null;
  }

  /** One repaint per frame. */
  ask() {
    this.waiting ||= requestAnimationFrame(() => {
      this.waiting = 0;
      this.paint();
    });
  }

  paint(again = false) {
    const view = this.camera.view;
    if (!view.width || !this.root) return;
    this.world.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.k})`);
    this.keepHatch(view.k);
    this.scene.show(this.root, view, again);
    this.changed(view);
  }

  /** What stays in PyTorch is hatched at every scale: the pattern grows as the drawing shrinks. */
  keepHatch(k) {
    const scale = k >= HATCHED ? 1 : HATCHED / k;
    if (scale === this.hatchScale) return;
    this.hatchScale = scale;
    this.hatch.setAttribute("patternTransform", `rotate(45) scale(${scale})`);
  }

  /** After groups were opened or closed: lays out anew and keeps an item where it is on screen. */
  relayout(anchor = null) {
    const before = anchor && this.placeOf(anchor);
    this.layout.place(this.root);
    this.scene.clear();
    this.onLayout();
    if (before) {
      const after = this.placeOf(anchor);
      this.camera.x += (before.x - after.x) * this.camera.k;
      this.camera.y += (before.y - after.y) * this.camera.k;
    }
    this.ask();
  }

  /** @returns {{x: number, y: number, w: number, h: number}} Where an item is, in the world. */
  placeOf(item) {
    let [x, y] = [0, 0];
    for (let at = item; at !== this.root && at.parent; at = at.parent) {
      x += at.x;
      y += at.y;
    }
    return { x, y, w: item.w, h: item.h };
  }

  toggle(item) {
    if (!item?.parts || item === this.root) return;
    setOpen(item, !item.open);
    if (!item.open && this.current && item.holds(this.current)) this.current = item;
    this.relayout(item);
    if (item.open) this.revealSoon(item);
  }

  revealSoon(item) {
    requestAnimationFrame(() => this.root && this.shown(item) && this.camera.reveal(this.placeOf(item)));
  }

  /** Whether every group around an item is open. */
  shown(item) {
    return this.root.holds(item) && around(item).every((outer) => outer.open || outer.holds(this.root));
  }

  openAll() {
    let boxes = 0;
    this.leftClosed = 0;
    for (const group of groupsIn(this.root)) {
      const fits = boxes + group.parts.length <= MOST_OPEN && (group.parent === null || group === this.root || group.parent.open);
      if (fits) boxes += group.parts.length;
      else if (!group.open) this.leftClosed++;
      if (fits) setOpen(group, true);
    }
    this.relayout();
    this.fit();
  }

  closeAll() {
    this.leftClosed = 0;
    this.openReadable();
    if (this.current && !this.shown(this.current)) this.current = null;
    this.relayout();
    this.home();
  }

  /** Opens what is around an item and shows it in the middle. */
  goTo(item) {
    if (!this.root.holds(item)) {
      const graph = [item, ...around(item)].find((outer) => outer.kind === "graph");
      this.store.set({ graph: graph?.graph.id ?? null });
      if (!this.root.holds(item)) return;
    }
    let opened = false;
    for (const outer of around(item)) {
      if (outer.open || !this.root.holds(outer)) continue;
      setOpen(outer, true);
      opened = true;
    }
    this.current = item;
    if (opened) this.layout.place(this.root);
    if (opened) this.scene.clear();
    this.camera.centre(this.placeOf(item));
  }

  /** @returns {import("./item.js").Item|null} The box that an operator is drawn as: the outermost closed group around it. */
  boxOf(row) {
    const home = this.tree.homes[row];
    for (const outer of around(home)) if (this.root.holds(outer) && !outer.open) return outer;
    if (!this.root.holds(home)) return null;
    return home.open ? this.tree.leaf(row) : home;
  }

  marks(item) {
    const marks = [];
    if (this.chosen.has(item)) marks.push("olg-selected");
    else if (within(this.linked, item)) marks.push(item.parts ? "olg-holds" : "olg-linked");
    if (item === this.current) marks.push("olg-current");
    if (!item.open && within(this.found, item)) marks.push("olg-found");
    return marks;
  }
}

/** Whether one of some sorted places is in an item. */
function within(places, item) {
  let [low, high] = [0, places.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (places[middle] < item.low) low = middle + 1;
    else high = middle;
  }
  return low < places.length && places[low] < item.high;
}
