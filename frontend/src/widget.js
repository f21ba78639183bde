// The mount for notebooks: an anywidget module.
import { mountApp } from "./app.js";
import { createData, payloadFromBytes } from "./data.js";
import { createStore } from "./store.js";

/** State that the notebook and the browser share, both ways. */
const SHARED = ["selected", "tab", "graph"];

async function render({ model, el }) {
  const data = createData(await payloadFromBytes(model.get("payload")));
  const initial = Object.fromEntries(SHARED.map((key) => [key, model.get(key)]).filter(([, value]) => value !== undefined && value !== null && value !== ""));
  const store = createStore(data, initial);
  const cleanups = [mountApp(el, store), ...SHARED.map((key) => share(model, store, key))];
  return () => cleanups.forEach((cleanup) => cleanup());
}

function share(model, store, key) {
  const fromPython = () => store.set({ [key]: model.get(key) ?? null });
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
