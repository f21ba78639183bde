// A table of any number of rows: only the rows in view are elements. Sorting and filtering work on the columns.
import { el, perFrame } from "./dom.js";

const ROW = 24; // pixels
const SPARE = 6; // rows drawn above and below the view
const SAMPLE = 60; // rows that decide how wide a column is
const CHAR = 7.2; // pixels of a digit
const MIN_WIDTH = 56;
const MAX_WIDTH = 340;

/**
 * @typedef {object} GridColumn
 * @property {string} name
 * @property {string} meaning
 * @property {boolean} number Set to the right; a filter may compare.
 * @property {(row: number) => any} value
 * @property {(row: number) => string} text
 *
 * @typedef {object} Grid
 * @property {HTMLElement} element
 * @property {(columns: GridColumn[], rows: number, sort?: string) => void} show Sorted by a column, when one is named.
 * @property {() => void} refresh Filters, sorts and draws again; for filters from outside.
 * @property {(row: number) => void} choose Marks a row and brings it into view.
 * @property {() => Uint32Array} order Rows that are shown, in their order.
 * @property {() => void} destroy
 */

/**
 * @param {{onChoose: (row: number) => void, onChange: () => void, keep: (row: number) => boolean, marked: (row: number) => boolean}}
 *   handlers `keep` filters rows beyond the filters of the columns; rows that are `marked` belong to what is chosen.
 * @returns {Grid}
 */
export function createGrid(handlers) {
  const state = { columns: [], widths: [], rows: 0, order: new Uint32Array(0), sort: null, filters: new Map(), active: 0, chosen: -1, pressed: false };
  const head = el("div.ol-grid-head", { role: "rowgroup" });
  const rows = el("div.ol-grid-rows", { role: "rowgroup" });
  const sizer = el("div.ol-grid-sizer", { role: "presentation" }, rows);
  const element = el("div.ol-grid", { role: "grid", tabindex: "0", "aria-label": "Rows" }, head, sizer);
  const draw = perFrame(() => state.pressed || drawRows(element, rows, state, handlers.marked));

  function refresh() {
    state.order = sorted(state, filtered(state, handlers.keep));
    state.active = Math.min(state.active, Math.max(0, state.order.length - 1));
    sizer.style.height = `${state.order.length * ROW}px`;
    element.setAttribute("aria-rowcount", String(state.order.length + 1));
    draw();
    handlers.onChange();
  }

  function show(columns, count, sort) {
    const by = columns.find((column) => column.name === sort);
    Object.assign(state, { columns, rows: count, sort: by ? { column: by, down: by.number } : null, active: 0, chosen: -1 });
    for (const name of state.filters.keys()) if (!columns.some((column) => column.name === name)) state.filters.delete(name);
    state.widths = columns.map((column) => widthOf(column, count));
    sizer.style.width = `${state.widths.reduce((sum, width) => sum + width, 0)}px`;
    head.replaceChildren(headRow(state, refresh), filterRow(state, refresh));
    element.scrollTop = 0;
    refresh();
  }

  function choose(row) {
    state.chosen = row;
    const at = state.order.indexOf(row);
    if (at >= 0) moveTo(at);
    else draw();
  }

  function moveTo(at) {
    state.active = Math.max(0, Math.min(state.order.length - 1, at));
    const top = state.active * ROW;
    const room = element.clientHeight - head.offsetHeight;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + ROW > element.scrollTop + room) element.scrollTop = top + ROW - room;
    draw();
  }

  element.addEventListener("scroll", draw, { passive: true });
  element.addEventListener("keydown", (event) => onKey(event, element, state, moveTo, handlers.onChoose));
  // A row that is drawn anew between press and release gets no click.
  rows.addEventListener("pointerdown", () => (state.pressed = true));
  const release = () => {
    if (state.pressed) draw();
    state.pressed = false;
  };
  for (const event of ["pointerup", "pointercancel"]) addEventListener(event, release, true);
  rows.addEventListener("click", (event) => {
    const at = Number(event.target.closest("[data-at]")?.dataset.at ?? NaN);
    if (Number.isNaN(at)) return;
    state.active = at;
    handlers.onChoose(state.order[at]);
    draw();
  });
  const observer = new ResizeObserver(draw);
  observer.observe(element);
  const destroy = () => {
    observer.disconnect();
    for (const event of ["pointerup", "pointercancel"]) removeEventListener(event, release, true);
    draw.cancel();
  };
  return { element, show, refresh, choose, order: () => state.order, destroy };
}

function widthOf(column, count) {
  let longest = column.name.length + 3;
  const step = Math.max(1, Math.floor(count / SAMPLE));
  for (let row = 0; row < count; row += step) longest = Math.max(longest, column.text(row).length);
  return Math.round(Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, longest * CHAR + 14)));
}

function headRow(state, refresh) {
  const row = el("div.ol-grid-row", { role: "row" });
  state.columns.forEach((column, at) => {
    const sign = state.sort?.column === column ? (state.sort.down ? " ▼" : " ▲") : "";
    const sort = () => {
      // The largest number is asked for first, the first word likewise; a third click gives the recorded order back.
      const first = { column, down: column.number };
      state.sort = state.sort?.column !== column ? first : state.sort.down === first.down ? { column, down: !first.down } : null;
      const again = headRow(state, refresh);
      row.replaceWith(again);
      again.children[at].firstChild.focus();
      refresh();
    };
    const label = el("button", { type: "button", title: column.meaning, on: { click: sort } }, column.name + sign);
    const order = state.sort?.column !== column ? "none" : state.sort.down ? "descending" : "ascending";
    row.append(sized(el(column.number ? "div.ol-number" : "div", { role: "columnheader", "aria-sort": order }, label), state.widths[at]));
  });
  return row;
}

function filterRow(state, refresh) {
  const row = el("div.ol-grid-row.ol-grid-filters", { role: "row" });
  state.columns.forEach((column, at) => {
    const input = el("input", { type: "text", "aria-label": `Filter ${column.name}`, placeholder: column.number ? ">0" : "filter", value: state.filters.get(column.name) ?? "" });
    input.addEventListener("input", () => {
      if (input.value) state.filters.set(column.name, input.value);
      else state.filters.delete(column.name);
      refresh();
    });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !input.value) return;
      event.preventDefault();
      input.value = "";
      input.dispatchEvent(new Event("input"));
    });
    row.append(sized(el("div", { role: "gridcell" }, input), state.widths[at]));
  });
  return row;
}

function sized(element, width) {
  element.style.width = `${width}px`;
  return element;
}

const COMPARISON = /^\s*(<=|>=|<|>|=)\s*(.+)$/;
const UNITS = { ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, s: 1e9, k: 1e3, m: 1e6, g: 1e9, kib: 1024, mib: 1024 ** 2, gib: 1024 ** 3, "%": 0.01 };

/**
 * @param {string} text What was typed: words to find, or a comparison such as `>1.5 ms`.
 * @param {GridColumn} column
 * @returns {(row: number) => boolean}
 */
export function testFrom(text, column) {
  const compared = column.number && COMPARISON.exec(text);
  const limit = compared && numberFrom(compared[2]);
  if (!compared || Number.isNaN(limit)) {
    const wanted = text.toLowerCase();
    return (row) => column.text(row).toLowerCase().includes(wanted);
  }
  const holds = { "<": (a) => a < limit, ">": (a) => a > limit, "<=": (a) => a <= limit, ">=": (a) => a >= limit, "=": (a) => a === limit }[compared[1]];
  return (row) => column.value(row) !== null && holds(column.value(row));
}

function numberFrom(text) {
  const [, digits, unit] = /^\s*(-?[\d.,]+(?:e[+-]?\d+)?)\s*(\S*)\s*$/i.exec(text) ?? [];
  return digits === undefined ? NaN : Number(digits.replaceAll(",", "")) * (unit ? (UNITS[unit.toLowerCase()] ?? NaN) : 1);
}

function filtered(state, keep) {
  const tests = state.columns.filter((column) => state.filters.has(column.name)).map((column) => testFrom(state.filters.get(column.name), column));
  const kept = new Uint32Array(state.rows);
  let count = 0;
  for (let row = 0; row < state.rows; row++) if (keep(row) && tests.every((test) => test(row))) kept[count++] = row;
  return kept.subarray(0, count);
}

function sorted(state, order) {
  if (!state.sort) return order;
  const { column, down } = state.sort;
  const keys = column.number ? numberKeys(order, column, state.rows, down) : textKeys(order, column, state.rows);
  const sign = down ? -1 : 1;
  return order.slice().sort((a, b) => sign * (keys[a] - keys[b]) || a - b);
}

/** Missing values and NaN last, in either direction. */
function numberKeys(order, column, rows, down) {
  const keys = new Float64Array(rows);
  const last = down ? -Number.MAX_VALUE : Number.MAX_VALUE;
  for (const row of order) {
    const value = column.value(row);
    // Infinity minus itself would be no order at all.
    keys[row] = value === null || Number.isNaN(value) ? last : Math.max(-1e300, Math.min(1e300, value));
  }
  return keys;
}

/** Places of the distinct texts in the alphabet: comparing texts row by row would take seconds. */
function textKeys(order, column, rows) {
  const texts = new Map();
  const keys = new Float64Array(rows);
  for (const row of order) {
    const text = column.text(row);
    if (!texts.has(text)) texts.set(text, texts.size);
    keys[row] = texts.get(text);
  }
  const distinct = [...texts.keys()].sort(new Intl.Collator("en", { numeric: true }).compare);
  const places = new Float64Array(distinct.length);
  distinct.forEach((text, place) => (places[texts.get(text)] = place));
  for (const row of order) keys[row] = places[keys[row]];
  return keys;
}

function drawRows(element, rows, state, marked) {
  const first = Math.max(0, Math.floor(element.scrollTop / ROW) - SPARE);
  const last = Math.min(state.order.length, Math.ceil((element.scrollTop + element.clientHeight) / ROW) + SPARE);
  rows.style.transform = `translateY(${first * ROW}px)`;
  rows.replaceChildren(...Array.from({ length: Math.max(0, last - first) }, (_, at) => drawnRow(state, first + at, marked)));
  const active = rows.querySelector("[data-active]");
  if (active) element.setAttribute("aria-activedescendant", active.id);
  else element.removeAttribute("aria-activedescendant");
}

let grids = 0;
const prefixes = new WeakMap();
function prefixOf(state) {
  if (!prefixes.has(state)) prefixes.set(state, `ortlens-grid-${++grids}`);
  return prefixes.get(state);
}

function drawnRow(state, at, marked) {
  const row = state.order[at];
  const cells = state.columns.map((column, place) => {
    const text = column.text(row);
    return sized(el(column.number ? "div.ol-number" : "div", { role: "gridcell", title: text.length > 12 ? text : null }, text), state.widths[place]);
  });
  const about = { role: "row", "data-at": at, id: `${prefixOf(state)}-${at}`, "aria-rowindex": at + 2, "aria-selected": String(row === state.chosen), "data-active": at === state.active, "aria-current": marked(row) ? "true" : null };
  return el("div.ol-grid-row", about, ...cells);
}

function onKey(event, element, state, moveTo, onChoose) {
  if (event.target !== element) return; // the filters keep their keys
  const page = Math.max(1, Math.floor(element.clientHeight / ROW) - 4);
  const to = { ArrowDown: state.active + 1, ArrowUp: state.active - 1, PageDown: state.active + page, PageUp: state.active - page, Home: 0, End: state.order.length - 1 }[event.key];
  if (to !== undefined) moveTo(to);
  else if (event.key === "ArrowRight" || event.key === "ArrowLeft") element.scrollLeft += event.key === "ArrowRight" ? 60 : -60;
  else if ((event.key === "Enter" || event.key === " ") && state.order.length) onChoose(state.order[state.active]);
  else return;
  event.preventDefault();
}
