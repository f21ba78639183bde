"""The page of a survey and the figures of a running program: complete, escaped, and nothing is loaded."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ortlens.analysis.answers.overview import SurveyRow, figures_of
from ortlens.trace.records import Capture
from ortlens.views.live import LiveFigures, LiveGraph, LivePoint, live_html
from ortlens.views.survey_page import survey_page
from tests.unit.views.elements import Elements
from tests.unit.views.sample_captures import HOSTILE, SAMPLES


def good(name: str, capture: Capture, folder: Path) -> SurveyRow:
    figures = figures_of(capture)
    return SurveyRow(
        case=name, status="ok", capture=str(folder / name / "capture.ortlens"), report=str(folder / name / "r 1.html"), **figures
    )


@pytest.mark.parametrize("sample", ["empty", "demo_like", "foreign", "hostile"])
def test_every_capture_makes_a_row_and_a_part(sample: str, tmp_path: Path) -> None:
    page = survey_page([good("a", SAMPLES[sample], tmp_path)], lambda _: SAMPLES[sample], title="All", folder=tmp_path)
    assert Elements(page).tags.count("tbody") >= 1
    assert page.count('<tr class="os-row">') == page.count('<tr class="os-detail">') == 1
    assert 'class="ortlens-summary"' in page


def test_hostile_names_reasons_and_logs_are_text(tmp_path: Path) -> None:
    rows = [
        SurveyRow(
            case=HOSTILE, status="failed", reason=HOSTILE, log=HOSTILE, options=HOSTILE, backend=HOSTILE, host=HOSTILE, finding=HOSTILE
        ),
        SurveyRow(case="plain", status="ok", fallbacks=(HOSTILE,), report=str(tmp_path / re.sub("[/\x00\ud800]", "", HOSTILE))),
    ]
    page = survey_page(rows, lambda _: None, title=HOSTILE, folder=tmp_path)
    tags = Elements(page)
    assert tags.tags.count("script") == 1
    assert "img" not in tags.tags
    assert not [name for name in tags.attributes if name.startswith("on")]
    assert "\u202e" not in page
    assert "\x00" not in page


def test_links_are_relative_and_quoted_and_nothing_is_loaded(tmp_path: Path) -> None:
    page = survey_page([good("a", SAMPLES["demo_like"], tmp_path)], lambda _: SAMPLES["demo_like"], title="All", folder=tmp_path)
    tags = Elements(page)
    assert tags.values("href", "src", "srcset", "action") == ["a/r%201.html", "a/capture.ortlens"]
    assert {"link", "iframe", "object", "embed"}.isdisjoint(tags.tags)
    assert "default-src 'none'" in page
    assert not re.search(r"https?://(?!www\.w3\.org)", page)


def test_columns_without_content_are_left_out(tmp_path: Path) -> None:
    rows = [SurveyRow(case="a", status="ok", ratio=0.5), SurveyRow(case="b", status="ok", wrong=1, max_abs=0.1)]
    page = survey_page(rows, lambda _: None, title="Mine", folder=tmp_path)
    assert 'data-label="options"' not in page
    assert 'data-label="backend"' not in page
    assert 'data-label="max_abs"' in page
    assert survey_page([], lambda _: None, title="None", folder=tmp_path).startswith("<!doctype html>")


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
