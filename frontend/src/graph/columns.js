// A long chain of boxes is a ribbon that nobody can read when all of it is in view: it is broken into columns.

const TALL = 600; // pixels that are still looked at by scrolling
const ASPECT = 1.75; // of what results, width to height: that of most windows
const FEW = [3, 8, 24]; // values that may cross from one column to the next; more only where there is no better place
const GUTTER = 44; // between columns, at least
const MOST_COLUMNS = 40;
const TRIES = 60; // heights of a column that are tried
const HEAD = -8; // above the boxes of a column, where wires turn
const LEAD = 10; // between a box and the turn of a wire

/**
 * @typedef {object} Laid Centres of boxes, and points of wires.
 * @property {{x: number, y: number}[]} places
 * @property {{points: {x: number, y: number}[], x?: number, y?: number, wrapped?: boolean}[]} routes `x` and `y` are the
 *   centre of a label; a wire between columns is `wrapped`.
 * @property {{in?: number, out?: number}} doors Where wires enter at the top and leave at the bottom.
 *
 * @param {{w: number, h: number}[]} boxes
 * @param {import("./wires.js").Wire[]} wires
 * @param {Laid} laid
 * @param {number} [label] Width of the widest label.
 * @returns {Laid} The same, or in columns.
 */
export function columnsOf(boxes, wires, laid, label = 0) {
  const gutter = Math.max(GUTTER, label);
  if (boxes.length < 4) return laid;
  const spans = laid.places.map(({ y }, at) => [y - boxes[at].h / 2, y + boxes[at].h / 2]);
  const top = Math.min(...spans.map(([from]) => from));
  const height = Math.max(...spans.map(([, to]) => to)) - top;
  const width = Math.max(...laid.places.map(({ x }, at) => x + boxes[at].w / 2)) - Math.min(...laid.places.map(({ x }, at) => x - boxes[at].w / 2));
  if (height < TALL) return laid;
  const places = calmOf(spans, wires);
  const cuts = FEW.map((few) => cutsOf(places(few), { top, height, width: width + gutter })).find((found) => found.length) ?? [];
  return cuts.length ? new Columns(boxes, wires, laid, cuts, gutter).laid() : laid;
}

/** A function to heights between boxes where few wires cross. */
function calmOf(spans, wires) {
  const gaps = [];
  let reach = Infinity;
  for (const [from, to] of [...spans].sort((a, b) => a[0] - b[0])) {
    if (from > reach + 8) gaps.push((from + reach) / 2);
    reach = reach === Infinity ? to : Math.max(reach, to);
  }
  const inner = wires.filter(({ from, to }) => from >= 0 && to >= 0);
  const crossing = (y) => new Set(inner.filter(({ from, to }) => spans[from][1] < y && spans[to][0] > y).map(({ from }) => from)).size;
  const crossed = gaps.map(crossing);
  return (few) => gaps.filter((_, at) => crossed[at] <= few);
}

/** The cuts with which all of it can be drawn the largest. */
function cutsOf(calm, { top, height, width }) {
  const tries = Array.from({ length: TRIES }, (_, at) => filled(calm, top, top + height, (height * (at + 1)) / TRIES));
  const scale = (cuts) => {
    const bounds = [top, ...cuts, top + height];
    const tallest = Math.max(...bounds.slice(1).map((to, at) => to - bounds[at]));
    return cuts.length < MOST_COLUMNS ? Math.min(ASPECT / ((cuts.length + 1) * width), 1 / tallest) : 0;
  };
  const largest = Math.max(...tries.map(scale));
  const good = tries.filter((cuts) => scale(cuts) >= 0.88 * largest);
  return good.reduce((best, cuts) => (cuts.length < best.length ? cuts : best), good[0] ?? []); // columns that hardly help only part what belongs together
}

/** Cuts such that no column is taller than `most`, where that can be. */
function filled(calm, top, bottom, most) {
  const cuts = [];
  let from = top;
  while (bottom - from > most) {
    const within = calm.filter((y) => y > from && y - from <= most).at(-1) ?? calm.find((y) => y > from);
    if (within === undefined) break;
    cuts.push(within);
    from = within;
  }
  return cuts;
}

class Columns {
  constructor(boxes, wires, { places, routes, doors }, cuts, gutter) {
    Object.assign(this, { boxes, wires, routes, doors, gutter, last: cuts.length });
    this.column = places.map(({ y }) => cuts.filter((cut) => y > cut).length);
    const within = this.routes.map((_, at) => this.columnOfWire(wires[at]));
    const extents = Array.from({ length: cuts.length + 1 }, () => ({ left: Infinity, right: -Infinity, top: Infinity, bottom: -Infinity }));
    const reach = (at, x, y, w, h) => {
      const { left, right, top, bottom } = extents[at];
      extents[at] = { left: Math.min(left, x - w), right: Math.max(right, x + w), top: Math.min(top, y - h), bottom: Math.max(bottom, y + h) };
    };
    places.forEach(({ x, y }, at) => reach(this.column[at], x, y, boxes[at].w / 2, boxes[at].h / 2));
    routes.forEach(({ points }, at) => within[at] >= 0 && points.slice(1, -1).forEach(({ x, y }) => reach(within[at], x, y, 0, 0)));
    let x = 0;
    for (const own of extents) {
      Object.assign(own, { dx: x - own.left, dy: -own.top });
      x += own.right - own.left + gutter;
    }
    Object.assign(this, { within, extents, foot: Math.max(...extents.map((own) => own.bottom - own.top)) + 12 });
    this.places = places.map((place, at) => this.moved(place, this.column[at]));
  }

  /** Column that a wire stays in; -1 for one that leaves its column. */
  columnOfWire({ from, to }) {
    const start = from < 0 ? 0 : this.column[from];
    const end = to < 0 ? this.last : this.column[to];
    return start === end ? start : -1;
  }

  moved({ x, y }, column) {
    return { x: x + this.extents[column].dx, y: y + this.extents[column].dy };
  }

  /** @returns {Laid} */
  laid() {
    const routes = this.routes.map((route, at) => (this.within[at] < 0 ? this.byGutter(this.wires[at]) : this.inColumn(route, this.within[at])));
    const door = (x, column) => (x === undefined ? undefined : x + this.extents[column].dx);
    return { places: this.places, routes, doors: { in: door(this.doors.in, 0), out: door(this.doors.out, this.last) } };
  }

  inColumn(route, column) {
    const label = Number.isFinite(route.x) ? this.moved(route, column) : {};
    return { points: route.points.map((point) => this.moved(point, column)), ...label };
  }

  /** Out to the gutter beside its column, along it, and to the box; around the foot of the columns that it passes. */
  byGutter({ from, to }) {
    const start = from < 0 ? 0 : this.column[from];
    const end = to < 0 ? this.last : this.column[to];
    const exit = this.extents[start].right + this.extents[start].dx + this.gutter / 2;
    const entry = this.extents[end].left + this.extents[end].dx - this.gutter / 2;
    const a = from < 0 ? { x: 0, y: HEAD } : { x: this.places[from].x, y: this.places[from].y + this.boxes[from].h / 2 };
    const b = to < 0 ? { x: 0, y: this.foot } : { x: this.places[to].x, y: this.places[to].y - this.boxes[to].h / 2 };
    const out = from < 0 ? [{ x: entry, y: HEAD }] : [{ x: a.x, y: a.y + LEAD }, { x: exit, y: a.y + LEAD }];
    const around = end - start > 1 && from >= 0 ? [{ x: exit, y: this.foot }, { x: entry, y: this.foot }] : [];
    const last = to < 0 ? [{ x: exit, y: this.foot }] : [{ x: entry, y: b.y - LEAD }, { x: b.x, y: b.y - LEAD }];
    return { points: [a, ...out, ...around, ...last, b], wrapped: true, ...(to < 0 ? { x: exit, y: a.y + LEAD } : { x: entry, y: b.y + LEAD }) };
  }
}
