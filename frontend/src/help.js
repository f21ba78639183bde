// One line of help per panel, and what to say when there is nothing to show: what is missing, and which call fills it.
import { el } from "./dom.js";

/** @type {Record<string, {help: string, missing: string, call?: string}>} */
export const HELP = {
  overview: {
    help: "The answers in one screen. Click anything: it is selected in every panel, and its details say what it is linked to. Esc selects nothing again.",
    missing: "Nothing was compiled while the lens watched. Call the compiled function; one without tensor operations compiles to nothing.",
    call: "lens = ortlens.explain(model)(x)",
  },
  graph: {
    help: "Boxes are modules or partitions, arrows are tensors, hatched boxes stay in PyTorch. + or Enter opens a box, / searches, n finds the next hatched one.",
    missing: "No nodes were recorded: the backend that was observed is not ortlens, so its graphs stay closed.",
    call: "lens = ortlens.explain(model)(x)",
  },
  tables: {
    help: "Every recorded row. Click a head to sort, type below it to filter (numbers: >1000, >1.5 ms), / finds in any column, hover a head for its meaning, Enter selects a row.",
    missing: "There are no rows in this table.",
  },
  timeline: {
    help: "Each bar is one call of ONNX Runtime: binding inputs, running, handing outputs back. Hatched gaps are PyTorch and Python: point at one to see what runs there, click to select it. The % is a session's share of all calls. Wheel zooms, drag pans.",
    missing: "No call was recorded. A dry run never calls; otherwise call the compiled function again.",
    call: "lens = ortlens.explain(model)(x)",
  },
  source: {
    help: "Your lines with what became of them: time per call, nodes, and in the margin where PyTorch keeps an operator, breaks the graph or compiles again.",
    missing: "No line of your program is known for any node.",
    call: "lens = ortlens.explain(model)(x)",
  },
  breaks: {
    help: "Each graph break ends a graph and returns to Python; each recompile repeats the work. The line that begins with “Do” says what to change.",
    missing: "No graph break and no recompile: PyTorch traced the model in one go, once. Nothing to do here.",
  },
  findings: {
    help: "What ortlens noticed, most urgent first: the evidence, why it matters, and what to do about it.",
    missing: "Nothing stands out in what was recorded. Measure the kernels, and the numbers, to look deeper.",
    call: "lens.profile(x); lens.verify(x)",
  },
  numerics: {
    help: "Each cell is one value that ONNX Runtime computed, in graph order; the stronger its colour, the farther from PyTorch's. Click one to see where it comes from.",
    missing: "No value was compared with PyTorch yet.",
    call: "lens.verify(x)",
  },
  onnx: {
    help: "The ONNX models as Netron draws them, a model per partition. Click a node: the details show the line it came from. Drag moves, Ctrl and wheel zoom, Esc leaves.",
    missing: "No partition became an ONNX model: the backend that was observed is not ortlens, or nothing could run in ONNX Runtime.",
    call: "lens = ortlens.explain(model)(x)",
  },
  kernels: { help: "", missing: "ONNX Runtime's kernels were not measured.", call: "lens.profile(x)" },
  ledger: { help: "", missing: "No call was measured as a whole, so guards and Python are not in it.", call: "lens.measure(x)" },
};

/** @returns {HTMLElement} The line of help of a panel. */
export const helpLine = (panel) => el("p.ol-help", {}, HELP[panel].help);

/** @returns {HTMLElement} What an empty panel says. */
export function emptyState(panel) {
  const { missing, call } = HELP[panel];
  return el("div.ol-empty", {}, el("p", {}, missing), call ? el("p", {}, "This fills it: ", el("code", {}, call)) : null);
}
