// All of the graph in a corner, with a frame around what is in view.
import { el } from "../dom.js";

const WIDTH = 150;
const HEIGHT = 110;
const DEEP = 3; // levels of groups that are drawn

export class Minimap {
  /**
   * @param {HTMLElement} stage
   * @param {import("./view.js").View} view
   */
  constructor(stage, view) {
    this.view = view;
    this.canvas = /** @type {HTMLCanvasElement} */ (el("canvas", { width: WIDTH * 2, height: HEIGHT * 2 }));
    this.frame = el("div.olg-minimap-frame");
    this.samples = { ink: el("span"), ort: el("span.olg-is-ort"), torch: el("span.olg-is-torch") }; // a canvas knows no variables
    this.root = el("div.olg-minimap", { "data-minimap": true, "aria-hidden": "true", title: "Overview of the graph; drag the frame" }, this.canvas, this.frame, ...Object.values(this.samples));
    const go = (event) => event.buttons & 1 && this.look(event);
    for (const event of ["pointerdown", "pointermove"]) this.root.addEventListener(event, go);
    stage.append(this.root);
  }

  look(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const { camera } = this.view;
    const { width, height, k } = camera.view;
    camera.x = width / 2 - ((event.clientX - left - this.x) / this.scale) * k;
    camera.y = height / 2 - ((event.clientY - top - this.y) / this.scale) * k;
    camera.moved();
  }

  /** Draws the boxes anew. */
  draw() {
    const { root } = this.view;
    const context = this.canvas.getContext("2d");
    this.colours = Object.fromEntries(Object.entries(this.samples).map(([name, sample]) => [name, getComputedStyle(sample).color]));
    this.scale = Math.min((WIDTH - 8) / root.w, (HEIGHT - 8) / root.h);
    this.x = (WIDTH - root.w * this.scale) / 2;
    this.y = (HEIGHT - root.h * this.scale) / 2;
    context.setTransform(2, 0, 0, 2, 0, 0);
    context.clearRect(0, 0, WIDTH, HEIGHT);
    this.box(context, root, this.x, this.y, 0);
  }

  box(context, item, x, y, depth) {
    const [w, h] = [item.w * this.scale, item.h * this.scale];
    const opened = item.open && depth < DEEP && h > 3;
    context.globalAlpha = opened ? 0.08 : 0.45;
    context.fillStyle = item.ort ? this.colours.ort : this.colours.ink;
    context.fillRect(x, y, Math.max(1, w), Math.max(1, h));
    if (opened) for (const child of item.children) this.box(context, child, x + child.x * this.scale, y + child.y * this.scale, depth + 1);
    else if (item.torch) this.mark(context, item, x, y, w, h);
  }

  /** What stays in PyTorch is seen however small it is. */
  mark(context, item, x, y, w, h) {
    const share = item.torch / (item.ort + item.torch);
    context.globalAlpha = 1;
    context.fillStyle = this.colours.torch;
    context.fillRect(x, y + h - Math.max(2, h * share), Math.max(2, w), Math.max(2, h * share));
  }

  /** Moves the frame. */
  follow({ x, y, k, width, height }) {
    if (this.drawnOf !== this.view.root.plan) {
      this.drawnOf = this.view.root.plan;
      this.draw();
    }
    const cut = (value, most) => Math.max(0, Math.min(most, value));
    const left = cut(this.x + (-x / k) * this.scale, WIDTH);
    const top = cut(this.y + (-y / k) * this.scale, HEIGHT);
    const right = cut(this.x + ((width - x) / k) * this.scale, WIDTH);
    const bottom = cut(this.y + ((height - y) / k) * this.scale, HEIGHT);
    this.frame.style.transform = `translate(${left}px, ${top}px)`;
    this.frame.style.width = `${Math.max(4, right - left)}px`;
    this.frame.style.height = `${Math.max(4, bottom - top)}px`;
    const { w, h } = this.view.root;
    this.root.hidden = width < 420 || height < 260 || (x >= 0 && y >= 0 && x + w * k <= width && y + h * k <= height); // all is in view

  }
}
