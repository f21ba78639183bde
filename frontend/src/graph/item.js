// One box of the graph: an operator or a group of them.

/**
 * @typedef {"all"|"versions"|"graph"|"module"|"partition"|"torch"|"run"|"fold"|"page"|"inputs"|"op"|"input"|"output"} ItemKind
 *   `versions` are graphs that recompilations replaced, `torch` is a segment that stays in PyTorch, `run` what a module does itself between its submodules, `fold` layers that
 *   are alike, `page` a part of a group with too many children.
 */

export class Item {
  /**
   * @param {ItemKind} kind
   * @param {string} title
   * @param {(Item|number)[]|null} parts Children in the order in which they first ran; an operator is a row of `Ops`, and
   *   becomes an item when somebody asks for `children`: most of a large graph is never looked at.
   */
  constructor(kind, title, parts = null) {
    this.kind = kind;
    this.title = title;
    this.parts = parts;
    this.noted = ""; // the class of a module, what a run holds; or a function that returns it
    this.id = null; // what the store calls it; null for groups that only this view knows
    this.also = null; // further ids: of modules that hold nothing but this one
    this.own = ""; // name of a module in the one around it
    this.bare = ""; // its title without the name of the list it is in
    this.layer = false; // whether that is a number
    this.ends = null; // of a fold: the names of its first and last layer
    this.times = 1; // how many layers a fold stands for
    this.kinds = 1; // how many kinds of them
    this.shape = 0; // equal for groups that hold the same
    this.graph = null; // of a graph: its rows
    this.old = false; // of a graph, or of several: whether a recompilation replaced it
    this.cycle = null; // of a graph: segments that wait for each other
    this.parent = null;
    this.row = -1; // of `Ops`, for an operator
    this.depth = 0;
    this.index = 0; // among its siblings
    this.low = 0; // its operators are `order[low .. high]` of the tree
    this.high = 0;
    this.ort = 0; // operators that run in ONNX Runtime
    this.torch = 0; // operators that stay in PyTorch
    this.open = false;
    this.stale = true; // whether its layout, or one inside it, must be made anew
    this.wires = null; // edges among the children, see wires.js
    this.plan = null; // where the children stand, see layout.js
    this.x = 0; // place in the parent
    this.y = 0;
    this.w = 0;
    this.h = 0;
    this.items = null;
    this.tree = null;
    this.partitions = null; // kept by labels.js
  }

  /** @returns {string} Set when it is first read: most boxes of a large graph are never looked at. */
  get note() {
    if (typeof this.noted === "function") this.noted = this.noted();
    return this.noted;
  }

  set note(said) {
    this.noted = said;
  }

  /** @returns {Item[]|null} Null for an operator. */
  get children() {
    if (this.items === null && this.parts !== null) {
      this.items = this.parts.map((part, index) => (part instanceof Item ? part : this.tree.leafItem(part, this, index)));
    }
    return this.items;
  }

  /** Whether the parts are graphs, or pages of them. */
  get ofGraphs() {
    const first = this.parts?.[0];
    return first instanceof Item && (first.kind === "graph" || (first.kind === "page" && first.ofGraphs));
  }

  /** Every operator of a group, the neutral ones and the terminals too. */
  get size() {
    return this.high - this.low;
  }

  /** A number that no other item of the tree has. */
  get key() {
    return this.depth * 2 ** 32 + this.low;
  }

  /** Whether another item is inside this one, or is this one. */
  holds(other) {
    return other === this || (other.low >= this.low && other.high <= this.high && other.depth > this.depth);
  }
}

/** Every group inside an item, itself included, parents first. */
export function* groupsIn(item) {
  const waiting = [item];
  while (waiting.length) {
    const next = waiting.pop();
    if (!next.parts) continue;
    yield next;
    for (let at = next.parts.length - 1; at >= 0; at--) if (next.parts[at] instanceof Item) waiting.push(next.parts[at]);
  }
}

/** Opens or closes a group. */
export function setOpen(item, open) {
  if (!item.parts || item.open === open) return;
  item.open = open;
  for (let at = item; at; at = at.parent) at.stale = true;
}

/** The groups around an item, from the outermost. */
export function around(item) {
  const found = [];
  for (let at = item.parent; at; at = at.parent) found.push(at);
  return found.reverse();
}
