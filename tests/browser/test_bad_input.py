"""What no recorder should write, and what other versions wrote: every panel draws, or says what is wrong."""

import itertools
import math
import typing
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from playwright.sync_api import Page

from ortlens.analysis.generation import with_roles
from ortlens.trace import records as r
from ortlens.trace.schema import TABLES
from ortlens.views.payload import packed_payload, payload_from_capture
from tests.browser.page import BROWSER_MARKS, WIDE
from tests.browser.walk import PANELS, go, settled
from tests.recorded import recorded
from tests.unit.analysis import hand_made
from tests.unit.analysis.test_generation import generating
from tests.unit.views.sample_captures import SAMPLES

pytestmark = BROWSER_MARKS

TWELVE = recorded("twelve")
KEYS = {"graph_id", "compile_id", "partition_id", "session_id", "model_id", "break_id"}
KEYS |= {"node", "kernel", "call", "start_ns", "phase", "part"}
LONG = 10_000


def changed(capture: r.Capture, change: Callable[[Any, str], Any]) -> r.Capture:
    """The same capture with every field of every record as `change(record, name)` wants it."""
    tables: dict[str, Any] = {
        table: tuple(
            replace(record, **{field.name: change(record, field.name) for field in fields(record)}) for record in getattr(capture, table)
        )
        for table in TABLES
    }
    return replace(capture, **tables)


def optional(record: object, name: str) -> bool:
    hint = typing.get_type_hints(type(record))[name]
    return type(None) in typing.get_args(hint)


def without_what_may_be_missing(capture: r.Capture) -> r.Capture:
    return changed(capture, lambda record, name: None if optional(record, name) and name not in KEYS else getattr(record, name))


def with_odd_floats(capture: r.Capture) -> r.Capture:
    """Numbers that are not finite, of either kind, in every column of floats."""
    odd = itertools.cycle((math.nan, math.nan, -math.inf))
    floats = {(table.record, column.name) for table in TABLES.values() for column in table.columns if column.kind == "float"}
    return changed(capture, lambda record, name: next(odd) if (type(record), name) in floats else getattr(record, name))


def with_long_names(capture: r.Capture) -> r.Capture:
    long = {"target", "module", "name", "reason", "source", "title", "file", "function", "op_type", "module_type", "advice", "kernel"}

    def change(record: object, name: str) -> object:
        value = getattr(record, name)
        return value + "é<b>\u202e" + "x" * LONG if name in long and isinstance(value, str) else value

    return changed(capture, change)


def look_at_every_panel(page: Page) -> str:
    """All that is said; the graph in each of its colours, the tables one by one."""
    said = []
    for panel in PANELS:
        root = go(page, panel)
        settled(page)
        text = root.inner_text()
        assert "could not be drawn" not in text, panel
        assert len(text) > 40, panel
        if panel == "graph" and page.query_selector(".olg-stage"):
            for mode in ("time", "error", "reason", "phase"):
                page.select_option(".olg-tools select[aria-label=Colour]", mode)
            page.click("[data-by=partition]")
            page.click(".olg-openings button:text-is('Expand all')")
        if panel == "tables":
            for button in page.locator("[data-table]").all():
                button.click()
                said.append(root.inner_text())
                if root.locator(".ol-empty:not([hidden])").count() == 0:
                    root.locator(".ol-grid-row[data-at='0']").click()
                    said.append(page.inner_text(".ol-details"))
        said.append(text)
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDE["width"]
    return " ".join(said)


def test_none_wherever_there_may_be_none(show: Callable[..., Page]) -> None:
    words = look_at_every_panel(show(without_what_may_be_missing(TWELVE))).split()
    assert not {"null", "undefined", "NaN", "[object", "nullnull"} & set(words)


def test_numbers_that_are_not_finite_and_names_of_ten_thousand_characters(show: Callable[..., Page]) -> None:
    page = show(with_odd_floats(with_long_names(TWELVE)))
    said = look_at_every_panel(page)
    assert [text for text in ("-∞", "NaN") if text not in said] == []
    assert [text for text in ("NaN %", "Infinity", "\u202e") if text in said] == []
    assert page.locator("b").filter(has_text="xxx").count() == 0
    assert len(page.inner_text(".ortlens")) < 400_000


def test_thousands_of_breaks_and_findings_are_bounded_and_said(show: Callable[..., Page]) -> None:
    breaks = tuple(replace(TWELVE.breaks[0], break_id=f"b{at}", line=at) for at in range(3000))
    page = show(replace(TWELVE, breaks=breaks, findings=tuple(r.Finding(rule="r", severity="info", title=f"t{at}") for at in range(3000))))
    for panel in ("breaks", "findings"):
        page.click(f"[data-tab={panel}]")
        root = page.locator(f".ol-panel-{panel}:not([hidden])")
        assert root.locator(".ol-event").count() == 200
        root.locator(f"button:text-matches('more, see the table {panel}')").click()
        assert page.get_attribute(f"[data-table={panel}]", "aria-pressed") == "true"
        assert int(page.inner_text(".ol-panel-tables [role=status]").split()[0].replace(",", "")) >= 3000


SAMPLED = {
    **{name: SAMPLES[name] for name in ("empty", "foreign", "hostile", "no_compute")},
    "generation": with_roles(generating()),
    "next to nothing": r.Capture(graphs=(hand_made.graph(node_count=1),), nodes=(hand_made.node("n", supported=False, partition_id=None),)),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_every_panel_draws_or_says_what_is_missing(show: Callable[..., Page], name: str) -> None:
    page = show(SAMPLED[name])
    look_at_every_panel(page)
    assert page.locator(".ol-card-generation").count() == (name == "generation")
    assert page.query_selector("[role=tabpanel] img") is None  # hostile names stay text


def test_more_nodes_than_a_page_holds_are_bounded_and_said(show: Callable[..., Page]) -> None:
    count = 60_000
    node = hand_made.node("n", target="aten.sin.default")
    nodes = tuple(replace(node, node=f"n{at}", inputs=(f"n{at - 1}",), partition_id=None if at % 50 == 49 else "p0") for at in range(count))
    graphs, partitions = (hand_made.graph(op_count=count, node_count=count),), (hand_made.partition(node_count=count),)
    page = show(r.Capture(graphs=graphs, nodes=nodes, partitions=partitions))
    assert "the first 50,000 of 60,000 nodes are shown" in page.inner_text(".ol-note")
    for panel in PANELS:
        page.click(f"[data-tab={panel}]")
        assert "could not be drawn" not in page.inner_text(f".ol-panel-{panel}")
    assert page.locator(".ortlens *").count() < 8000
    go(page, "tables")
    page.click("[data-table=nodes]")
    assert page.inner_text(".ol-panel-tables [role=status]") == "50,000 rows, 10,000 left out"
    go(page, "graph").locator(".olg-stage").wait_for()
    page.click(".olg-openings button:text-is('Expand all')")
    page.wait_for_selector(".olg-warning:has-text('left collapsed')", timeout=60_000)
    settled(page)
    assert page.locator(".olg-svg *").count() < 4000
    assert page.locator(".olg-mixed").count() > 0


@pytest.mark.parametrize("gone", [("graphs", "sessions"), ("nodes", "partitions")])  # what the others refer to
def test_a_table_that_is_not_there(show: Callable[..., Page], gone: tuple[str, ...]) -> None:
    data = payload_from_capture(TWELVE)
    for table in gone:
        del data["tables"][table]
    page = show(packed_payload(data))
    for panel in PANELS:
        page.click(f"[data-tab={panel}]")
        assert "could not be drawn" not in page.inner_text(f".ol-panel-{panel}"), panel
