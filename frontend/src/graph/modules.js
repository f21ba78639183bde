// Operations by the path of the module that made them.
import { Item } from "./item.js";

const MAX_DEPTH = 24; // of a module path; what is deeper stays one name
const NUMBER = /^\d{1,6}$/; // the name of a layer among its like
const LONG_RUN = 5; // operators in a row that a module does itself become one box, where it has submodules

/** A module on the way to becoming an item. */
class Branch {
  constructor(name, path, outer) {
    this.name = name;
    this.path = path;
    this.outer = outer;
    this.parts = []; // submodules, and runs of its own operators, in the order in which they first ran
    this.run = null;
    this.isList = true; // has submodules only, as a list of layers
    this.left = false; // whether an operator outside has read from it
    outer?.parts.push(this);
  }

  holds(other) {
    for (let at = other; at; at = at.outer) if (at === this) return true;
    return false;
  }
}

/**
 * @param {import("./tree.js").Making} making
 * @param {string} graphId
 * @param {number[]} rows Operations, in the order in which they run.
 * @returns {(Item|number)[]} What stands side by side: submodules, runs, and operators without a module.
 */
export function partsByModule(making, graphId, rows) {
  const moduleOf = making.adopts(graphId) ? adopted(making.ops, rows) : (row) => making.ops.module[row] || null;
  const root = new Branch("", "", null);
  const known = new Map([["", root]]);
  const homes = new Map();
  for (const row of rows) {
    const at = branchAt(known, moduleOf(row) ?? "");
    for (const source of sources(making.ops, row)) for (let from = homes.get(source); from && !from.holds(at); from = from.outer) from.left = true;
    homes.set(row, at);
    at.isList = false;
    if (!at.run) at.parts.push((at.run = []));
    at.run.push(row);
    for (let outer = at.outer; outer; outer = outer.outer) outer.run = null; // what it does later is another run
  }
  return partsOf(root, making, graphId);
}

/**
 * Autograd adds gradients up between the modules, and no module made those sums: a sum stands where what it reads comes
 * from, or, where that is several modules, in the module around the one that ran last.
 */
function adopted(ops, rows) {
  const found = new Map();
  for (const row of rows) {
    const read = ops.module[row] ? [] : Array.from(sources(ops, row)).filter((source) => found.get(source));
    const last = read.length ? found.get(read.reduce((a, b) => Math.max(a, b))) : null;
    const several = read.some((source) => found.get(source) !== last);
    found.set(row, ops.module[row] || (several ? last.slice(0, Math.max(0, last.lastIndexOf("."))) || null : last));
  }
  return (row) => found.get(row);
}

const sources = (ops, row) => ops.inRow.subarray(ops.inStart[row], ops.inStart[row + 1]);

/** What of a list runs after others have read from it is another box, behind them: as one box, it would come before what it reads. */
function branchAt(known, path) {
  if (known.has(path)) return known.get(path);
  const dot = path.split(".", MAX_DEPTH).length < MAX_DEPTH ? path.lastIndexOf(".") : path.split(".", MAX_DEPTH - 1).join(".").length;
  const around = dot < 0 ? "" : path.slice(0, dot);
  if (known.get(around)?.isList && known.get(around).left) known.delete(around);
  const made = new Branch(path.slice(dot + 1), path, branchAt(known, around));
  known.set(path, made);
  return made;
}

function partsOf(branch, making, graphId) {
  const parts = [];
  const hasInner = branch.parts.some((part) => part instanceof Branch);
  for (const part of branch.parts) {
    if (part instanceof Branch) parts.push(modulePart(part, making, graphId));
    else if (hasInner && part.length >= LONG_RUN) parts.push(runItem(part, making));
    else for (const row of part) parts.push(row);
  }
  return parts;
}

function modulePart(branch, making, graphId) {
  const parts = partsOf(branch, making, graphId);
  const id = `module:${graphId}/${branch.path}`;
  const only = parts.length === 1 ? parts[0] : null;
  if (typeof only === "number") {
    const known = making.solo.get(only) ?? { note: "", ids: [] }; // a module of a single operator is that operator
    making.solo.set(only, { note: known.note ? `${branch.name}.${known.note}` : prefixOf(branch) + branch.name, ids: [id, ...known.ids] });
    return only;
  }
  const nested = only?.kind === "module";
  const item = nested ? only : new Item("module", "", parts);
  item.bare = nested ? `${branch.name}.${only.bare}` : branch.name;
  item.title = prefixOf(branch) + item.bare;
  if (nested) item.also = [...(item.also ?? []), id];
  else {
    item.id = id;
    item.note = making.types.get(branch.path) ?? "";
  }
  item.own = branch.name;
  item.layer = NUMBER.test(branch.name);
  return item;
}

/** A bare number would say little: `layers.3`. */
const prefixOf = ({ name, outer }) => (NUMBER.test(name) && outer?.name && !NUMBER.test(outer.name) ? `${outer.name}.` : "");

function runItem(rows, making) {
  const item = new Item("run", `${rows.length} operators`, rows);
  item.note = () => making.commonest(rows);
  return item;
}
