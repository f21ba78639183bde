// Copying text, also where a page may not.
import { el } from "./dom.js";

/** @returns {Promise<boolean>} Whether the clipboard took it. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // frames without the permission, as some notebooks' outputs are
  }
}

/**
 * Copies, and says so in a button for a while. Where the page may not write to the clipboard, the text stands ready beside it.
 * @param {HTMLElement} button
 * @param {string} text
 * @param {{done: string, name: string}} words What the button says when it is done; what the text is.
 */
export async function copyFrom(button, text, { done, name }) {
  const label = button.textContent;
  if (!(await copied(text))) return offer(button, text, name);
  button.textContent = done;
  setTimeout(() => button.textContent === done && (button.textContent = label), 2000);
}

function offer(beside, text, name) {
  const box = el("textarea.ol-copy", { readonly: true, "aria-label": `${name}, press Ctrl C to copy` });
  box.value = text;
  box.addEventListener("blur", () => box.remove());
  beside.after(box);
  box.focus();
  box.select();
}
