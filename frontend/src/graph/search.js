// Finding operators and modules by name.

const MOST = 400; // rows that are remembered; the count goes on
const LISTED = 30;

/**
 * @param {import("./tree.js").Tree} tree
 * @param {import("./item.js").Item} root Only what is inside is found.
 * @param {string} text Words; each must be in the name, the operator, the module or the partition.
 * @returns {{rows: number[], count: number, groups: import("./item.js").Item[]}} Operations by their place; modules whose own name fits.
 */
export function search(tree, root, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return { rows: [], count: 0, groups: [] };
  const { name, target, module, partition, weights } = tree.ops;
  const fits = (texts) => {
    const joined = texts.filter(Boolean).join(" ").toLowerCase();
    return words.every((word) => joined.includes(word));
  };
  const rows = [];
  let count = 0;
  for (let at = root.low; at < root.high; at++) {
    const row = tree.order[at];
    if (!fits([name[row], target[row], module[row], partition[row], ...(weights.get(row) ?? []).map((weight) => weight.name)])) continue;
    count++;
    if (rows.length < MOST) rows.push(row);
  }
  const groups = [];
  for (const [, items] of tree.byId) {
    if (groups.length >= LISTED) break;
    groups.push(...items.filter((item) => item !== root && root.holds(item) && fits([item.title, item.note])));
  }
  return { rows, count, groups };
}

/** @returns {{title: string, selected: string}[]} Lines that run operators outside of the graphs, by their text and these operators. */
export function outsideOf({ overview }, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = ({ source, names }) => words.every((word) => `${source ?? ""} ${names.join(" ")}`.toLowerCase().includes(word));
  const found = words.length ? (overview.line_states ?? []).filter((line) => line.outside && fits(line)) : [];
  return found.slice(0, LISTED).map(({ id, source, names }) => ({ selected: id, title: source?.trim() || names.join(", ") }));
}

/** @returns {import("./item.js").Item[]} What a list shows: groups that fit, then operators. */
export function listed(tree, { rows, groups }) {
  const few = groups.slice(0, LISTED / 3);
  return [...few, ...rows.slice(0, LISTED - few.length).map((row) => tree.leaf(row))];
}
