// One box as SVG. Three levels of detail: everything; the title in larger letters; the bare shape.
import { svg, svgText } from "./svg.js";
import { clipped, isolated } from "./text.js";

export const FULL = 2;
export const TITLE = 1;
export const SHAPE = 0;

/**
 * @typedef {object} Paint What a box is drawn from.
 * @property {import("./labels.js").Labels} labels
 * @property {(item: import("./item.js").Item) => import("./colours.js").Look} look
 * @property {string} prefix Of ids in the page.
 */

/**
 * @param {import("./item.js").Item} item A closed group, an operation, or an opened group that is too small to look into.
 * @param {number} level
 * @param {Paint} paint
 * @param {{x: number, y: number}} at
 * @returns {SVGElement}
 */
export function boxElement(item, level, paint, at) {
  const look = paint.look(item);
  const group = svg("g", { class: classOf(item), transform: `translate(${at.x} ${at.y})`, style: styleOf(look) });
  if (item.kind === "fold") group.append(...stack(item));
  group.append(svg("rect", { class: "olg-body", width: item.w, height: item.h, rx: item.parts ? 7 : 4 }));
  if (item.torch && !item.ort) group.append(svg("rect", { class: "olg-hatched", fill: `url(#${paint.prefix}hatch)`, width: item.w, height: item.h, rx: item.parts ? 7 : 4 }));
  if (look.hue) group.append(svg("path", { class: "olg-edge", d: `M0 5q0-5 5-5h2v${item.h}h-2q-5 0-5-5z` }));
  if (item.ort && item.torch) group.append(shareBar(item, paint));
  else if (level === SHAPE && item.torch) group.append(svg("rect", { class: "olg-mark", width: item.w, height: item.h, rx: 4 }));
  if (look.bar !== null && level > SHAPE) group.append(svg("rect", { class: "olg-time", x: 8, y: item.h - 6, width: Math.max(1.5, (item.w - 16) * Math.min(1, look.bar)), height: 4 }));
  if (level === FULL) fullText(group, item, look, paint);
  else if (level === TITLE) titleText(group, item, paint);
  return group;
}

function classOf(item) {
  const side = item.torch ? (item.ort ? "olg-mixed" : "olg-torch") : item.ort ? "olg-ort" : "olg-neither";
  return `olg-box olg-${item.kind} ${item.parts ? "olg-group" : "olg-leaf"} ${side}`;
}

const styleOf = ({ hue, strength }) => (hue && hue !== "neutral" ? `--hue:${hue};--strength:${Math.round(strength * 100)}%` : `--strength:${Math.round(strength * 100)}%`);

/** Layers behind the first one. */
const stack = ({ w, h }) => [8, 4].map((by) => svg("rect", { class: "olg-body olg-behind", x: by, y: by, width: w, height: h, rx: 7 }));

/** How much of a group is in ONNX Runtime: filled, and hatched for what stays in PyTorch. */
function shareBar(item, paint) {
  const whole = item.w - 16;
  const share = item.torch / (item.ort + item.torch);
  const hatched = Math.min(whole - 4, Math.max(8, whole * share)); // few of many must still be seen
  const y = item.h - 12;
  return svg(
    "g",
    { class: "olg-share" },
    svg("rect", { class: "olg-share-ort", x: 8, y, width: whole - hatched, height: 7 }),
    svg("rect", { class: "olg-share-torch", x: 8 + whole - hatched, y, width: hatched, height: 7 }),
    svg("rect", { fill: `url(#${paint.prefix}hatch)`, x: 8 + whole - hatched, y, width: hatched, height: 7 }),
  );
}

function fullText(group, item, look, paint) {
  const { labels } = paint;
  const left = look.hue ? 14 : 10;
  const isGroup = item.parts !== null;
  const tag = isGroup && item.torch ? (item.ort ? `${item.torch} in PyTorch` : "all in PyTorch") : "";
  group.append(write(labels.title(item), left, isGroup ? 19 : 16, item.w - left - (isGroup ? 28 : 8), 12.5, "olg-title"));
  const tagRoom = look.tag ? Math.min(item.w * 0.62, look.tag.length * 6.4 + 8) : 0;
  const note = labels.note(item);
  const noteY = isGroup ? 35 : 31;
  const second = isGroup ? tag || look.tag : look.tag;
  const room = item.w - left - 8 - (second ? Math.min(item.w * 0.55, second.length * 6.2 + 6) : 0);
  if (note && room > 18) group.append(write(note, left, noteY, room, 11, "olg-note"));
  if (second) group.append(write(second, item.w - 8, noteY, Math.max(tagRoom, item.w * 0.55), 11, tag || look.tag === "PyTorch" ? "olg-tag olg-tag-torch" : "olg-tag"));
  const stub = labels.stub(item);
  if (stub) group.append(stubElement(stub, item, left, isGroup ? 48 : 45));
  if (isGroup) group.append(toggle(item.w - 22, 7, false));
}

function stubElement(stub, item, left, y) {
  const text = write(`⇢ ${stub.text}`, left, y, item.w - left - 6, 10, stub.row >= 0 ? "olg-stub olg-stub-link" : "olg-stub");
  if (stub.row >= 0) text.setAttribute("data-row", stub.row);
  return text;
}

/** @returns {SVGElement} The sign that opens or closes a group. */
export function toggle(x, y, open) {
  return svg(
    "g",
    { class: "olg-toggle", transform: `translate(${x} ${y})` },
    svg("rect", { width: 15, height: 15, rx: 3 }),
    svg("path", { d: open ? "M4 7.5h7" : "M4 7.5h7M7.5 4v7" }),
  );
}

function titleText(group, item, paint) {
  const size = item.parts ? 22 : 17;
  const middle = item.h / 2 + size * 0.35 - (item.ort && item.torch ? 4 : 0);
  group.append(write(paint.labels.title(item), 10, middle, item.w - 14, size, "olg-title"));
}

function write(text, x, y, room, size, kind) {
  return svgText(isolated(clipped(text, room, size)), x, y, { class: kind, "font-size": size });
}

/**
 * The frame of an opened group with its header.
 * @returns {SVGElement}
 */
export function frameElement(item, level, paint, at) {
  const look = paint.look(item);
  const group = svg("g", { class: `${classOf(item)} olg-open`, transform: `translate(${at.x} ${at.y})`, style: styleOf(look) });
  group.append(svg("rect", { class: "olg-body", width: item.w, height: item.h, rx: 8 }));
  group.append(svg("path", { class: "olg-header", d: `M0 26v-18q0-8 8-8h${item.w - 16}q8 0 8 8v18z` }));
  if (look.hue) group.append(svg("path", { class: "olg-edge", d: `M0 8q0-8 8-8h1v${item.h}h-1q-8 0-8-8z` }));
  if (level === FULL) headerText(group, item, look, paint);
  return group;
}

function headerText(group, item, look, paint) {
  group.append(toggle(item.w - 22, 6, true));
  const tag = item.torch ? (item.ort ? `▨ ${item.torch} of ${item.ort + item.torch} in PyTorch` : "▨ all in PyTorch") : item.kind === "graph" && item.ort ? "all in ONNX Runtime" : look.tag;
  const room = item.w - 44;
  const forTag = tag ? Math.min(room * 0.6, tag.length * 6.4 + 6) : 0;
  group.append(write(paint.labels.title(item), 14, 18, room - forTag, 12.5, "olg-title"));
  if (tag && room > 120) group.append(write(tag, item.w - 30, 18, forTag, 11, item.torch ? "olg-tag olg-tag-torch" : "olg-tag"));
}
