// How wide names are, and how they are cut: names come from users' programs, and must not run over what stands beside.
import { visible } from "../format.js";

const PLAIN = /^[\x20-\x7e]*$/;
const STACKED = /(\p{M}{2})\p{M}+/gu; // accents upon accents would grow over the boxes above
const MOST = 200; // characters that are looked at: a name of 10,000 is not walked through to show its head

const EMS = new Map([
  ..."iljI.,:;'|!".split("").map((char) => [char, 0.31]),
  ..."ftr()[]{} -/".split("").map((char) => [char, 0.42]),
  ..."mwMW@%".split("").map((char) => [char, 0.93]),
  ..."ABCDEFGHKLNOPQRSTUVXYZ&".split("").map((char) => [char, 0.7]),
]);
const EM = 0.6;

const emOf = (char) => EMS.get(char) ?? (char < "\x7f" ? EM : char < "\u0530" ? 0.68 : 1.05);

/** @returns {number} Pixels that text takes at a font size, rather too many than too few: fonts differ. */
export function widthOf(text, size) {
  let em = 0;
  for (const char of text) em += emOf(char);
  return em * size;
}

/** @returns {string} A name as one direction of its own, whatever it holds (U+2068 ... U+2069). */
export const isolated = (text) => (PLAIN.test(text) ? text : `\u2068${text}\u2069`);

/**
 * @param {string} text
 * @param {number} room Pixels.
 * @param {number} size Of the font, in pixels.
 * @returns {string} The text made visible, ending in an ellipsis where it was cut.
 */
export function clipped(text, room, size) {
  const head = text.length > MOST ? `${text.slice(0, MOST)}…` : text;
  const shown = PLAIN.test(head) ? head : visible(head).replace(STACKED, "$1");
  if (widthOf(shown, size) <= room) return shown;
  let [cut, used] = ["", 0.9 * size]; // the ellipsis
  for (const char of shown) {
    used += emOf(char) * size;
    if (used > room) break;
    cut += char;
  }
  return `${cut}…`;
}
