// One box as SVG. Three levels of detail: everything; the title in larger letters; the bare shape.
import { count } from "../format.js";
import { svg, svgText } from "./svg.js";

export const FULL = 2;
export const TITLE = 1;
export const SHAPE = 0;

/**
 * @typedef {object} Paint What a box is drawn from.
 * @property {import("./labels.js").Labels} labels
 * @property {(item: import("./item.js").Item) => import("./colours.js").Look} look
 * @property {import("./text.js").Font} font
 * @property {string} prefix Of ids in the page.
 */

/**
 * @param {import("./item.js").Item} item A closed group, an operator, or an opened group that is too small to look into.
 * @param {number} level
 * @param {Paint} paint
 * @param {{x: number, y: number}} at
 * @returns {SVGElement}
 */
export function boxElement(item, level, paint, at) {
  const look = paint.look(item);
  const group = svg("g", { class: classOf(item), transform: `translate(${at.x} ${at.y})`, style: styleOf(look) });
  if (item.kind === "fold") group.append(...stack(item));
  group.append(svg("rect", { class: "olg-body", width: item.w, height: item.h, rx: roundness(item) }));
  if (item.torch && !item.ort) group.append(svg("rect", { class: "olg-hatched", fill: `url(#${paint.prefix}hatch)`, width: item.w, height: item.h, rx: roundness(item) }));
  if (look.hue && level > SHAPE) group.append(svg("path", { class: "olg-edge", d: `M0 5q0-5 5-5h2v${item.h}h-2q-5 0-5-5z` }));
  if (item.ort && item.torch) group.append(shareBar(item, paint, level === SHAPE ? Math.max(7, item.h * 0.14) : 7));
  else if (level === SHAPE && item.torch) group.append(svg("rect", { class: "olg-mark", width: item.w, height: item.h, rx: 4 }));
  if (look.bar !== null && level > SHAPE) group.append(svg("rect", { class: "olg-time", x: 8, y: item.h - 6, width: Math.max(1.5, (item.w - 16) * Math.min(1, look.bar)), height: 4 }));
  if (level === FULL) fullText(group, item, look, paint);
  else if (level === TITLE) titleText(group, item, paint);
  return group;
}

/** Inputs and outputs have a shape of their own. */
const roundness = (item) => (item.parts ? 7 : item.kind === "op" ? 4 : item.h / 2);

function classOf(item) {
  const side = item.torch ? (item.ort ? "olg-mixed" : "olg-torch") : item.ort ? "olg-ort" : "olg-neither";
  return `olg-box olg-${item.kind} ${item.parts ? "olg-group" : "olg-leaf"} ${side}${item.old ? " olg-old" : ""}`;
}

const styleOf = ({ hue, strength }) => (hue && hue !== "neutral" ? `--hue:${hue};--strength:${Math.round(strength * 100)}%` : `--strength:${Math.round(strength * 100)}%`);

/** Layers behind the first one. */
const stack = ({ w, h }) => [8, 4].map((by) => svg("rect", { class: "olg-body olg-behind", x: by, y: by, width: w, height: h, rx: 7 }));

/** How much of a group is in ONNX Runtime: filled, and hatched for what stays in PyTorch. */
function shareBar(item, paint, height) {
  const whole = item.w - 16;
  const share = item.torch / (item.ort + item.torch);
  const hatched = Math.min(whole - 4, Math.max(8, whole * share)); // few of many must still be seen
  const y = item.h - height - 5;
  return svg(
    "g",
    { class: "olg-share" },
    svg("rect", { class: "olg-share-ort", x: 8, y, width: whole - hatched, height }),
    svg("rect", { class: "olg-share-torch", x: 8 + whole - hatched, y, width: hatched, height }),
    svg("rect", { fill: `url(#${paint.prefix}hatch)`, x: 8 + whole - hatched, y, width: hatched, height }),
  );
}

function fullText(group, item, look, paint) {
  const { labels } = paint;
  const left = look.hue ? 14 : item.kind === "op" || item.parts ? 10 : 16;
  const isGroup = item.parts !== null;
  const tag = isGroup ? labels.side(item) : "";
  group.append(write(paint, labels.title(item), left, isGroup ? 19 : item.kind === "output" ? 23 : 16, item.w - left - (isGroup ? 28 : 8), 12.5, "olg-title"));
  const note = labels.note(item);
  const noteY = isGroup ? 35 : 31;
  const most = item.w - left - 8 - (note ? 40 : 0);
  const second = tag || ([look.tag, look.short ?? ""].find((text) => paint.font.widthOf(text, 11) <= most) ?? look.tag);
  const forTag = second ? Math.min(Math.max(most, item.w * 0.6), paint.font.widthOf(second, 11) + 2) : 0;
  const room = item.w - left - 8 - forTag - (second ? 6 : 0);
  if (note && room > 18) group.append(write(paint, note, left, noteY, room, 11, "olg-note"));
  if (second) group.append(write(paint, second, item.w - 8, noteY, forTag, 11, tag || look.tag === "PyTorch" ? "olg-tag olg-tag-torch" : "olg-tag"));
  const stub = labels.stub(item);
  if (stub) group.append(stubElement(stub, item, paint, left, isGroup ? 48 : 45));
  if (isGroup) group.append(toggle(item.w - 22, 7, false));
}

function stubElement(stub, item, paint, left, y) {
  const text = write(paint, `⇢ ${stub.text}`, left, y, item.w - left - 6, 11, stub.row >= 0 ? "olg-stub olg-stub-link" : "olg-stub");
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
  const mixed = item.ort && item.torch;
  const size = item.parts ? 20 : 16;
  const middle = mixed ? 21 : item.h / 2 + size * 0.35;
  group.append(write(paint, paint.labels.title(item), 11, middle, item.w - 14, size, "olg-title"));
  if (mixed) group.append(write(paint, `${count(item.torch)} in PyTorch`, 11, 38, item.w - 14, 16, "olg-tag-torch"));
}

function write({ font }, text, x, y, room, size, kind) {
  return svgText(font.clipped(text, room, size), x, y, { class: kind, "font-size": size });
}

/**
 * The frame of an opened group with its header.
 * @returns {SVGElement}
 */
export function frameElement(item, level, paint, at) {
  const look = paint.look(item);
  const group = svg("g", { class: `${classOf(item)} olg-open`, transform: `translate(${at.x} ${at.y})`, style: styleOf(look) });
  group.append(svg("rect", { class: "olg-body", width: item.w, height: item.h, rx: 8 }));
  if (level > SHAPE) group.append(svg("path", { class: "olg-header", d: `M0 26v-18q0-8 8-8h${item.w - 16}q8 0 8 8v18z` }));
  if (level > SHAPE && look.hue && look.hue !== "neutral") group.append(svg("path", { class: "olg-edge", d: `M0 8q0-8 8-8h1v${item.h}h-1q-8 0-8-8z` }));
  if (level === FULL) headerText(group, item, look, paint);
  return group;
}

function headerText(group, item, look, paint) {
  group.append(toggle(item.w - 22, 6, true));
  const room = item.w - 44;
  const width = (text, size) => paint.font.widthOf(text, size) + 2;
  const title = width(paint.labels.title(item), 12.5);
  const tags = [headerTag(item, look), item.torch ? `▨ ${count(item.torch)} in PyTorch` : "", item.torch ? `▨ ${count(item.torch)}` : ""];
  const tag = item.kind === "all" ? "" : tags.find((text) => width(text, 11) + 8 <= Math.max(room - title, room * 0.3)) ?? ""; // of the whole model the line below says it
  group.append(write(paint, paint.labels.title(item), 14, 18, room - (tag ? width(tag, 11) + 8 : 0), 12.5, "olg-title"));
  if (tag) group.append(write(paint, tag, item.w - 30, 18, width(tag, 11), 11, item.torch ? "olg-tag olg-tag-torch" : "olg-tag"));
}

function headerTag(item, look) {
  if (item.torch) return item.ort ? `▨ ${count(item.torch)} of ${count(item.ort + item.torch)} in PyTorch` : "▨ all in PyTorch";
  return item.kind === "graph" && item.ort ? "all in ONNX Runtime" : look.tag;
}
