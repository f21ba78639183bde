// The module that every output carries. It is tiny: the explorer's code and the capture are models of their own, held once
// per kernel, however many outputs show them. A page loads code of the same digest once, whichever notebook brings it.
import { payloadFromBytes } from "./data.js";
import { asker } from "./kernel.js";

/** @type {Map<string, Promise<{module: any, css: string}>>} By digest: one page may hold notebooks of two versions. */
const loaded = (globalThis[Symbol.for("ortlens.explorer")] ??= new Map());

async function render({ model, el }) {
  el.textContent = "Opening the explorer…";
  const held = {};
  const alive = () => held.data?.comm_live !== false;
  const ask = asker(model, alive);
  try {
    const { module, css } = await code(model.get("_digest"), () => content(model, "code", held, ask));
    const packed = await content(model, "data", held, ask);
    addStyle(el, model.get("_digest"), css);
    const unmount = await module.mount({ model, el, packed, ask });
    const showSummary = hideSummary(model.get("_summary"));
    return () => {
      showSummary();
      unmount();
    };
  } catch (error) {
    el.textContent = `The explorer could not start: ${error.message} The frames, such as lens.graphs, still work.`;
    console.warn(error);
  }
}

function code(digest, fetchCode) {
  if (!loaded.has(digest)) {
    const loading = load(fetchCode);
    loaded.set(digest, loading);
    loading.catch(() => loaded.delete(digest)); // the next output tries again
  }
  return loaded.get(digest);
}

async function load(fetchCode) {
  const { js, css } = await payloadFromBytes(await fetchCode());
  const url = URL.createObjectURL(new Blob([js], { type: "text/javascript" }));
  try {
    return { module: await import(url), css };
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** The bytes of a model that several outputs share, always the same object; a host that knows no other models asks Python. */
async function content(model, name, held, ask) {
  try {
    held[name] = await model.widget_manager.get_model(model.get(`_${name}`));
    return held[name].get("content");
  } catch {
    return ask(name);
  }
}

/** The summary stands in an output of its own, for viewers that know no widgets; by a rule, as notebooks draw outputs when they like. */
function hideSummary(name) {
  if (!name) return () => {};
  const style = document.createElement("style");
  style.textContent = `.${name} { display: none } .jp-OutputArea-child:has(> .jp-OutputArea-output .${name}) { display: none }`;
  document.head.append(style);
  return () => style.remove();
}

function addStyle(el, digest, css) {
  const root = el.getRootNode();
  const home = root instanceof ShadowRoot ? root : document.head;
  if (home.querySelector(`style[data-ortlens="${digest}"]`)) return;
  const style = document.createElement("style");
  style.dataset.ortlens = digest;
  style.textContent = css;
  home.append(style);
}

export default { render };
