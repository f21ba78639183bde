// What is written in a box: a title, a line below it, and the stubs of what it reads from far away.
import { bytes, count, counted, functionName } from "../format.js";
import { headOf, safe } from "./text.js";

/**
 * @typedef {object} Labels
 * @property {(item: import("./item.js").Item) => string} title
 * @property {(item: import("./item.js").Item) => string} note
 * @property {(item: import("./item.js").Item) => {text: string, row: number}|null} stub What is read without a drawn
 *   wire: weights, and values that many boxes read. `row` is -1 where there is no box to go to.
 * @property {(item: import("./item.js").Item) => string} side How much of it stays in PyTorch; empty where nothing does.
 * @property {(item: import("./item.js").Item) => string} partition Partitions of what is inside, as `p3` or `5 partitions`.
 * @property {(item: import("./item.js").Item) => string} spoken All of it, for a screen reader.
 */

const DTYPES = { float32: "f32", float16: "f16", bfloat16: "bf16", float64: "f64", int64: "i64", int32: "i32", int8: "i8", uint8: "u8" };

/**
 * @param {import("./tree.js").Tree} tree
 * @returns {Labels}
 */
export function createLabels(tree) {
  const { ops } = tree;
  const { data } = ops;
  const nodes = data.table("nodes");
  const graphs = data.table("graphs");

  function title(item) {
    if (item.kind === "graph") return graphTitle(item);
    const prefix = { torch: "PyTorch: ", partition: "partition ", input: "input " }[item.kind] ?? "";
    return prefix + safe(item.title);
  }

  function graphTitle(item) {
    const { get, forward } = graphFacts(item);
    const name = get("name") ?? forward?.name;
    const called = name ? functionName(name) : "";
    const call = /^[\w.]+$/.test(called) ? `${called}()` : safe(called);
    return [safe(item.title), get("phase") === "backward" && call ? `backward of ${call}` : call].filter(Boolean).join(" ");
  }

  function graphFacts(item) {
    const { row } = item.graph;
    const get = (column) => (row < 0 ? null : graphs.get(row, column));
    const same = (other) => graphs.get(other, "compile_id") === get("compile_id") && graphs.get(other, "phase") === "forward";
    const other = get("phase") === "backward" ? (data.index("graphs", "phase").get("forward") ?? []).find(same) : undefined;
    return { get, forward: other === undefined ? null : { name: graphs.get(other, "name") } };
  }

  function note(item) {
    if (item.kind === "op") return opNote(item);
    if (item.kind === "input") return ops.shapes[item.row - ops.nodes]?.join("×") || bytes(ops.bytes[item.row]);
    if (item.kind === "output") return "";
    const size = item.ort + item.torch;
    const own = item.kind === "graph" ? compiled(item) : item.kind === "fold" ? `${item.times} × ${safe(item.note || "layers")}` : safe(item.note);
    const counts = item.kind === "run" || item.kind === "inputs" || (item.torch && item.ort); // the title, or the tag, says it
    return [own, counts ? "" : counted(size, "op")].filter(Boolean).join(" · ");
  }

  function compiled(item) {
    const { get } = graphFacts(item);
    const pass = { forward: "forward pass", backward: "backward pass" }[get("phase")];
    return [pass, item.old ? "replaced" : get("recompile_of") ? `recompiled as ${safe(get("compile_id"))}` : ""].filter(Boolean).join(", ");
  }

  function opNote(item) {
    const shape = nodes.get(item.row, "shape");
    const dtype = nodes.get(item.row, "dtype")?.replace("torch.", "");
    const type = shape === null ? "" : [shape.join("×"), DTYPES[dtype] ?? dtype].filter(Boolean).join(" ");
    return [safe(near(item.note)), safe(type)].filter(Boolean).join(" · ");
  }

  function stub(item) {
    const words = [];
    let row = -1;
    for (const weight of item.row >= 0 ? ops.weights.get(item.row) ?? [] : []) words.push(`${weightName(weight, ops.module[item.row])}${weight.shared ? ", shared" : ""}`);
    for (const hub of item.parent?.wires?.stubs.get(item.index) ?? []) {
      words.push(safe(ops.name[hub]));
      row = hub;
    }
    if (item.parent?.wires?.returned.has(item.index)) words.push("returned");
    return words.length ? { text: words.join(", "), row } : null;
  }

  function partition(item) {
    if (item.row >= 0) return safe(ops.partition[item.row] ?? "");
    const found = partitionsIn(tree, item);
    return found.size === 0 ? "" : found.size === 1 ? safe([...found][0]) : counted(found.size, "partition");
  }

  function side(item) {
    if (!item.torch) return "";
    if (!item.parts) return "PyTorch";
    if (item.ort) return `${count(item.torch)} of ${count(item.ort + item.torch)} in PyTorch`;
    return item.kind === "torch" ? "" : "all in PyTorch"; // its title says so
  }

  function spoken(item) {
    const place = item.row >= 0 ? opSide(item) : groupSide(item);
    const read = stub(item);
    return [headOf(title(item), 80), item.old ? "replaced by a recompile" : "", headOf(note(item), 80), place, read && `reads ${headOf(read.text, 80)}`].filter(Boolean).join(", ");
  }

  function opSide(item) {
    if (item.kind !== "op") return "";
    if (item.ort) return `in ONNX Runtime, partition ${partition(item)}`;
    return item.torch ? `stays in PyTorch: ${nodes.get(item.row, "reason") ?? "reason unknown"}` : "a size or a check";
  }

  function groupSide(item) {
    if (!item.ort && !item.torch) return "";
    if (!item.torch) return "all in ONNX Runtime";
    return item.ort ? `${count(item.torch)} of ${count(item.ort + item.torch)} nodes stay in PyTorch` : "all in PyTorch";
  }

  return { title, note, side, stub, partition, spoken };
}

/** A weight as its module calls it, with its shape; by its size where that is not known. */
const weightName = ({ name, shape, bytes: size }, module) => (shape ? safe(`${module && name.startsWith(`${module}.`) ? name.slice(module.length + 1) : name} ${shape.join("×")}`) : `weight ${bytes(size)}`);

/** The end of a module path: `blocks.13` of `stage.blocks.13`. */
function near(path) {
  const names = path.split(".");
  return names.slice(/^\d+$/.test(names.at(-1)) ? -2 : -1).join(".");
}

/** @returns {Set<string>} Partitions of the operators in an item. */
export function partitionsIn(tree, item) {
  if (item.partitions) return item.partitions;
  const found = new Set();
  for (let at = item.low; at < item.high; at++) {
    const partition = tree.ops.partition[tree.order[at]];
    if (partition !== null) found.add(partition);
  }
  return (item.partitions = found);
}
