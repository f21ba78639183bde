"""What every walk through the explorer does: watch the page, change the panel, wait for what was asked for."""

import json
from dataclasses import replace

from playwright.sync_api import Locator, Page, Request

from ortlens.trace.records import Capture, Finding
from ortlens.trace.schema import facts_of
from ortlens.views import selection
from tests.facts import head

PANELS = tuple(name for name in selection.PANELS if name != "onnx")
"""Panels of a capture without ONNX models, from left to right."""


def watch(page: Page, trouble: list[str], own: str, *, frames: bool = False) -> None:
    """Note what a page complains of, and whom it asks for anything."""

    def asked(request: Request) -> None:
        if request.url != own and not (frames and request.url.startswith("blob:null/")):
            trouble.append(f"request: {request.url}")

    page.on("console", lambda message: trouble.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("dialog", lambda dialog: trouble.append(f"dialog: {dialog.message}"))
    page.on("request", asked)
    page.on("requestfailed", lambda request: None if _given_up(request) else trouble.append(f"refused: {request.url} {request.failure}"))


def _given_up(request: Request) -> bool:
    """Whether it is a frame's own blob that was still loading when the frame went away, which is nobody's fault."""
    return request.url.startswith("blob:null/") and request.failure == "net::ERR_ABORTED"


def until(page: Page, condition: str, arg: object = None) -> None:
    """Wait for a condition. It is asked for from outside: `wait_for_function` evaluates texts in the page, which its rules forbid."""
    for _ in range(200):
        if page.evaluate(condition, arg):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not within ten seconds: {condition}")


def go(view: Page | Locator, panel: str) -> Locator:
    """The panel, once it is shown."""
    view.locator(f"[data-tab={panel}]").click()
    shown = view.locator(f".ol-panel-{panel}:not([hidden])")
    shown.wait_for()
    return shown


def selected(view: Page | Locator) -> str:
    """Name of what is selected, as the details have it. What JupyterLab has scrolled out of sight has no inner text."""
    return view.locator(".ol-details-name").text_content() or ""


def settled(page: Page) -> None:
    """Two frames later: what was asked for is painted, and what the browser tells Python is on its way."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def lane_middle(page: Page, kind: str, top: int = 20, height: int = 24) -> int:
    """Where the middle of the timeline's first lane of a kind is drawn, in pixels below the top of its canvas."""
    lanes = json.loads(page.get_attribute(".ol-panel-timeline canvas", "data-lanes") or "[]")
    return top + height * next(at for at, lane in enumerate(lanes) if lane.partition(":")[0] == kind) + height // 2


def with_peaks(capture: Capture, flops: float = 2.5e11, byte_rate: float = 2e10) -> Capture:
    """A profiled capture in which the machine's peaks were measured, too."""
    measured = {
        name: str(rate)
        for threads in {session.threads or 1 for session in capture.sessions}
        for name, rate in ((f"peak_flops_float32_threads_{threads}", flops), (f"peak_bytes_threads_{threads}", byte_rate))
    }
    return replace(capture, **head({**facts_of(capture), **measured}))


def with_findings(capture: Capture) -> Capture:
    """A capture with information about the first two lines of which ONNX Runtime runs a part."""
    lines = dict.fromkeys((node.file, node.line) for node in capture.nodes if node.file and node.partition_id)
    made = (
        Finding(rule="launch_times", severity="info", title=f"line {line}", mitigation="Leave it.", file=file, line=line)
        for file, line in list(lines)[:2]
    )
    return replace(capture, findings=tuple(made))
