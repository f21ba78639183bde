// The frame that Netron runs in, seen from the page around it. It may run scripts and nothing else: it has no origin, so it can
// read nothing of this page, and its rules forbid it to ask for anything. Messages are taken from this frame's window alone, and
// only with the token that it was given as its name.
import { el } from "./dom.js";

/**
 * @typedef {object} Drawing
 * @property {string} id Model.
 * @property {Uint8Array} bytes The model, serialised.
 * @property {string[]} names Nodes to highlight.
 *
 * @typedef {object} Frame
 * @property {HTMLIFrameElement} element
 * @property {(drawing: Drawing) => void} open Draws a model; one at a time.
 * @property {(names: string[]) => void} select Highlights nodes of the model that is drawn, and brings the first into view.
 * @property {(dark: boolean) => void} theme
 * @property {() => void} remove
 */

/** @returns {string} Nothing that another frame of the page could guess. */
const token = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");

/**
 * @param {HTMLElement} root Where it stands.
 * @param {string} html The frame's page.
 * @param {(message: {type: string, [key: string]: any}) => void} heard Messages of the frame: `ready`, `opened`, `selected`, `failed`, `leave`.
 * @returns {Frame}
 */
export function createFrame(root, html, heard) {
  const channel = token();
  const element = /** @type {HTMLIFrameElement} */ (el("iframe.ol-onnx-frame", { sandbox: "allow-scripts", name: channel, title: "The ONNX model in Netron; Escape leaves it", srcdoc: html }));
  const waiting = []; // until its script runs, nobody listens there
  let ready = false;

  const send = (message) => {
    if (!ready) waiting.push(message);
    else element.contentWindow?.postMessage({ ...message, channel }, "*"); // it has no origin to name
  };
  const listener = ({ source, data }) => {
    if (source !== element.contentWindow || data?.channel !== channel) return;
    if (data.type === "ready") {
      ready = true;
      waiting.splice(0).forEach(send);
    }
    heard(data);
  };
  window.addEventListener("message", listener);
  root.append(element);
  return {
    element,
    open: (drawing) => send({ type: "open", ...drawing }),
    select: (names) => send({ type: "select", names }),
    theme: (dark) => send({ type: "theme", dark }),
    remove() {
      window.removeEventListener("message", listener);
      element.remove();
    },
  };
}
