"""The style sheet of the HTML summary. Every rule is scoped to `.ortlens-summary`, so that it touches nothing else."""

from __future__ import annotations

# A class said twice weighs more than JupyterLab's own rules for tables in outputs, which set everything to the right.
_RULES = """
.ortlens-summary{
--ol-back:var(--jp-layout-color1,Canvas);--ol-ink:var(--jp-content-font-color1,CanvasText);
--ol-soft:var(--jp-content-font-color2,color-mix(in srgb,CanvasText 72%,Canvas));
--ol-line:var(--jp-border-color2,color-mix(in srgb,CanvasText 22%,Canvas));
--ol-fill:var(--jp-brand-color1,#0072b2);
color:var(--ol-ink);background:var(--ol-back);color-scheme:inherit;
font:var(--jp-ui-font-size1,13px)/1.45 var(--jp-ui-font-family,system-ui,sans-serif);max-width:75rem;padding:.25rem .5rem;overflow-x:auto}
.ortlens-summary p{margin:.3rem 0}
.ortlens-summary .ol-wrong{border-left:.35rem solid #d32f2f;padding:.2rem .6rem;background:color-mix(in srgb,#d32f2f 12%,transparent)}
.ortlens-summary .ol-title{font-size:1.15em;font-weight:600}
.ortlens-summary .ol-bar{height:.7rem;max-width:30rem;border:1px solid var(--ol-ink);border-radius:3px;overflow:hidden;margin:.3rem 0 .5rem}
.ortlens-summary .ol-bar span{display:block;height:100%;background:var(--ol-fill)}
.ortlens-summary.ortlens-summary .ol-tiles{display:flex;flex-wrap:wrap;gap:.5rem;list-style:none;margin:.4rem 0 .7rem;padding:0}
.ortlens-summary .ol-tile{flex:1 1 13rem;margin:0;padding:.3rem .7rem .4rem;
border:1px solid var(--ol-line);border-left:4px solid var(--ol-soft);
border-radius:4px;display:flex;flex-direction:column}
.ortlens-summary .ol-tile>span:first-child,.ortlens-summary .ol-tile small{color:var(--ol-soft);font-size:.92em}
.ortlens-summary .ol-tile strong{font-size:1.15em}
.ortlens-summary .ol-tile .ol-bar{display:block;margin:.15rem 0;height:.5rem}
.ortlens-summary .ol-tile-good{border-left-color:light-dark(#1a7f37,#3fb950)}
.ortlens-summary .ol-tile-good strong{color:light-dark(#1a6e31,#56d364)}
.ortlens-summary .ol-tile-bad{border-left-color:light-dark(#b00020,#ff8a80)}
.ortlens-summary .ol-tile-bad strong{color:light-dark(#b00020,#ff8a80)}
.ortlens-summary .ol-tile-caution{border-left-color:light-dark(#8a4b00,#ffb74d)}
.ortlens-summary .ol-tile-plain{border-left-color:var(--ol-fill)}
.ortlens-summary .ol-looks{margin:.1rem 0 .6rem;padding-left:1.6rem}
.ortlens-summary table{border-collapse:collapse;margin:.9rem 0 0;font-size:inherit;width:100%;table-layout:auto;color:inherit;border:0}
.ortlens-summary caption{caption-side:top;text-align:left;color:var(--ol-soft);padding:0 0 .25rem}
.ortlens-summary caption strong{color:var(--ol-ink)}
.ortlens-summary tr{background:none}
.ortlens-summary.ortlens-summary th,.ortlens-summary.ortlens-summary td{text-align:left}
.ortlens-summary th,.ortlens-summary td{vertical-align:top;padding:.2rem .6rem .2rem 0;border:0;
border-bottom:1px solid var(--ol-line);max-width:24rem;overflow-wrap:anywhere;white-space:normal}
.ortlens-summary th{color:var(--ol-soft);font-weight:600;overflow-wrap:normal}
.ortlens-summary.ortlens-summary .ol-number{text-align:right}
.ortlens-summary .ol-number{white-space:nowrap;font-variant-numeric:tabular-nums}
.ortlens-summary .ol-whole{white-space:nowrap}
.ortlens-summary code{font:.92em var(--jp-code-font-family,ui-monospace,monospace);color:inherit;background:none;padding:0}
"""

CSS = _RULES.strip().replace("\n", "")
"""The rules on one line."""
