// Bars that say what they show: each part has a name and a value in words beside its colour.
import { el } from "./dom.js";

/**
 * @typedef {{name: string, value: number, kind: string, title?: string}} Part `kind` names the colour: ort, eager, bind,
 *   run, output, guards, residual, other.
 */

/**
 * A bar cut into parts, with its legend.
 * @param {Part[]} parts
 * @param {(value: number) => string} format
 * @returns {HTMLElement}
 */
export function stackedBar(parts, format) {
  const shown = parts.filter((part) => part.value > 0);
  const total = shown.reduce((sum, part) => sum + part.value, 0);
  const words = (part) => `${part.name} ${format(part.value)} (${Math.round((part.value / total) * 100)} %)`;
  const bar = el("div.ol-bar", { role: "img", "aria-label": shown.map(words).join(", ") });
  for (const part of shown) bar.append(sized(el(`span.ol-fill-${part.kind}`, { title: part.title ?? words(part) }), part.value / total));
  const legend = el("ul.ol-key", {}, ...shown.map((part) => el("li", { title: part.title }, el(`span.ol-swatch.ol-fill-${part.kind}`), `${part.name} `, el("b", {}, format(part.value)))));
  return el("div", {}, bar, legend);
}

/** @returns {HTMLElement} A bar that is filled up to a share; full only when all of it is. */
export function shareBar(share, label) {
  return el("div.ol-bar", { role: "img", "aria-label": label }, sized(el("span.ol-fill-ort"), Math.floor(share * 1000) / 1000));
}

/** Style rules of the page may forbid style attributes; the property is always allowed. */
function sized(element, share) {
  element.style.width = `${share * 100}%`;
  return element;
}

/** @type {Record<string, string>} Where the operators of a line run, and how the legend says it. */
export const STATES = { ort: "ONNX Runtime", torch: "PyTorch, in a graph", between: "PyTorch, between graphs", uncompiled: "PyTorch, not compiled" };

/** @returns {HTMLElement} The legend of the states of some lines. */
export function stateKey(lines) {
  const known = Object.keys(STATES).filter((state) => lines.some((line) => line.state === state));
  return el("p.ol-code-legend", {}, ...known.map((state) => el(`span.ol-state-${state}`, {}, STATES[state])));
}

/** @returns {HTMLElement|null} How many values are in each of some equal intervals; null where nobody looked. */
export function histogram(counts, words) {
  const most = Math.max(...counts);
  const bars = counts.map(() => el("span"));
  bars.forEach((bar, at) => (bar.style.height = `${Math.ceil((100 * counts[at]) / most)}%`));
  return counts.length ? el("span.ol-histogram", { role: "img", "aria-label": words, title: words }, ...bars) : null;
}

/** @returns {HTMLElement} A small bar in a list: how much of the most. */
export function heatBar(share, kind, title) {
  return el("span.ol-heat", { title }, sized(el(`span.ol-fill-${kind}`), Math.max(share, 0.01)));
}
