"""One selection everywhere: whatever is clicked, wherever it is shown, its chain is told and the other panels show it."""

import re
from collections.abc import Callable

from playwright.sync_api import Page

from ortlens.analysis.identity import links
from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import go, lane_middle, settled, with_findings
from tests.recorded import recorded

pytestmark = BROWSER_MARKS

TWELVE, BERT = with_findings(recorded("twelve")), recorded("bert")
LINE, MODULE, GRAPH, NODE, PARTITION = "line", "module", "graph", "node", "partition"
STEPS = {
    "lines",
    "modules",
    "graphs",
    "graph_inputs",
    "nodes",
    "partitions",
    "models",
    "onnx",
    "sessions",
    "kernels",
    "breaks",
    "recompiles",
    "findings",
}
IN_ORT = {"nodes", "partitions", "models", "sessions", "graphs"}


def click(selector: str) -> Callable[[Page], None]:
    return lambda page: page.locator(f"{selector} >> visible=true").first.click()


def row(table: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.click(f"[data-table={table}]")
        page.locator(".ol-grid-row[data-at='0']").click()

    return act


def keys(selector: str, *pressed: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.locator(selector).first.focus()
        for key in pressed:
            page.keyboard.press(key)

    return act


def lane(page: Page) -> None:
    """The name of the first session, left of its lane."""
    page.locator(".ol-panel-timeline canvas").click(position={"x": 40, "y": lane_middle(page, "session")})


def step(panel: str, name: str) -> tuple[str, Callable[[Page], None]]:
    """From a partition, a link of its chain."""

    def act(page: Page) -> None:
        page.locator(".ol-segment-ort").first.click()
        page.locator(f".ol-step[data-step={name}] .ol-link").first.click()

    return panel, act


def graph_box(kind: str) -> Callable[[Page], None]:
    """A click at the left edge, below the head of a large box: others lie in its middle."""

    def act(page: Page) -> None:
        while not page.locator(f".olg-box.olg-{kind}").count():
            page.locator(".olg-box:not(.olg-open) > .olg-toggle").first.click()
            settled(page)
        page.locator(f".olg-box.olg-{kind} > .olg-body").first.click(position={"x": 9, "y": 30})

    return act


# Where it is clicked, how, and what must be selected by it.
CLICKS: list[tuple[str, Callable[[Page], None], str]] = [
    ("graph", graph_box("module"), MODULE),  # first: what is selected later moves the view
    ("graph", graph_box("op"), NODE),
    ("graph", click(".olg-wire-link"), "break"),
    ("overview", click(".ol-strip-name"), GRAPH),
    ("overview", click(".ol-segment-ort"), PARTITION),
    ("overview", click(".ol-segment-eager"), NODE),
    ("overview", click(".ol-break-mark .ol-link"), "break"),
    ("overview", click(".ol-reasons .ol-link[data-id]"), LINE),
    ("overview", click(".ol-card-first ol .ol-link"), LINE),
    ("tables", row("fallbacks"), NODE),
    ("tables", row("numerics"), NODE),
    ("tables", row("ledger"), GRAPH),
    ("timeline", lane, "session"),
    ("timeline", keys(".ol-panel-timeline canvas", "Home", "Enter"), "run"),
    ("timeline", keys(".ol-panel-timeline canvas", "g"), "node|break"),
    ("source", click(".ol-source-text:has-text('torch.relu')"), LINE),
    ("source", click(".ol-line-mark:has(.ol-mark-fallback) .ol-link"), NODE),
    ("source", click(".ol-line-mark:has(.ol-mark-break) .ol-link"), "break"),
    ("source", click(".ol-line-mark:has(.ol-mark-finding) .ol-link"), "finding"),
    ("breaks", click(".ol-event h4 .ol-link"), "break"),
    ("breaks", click(".ol-card-code .ol-link"), LINE),
    ("breaks", click(".ol-links .ol-link"), GRAPH),
    ("findings", click(".ol-event h4 .ol-link"), "finding"),
    ("findings", click(".ol-facts .ol-link"), LINE),
    ("numerics", keys(".ol-panel-numerics canvas", "ArrowRight", "Enter"), NODE),
    ("numerics", click(".ol-worst .ol-link"), NODE + "|line"),
    (*step("overview", "modules"), MODULE),
    (*step("overview", "models"), "model"),
    (*step("overview", "onnx"), "onnx"),
    (*step("overview", "kernels"), "kernel"),
]


def chain_of(page: Page) -> set[str]:
    """Steps of the chain that hold something, the selected one's own among them."""
    told = page.locator(".ol-step").evaluate_all("steps => steps.map(step => step.dataset.step)")
    assert set(told) <= STEPS
    kind = str(page.get_attribute(".ol-details", "data-selected")).split(":", 1)[0]
    own = {"onnx": "onnx", "run": "sessions"}.get(kind, f"{kind}s")
    return {*told, own}


def shows(page: Page, panel: str) -> bool:
    """Whether a panel marks anything as selected."""
    root = go(page, panel)
    settled(page)
    if panel == "graph":
        return root.locator(".olg-selected, .olg-linked, .olg-holds").count() > 0
    if panel == "timeline":
        return re.search(r"; [\d,]+ selected", root.inner_text()) is not None
    if panel == "flame":
        return root.locator("canvas").get_attribute("data-linked") != "0"
    if panel == "numerics":
        return ", outlined" in root.inner_text()
    return root.locator("[aria-current=true]").count() > 0


NEEDS = {
    "overview": {"partitions", "graphs"},
    "graph": {"nodes", "partitions", "graphs"},
    "timeline": {"sessions"},
    "source": {"lines"},
    "breaks": {"breaks"},
    "findings": {"findings"},
}


def test_a_click_anywhere_selects_everywhere(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    followed = set()
    for panel, act, kind in CLICKS:
        go(page, panel)
        page.evaluate("document.querySelector('.ol-details .ol-icon')?.click()")
        settled(page)
        act(page)
        selected = str(page.get_attribute(".ol-details", "data-selected"))
        assert selected.split(":", 1)[0] in kind.split("|"), (panel, kind, selected)
        chain = chain_of(page)
        assert len(chain) >= 2, selected
        if kind in ("partition", "model", "session", "kernel", "run", "onnx"):
            assert chain >= IN_ORT, selected
        if kind in followed:  # what the panels show depends on the selection alone
            continue
        followed.add(kind)
        for other, needs in NEEDS.items():
            assert not chain & needs or shows(page, other), (panel, selected, other)
        if "partitions" in chain and "nodes" in chain:
            assert shows(page, "numerics"), (panel, selected)
        assert page.get_attribute(".ol-details", "data-selected") == selected  # looking changes nothing


def linked(page: Page, step: str) -> set[str]:
    more = page.locator(f".ol-step[data-step={step}] .ol-more")
    if more.count():
        more.click()
    return set(page.locator(f".ol-step[data-step={step}] .ol-link").evaluate_all("all => all.map(one => one.dataset.id)"))


def test_python_and_the_explorer_know_the_same_chain(show: Callable[..., Page]) -> None:
    page = show(BERT)
    go(page, "tables")
    page.click("[data-table=nodes]")
    models = {model.partition_id: model.model_id for model in BERT.models}
    for node in BERT.nodes[:: len(BERT.nodes) // 8]:
        page.fill("input[aria-label='Search all columns']", node.node)
        page.locator(".ol-grid-rows .ol-grid-row").filter(has=page.locator(f"div:text-is('{node.node}')")).first.click()
        assert page.get_attribute(".ol-details", "data-selected") == f"node:{node.graph_id}/{node.node}"
        rows = list(links(BERT, node=f"{node.graph_id}:{node.node}"))
        assert rows
        told = {
            "lines": {f"line:{row.file}:{row.line}" for row in rows if row.file},
            "partitions": {f"partition:{row.partition_id}" for row in rows if row.partition_id},
            "onnx": {f"onnx:{models[row.partition_id]}/{row.onnx_node}" for row in rows if row.partition_id and row.onnx_node},
            "kernels": {f"kernel:{row.session_id}/{row.kernel}" for row in rows if row.kernel},
        }
        for step, ids in told.items():
            assert linked(page, step) == ids, (node.node, step)


def test_every_linked_row_of_every_table_is_marked_and_what_has_a_row_is_the_row_of_its_table(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    page.locator(".ol-segment-ort").nth(3).click()
    partition = TWELVE.partitions[3]
    sessions = {session.session_id for session in TWELVE.sessions if session.partition_id == partition.partition_id}
    wanted = {
        "nodes": sum(node.partition_id == partition.partition_id for node in TWELVE.nodes),
        "partitions": 1,
        "models": 1,
        "sessions": len(sessions),
        "runs": sum(run.session_id in sessions for run in TWELVE.runs),
        "kernels": sum(kernel.session_id in sessions for kernel in TWELVE.kernels),
        "numerics": sum(value.partition_id == partition.partition_id for value in TWELVE.numerics),
        "graphs": 1,
        "fallbacks": 0,
    }
    go(page, "tables")
    for table, count in wanted.items():
        page.click(f"[data-table={table}]")
        said = page.inner_text(".ol-panel-tables [role=status]")
        assert (f", {count} linked to the selection" in said) == bool(count), (table, said)
        settled(page)
        assert (page.locator(".ol-grid-row[aria-current=true]").count() > 0) == bool(count), table
    row("nodes")(page)
    page.click("[data-table=graphs]")
    page.click(".ol-jump:text-is('Table')")
    settled(page)
    assert page.get_attribute("[data-table=nodes]", "aria-pressed") == "true"
    assert page.get_attribute(".ol-grid-row[data-at='0']", "aria-selected") == "true"


def test_an_id_can_be_copied_and_the_selection_undone_from_every_panel(show: Callable[..., Page]) -> None:
    page = show(TWELVE)
    page.evaluate("() => { navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }; }")
    page.click(".ol-segment-ort >> nth=0")
    page.click(".ol-copy-id")
    wanted = f"partition:{TWELVE.partitions[0].partition_id}"
    assert page.evaluate("window.copied") == page.get_attribute(".ol-details", "data-selected") == wanted
    for panel in ("overview", "actions", "flame", "graph", "tables", "timeline", "source", "breaks", "findings", "numerics"):
        go(page, "overview")
        page.click(".ol-segment-ort >> nth=0")
        go(page, panel)
        page.focus(f"[data-tab={panel}]")
        page.keyboard.press("Escape")
        assert page.get_attribute(".ol-details", "data-selected") == "", panel
        settled(page)
        assert not shows(page, panel), panel
