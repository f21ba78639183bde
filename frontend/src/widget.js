// The mount for notebooks; loader.js finds this code and calls it.
import { mountApp } from "./app.js";
import { createData, payloadFromBytes } from "./data.js";
import { button, el as element, together } from "./dom.js";
import { helpLine } from "./help.js";
import { onnxPanel } from "./onnx.js";
import { createStore } from "./store.js";

const TRYING_MS = 600_000; // a large model takes minutes to compile

/** State that the notebook and the browser share, both ways. */
const SHARED = ["selected", "tab", "graph"];

/** Captures that are unpacked, by the object that holds their bytes: ten outputs of one capture unpack it once. Not by its buffer,
 * which other captures may share. Views are counted, since notebooks hold on to the bytes of outputs that are long gone. */
const unpacked = new WeakMap();

function takeData(packed) {
  const taken = unpacked.get(packed) ?? { data: payloadFromBytes(packed).then(createData), views: 0 };
  taken.views += 1;
  unpacked.set(packed, taken);
  return taken.data;
}

function giveBack(packed) {
  const taken = unpacked.get(packed);
  if (taken && --taken.views === 0) unpacked.delete(packed);
}

/**
 * @param {{model: any, el: HTMLElement, packed: DataView|Uint8Array, ask: import("./kernel.js").Ask}} host
 * @returns {Promise<() => void>} Takes it down again.
 */
export async function mount({ model, el, packed, ask }) {
  const data = await takeData(packed);
  const initial = SHARED.map((key) => [key, model.get(key)]).filter(([, value]) => value);
  const store = createStore(data, Object.fromEntries(initial));
  if (model.get("_tries")) store.attempt = async (line) => new TextDecoder().decode(await ask("try", { line }, TRYING_MS));
  const root = document.createElement("div");
  el.replaceChildren(root);
  el.classList.add("ortlens-output");
  root.addEventListener("focusin", ({ target }) => (target.dataset.lmSuppressShortcuts = "true")); // Notebook 7 hears keys before the page does
  const onnx = data.table("models").rows ? onnxFromPython(ask) : undefined;
  const cleanups = [mountApp(root, store, { onnx, tools: fullScreen(root) }), ...SHARED.map((key) => share(model, store, key))];
  return () => {
    together(cleanups)();
    giveBack(packed);
    root.remove();
  };
}

function share(model, store, key) {
  const fromPython = () => {
    const value = model.get(key) || null;
    if (value === null && key === "tab") return; // some panel is always shown
    if (value !== null && key === "selected" && !store.identity.has(value)) return;
    store.set({ [key]: value });
  };
  const unsubscribe = store.subscribe([key], () => {
    if (Object.is(model.get(key) ?? null, store.get(key))) return;
    model.set(key, store.get(key));
    model.save_changes();
  });
  model.on(`change:${key}`, fromPython);
  return () => {
    unsubscribe();
    model.off(`change:${key}`, fromPython);
  };
}

/** The panel of ONNX models. Python lists and sends them on demand, so that models and Netron do not weigh on the notebook. */
const onnxFromPython = (ask) => (root, store) => {
  let cleanup = () => {};
  let gone = false;
  const begin = async () => {
    root.replaceChildren(helpLine("onnx"), element("p.ol-soft", { role: "status" }, "Fetching the ONNX models from Python…"));
    try {
      const { ids, notes, drawable } = JSON.parse(new TextDecoder().decode(await ask("models")));
      const models = { ids, notes, frame: () => (drawable ? ask("frame") : null), model: (id) => ask("model", { id }) };
      if (!gone) cleanup = onnxPanel(models)(root, store);
    } catch (error) {
      root.replaceChildren(helpLine("onnx"), element("div.ol-empty", { role: "alert" }, element("p", {}, error.message), button("Try again", begin)));
    }
  };
  begin();
  return () => {
    gone = true;
    cleanup();
  };
};

/** An output is narrow; a graph wants room. */
function fullScreen(root) {
  if (!document.fullscreenEnabled) return [];
  const toggle = () => (document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen());
  return [button("⤢", toggle, { class: "ol-icon ol-full", title: "Full screen; Esc leaves", "aria-label": "Full screen" })];
}
