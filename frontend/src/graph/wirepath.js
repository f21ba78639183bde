// Wires as SVG paths: one path for all alike wires of a group, so that a group costs a few elements however many it has.

const HEAD = 5; // of an arrow, pixels

const r = (value) => Math.round(value * 10) / 10;

/** A smooth way down through points; a square one where the wire goes along a gutter. */
export function pathOf({ points, wrapped, back }) {
  if (points.length < 4) return "";
  return wrapped ? squarePath(points) : back ? linePath(points) : smoothPath(points);
}

function smoothPath(points) {
  let d = `M${r(points[0])} ${r(points[1])}`;
  for (let at = 2; at < points.length; at += 2) {
    const [x0, y0, x1, y1] = [points[at - 2], points[at - 1], points[at], points[at + 1]];
    const middle = r((y0 + y1) / 2);
    d += Math.abs(x0 - x1) < 0.5 ? `L${r(x1)} ${r(y1)}` : `C${r(x0)} ${middle} ${r(x1)} ${middle} ${r(x1)} ${r(y1)}`;
  }
  return d;
}

function linePath(points) {
  let d = `M${r(points[0])} ${r(points[1])}`;
  for (let at = 2; at < points.length; at += 2) d += `L${r(points[at])} ${r(points[at + 1])}`;
  return d;
}

/** Corners rounded by 6 pixels. */
function squarePath(points) {
  let d = `M${r(points[0])} ${r(points[1])}`;
  for (let at = 2; at < points.length - 2; at += 2) {
    const [x, y] = [points[at], points[at + 1]];
    const before = toward(x, y, points[at - 2], points[at - 1]);
    const after = toward(x, y, points[at + 2], points[at + 3]);
    d += `L${before}Q${r(x)} ${r(y)} ${after}`;
  }
  return `${d}L${r(points.at(-2))} ${r(points.at(-1))}`;
}

function toward(x, y, tx, ty) {
  const far = Math.hypot(tx - x, ty - y) || 1;
  const step = Math.min(6, far / 2);
  return `${r(x + ((tx - x) * step) / far)} ${r(y + ((ty - y) * step) / far)}`;
}

/** The head of an arrow at the end of a wire. */
export function headOf({ points, back }) {
  if (points.length < 4) return "";
  const [x, y] = [points.at(-2), points.at(-1)];
  if (back) return turned(x, y, x - points.at(-4), y - points.at(-3));
  return `M${r(x)} ${r(y)}l${-HEAD * 0.7} ${-HEAD * 1.3}h${HEAD * 1.4}z`;
}

function turned(x, y, dx, dy) {
  const far = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [(dx / far) * HEAD * 1.3, (dy / far) * HEAD * 1.3];
  return `M${r(x)} ${r(y)}L${r(x - ux - uy * 0.55)} ${r(y - uy + ux * 0.55)}L${r(x - ux + uy * 0.55)} ${r(y - uy - ux * 0.55)}z`;
}

/**
 * @param {import("./layout.js").Plan} plan
 * @param {import("./wires.js").Wire[]} wires
 * @param {(wire: import("./wires.js").Wire, at: number) => boolean} wanted
 * @returns {{lines: string, heads: string}}
 */
export function joinedPaths(plan, wires, wanted) {
  let [lines, heads] = ["", ""];
  wires.forEach((wire, at) => {
    if (!wanted(wire, at)) return;
    lines += pathOf(plan.routes[at]);
    if (wire.to >= 0) heads += headOf(plan.routes[at]);
  });
  return { lines, heads };
}
