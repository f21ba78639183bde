// What the panels that draw on a canvas share: sharp pixels, the style sheet's colours, hatching.

/**
 * Colours of the style sheet as a canvas understands them.
 * @param {HTMLElement} root Element inside the view.
 * @param {string[]} names As in `--ol-<name>`.
 * @returns {Record<string, string>}
 */
export function palette(root, names) {
  // Read off an element: a variable may hold light-dark() or a system colour, which only an element resolves.
  const probe = document.createElement("span");
  probe.hidden = true;
  root.append(probe);
  const found = Object.fromEntries(
    names.map((name) => {
      probe.style.color = `var(--ol-${name})`;
      return [name, getComputedStyle(probe).color];
    }),
  );
  probe.remove();
  return found;
}

/**
 * Fits a canvas to its element, one canvas pixel per pixel of the screen.
 * @param {HTMLCanvasElement} canvas
 * @returns {{context: CanvasRenderingContext2D, width: number, height: number}} Sizes in CSS pixels.
 */
export function fitted(canvas) {
  const ratio = globalThis.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** @returns {CanvasPattern} Thin slanted lines. */
export function hatching(context, colour, step = 6) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = step;
  const drawn = tile.getContext("2d");
  drawn.strokeStyle = colour;
  drawn.lineWidth = 1;
  drawn.beginPath();
  for (const shift of [-step, 0, step]) {
    drawn.moveTo(shift, step);
    drawn.lineTo(shift + step, 0);
  }
  drawn.stroke();
  return context.createPattern(tile, "repeat");
}

/** Draws again when the colours may have changed: the system's preference, or the notebook's theme on its body. */
export function onThemeChange(store, draw) {
  const preference = matchMedia("(prefers-color-scheme: dark)");
  const observer = new MutationObserver(draw);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind", "class"] });
  preference.addEventListener("change", draw);
  const unsubscribe = store.subscribe(["theme"], draw);
  return () => {
    observer.disconnect();
    preference.removeEventListener("change", draw);
    unsubscribe();
  };
}
