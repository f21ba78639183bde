// The user's source with time, nodes and callers. Where functions were not kept, only lines with operators are known, and gaps are marked.
import { heatBar, STATES, stateKey } from "./bars.js";
import { button, el, link, roving, together } from "./dom.js";
import { clipped, count, counted, place, time, visible } from "./format.js";
import { emptyState, helpLine, hint } from "./help.js";
import { highlighted } from "./highlight.js";
import { sourceFiles } from "./lines.js";

const SIGNS = { fallback: ["⊘", "stays in PyTorch"], break: ["✂", "graph break"], recompile: ["↻", "recompile"], finding: ["⚑", "finding"] };
const MAX_MARKS = 6;
const MAX_CALLERS = 4;
const MAX_PLAIN = 60;
const CONTEXT = 15;

/**
 * @param {HTMLElement} root
 * @param {import("./store.js").Store} store
 * @returns {() => void}
 */
export function mountSource(root, store) {
  root.append(helpLine("source"));
  const files = sourceFiles(store);
  if (!files.length) {
    root.append(emptyState("source", store.data));
    return () => {};
  }
  const names = el("div.ol-files", { role: "group", "aria-label": "Files" });
  const listing = el("div.ol-listing", { tabindex: "-1" });
  const find = el("input", { type: "search", "data-find": true, placeholder: "Find a line  /", "aria-label": "Find a line of source; Enter goes to the next" });
  root.append(el("div.ol-tools", {}, find), el("div.ol-source", {}, names, listing));
  const firstLine = roving(listing, ".ol-link");
  let shown = null;

  const open = (file) => {
    shown = file;
    for (const tab of names.querySelectorAll("button")) tab.setAttribute("aria-pressed", String(tab.dataset.file === file.file));
    if (!file.own && library) library.open = true;
    listing.replaceChildren(...listingOf(store, file));
    listing.scrollTop = 0;
    firstLine();
    mark();
  };
  const buttons = (own) => files.filter((file) => file.own === own).map((file) => fileButton(file, () => open(file)));
  const installed = buttons(false);
  // Libraries lie folded beneath the user's own files; where there are none of these, they are all there is.
  const library = installed.length && installed.length < files.length ? el("details.ol-library", {}, el("summary", {}, counted(installed.length, "library file")), ...installed) : null;
  names.append(...buttons(true), ...(library ? [library] : installed));
  roving(names, "button");
  find.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    const next = nextLine(files, shown, store.get("selected"), find.value, event.shiftKey ? -1 : 1);
    if (next) store.set({ selected: next });
  });

  /** The lines of the selection are marked; another file is opened when none of them is in this one. */
  function mark() {
    const chosen = new Set((store.get("chain")?.lines ?? []).map((found) => found.id));
    let first = null;
    for (const row of listing.querySelectorAll("[data-line]")) {
      const on = chosen.has(row.dataset.line);
      row.setAttribute("aria-current", String(on));
      if (on) first ??= row;
    }
    return first;
  }

  function follow() {
    const lines = new Set((store.get("chain")?.lines ?? []).map((found) => found.id));
    const holds = (file) => file.lines.some((line) => lines.has(`line:${file.file}:${line.line}`));
    if (lines.size && !holds(shown)) {
      const other = files.find(holds);
      if (other) open(other);
    }
    mark()?.scrollIntoView({ block: "nearest" });
  }

  open(files[0]);
  follow();
  return together([store.subscribe(["chain"], follow)]);
}

/** @returns {string|null} Id of the next line that holds some words, after the selected one, in all files from the shown one on. */
export function nextLine(files, shown, selected, text, step) {
  const wanted = text.toLowerCase().trim();
  const lines = files.flatMap((file) => file.lines.map((line) => ({ id: `line:${file.file}:${line.line}`, file, words: `${line.line} ${line.source ?? ""}` })));
  const found = lines.filter(({ words }) => wanted && words.toLowerCase().includes(wanted));
  if (!found.length) return null;
  const at = found.findIndex(({ id }) => id === selected);
  const from = at < 0 ? Math.max(0, found.findIndex(({ file }) => file === shown)) - (step > 0 ? 1 : 0) : at;
  return found[(from + step + found.length) % found.length].id;
}

function fileButton(file, open) {
  const parts = place(file.file, null).split("/");
  const tab = button(parts.at(-1), open, { "data-file": file.file, title: visible(file.file) });
  const folder = parts.length > 1 ? `${parts[0]}/ · ` : "";
  tab.append(el("span.ol-soft", {}, `${folder}${counted(file.nodes, "node")}${file.ns ? `, ${time(file.ns)}` : ""}${file.own ? "" : ", installed"}`));
  return tab;
}

function listingOf(store, file) {
  const most = Math.max(...file.lines.map((line) => line.ortNs + line.eagerNs), 1);
  const timed = file.lines.some((line) => line.ortNs > 0);
  const rows = [];
  const whole = store.data.sources.get(file.file) ?? null;
  let before = whole ? 0 : null;
  for (const line of file.lines) {
    if (before !== null && line.line > before + 1) rows.push(...(whole ? plainRows(whole, before + 1, line.line - 1) : [gap(line.line - before - 1)]));
    rows.push(lineRow(store, file, line, most, whole), ...line.marks.slice(0, MAX_MARKS).map((mark) => markRow(store, mark)));
    if (line.marks.length > MAX_MARKS) rows.push(el("div.ol-line-mark.ol-soft", {}, `and ${count(line.marks.length - MAX_MARKS)} more, see Findings and Breaks`));
    before = line.line;
  }
  if (whole && whole.findLastIndex((text) => text !== null) >= before) rows.push(...plainRows(whole, before + 1, whole.findLastIndex((text) => text !== null) + 1));
  const note = timed ? null : el("p.ol-soft", {}, "Time in ONNX Runtime per line is not known: ", el("code", {}, hint(store.data, "profile")), " measures it.");
  const head = el("div.ol-line.ol-line-head", {}, el("span", {}, "line"), el("span", {}, ""), el("span", {}, `per ${store.data.overview.per}`), el("span", {}, "nodes"), el("span", {}, "source"));
  return [el("p", {}, el("code", {}, visible(file.file))), stateKey(file.lines), note, head, ...rows].filter(Boolean);
}

const gap = (lines) => el("div.ol-line-gap", {}, `⋯ ${counted(lines, "line")} without operators`);

/** Lines from one number to another that have no operators; of many, those in the middle unfold on demand. */
function plainRows(whole, from, to) {
  const plain = (first, last) => {
    const rows = [];
    for (let number = first; number <= last; number++) {
      let missing = number;
      while (missing <= last && (whole[missing - 1] ?? null) === null) missing++;
      if (missing > number) rows.push(gap(missing - number));
      number = missing;
      if (number <= last) rows.push(plainRow(number, whole[number - 1]));
    }
    return rows;
  };
  if (to - from + 1 <= MAX_PLAIN) return plain(from, to);
  const [head, tail] = [from + CONTEXT - 1, to - CONTEXT + 1];
  const more = button(`⋯ ${counted(tail - head - 1, "line")}`, () => fold.replaceWith(...plain(head + 1, tail - 1)), { "aria-label": `Show lines ${head + 1} to ${tail - 1}` });
  const fold = el("div.ol-line-gap", {}, more);
  return [...plain(from, head), fold, ...plain(tail, to)];
}

function plainRow(number, text) {
  const empty = () => el("span", {}, "");
  return el("div.ol-line.ol-line-plain", {}, el("span.ol-number.ol-soft", {}, String(number)), empty(), empty(), empty(), indented(el("span.ol-source-text", {}, ...highlighted(clipped(text, 500))), text));
}

/** What is wrapped goes on two columns behind the beginning of the line. */
function indented(element, text) {
  element.style.setProperty("--indent", `${/^\s*/.exec(text)[0].length + 2}ch`);
  return element;
}

function lineRow(store, file, line, most, whole) {
  const id = `line:${file.file}:${line.line}`;
  const ns = line.ortNs + line.eagerNs;
  const signs = [...new Set(line.marks.map((mark) => mark.kind))].filter((kind) => SIGNS[kind]);
  const margin = el("span.ol-margin", {}, ...signs.map((kind) => el(`span.ol-mark-${kind}`, { title: SIGNS[kind][1], role: "img", "aria-label": SIGNS[kind][1] }, SIGNS[kind][0])));
  const text = whole?.[line.line - 1] ?? line.source;
  const source = link(store, id, text === null ? `(source ${store.data.meta.redacted ? "left out" : "not recorded"})` : el("span", {}, ...highlighted(clipped(text, 500))));
  source.classList.add("ol-source-text");
  indented(source, source.textContent);
  if (!store.identity.has(id)) source.disabled = true;
  const state = line.state ? `.ol-state-${line.state}` : "";
  const number = el(`span.ol-number${state}${ns ? `.ol-hot-${line.eagerNs > line.ortNs ? "eager" : "ort"}` : ".ol-soft"}`, { title: STATES[line.state] ?? null }, String(line.line));
  if (ns) number.style.setProperty("--heat", `${Math.ceil((45 * ns) / most)}%`);
  return el("div.ol-line", { "data-line": id }, number, margin, timeCell(line, ns, most), nodesCell(line), source);
}

function timeCell(line, ns, most) {
  if (!ns) return el("span", {}, "");
  const words = [line.ortNs ? `${time(line.ortNs)} in ONNX Runtime` : null, line.eagerNs ? `${time(line.eagerNs)} in PyTorch` : null].filter(Boolean).join(", ");
  return el("span.ol-line-time", { title: words }, heatBar(ns / most, line.eagerNs > line.ortNs ? "eager" : "ort", words), ` ${time(ns)}`);
}

function nodesCell(line) {
  const parts = [line.inOrt ? `${count(line.inOrt)} ORT` : null, line.inEager ? `${count(line.inEager)} PyTorch` : null, line.outside ? `${count(line.outside)} outside` : null].filter(Boolean);
  return el("span.ol-soft", {}, parts.join(" + "));
}

function markRow(store, mark) {
  const [sign, meaning] = SIGNS[mark.kind];
  return el("div.ol-line-mark", {}, el(`span.ol-mark-${mark.kind}`, { title: meaning, "aria-hidden": "true" }, sign), el("div", {}, link(store, mark.id, clipped(mark.words, 220)), callers(mark.callers)));
}

/** How the program came there, the nearest caller first. */
function callers(frames) {
  if (!frames?.length) return null;
  const shown = frames.slice(0, MAX_CALLERS).map(({ file, line, function: name }) => `${name} (${place(file, line)})`);
  return el("div.ol-soft.ol-callers", {}, `called from ${visible(shown.join(" ← "))}${frames.length > MAX_CALLERS ? " ← …" : ""}`);
}
