// Layers that are alike become one box with a count; groups with too many children are cut into pages.
import { Item } from "./item.js";

const ALIKE = 3; // this many equal neighbours become one box
const CROWD = 12; // this many numbered siblings become one box, even if they are of several kinds
export const MAX_CHILDREN = 400;
const PAGE = 100;

/**
 * Folds and pages everything inside an item, innermost first.
 *
 * @param {Item} item
 * @param {(row: number) => number} codeOf Equal for operators that are drawn alike.
 */
export function fold(item, codeOf) {
  for (const part of item.parts) if (part instanceof Item) fold(part, codeOf);
  item.parts = crowded(alike(item.parts));
  const only = item.parts.length === 1 ? item.parts[0] : null;
  if (item.kind === "module" && only?.kind === "fold") takeIn(item, only);
  item.shape = shapeOf(item, codeOf);
  item.parts = paged(item.parts);
}

/** A number of 53 bits made of everything inside; equal for equal layers, whatever their own numbers are. */
function shapeOf(item, codeOf) {
  let [low, high] = [item.parts.length, 17];
  const mix = (value) => {
    low = (Math.imul(low ^ value, 0x9e3779b1) + (low >>> 15)) | 0;
    high = (Math.imul(high + value, 0x85ebca6b) ^ (high >>> 13)) | 0;
  };
  for (const part of item.parts) {
    if (!(part instanceof Item)) mix(codeOf(part));
    else {
      mix(part.shape | 0);
      mix(Math.floor(part.shape / 2 ** 32));
      if (!part.layer) for (let at = 0; at < part.own.length; at++) mix(part.own.charCodeAt(at));
    }
  }
  return (low >>> 0) + (high & 0x1fffff) * 2 ** 32;
}

const isLayer = (part) => part instanceof Item && part.kind === "module" && part.layer;

function alike(parts) {
  if (parts.length < ALIKE || !parts.some(isLayer)) return parts;
  const found = [];
  let step = 0;
  for (const part of parts) {
    const last = found.at(-1);
    const before = last?.at(-1);
    const move = isLayer(part) && before !== undefined && isLayer(before) ? part.own - before.own : 0;
    const goesOn = Math.abs(move) === 1 && before.shape === part.shape && (last.length === 1 || move === step);
    if (goesOn) last.push(part);
    else found.push([part]);
    step = goesOn ? move : 0;
  }
  return found.flatMap((same) => (same.length >= ALIKE ? [foldOf(same, 1)] : same));
}

/** Also layers of several kinds, where they would fill the view: experts, windows, every other layer different. */
function crowded(parts) {
  if (parts.length <= CROWD) return parts;
  const found = [];
  for (const part of parts) {
    const layer = part.kind === "fold" || isLayer(part);
    if (layer && found.at(-1)?.layer) found.at(-1).parts.push(part);
    else found.push({ layer, parts: [part] });
  }
  return found.flatMap(({ layer, parts: near }) => (layer && near.length > CROWD ? [foldOf(near, new Set(near.map((part) => part.shape)).size)] : near));
}

function foldOf(layers, kinds) {
  const [first, last] = [layers[0], layers.at(-1)];
  const ends = [first.ends?.[0] ?? first.own, last.ends?.[1] ?? last.own];
  const list = first.title.slice(0, first.title.lastIndexOf(".") + 1); // `layers.` of `layers.0`
  const item = new Item("fold", `${list}${ends.join("–")}`, layers);
  item.ends = ends;
  item.times = layers.reduce((sum, layer) => sum + layer.times, 0);
  item.kinds = kinds;
  item.note = kinds === 1 ? first.note : `${kinds} kinds`;
  item.shape = kinds === 1 ? first.shape : 0;
  return item;
}

/** A list of layers that are all alike is its fold. */
function takeIn(item, only) {
  const { kind, parts, times, kinds, note } = only;
  Object.assign(item, { kind, parts, times, kinds, note, title: `${item.title}.${only.ends.join("–")}` });
}

/** Parts, or pages of them, all of about the same size. */
export function paged(parts) {
  const words = (number) => number.toLocaleString("en-US");
  let pages = parts;
  let each = 1;
  while (pages.length > MAX_CHILDREN) {
    const size = Math.ceil(pages.length / Math.ceil(pages.length / PAGE));
    each *= size;
    pages = Array.from({ length: Math.ceil(pages.length / size) }, (_, page) => {
      const last = Math.min((page + 1) * each, parts.length);
      return new Item("page", `${words(page * each + 1)}–${words(last)} of ${words(parts.length)}`, pages.slice(page * size, (page + 1) * size));
    });
  }
  return pages;
}
