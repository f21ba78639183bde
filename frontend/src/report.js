// The mount for the HTML report: every element with `data-ortlens-payload` shows the data in the element of that id.
import { mountApp, mountFailure } from "./app.js";
import { createData, payloadFromBase64 } from "./data.js";
import { createStore } from "./store.js";

async function start(root) {
  const source = document.getElementById(root.dataset.ortlensPayload);
  root.textContent = "Opening the explorer…"; // unpacking takes a moment, in which the page is painted
  try {
    mountApp(root, createStore(createData(await payloadFromBase64(source.textContent))));
    root.dataset.ortlensReady = "yes";
  } catch (error) {
    mountFailure(root, error, "The summary and the tables on this page do not depend on it.");
    throw error; // stays visible in the console
  }
}

function startAll() {
  for (const root of document.querySelectorAll("[data-ortlens-payload]")) start(root);
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", startAll);
else startAll();
