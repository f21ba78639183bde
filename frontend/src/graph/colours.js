// What the colour of a box means, and the words that say the same beside it.
import { percent, real, time } from "../format.js";
import { hint } from "../help.js";
import { partitionsIn } from "./labels.js";
import { TORCH } from "./ops.js";
import { safe } from "./text.js";

/** Okabe and Ito's hues; vermilion is PyTorch's alone. */
const HUES = ["#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#f0e442"]; // not orange: too near
const PHASES = { inference: HUES[0], forward: HUES[1], backward: HUES[2] };
const REASONS = {
  no_converter: "#e69f00", converter_raised: "#cc79a7", dtype: "#56b4e9", layout: "#009e73", device: "#0072b2",
  dynamic_shape: "#f0e442", side_effect: "#999999", too_small: "#7fc8a9", policy: "#8f7fd1", session_refused: "#d55e00",
};

/** @type {Record<string, string>} What can be chosen, in words. */
export const MODES = { partition: "partition", phase: "phase", time: "time", error: "error against PyTorch", reason: "reason for staying in PyTorch" };

/**
 * @typedef {object} Look
 * @property {string|null} hue Fill; null for a neutral box.
 * @property {string} tag What the fill means, in a word; empty where it means nothing.
 * @property {string} [short] The same where there is little room.
 * @property {number|null} bar 0 to 1, where a quantity is shown.
 * @property {number} strength 0 to 1, how full the fill is.
 */

/** Looks and the legend of one tree. */
export class Colours {
  /**
   * @param {import("./tree.js").Tree} tree
   * @param {import("./labels.js").Labels} labels
   * @param {() => import("./measured.js").Measured} measured Made when it is first needed.
   */
  constructor(tree, labels, measured) {
    this.tree = tree;
    this.labels = labels;
    this.measured = measured;
    this.data = tree.ops.data;
    this.partitions = new Map(Array.from(this.data.table("partitions").column("partition_id"), (id, at) => [id, at]));
    this.phases = new Map(tree.graphs.map((graph) => [graph, graph.graph.row < 0 ? null : this.data.table("graphs").get(graph.graph.row, "phase")]));
    this.looks = new Map();
    this.longest = new Map();
    this.mode = null;
  }

  /** @returns {Look} */
  look(item, mode) {
    if (mode !== this.mode) this.looks.clear();
    this.mode = mode;
    if (!this.looks.has(item)) this.looks.set(item, this[mode](item));
    return this.looks.get(item);
  }

  partition(item) {
    const partition = this.labels.partition(item);
    const at = this.partitions.get(partition);
    if (item.torch && !item.ort) return plain(item.parts ? "" : "PyTorch"); // a group's title or side says so
    const said = this.partitions.size < 2 || (this.tree.groupBy === "partition" && item.kind !== "graph"); // the box around it says so
    return { ...plain(said ? "" : partition), hue: at === undefined ? (item.ort ? "neutral" : null) : HUES[at % HUES.length] };
  }

  phase(item) {
    let graph = item;
    while (graph && graph.kind !== "graph") graph = graph.parent;
    const phase = this.phases.get(graph);
    const tag = item.torch && !item.parts ? "PyTorch" : item.parts && item.parent !== graph ? "" : (phase ?? "");
    return item.row >= 0 && item.kind !== "op" ? plain("") : { ...plain(item.kind === "op" && !item.torch ? "" : tag), hue: PHASES[phase] ?? null };
  }

  time(item) {
    const { timeOf, totalTime } = this.measured();
    const ns = item.kind === "input" || item.kind === "output" ? null : timeOf(item);
    if (ns === null) return plain("");
    const share = totalTime ? Math.min(1, ns / totalTime) : 0;
    return { hue: HUES[0], tag: `${time(ns)} · ${percent(share)}`, short: time(ns), bar: ns / this.longestBeside(item), strength: 0.06 + 0.34 * Math.sqrt(share) };
  }

  /** Longest time among the children of the same group. */
  longestBeside({ parent }) {
    if (!this.longest.has(parent)) {
      const { timeOf } = this.measured();
      this.longest.set(parent, parent ? parent.children.reduce((most, child) => Math.max(most, timeOf(child) ?? 0), 0) : timeOf(this.tree.root));
    }
    return this.longest.get(parent);
  }

  error(item) {
    const found = this.measured().errorOf(item);
    if (!found) return plain("");
    const worst = found.worst === null ? "" : ` ${real(found.worst)}`;
    if (found.bad) return { ...plain(`✗${worst}${found.first ? " first" : ""}`), hue: REASONS.session_refused, strength: 0.35 };
    return found.checked ? { ...plain(`✓${worst}`), hue: HUES[1] } : plain("not checked");
  }

  reason(item) {
    if (!item.torch) return plain("");
    const found = new Set();
    for (let at = item.low; at < item.high; at++) {
      const row = this.tree.order[at];
      if (this.tree.ops.side[row] === TORCH) found.add(this.data.table("nodes").get(row, "reason_code") ?? "unknown");
    }
    const [first] = found;
    return { ...plain(found.size === 1 ? first : `${found.size} reasons`), hue: found.size === 1 ? (REASONS[first] ?? HUES[2]) : "neutral", strength: 0.35 };
  }

  /** @returns {{entries: {hue: string|null, words: string, strength?: number}[], note: string}} What the hues mean. */
  legend(mode) {
    const { entries, note = "" } = this[`${mode}Legend`]();
    return { entries, note };
  }

  partitionLegend() {
    const count = this.partitions.size;
    if (count < 2) return { entries: [] }; // one hue says nothing
    const now = new Set(this.tree.graphs.filter((graph) => !graph.old).flatMap((graph) => [...partitionsIn(this.tree, graph)]));
    const first = [...this.partitions].filter(([id]) => now.has(id)).slice(0, HUES.length);
    const shown = first.map(([id, at]) => ({ hue: HUES[at % HUES.length], words: safe(id) }));
    const more = count > HUES.length ? [{ hue: null, words: `and ${count - HUES.length} more (colours repeat)` }] : [];
    return { entries: [...shown, ...more], note: count > 1 ? "one colour per partition" : "" };
  }

  phaseLegend() {
    const met = new Set(this.phases.values());
    return { entries: Object.keys(PHASES).filter((phase) => met.has(phase)).map((phase) => ({ hue: PHASES[phase], words: phase })) };
  }

  timeLegend() {
    const { timeFrom, totalTime } = this.measured();
    const notes = {
      kernels: `share of ${time(totalTime)} per ${this.data.overview.per}; a fused kernel counts for the operator that computes its output`,
      sessions: `per partition only; for each operator: ${hint(this.data, "profile")}`,
      none: `no time was measured: call the model; for each operator: ${hint(this.data, "profile")}`,
    };
    const entries = timeFrom === "none" ? [] : [{ hue: HUES[0], words: "darker: larger share of the call; bar: share among siblings", strength: 0.4 }];
    return { entries, note: notes[timeFrom] };
  }

  errorLegend() {
    if (!this.measured().hasErrors) return { entries: [], note: `nothing compared yet: ${hint(this.data, "verify")}` };
    return { entries: [{ hue: HUES[1], words: "✓ within tolerance" }, { hue: REASONS.session_refused, words: "✗ out of tolerance", strength: 0.35 }] };
  }

  reasonLegend() {
    const met = new Set();
    const codes = this.data.table("nodes").column("reason_code");
    for (let row = 0; row < codes.length; row++) if (this.tree.ops.side[row] === TORCH) met.add(codes[row] ?? "unknown");
    const words = this.data.overview?.reasons ?? {};
    const entries = [...met].map((code) => ({ hue: REASONS[code] ?? HUES[2], words: `${code}: ${words[code] ?? "no description"}`, strength: 0.35 }));
    return { entries, note: met.size ? "" : "nothing stays in PyTorch" };
  }
}

const plain = (tag) => ({ hue: null, tag, bar: null, strength: 0.2 });
