"""The pictures of the docs, made from recorded captures: `python -m tests.browser.pictures [name ...]`, in the root of the checkout.

Each is what a person would see after the clicks that are named here. Needs what the browser tests need, and Pillow to make them small.
"""

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from ortlens.analysis.compare.comparison import compared
from ortlens.trace.records import Capture
from ortlens.trace.sources import attachment_of, kept_lines, recorded_lines
from ortlens.views.comparison import comparison_page
from ortlens.views.report import report_page
from tests.browser.page import CHROMIUM, page_from_captures
from tests.recorded import recorded

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
CAPTURES = Path(__file__).parent / "captures"
SIZE: ViewportSize = {"width": 1160, "height": 620}
_STILL = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 150))))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is clicked before the picture is taken; a step `a=b` chooses b in a list, `key:` presses a key, `hover:` points at it.

    A picture of the whole page is one of the report, all of it; the others show the explorer alone.
    """

    name: str
    capture: str
    steps: tuple[str, ...]
    scheme: Literal["light", "dark"] = "light"
    height: int = 620
    whole_page: bool = False
    models: bool = False  # with the ONNX models, as a report has them
    functions: bool = False
    after: str = ""  # compared with this capture, both in the folder of those to compare


COLOUR = ".olg-tools select[aria-label=Colour]"
BREAK = ".ol-break-mark .ol-link >> nth=1"
PICTURES = (
    Picture(name="overview", capture="twelve", steps=(BREAK,), height=800),
    Picture(name="overview-dark", capture="twelve", steps=(BREAK,), scheme="dark", height=800),
    Picture(name="actions", capture="twelve", steps=("[data-tab=actions]",), height=700),
    Picture(name="flame", capture="twelve", steps=("[data-tab=flame]", ".ol-longest .ol-link >> nth=0"), height=600),
    Picture(name="graph", capture="twelve", steps=("[data-tab=graph]",), height=760),
    Picture(
        name="graph-time",
        capture="bert",
        steps=("[data-tab=graph]", f"{COLOUR}=time", ".olg-box.olg-fold .olg-toggle >> nth=0", ".olg-zoom button:text-is('Fit')"),
    ),
    Picture(
        name="graph-layers",
        capture="llama",
        steps=("[data-tab=graph]", ".olg-box:has(.olg-title:text-is('model')) .olg-toggle >> nth=0"),
        height=760,
    ),
    Picture(name="tables", capture="twelve", steps=("[data-tab=tables]", "[data-table=kernels]", ".ol-grid-row[data-at='0']"), height=520),
    Picture(name="timeline", capture="twelve", steps=("[data-tab=timeline]", "key:g", "key:g"), height=820),
    Picture(name="roofline", capture="bert", steps=("[data-tab=roofline]", ".ol-longest .ol-link >> nth=0"), height=680),
    Picture(name="source", capture="twelve", steps=("[data-tab=source]", ".ol-source-text:has-text('.mode(')"), height=760, functions=True),
    Picture(name="breaks", capture="twelve", steps=("[data-tab=breaks]", ".ol-event h4 .ol-link >> nth=0"), height=520),
    Picture(name="findings", capture="pieces", steps=("[data-tab=findings]", ".ol-panel-findings h4 .ol-link >> nth=0"), height=460),
    Picture(name="numerics", capture="bert", steps=("[data-tab=numerics]", ".ol-worst .ol-link >> nth=0"), height=460),
    Picture(name="onnx", capture="models", steps=("[data-tab=onnx]", "netron:gelu/Tanh_7"), models=True),
    Picture(name="compare", capture="before", after="after", steps=(), height=900),
    Picture(name="report", capture="twelve", steps=(), height=760, whole_page=True),
)


def act(page: Page, step: str) -> None:
    """One step."""
    if step.startswith("key:"):
        page.focus(".ol-panel:not([hidden]) canvas")
        page.keyboard.press(step.removeprefix("key:"))
    elif step.startswith("netron:"):
        frame = page.frame_locator(".ol-onnx-frame")
        frame.locator("html[data-shown]").wait_for(state="attached")
        frame.locator(f'[id="node-name-{step.removeprefix("netron:")}"]').click()
        page.wait_for_timeout(800)  # it scrolls there
    elif step.startswith(COLOUR):
        page.select_option(COLOUR, step.removeprefix(f"{COLOUR}="))
    else:
        page.click(step)
    page.evaluate(_STILL)


def page_of(picture: Picture) -> str:
    """The page that it is taken of."""
    if picture.after:
        return comparison_page(compared(recorded(picture.capture), recorded(picture.after)))
    capture = recorded(picture.capture)
    capture = with_functions(capture) if picture.functions else capture
    return report_page(capture) if picture.whole_page or picture.models else page_from_captures(capture)


def with_functions(capture: Capture) -> Capture:
    """With the functions of the program that recorded it, as a capture of today has them."""
    recorded = recorded_lines((*capture.nodes, *capture.breaks, *capture.fallbacks))
    (file,) = (name for name in recorded if name.endswith("captures/record.py"))
    name, kept = attachment_of(file, kept_lines((CAPTURES / "record.py").read_text(encoding="utf-8"), recorded[file]))
    return replace(capture, attachments={**capture.attachments, name: kept})


def take(browser: Browser, picture: Picture, folder: Path) -> Path:
    """Opens the capture, does the steps and takes the picture."""
    html = folder / f"{picture.capture}.html"
    html.write_text(page_of(picture), encoding="utf-8")
    page = browser.new_page(viewport=SIZE | {"height": picture.height}, color_scheme=picture.scheme)
    page.goto(html.as_uri())
    page.wait_for_selector("[data-ortlens-ready], .ortlens-compare")
    for step in picture.steps:
        act(page, step)
    page.mouse.move(0, 0)
    page.evaluate("() => document.activeElement.blur()")
    page.evaluate(_STILL)
    file = FOLDER / f"{picture.name}.png"
    if picture.models:
        page.locator("[data-ortlens-ready]").screenshot(path=file)
    else:
        page.screenshot(path=file, full_page=picture.whole_page)
    page.close()
    with Image.open(file) as whole:
        # The other ways to find a palette take rare hues for their neighbours.
        small = whole.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
    return file


def main() -> None:
    """Take those that are named, or all."""
    FOLDER.mkdir(exist_ok=True)
    wanted = [picture for picture in PICTURES if not sys.argv[1:] or picture.name in sys.argv[1:]]
    with sync_playwright() as running, tempfile.TemporaryDirectory() as folder:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-lcd-text"])
        for picture in wanted:
            file = take(browser, picture, Path(folder))
            print(f"{file.relative_to(ROOT)}: {file.stat().st_size // 1000} kB")  # noqa: T201 - the answer
        browser.close()


if __name__ == "__main__":
    main()
