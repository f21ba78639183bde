// A line of Python with its keywords, strings, numbers and comments in colour. Lines stand alone: a string over several lines is not known.
import { el } from "./dom.js";

const KEYWORDS = "False None True and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield match case";
const TOKENS = new RegExp(
  [
    /(?<comment>#.*)/,
    /(?<string>\b[rbfu]{0,2}(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')/,
    /(?<number>\b\d[\d_]*(?:\.\d*)?(?:e[+-]?\d+)?\b)/,
    new RegExp(`(?<![\\w.])(?<keyword>${KEYWORDS.replaceAll(" ", "|")})(?!\\w)`),
  ].map(({ source }) => source).join("|"),
  "gi",
);

/**
 * @param {string} line As it is shown; its text stays the same.
 * @returns {(Node|string)[]}
 */
export function highlighted(line) {
  return tokensOf(line).map(([text, kind]) => (kind ? el(`span.ol-code-${kind}`, {}, text) : text));
}

/** @returns {[string, "comment"|"string"|"number"|"keyword"|null][]} Pieces of a line, and what they are. */
export function tokensOf(line) {
  const found = [];
  let at = 0;
  for (const match of line.matchAll(TOKENS)) {
    const [kind] = Object.entries(match.groups).find(([, text]) => text !== undefined);
    if (kind === "keyword" && !KEYWORDS.split(" ").includes(match[0])) continue; // the names of constants are capitalised, and only so
    if (match.index > at) found.push([line.slice(at, match.index), null]);
    found.push([match[0], kind]);
    at = match.index + match[0].length;
  }
  if (at < line.length) found.push([line.slice(at), null]);
  return found;
}
