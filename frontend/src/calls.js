// The calls as the timeline needs them: in order, by lane, with long pauses shortened.
import { nestedLanes } from "./nested.js";

const MAX_LANES = 60;

/**
 * @typedef {object} Lane
 * @property {string} label
 * @property {string|null} id What its label selects.
 * @property {boolean} whole True for all calls of a thread: its gaps are PyTorch and Python.
 * @property {number[]} rows Rows of `runs`, in order of their start.
 * @property {import("./nested.js").Nested["kind"]} [kind] Of a lane of slices around the calls of a thread.
 * @property {import("./nested.js").Nested["slices"]} [slices]
 *
 * @typedef {object} Calls
 * @property {number} rows
 * @property {Float64Array} start Start on the drawn axis, where long pauses are shortened, from 0.
 * @property {ArrayLike<number>} total @property {ArrayLike<number>} bind @property {ArrayLike<number>} run @property {ArrayLike<number>} output
 * @property {number} end End of the drawn axis.
 * @property {{at: number, width: number, ns: number}[]} pauses
 * @property {Lane[]} lanes @property {number} lanesLeft Sessions without a lane.
 * @property {(at: number) => number} clock Time since the first call at a place on the drawn axis.
 */

/**
 * @param {import("./data.js").Data} data
 * @param {boolean} shorten Whether long pauses are.
 * @returns {Calls}
 */
export function callsOf(data, shorten) {
  const runs = data.table("runs");
  const [begun, total, bind, run, output] = ["start_ns", "total_ns", "bind_ns", "run_ns", "output_ns"].map((name) => runs.column(name));
  const { start, pauses, end } = axis(begun, total, shorten);
  const origin = runs.rows ? begun[0] : 0;
  const clock = (at) => {
    const row = Math.max(0, firstAfter(start, at) - 1);
    return runs.rows ? begun[row] - origin + Math.max(0, at - start[row]) : 0;
  };
  const nested = nestedLanes(data, { start, total, bind, run });
  return { rows: runs.rows, start, total, bind, run, output, end, pauses, clock, ...lanesOf(runs, total, laneName(data), madeAt(data), nested) };
}

/** Where each call is drawn: a notebook's calls lie minutes apart, and would be specks in an empty line. */
function axis(begun, total, shorten) {
  const count = begun.length;
  const start = new Float64Array(count);
  const gaps = new Float64Array(Math.max(0, count - 1));
  let end = count ? begun[0] + total[0] : 0;
  for (let row = 1; row < count; row++) {
    gaps[row - 1] = Math.max(0, begun[row] - end);
    end = Math.max(end, begun[row] + total[row]);
  }
  const limit = shorten ? longPause(gaps, total) : Infinity;
  const pauses = [];
  let removed = count ? begun[0] : 0;
  for (let row = 0; row < count; row++) {
    const gap = row ? gaps[row - 1] : 0;
    if (gap > limit) {
      pauses.push({ at: begun[row] - gap - removed, width: limit / 2, ns: gap });
      removed += gap - limit / 2;
    }
    start[row] = begun[row] - removed;
  }
  return { start, pauses, end: end - removed };
}

/** What no program does between two calls of one model run: twenty times the usual gap or call. */
function longPause(gaps, total) {
  return Math.max(20 * middle(gaps), 20 * middle(total), 100_000);
}

function middle(values) {
  if (!values.length) return 0;
  const sorted = Float64Array.from(values).sort();
  return sorted[sorted.length >> 1];
}

/** A session is known by its partition elsewhere. */
function laneName(data) {
  const sessions = data.table("sessions");
  return (id) => {
    const name = id.slice(id.indexOf(":") + 1);
    const [row] = data.index("sessions", "session_id").get(name) ?? [];
    const partition = row === undefined ? null : sessions.get(row, "partition_id");
    return partition ? `${name} (${partition})` : name;
  };
}

/** Sessions are made in the order in which a call of the model meets them. */
function madeAt(data) {
  const row = (table, id) => (data.index(table, table === "sessions" ? "session_id" : "graph_id").get(id.slice(id.indexOf(":") + 1)) ?? [0])[0];
  return ({ id }) => row(id.startsWith("session:") ? "sessions" : "graphs", id);
}

function lanesOf(runs, total, nameOf, made, nested) {
  const [sessions, graphs, threads] = ["session_id", "graph_id", "thread"].map((name) => runs.column(name));
  const byThread = new Map();
  const bySession = new Map();
  for (let row = 0; row < runs.rows; row++) {
    push(byThread, threads[row], row);
    push(bySession, sessions[row] === null ? `graph:${graphs[row]}` : `session:${sessions[row]}`, row);
  }
  const plain = (lane) => ({ ...lane, id: null, whole: false });
  const whole = [...byThread.values()].flatMap((rows, at) => {
    const label = byThread.size > 1 ? `thread ${at + 1}` : "all calls";
    return [...nested.above(rows).map(plain), { label, id: null, whole: true, rows }, ...nested.below(rows).map(plain)];
  });
  const cost = (rows) => rows.reduce((sum, row) => sum + total[row], 0);
  const ranked = [...bySession].map(([id, rows]) => ({ label: nameOf(id), id, whole: false, rows, cost: cost(rows) })).sort((a, b) => b.cost - a.cost);
  const room = Math.max(0, MAX_LANES - whole.length);
  const all = cost(runs.rows ? Array.from({ length: runs.rows }, (_, row) => row) : []);
  // The most expensive have lanes; a call of the model goes down them like stairs.
  const kept = ranked.slice(0, room).sort((a, b) => made(a) - made(b));
  for (const lane of kept) lane.label += ` ${all ? Math.round((100 * lane.cost) / all) : 0}%`;
  return { lanes: [...whole, ...kept], lanesLeft: Math.max(0, ranked.length - room) };
}

function push(map, key, value) {
  if (map.has(key)) map.get(key).push(value);
  else map.set(key, [value]);
}

/** @returns {number} How many of the ascending values are at most `limit`. */
export function firstAfter(values, limit, at = (index) => values[index]) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at(middle) <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** @returns {import("./nested.js").Slice|null} What of a lane of slices is drawn at a place. */
export function sliceAt(calls, lane, at, slack = 0) {
  const next = firstAfter(lane.rows, at + slack, (index) => calls.start[lane.rows[index]]);
  return next ? (lane.slices(lane.rows[next - 1]).find(({ from, to }) => from - slack <= at && at <= to + slack) ?? null) : null;
}

/** @returns {number} Row of the call of a lane that is drawn at a place; -1 for a gap. `slack` widens short calls. */
export function callAt(calls, lane, at, slack = 0) {
  const next = firstAfter(lane.rows, at + slack, (index) => calls.start[lane.rows[index]]);
  const row = lane.rows[next - 1];
  return row !== undefined && calls.start[row] + calls.total[row] + slack >= at ? row : -1;
}
