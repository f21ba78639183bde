// One line of help per panel, and what to say when there is nothing to show: what is missing, and what records it.
import { el } from "./dom.js";

/** @type {Record<string, {help: string, missing: string|((data: import("./data.js").Data) => string), wants?: string[]}>} */
export const HELP = {
  overview: {
    help: "The main answers on one screen. Click anything to select it in every panel and to see what it is linked to. Esc clears the selection.",
    missing: "Nothing was compiled while the lens was recording. Call the compiled function; a function without operators of PyTorch compiles to nothing, and so does code on which PyTorch gave up earlier in this process: torch.compiler.reset() clears that.",
    wants: ["explain"],
  },
  actions: {
    help: "Everything to do, the most useful first: what it costs or saves, how that is known, and the line to write or to paste. ● measured, ◐ estimated.",
    missing: "Nothing to do: no graph break, no operator in PyTorch, no recompile, no finding.",
  },
  flame: {
    help: "One call, or one run of compiled code where nobody counted calls: the wider, the longer. Rows go from graphs over modules and operators to kernels; red slabs are graph breaks. Click selects, double click or + zooms, / searches and adds up.",
    missing: "Nothing was compiled, so there is nothing to show.",
    wants: ["explain"],
  },
  graph: {
    help: "Boxes are modules or partitions, arrows are tensors, hatched boxes stay in PyTorch. + or Enter expands a box, / searches, n goes to the next hatched box.",
    missing: ({ overview }) => {
      if (overview.coverage.verdict === "foreign") return "No nodes were recorded: the backend is not ortlens, so its graphs cannot be inspected.";
      const [whole] = overview.fallbacks;
      return whole ? `No nodes were recorded: a graph that stays in PyTorch whole is not taken apart. ${whole.reason}` : "Nothing was compiled, so there is nothing to show.";
    },
    wants: ["explain"],
  },
  tables: {
    help: "Every recorded row. Click a heading to sort, type below it to filter (numbers: >1000, >1.5 ms), / searches all columns, hover over a heading for its meaning, Enter selects a row.",
    missing: "There are no rows in this table.",
  },
  timeline: {
    help: "Each bar is one run of ONNX Runtime, or of a graph of another backend: binding inputs, running, returning outputs; above it its graph, below it kernels and memory as profiled. Red gaps are graph breaks, orange ones operators in PyTorch: hover to see which, click to select. The % beside a session is its share of the time of all runs, not of a call. Drag pans; Ctrl and the wheel zoom.",
    missing: "No call was recorded. A dry run makes no calls; otherwise call the compiled function again.",
    wants: ["explain"],
  },
  roofline: {
    help: "Each dot is a kernel, the larger, the longer it takes: how many operations it makes per byte, and how many per second. The line is what this machine reached; dots far below it could be faster. Click selects.",
    missing: "No kernel was measured, so none is compared with the machine's peak.",
    wants: ["profile"],
  },
  source: {
    help: "Your source lines with their time per call and nodes; the stronger the colour behind a line's number, the longer it takes. The edge beside it says where a call runs the line; the margin marks operators that stay in PyTorch, graph breaks and recompiles.",
    missing: "No source line is known for any node.",
    wants: ["explain"],
  },
  breaks: {
    help: "Each graph break ends a graph and returns to Python; each recompile repeats the compilation. The line that starts with “Do” says what to change.",
    missing: "No graph breaks and no recompiles. Nothing to do here.",
  },
  findings: {
    help: "What ortlens noticed, most urgent first: the evidence, why it matters, and what to do about it.",
    missing: "Nothing stands out in what was recorded. Profile and verify the model to look deeper.",
    wants: ["profile", "verify"],
  },
  numerics: {
    help: "Each cell is one value that ONNX Runtime computed, in graph order; the stronger the colour, the larger the difference from PyTorch. Click one to see where it comes from.",
    missing: "No value was compared with PyTorch yet.",
    wants: ["verify"],
  },
  onnx: {
    help: "The ONNX models in Netron, one per partition. Click a node to see the line that it came from. Drag to move, Ctrl+wheel to zoom, Esc to leave.",
    missing: "There are no ONNX models: the backend is not ortlens, or nothing could run in ONNX Runtime.",
    wants: ["explain"],
  },
  profiled: { help: "", missing: "Kernels were profiled, but all are too short to be compared: the machine's peaks are measured where a kernel takes 50 µs, or all kernels of a session 1 ms. Larger inputs make longer kernels; the table kernels has what was measured." },
  kernels: { help: "", missing: "ONNX Runtime's kernels were not measured.", wants: ["profile"] },
  ledger: { help: "", missing: "No call was measured as a whole, so guards and Python are not included.", wants: ["measure"] },
};

/** @returns {HTMLElement} The line of help of a panel. */
export const helpLine = (panel) => el("p.ol-help", {}, HELP[panel].help);

/** @returns {string} What to type for it, as Python words it (ortlens/views/wording.py) for where the explorer is shown. */
export const hint = (data, want) => data.meta.hints?.[want] ?? "";

/** @returns {HTMLElement} What an empty panel says. */
export function emptyState(panel, data) {
  const { missing, wants } = HELP[panel];
  const calls = (wants ?? []).map((want) => hint(data, want)).filter(Boolean).map((call) => el("code", {}, call));
  return el("div.ol-empty", {}, el("p", {}, typeof missing === "string" ? missing : missing(data)), calls.length ? el("p", {}, "To fill it: ", ...calls.flatMap((call, at) => (at ? [", ", call] : [call]))) : null);
}
