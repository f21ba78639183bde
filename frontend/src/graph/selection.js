// The selection of the whole explorer, shown in the graph, and clicks in the graph passed on to it.

/**
 * @param {import("./view.js").View} view
 * @param {import("../store.js").Store} store
 * @returns {{choose: (item: import("./item.js").Item) => void, follow: () => void}}
 */
export function createSelection(view, store) {
  let own = null; // what was chosen here needs no jump

  function choose(item) {
    if (item.id === null) return show(store.get("selected")); // only this view knows it
    own = item.id;
    store.set({ selected: item.id });
    own = null;
    show(item.id);
  }

  function follow() {
    const id = store.get("selected");
    show(id);
    if (id === own || id === null) return;
    const target = [...view.chosen].find((item) => view.root.holds(item)) ?? [...view.chosen][0] ?? firstLinked();
    if (target && target !== view.root) view.goToWhenSeen(target);
    view.scene.remark();
  }

  function firstLinked() {
    return view.linked.length ? view.tree.leaf(view.tree.order[view.linked[0]]) : null;
  }

  function show(id) {
    const { items, rows } = id === null ? { items: [], rows: [] } : itemsOf(id);
    view.chosen = new Set(items);
    view.linked = rows.map((row) => view.tree.place[row]).sort((a, b) => a - b);
    view.scene.remark();
    view.ask();
  }

  /** Boxes that an id names; where it names none, the operators that it is linked to. */
  function itemsOf(id) {
    const { tree } = view;
    const groups = tree.byId.get(id) ?? [];
    if (groups.length) return { items: groups, rows: [] };
    const found = store.identity.rowOf(id);
    if (found?.table === "nodes") return { items: [tree.leaf(found.row)], rows: [] };
    const terminal = view.ops.terminalIds.indexOf(id);
    if (terminal >= 0) return { items: [tree.leaf(view.ops.nodes + terminal)], rows: [] };
    const rows = store.identity.nodeRows(id).filter((row) => row < view.ops.nodes);
    if (id.startsWith("module:") && rows.length === 1) return { items: [tree.leaf(rows[0])], rows: [] };
    if (!rows.length) return { items: graphsOf(id), rows: [] };
    return { items: [], rows };
  }

  /** A break or a recompile has no operator of its own: its graphs are shown. */
  function graphsOf() {
    const graphs = store.get("chain")?.graphs ?? [];
    return graphs.flatMap((link) => view.tree.byId.get(link.id) ?? []);
  }

  return { choose, follow };
}
