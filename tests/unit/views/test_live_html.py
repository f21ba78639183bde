from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

from ortlens.views.live import LiveFigures, LiveGraph, LivePoint, live_html
from tests.unit.views.sample_captures import HOSTILE

MS = 1_000_000
FIGURES = LiveFigures(
    runs=1200,
    period_ns=10 * MS,
    busy_ns=6 * MS,
    graphs=(LiveGraph(graph_id="g0", name=HOSTILE, phase="forward", call_ns=2 * MS),),
    break_count=0,
    recompile_count=0,
    session_count=1,
    fallbacks=("aten.sort",),
    memory_bytes=3 << 20,
)
POINTS = [
    LivePoint(at_s=0, figures=FIGURES),
    LivePoint(at_s=1, figures=replace(FIGURES, recompile_count=2, session_count=3, period_ns=20 * MS)),
    LivePoint(at_s=2, figures=replace(FIGURES, recompile_count=2, session_count=4)),
]


def parsed(html: str) -> ET.Element:
    return ET.fromstring(html)  # noqa: S314 - our own text, which must be well-formed


def test_the_picture_is_well_formed_and_hostile_names_stay_text() -> None:
    html = live_html(POINTS, name=HOSTILE)
    assert "<img" not in html
    assert "<script" not in html
    cells = {cell[1].text: cell[0].text for cell in parsed(html).iterfind(".//div[@class='ol-live']/div")}
    assert cells == {
        "runs": "1,200",
        "from call to call": "10.0 ms",
        "of it in sessions": "6.00 ms (60.0 %)",
        "graph breaks": "0",
        "recompiles": "2",
        "sessions": "4",
        "operator in PyTorch": "1",
        "memory of the process": "3.00 MiB",
    }


def test_the_curve_marks_what_was_compiled_where_it_was() -> None:
    svg = parsed(live_html(POINTS)).find(".//svg")
    assert svg is not None
    assert [text.text for text in svg.iterfind("text")][:2] == ["2 recompiles", "1 session"]
    line = svg.find("polyline")
    assert line is not None
    low, high, again = (float(point.split(",")[1]) for point in line.attrib["points"].split())
    assert high < low == again, "up is slower"


def test_without_calls_there_are_figures_and_no_curve() -> None:
    assert parsed(live_html(POINTS[:1], is_over=True)).find(".//svg") is None
    idle = replace(FIGURES, runs=0, period_ns=None, busy_ns=None, graphs=(), memory_bytes=None)
    html = live_html([LivePoint(at_s=0, figures=idle), LivePoint(at_s=1, figures=idle)])
    assert "from call to call" not in html
    assert parsed(html).find(".//table") is None
