// Runs inside the frame that ortlens/views/netron.py makes: unpacks Netron's own modules, opens one model at a time,
// and talks to the page around it. Nothing is loaded from anywhere: the page's rules forbid it, and so does the sandbox.
//
// Messages, each with the `channel` that the page gave the frame as its name:
//   to the frame    open {id, bytes, names}   select {names}   theme {dark}   focus
//   from the frame  ready   opened {id, nodes, ms}   selected {id, name}   failed {id, message}   leave
(async () => {
  "use strict";
  const nonce = document.currentScript.nonce; // lets a script of ours in where the page around allows inline scripts alone
  const channel = window.name;
  const around = window.parent === window || !channel ? null : window.parent;
  const tell = (message) => around?.postMessage({ ...message, channel }, "*"); // a sandboxed frame has no origin to name

  const element = (id) => document.getElementById(id);
  const script = (text) => URL.createObjectURL(new Blob([text], { type: "text/javascript" }));

  function bytesOf(id) {
    const binary = atob(element(id).textContent);
    const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  }

  // ---- Netron's modules ----

  /** Formats that Netron would look for in any file, and that are not here. */
  const ABSENT = `
    const none = { open: () => null, import: async () => {} };
    const made = { zip: { Archive: none }, tar: { Archive: none }, json: { TextReader: none }, xml: { TextReader: none }, flatbuffers: { BinaryReader: none } };`;

  /**
   * Netron's layout, kept from taking the page down. It places a bend on every row that an arrow passes: a mask that each of 32
   * layers reads gives half a million. Where there are too many, long arrows are left out of it and drawn as their two ends, and
   * where that does not help, the layout is refused. Netron's own choice for large graphs, which ranks every input at the top,
   * is not followed: with it 4,000 boxes took all the memory there is. Runs in the worker too.
   */
  function bounded(layout, { free, long, most }) {
    /** Rows, when inputs stand right above what reads them. */
    function ranks(nodes, edges) {
      const readers = new Map(nodes.map(({ v }) => [v, []]));
      const waiting = new Map(nodes.map(({ v }) => [v, 0]));
      for (const { v, w } of edges) {
        readers.get(v).push(w);
        waiting.set(w, waiting.get(w) + 1);
      }
      const order = nodes.map(({ v }) => v).filter((v) => !waiting.get(v));
      const rank = new Map(order.map((v) => [v, 0]));
      const inputs = [...order];
      for (const v of order) {
        for (const w of readers.get(v)) {
          rank.set(w, Math.max(rank.get(w) ?? 0, rank.get(v) + 1));
          waiting.set(w, waiting.get(w) - 1);
          if (!waiting.get(w)) order.push(w);
        }
      }
      for (const v of inputs) rank.set(v, readers.get(v).reduce((least, w) => Math.min(least, rank.get(w)), Infinity) - 1);
      return rank;
    }
    /** A long arrow's two ends alone, where it leaves and where it arrives; `stubs` draws them. */
    function shorten(nodes, edges, turned) {
      const boxes = new Map(nodes.map((box) => [box.v, box]));
      const arrived = new Map();
      for (const edge of edges) {
        const [from, to] = [boxes.get(edge.v), boxes.get(edge.w)];
        const nth = arrived.get(edge.w) ?? 0; // several beside each other
        arrived.set(edge.w, nth + 1);
        edge.points = Object.assign([{ x: from.x, y: from.y }, { x: to.x, y: to.y }], { stub: { nth, turned } });
        const place = turned ? { x: to.x - to.width / 2 - 40 - edge.width / 2, y: to.y + nth * 14 } : { x: to.x + nth * 14 + edge.width / 2 + 8, y: to.y - to.height / 2 - 24 };
        Object.assign(edge, place);
      }
    }
    return (nodes, edges, options, state) => {
      const rank = ranks(nodes, edges);
      const bends = ({ v, w }) => Math.max(0, rank.get(w) - rank.get(v) - 1) || 0;
      const total = (some) => some.reduce((sum, edge) => sum + bends(edge), 0);
      const apart = total(edges) > free ? edges.filter((edge) => bends(edge) > long) : [];
      const rest = apart.length ? edges.filter((edge) => bends(edge) <= long) : edges;
      const rows = total(rest);
      if (rows > most) throw new Error(`its arrows are too long for Netron's layout, which would place ${rows.toLocaleString("en")} bends; the limit is ${most.toLocaleString("en")}`);
      if (options.ranker === "longest-path") options.ranker = "tight-tree";
      layout(nodes, rest, options, state);
      shorten(nodes, apart, options.rankdir === "LR");
    };
  }
  // Measured: 57,000 bends take 1.2 GB and 14 s, 165,000 take 1.9 GB and 49 s.
  const BENDS = { free: 30_000, long: 60, most: 120_000 };

  const bundle = (modules) => `(() => { "use strict"; ${ABSENT}
    const modules = {\n${Object.entries(modules).map(([name, body]) => `${JSON.stringify(name)}(need, later) {\n${body}\n}`).join(",\n")}\n};
    const bounded = ${bounded};
    const need = (name) => {
      if (!(name in made) && !(name in modules)) throw new Error("Netron's module '" + name + "' is not part of this page.");
      made[name] ??= modules[name](need, later);
      if (name === "dagre" && !made.safe) made.safe = { ...made.dagre, layout: bounded(made.dagre.layout, ${JSON.stringify(BENDS)}) };
      return name === "dagre" ? made.safe : made[name];
    };
    const later = async (name) => need(name);
    self.ortlensNetron = need;
  })();`;

  /** Runs a script by blob URL; where the page around forbids those, as an inline one. */
  function run(text) {
    return new Promise((resolve, reject) => {
      const done = () => (window.ortlensNetron ? resolve(window.ortlensNetron) : reject(new Error("the rules of the page around do not let Netron run here")));
      const inline = () => {
        document.head.append(Object.assign(document.createElement("script"), { nonce, textContent: text }));
        done();
      };
      document.head.append(Object.assign(document.createElement("script"), { nonce, src: script(text), onload: done, onerror: inline }));
    });
  }

  /** A worker for the layout; null where the page around allows none: the layout then holds the frame up. */
  function layoutWorker(modules) {
    const text = `${bundle({ dagre: modules.dagre })}
      self.addEventListener("message", ({ data }) => {
        if (data === "there?") return self.postMessage("here");
        try {
          self.ortlensNetron("dagre").layout(data.nodes, data.edges, data.layout, data.state);
          self.postMessage(data);
        } catch (error) {
          self.postMessage({ type: "error", message: error.message });
        }
      });`;
    const start = () => new Worker(script(text));
    return new Promise((resolve) => {
      try {
        const probe = start();
        const answer = (works) => {
          clearTimeout(patience);
          probe.terminate();
          resolve(works ? start : null);
        };
        const patience = setTimeout(() => answer(false), 5000);
        probe.onmessage = () => answer(true);
        probe.onerror = (event) => {
          event.preventDefault();
          answer(false);
        };
        probe.postMessage("there?");
      } catch {
        resolve(null);
      }
    });
  }

  // ---- what Netron asks of its surroundings ----

  /** Stands in for Netron's browser host: no cookies, no telemetry, no files, no network. */
  class Host {
    constructor(packed, worker, note) {
      Object.assign(this, { packed, start: () => {}, worker, note, window, document, type: "Frame", version: packed.version });
    }
    environment(name) {
      return { name: "Netron", serial: !this.worker, menu: false, packaged: false, repository: "", agent: "", platform: undefined }[name];
    }
    async view() {}
    async require(id) {
      return this.need(id.replace("./", ""));
    }
    async asset(file) {
      if (file === "onnx-metadata.json") return this.packed.operators;
      throw new Error(`'${file}' is not part of this page.`);
    }
    async fetch() {
      throw new Error("Weights are not part of this page.");
    }
    async _fetch() {
      return this.fetch();
    }
    async message(text, alert, action) {
      return this.note(text, action);
    }
    exception(error) {
      this.failed = error;
    }
    get() {}
    set() {}
    delete() {}
    event() {}
    update() {}
    openURL() {}
    async execute() {}
  }

  /** A line over the drawing, with a button where there is something to decide. */
  function note(text, action) {
    const line = element("ortlens-note");
    line.hidden = !text;
    line.textContent = text ?? "";
    if (!text || !action) return Promise.resolve(0);
    return new Promise((resolve) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: action });
      button.addEventListener("click", () => {
        line.hidden = true;
        resolve(0);
      });
      line.append(" ", button);
    });
  }

  // ---- looks ----

  /** Netron's own markup and styles, less what would make the page ask for something. */
  function dress(packed) {
    for (const style of packed.styles) document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
    document.body.className = "welcome spinner";
    const template = document.createElement("template");
    template.innerHTML = packed.body;
    for (const found of template.content.querySelectorAll("script, link, meta, base, iframe, #logo, #titlebar, #menu, #menu-button")) found.remove();
    for (const link of template.content.querySelectorAll("[href^='javascript:']")) {
      link.removeAttribute("href");
      link.setAttribute("role", "button");
    }
    element("ortlens-netron").append(template.content);
    element("target").focus = () => {}; // Netron takes the focus for every model; who types in the page around would lose it
  }

  /** Netron asks the system for light or dark; here the page around may decide. */
  function themes() {
    const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).filter((rule) => /prefers-color-scheme:\s*dark/.test(rule.conditionText ?? ""));
    return (dark) => {
      document.documentElement.style.colorScheme = dark ? "dark" : "light";
      document.documentElement.dataset.dark = String(dark);
      for (const rule of rules) rule.media.mediaText = dark ? "all" : "not all";
    };
  }

  /** A frame without a size, as in a tab that is not shown, cannot be measured in. */
  const visible = () =>
    new Promise((resolve) => {
      const look = () => {
        if (!window.innerWidth || !window.innerHeight) return;
        window.removeEventListener("resize", look);
        resolve();
      };
      window.addEventListener("resize", look);
      look();
    });

  // ---- the viewer ----

  let shown = null; // id of the model that is drawn
  let quiet = false; // while we select, and not the user

  function makeViewer(host, need) {
    const { View } = need("view");
    /** Tells what the user selects; every way of selecting goes through the target's `select`. */
    class LinkedView extends View {
      get target() {
        return super.target;
      }
      set target(target) {
        super.target = target;
        if (!target) return;
        const select = target.select.bind(target);
        target.select = (values, source) => {
          const elements = select(values, source);
          const nodes = this.activeTarget?.nodes ?? [];
          const node = values?.length === 1 && !quiet ? nodes.find((candidate) => candidate === values[0]) : null;
          if (node) setTimeout(() => target === this.target && target.scrollTo(elements), 200); // what is said about it may cover it
          if (node?.name) tell({ type: "selected", id: shown, name: node.name });
          return elements;
        };
      }
    }
    const viewer = new LinkedView(host);
    if (viewer._modelFactoryService) viewer._modelFactoryService._filter = () => ["./onnx"]; // no need to guess
    return viewer;
  }

  /** Draws what `bounded` shortened: a dashed end below the box that an arrow leaves, and one above the box that it reaches. */
  function stubs(need) {
    const { Edge } = need("grapher");
    const update = Edge.prototype.update;
    Edge.prototype.update = function () {
      const stub = this.points?.stub;
      if (!stub) return update.call(this);
      const { from, to } = this;
      const shift = stub.nth * 14;
      const path = stub.turned
        ? `M${from.x + from.width / 2},${from.y} h16 M${to.x - to.width / 2 - 32},${to.y + shift} H${to.x - to.width / 2}`
        : `M${from.x},${from.y + from.height / 2} v16 M${to.x + shift},${to.y - to.height / 2 - 32} V${to.y - to.height / 2}`;
      this.element.setAttribute("d", path);
      this.element.style.strokeDasharray = "4 3";
      this.hitTest.setAttribute("d", path);
      if (!this.labelElement) return undefined;
      this.labelElement.setAttribute("transform", `translate(${this.x - this.width / 2},${this.y - this.height / 2})`);
      this.labelElement.style.opacity = 1;
      return undefined;
    };
  }

  const contextOf = (host, need, name, bytes) => ({
    identifier: name,
    name,
    stream: new (need("base").BinaryStream)(bytes),
    entries: new Map(),
    asset: (file) => host.asset(file),
    require: (id) => host.require(id),
    fetch: (file) => host.fetch(file),
    error: (error) => host.exception(error),
  });

  /** Highlights nodes and brings the first into view. */
  function select(viewer, names) {
    const wanted = new Set(names);
    const values = (viewer.activeTarget?.nodes ?? []).filter((node) => wanted.has(node.name));
    if (!viewer.target) return;
    quiet = true;
    try {
      const elements = viewer.target.select(values) ?? [];
      const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
      if (elements.length) viewer.target.scrollTo(elements.slice(0, 1), still ? "instant" : "smooth");
    } finally {
      quiet = false;
    }
  }

  function opener(viewer, host, need) {
    return async ({ id, bytes, names }) => {
      const started = performance.now();
      host.failed = null;
      try {
        await visible();
        note("Drawing the model…");
        viewer.show("welcome spinner");
        shown = id;
        const model = await viewer.open(contextOf(host, need, `${id}.onnx`, bytes));
        if (!model) throw new Error("The layout was cancelled.");
        // Hidden meanwhile, as with a notebook's own tabs: nothing could be measured. Once more, then.
        if (!window.innerWidth || document.querySelector("#canvas [transform*=NaN]")) {
          await visible();
          await viewer.render(viewer.activeTarget, viewer.activeSignature);
        }
        viewer.show(null);
        note("");
        if (names?.length) select(viewer, names);
        document.documentElement.dataset.shown = id;
        const nodes = document.querySelectorAll(".graph-node").length;
        tell({ type: "opened", id, nodes, ms: Math.round(performance.now() - started) });
      } catch (error) {
        document.documentElement.dataset.failed = error.message;
        note(`Netron could not draw this model: ${error.message}`);
        tell({ type: "failed", id, message: error.message });
      }
    };
  }

  /** Ways of showing a model that Netron has in its menu, which a frame has no room for. */
  function toolbar(viewer, theme) {
    const bar = element("ortlens-tools");
    const add = (label, title, click) => bar.append(Object.assign(document.createElement("button"), { type: "button", textContent: label, title, onclick: click }));
    const toggle = (name) => () => viewer.activeTarget && viewer.toggle(name);
    add("Find", "Look for a node or a value", () => viewer.activeTarget && viewer.find());
    add("Names", "Show the names of nodes in place of their operators", toggle("names"));
    add("Attributes", "Show attributes in the boxes", toggle("attributes"));
    add("Turn", "Draw from left to right, or from top to bottom", toggle("direction"));
    if (!around) add("◐", "Light or dark", () => theme(document.documentElement.dataset.dark !== "true"));
  }

  function listen(viewer, open, theme) {
    window.addEventListener("message", ({ source, data }) => {
      if (!around || source !== around || data?.channel !== channel) return;
      if (data.type === "open") open(data);
      else if (data.type === "select") select(viewer, data.names);
      else if (data.type === "theme") theme(data.dark);
      else if (data.type === "focus") HTMLElement.prototype.focus.call(element("target"));
    });
    const leave = ({ key }) => key === "Escape" && element("sidebar").style.opacity !== "1" && tell({ type: "leave" });
    window.addEventListener("keydown", leave, { capture: true }); // before Netron, which closes its sidebar with the same key
  }

  try {
    const packed = await (await bytesOf("ortlens-code")).json();
    dress(packed);
    const theme = themes();
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    theme(system.matches);
    if (!around) system.addEventListener("change", () => theme(system.matches));
    const [need, worker] = await Promise.all([run(bundle(packed.modules)), layoutWorker(packed.modules)]);
    const host = new Host(packed, worker, note);
    host.need = need;
    stubs(need);
    const viewer = makeViewer(host, need);
    await viewer.start();
    toolbar(viewer, theme);
    const open = opener(viewer, host, need);
    listen(viewer, open, theme);
    tell({ type: "ready" });
    const own = element("ortlens-model");
    if (own) await open({ id: own.dataset.id, bytes: new Uint8Array(await (await bytesOf("ortlens-model")).arrayBuffer()) });
  } catch (error) {
    element("ortlens-note").hidden = false;
    element("ortlens-note").textContent = `Netron could not start: ${error.message}`;
    document.documentElement.dataset.failed = error.message;
    tell({ type: "failed", id: null, message: error.message });
  }
})();
