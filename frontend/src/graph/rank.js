// A plain layered layout in linear time, for groups that are too large for dagre or that it fails on.

/**
 * @param {{w: number, h: number}[]} boxes In the order in which they run.
 * @param {{from: number, to: number}[]} wires Between boxes.
 * @param {{across: number, down: number}} gaps
 * @returns {{x: number, y: number}[]} Centres.
 */
export function rankedLayout(boxes, wires, gaps) {
  const rows = rowsOf(boxes.length, wires);
  const sources = new Map();
  for (const { from, to } of wires) sources.has(to) ? sources.get(to).push(from) : sources.set(to, [from]);
  const places = new Array(boxes.length);
  let y = 0;
  for (const row of rows) {
    const wanted = new Map(row.map((box) => [box, meanX(sources.get(box), places)]));
    row.sort((a, b) => wanted.get(a) - wanted.get(b) || a - b);
    for (const line of lines(row)) y = place(line, y);
  }
  return places;

  function place(line, top) {
    const width = line.reduce((sum, box) => sum + boxes[box].w + gaps.across, -gaps.across);
    const height = Math.max(...line.map((box) => boxes[box].h));
    let x = -width / 2;
    for (const box of line) {
      places[box] = { x: x + boxes[box].w / 2, y: top + height / 2 };
      x += boxes[box].w + gaps.across;
    }
    return top + height + gaps.down;
  }
}

/** Boxes by the longest way to them; a wire against the running order, as in a cycle, does not count. */
function rowsOf(count, wires) {
  const rank = new Int32Array(count);
  const forward = wires.filter(({ from, to }) => from < to).sort((a, b) => a.from - b.from);
  for (const { from, to } of forward) rank[to] = Math.max(rank[to], rank[from] + 1);
  const rows = [];
  for (let box = 0; box < count; box++) (rows[rank[box]] ??= []).push(box);
  return rows.filter(Boolean);
}

function meanX(sources, places) {
  const known = (sources ?? []).map((source) => places[source]).filter(Boolean);
  return known.length ? known.reduce((sum, place) => sum + place.x, 0) / known.length : 0;
}

/** A row of hundreds of boxes that wait for nothing would be a ribbon: it is broken into lines. */
function lines(row) {
  const most = Math.max(8, Math.ceil(Math.sqrt(row.length * 1.2)));
  const found = [];
  for (let at = 0; at < row.length; at += most) found.push(row.slice(at, at + most));
  return found;
}
