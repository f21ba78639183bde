// How wide names are, and how they are cut: names come from users' programs, and must not run over what stands beside.
import { visible } from "../format.js";

const PLAIN = /^[\x20-\x7e]*$/;
const STACKED = /(\p{M}{2})\p{M}+/gu; // accents upon accents would grow over the boxes above
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
    return this.ems.get(char) ?? (char < "\x7f" ? EM : char < "\u0530" ? 0.75 : 1.05);
  }

  /** @returns {number} Pixels that text takes at a size. */
  widthOf(text, size) {
    let em = 0;
    for (const char of text) em += this.emOf(char);
    return em * size;
  }

  /**
   * @param {string} text
   * @param {number} room Pixels.
   * @param {number} size Of the font, in pixels.
   * @returns {string} The text made visible, ending in an ellipsis where it was cut.
   */
  clipped(text, room, size) {
    const head = text.length > MOST ? `${text.slice(0, MOST)}…` : text;
    const shown = PLAIN.test(head) ? head : visible(head).replace(STACKED, "$1");
    if (this.widthOf(shown, size) <= room) return shown;
    let [cut, used] = ["", size]; // the ellipsis
    for (const char of shown) {
      used += this.emOf(char) * size;
      if (used > room) break;
      cut += char;
    }
    return `${cut}…`;
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

/** @returns {string} A name as one direction of its own, whatever it holds (U+2068 ... U+2069). */
export const isolated = (text) => (PLAIN.test(text) ? text : `\u2068${text}\u2069`);
