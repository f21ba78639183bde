// What is expanded when a graph is first shown: enough to see its parts and what stays in PyTorch, little enough to read.
import { groupsIn, setOpen } from "./item.js";

export const ROOMS = [30, 20, 12, 6, 0]; // boxes, the most first
const SMALL = 12; // operators of a graph that is shown whole
const SHARE = 0.05; // of all operators that a group must hold to be opened

/**
 * @param {import("./item.js").Item} root
 * @param {number} [most] Boxes.
 */
export function openFirst(root, most = ROOMS[0]) {
  for (const group of groupsIn(root)) setOpen(group, group === root);
  const whole = root.ort + root.torch;
  let room = most - root.parts.length;
  let waiting = [root];
  while (waiting.length) {
    const next = waiting.shift();
    // Siblings open together or not at all: one open layer of ten would look special. If there is no room for all of them,
    // only those with operators in PyTorch open: they are special.
    const worthy = groups(next).filter((child) => worthOpening(child, whole));
    const opening = [worthy, worthy.filter(isMixed)].find((children) => grown(children) <= room) ?? [];
    room -= grown(opening);
    for (const child of opening) setOpen(child, true);
    waiting = [...waiting, ...opening];
  }
}

const grown = (children) => children.reduce((sum, child) => sum + child.parts.length - 1, 0);
const isMixed = (item) => item.torch > 0 && item.ort > 0;
const groups = (item) => item.children.filter((child) => child.parts);

function worthOpening(item, whole) {
  if (item.kind === "inputs" || item.kind === "page" || item.kind === "versions" || item.size < 3) return false;
  if (item.kind === "graph" || isMixed(item) || whole <= SMALL) return true;
  const hasGroups = item.parts.some((part) => typeof part !== "number");
  return item.kind !== "fold" && hasGroups && item.size >= SHARE * whole;
}
