"""Netron in a real browser, from a file: alone, and in the report, linked with everything else, under the report's rules."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from playwright.sync_api import FrameLocator, Locator, Page

from ortlens.trace import records as r
from ortlens.trace.records import Capture
from ortlens.views.netron import netron_view
from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import until
from tests.recorded import recorded
from tests.unit.analysis import hand_made

pytestmark = BROWSER_MARKS

MODELS = recorded("models")
PATIENCE = 30_000
VSCODE = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:; child-src data:"
"""As in VS Code's notebooks: inline scripts may run, those by blob URL may not, and there are no workers."""


def drawn(root: Page | FrameLocator, model: str | None = None) -> None:
    which = f"[data-shown='{model}']" if model else "[data-shown]"
    root.locator(f"html{which}").wait_for(state="attached", timeout=PATIENCE)


def netron(page: Page, model: str | None = None) -> FrameLocator:
    """The frame in the explorer, with a model in it."""
    if page.locator("[data-tab=onnx]").get_attribute("aria-selected") != "true":
        page.click("[data-tab=onnx]")
    frame = page.frame_locator(".ol-onnx-frame")
    drawn(frame, model)
    return frame


def node(root: Page | FrameLocator, name: str) -> Locator:
    return root.locator(f'[id="node-name-{name}"]')


def selected(page: Page, wanted: str) -> None:
    page.locator(f'.ol-details[data-selected="{wanted}"]').wait_for(timeout=PATIENCE)


def highlighted(root: FrameLocator, *names: str) -> None:
    """These nodes are, and nothing else is."""
    for name in names:
        root.locator(f'[id="node-name-{name}"].select').wait_for(timeout=PATIENCE)
    assert root.locator(".graph-node.select").count() == len(names)


def names_in(capture: Capture, member: str) -> list[str]:
    return [found.name for found in onnx.load_from_string(capture.attachments[member]).graph.node]


def with_model(data: bytes, names: list[str], *, claimed: int | None = None) -> Capture:
    """A capture of one model, with a node of the program for each of its nodes."""
    nodes = tuple(hand_made.node(f"n{n}", target="aten.relu", dtype=None, onnx_nodes=(name,)) for n, name in enumerate(names))
    return r.Capture(
        graphs=(hand_made.graph(node_count=len(names), op_count=len(names)),),
        partitions=(hand_made.partition(node_count=len(names), input_count=1),),
        nodes=nodes,
        models=(r.Model(model_id="m0", partition_id="p0", node_count=claimed or len(names)),),
        attachments={"models/m0.onnx": data},
    )


def chain(names: list[str], *, hub: bool = False) -> bytes:
    """Nodes in a row; with a hub, each of them reads the first input too."""
    values = [f"v{n}" for n in range(len(names) + 1)]
    kind = "Add" if hub else "Relu"
    reads = [[value, "hub"] if hub else [value] for value in values]
    nodes = [helper.make_node(kind, reads[n], [values[n + 1]], name=name) for n, name in enumerate(names)]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in (["v0", "hub"] if hub else ["v0"])]
    outputs = [helper.make_tensor_value_info(values[-1], TensorProto.FLOAT, [2])]
    made: bytes = helper.make_model(helper.make_graph(nodes, "graph", inputs, outputs)).SerializeToString()
    return made


# ---- alone ----


def test_a_saved_page_draws_every_node_and_follows_the_system(opened: Callable[..., Page], tmp_path: Path) -> None:
    view = netron_view(MODELS, "p1", optimized=True)
    page = opened(view.save(tmp_path / "m1.html"), frames=True, color_scheme="dark")
    drawn(page)
    names = names_in(MODELS, f"models/{view.name}.onnx")
    assert page.locator(".graph-node").count() == len(names) == len(set(names))
    for name in names:
        assert node(page, name).count() == 1
    assert page.evaluate("getComputedStyle(document.getElementById('target')).backgroundColor") in {"rgb(64, 64, 64)", "rgba(0, 0, 0, 0)"}
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(64, 64, 64)"


def test_where_only_inline_scripts_may_run_it_draws_all_the_same(opened: Callable[..., Page]) -> None:
    heard: list[str] = []
    head = f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{VSCODE}">'
    page = opened(f"{head}<body><input autofocus>{netron_view(MODELS, 'p0', optimized=False)._repr_html_()}", heard=heard, frames=True)
    frame = page.frame_locator("iframe")
    drawn(frame)
    assert frame.locator(".graph-node").count() == 12
    assert page.evaluate("document.activeElement.localName") == "input"  # an output of a notebook takes no focus
    assert heard
    assert all("Content Security Policy" in line or " blob:" in line for line in heard)


# ---- in the explorer ----


def test_a_click_in_netron_selects_the_node_everywhere(report: Callable[..., Page]) -> None:
    page = report(MODELS)
    frame = netron(page, "m0")
    page.locator(".ol-onnx-frame").evaluate("(found) => { found.dataset.mark = 'the same'; }")
    page.click("[data-model=m1]")
    drawn(frame, "m1")
    selected(page, "model:m1")
    assert frame.locator(".graph-node").count() == 12
    page.click("[data-model=m0]")
    drawn(frame, "m0")
    node(frame, "native_layer_norm/LayerNormalization").click()
    selected(page, "onnx:m0/native_layer_norm/LayerNormalization")
    assert page.locator(".ol-step[data-step=nodes] .ol-link").all_inner_texts() == ["native_layer_norm"]
    page.click("[data-tab=tables]")
    page.click("[data-table=nodes]")
    row = page.locator(".ol-grid-row[aria-selected=true]")
    row.wait_for()
    assert "native_layer_norm" in row.inner_text()
    page.click("[data-tab=onnx]")
    page.click("text=As it runs")
    drawn(frame, "m0.optimized")
    node(frame, "gelu/Tanh_7").click()
    selected(page, "kernel:s0/gelu/Tanh_7")
    assert page.locator(".ol-onnx-frame[data-mark='the same']").count() == 1  # one frame for all models


def test_a_node_out_of_sight_is_brought_into_view(report: Callable[..., Page]) -> None:
    names = [f"relu_{n}" for n in range(40)]
    page = report(with_model(chain(names), names))
    frame = netron(page, "m0")
    in_view = "(found) => { const at = found.getBoundingClientRect(); return at.top >= 0 && at.bottom <= innerHeight; }"
    assert not node(frame, "relu_18").evaluate(in_view)
    page.click("[data-tab=tables]")
    page.click("[data-table=nodes]")
    page.locator(".ol-grid-row", has_text="n18").click()
    selected(page, "node:g0/n18")
    page.click("[data-tab=onnx]")
    highlighted(frame, "relu_18")
    for _ in range(200):  # it scrolls there
        if node(frame, "relu_18").evaluate(in_view):
            return
        page.wait_for_timeout(50)
    pytest.fail("relu_18 stays out of sight")


def test_a_model_that_opens_in_a_tab_that_is_left_is_drawn_when_one_comes_back(report: Callable[..., Page]) -> None:
    page = report(MODELS)
    page.click("[data-tab=onnx]")
    page.click("[data-tab=graph]")
    page.wait_for_timeout(1500)
    frame = netron(page, "m0")
    box = node(frame, "node_Gemm_0").bounding_box()
    assert box is not None
    assert box["width"] > 20


def test_a_model_follows_light_and_dark_hears_no_strangers_and_can_be_saved(report: Callable[..., Page]) -> None:
    page = report(MODELS, color_scheme="dark")
    frame = netron(page, "m0")
    with page.expect_download() as download:
        page.click("text=Save .onnx")
    assert download.value.suggested_filename == "m0.onnx"
    saved = onnx.load_from_string(Path(download.value.path()).read_bytes())
    assert [found.name for found in saved.graph.node] == names_in(MODELS, "models/m0.onnx")
    channel = page.locator(".ol-onnx-frame").get_attribute("name")
    message = {"type": "selected", "id": "m0", "name": "node_Gemm_0", "channel": channel}
    page.evaluate("(message) => window.postMessage(message, '*')", message)  # the token, from another window
    frame.locator("body").evaluate("(_, message) => parent.postMessage({ ...message, channel: 'guessed' }, '*')", message)
    page.evaluate("(message) => frames[0].postMessage(message, '*')", {"type": "select", "names": ["node_Gemm_0"], "channel": "guessed"})
    page.wait_for_timeout(300)
    assert page.locator(".ol-details").get_attribute("data-selected") == ""
    assert frame.locator(".graph-node.select").count() == 0
    for dark, fill in (("true", "rgb(64, 64, 64)"), ("false", "rgb(255, 255, 255)"), ("true", "rgb(64, 64, 64)")):
        frame.locator(f"html[data-dark={dark}]").wait_for(state="attached")
        assert frame.locator("body").evaluate("(found) => getComputedStyle(found).backgroundColor") == fill
        page.click(".ol-theme")  # automatic, light, dark


def test_by_keyboard_into_the_frame_and_out_again(report: Callable[..., Page]) -> None:
    page = report(MODELS)
    netron(page, "m0")
    page.locator("[data-model=m0]").focus()
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.localName"))
        if seen[-1] == "iframe":
            break
    assert seen[-1] == "iframe"
    frame = page.frame_locator(".ol-onnx-frame")
    node(frame, "gelu/Tanh_7").click()
    frame.locator(".sidebar-title", has_text="Node Properties").wait_for()
    page.keyboard.press("Escape")  # closes what Netron says about the node
    assert page.evaluate("document.activeElement.localName") == "iframe"
    page.keyboard.press("Escape")
    until(page, "document.activeElement.dataset.model === 'm0'")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    selected(page, "model:m1")
    drawn(page.frame_locator(".ol-onnx-frame"), "m1")


# ---- bad input ----


def test_hostile_names_are_text_there_too(report: Callable[..., Page]) -> None:
    names = ['"><img src=x onerror=alert(1)>', "</script><script>alert(1)</script>", "a'b", "\u202eevil", "__proto__", "z" * 10_000, "${x}"]
    page = report(with_model(chain(names), names))
    frame = netron(page, "m0")
    drawn_ids = frame.locator(".graph-node").evaluate_all("(all) => all.map((one) => one.id)")
    assert sorted(drawn_ids) == sorted(f"node-name-{name}" for name in names)
    for n in (0, 1, 4):
        frame.locator(".graph-node").nth(n).click()
        until(page, "(wanted) => document.querySelector('.ol-details').dataset.selected === wanted", f"onnx:m0/{names[n]}")
    assert frame.locator("img").count() == 0


def test_a_damaged_model_leaves_the_others(report: Callable[..., Page]) -> None:
    cut = {**MODELS.attachments, "models/m0.onnx": MODELS.attachments["models/m0.onnx"][:-20]}
    page = report(replace(MODELS, attachments=cut))
    frame = netron(page, "m1")
    assert frame.locator(".graph-node").count() == 12
    assert page.locator("[data-model=m0]").is_disabled()


def test_a_large_model_is_drawn_when_asked_for(report: Callable[..., Page]) -> None:
    names = ["a", "b"]
    page = report(with_model(chain(names), names, claimed=12_000))
    page.click("[data-tab=onnx]")
    page.locator("p", has_text="12,000 nodes").wait_for()
    assert page.locator(".ol-onnx-frame").count() == 0
    page.click("text=Draw it")
    frame = netron(page, "m0")
    assert frame.locator(".graph-node").count() == 2


def test_a_mask_that_every_layer_reads_is_drawn_by_its_ends(report: Callable[..., Page]) -> None:
    """Netron would bend an arrow at each of 400 rows, 400 times."""
    names = [f"add_{n}" for n in range(400)]
    page = report(with_model(chain(names, hub=True), names))
    frame = netron(page, "m0")
    assert frame.locator(".graph-node").count() == len(names)
    ends = frame.locator("path.edge-path[style*=stroke-dasharray]")
    assert 300 < ends.count() < len(names)  # those that are near have whole arrows
    assert "NaN" not in " ".join(ends.evaluate_all("(all) => all.map((one) => one.getAttribute('d'))"))
    frame.locator("#ortlens-tools").get_by_text("Turn").click()
    page.wait_for_timeout(300)
    frame.locator("#canvas .graph-node").first.wait_for(timeout=PATIENCE)
    assert frame.locator("#canvas [transform*=NaN]").count() == 0


def test_a_graph_that_would_take_the_page_down_is_refused(report: Callable[..., Page]) -> None:
    """Every node reads eight that are up to sixty rows above it."""
    names = [f"sum_{n}" for n in range(900)]
    values = ["v0", *(f"v{n + 1}" for n in range(len(names)))]
    reads = [[values[max(0, n - back)] for back in (0, 15, 22, 30, 37, 45, 52, 58)] for n in range(len(names))]
    nodes = [helper.make_node("Sum", reads[n], [values[n + 1]], name=name) for n, name in enumerate(names)]
    first, last = (helper.make_tensor_value_info(value, TensorProto.FLOAT, [2]) for value in ("v0", values[-1]))
    data = helper.make_model(helper.make_graph(nodes, "graph", [first], [last])).SerializeToString()
    page = report(with_model(data, names))
    page.click("[data-tab=onnx]")
    page.get_by_text("could not be drawn: Worker: its arrows are too long for Netron's layout").wait_for(timeout=PATIENCE)
    page.click("[data-tab=graph]")
    page.locator(".olg-stage").wait_for()


def test_a_frame_that_was_hidden_meanwhile_is_measured_again(opened: Callable[..., Page]) -> None:
    """As in a notebook's own tabs, which take what they do not show off the page."""
    shown = "document.querySelector('div').hidden"
    script = f"<script>{shown} = true; setTimeout(() => {shown} = false, 1500)</script>"
    view = netron_view(MODELS, "p0", optimized=False)._repr_html_()
    frame = opened(f"<!doctype html><body><div>{view}</div>{script}", heard=[]).frame_locator("iframe")
    drawn(frame)
    box = node(frame, "node_Gemm_0").bounding_box()
    assert box is not None
    assert box["width"] > 20
    assert frame.locator("#canvas [transform*=NaN]").count() == 0
