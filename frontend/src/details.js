// What is selected, and what it is linked to: from the user's line to the kernel, each link with how sure it is.
import { histogram } from "./bars.js";
import { copyFrom } from "./clipboard.js";
import { button, el, facts, link, prose } from "./dom.js";
import { bytes, cell, clipped, count, counted, flops, functionName, place, real, time, visible } from "./format.js";
import { STEPS } from "./identity.js";
import { runsPerCall } from "./lines.js";

const SHOWN = 8;
const MORE = 200;

const KIND_NAMES = { graph: "graph", input: "graph input", partition: "partition", node: "FX node", module: "module", line: "line", model: "ONNX model", onnx: "ONNX node",
  session: "session", kernel: "kernel", break: "graph break", recompile: "recompile", finding: "finding", run: "call" };

/** @returns {string} The head of a list of links. */
function stepName(step) {
  if (step === "lines") return "Your line";
  const name = KIND_NAMES[step.replace("graph_inputs", "input").replace(/s$/, "")];
  return name.slice(0, 1).toUpperCase() + name.slice(1);
}

/** Sign and meaning of each confidence: shape and words, not colour. */
const CONFIDENCE = {
  exact: ["●", "exact: matched by name"],
  fused: ["◐", "fused: several merged into one"],
  inferred: ["○", "inferred from neighbours"],
  none: ["·", "unknown"],
};

/** Columns that say most about a row, by table; times and sizes first. */
const FACTS = {
  graphs: ["phase", "node_count", "partition_count", "fallback_count", "coverage", "compile_ns", "dynamic_shapes"],
  graph_inputs: ["dtype", "shape", "low", "high"],
  nodes: ["target", "shape", "dtype", "output_bytes", "flops", "reason_code", "reason", "module_type"],
  partitions: ["node_count", "input_count", "output_count", "input_bytes", "output_bytes", "weight_bytes", "flops"],
  models: ["opset", "node_count", "optimized_node_count", "ops", "size_bytes", "initializer_bytes", "cached"],
  sessions: ["input_signature", "providers", "calls", "p50_ns", "p90_ns", "p99_ns", "total_ns", "create_ns", "held_bytes", "threads", "threads_reason"],
  kernels: ["op_type", "provider", "mean_ns", "share", "calls", "bytes", "confidence"],
  breaks: ["source", "function", "occurrences"],
  recompiles: ["guard", "values", "of_compile_id"],
  findings: ["severity", "evidence", "hazard", "gain_ns"],
  runs: ["start_ns", "bind_ns", "run_ns", "output_ns", "total_ns"],
};

/** The column that says what to do about a row, by table. */
const ADVICE = { breaks: "advice", recompiles: "advice", findings: "mitigation" };
const MAX_REASONS = 4;

/** Panels that can show what is selected, with the steps of the chain that they need. */
const PLACES = [
  ["flame", "Flame", ["nodes", "kernels", "breaks", "graphs"]],
  ["graph", "Graph", ["nodes", "partitions", "graphs"]],
  ["source", "Source", ["lines"]],
  ["timeline", "Timeline", ["sessions", "breaks"]],
  ["numerics", "Numerics", ["nodes"]],
  ["actions", "Actions", ["breaks", "recompiles", "findings"]],
  ["breaks", "Breaks", ["breaks", "recompiles"]],
  ["findings", "Findings", ["findings"]],
  ["onnx", "ONNX", ["models"]],
];

/**
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @param {Set<string>} panels Panels that there are.
 * @returns {() => void}
 */
export function mountDetails(root, store, panels) {
  const show = () => {
    const chain = store.get("chain");
    const within = root.contains(root.getRootNode().activeElement);
    root.dataset.empty = String(!chain);
    root.dataset.selected = chain?.id ?? "";
    root.replaceChildren(...(chain ? selected(store, chain, panels) : nothing(store)));
    // Who walks from link to link by keyboard goes on from the name of what was selected.
    if (within) root.querySelector("[tabindex]")?.focus();
  };
  show();
  return store.subscribe(["chain"], show);
}

function nothing(store) {
  const id = store.get("selected");
  const said = id ? `This capture has no ${clipped(id, 80)}.` : "Select anything to see what it is linked to.";
  return [el("h3", { tabindex: "-1" }, "Details"), el("p.ol-soft", {}, said)];
}

function selected(store, chain, panels) {
  const close = button("×", () => store.set({ selected: null }), { class: "ol-icon", title: "Clear the selection (Esc)", "aria-label": "Clear the selection" });
  const copy = button("Copy id", () => copyFrom(copy, chain.id, { done: "Copied", name: "Id" }), { class: "ol-copy-id", title: clipped(`${chain.id}: also its name in Python, for example in the widget's .selected`, 300) });
  const head = el("div.ol-details-head", {}, el("span.ol-kind", {}, KIND_NAMES[chain.kind] ?? chain.kind), copy, close);
  const name = el("p.ol-details-name", { tabindex: "-1" }, clipped(nameOf(store, chain), 300));
  const body = el("div.ol-chain", {}, ...STEPS.filter((step) => chain[step].length && !isItself(chain, step)).map((step) => stepOf(store, chain, step)));
  return [head, name, advice(store, chain), jumps(store, chain, panels), about(store, chain), el("h4", {}, "Linked to"), body, legend(chain)].filter(Boolean);
}

const isItself = (chain, step) => chain[step].length === 1 && chain[step][0].id === chain.id;

function nameOf(store, chain) {
  const row = store.identity.rowOf(chain.id);
  if (row?.table === "graphs") return functionName(store.data.table("graphs").get(row.row, "name"));
  return visible(chain.label);
}

function jumps(store, chain, panels) {
  const found = PLACES.filter(([tab, , steps]) => panels.has(tab) && steps.some((step) => chain[step].length) && has(store, tab));
  const row = store.identity.rowOf(chain.id);
  const buttons = found.map(([tab, label]) => button(label, () => store.set({ tab }), { class: "ol-jump" }));
  if (row) buttons.push(button("Table", () => store.set({ tab: "tables", table: row.table }), { class: "ol-jump" }));
  return buttons.length ? el("div.ol-jumps", {}, el("span.ol-soft", {}, "Show in"), ...buttons) : null;
}

const has = (store, tab) => tab !== "timeline" || store.data.table("runs").rows > 0;

/** What to do comes before everything else. */
function advice(store, chain) {
  const row = store.identity.rowOf(chain.id);
  const said = row && ADVICE[row.table] ? (store.data.table(row.table).get(row.row, ADVICE[row.table]) ?? hint(store, row)) : null;
  return said ? el("p.ol-advice", {}, el("b", {}, "Do: "), ...prose(clipped(said, 600))) : null;
}

/** PyTorch's own, where ortlens knows no better. */
const hint = (store, { table, row }) => (table === "breaks" ? store.data.table(table).get(row, "hints")?.[0] : null);

function about(store, chain) {
  const row = store.identity.rowOf(chain.id);
  if (!row) return facts(together(store, chain));
  const table = store.data.table(row.table);
  const pairs = (FACTS[row.table] ?? []).filter((name) => table.columns.has(name)).map((name) => [words(name), cell(table.get(row.row, name), table.columns.get(name))]);
  const file = table.get(row.row, "file");
  return facts([...pairs, ...(row.table === "breaks" ? costs((name) => table.get(row.row, name)) : []), ...(row.table === "nodes" ? numbers(store, chain.id) : []), ...(row.table === "graph_inputs" ? [["values", histogram(table.get(row.row, "histogram") ?? [], "Values in 16 equal intervals from the lowest to the highest")]] : []), ["where", file ? place(file, table.get(row.row, "line")) : null]]);
}

/** As the lists say it: what goes with the break, and all that lies between the graphs. */
function costs(get) {
  return [
    ["cost", get("cost_ns") === null ? null : `${time(get("cost_ns"))} per call`],
    ["between the graphs", get("between_ns") === null ? null : `${time(get("between_ns"))} per call`],
  ];
}

const words = (name) => name.replace(/_(ns|bytes)$/, "").replaceAll("_", " ");

/** What a line, a module or an ONNX node amounts to. */
function together(store, chain) {
  const rows = store.identity.nodeRows(chain.id);
  const nodes = store.data.table("nodes");
  const total = (name) => rows.reduce((sum, row) => sum + (nodes.get(row, name) ?? 0), 0);
  const inOrt = rows.filter((row) => nodes.get(row, "partition_id") !== null).length;
  const line = store.data.overview.line_states?.find(({ id }) => id === chain.id);
  const [source, outside] = chain.kind === "line" ? [line?.source ?? nodes.get(rows[0] ?? -1, "source"), line?.outside] : [];
  return [
    ["source", source ? clipped(source, 300) : null],
    ["nodes", count(rows.length)],
    ["in ONNX Runtime", count(inOrt)],
    ["outside of the graphs", outside ? `${counted(outside, "operator")}, in PyTorch` : null],
    ["FLOPs", total("flops") ? flops(total("flops")) : null],
    ["output", total("output_bytes") ? bytes(total("output_bytes")) : null],
    [`kernel time per ${store.data.overview.per}`, kernelTime(store, chain)],
    ...reasons(store, rows),
  ];
}

/** Why nodes stay in PyTorch, each reason once. */
function reasons(store, rows) {
  const nodes = store.data.table("nodes");
  const found = new Map();
  for (const row of rows) {
    const reason = nodes.get(row, "reason") || store.data.overview.reasons?.[nodes.get(row, "reason_code")];
    if (nodes.get(row, "partition_id") === null && reason) found.set(nodes.get(row, "target") ?? nodes.get(row, "node"), reason);
  }
  const shown = [...found].slice(0, MAX_REASONS).map(([target, reason]) => ["in PyTorch", clipped(`${target}: ${reason}`, 300)]);
  return found.size > MAX_REASONS ? [...shown, ["", `and ${counted(found.size - MAX_REASONS, "more operator")}`]] : shown;
}

function kernelTime(store, chain) {
  const kernels = store.data.table("kernels");
  const rows = chain.kernels.map((found) => store.identity.rowOf(found.id).row);
  const runs = runsPerCall(store);
  const ns = rows.reduce((sum, row) => sum + (kernels.get(row, "mean_ns") ?? 0) * (runs.get(kernels.get(row, "session_id")) ?? 1), 0);
  return ns ? time(ns) : null;
}

function numbers(store, id) {
  const numerics = store.data.table("numerics");
  const pairs = [];
  for (let row = 0; row < numerics.rows; row++) {
    if (store.identity.idOf("numerics", row) !== id || numerics.get(row, "max_abs") === null) continue;
    pairs.push([`error (${numerics.get(row, "scope") ?? "value"})`, `${real(numerics.get(row, "max_abs"))}${numerics.get(row, "ok") === false ? ", out of tolerance" : ""}`]);
  }
  return pairs;
}

function stepOf(store, chain, step) {
  const links = chain[step];
  const list = el("ul", {}, ...links.slice(0, SHOWN).map((found) => linkItem(store, chain, found)));
  if (links.length > SHOWN) {
    const more = button(`${count(links.length - SHOWN)} more`, () => more.replaceWith(...rest()), { class: "ol-more" });
    const rest = () => {
      list.append(...links.slice(SHOWN, MORE).map((found) => linkItem(store, chain, found)));
      return links.length > MORE ? [el("span.ol-soft", {}, `and ${count(links.length - MORE)} more, see Tables`)] : [];
    };
    return el("div.ol-step", { "data-step": step }, el("h5", {}, `${stepName(step)}s`, el("span.ol-soft", {}, ` ${count(links.length)}`)), list, more);
  }
  return el("div.ol-step", { "data-step": step }, el("h5", {}, stepName(step)), list);
}

/** Names repeat from graph to graph; then the graph stands behind them. */
function nameIn(store, chain, id) {
  const label = id.startsWith("line:") ? store.identity.label(id) : functionName(store.identity.label(id));
  if (chain.graphs.length < 2 || !/^(node|module):/.test(id)) return clipped(label, 120);
  const graph = chain.graphs.find((found) => id.startsWith(`${id.slice(0, id.indexOf(":"))}:${found.id.slice("graph:".length)}/`));
  const [row] = graph ? [store.identity.rowOf(graph.id).row] : [];
  const compiled = row === undefined ? "" : ` in ${store.data.table("graphs").get(row, "compile_id") ?? graph.id.slice(6)}`;
  return `${clipped(label, 100)}${visible(compiled)}`;
}

function linkItem(store, chain, { id, confidence }) {
  const [sign, meaning] = CONFIDENCE[confidence] ?? CONFIDENCE.none;
  return el("li", {}, el("span.ol-sure", { title: meaning, role: "img", "aria-label": meaning }, sign), link(store, id, nameIn(store, chain, id)));
}

/** Only the signs that are there need explaining. */
function legend(chain) {
  const used = new Set(STEPS.flatMap((step) => chain[step].map((found) => found.confidence)));
  const shown = Object.entries(CONFIDENCE).filter(([name]) => used.has(name) && name !== "exact");
  return shown.length ? el("p.ol-soft.ol-legend", {}, [["exact", CONFIDENCE.exact], ...shown].map(([, [sign, meaning]]) => `${sign} ${meaning}`).join("  ")) : null;
}
