// How long the calls of one session take: a histogram with p50, p90 and p99.
import { el } from "./dom.js";
import { counted, time } from "./format.js";

const BINS = 40;
const PERCENTILES = [50, 90, 99];

/**
 * @param {import("./data.js").Data} data
 * @param {import("./calls.js").Calls} calls
 * @param {import("./calls.js").Lane} lane Of a session, or of a graph of another backend.
 * @returns {{bins: number[], at: (ns: number) => number, marks: [number, number][], kept: number, all: number, shortest: number, longest: number}}
 *   Calls per bin, where a duration lies from 0 to 1 on the logarithmic axis, and percentiles: those of the table `sessions`, over all calls,
 *   or of the calls that were kept where there is no such row.
 */
export function callTimes(data, calls, lane) {
  const sorted = Float64Array.from(lane.rows, (row) => calls.total[row]).sort();
  const sessions = data.table("sessions");
  const [row] = data.index("sessions", "session_id").get(lane.id.slice(lane.id.indexOf(":") + 1)) ?? [];
  const kept = (percent) => sorted[Math.max(0, Math.ceil((percent / 100) * sorted.length) - 1)];
  const marks = PERCENTILES.map((percent) => [percent, (row === undefined ? null : sessions.get(row, `p${percent}_ns`)) ?? kept(percent)]);
  const [shortest, longest] = [Math.max(1, Math.min(sorted[0], marks[0][1])), Math.max(sorted.at(-1), marks.at(-1)[1])];
  const span = Math.log(longest / shortest) || 1;
  const at = (ns) => Math.max(0, Math.min(1, Math.log(Math.max(ns, 1) / shortest) / span));
  const bins = new Array(BINS).fill(0);
  for (const ns of sorted) bins[Math.min(BINS - 1, Math.floor(at(ns) * BINS))] += 1;
  const all = Math.max(sorted.length, (row === undefined ? null : sessions.get(row, "calls")) ?? 0);
  return { bins, at, marks, kept: sorted.length, all, shortest, longest };
}

/**
 * @param {import("./data.js").Data} data
 * @param {import("./calls.js").Calls} calls
 * @param {import("./calls.js").Lane} lane
 * @returns {HTMLElement}
 */
export function callTimesFigure(data, calls, lane) {
  const found = callTimes(data, calls, lane);
  const most = Math.max(...found.bins);
  const name = lane.id.slice(lane.id.indexOf(":") + 1);
  const bars = found.bins.map((number) => el("span", { style: `height:${number ? Math.max(3, (100 * number) / most) : 0}%` }));
  const marks = found.marks.map(([percent, ns]) => {
    const left = (100 * found.at(ns)).toFixed(2);
    return el(`i.ol-call-mark.ol-call-p${percent}${left > 70 ? ".ol-call-left" : ""}`, { style: `left:${left}%` }, el("b", {}, `p${percent} ${time(ns)}`));
  });
  const words = `${counted(found.all, "call")} of ${name}: ${found.marks.map(([percent, ns]) => `p${percent} ${time(ns)}`).join(", ")}`;
  const some = found.kept < found.all ? ` Bars show the latest ${counted(found.kept, "call")}, percentiles all.` : "";
  const caption = el("figcaption", {}, `${words}.${some}`);
  const drawn = el("div.ol-call-bars", { role: "img", "aria-label": words }, ...bars, ...marks);
  const axis = el("div.ol-call-axis.ol-soft", {}, el("span", {}, time(found.shortest)), el("span", {}, "logarithmic"), el("span", {}, time(found.longest)));
  return el("figure.ol-call-times", { "data-session": name }, caption, drawn, axis);
}
