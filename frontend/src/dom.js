// Elements made in code: text is always text, so no name can become markup.
import { visible } from "./format.js";

/**
 * @param {string} tag Name, with classes behind dots, as `p.ol-help`.
 * @param {Record<string, any>} [about] Attributes; `on` holds listeners by event; a value of false or null leaves one out.
 * @param {...(Node|string|null|undefined|false)} children
 * @returns {HTMLElement}
 */
export function el(tag, about = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(about)) {
    if (key === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** @returns {HTMLButtonElement} */
export function button(label, onClick, about = {}) {
  return /** @type {HTMLButtonElement} */ (el("button", { type: "button", ...about, on: { click: onClick } }, label));
}

/**
 * Text with what stands between backticks as code.
 * @param {string} text
 * @returns {(string|HTMLElement)[]}
 */
export const prose = (text) => visible(text).split(/`([^`\n]+)`/).map((part, at) => (at % 2 ? el("code", {}, part) : part)).filter((part) => part !== "");

/**
 * A button that selects something.
 * @param {import("./store.js").Store} store
 * @param {string} id
 * @param {string|Node} [label] The name of what it selects by default.
 */
export function link(store, id, label) {
  return button(label ?? store.identity.label(id), () => store.set({ selected: id }), { class: "ol-link", "data-id": id });
}

/** @returns {HTMLElement} A definition list of the pairs that have a value. */
export function facts(pairs) {
  return el("dl.ol-facts", {}, ...terms(pairs).flat());
}

/** @returns {HTMLElement} The same, one after another; a name stays beside its value. */
export function inlineFacts(pairs) {
  return el("dl.ol-facts.ol-inline", {}, ...terms(pairs).map((pair) => el("div", {}, ...pair)));
}

function terms(pairs) {
  const rows = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
}

/** @returns {() => void} One cleanup out of several. */
export const together = (cleanups) => () => cleanups.forEach((cleanup) => cleanup());

/** Keys and wheel turns that a panel uses are not for the notebook around it. */
export function keepEvents(element, events = ["keydown", "keyup", "keypress", "wheel"]) {
  for (const event of events) element.addEventListener(event, (happened) => happened.stopPropagation(), { passive: true });
}

/**
 * Calls `draw` when an element has a size, or another one.
 * @returns {() => void} Stops it.
 */
export function onResize(element, draw) {
  const observer = new ResizeObserver(() => element.isConnected && element.clientWidth > 0 && draw());
  observer.observe(element);
  return () => observer.disconnect();
}

/** Does what a key is for, unless another key is held with it. @returns {boolean} Whether it is for something. */
export function acted(event, acts) {
  if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(acts, event.key)) return false;
  event.preventDefault();
  acts[event.key]();
  return true;
}

/** One call per frame, however often it is asked for. */
export function perFrame(draw) {
  let waiting = 0;
  const ask = () => {
    waiting ||= requestAnimationFrame(() => {
      waiting = 0;
      draw();
    });
  };
  ask.cancel = () => cancelAnimationFrame(waiting);
  return ask;
}

/**
 * Of many things of a kind only one is a stop of the Tab key; the arrows, Home and End go among them.
 * @param {HTMLElement} container Stays, while what is inside may come and go.
 * @param {string} selector
 * @returns {() => void} To be called when the things are other ones.
 */
export function roving(container, selector) {
  const items = () => [...container.querySelectorAll(selector)].filter((item) => !item.disabled && !item.closest("[hidden], details:not([open])"));
  const stopAt = (chosen) => items().forEach((item) => (item.tabIndex = item === chosen ? 0 : -1));
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (item) stopAt(item);
  });
  container.addEventListener("keydown", (event) => {
    if (!event.target.matches(selector) || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = items();
    const at = all.indexOf(event.target);
    const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    all[Math.max(0, Math.min(all.length - 1, to))].focus();
  });
  const refresh = () => stopAt(items()[0]);
  refresh();
  return refresh;
}
