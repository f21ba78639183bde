// What is open when a graph is first shown: enough to see its parts and where PyTorch comes in, little enough to read.
import { setOpen } from "./item.js";

const ROOM = 36; // boxes
const SMALL = 40; // operations of a graph that is shown whole
const SHARE = 0.05; // of all operations that a group must hold to be opened

/** @param {import("./item.js").Item} root */
export function openFirst(root) {
  setOpen(root, true);
  const whole = root.ort + root.torch;
  let room = ROOM - root.parts.length;
  let waiting = groups(root);
  while (waiting.length) {
    waiting.sort((a, b) => worth(b) - worth(a));
    const next = waiting.shift();
    if (!worthOpening(next, whole) || next.parts.length - 1 > room) continue;
    setOpen(next, true);
    room -= next.parts.length - 1;
    waiting = [...waiting, ...groups(next)];
  }
}

const groups = (item) => item.children.filter((child) => child.parts);

/** Groups that are partly in PyTorch first, then large ones. */
const worth = (item) => (item.torch && item.ort ? 1e9 : 0) + item.size;

function worthOpening(item, whole) {
  if (item.kind === "inputs" || item.kind === "page") return false;
  if (item.kind === "graph" || (item.torch > 0 && item.ort > 0)) return true;
  if (whole <= SMALL) return true;
  const hasGroups = item.parts.some((part) => typeof part !== "number");
  return item.kind !== "fold" && hasGroups && item.size >= SHARE * whole;
}
