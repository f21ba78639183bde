// Operations by the segment that runs them: partitions in ONNX Runtime, and what PyTorch runs between them.
import { NEITHER, TORCH } from "./ops.js";

/**
 * @typedef {object} Segment
 * @property {string|null} partition Null for a segment that stays in PyTorch.
 * @property {number[]} rows
 */

/**
 * Nodes in PyTorch are one segment where they hang together with no partition between them, so that segments can run one after
 * the other. A node that is neither (a size, a check) goes where it is read, or else stands alone.
 *
 * @param {import("./ops.js").Ops} ops
 * @param {number[]} rows Operations of a graph, in the order in which they run.
 * @returns {{segments: Segment[], cycle: string[]}} Segments by their first operator; `cycle` names partitions of which each
 *   needs another one first, in order, which no cut should ever give.
 */
export function segmentsOf(ops, rows) {
  const unit = unitsOf(ops, rows); // row -> partition id, or the row itself
  const { level, left } = levelsOf(ops, rows, unit);
  const joined = joinedInTorch(ops, rows, unit, level);
  const segments = new Map();
  for (const row of rows) {
    const own = typeof unit.get(row) === "string" ? unit.get(row) : joined(unit.get(row));
    if (!segments.has(own)) segments.set(own, { partition: typeof own === "string" ? own : null, rows: [] });
    segments.get(own).rows.push(row);
  }
  return { segments: [...segments.values()], cycle: left.size ? cycleIn(ops, rows, unit, left) : [] };
}

function* sources(ops, row) {
  for (let at = ops.inStart[row]; at < ops.inStart[row + 1]; at++) yield ops.inRow[at];
}

function unitsOf(ops, rows) {
  const unit = new Map(rows.map((row) => [row, ops.partition[row] ?? row]));
  for (let at = rows.length - 1; at >= 0; at--) {
    const row = rows[at];
    if (ops.side[row] !== NEITHER || ops.outStart[row] === ops.outStart[row + 1]) continue;
    const reader = unit.get(ops.outRow[ops.outStart[row]]); // last to first: its own place is settled by now
    if (reader !== undefined) unit.set(row, reader);
  }
  return unit;
}

/** How many changes of side lie before each unit; those that wait for each other in a ring are left over. */
function levelsOf(ops, rows, unit) {
  const before = new Map(); // unit -> units that it waits for
  for (const row of rows) {
    const own = unit.get(row);
    if (!before.has(own)) before.set(own, new Set());
    for (const source of sources(ops, row)) {
      const other = unit.get(source);
      if (other !== undefined && other !== own) before.get(own).add(other);
    }
  }
  const after = new Map();
  for (const [own, others] of before) for (const other of others) after.has(other) ? after.get(other).push(own) : after.set(other, [own]);
  const waiting = new Map([...before].map(([own, others]) => [own, others.size]));
  const level = new Map();
  const ready = [...waiting].filter(([, count]) => count === 0).map(([own]) => own);
  for (const own of ready) level.set(own, 0);
  for (let at = 0; at < ready.length; at++) {
    for (const next of after.get(ready[at]) ?? []) {
      const step = typeof next === "string" || typeof ready[at] === "string" ? 1 : 0;
      level.set(next, Math.max(level.get(next) ?? 0, level.get(ready[at]) + step));
      waiting.set(next, waiting.get(next) - 1);
      if (waiting.get(next) === 0) ready.push(next);
    }
  }
  const done = new Set(ready);
  return { level, left: new Map([...before].filter(([own]) => !done.has(own))) };
}

function joinedInTorch(ops, rows, unit, level) {
  const parent = new Map();
  const find = (own) => {
    let at = own;
    while (parent.has(at)) at = parent.get(at);
    if (at !== own) parent.set(own, at);
    return at;
  };
  for (const row of rows) {
    const own = unit.get(row);
    if (typeof own === "string" || ops.side[row] !== TORCH) continue;
    for (const source of sources(ops, row)) {
      const other = unit.get(source);
      if (typeof other !== "number" || level.get(other) !== level.get(own)) continue;
      const [a, b] = [find(other), find(own)];
      if (a !== b) parent.set(Math.max(a, b), Math.min(a, b));
    }
  }
  return find;
}

/** One ring among the units that are left: every one of them waits for another, so going back must come round. */
function cycleIn(ops, rows, unit, left) {
  const seen = new Map();
  const path = [];
  let own = left.keys().next().value;
  while (!seen.has(own)) {
    seen.set(own, path.length);
    path.push(own);
    own = [...left.get(own)].find((other) => left.has(other));
  }
  return path.slice(seen.get(own)).reverse().map((unitOf) => (typeof unitOf === "string" ? unitOf : ops.name[unitOf]));
}
