// How wide names are, and how they are cut: names come from users' programs, and must not run over what stands beside.
import { visible } from "../format.js";

const PLAIN = /^[\x20-\x7e\u00a1-\u02af\u2013\u2026]*$/; // nothing in it changes direction
const STACKED = /(\p{M}{2})\p{M}+/gu; // accents upon accents would grow over the boxes above
const OPEN = "\u2068";
const CLOSE = "\u2069";
const MOST = 200; // characters that are looked at: a name of 10,000 is not walked through to show its head

const EMS = new Map([
  ..."iljI.,:;'|!".split("").map((char) => [char, 0.34]),
  ..."ftr()[]{} -/".split("").map((char) => [char, 0.45]),
  ..."mwMW@%".split("").map((char) => [char, 1]),
  ..."ABCDEFGHKLNOPQRSTUVXYZ&".split("").map((char) => [char, 0.75]),
]);
const EM = 0.66;
const ASCII = Array.from({ length: 95 }, (_, at) => String.fromCharCode(32 + at));

/** Widths of one font. */
export class Font {
  /** @param {Map<string, number>} ems Width of characters, as parts of the font's size. */
  constructor(ems = EMS) {
    this.ems = ems;
  }

  emOf(char) {
    if (char === OPEN || char === CLOSE) return 0;
    return this.ems.get(char) ?? (char < "\x7f" ? EM : char < "\u0530" ? 0.75 : 1.05);
  }

  /** @returns {number} Pixels that text takes at a size. */
  widthOf(text, size) {
    let em = 0;
    for (const char of text) em += this.emOf(char);
    return em * size;
  }

  /**
   * @param {string} text Made safe.
   * @param {number} room Pixels.
   * @param {number} size Of the font, in pixels.
   * @returns {string} The text, ending in an ellipsis where it was cut.
   */
  clipped(text, room, size) {
    if (this.widthOf(text, size) <= room) return text;
    let [cut, used] = ["", size]; // the ellipsis
    for (const char of text) {
      used += this.emOf(char) * size;
      if (used > room) break;
      cut += char;
    }
    return closed(`${cut}…`);
  }
}

/** @returns {Font} The font of an element as the browser draws it, in its bold cut; an estimate where nothing can be measured. */
export function fontOf(element) {
  const context = document.createElement("canvas").getContext("2d");
  const family = getComputedStyle(element).fontFamily;
  if (!context || !family) return new Font();
  context.font = `600 100px ${family}`;
  return new Font(new Map(ASCII.map((char) => [char, context.measureText(char).width / 100])));
}

/**
 * A name as it can stand among other words: nothing in it hides or reorders, and it is one direction of its own.
 * @returns {string} Between U+2068 and U+2069 unless it is plain ASCII.
 */
export function safe(text) {
  const head = text.length > MOST ? `${text.slice(0, MOST)}…` : text;
  return PLAIN.test(head) ? head : `${OPEN}${visible(head).replace(STACKED, "$1")}${CLOSE}`;
}

/** @returns {string} The head of safe text. */
export const headOf = (text, most) => (text.length <= most ? text : closed(`${text.slice(0, most - 1)}…`));

/** What was cut inside of a name ends that name. */
const closed = (text) => (text.lastIndexOf(OPEN) > text.lastIndexOf(CLOSE) ? text + CLOSE : text);
