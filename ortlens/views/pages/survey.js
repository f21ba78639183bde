// Filters, sorts and unfolds. It makes no HTML of what it reads.
(() => {
  const table = document.querySelector(".os-table"), bodies = [...table.tBodies];
  const filter = document.getElementById("os-filter"), sort = document.getElementById("os-sort");
  const chips = [...document.querySelectorAll(".os-chip input")], heads = [...table.tHead.rows[0].cells];
  const unfold = (body, open) => {
    body.rows[1].hidden = !open;
    body.querySelector(".os-open").setAttribute("aria-expanded", open);
  };
  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = new Set(chips.filter((chip) => chip.checked).map((chip) => chip.value));
    let count = 0;
    for (const body of bodies) {
      const fits = wanted.has(body.dataset.status) && words.every((word) => body.dataset.text.includes(word));
      body.hidden = !fits;
      count += fits;
    }
    document.getElementById("os-count").textContent = count === bodies.length ? "" : count + " of " + bodies.length;
    document.getElementById("os-none").hidden = count > 0;
  };
  const order = (column, descending) => {
    heads.forEach((head, number) => head.setAttribute("aria-sort", number !== column ? "none" : descending ? "descending" : "ascending"));
    const value = (body) => body.rows[0].cells[column].dataset.value;
    const compare = (one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined); // what is missing comes last both ways
      const [x, y] = [Number(a), Number(b)];
      const numbers = a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y);
      return (numbers ? x - y : a.localeCompare(b, "en", {numeric: true})) * (descending ? -1 : 1);
    };
    table.append(...(column < 0 ? bodies : [...bodies].sort(compare)));
    sort.value = column < 0 ? "" : String(column);
  };
  for (const body of bodies) {
    unfold(body, bodies.length === 1);
    body.querySelector(".os-open").addEventListener("click", () => unfold(body, body.rows[1].hidden));
  }
  heads.forEach((head, number) => head.firstChild.addEventListener("click", () => order(number, head.ariaSort === "ascending")));
  sort.addEventListener("change", () => order(sort.value === "" ? -1 : Number(sort.value), false));
  filter.addEventListener("input", show);
  chips.forEach((chip) => chip.addEventListener("change", show));
  filter.form.addEventListener("submit", (event) => event.preventDefault());
  filter.form.hidden = false;
  show();
})();
