// The mount for the HTML report: every element with `data-ortlens-payload` shows the data in the element of that id.
import { followAddress } from "./address.js";
import { mountApp, mountFailure } from "./app.js";
import { bytesFromBase64, createData, payloadFromBase64 } from "./data.js";
import { onnxPanel } from "./onnx.js";
import { createStore } from "./store.js";

async function start(root, isFirst) {
  const source = document.getElementById(root.dataset.ortlensPayload);
  root.textContent = "Opening the explorer…"; // unpacking takes a moment, in which the page is painted
  try {
    const store = createStore(createData(await payloadFromBase64(source.textContent)));
    const models = modelsOnPage();
    if (isFirst) followAddress(store);
    const page = isFirst ? document : undefined;
    mountApp(root, store, models.ids.length || models.notes.length ? { onnx: onnxPanel(models), page } : { page });
    followTheme(store);
    root.dataset.ortlensReady = "yes";
  } catch (error) {
    mountFailure(root, error, "The summary and the tables on this page still work.");
    for (const part of sections()) part.open = true;
    throw error; // stays visible in the console
  }
}

const sections = () => document.querySelectorAll("details.or-part");

/** The page around the explorer has the theme that was chosen in it. */
function followTheme(store) {
  store.subscribe(["theme"], () => {
    document.documentElement.dataset.theme = store.get("theme");
  });
}

/** Folded sections would be missing on paper. */
function unfoldForPrint() {
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...sections()].filter((part) => !part.open);
    for (const part of folded) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of folded) part.open = false;
  });
}

/** The ONNX models that the page carries: an element per model, and one for the frame that draws them. */
function modelsOnPage() {
  const frame = document.querySelector("script[data-ortlens-frame]");
  const models = new Map([...document.querySelectorAll("script[data-ortlens-model]")].map((element) => [element.dataset.ortlensModel, element]));
  const notes = [...document.querySelectorAll("[data-ortlens-onnx-note]")].map((element) => element.textContent);
  return { ids: [...models.keys()], notes, frame: () => frame && bytesFromBase64(frame.textContent), model: (id) => bytesFromBase64(models.get(id).textContent) };
}

function startAll() {
  unfoldForPrint();
  [...document.querySelectorAll("[data-ortlens-payload]")].forEach((root, at) => start(root, at === 0));
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", startAll);
else startAll();
