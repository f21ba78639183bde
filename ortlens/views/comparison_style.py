"""The style sheet of a comparison, on top of the summary's; every rule is scoped to `.ortlens-compare`."""

from __future__ import annotations

# Soft text is darker than JupyterLab's, which is too weak on a tint; a class said three times weighs more than its stripes of tables.
_RULES = """
.ortlens-compare{--oc-bad:light-dark(#b00020,#ff8a80);--oc-good:light-dark(#1a6e31,#56d364);--oc-run:light-dark(#0060a0,#6cb8f0);
--oc-torch:light-dark(#a83e00,#ff9d5c);--ol-soft:color-mix(in srgb,var(--ol-ink) 74%,var(--ol-back));
max-width:96rem;margin:auto;padding:.6rem 1.2rem 2rem;box-sizing:border-box;overflow-x:visible}
.ortlens-compare h1{font-size:1.3rem;margin:0;overflow-wrap:anywhere}
.ortlens-compare h2{font-size:1.02rem;margin:0 0 .3rem;font-weight:600}
.ortlens-compare .ol-title{margin:.1rem 0;overflow-wrap:anywhere}
.ortlens-compare small,.ortlens-compare .oc-about,.ortlens-compare .oc-help{color:var(--ol-soft);overflow-wrap:anywhere}
.ortlens-compare .oc-note{border-left:4px solid var(--oc-torch);padding:.2rem .7rem}
.ortlens-compare .oc-cards{display:grid;grid-template:auto 1fr/1fr 1fr;gap:.5rem}
.ortlens-compare .oc-card:last-child{grid-area:1/2/3/3}
.ortlens-compare .oc-card{border:1px solid var(--ol-line);border-radius:4px;padding:.4rem .7rem;min-width:0}
.ortlens-compare .oc-card ul{list-style:none;margin:0;padding:0}
.ortlens-compare .oc-card li{margin:0 0 .25rem;overflow-wrap:anywhere}
.ortlens-compare li.oc-worse>span,.ortlens-compare li.oc-worse>strong,.ortlens-compare .oc-worse>.oc-difference,
.ortlens-compare .oc-times .oc-worse>td:last-child{color:var(--oc-bad);font-weight:600}
.ortlens-compare li.oc-better>span,.ortlens-compare li.oc-better>strong,.ortlens-compare .oc-better>.oc-difference,
.ortlens-compare .oc-times .oc-better>td:last-child{color:var(--oc-good);font-weight:600}
.ortlens-compare a{color:var(--oc-run)}
.ortlens-compare a:focus-visible,.ortlens-compare summary:focus-visible{outline:2px solid var(--oc-run);outline-offset:2px}
.ortlens-compare.ortlens-compare.ortlens-compare tr{background:none}
.ortlens-compare tbody th{color:inherit;font-weight:400}
.ortlens-compare .oc-times .oc-wide{width:auto;max-width:none;padding-left:1.2rem}
.ortlens-compare .oc-band{display:block;position:relative;height:.45rem;margin:.12rem 0}
.ortlens-compare .oc-band i{position:absolute;top:0;bottom:0;background:var(--ol-soft);opacity:.55}
.ortlens-compare .oc-band b{position:absolute;top:-1px;bottom:-1px;width:2px;background:var(--ol-ink)}
.ortlens-compare .oc-after i{background:var(--ol-fill);opacity:.8}
.ortlens-compare .oc-worse .oc-after i{background:var(--oc-bad)}
.ortlens-compare .oc-better .oc-after i{background:var(--oc-good)}
.ortlens-compare .oc-times{table-layout:fixed;margin:0}
.ortlens-compare .oc-times thead th{width:26%}
.ortlens-compare .oc-times thead .ol-number{width:5.5rem}
.ortlens-compare .oc-panes{margin:1.1rem 0 0}
.ortlens-compare .oc-help{margin:.1rem 0 .5rem}
.ortlens-compare .oc-heads{display:grid;grid-template-columns:41% 41% 18%;position:sticky;top:0;background:var(--ol-back);z-index:1;
border-bottom:1px solid var(--ol-soft);font-weight:600;padding:.2rem 0}
.ortlens-compare .oc-heads span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.ortlens-compare .oc-rows{table-layout:fixed;margin:0;border-collapse:separate;border-spacing:0}
.ortlens-compare .oc-rows>thead th{height:0;padding:0;border:0;font-size:0;line-height:0}
.ortlens-compare .oc-rows>thead th:nth-child(-n+2){width:41%}
.ortlens-compare .oc-rows td{max-width:none;padding:.16rem .6rem .16rem .4rem}
.ortlens-compare .oc-rows td:nth-child(2){border-left:1px solid var(--ol-line)}
.ortlens-compare .oc-time{float:right;font-variant-numeric:tabular-nums;white-space:nowrap;padding-left:.6rem}
.ortlens-compare .oc-difference{font-variant-numeric:tabular-nums;color:var(--ol-soft)}
.ortlens-compare .oc-where{display:inline-block;min-width:2.2rem;text-align:center;font-size:.85em;border:1px solid var(--oc-run);
border-radius:3px;padding:0 .3rem;color:var(--oc-run)}
.ortlens-compare .oc-torch{border:1px dashed var(--oc-torch);color:var(--oc-torch)}
.ortlens-compare .oc-kernel,.ortlens-compare .oc-group{font-size:.9em;color:var(--ol-soft)}
.ortlens-compare .oc-group{border:1px solid var(--ol-soft);border-left-width:4px;border-radius:3px;padding:0 .3rem}
.ortlens-compare tr.oc-worse>*{background:color-mix(in srgb,var(--oc-bad) 9%,transparent)}
.ortlens-compare tr.oc-better>*{background:color-mix(in srgb,var(--oc-good) 9%,transparent)}
.ortlens-compare tr.oc-added>td,.ortlens-compare tr.oc-removed>td,.ortlens-compare tr.oc-fused>td,.ortlens-compare tr.oc-split>td{
background:color-mix(in srgb,var(--ol-fill) 9%,transparent)}
.ortlens-compare tr.oc-better.oc-removed>td{background:color-mix(in srgb,var(--oc-good) 9%,transparent)}
.ortlens-compare tr.oc-worse.oc-added>td{background:color-mix(in srgb,var(--oc-bad) 9%,transparent)}
.ortlens-compare .oc-rows td.oc-break:nth-child(n){border-left:4px solid var(--oc-torch)}
.ortlens-compare tr:target>td{box-shadow:inset 0 2px var(--oc-run),inset 0 -2px var(--oc-run)}
.ortlens-compare tr[id]{scroll-margin-top:3rem}
.ortlens-compare h3{font-size:1rem;margin:.6rem 0 .1rem}
.ortlens-compare td.oc-joined{border-left:4px solid var(--ol-soft)}
.ortlens-compare.oc-inside{padding:0;margin:0}
.ortlens-compare .oc-fold{margin:0;padding:.2rem .4rem;color:var(--ol-soft);border-bottom:1px solid var(--ol-line);overflow-wrap:anywhere}
.ortlens-compare summary.oc-fold{cursor:pointer}
@media(max-width:700px){
.ortlens-compare{padding:.5rem .7rem 1.5rem}
.ortlens-compare .oc-times .oc-wide{display:none}
.ortlens-compare .oc-times thead .ol-number{width:4.8rem}
.ortlens-compare .oc-cards{display:block}
.ortlens-compare .oc-card{margin-bottom:.5rem}
.ortlens-compare .oc-heads{grid-template-columns:50% 50% 0}
.ortlens-compare .oc-rows,.ortlens-compare .oc-rows>tbody{display:block}
.ortlens-compare .oc-rows>thead{display:none}
.ortlens-compare .oc-rows tr{display:grid;grid-template-columns:1fr 1fr}
.ortlens-compare .oc-rows tr{border-bottom:1px solid var(--ol-line)}
.ortlens-compare .oc-rows td{border-bottom:0;min-width:0}
.ortlens-compare .oc-rows tr>.oc-difference{grid-column:1/-1}
.ortlens-compare .oc-rows .oc-difference:empty{display:none}
}
@media print{
.ortlens-compare{color-scheme:light;padding:0;max-width:none;font-size:8.5pt}
.ortlens-compare .oc-heads{position:static}
.ortlens-compare tr,.ortlens-compare .oc-card li,.ortlens-compare .ol-tile{break-inside:avoid}
.ortlens-compare *{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""

CSS = _RULES.strip().replace("\n", "")
"""The rules on one line."""
