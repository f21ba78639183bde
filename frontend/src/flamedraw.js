// The flame graph on a canvas: only what is in view, and of frames thinner than a pixel one for all that share it.
import { fitted, hatching } from "./canvas.js";

export const ROW = 24;
export const COLOURS = ["ink", "soft", "back", "line", "link", "flame-call", "flame-graph", "flame-module", "flame-ort", "flame-torch", "flame-torch-line", "flame-kernel", "flame-foreign", "flame-bind", "flame-output", "flame-residual", "flame-guards", "flame-between", "flame-break", "flame-phase", "flame-ink"];

const THIN = 0.4; // pixels below which a frame and all in it share one with their neighbours
const FILLS = { session: "flame-ort" };

/**
 * @param {HTMLCanvasElement} canvas
 * @param {import("./flame.js").Flame} flame
 * @param {{laid: object, from: number, to: number, current: number, linked: Set<number>, found: Set<number>|null, focused: boolean, metric: string, format: (value: number) => string}} view
 * @param {Record<string, string>} colours
 * @returns {number} Frames that were drawn.
 */
export function drawFlame(canvas, flame, view, colours) {
  const { context, width } = fitted(canvas);
  const { laid, from, to } = view;
  const scale = width / (to - from);
  const last = new Float64Array(laid.most + 2).fill(-1); // where each row is drawn up to
  const hatch = hatching(context, colours["flame-torch-line"], 6);
  const marked = [];
  let drawn = 0;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (let frame = 0; frame < flame.count; ) {
    const [left, right] = [(laid.from[frame] - from) * scale, (laid.to[frame] - from) * scale];
    if (right <= 0 || left >= width || right - left <= 0) {
      frame = flame.end[frame];
      continue;
    }
    const row = flame.depth[frame];
    const thin = right - left < THIN;
    if (!thin || right - last[row] >= 0.5) {
      drawFrame(context, flame, frame, { left: Math.max(0, left), right: Math.min(width, right), top: row * ROW, thin }, view, colours, hatch);
      last[row] = right;
      drawn++;
    }
    if (view.linked.has(frame) || frame === view.current) marked.push([frame, Math.max(1, left), Math.min(width - 1, Math.max(right, left + 2)), row * ROW]);
    frame = thin ? flame.end[frame] : frame + 1;
  }
  for (const [frame, left, right, top] of marked) mark(context, frame, left, right, top, view, colours);
  return drawn;
}

function drawFrame(context, flame, frame, { left, right, top, thin }, view, colours, hatch) {
  const kind = flame.kind[frame];
  const size = Math.max(right - left, 0.5);
  const dim = view.found !== null && !view.found.has(frame);
  context.globalAlpha = dim ? 0.28 : 1;
  context.fillStyle = colours[FILLS[kind] ?? `flame-${kind}`];
  context.fillRect(left, top, size, ROW - 1);
  if (kind === "torch" && !thin) {
    context.fillStyle = hatch;
    context.fillRect(left, top, size, ROW - 1);
  }
  if (!thin && size > 3) {
    context.fillStyle = colours.back;
    context.fillRect(right - 1, top, 1, ROW - 1);
  }
  if (size > 18) label(context, flame, frame, left, size, top, view, colours);
  context.globalAlpha = 1;
}

/** The name, and the value behind it where there is room for both. */
function label(context, flame, frame, left, size, top, view, colours) {
  const name = flame.name(frame, view.metric);
  const value = view.format(view.laid.value[frame]);
  const both = `${name}  ${value}`;
  const room = size - 8;
  const text = wide(context, both) <= room ? both : cut(context, name, room);
  if (!text) return;
  if (flame.kind[frame] === "torch") {
    context.fillStyle = colours["flame-torch"]; // words stand on plain ground
    context.fillRect(left + 2, top + 3, Math.min(room + 4, wide(context, text) + 4), ROW - 7);
  }
  context.fillStyle = colours["flame-ink"];
  context.fillText(text, left + 4, top + ROW / 2);
}

const wide = (context, text) => context.measureText(text).width;

function cut(context, text, room) {
  if (wide(context, text) <= room) return text;
  const kept = Math.floor((text.length * room) / wide(context, text)) - 1;
  if (kept < 3) return text.startsWith("✂") && room > 8 ? "✂" : "";
  return `${text.slice(0, kept)}…`;
}

function mark(context, frame, left, right, top, view, colours) {
  context.strokeStyle = colours.ink;
  context.lineWidth = frame === view.current ? 2.5 : 1.5;
  context.setLineDash(frame === view.current && view.focused ? [4, 2] : []);
  context.strokeRect(left, top + 1, Math.max(1, right - left - 1), ROW - 3);
  context.setLineDash([]);
}
