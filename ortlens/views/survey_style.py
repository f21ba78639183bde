"""The style sheet and the script of a survey's page."""

from __future__ import annotations

_RULES = """
:root{color-scheme:light dark;--os-soft:color-mix(in srgb,CanvasText 68%,Canvas);--os-line:color-mix(in srgb,CanvasText 18%,Canvas);
--os-run:light-dark(#0072b2,#3d9bd6);--os-good:light-dark(#00694c,#3fc99a);--os-bad:light-dark(#a83e00,#ff9d5c);
--os-back:color-mix(in srgb,CanvasText 4%,Canvas)}
*{box-sizing:border-box}
body{margin:0;background:Canvas;color:CanvasText;font:14px/1.5 system-ui,"DejaVu Sans",sans-serif}
header{padding:.8rem 1.2rem .3rem}
h1{font-size:1.3rem;margin:0;overflow-wrap:anywhere}
.os-verdict{font-size:1.05rem;margin:.1rem 0}
.os-about{color:var(--os-soft);margin:0}
.os-tools{display:flex;flex-wrap:wrap;gap:.5rem .9rem;align-items:center;padding:.5rem 1.2rem;position:sticky;top:0;background:Canvas;
border-bottom:1px solid var(--os-line);z-index:2}
.os-tools[hidden]{display:none}
.os-tools input[type=search]{font:inherit;flex:1 1 16rem;max-width:28rem;min-width:0;padding:.3rem .5rem;border:1px solid var(--os-soft);
border-radius:4px;background:Canvas;color:inherit}
.os-tools select{font:inherit;background:Canvas;color:inherit;border:1px solid var(--os-soft);border-radius:4px;padding:.2rem}
.os-chips{display:flex;flex-wrap:wrap;gap:.2rem .8rem}
.os-chip{white-space:nowrap;cursor:pointer}
.os-chip b{font-weight:600;font-variant-numeric:tabular-nums}
.os-by{display:none}
#os-count{color:var(--os-soft)}
main{padding:0 1.2rem 2rem}
.ortlens-summary li{overflow-wrap:anywhere}
.os-table{border-collapse:collapse;width:100%;margin-top:.4rem}
.os-table>thead>tr>th{text-align:left;font-weight:600;padding:.2rem .7rem .2rem 0;
border-bottom:1px solid var(--os-soft);vertical-align:bottom}
.os-table>thead .os-number{text-align:right;white-space:normal}
.os-table>thead .os-words{width:34%}
.os-table>thead button{all:unset;cursor:pointer;color:var(--os-soft);font-weight:600}
.os-table>thead button:hover{color:inherit;text-decoration:underline}
.os-table>thead [aria-sort=ascending] button::after{content:" \\2191"}
.os-table>thead [aria-sort=descending] button::after{content:" \\2193"}
button:focus-visible,a:focus-visible{outline:2px solid var(--os-run);outline-offset:2px}
.os-row>td{padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--os-line);vertical-align:top;overflow-wrap:anywhere}
.os-row:hover>td{background:var(--os-back)}
.os-open{all:unset;cursor:pointer;font-weight:600;overflow-wrap:anywhere}
.os-open::before{content:"\\25B8";display:inline-block;width:1.1em;color:var(--os-soft)}
.os-open[aria-expanded=true]::before{content:"\\25BE"}
.os-case{min-width:8rem}
.os-number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.os-row>.os-code{font:.9em/1.6 ui-monospace,monospace;min-width:9rem}
.os-row>.os-words{color:var(--os-soft);min-width:14rem}
.os-words>div{display:-webkit-box;-webkit-line-clamp:2;-webkit-box-orient:vertical;overflow:hidden}
.os-faster{color:var(--os-good)}
.os-slower,.os-failed,.os-crashed,.os-timeout,.os-memory,.os-lost{color:var(--os-bad)}
.os-slower{font-weight:600}
.os-status{white-space:nowrap}
.os-failed,.os-crashed,.os-timeout,.os-memory,.os-lost{font-weight:600}
.os-bar{display:inline-block;width:4rem;height:.6rem;border:1px solid var(--os-soft);border-radius:2px;margin-right:.5rem;overflow:hidden}
.os-bar span{display:block;height:100%;background:var(--os-run)}
.os-detail>td{padding:.3rem 0 .9rem 1.1rem;border-bottom:1px solid var(--os-line);background:var(--os-back)}
.os-detail p{margin:.3rem 0}
.os-reason{color:var(--os-bad);overflow-wrap:anywhere}
.os-facts{color:var(--os-soft);overflow-wrap:anywhere}
.os-facts a{color:light-dark(#0060a0,#6cb8f0)}
.os-detail pre{margin:.2rem 0;padding:.5rem;border:1px solid var(--os-line);background:Canvas;overflow:auto;max-height:20rem;
font:.86em/1.4 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
.ortlens-summary{background:none;padding:0 .5rem 0 0;max-width:none}
@media(max-width:760px){
header,.os-tools,main{padding-left:.8rem;padding-right:.8rem}
.os-by{display:inline}
.os-table,.os-table>tbody,.os-row,.os-detail,.os-row>td,.os-detail>td{display:block;width:100%}
.os-table>thead{display:none}
.os-table>tbody{border:1px solid var(--os-line);border-radius:6px;margin:.6rem 0;padding:.4rem .7rem}
.os-table>tbody[hidden],.os-detail[hidden]{display:none}
.os-row{display:grid!important;grid-template-columns:1fr 1fr;gap:.1rem 1rem}
.os-row>td,.os-row>.os-code,.os-row>.os-words{border:0;padding:0;text-align:left;min-width:0}
.os-row>.os-case,.os-row>.os-code,.os-row>.os-words{grid-column:1/-1}
.os-row>td:not(.os-case,.os-words):not(:empty)::before{content:attr(data-label) " ";color:var(--os-soft)}
.os-row>td:empty{display:none}
.os-row:hover>td{background:none}
.os-bar{display:none}
.os-detail>td{padding:.3rem 0 0;border:0;background:none}
.ortlens-summary{padding:0}
.ortlens-summary table{min-width:36rem}
.ortlens-summary caption{max-width:20rem}
}
@media print{.os-tools{display:none}:root{color-scheme:light}.os-table>thead{display:table-header-group}
.os-row,.os-detail p{break-inside:avoid}}
"""

CSS = _RULES.strip()
"""The rules."""

SCRIPT = """
(() => {
  const table = document.querySelector(".os-table"), bodies = [...table.tBodies];
  const filter = document.getElementById("os-filter"), sort = document.getElementById("os-sort");
  const chips = [...document.querySelectorAll(".os-chip input")], heads = [...table.tHead.rows[0].cells];
  const unfold = (body, open) => {
    body.rows[1].hidden = !open;
    body.querySelector(".os-open").setAttribute("aria-expanded", open);
  };
  const show = () => {
    const words = filter.value.toLowerCase().split(/\\s+/).filter(Boolean);
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
""".strip()
"""Filters, sorts and unfolds. It makes no HTML of what it reads."""
