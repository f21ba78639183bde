// What runs between two calls: operators in PyTorch, or a graph break.
import { clipped, counted, place, time } from "./format.js";
import { stretches } from "./partitions.js";

/**
 * @typedef {object} Gap
 * @property {string} words A sentence without its time.
 * @property {string} short For where there is little room; may be empty.
 * @property {string|null} id What it selects.
 */

const UNKNOWN = { words: "PyTorch and Python", short: "", id: null };

/**
 * @param {import("./store.js").Store} store
 * @returns {(before: number, after: number) => Gap} What lies between two rows of `runs`, the later one right after the other.
 */
export function createGaps({ data, identity }) {
  const all = stretches(data);
  const places = new Map(); // id of a partition or graph -> where it stands in the order of a call
  all.forEach(({ graph, segments }, stretch) => {
    places.set(`graph:${graph}`, { stretch, segment: 0 });
    segments.forEach(({ id }, segment) => places.set(id, { stretch, segment }));
  });
  const runs = data.table("runs");

  function placeOf(row) {
    const session = runs.get(row, "session_id");
    if (session === null) return places.get(`graph:${runs.get(row, "graph_id")}`);
    const found = identity.rowOf(`session:${session}`);
    return found ? places.get(`partition:${data.table("sessions").get(found.row, "partition_id")}`) : undefined;
  }

  return (before, after) => {
    const [from, to] = [placeOf(before), placeOf(after)];
    if (!from || !to) return UNKNOWN;
    const inTorch = (stretch, first, last) => all[stretch].segments.slice(first, last).filter((segment) => !segment.ort);
    if (to.stretch === from.stretch && to.segment > from.segment) return between(inTorch(from.stretch, from.segment + 1, to.segment));
    const tail = inTorch(from.stretch, from.segment + 1);
    if (to.stretch <= from.stretch) return { words: "Python between two calls of the model", short: "next call", id: tail[0]?.id ?? null };
    const row = all[to.stretch].breaks.at(-1); // the time is booked on the last of several
    const further = [...tail, ...inTorch(to.stretch, 0, to.segment)];
    if (row === undefined) return further.length ? between(further) : { ...UNKNOWN, words: "Python between two graphs", short: "Python" };
    return broken(row, further);
  };

  function between(segments) {
    if (!segments.length) return { words: "Python between two partitions of one graph", short: "Python", id: null };
    const names = segments.map((segment) => shortName(segment.label));
    const words = `PyTorch runs ${clipped(names.slice(0, 3).join(", "), 90)}${names.length > 3 ? ` and ${counted(names.length - 3, "more operator")}` : ""}`;
    return { words, short: names.length === 1 ? clipped(names[0], 18) : counted(names.length, "operator"), id: segments[0].id };
  }

  function broken(row, segments) {
    const breaks = data.table("breaks");
    const where = place(breaks.get(row, "file"), breaks.get(row, "line"));
    const also = segments.length ? `; ${between(segments).words}` : "";
    const cost = breaks.get(row, "cost_ns");
    const usual = cost === null ? "" : `; it costs ${time(cost)} per call`;
    return { words: `graph break at ${where}: ${clipped(breaks.get(row, "reason") ?? "no reason was recorded", 90)}${also}${usual}`, short: `✂ ${clipped(where, 24)}`, id: identity.idOf("breaks", row) };
  }
}

/** `aten.median.dim` as `median.dim`. */
const shortName = (target) => (target ?? "an operator").replace(/^\w+\./, "");

/**
 * The call of the model, or else of a graph or a session, whose length is nearest to the median, the newest such: all calls in a row may be
 * specks, and the very last one may be the odd one.
 * @param {import("./calls.js").Calls} calls
 * @returns {{from: number, to: number}|null} On the drawn axis; null where there was one call.
 */
export function typicalCalls({ lanes, start, total }) {
  const lane = lanes.find(({ kind }) => kind === "call") ?? lanes.find(({ kind }) => kind === "graph") ?? lanes.find(({ whole }) => whole);
  const spans = (lane?.rows ?? []).map((row) => (lane.slices ? lane.slices(row)[0] : { from: start[row], to: start[row] + total[row] }));
  if (spans.length < 2) return null;
  const length = ({ from, to }) => to - from;
  const usual = spans.map(length).sort((a, b) => a - b)[spans.length >> 1];
  const far = (span) => Math.abs(length(span) - usual);
  const found = spans.reduce((best, span) => (far(span) <= far(best) ? span : best));
  return { from: found.from - length(found) * 0.03, to: found.to + length(found) * 0.03 };
}
