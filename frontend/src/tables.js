// Every table of the capture: sort, filter, choose columns, copy.
import { copyFrom } from "./clipboard.js";
import { button, el, roving, together } from "./dom.js";
import { cell, count, counted, csv, visible } from "./format.js";
import { createGrid } from "./grid.js";
import { helpLine, hint } from "./help.js";

/** What a table shows before anything else; columns that are named nowhere follow, and all stay in the chooser. */
const FIRST = {
  graphs: ["graph_id", "compile_id", "phase", "name", "node_count", "partition_count", "fallback_count", "coverage", "compile_ns", "file", "line"],
  breaks: ["break_id", "file", "line", "source", "reason", "advice", "cost_ns", "occurrences"],
  recompiles: ["compile_id", "of_compile_id", "function", "guard", "values", "advice", "file", "line"],
  nodes: ["graph_id", "node", "target", "module", "shape", "dtype", "partition_id", "reason_code", "flops", "output_bytes", "file", "line", "source"],
  partitions: ["partition_id", "graph_id", "node_count", "input_count", "output_count", "input_bytes", "output_bytes", "weight_bytes", "flops", "model_id"],
  fallbacks: ["target", "reason_code", "reason", "graph_id", "node", "calls", "total_ns", "file", "line", "source", "exception"],
  models: ["model_id", "partition_id", "opset", "node_count", "optimized_node_count", "ops", "size_bytes", "initializer_bytes", "cached"],
  sessions: ["session_id", "partition_id", "input_signature", "calls", "p50_ns", "p90_ns", "p99_ns", "total_ns", "create_ns", "providers", "threads", "cause"],
  runs: ["session_id", "graph_id", "call", "start_ns", "bind_ns", "run_ns", "output_ns", "total_ns"],
  kernels: ["kernel", "op_type", "mean_ns", "share", "calls", "session_id", "provider", "node", "module", "confidence", "file", "line"],
  numerics: ["node", "scope", "max_abs", "max_rel", "ok", "first_divergence", "closer_to_fp64", "nonfinite", "note", "partition_id", "file", "line"],
  findings: ["severity", "title", "gain_ns", "measured", "mitigation", "evidence", "hazard", "subject", "file", "line"],
  ledger: ["graph_id", "part", "ns", "share"],
  actions: ["rank", "kind", "file", "line", "do", "gain_ns", "cost_ns", "confidence"],
  roofline: ["op_type", "node", "mean_ns", "bound", "reached", "limit_ns", "flops", "bytes", "intensity", "kernel", "session_id", "file", "line"],
};

/** Tables that nobody wants in the order of recording. */
const SORT = { kernels: "mean_ns", fallbacks: "total_ns", sessions: "total_ns", roofline: "mean_ns" };

/** Why a table is empty, and what fills it. */
const EMPTY = {
  kernels: ["ONNX Runtime's kernels were not measured.", "profile"],
  numerics: ["No value was compared with PyTorch.", "verify"],
  ledger: ["No call was measured as a whole.", "measure"],
  runs: ["No call was recorded. A dry run makes no calls.", null],
  sessions: ["No session was created. A dry run creates none.", null],
  fallbacks: ["No operator stays in PyTorch.", null],
  breaks: ["No graph break.", null],
  recompiles: ["Nothing was compiled again.", null],
  findings: ["Nothing stands out.", null],
  actions: ["There is nothing to do.", null],
};

/**
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @returns {() => void}
 */
export function mountTables(root, store) {
  const hidden = new Map(); // columns that are not shown, by table
  let linked = new Set(); // rows that belong to the selection
  let wanted = null; // test of what is looked for in any column
  const summary = el("span.ol-soft", { role: "status" });
  const grid = createGrid({
    keep: (row) => (!onlyLinked.checked || linked.has(row)) && (wanted === null || wanted(row)),
    marked: (row) => linked.has(row),
    onChange: () => (summary.textContent = rowCount(store, grid.order().length, onlyLinked.checked ? 0 : linked.size)),
    onChoose: (row) => {
      const id = store.identity.idOf(store.get("table"), row);
      if (id) store.set({ selected: id });
    },
  });
  const names = tableButtons(store);
  const onlyLinked = el("input", { type: "checkbox", on: { change: () => refresh() } });
  const find = el("input", { type: "search", "data-find": true, placeholder: "Search all columns  /", "aria-label": "Search all columns", on: { input: () => refresh() } });
  const columns = el("details.ol-chooser", {}, el("summary", {}, "Columns"), el("div"));
  const empty = el("div.ol-empty", { hidden: true });
  const tools = el("div.ol-tools", {}, find, summary, el("label", {}, onlyLinked, " linked to the selection only"), columns, copyButton(store, grid, () => shownColumns(store, hidden)));
  root.append(helpLine("tables"), names, tools, grid.element, empty);

  function refresh() {
    linked = linkedRows(store);
    wanted = anywhere(find.value, shownColumns(store, hidden));
    grid.refresh();
  }

  function show(toggled) {
    const name = store.get("table");
    const table = store.data.table(name);
    for (const tab of names.children) tab.setAttribute("aria-pressed", String(tab.dataset.table === name));
    linked = linkedRows(store);
    wanted = anywhere(find.value, shownColumns(store, hidden));
    columns.lastChild.replaceChildren(chooser(store, hidden, show));
    for (const box of columns.querySelectorAll("input")) if (box.value === toggled) box.focus(); // the list was made anew
    grid.show(shownColumns(store, hidden), table.rows, SORT[name]);
    grid.element.hidden = !table.rows;
    empty.hidden = Boolean(table.rows);
    empty.replaceChildren(...(table.rows ? [] : emptyWords(store.data, name)));
    chooseSelected();
  }

  function chooseSelected() {
    const name = store.get("table");
    const id = store.get("selected");
    const own = id && store.identity.rowOf(id);
    if (own?.table === name) grid.choose(own.row);
    else grid.choose(id ? firstLinked(store, name, id) : -1);
  }

  show(null);
  const changed = () => {
    if (onlyLinked.checked) refresh();
    else {
      linked = linkedRows(store);
      summary.textContent = rowCount(store, grid.order().length, onlyLinked.checked ? 0 : linked.size);
    }
    chooseSelected();
  };
  return together([store.subscribe(["table"], () => show(null)), store.subscribe(["selected"], changed), grid.destroy]);
}

/** @returns {((row: number) => boolean)|null} Whether every word stands somewhere in a row; null when none is asked for. */
export function anywhere(text, columns) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return null;
  return (row) => words.every((word) => columns.some((column) => column.text(row).toLowerCase().includes(word)));
}

function rowCount(store, shown, linked) {
  const { rows, total, unread } = store.data.table(store.get("table"));
  const newer = unread.length ? `; ${unread.map(visible).join(", ")} not shown (written by a newer ortlens)` : "";
  const own = linked ? `, ${count(linked)} linked to the selection` : "";
  const left = `${own}${total > rows ? `, ${count(total - rows)} left out` : ""}${newer}`;
  return shown === rows ? `${counted(rows, "row")}${left}` : `${count(shown)} of ${count(rows)} rows${left}`;
}

function tableButtons(store) {
  const list = el("div.ol-tools", { role: "group", "aria-label": "Tables" });
  for (const name of store.data.tableNames) {
    const { rows, meaning } = store.data.table(name);
    const tab = button(`${name} `, () => store.set({ table: name }), { "data-table": name, title: meaning });
    tab.append(el("span.ol-soft", {}, count(rows)));
    list.append(tab);
  }
  roving(list, "button");
  return list;
}

function emptyWords(data, name) {
  const [said, want] = EMPTY[name] ?? ["There are no rows.", null];
  const call = want && hint(data, want);
  return [el("p", {}, said), call ? el("p", {}, "To fill it: ", el("code", {}, call)) : null].filter(Boolean);
}

/** Columns that hold nothing are hidden at first. */
function shownColumns(store, hidden) {
  const table = store.data.table(store.get("table"));
  const first = FIRST[table.name] ?? [];
  const rank = (name) => (first.includes(name) ? first.indexOf(name) : first.length);
  const names = [...table.columns.keys()].sort((a, b) => rank(a) - rank(b));
  if (!hidden.has(table.name)) hidden.set(table.name, new Set(names.filter((name) => isEmpty(table.column(name)))));
  return names.filter((name) => !hidden.get(table.name).has(name)).map((name) => gridColumn(table, name));
}

function isEmpty(values) {
  for (let row = 0; row < values.length; row++) {
    const value = values[row];
    if (value !== null && value !== "" && !(Array.isArray(value) && !value.length)) return false;
  }
  return true;
}

function gridColumn(table, name) {
  const column = table.columns.get(name);
  const values = column.values;
  const unit = column.unit && !name.endsWith(column.unit) ? ` (${column.unit})` : "";
  const number = column.kind === "int" || column.kind === "float";
  return { name, meaning: `${name}${unit}: ${column.meaning}`, number, value: (row) => values[row] ?? null, text: (row) => cell(values[row], column) };
}

function chooser(store, hidden, show) {
  const table = store.data.table(store.get("table"));
  shownColumns(store, hidden);
  const boxes = [...table.columns.values()].map((column) => {
    const box = el("input", { type: "checkbox", value: column.name });
    box.checked = !hidden.get(table.name).has(column.name);
    box.addEventListener("change", () => {
      if (box.checked) hidden.get(table.name).delete(column.name);
      else hidden.get(table.name).add(column.name);
      show(column.name);
    });
    return el("label", { title: column.meaning }, box, ` ${column.name}`);
  });
  return el("div.ol-chooser-list", {}, ...boxes);
}

function copyButton(store, grid, columns) {
  const copy = button("Copy as CSV", () => {
    const table = store.data.table(store.get("table"));
    const names = columns().map((column) => column.name);
    const text = csv(names, Array.from(grid.order(), (row) => names.map((name) => table.get(row, name))));
    copyFrom(copy, text, { done: `Copied ${counted(grid.order().length, "row")}`, name: "CSV" });
  }, { title: "The visible rows and columns, in their order" });
  return copy;
}

/** @returns {Set<number>} Rows of the shown table that belong to what is selected. */
function linkedRows(store) {
  const chain = store.get("chain");
  const name = store.get("table");
  const rows = new Set();
  if (!chain) return rows;
  const steps = { graphs: "graphs", nodes: "nodes", partitions: "partitions", models: "models", sessions: "sessions", kernels: "kernels", breaks: "breaks", recompiles: "recompiles", findings: "findings" };
  if (steps[name]) for (const { id } of chain[steps[name]]) rows.add(store.identity.rowOf(id).row);
  else addByReference(store, chain, name, rows);
  const own = store.identity.rowOf(chain.id);
  if (own?.table === name) rows.add(own.row);
  return rows;
}

/** Calls belong to their sessions, everything else to nodes, graphs or kernels. */
function addByReference(store, chain, name, rows) {
  if (name === "runs") return addRuns(store, chain, rows);
  const others = { ledger: chain.graphs, roofline: [chain, ...chain.kernels] };
  const wanted = new Set([...chain.nodes, ...(others[name] ?? [])].map((found) => found.id));
  const table = store.data.table(name);
  for (let row = 0; row < table.rows; row++) if (wanted.has(store.identity.idOf(name, row))) rows.add(row);
}

/** There are a hundred thousand: they are asked by session. */
function addRuns({ data, identity }, chain, rows) {
  const bySession = data.index("runs", "session_id");
  for (const { id } of chain.sessions) {
    const session = data.table("sessions").get(identity.rowOf(id).row, "session_id");
    for (const row of bySession.get(session) ?? []) rows.add(row);
  }
}

function firstLinked(store, name, id) {
  if (["fallbacks", "numerics", "roofline"].includes(name)) {
    const { rows } = store.data.table(name);
    for (let row = 0; row < rows; row++) if (store.identity.idOf(name, row) === id) return row;
  }
  const linked = store.get("chain")?.[name];
  return linked?.length ? store.identity.rowOf(linked[0].id).row : -1;
}
