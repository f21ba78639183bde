// The first screen: coverage, partitions and the reasons for them, time, correctness, and what to do first.
import { allActions, consequences } from "./actions.js";
import { shareBar, stackedBar, STATES, stateKey } from "./bars.js";
import { sectionsOf } from "./cells.js";
import { button, el, prose, together } from "./dom.js";
import { clipped, count, counted, percent, place, time, visible } from "./format.js";
import { emptyState, HELP, helpLine, hint } from "./help.js";
import { highlighted } from "./highlight.js";
import { STEPS } from "./identity.js";
import { partitionStrip } from "./partitions.js";

const NEARLY_ALL = 0.9; // below it, "Yes" would say too much
const MAX_STRETCHES = 7;
const MAX_REASONS = 4;

/** @type {[string, string, string, string][]} Part of the ledger, its name, its colour, what it is. */
const LEDGER = [
  ["run", "ONNX Runtime", "run", "inside ONNX Runtime"],
  ["foreign", "", "other", "compiled by another backend"],
  ["bind", "bind", "bind", "passing the inputs to ONNX Runtime"],
  ["output", "output", "output", "returning the outputs to PyTorch"],
  ["eager", "PyTorch", "eager", "nodes that stay in PyTorch, and Python between graphs"],
  ["generate", "Python of generate", "other", "Python of generate around the model, and what it computes there"],
  ["guards", "entering compiled code", "guards", "Dynamo's look-up and guards, wrappers, cold caches"],
  ["residual", "rest", "residual", "the rest of the measured call"],
];

/**
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @returns {() => void}
 */
export function mountOverview(root, store) {
  const { overview } = store.data;
  root.append(helpLine("overview"));
  if (overview.dry_run) root.append(el("p.ol-banner", { role: "note" }, `A dry run ${overview.dry_run}`, ". Call explain() without dry_run=True to measure."));
  if (overview.coverage.verdict === "empty") root.append(overview.looks.length ? el("div.ol-cards", {}, el("div", {}, inOrt(store)), el("div", {}, first(store))) : emptyState("overview", store.data));
  else root.append(el("div.ol-cards", {}, el("div", {}, inOrt(store), generation(store), partitioning(store), code(store)), el("div", {}, ...answers(store))));
  root.append(recorded(store.data.meta));
  return together([followSelection(root, store), followCard(root, store)]);
}

/** Wrong results come before everything else. */
function answers(store) {
  const rest = [first(store), times(store)];
  return store.data.overview.alert ? [right(store), ...rest] : [...rest, right(store)];
}

/** What belongs to the selection is marked here too: its partitions, its breaks. */
function followSelection(root, store) {
  const follow = () => {
    const chain = store.get("chain");
    const ids = new Set(chain ? [chain.id, ...STEPS.flatMap((step) => chain[step].map((found) => found.id))] : []);
    for (const element of root.querySelectorAll("[data-id]")) {
      if (ids.has(element.dataset.id)) element.setAttribute("aria-current", "true");
      else element.removeAttribute("aria-current");
    }
    if (!root.contains(root.getRootNode().activeElement)) root.querySelector("[data-id][aria-current]")?.scrollIntoView({ block: "nearest" });
  };
  follow();
  return store.subscribe(["chain"], follow);
}

/** A tile of the verdict leads to a card. */
function followCard(root, store) {
  const follow = () => {
    const name = store.get("card");
    for (const found of root.querySelectorAll(".ol-card")) found.removeAttribute("data-asked");
    const asked = name && root.querySelector(`.ol-card-${name}`);
    if (!asked) return;
    asked.dataset.asked = "true";
    asked.tabIndex = -1;
    asked.focus({ preventScroll: true });
    asked.scrollIntoView({ block: "nearest" });
  };
  follow();
  return store.subscribe(["card"], follow);
}

/** Where the figures come from. */
function recorded({ created, environment }) {
  const known = [["version_torch", "torch"], ["version_onnxruntime", "onnxruntime"], ["python", "Python"], ["platform", ""], ["cpu_count", "processors:"], ["torch_threads", "torch threads:"]];
  const versions = known.filter(([key]) => environment[key]).map(([key, words]) => `${words} ${environment[key]}`.trim());
  if (!created && !versions.length) return el("span");
  return el("p.ol-soft.ol-recorded", {}, clipped(`Recorded ${String(created).replace("T", " ").slice(0, 16)} with ${versions.join(", ")}`, 400));
}

const card = (name, question, ...children) => el(`section.ol-card.ol-card-${name}`, {}, el("h3", {}, question), ...children);
const DRY = "Nothing ran: this is a dry run with fake tensors. Call explain() without dry_run=True to measure.";

const isDryRun = ({ overview }) => Boolean(overview.dry_run);

const capitalised = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

const go = (store, label, patch) => button(label, () => store.set(patch), { class: "ol-link", "data-id": patch.selected ?? null });

function inOrt(store) {
  const { coverage, answers } = store.data.overview;
  const share = coverage.share;
  // A full bar would say that nothing runs outside the graphs.
  const bar = share === null || coverage.verdict === "compiled" ? null : shareBar(share, `${percent(share)} run in ONNX Runtime`);
  const big = share === null ? (coverage.is_cut_short ? "Unknown" : "No") : answer(coverage, isDryRun(store.data));
  return card("ort", "Is it in ONNX Runtime?", el("p.ol-big", {}, big), bar, el("p", {}, [...(answers.ort ?? answers.model), ...(answers.providers ?? [])].join("; ")));
}

function answer({ verdict, share, operator_count: counts, break_count: breaks, is_cut_short: cut }, isPlanned) {
  const known = { whole: ["Yes", "all of it"], none: ["No", "none of it"], compiled: ["Yes", "the compiled code"] }[verdict];
  const [word, part] = known ?? [share < NEARLY_ALL ? "In part" : "Yes", `${percent(share)} of ${counts === null && (breaks || cut) ? "the compiled code" : "it"}`];
  return isPlanned && word !== "No" ? `Planned: ${part}` : `${word}, ${part}`; // nothing ran in a dry run
}

function partitioning(store) {
  const { overview } = store.data;
  return card("partitions", "How is it partitioned, and why?", el("p", {}, overview.answers.partitions ? `Partitions: ${overview.answers.partitions.join("; ")}` : (overview.answers["runs on"] ?? []).join("; ")), reasons(store), partitionStrip(store, MAX_STRETCHES));
}

/** The source of the target, each line in the colour of where its operators run. */
function code(store) {
  const { code: found } = store.data.overview;
  if (!found?.lines.some((line) => line.state)) return null; // the call that was counted led through another function
  const row = ({ line, text, state, operators }) => {
    const title = state ? `${counted(operators, "operator")}: ${STATES[state]}` : "no operators";
    const id = `line:${found.file}:${line}`;
    const number = store.identity.has(id) ? go(store, String(line), { selected: id }) : String(line);
    return el(`div.ol-code-line${state ? `.ol-state-${state}` : ""}`, { title }, el("span.ol-number", {}, number), el("code", {}, ...highlighted(text)));
  };
  return card("code", "What of the function is compiled?", el("p", {}, el("code", {}, clipped(found.function, 80)), ` in ${place(found.file, found.lines[0].line)}`), stateKey(found.lines), el("div.ol-code", {}, ...found.lines.map(row)));
}

function reasons(store) {
  const { overview, table } = store.data;
  const breaks = table("breaks").rows;
  const recompiles = overview.recompiles_sentence ?? "";
  const items = overview.fallbacks.slice(0, MAX_REASONS).map((group) => fallbackReason(store, group));
  const more = overview.fallback_groups - items.length;
  if (more > 0) items.push(el("li", {}, go(store, counted(more, "more operator"), { tab: "tables", table: "fallbacks" }), " stay in PyTorch"));
  if (breaks) items.unshift(el("li", {}, go(store, counted(breaks, "graph break"), { tab: "breaks" }), breaks === 1 ? " splits the model" : " split the model"));
  if (recompiles) items.push(el("li", {}, go(store, recompiles, { tab: "breaks" }), overview.recompile_count === 1 ? " made another version" : " made other versions"));
  return items.length ? el("ul.ol-reasons", {}, ...items) : el("p.ol-soft", {}, "No graph breaks, and no operators in PyTorch.");
}

function fallbackReason(store, group) {
  const id = group.file ? `line:${group.file}:${group.line}` : fallbackNode(store, group.target);
  const where = group.file ? place(group.file, group.line) : (group.module ?? "");
  return el("li", {}, go(store, clipped(group.target, 48), { selected: id }), ` (${counted(group.node_count, "node")}) stays in PyTorch: ${clipped(group.reason, 140)} `, el("span.ol-soft", {}, where));
}

function fallbackNode(store, target) {
  const [row] = store.data.index("fallbacks", "target").get(target) ?? [];
  return row === undefined ? null : store.identity.idOf("fallbacks", row);
}

function times(store) {
  const { overview, table } = store.data;
  const parts = ledgerParts(table("ledger"), overview.generate_ns ?? 0, overview.foreign);
  // Parts of functions that nobody measured together add up to no call.
  if (!parts.length || (overview.call.of && !store.data.flame?.is_measured)) return card("time", "Where does the time go?", ...callTime(store), compileTime(overview));
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  return card("time", "Where does the time go?", el("p", {}, el("b.ol-big", {}, time(total)), ` per ${overview.per}`), stackedBar(parts, time), busyNote(overview), partsNote(parts, store), compileTime(overview));
}

/** Prefill, decode, the Python around the model and the cache, where tokens were generated. */
function generation({ data }) {
  const said = data.overview.answers.generation ?? [];
  return said.length ? card("generation", "How fast are tokens generated?", el("ul.ol-reasons", {}, ...said.map((sentence) => el("li", {}, capitalised(sentence))))) : null;
}

/** Python of generate is in what the ledger books as PyTorch. */
function ledgerParts(ledger, generating, foreign) {
  const sums = new Map();
  for (let row = 0; row < ledger.rows; row++) sums.set(ledger.get(row, "part"), (sums.get(ledger.get(row, "part")) ?? 0) + ledger.get(row, "ns"));
  if (generating) sums.set("generate", generating).set("eager", sums.get("eager") - generating);
  return LEDGER.filter(([part]) => (sums.get(part) ?? 0) > 0).map(([part, name, kind, title]) => ({ name: name || foreign, kind, title, value: sums.get(part) }));
}


/** Times that were measured beside other work are too long, and say so. */
const busyNote = (overview) => (overview.busy_sentence ? el("p.ol-caution", {}, `⚠ ${overview.busy_sentence}`) : null);

/** Without a measured call, guards and the rest are not known: say so, instead of letting the parts pass for the whole. */
function partsNote(parts, store) {
  const whole = parts.some((part) => part.kind === "guards" || part.kind === "residual");
  const kernels = store.data.table("kernels").rows;
  const ran = store.data.table("sessions").rows;
  if (!whole) return note("Entering compiled code and Python around the graphs are not included.", hint(store.data, "measure"));
  if (ran && !kernels) return note(HELP.kernels.missing, hint(store.data, "profile"));
  return el("div", {}, slowest(store), kernels ? el("p", {}, go(store, "Slowest kernels", { tab: "tables", table: "kernels" })) : null);
}

/** The lines of the program that take most of a call. */
function slowest(store) {
  const lines = (store.data.overview.slow_lines ?? []).filter(({ is_torch: torch }) => !torch); // those have their time where they are explained
  if (!lines.length) return null;
  const items = lines.map(({ file, line, source, ns, share }) => {
    const id = `line:${file}:${line}`;
    const where = store.identity.has(id) ? go(store, place(file, line), { selected: id, tab: "source" }) : place(file, line);
    return el("li", {}, el("b", {}, time(ns)), el("span.ol-slow-share", {}, percent(share)), where, source ? el("code.ol-slow-source", { title: visible(source.trim()) }, clipped(source.trim(), 90)) : null);
  });
  return el("div.ol-slow", {}, el("h4", {}, `Slowest ${items.length > 1 ? "lines" : "line"} in ONNX Runtime`), el("ol", {}, ...items));
}

const note = (said, call) => el("p.ol-soft", {}, said, call ? " To fill this in: " : null, call ? el("code", {}, call) : null);

function callTime(store) {
  const { call } = store.data.overview;
  if (!call.calls) return [note(isDryRun(store.data) ? DRY : "No call was recorded. Call the compiled function again.", null)];
  const parts = [
    { name: "ONNX Runtime", kind: "ort", value: call.ort_ns },
    { name: "PyTorch operators", kind: "eager", value: call.eager_ns },
    { name: store.data.overview.foreign, kind: "other", value: call.foreign_ns },
  ];
  const sum = el("p", {}, el("b.ol-big", {}, time(call.total_ns)), ` per ${call.is_call ? "call" : "run"}${call.of}, ${call.average}`);
  return [sum, stackedBar(parts, time), note("Entering compiled code and Python around the graphs are not included.", hint(store.data, "measure"))];
}

function compileTime(overview) {
  if (!overview.compile_ns) return null;
  const shown = overview.phases.filter((phase) => phase.ns).sort((a, b) => b.ns - a.ns).slice(0, 2);
  return el("p.ol-soft", {}, `Compiling took ${time(overview.compile_ns)}: ${shown.map((phase) => `${phase.name} ${time(phase.ns)}`).join(", ")}`);
}

function right(store) {
  const found = judged(store);
  const title = "Are the results correct?";
  if (!found.checked && !store.data.overview.coverage.ort_node_count) return card("right", title, note("ONNX Runtime computed nothing that could be compared.", null));
  if (!found.checked) return card("right", title, isDryRun(store.data) ? note(DRY, null) : note("Not checked yet.", hint(store.data, "verify")));
  const left = unchecked(store);
  const whole = store.data.overview.alert;
  if (whole) return card("right", title, el("p.ol-big.ol-wrong", {}, "No: the results differ"), el("p", {}, `${whole}. `, go(store, "See each", { tab: "numerics" })));
  const words = `${counted(found.checked, "value")} with a verdict${left ? `, ${count(left)} without` : ""}`;
  if (!found.wrong) {
    const whole = store.data.overview.tiles?.find((tile) => tile.name === "correct")?.state === "good";
    const undecided = capitalised(store.data.overview.undecided_sentence ?? "");
    const yes = undecided ? "No verdict: the results differ" : left || !whole ? "Yes, as far as checked" : "Yes, within tolerance";
    return card("right", title, el("p.ol-big", {}, yes), undecided ? el("p", {}, `${undecided}.`) : null, el("p", {}, `${words}. `, go(store, "See each", { tab: "numerics" })));
  }
  const at = found.first === null ? null : store.identity.idOf("numerics", found.first);
  const where = at ? go(store, store.identity.label(at), { selected: at, tab: "numerics" }) : null;
  return card("right", title, el("p.ol-big", {}, `No: ${counted(found.wrong, "value")} out of tolerance`), el("p", {}, `${words}. `, where ? "First difference: " : null, where));
}

/** Partitions that no check touched: a backward, a graph that the checked call did not take. */
function unchecked(store) {
  const sections = sectionsOf(store).filter(({ cells }) => cells.every((cell) => cell.state === "unchecked"));
  return sections.reduce((sum, { cells }) => sum + cells.length, 0);
}

/** As the panel counts: a value that is compared as computed and as returned is one. */
function judged(store) {
  const cells = sectionsOf(store).flatMap((section) => section.cells);
  const wrong = cells.filter((cell) => cell.state === "wrong");
  const checked = cells.filter((cell) => cell.state !== "unchecked").length;
  return { checked, wrong: wrong.length, first: (cells.find((cell) => cell.first) ?? wrong[0])?.rows[0] ?? null };
}

const SHORT = 110; // of what follows from an action, which the list of actions has whole

function first(store) {
  const looks = store.data.overview.looks;
  const items = looks.map((look) => el("li", {}, look.id && store.identity.has(look.id) ? go(store, el("span", {}, ...prose(look.sentence)), { selected: look.id }) : el("span", {}, ...prose(look.sentence)), ...consequences({ consequences: look.consequences?.slice(0, 1).map((sentence) => clipped(sentence, SHORT)) })));
  const more = store.data.overview.actions?.length ? el("p", {}, go(store, allActions(store.data), { tab: "actions" })) : null;
  const notes = store.data.table("findings").rows;
  const nothing = notes ? el("p", {}, "Nothing stands out; ", go(store, counted(notes, "note"), { tab: "findings" }), " in Findings.") : el("p", {}, "Nothing stands out.");
  return card("first", "What should I do first?", looks.length ? el("ol", {}, ...items) : nothing, unmeasured(store.data), more);
}

/** What would show more, where it was not asked for yet. */
function unmeasured(data) {
  if (isDryRun(data) || !data.table("sessions").rows) return null;
  const calls = ["ledger", "kernels", "numerics"].filter((name) => !data.table(name).rows).map((name) => hint(data, HELP[name].wants[0])).filter(Boolean);
  return calls.length ? el("p.ol-soft", {}, "To see more: ", ...calls.flatMap((call, at) => [at ? ", " : "", el("code", {}, call)])) : null;
}
