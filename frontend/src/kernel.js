// Questions to Python, over the messages of a widget. What is asked for on demand does not weigh on the notebook.

const PATIENCE_MS = 60_000; // Python answers between cells, and a cell may take a while

/**
 * @typedef {(what: string, about?: Record<string, any>, most?: number) => Promise<Uint8Array>} Ask Rejects with a sentence for people.
 *
 * @param {any} model The widget's model.
 * @param {() => boolean} alive Whether a kernel stands behind the notebook, as far as that is known.
 * @param {number} [patience] Milliseconds.
 * @returns {Ask}
 */
export function asker(model, alive, patience = PATIENCE_MS) {
  return (what, about = {}, most = patience) =>
    new Promise((resolve, reject) => {
      if (!alive()) return reject(new Error("This needs Python: start the notebook's kernel and run the cell again."));
      const number = String(Math.random()); // several views of one model hear each other's answers
      const heard = (message, buffers) => {
        if (message.answer !== number) return;
        done();
        if (message.error) reject(new Error(message.error));
        else resolve(bytesOf(buffers[0]));
      };
      const timer = setTimeout(() => {
        done();
        reject(new Error(`Python did not answer within ${most / 1000} seconds: a cell may still be running, or the kernel has stopped.`));
      }, most);
      const done = () => {
        clearTimeout(timer);
        model.off("msg:custom", heard);
      };
      model.on("msg:custom", heard);
      model.send({ ask: what, number, ...about });
    });
}

/** @returns {Uint8Array} Bytes out of what a notebook hands over: a DataView, which may be a window into a larger buffer. */
export function bytesOf(view) {
  return ArrayBuffer.isView(view) ? new Uint8Array(view.buffer, view.byteOffset, view.byteLength) : new Uint8Array(view);
}
