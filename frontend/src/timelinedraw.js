// Draws the timeline: bars where a call is wide enough, and how busy each pixel is where it is not.
import { fitted, hatching } from "./canvas.js";
import { firstAfter } from "./calls.js";
import { clipped, time } from "./format.js";

export const LABEL = 118; // pixels left of the lanes
export const TOP = 20; // pixels above them
export const LANE = 24;

/** Colours of the style sheet that the drawing needs. */
export const COLOURS = ["back", "ink", "soft", "line", "raised", "link", "eager", "bind", "run", "output", "flame-break", "flame-call", "flame-graph", "flame-kernel", "flame-residual", "flame-ink"];

const PARTS = ["bind", "run", "output"];
const FILLS = { call: "flame-call", graph: "flame-graph", kernel: "flame-kernel", memory: "flame-residual" };
const DIM = 0.25; // opacity of what does not belong to the selection

/**
 * @param {HTMLCanvasElement} canvas
 * @param {import("./calls.js").Calls} calls
 * @param {{from: number, to: number, top: number, bottom: number, lane: number, row: number, between: [number, number]|null, slice: import("./nested.js").Slice|null, linked: Set<string>, dim: Set<number>|null, focused: boolean, gap: (before: number, after: number) => import("./gaps.js").Gap}} view
 *   What is in view on the drawn axis and of the lanes, the marked call, slice or the rows around the marked gap, ids that are outlined, the rows that are not dimmed, and what lies between two rows.
 * @param {Record<string, string>} colours
 */
export function drawTimeline(canvas, calls, view, colours) {
  const { context, width, height } = fitted(canvas);
  const scale = (width - LABEL) / (view.to - view.from || 1);
  const frame = { context, width, height, scale, view, calls, colours, hatch: hatching(context, colours.eager), x: (at) => LABEL + (at - view.from) * scale };
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  grid(frame);
  calls.lanes.forEach((lane, at) => {
    const top = TOP + at * LANE;
    if (top + LANE >= view.top && top <= view.bottom) drawLane(frame, lane, top); // the others are scrolled away
  });
  pauses(frame);
  mark(frame);
}

/** A step of 1, 2 or 5 that leaves room for its words. */
export function niceStep(span, room) {
  const least = (span / Math.max(room, 1)) * 90;
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}

/** The first line says when it is, the others how much later: the same digits on each would help nobody. */
function grid({ context, width, height, view, calls, colours, x }) {
  const step = niceStep(view.to - view.from, width - LABEL);
  context.strokeStyle = colours.line;
  context.fillStyle = colours.soft;
  context.textAlign = "left";
  const first = Math.ceil(view.from / step) * step;
  for (let at = first; at <= view.to; at += step) {
    context.beginPath();
    context.moveTo(Math.round(x(at)) + 0.5, TOP - 4);
    context.lineTo(Math.round(x(at)) + 0.5, height);
    context.stroke();
    const words = at === first ? time(calls.clock(at)) : `+${time(at - first)}`;
    if (x(at) + 3 + context.measureText(words).width <= width) context.fillText(words, x(at) + 3, TOP / 2); // half a number is another number
  }
}

function drawLane(frame, lane, top) {
  const { context, width, colours, hatch, calls, x } = frame;
  const high = LANE - 6;
  context.fillStyle = colours.ink;
  context.textAlign = "left";
  context.fillText(clipped(lane.label, 20), 4, top + LANE / 2, LABEL - 8);
  if (lane.whole) {
    const left = Math.max(LABEL, x(calls.start[lane.rows[0]]));
    context.fillStyle = hatch;
    context.fillRect(left, top + 3, Math.max(0, Math.min(width, x(calls.end)) - left), high);
  }
  context.save();
  context.beginPath();
  context.rect(LABEL, top, width - LABEL, LANE);
  context.clip();
  if (lane.slices) drawSlices(frame, lane, top + 3, high);
  else drawCalls(frame, lane, top + 3, high);
  if (lane.whole) gapWords(frame, lane, top);
  context.restore();
}

/** Calls of at least two pixels as bars; the time of shorter ones is summed up per pixel. */
function drawCalls(frame, lane, top, high) {
  const { context, width, view, calls, scale, x } = frame;
  const { start, total, bind, output } = calls;
  const { rows } = lane;
  const first = Math.max(0, firstAfter(rows, view.from, (index) => start[rows[index]]) - 1);
  const lit = busyPixels(width);
  const dimmed = view.dim === null ? lit : busyPixels(width);
  const shortest = 2 / scale;
  for (let at = first; at < rows.length && start[rows[at]] <= view.to; at++) {
    const row = rows[at];
    const on = view.dim === null || view.dim.has(row);
    if (total[row] < shortest) {
      const busy = on ? lit : dimmed;
      const pixel = Math.floor(x(start[row]));
      if (pixel < 0 || pixel > width) continue;
      busy.bind[pixel] += bind[row] * scale;
      busy.output[pixel] += output[row] * scale;
      busy.run[pixel] += (total[row] - bind[row] - output[row]) * scale;
    } else {
      context.globalAlpha = on ? 1 : DIM;
      bar(frame, row, x(start[row]), top, high);
    }
  }
  if (dimmed !== lit) drawBusy(frame, dimmed, top, high, DIM);
  drawBusy(frame, lit, top, high, 1);
}

/** Slices of at least two pixels one by one; of thinner ones, one per pixel. */
function drawSlices(frame, lane, top, high) {
  const { context, view, calls, scale, x, colours } = frame;
  let drawn = -1; // pixel that the lane is drawn up to
  for (let at = Math.max(0, firstAfter(lane.rows, view.from, (index) => calls.start[lane.rows[index]]) - 1); at < lane.rows.length; at++) {
    const row = lane.rows[at];
    if (calls.start[row] > view.to) break;
    const thin = lane.kind !== "graph" && lane.kind !== "call" && calls.total[row] * scale < 2;
    if (thin && x(calls.start[row]) - drawn < 0.5) continue;
    for (const slice of thin && lane.kind === "kernel" ? [runOf(calls, row)] : lane.slices(row)) {
      const [left, right] = [x(slice.from), x(slice.to)];
      if (right - drawn < 0.5) continue;
      context.globalAlpha = view.dim === null || slice.rows.some((own) => view.dim.has(own)) ? 1 : DIM;
      context.fillStyle = colours[FILLS[lane.kind]];
      const tall = Math.max(2, high * slice.height);
      context.fillRect(left, top + high - tall, Math.max(0.5, right - left), tall);
      if (right - left > 3) sliceWords(frame, slice, left, right, top, high, tall);
      drawn = right;
    }
  }
  context.globalAlpha = 1;
}

/** All kernels of a call that is too short to tell them apart: hundreds per pixel would be made for nothing. */
function runOf({ start, bind, run }, row) {
  const from = start[row] + bind[row];
  return { from, to: from + run[row], height: 1, rows: [row] };
}

function sliceWords({ context, view, colours }, slice, left, right, top, high, tall) {
  context.strokeStyle = view.linked.has(slice.id) ? colours.ink : colours.back;
  context.strokeRect(left + 0.5, top + high - tall + 0.5, right - left - 1, tall - 1);
  const from = Math.max(left, LABEL);
  if (right - from < context.measureText(slice.label).width + 8) return;
  context.textAlign = "left";
  context.fillStyle = tall < high ? colours.ink : colours["flame-ink"];
  context.fillText(slice.label, from + 4, top + high / 2);
}

const busyPixels = (width) => ({ bind: new Float32Array(width + 1), run: new Float32Array(width + 1), output: new Float32Array(width + 1) });

/** A call of another backend is not split: all of it is the run. */
function partOf(calls, part, row) {
  return part === "run" ? calls.total[row] - calls.bind[row] - calls.output[row] : calls[part][row];
}

function bar({ context, colours, calls, scale }, row, left, top, high) {
  let at = left;
  for (const part of PARTS) {
    const wide = partOf(calls, part, row) * scale;
    context.fillStyle = colours[part];
    // Shown by height too: bars before and after the run are lower.
    if (part === "run") context.fillRect(at, top, wide, high);
    else context.fillRect(at, top + high / 4, wide, (high * 3) / 4);
    at += wide;
  }
  if (at - left > 4) {
    context.strokeStyle = colours.back;
    context.strokeRect(left + 0.5, top + 0.5, at - left - 1, high - 1);
  }
}

function drawBusy({ context, colours }, busy, top, high, alpha) {
  context.globalAlpha = alpha;
  for (let pixel = LABEL; pixel < busy.run.length; pixel++) {
    let at = top + high;
    for (const part of ["run", "bind", "output"]) {
      const tall = Math.min(1, busy[part][pixel]) * high;
      if (tall <= 0) continue;
      at = Math.max(top, at - Math.max(tall, 0.5));
      context.fillStyle = colours[part];
      context.fillRect(pixel, at, 1, Math.max(tall, 0.5));
    }
  }
  context.globalAlpha = 1;
}

/** Gaps of a known cause have its colour; those that are wide enough say how long they are, and what runs there. */
function gapWords({ context, view, calls, scale, colours, x }, lane, top) {
  const { start, total } = calls;
  const first = Math.max(0, firstAfter(lane.rows, view.from, (index) => start[lane.rows[index]]) - 1);
  context.textAlign = "center";
  for (let at = first; at + 1 < lane.rows.length && start[lane.rows[at]] <= view.to; at++) {
    const end = start[lane.rows[at]] + total[lane.rows[at]];
    const gap = start[lane.rows[at + 1]] - end;
    if (gap * scale < 3 || calls.pauses.some((pause) => Math.abs(pause.at - end) < 1)) continue;
    const { short, id } = view.gap(lane.rows[at], lane.rows[at + 1]);
    if (id) named(context, id.startsWith("break:") ? colours["flame-break"] : colours.eager, x(end), gap * scale, top + 3);
    if (gap * scale < 56) continue;
    const words = short ? `${short} ${time(gap)}` : time(gap);
    const fits = context.measureText(words).width + 12 < gap * scale;
    chip(context, colours, fits ? words : time(gap), x(end + gap / 2), top + LANE / 2);
  }
}

/** A graph break or operators in PyTorch: a slice of its own. */
function named(context, colour, left, wide, top) {
  context.globalAlpha = 0.35;
  context.fillStyle = colour;
  context.fillRect(left, top, wide, LANE - 6);
  context.globalAlpha = 1;
  context.strokeStyle = colour;
  context.strokeRect(left + 0.5, top + 0.5, wide - 1, LANE - 7);
}

function chip(context, colours, text, x, y) {
  const wide = context.measureText(text).width + 6;
  context.fillStyle = colours.back;
  context.fillRect(x - wide / 2, y - 7, wide, 14);
  context.fillStyle = colours.soft;
  context.fillText(text, x, y);
}

/** A pause that was shortened is a white band with its true length. */
function pauses({ context, height, view, calls, colours, scale, x }) {
  context.textAlign = "center";
  for (const { at, width, ns } of calls.pauses) {
    if (at > view.to || at + width < view.from || width * scale < 3) continue;
    const left = Math.max(LABEL, x(at));
    context.fillStyle = colours.raised;
    context.fillRect(left, TOP, Math.max(0, x(at + width) - left), height - TOP);
    if (width * scale > 44) chip(context, colours, `⋯ ${time(ns)}`, x(at + width / 2), TOP + LANE / 2);
  }
}

function mark({ context, width, calls, view, colours, scale, x }) {
  const lane = calls.lanes[view.lane];
  if (!lane) return;
  const top = TOP + view.lane * LANE;
  if (view.focused) {
    context.strokeStyle = colours.link;
    context.strokeRect(0.5, top + 0.5, width - 1, LANE - 1);
  }
  if (view.slice) {
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    context.strokeRect(x(view.slice.from) - 1, top + 2, Math.max(3, (view.slice.to - view.slice.from) * scale) + 2, LANE - 4);
    context.lineWidth = 1;
    return;
  }
  if (view.row < 0 && !view.between) return;
  const [before, after] = view.between ?? [];
  const from = view.between ? calls.start[before] + calls.total[before] : calls.start[view.row];
  const left = x(from);
  const wide = Math.max(3, (view.between ? calls.start[after] - from : calls.total[view.row]) * scale);
  context.strokeStyle = colours.ink;
  context.lineWidth = 2;
  for (let at = 0; at < calls.lanes.length; at++) {
    if (calls.lanes[at].whole || (calls.lanes[at] === lane && !view.between)) context.strokeRect(left - 1, TOP + at * LANE + 2, wide + 2, LANE - 4);
  }
  context.lineWidth = 1;
}
