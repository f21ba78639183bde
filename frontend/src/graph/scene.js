// What is in view, and nothing else: elements come and go as the view moves, and stay the same while they are in view.
import { bytes } from "../format.js";
import { FULL, SHAPE, TITLE, boxElement, frameElement } from "./box.js";
import { svg, svgText } from "./svg.js";
import { joinedPaths } from "./wirepath.js";

const MARGIN = 160; // pixels around the view that are drawn too
const SLACK = 80; // pixels that the view moves before it is looked at again
const TINY = 52; // pixels of height or width below which nobody can look into a group
const WIRED = 110; // pixels of either below which its wires are a blur
const DUST = 3; // pixels of height below which an operator is left out, unless it stays in PyTorch
const FAINT = 0.16; // scale below which operators are not drawn one by one

const levelAt = (k) => (k >= 0.5 ? FULL : k >= 0.26 ? TITLE : SHAPE);

export class Scene {
  /**
   * @param {SVGElement} world Holds everything; moved and scaled as one.
   * @param {import("./box.js").Paint} paint
   */
  constructor(world, paint) {
    this.world = world;
    this.paint = paint;
    this.layers = [];
    this.names = svg("g", { class: "olg-names" });
    this.drawn = new Map(); // key -> {element, parts, item}
    this.round = 0;
    this.seen = null;
    this.root = null;
    this.marks = () => "";
  }

  /** Forgets what is drawn: the layout, the colours or the level of detail changed. */
  clear() {
    this.world.replaceChildren();
    this.names.replaceChildren();
    this.layers = [];
    this.drawn.clear();
    this.seen = null;
  }

  /**
   * Draws what a view shows.
   *
   * @param {import("./item.js").Item} root
   * @param {{x: number, y: number, k: number, width: number, height: number}} view `x`, `y`: where the origin is on screen.
   * @param {boolean} [again] Even if little has moved.
   */
  show(root, view, again = false) {
    const level = levelAt(view.k);
    if (root !== this.root || level !== this.level) this.clear();
    Object.assign(this, { root, level, k: view.k });
    if (!again && this.seen && this.covers(view)) return;
    this.seen = { ...view };
    this.area = {
      left: (-view.x - MARGIN) / view.k,
      top: (-view.y - MARGIN) / view.k,
      right: (view.width - view.x + MARGIN) / view.k,
      bottom: (view.height - view.y + MARGIN) / view.k,
    };
    this.round++;
    this.visit(root, 0, 0);
    for (const [key, entry] of this.drawn) {
      if (entry.round === this.round) continue;
      for (const part of entry.parts) part.remove();
      this.drawn.delete(key);
    }
    this.resizeNames();
  }

  covers({ x, y, k, width, height }) {
    const { seen } = this;
    return seen.k === k && Math.abs(seen.x - x) < SLACK && Math.abs(seen.y - y) < SLACK && seen.width === width && seen.height === height;
  }

  visit(item, x, y) {
    const { left, top, right, bottom } = this.area;
    if (x > right || y > bottom || x + item.w < left || y + item.h < top) return;
    if (!item.parts && !item.torch && item.h * this.k < DUST) return;
    const opened = item.open && !this.tooSmall(item);
    const entry = this.entry(item, opened, x, y);
    entry.round = this.round;
    if (opened) for (const child of item.children) this.visit(child, x + child.x, y + child.y);
  }

  tooSmall(item) {
    return item !== this.root && (Math.min(item.h, item.w) * this.k < (this.level === SHAPE ? TINY : 24) || (this.k < FAINT && item.parts.every((part) => typeof part === "number")));
  }

  isWired(item) {
    return this.level > SHAPE || Math.min(item.w, item.h) * this.k >= WIRED;
  }

  entry(item, opened, x, y) {
    const detail = opened ? (this.isWired(item) ? 2 : 1) : 0;
    const known = this.drawn.get(item.key);
    if (known && known.detail === detail) return known;
    for (const part of known?.parts ?? []) part.remove();
    const entry = { item, detail, x, y, parts: opened ? this.openParts(item, x, y) : this.closedParts(item, x, y), round: 0 };
    this.drawn.set(item.key, entry);
    return entry;
  }

  layer(depth, name) {
    while (this.layers.length <= depth) {
      const parts = { frames: svg("g"), wires: svg("g", { class: "olg-wires" }), boxes: svg("g") };
      this.layers.push(parts);
      this.world.append(parts.frames, parts.wires, parts.boxes);
    }
    if (this.names.parentNode !== this.world || this.world.lastChild !== this.names) this.world.append(this.names);
    return this.layers[depth][name];
  }

  closedParts(item, x, y) {
    const element = boxElement(item, this.level, this.paint, { x, y });
    this.describe(element, item);
    this.layer(item.depth, "boxes").append(element);
    if (this.level !== SHAPE || !item.parts) return [element];
    const name = this.name(item, x, y);
    this.names.append(name);
    return [element, name];
  }

  openParts(item, x, y) {
    const frame = frameElement(item, this.level, this.paint, { x, y });
    this.describe(frame, item);
    this.layer(item.depth, "frames").append(frame);
    const wires = this.wires(item, x, y);
    this.layer(item.depth, "wires").append(wires);
    if (this.level === FULL) return [frame, wires];
    const name = this.name(item, x, y);
    this.names.append(name);
    return [frame, wires, name];
  }

  describe(element, item) {
    element.id = `${this.paint.prefix}${item.key}`;
    element.setAttribute("data-key", item.key);
    element.setAttribute("role", "treeitem");
    element.setAttribute("aria-label", this.paint.labels.spoken(item));
    element.setAttribute("aria-level", item.depth + 1);
    if (item.parts) element.setAttribute("aria-expanded", item.open);
    const marks = this.marks(item);
    if (marks) element.classList.add(...marks);
    element.setAttribute("aria-selected", marks.includes("olg-selected"));
  }

  wires(item, x, y) {
    const group = svg("g", { transform: `translate(${x} ${y})`, ...(item.cycle?.length ? { class: "olg-cycle" } : {}) });
    const { wires } = item.wires;
    const { plan } = item;
    if (!this.isWired(item)) return group;
    const kinds = { plain: (wire, at) => !wire.cuts && !plan.routes[at].back, cut: (wire, at) => wire.cuts && !plan.routes[at].back, back: (_, at) => plan.routes[at].back };
    for (const [kind, wanted] of Object.entries(kinds)) {
      const { lines, heads } = joinedPaths(plan, wires, wanted);
      if (!lines) continue;
      group.append(svg("path", { class: `olg-wire olg-wire-${kind}`, d: lines }));
      if (this.level > SHAPE && heads) group.append(svg("path", { class: `olg-head olg-head-${kind}`, d: heads }));
    }
    if (this.level > SHAPE) wires.forEach((wire, at) => this.wireLabel(group, wire, plan.routes[at]));
    return group;
  }

  wireLabel(group, wire, { label, wrapped }) {
    const text = wire.label ?? (wire.cuts && wire.cut ? bytes(wire.cut) : "");
    if (!text || !label) return;
    const { font } = this.paint;
    const two = wire.more && !wrapped;
    const element = svgText(text, label.x, label.y + (two ? -2 : 4), { class: wire.id ? "olg-wire-label olg-wire-link" : "olg-wire-label", "font-size": this.level === FULL ? 11 : 16 });
    if (wire.id) element.setAttribute("data-id", wire.id);
    group.append(element);
    if (two && this.level === FULL) group.append(svgText(font.clipped(wire.more, 240, 11), label.x, label.y + 11, { class: "olg-wire-label olg-wire-more", "font-size": 11 }));
  }

  /** The name of an opened group, as large on screen at every scale, above what is inside. */
  name(item, x, y) {
    const element = svgText("", x + 6, y, { class: "olg-name" });
    Object.assign(element, { item, at: { x, y } });
    return element;
  }

  resizeNames() {
    if (this.level === FULL) return;
    const { font, labels } = this.paint;
    const taken = [];
    for (const element of [...this.names.children].sort((a, b) => a.item.depth - b.item.depth)) {
      const { item, at } = element;
      const size = Math.max(12.5, Math.min(12 / this.k, item.h / 3));
      const text = item.w * this.k > 40 && size * this.k >= 8 ? font.clipped(labels.title(item), item.w - 12, size) : "";
      const space = { left: at.x, right: at.x + font.widthOf(text, size), top: at.y, bottom: at.y + size * 1.25 };
      const free = text.length > 1 && !taken.some((other) => space.left < other.right && other.left < space.right && space.top < other.bottom && other.top < space.bottom);
      if (free) taken.push(space); // outer names first: an inner one that would cover them waits for a closer look
      element.setAttribute("font-size", size);
      element.setAttribute("dy", size * 1.1);
      element.textContent = free ? text : "";
    }
  }

  /** Classes anew, on elements that stay. */
  remark() {
    for (const { item, parts } of this.drawn.values()) {
      const [element] = parts;
      const marks = this.marks(item);
      for (const name of ["olg-selected", "olg-linked", "olg-holds", "olg-current", "olg-found"]) element.classList.toggle(name, marks.includes(name));
      element.setAttribute("aria-selected", marks.includes("olg-selected"));
    }
  }

  /** @returns {SVGElement|null} The element of an item in view. */
  elementOf(item) {
    return this.drawn.get(item.key)?.parts[0] ?? null;
  }
}
