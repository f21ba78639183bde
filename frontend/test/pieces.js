// A real capture as the explorer gets it; tests/browser/captures/README.md says how it was recorded.
import { readFileSync } from "node:fs";
import { createData, payloadFromBytes } from "../src/data.js";

export const bytes = () => readFileSync(new URL("pieces.payload.gz", import.meta.url));
export const payload = () => payloadFromBytes(bytes());
export const pieces = async () => createData(await payload());

/** @returns {object} A payload with one table, for what no real capture has. */
export const handMade = (tables, texts = [], overview = {}) => ({
  version: 1,
  meta: { name: "", backend: "ortlens", created: "", environment: {}, redacted: false, left_out: [] },
  overview: { graphs: [], fallbacks: [], reasons: {}, ...overview },
  modules: [],
  tables,
  texts,
});
