// The mount for notebooks: an anywidget module.
import { mountApp, mountFailure } from "./app.js";
import { createData, payloadFromBytes } from "./data.js";
import { createStore } from "./store.js";

/** State that the notebook and the browser share, both ways. */
const SHARED = ["selected", "tab", "graph"];

async function render({ model, el }) {
  try {
    return mount(model, el, createData(await payloadFromBytes(model.get("payload"))));
  } catch (error) {
    mountFailure(el, error, "The frames, such as lens.graphs, do not depend on it.");
    throw error; // stays visible in the console
  }
}

function mount(model, el, data) {
  const told = SHARED.map((key) => [key, model.get(key)]).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const store = createStore(data, Object.fromEntries(told));
  const cleanups = [mountApp(el, store), ...SHARED.map((key) => share(model, store, key))];
  return () => cleanups.forEach((cleanup) => cleanup());
}

function share(model, store, key) {
  const fromPython = () => {
    const value = model.get(key) || null;
    if (value !== null || key !== "tab") store.set({ [key]: value }); // some panel is always shown
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

export default { render };
