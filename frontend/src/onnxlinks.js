// What is selected, in the words of one ONNX model, and back: names of its nodes, and ids of the store.

/** End of the id of a model as ONNX Runtime runs it, after its own rewrites. */
export const OPTIMIZED = ".optimized";

/** More nodes than this are no selection but most of the model: nothing is highlighted then. */
const MANY = 400;

/** Kinds that stand for a model as a whole. */
const WHOLE = new Set(["model", "partition", "session", "graph", "run"]);

/** @returns {string} Id of the model that a drawing is of. */
export const modelOf = (drawing) => (drawing.endsWith(OPTIMIZED) ? drawing.slice(0, -OPTIMIZED.length) : drawing);

function sessionsOf(store, model) {
  const sessions = store.data.table("sessions");
  const row = store.identity.rowOf(`model:${model}`)?.row;
  const partition = row === undefined ? null : store.data.table("models").get(row, "partition_id");
  const rows = partition === null ? [] : store.data.index("sessions", "partition_id").get(partition) ?? [];
  return rows.map((found) => sessions.get(found, "session_id"));
}

/**
 * What stands before the name of a node in the ids of a drawing: ONNX nodes as converted, kernels as ONNX Runtime runs it.
 * @returns {string[]}
 */
const prefixes = (store, drawing) => (drawing.endsWith(OPTIMIZED) ? sessionsOf(store, modelOf(drawing)).map((session) => `kernel:${session}/`) : [`onnx:${drawing}/`]);

/**
 * @param {import("./store.js").Store} store
 * @param {string} drawing Id of a drawing: `m0`, `m0.optimized`.
 * @returns {string[]} Names of its nodes that belong to what is selected; none when that is the model as a whole.
 */
export function selectedNames(store, drawing) {
  const chain = store.get("chain");
  if (!chain || WHOLE.has(chain.kind)) return [];
  const links = drawing.endsWith(OPTIMIZED) ? chain.kernels : chain.onnx;
  const starts = prefixes(store, drawing);
  const names = links.flatMap(({ id }) => starts.filter((start) => id.startsWith(start)).map((start) => id.slice(start.length)));
  return names.length > MANY ? [] : [...new Set(names)];
}

/**
 * @param {import("./store.js").Store} store
 * @param {string} drawing
 * @param {string} name Name of a node there.
 * @returns {string|null} What it is in the store; null for a node that the capture knows nothing about.
 */
export const idOfNode = (store, drawing, name) => prefixes(store, drawing).map((start) => start + name).find((id) => store.identity.has(id)) ?? null;

/**
 * The model to show for what is selected: the one that is shown when it belongs to that, else the first that does.
 * @returns {string|null} Null when nothing is selected, or nothing that became ONNX.
 */
export function modelFor(store, shown) {
  const models = (store.get("chain")?.models ?? []).map(({ id }) => id.slice("model:".length));
  return models.includes(shown) ? shown : models[0] ?? null;
}
