"""The style sheet of the report's page; the explorer brings its own."""

from __future__ import annotations

_RULES = """
:root{color-scheme:light dark;
--or-soft:color-mix(in srgb,CanvasText 68%,Canvas);--or-line:color-mix(in srgb,CanvasText 20%,Canvas);--or-link:light-dark(#0060a0,#6cb8f0);
--of-run:light-dark(#0072b2,#3d9bd6);--of-on-run:light-dark(#fff,#000);--of-eager:light-dark(#d55e00,#e8792b);
--of-bind:light-dark(#e69f00,#e6a817);--of-output:light-dark(#009e73,#1fb58a);--of-guards:light-dark(#cc79a7,#d18bb3);
--of-residual:light-dark(#8a8a8a,#9a9a9a);--of-other:#56b4e9;--of-soft:var(--or-soft);--of-line:var(--or-line)}
:root[data-theme=light]{color-scheme:light}
:root[data-theme=dark]{color-scheme:dark}
*{box-sizing:border-box}
body{margin:0;background:Canvas;color:CanvasText;font:14px/1.5 system-ui,"DejaVu Sans",sans-serif}
.or-head{padding:.7rem 1.2rem .5rem;border-bottom:1px solid var(--or-line)}
.or-head h1{font-size:1.25rem;margin:0;overflow-wrap:anywhere}
.or-verdict{font-size:1.05rem;margin:.1rem 0;overflow-wrap:anywhere}
.or-wrong{color:light-dark(#b3261e,#ff8a80);font-weight:600}
.or-about{color:var(--or-soft);font-size:.86rem;margin:0;overflow-wrap:anywhere}
@media screen and (max-width:600px){.or-head{padding:.4rem .7rem .3rem}.or-head h1{font-size:1.05rem}
.or-verdict{font-size:.95rem;line-height:1.35}.js .or-head .or-about{display:none}}
.or-explorer{display:none;position:relative;border-bottom:1px solid var(--or-line)}
.js .or-explorer{display:block;min-height:max(30rem,calc(100vh - 9.5rem));--ortlens-height:max(30rem,calc(100vh - 9.5rem))}
.or-explorer>p{padding:1rem 1.2rem}
.or-explorer .ortlens .ol-name,.or-explorer .ortlens .ol-verdict,.or-explorer .ortlens .ol-note{display:none}
.or-explorer .ortlens .ol-shell{display:grid;
grid-template:"tiles tiles" auto "tabs head" auto "body body" minmax(0,1fr) / minmax(0,1fr) auto}
.or-explorer .ortlens .ol-tiles{grid-area:tiles}
.or-explorer .ortlens .ol-tabs{grid-area:tabs}
.or-explorer .ortlens .ol-body{grid-area:body}
.or-explorer .ortlens .ol-header{grid-area:head;align-items:center;gap:.3rem;padding:0 .3rem;border-bottom:1px solid var(--ol-line)}
main{padding:.4rem 1.2rem 2rem;max-width:96rem}
.or-part{border-top:1px solid var(--or-line);padding:.2rem 0}
.or-part:first-child{border-top:0}
.or-part>summary{cursor:pointer;padding:.35rem 0}
.or-part>summary h2{display:inline;font-size:1.08rem;margin:0}
.or-part>summary:focus-visible{outline:2px solid var(--or-link)}
.or-help{color:var(--or-soft);margin:.1rem 0 .6rem}
.or-figures{columns:28rem;column-gap:2rem;padding-bottom:.4rem}
.or-figures figure{margin:0 0 1.3rem;break-inside:avoid}
.or-figures h3{font-size:1rem;margin:.2rem 0}
.or-figures figcaption{color:var(--or-soft);font-size:.86rem}
.or-figures .or-wide{column-span:all}
.or-figure{display:block;width:100%;height:auto;max-height:26rem;color:CanvasText}
.or-figure *{stroke-linejoin:round;stroke-linecap:butt}
.ortlens-summary{max-width:none;padding:0;font-size:13px}
.or-method dt{font-weight:600;margin-top:.6rem}
.or-method dd{margin:0;max-width:60rem}
.or-facts{border-collapse:collapse;font-size:13px}
.or-facts th,.or-facts td{text-align:left;vertical-align:top;font-weight:400;padding:.15rem 1rem .15rem 0;
border-bottom:1px solid var(--or-line);overflow-wrap:anywhere}
.or-facts th{color:var(--or-soft);white-space:nowrap}
.or-foot{color:var(--or-soft);font-size:.86rem;padding:.6rem 1.2rem 1.5rem;border-top:1px solid var(--or-line);margin:0}
@media print{
:root,:root[data-theme]{color-scheme:light}
@page{margin:14mm}
body{font-size:9pt}
.or-figures h3{font-size:9.5pt}
.or-figures figcaption,.or-facts,.or-about{font-size:8pt}
.js .or-explorer,.or-explorer{display:none}
.or-head,main,.or-foot{padding-left:0;padding-right:0}
.or-part>summary{list-style:none;break-after:avoid}
.or-part::details-content{content-visibility:visible;display:block;height:auto}
.or-figures{columns:2;column-gap:1.2rem}
.or-figures h3,.ortlens-summary caption,dt{break-after:avoid}
.ortlens-summary{font-size:8pt;overflow:visible}
.ortlens-summary thead{display:table-header-group}
.ortlens-summary tr,figure,dd{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""

CSS = _RULES.strip()
"""The rules."""
