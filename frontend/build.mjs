// Bundles the explorer into ortlens/views/static. The output is committed, so that installing a clone needs no Node;
// it must therefore be a function of the sources and the lock file alone: no times, no paths, no environment.
// `node build.mjs FOLDER` writes elsewhere, to compare.
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "ortlens", "views", "static");
const LIMIT = 150_000; // bytes of the widget, gzip: what one notebook carries

const common = {
  absWorkingDir: here,
  bundle: true,
  minify: true,
  write: false,
  charset: "ascii",
  legalComments: "none", // the licences are written in full to a file of their own
  target: ["es2022", "chrome110", "firefox115", "safari16.4"],
  metafile: true,
  logLevel: "warning",
};

/** @returns {Promise<{text: string, inputs: string[]}>} One bundle as text, and the files that went into it. */
async function bundle(options) {
  const result = await build({ ...common, ...options });
  return { text: result.outputFiles[0].text, inputs: Object.keys(result.metafile.inputs) };
}

/** Style sheets of parts that bring their own stand beside their sources. */
function styleSheet() {
  const parts = ["src/style.css", "src/graph/graph.css", "src/onnx.css"].filter((path) => existsSync(join(here, path)));
  return parts.map((path) => readFileSync(join(here, path), "utf8")).join("\n");
}

const aboutPackage = (name) => JSON.parse(readFileSync(join(here, "node_modules", name, "package.json"), "utf8"));

/** The packages that a bundle holds, with those that they may have bundled themselves. */
function packages(inputs) {
  const names = new Set(inputs.map((path) => path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//)?.[1]).filter(Boolean));
  for (const name of names) for (const other of Object.keys(aboutPackage(name).dependencies ?? {})) names.add(other);
  return [...names].sort();
}

/** The licence texts of all of them. */
function licences(inputs) {
  const parts = packages(inputs).map((name) => {
    const folder = join(here, "node_modules", name);
    const about = aboutPackage(name);
    const file = readdirSync(folder).sort().find((entry) => /^licen[cs]e(\.|$)/i.test(entry));
    if (!file) throw new Error(`${name} has no licence file`);
    return `${name} ${about.version} (${about.license})\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
  });
  const head = "The explorer's bundles hold the following packages.\n";
  return [head, ...parts].join(`\n${"-".repeat(80)}\n\n`);
}

const widget = await bundle({ entryPoints: ["src/widget.js"], format: "esm" });
const loader = await bundle({ entryPoints: ["src/loader.js"], format: "esm" });
const report = await bundle({ entryPoints: ["src/report.js"], format: "iife" });
const css = await bundle({ stdin: { contents: styleSheet(), loader: "css", resolveDir: join(here, "src") } });

mkdirSync(out, { recursive: true });
const files = {
  "explorer.loader.js": loader.text,
  "explorer.widget.js": widget.text,
  "explorer.report.js": report.text,
  "explorer.css": css.text,
  "THIRD_PARTY_LICENSES.txt": licences([...widget.inputs, ...report.inputs]),
};
for (const [name, text] of Object.entries(files)) {
  writeFileSync(join(out, name), text);
  console.log(`${name.padEnd(26)} ${String(text.length).padStart(8)} bytes, ${gzipSync(text, { level: 9 }).length} gzip`);
}
if (gzipSync(widget.text, { level: 9 }).length > LIMIT) throw new Error(`the widget is larger than ${LIMIT} bytes gzip`);
