// Values as people read them: the same words and units as ortlens/views/wording.py.

const TIMES = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
const SIZES = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
const COUNTS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const SHARES = new Set(["coverage", "share", "reached"]);
const UNGROUPED = new Set(["line", "opset", "thread", "call"]);

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** @returns {string} `1,234` */
export const count = (number) => grouped.format(number);

/** @returns {string} `1 graph`, `2 graphs` */
export const counted = (number, noun, plural = `${noun}s`) => `${count(number)} ${number === 1 ? noun : plural}`;

function threeDigits(value) {
  if (value >= 99.95) return count(value);
  return value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

function scaled(value, units, slack) {
  for (const [factor, unit] of units) if (Math.abs(value) >= factor * slack) return `${value < 0 ? "-" : ""}${threeDigits(Math.abs(value) / factor)} ${unit}`;
  return null;
}

/** @returns {string} `812 ns`, `12.3 µs`, `1.24 ms`, `2.10 s` */
export const time = (ns) => scaled(ns, TIMES, 0.9995) ?? `${count(Math.round(ns))} ns`;

/** @returns {string} `812 B`, `12.3 KiB` */
export const bytes = (size) => scaled(size, SIZES, 1) ?? `${count(size)} B`;

/** @returns {string} `12.3 MFLOP` */
export const flops = (number) => `${scaled(number, COUNTS, 1) ?? `${count(number)} `}FLOP`;

/** @returns {string} `97.6 %`; neither all nor nothing unless it is. */
export function percent(share) {
  if (share === 0 || share === 1) return `${share * 100} %`;
  if (share > 0.999) return ">99.9 %";
  return share < 0.001 ? "<0.1 %" : `${(share * 100).toFixed(1)} %`;
}

/** @returns {string} `1.2e-07`, `0.031`, `NaN`, `∞` */
export function real(value) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2") : String(Number(value.toPrecision(3)));
}

/** Controls, formats (bidirectional overrides, zero widths), lone surrogates, unassigned: all that hides or reorders. */
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\u2028\u2029]/gu;

/** @returns {string} The text with everything that cannot be seen written out. */
export function visible(text) {
  return text.replace(HIDDEN, (char) => {
    if (char === "\n" || char === "\r" || char === "\t") return " ";
    const code = char.codePointAt(0);
    return code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** @returns {string} The head of a long text. */
export function clipped(text, width) {
  const shown = visible(text.slice(0, width + 1));
  return shown.length <= width && text.length <= width ? shown : `${shown.slice(0, width - 1)}…`;
}

/** @returns {string} The last folder, the file and the line: `bert/modeling_bert.py:210`. */
export function place(file, line) {
  if (!file) return "unknown line";
  const short = visible(file.slice(-200).replaceAll("\\", "/").split("/").slice(-2).join("/").replace(/^\//, ""));
  return line === null || line === undefined ? short : `${short}:${line}`;
}

const RESUMED = /^torch_dynamo_resume_in_(.+)_at_(\d+)$/;

/** @returns {string} A function's name as its author knows it. */
export function functionName(name) {
  if (!name) return "unnamed function";
  const resumed = RESUMED.exec(name);
  return resumed ? `rest of ${functionName(resumed[1])} after line ${resumed[2]}` : visible(name);
}

/**
 * @param {any} value
 * @param {{name: string, kind: string, unit: string}} column
 * @returns {string} A cell; empty for a missing value.
 */
export function cell(value, column) {
  if (value === null || value === undefined) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return numeric(value, column);
  if (Array.isArray(value)) return column.name === "shape" ? `[${value.map(String).map(visible).join(", ")}]` : clipped(value.join(" "), 400);
  return column.name === "file" ? place(value, null) : clipped(value, 400);
}

function numeric(value, { name, unit, kind }) {
  if (!Number.isFinite(value)) return real(value);
  if (SHARES.has(name)) return percent(value);
  if (unit === "ns") return time(value);
  if (unit === "bytes") return bytes(value);
  if (unit === "flops") return flops(value);
  if (kind === "float") return real(value);
  return UNGROUPED.has(name) ? String(value) : count(value);
}

/** @returns {string} Rows as CSV, values raw: what a frame would hold. */
export function csv(names, rows) {
  const field = (value) => {
    const text = value === null || value === undefined ? "" : Array.isArray(value) ? value.join(" ") : String(value);
    // A spreadsheet would take such a text for a formula; a leading quote keeps it a text.
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [names, ...rows].map((row) => row.map(field).join(",")).join("\n");
}
