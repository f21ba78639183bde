"""The explorer and `lens.live()` in JupyterLab and Notebook 7, in a real browser over a real kernel."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
import pytest
import torch
from playwright.sync_api import Browser

import ortlens
from tests.browser.lab import Notebook, Server
from tests.browser.page import BROWSER_MARKS
from tests.browser.walk import go, selected, settled

pytest.importorskip("jupyterlab", reason="needs JupyterLab, which the group `test` brings")
pytestmark = BROWSER_MARKS

CAPTURE = Path(__file__).parent / "captures" / "pieces.ortlens"
LOAD = f"import ortlens\nlens = ortlens.load({str(CAPTURE)!r})"
SHOW = "view = lens.show()\nview"
SUMMARY = ".jp-RenderedHTML:has-text('46 of 51 operators')"
SHADES = """(view) => {
  const sum = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).reduce((total, part) => total + Number(part), 0);
  const { backgroundColor, color } = getComputedStyle(view);
  return [sum(backgroundColor), sum(color)];
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from tests.browser.lab import serving

    with serving(tmp_path_factory.mktemp("jupyter")) as started:
        yield started


@pytest.fixture(scope="module")
def opened(browser: Browser, server: Server) -> Iterator[Notebook]:
    """One notebook for the tests of this file: a kernel takes its time."""
    from tests.browser.lab import Notebook

    notebook = Notebook(browser, server, server.write("lab.ipynb", LOAD, SHOW, "'for what the tests ask'"))
    notebook.run(0)
    yield notebook
    notebook.page.close()


@pytest.fixture(scope="module")
def with_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture that holds its ONNX model."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    with torch.no_grad():
        return ortlens.explain(model, calls=1)(torch.randn(2, 8)).save(tmp_path_factory.mktemp("captures") / "small.ortlens")


@pytest.fixture
def lab(opened: Notebook) -> Iterator[Notebook]:
    """The notebook, with an explorer that is shown anew; afterwards, nothing may have been complained of or asked of anyone."""
    opened.run(1)
    opened.view(1).locator(".ol-shell").wait_for()
    opened.cell(1).locator(SUMMARY).wait_for(state="hidden")  # it gives way to the explorer
    yield opened
    assert opened.trouble == []


def test_graph_table_timeline_and_python_show_the_same(lab: Notebook) -> None:
    view = lab.view(1)
    go(view, "tables").locator("[data-table=partitions]").click()
    view.locator("input[aria-label='Filter partition_id']").fill("p13")
    view.locator(".ol-grid-row[data-at='0']").click()
    assert selected(view) == "p13"
    assert lab.python("print(view.selected)") == "partition:p13"
    go(view, "graph").locator(".olg-linked").first.wait_for()
    session = lab.python("print(lens.sessions.query('partition_id == \"p13\"').session_id.iloc[0])")
    lab.python(f"view.selected, view.tab = 'session:{session}', 'timeline'")
    timeline = view.locator(".ol-panel-timeline:not([hidden])")
    timeline.wait_for()
    assert selected(view) == session
    timeline.locator("canvas").focus()
    for _ in range(2):  # onto a call, and it is selected
        lab.page.keyboard.press("ArrowRight")
    lab.page.keyboard.press("Enter")
    assert selected(view).startswith("call ")
    assert lab.python("print(view.selected)").startswith("run:")

    lab.python("view.selected = 'partition:p3'")  # the notebook's style does not reach in
    fact = lab.view(1).locator(".ol-details .ol-facts dt").first
    assert fact.evaluate("(found) => [getComputedStyle(found).float, getComputedStyle(found).fontWeight].join()") == "none,400"


def test_keys_and_the_wheel_work_the_graph_and_do_not_reach_the_notebook(lab: Notebook) -> None:
    view, cells = lab.view(1), lab.page.locator(".jp-Cell").count()
    view.locator("[data-tab=overview]").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "Tab", "Tab"):  # past the actions and the flame graph
        lab.page.keyboard.press(key)
    assert view.locator(".ol-panel-graph:not([hidden])").count() == 1
    view.locator(".olg-stage").focus()
    for key in ("Home", "Enter", "ArrowDown", "a", "b", "d", "d", "x", "m", "1"):
        lab.page.keyboard.press(key)
    assert view.locator(".olg-stage").get_attribute("aria-activedescendant")
    lab.page.keyboard.press("/")
    lab.page.keyboard.type("add")
    assert view.locator(".olg-find").input_value() == "add"
    assert lab.page.locator(".jp-Cell").count() == cells
    assert lab.page.locator(".jp-MarkdownCell").count() == 0
    lab.page.keyboard.press("Escape")
    stage = view.locator(".olg-stage")
    stage.hover()
    stage.focus()
    scrolled = "[...document.querySelectorAll('.jp-Notebook, .jp-WindowedPanel-outer')].map((part) => part.scrollTop).join()"
    before, drawn = lab.page.evaluate(scrolled), stage.locator(".olg-svg").inner_html()
    lab.page.mouse.wheel(0, 240)
    settled(lab.page)
    assert lab.page.evaluate(scrolled) == before
    assert stage.locator(".olg-svg").inner_html() != drawn


def test_the_theme_of_the_notebook_is_followed_while_it_is_open(lab: Notebook) -> None:
    view = lab.view(1)
    light = view.evaluate(SHADES)
    try:
        lab.command("apputils:change-theme", theme="JupyterLab Dark")
        lab.page.wait_for_selector("body[data-jp-theme-light=false]", state="attached")
        lab.page.wait_for_function("getComputedStyle(document.querySelector('.ortlens')).colorScheme === 'dark'")
        dark = view.evaluate(SHADES)
    finally:
        lab.command("apputils:change-theme", theme="JupyterLab Light")
        lab.page.wait_for_selector("body[data-jp-theme-light=true]", state="attached")
    (ground, ink), (dark_ground, dark_ink) = light, dark  # sums of red, green and blue
    assert ground - ink > 400
    assert dark_ink - dark_ground > 400


def test_it_fills_the_screen_and_is_as_high_as_it_is_told(lab: Notebook) -> None:
    view = lab.view(1)
    lab.python("view.layout.height = '500px'")
    lab.page.wait_for_function("document.querySelector('.ortlens').getBoundingClientRect().height === 500")
    view.locator(".ol-full").click()
    lab.page.wait_for_function("document.fullscreenElement?.getBoundingClientRect().height === innerHeight")
    view.locator(".ol-full").click()
    lab.page.wait_for_function("document.fullscreenElement === null")


def test_onnx_models_come_from_python_when_they_are_looked_at(lab: Notebook, with_model: Path) -> None:
    lab.python(f"small = ortlens.load({str(with_model)!r}).show(tab='onnx')\nsmall")
    view = lab.view(2)
    frame = view.frame_locator("iframe")
    frame.locator("[id='node-name-relu/Relu']").click()
    view.locator(".ol-details-name:text-is('relu/Relu')").wait_for()
    settled(lab.page)
    lab.command("notebook:insert-cell-below")
    wanted = "onnx:m0/relu/Relu"
    assert lab.python_until("print(small.selected)", wanted.__eq__) == wanted
    lab.python("small.selected = 'node:g0/addmm'")
    frame.locator("[id='node-name-node_Gemm_0'].select").wait_for()


def test_a_setting_is_tried_from_its_action(lab: Notebook) -> None:
    lab.python(
        "import torch\nloud = ortlens.explain(lambda x: [x.sin(), print(end=''), x.cos()][0], calls=1)(torch.ones(3))\n"
        "shown = loud.show(tab='actions')\nshown"
    )
    card = lab.view(-1).locator(".ol-action").first
    card.get_by_role("button", name="Try torch._dynamo.config").click()
    told = card.get_by_role("status").filter(has_text=re.compile(r"^\d+\.\d\d times as long, results match PyTorch$"))
    told.wait_for(timeout=120_000)
    lab.python("del loud")
    assert not lab.view(1).get_by_role("button", name="Try ").count()  # of a saved capture


def test_a_page_that_is_loaded_again_shows_what_was_shown(lab: Notebook) -> None:
    lab.python("view.selected, view.tab = 'partition:p13', 'graph'")
    lab.command("docmanager:save")
    lab.open()
    view = lab.view(1)
    view.locator(".ol-panel-graph:not([hidden])").wait_for()
    assert selected(view) == "p13"
    go(view, "breaks").locator(".ol-link").first.click()
    settled(lab.page)
    before = "partition:p13"
    assert lab.python_until("print(view.selected)", before.__ne__) != before


def test_a_kernel_that_starts_again_leaves_the_view_and_the_cell_brings_another(lab: Notebook) -> None:
    lab.page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    lab.page.wait_for_function("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'")
    view = lab.view(1)
    go(view, "breaks").locator(".ol-link").first.click()  # nobody hears it, and nothing breaks
    assert selected(view)
    lab.run(0)
    lab.run(1)
    lab.view(1).locator(".ol-shell").wait_for()
    lab.python("view.selected = 'partition:p3'")
    lab.view(1).locator(".ol-details-name").wait_for()


def test_a_notebook_that_was_executed_elsewhere_shows_its_explorer_once_it_is_trusted(browser: Browser, server: Server) -> None:
    """From the widget state that nbclient saved; the kernel of this page knows nothing of it. Before, and without state, its summary."""
    from tests.browser.lab import Notebook

    name = server.write("saved.ipynb", LOAD, "lens.show(tab='breaks', selected='partition:p3')")
    made = nbformat.read(server.folder / name, as_version=4)
    nbclient.NotebookClient(made, timeout=300).execute()
    nbformat.write(made, server.folder / name)
    del made.metadata["widgets"]
    nbformat.write(made, server.folder / "stateless.ipynb")
    for file in (name, "stateless.ipynb"):
        notebook = Notebook(browser, server, file)
        notebook.cell(1).locator(SUMMARY).wait_for()
        notebook.page.evaluate("void window.jupyterapp.commands.execute('notebook:trust')")
        notebook.page.locator(".jp-Dialog .jp-mod-accept").click()
        if file == name:
            view = notebook.view(1)
            view.locator(".ol-panel-breaks:not([hidden])").wait_for()
            assert selected(view) == "p3"
            go(view, "graph").locator(".olg-linked").first.wait_for()
            go(view, "onnx").locator("[role=alert]:has-text('start the notebook')").wait_for()
            assert notebook.trouble == []
        else:
            notebook.cell(1).locator(SUMMARY).wait_for()
        notebook.page.close()


def test_notebook_7_shows_the_same(browser: Browser, server: Server) -> None:
    from tests.browser.lab import Notebook

    notebook = Notebook(browser, server, server.write("seven.ipynb", LOAD, SHOW, "'for what the tests ask'"), app="notebook")
    notebook.run(0)
    notebook.run(1)
    view, cells = notebook.view(1), notebook.page.locator(".jp-Cell").count()
    go(view, "tables").locator("[data-table=partitions]").click()
    view.locator(".ol-grid-row[data-at='0']").click()
    go(view, "graph").locator(".olg-linked").first.wait_for()
    settled(notebook.page)
    assert notebook.python("print(view.selected)") == f"partition:{selected(view)}"
    notebook.python("view.selected, view.tab = 'break:b0', 'breaks'")
    view.locator(".ol-panel-breaks:not([hidden])").wait_for()
    view.locator("[data-tab=breaks]").focus()
    for key in ("a", "d", "d", "ArrowRight"):
        notebook.page.keyboard.press(key)
    view.locator(".ol-panel-findings:not([hidden])").wait_for()
    assert notebook.page.locator(".jp-Cell").count() == cells
    assert notebook.trouble == []
    notebook.page.close()


SET_UP = """\
import time, torch, ortlens
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
lens = ortlens.Lens(name="training")
step = torch.compile(lambda x: torch.fft.fft(net(x)).abs().sum(), backend=lens, dynamic=False)
step(torch.randn(32, 64)).backward()
"""
LOOP = """\
with lens.live(every=0.2):
    for size in (32, 48):
        until = time.monotonic() + 3
        while time.monotonic() < until:
            step(torch.randn(size, 64)).backward()
"""
INK = "(line) => getComputedStyle(line).color.match(/[\\d.]+/g).slice(0, 3).reduce((total, part) => total + Number(part), 0)"


def test_live_moves_while_the_cell_runs_and_stays_when_it_ended(browser: Browser, server: Server) -> None:
    from tests.browser.lab import Notebook

    notebook = Notebook(browser, server, server.write("live.ipynb", SET_UP, LOOP))
    notebook.run(0)
    notebook.cell(1).locator(".cm-content").click()
    notebook.page.keyboard.press("Control+Enter")
    live = notebook.cell(1).locator(".ortlens-summary")
    title = live.locator(".ol-title")
    title.filter(has_text="training: running for").wait_for()
    curve = live.locator("svg polyline")
    curve.wait_for()
    before = curve.get_attribute("points")
    notebook.page.wait_for_function(
        "(before) => document.querySelector('.ol-curve polyline').getAttribute('points') !== before", arg=before
    )
    title.filter(has_text="training: ended after").wait_for()
    assert live.count() == 1
    assert re.search(r"\d recompiles?", live.locator("svg").text_content() or "")
    inks = {}
    for theme, is_light in (("JupyterLab Dark", "false"), ("JupyterLab Light", "true")):
        notebook.command("apputils:change-theme", theme=theme)
        notebook.page.wait_for_selector(f"body[data-jp-theme-light={is_light}]", state="attached")
        notebook.page.wait_for_timeout(500)
        inks[theme] = curve.evaluate(INK)
    assert inks["JupyterLab Light"] < 200
    assert inks["JupyterLab Dark"] > 500
    notebook.command("docmanager:save")
    assert "ended after" in (server.folder / "live.ipynb").read_text(encoding="utf-8")
    assert notebook.trouble == []
    notebook.page.close()
