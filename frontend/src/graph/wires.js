// The edges among the children of one group: many edges between operators are one wire between their boxes.
import { OUTPUT } from "./ops.js";

export const HUB = 12; // a source that feeds more boxes than this is named at each of them instead of drawn

/**
 * @typedef {object} Wire
 * @property {number} from Child; -1 for what comes in through the top of the group.
 * @property {number} to Child; -1 for what leaves through the bottom.
 * @property {number} count Values that it stands for.
 * @property {number} cut Bytes of those that go from one partition, or PyTorch, to another.
 * @property {boolean} cuts Whether there are any.
 *
 * @typedef {object} Wires
 * @property {Wire[]} wires
 * @property {Map<number, number[]>} stubs Hubs that a child reads: rows, by child.
 * @property {Set<number>} returned Children whose values the graph returns, where those are too many to draw.
 */

/**
 * @param {import("./tree.js").Tree} tree
 * @param {import("./item.js").Item} item An opened group.
 * @param {boolean} doors Whether to draw what crosses the border of the group.
 * @returns {Wires}
 */
export function wiresOf(tree, item, doors = true) {
  const scan = new Scan(tree, item);
  const stubs = new Map();
  const addStubs = (row, children) => children.forEach((child) => (stubs.has(child) ? stubs.get(child).push(row) : stubs.set(child, [row])));
  const wires = new Map();
  for (let at = item.low; at < item.high; at++) {
    const row = tree.order[at];
    const from = scan.slot(row);
    const readers = scan.readers(row, from);
    if (readers.length > HUB) addStubs(row, readers);
    else for (const to of readers) join(wires, scan, row, from, to);
  }
  const returned = new Set();
  if (doors) {
    for (const [row, children] of scan.entering()) {
      if (children.length > HUB) addStubs(row, children);
      else for (const to of children) join(wires, scan, row, -1, to);
    }
    scan.leaving(wires, returned);
  }
  return { wires: [...wires.values()], stubs, returned };
}

function join(wires, scan, row, from, to) {
  const key = (from + 1) * 65536 + to + 1;
  if (!wires.has(key)) wires.set(key, { from, to, count: 0, cut: 0, cuts: false });
  const wire = wires.get(key);
  wire.count++;
  if (from >= 0 && to >= 0 && scan.cuts(row, to)) { // a border is labelled once, at the start of the wire
    wire.cuts = true;
    wire.cut += scan.ops.bytes[row];
  }
}

/** The operators of a group with the child that each is in. */
class Scan {
  constructor(tree, item) {
    this.tree = tree;
    this.ops = tree.ops;
    this.item = item;
    this.slots = new Int32Array(item.size);
    let at = item.low;
    item.parts.forEach((part, index) => {
      const high = typeof part === "number" ? at + 1 : part.high;
      this.slots.fill(index, at - item.low, high - item.low);
      at = high;
    });
  }

  /** Child that a row is in; -1 for one outside. */
  slot(row) {
    const at = this.tree.place[row];
    return at >= this.item.low && at < this.item.high ? this.slots[at - this.item.low] : -1;
  }

  /** Other children that read a row. */
  readers(row, own) {
    const { outStart, outRow } = this.ops;
    const found = [];
    for (let at = outStart[row]; at < outStart[row + 1]; at++) {
      const slot = this.slot(outRow[at]);
      if (slot >= 0 && slot !== own && !found.includes(slot)) found.push(slot);
    }
    return found;
  }

  /** Rows outside that children read, with those children. */
  entering() {
    const { inStart, inRow } = this.ops;
    const found = new Map();
    for (let at = this.item.low; at < this.item.high; at++) {
      const row = this.tree.order[at];
      for (let link = inStart[row]; link < inStart[row + 1]; link++) {
        const source = inRow[link];
        if (this.slot(source) >= 0) continue;
        if (!found.has(source)) found.set(source, []);
        const children = found.get(source);
        const slot = this.slots[at - this.item.low];
        if (children.at(-1) !== slot && !children.includes(slot)) children.push(slot);
      }
    }
    return found;
  }

  /** Wires to what is outside. A training graph returns dozens of values to its backward: those are marked instead. */
  leaving(wires, returned) {
    const { outStart, outRow, inStart, role } = this.ops;
    const out = new Map();
    for (let at = this.item.low; at < this.item.high; at++) {
      const row = this.tree.order[at];
      const slot = this.slots[at - this.item.low];
      for (let link = outStart[row]; link < outStart[row + 1]; link++) {
        const reader = outRow[link];
        if (this.slot(reader) >= 0) continue;
        if (role[reader] === OUTPUT && inStart[reader + 1] - inStart[reader] > HUB) returned.add(slot);
        else out.set(slot, row);
      }
    }
    if (out.size <= HUB * 2) for (const [slot, row] of out) join(wires, this, row, slot, -1);
  }

  /** Whether a child reads a row from another partition, or over the border to PyTorch. */
  cuts(row, slot) {
    const { outStart, outRow, partition, role } = this.ops;
    if (role[row]) return false;
    for (let at = outStart[row]; at < outStart[row + 1]; at++) {
      const reader = outRow[at];
      if (!role[reader] && partition[reader] !== partition[row] && this.slot(reader) === slot) return true;
    }
    return false;
  }
}
