// Where the view looks: wheel, drag, two fingers, and jumps to a box.

const [LEAST, MOST] = [0.002, 4];

export class Camera {
  /**
   * @param {HTMLElement} stage
   * @param {() => void} moved
   */
  constructor(stage, moved) {
    this.stage = stage;
    this.moved = moved;
    this.x = 0;
    this.y = 0;
    this.k = 1;
    this.pointers = new Map();
    this.dragged = false;
    const listen = (event, listener, options) => stage.addEventListener(event, listener, options);
    listen("wheel", (event) => this.wheel(event), { passive: false });
    listen("pointerdown", (event) => this.down(event));
    listen("pointermove", (event) => this.move(event));
    for (const event of ["pointerup", "pointercancel", "lostpointercapture"]) listen(event, (happened) => this.up(happened));
  }

  get view() {
    return { x: this.x, y: this.y, k: this.k, width: this.stage.clientWidth, height: this.stage.clientHeight };
  }

  /** Without the focus, the wheel scrolls the page. */
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && !this.stage.contains(this.stage.getRootNode().activeElement)) return;
    event.preventDefault();
    event.stopPropagation();
    const lines = event.deltaMode === 1 ? 18 : 1;
    if (event.shiftKey) this.panBy(-(event.deltaX || event.deltaY) * lines, 0);
    else this.zoomAt(event.clientX, event.clientY, Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0015)));
  }

  down(event) {
    if (event.button !== 0 || event.target.closest?.("[data-minimap], button")) return;
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (this.pointers.size === 1) this.dragged = false;
  }

  move(event) {
    const last = this.pointers.get(event.pointerId);
    if (!last) return;
    const [dx, dy] = [event.clientX - last.x, event.clientY - last.y];
    if (!this.dragged && Math.hypot(dx, dy) < 4) return;
    if (!this.dragged) this.stage.setPointerCapture(event.pointerId); // only now: a click must reach its box
    this.dragged = true;
    if (this.pointers.size === 2) this.pinch(event);
    else this.panBy(dx, dy);
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  }

  pinch(event) {
    const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    const last = this.pointers.get(event.pointerId);
    const far = Math.hypot(last.x - other.x, last.y - other.y) || 1;
    this.zoomAt(other.x, other.y, Math.hypot(event.clientX - other.x, event.clientY - other.y) / far);
  }

  up(event) {
    this.pointers.delete(event.pointerId);
  }

  panBy(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.moved();
  }

  /** Scales around a point of the page. */
  zoomAt(clientX, clientY, factor) {
    const { left, top } = this.stage.getBoundingClientRect();
    this.zoomAround(clientX - left, clientY - top, factor);
  }

  zoomAround(x, y, factor) {
    const k = Math.max(LEAST, Math.min(MOST, this.k * factor));
    this.x = x - ((x - this.x) * k) / this.k;
    this.y = y - ((y - this.y) * k) / this.k;
    this.k = k;
    this.moved();
  }

  zoom(factor) {
    this.zoomAround(this.stage.clientWidth / 2, this.stage.clientHeight / 2, factor);
  }

  /** @param {{w: number, h: number}} box @returns {number} Scale at which all of it is in view. */
  scaleOf({ w, h }) {
    const { height, width } = this.view;
    return Math.min(1, (width - 24) / w, (height - 24) / h);
  }

  /**
   * All of a box into view.
   * @param {{w: number, h: number}} box
   * @param {number} [least] Never smaller than this: then its top is shown.
   * @param {number} [corner] Width that is kept free, where there is room, when not all of it is shown.
   */
  fit({ w, h }, least = LEAST, corner = 0) {
    const { height, width: whole } = this.view;
    const k = Math.max(least, this.scaleOf({ w, h }));
    const width = h * k > height && w * k < whole - corner - 24 ? whole - corner : whole;
    this.k = k;
    this.x = w * k <= width ? (width - w * k) / 2 : 12;
    this.y = h * k <= height ? (height - h * k) / 2 : 12;
    this.moved();
  }

  /** Of a drawing that is wider than the view, shows the part around `x`. */
  lookAcross(x, whole) {
    const { width } = this.view;
    if (whole * this.k <= width) return;
    this.x = Math.min(12, Math.max(width - 12 - whole * this.k, width / 2 - x * this.k));
    this.moved();
  }

  /** Brings a rectangle to the middle, at a scale at which it can be read. */
  centre({ x, y, w, h }) {
    const { width, height } = this.view;
    const room = Math.min(1, (width - 40) / w, (height - 40) / h);
    this.k = Math.max(Math.min(this.k, Math.max(room, 0.3)), Math.min(0.75, Math.max(room, 0.3)));
    this.x = width / 2 - (x + w / 2) * this.k;
    this.y = Math.min(h * this.k > height - 40 ? 20 - y * this.k : Infinity, height / 2 - (y + h / 2) * this.k);
    this.moved();
  }

  /** Brings a rectangle into view with as little movement as it takes. */
  reveal({ x, y, w, h }) {
    const { width, height } = this.view;
    const shift = (at, size, room) => {
      const [from, to] = [at, at + size];
      if (size > room - 32) return from > room - 60 ? room - 60 - from : to < 60 ? 60 - to : 0;
      return from < 16 ? 16 - from : to > room - 16 ? room - 16 - to : 0;
    };
    const [dx, dy] = [shift(x * this.k + this.x, w * this.k, width), shift(y * this.k + this.y, h * this.k, height)];
    if (dx || dy) this.panBy(dx, dy);
  }
}
