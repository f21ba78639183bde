"""Every renderer over every sample, so that a new renderer or situation is tested at birth."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortlens.analysis.speed import is_busy
from ortlens.trace.records import Break, Capture, Fallback, Graph
from ortlens.trace.schema import facts_of
from ortlens.views.rendering import failure_html, mimebundle, summary
from ortlens.views.time_sentences import against_sentence
from tests.facts import head
from tests.unit.analysis.hand_made import ledger
from tests.unit.views.elements import Elements
from tests.unit.views.sample_captures import SAMPLES, hostile

if TYPE_CHECKING:
    from collections.abc import Callable


@cache
def text_of(name: str, width: int) -> str:
    return summary(SAMPLES[name], width=width)


@cache
def html_of(name: str) -> str:
    return mimebundle(lambda: SAMPLES[name])["text/html"]


RENDERERS: dict[str, Callable[[str], str]] = {
    "text": lambda name: text_of(name, 100),
    "narrow": lambda name: text_of(name, 60),
    "ascii": lambda name: summary(SAMPLES[name], ascii_only=True),
    "html": html_of,
}
TEXT_TAGS = {"div", "style", "p", "strong", "span", "small", "code", "ol", "ul", "li"}
TABLE_TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("renderer", RENDERERS)
def test_no_control_or_bidirectional_character_gets_through(renderer: str, sample: str) -> None:
    shown = RENDERERS[renderer](sample).replace("\n", "")
    assert {unicodedata.category(char) for char in shown}.isdisjoint({"Cc", "Cf", "Cs"})
    shown.encode("utf-8")
    assert renderer != "ascii" or shown.isascii()


@pytest.mark.parametrize("sample", SAMPLES)
def test_text_is_a_few_lines_that_keep_to_the_width(sample: str) -> None:
    for width in (60, 100):
        lines = text_of(sample, width).split("\n")
        assert max(map(len, lines)) <= width
        assert all(line == line.rstrip() for line in lines)
    assert len(text_of(sample, 100).split("\n")) <= (32 if sample not in {"huge", "hostile"} else 56)


def test_colour_marks_labels_only_and_changes_nothing_else() -> None:
    coloured = summary(SAMPLES["hostile"], colour=True)
    assert "\x1b[1mGraph breaks" in coloured
    assert re.sub(r"\x1b\[[01]m", "", coloured) == text_of("hostile", 100)


def test_text_never_parts_a_number_from_its_unit() -> None:
    assert [width for width in range(60, 121) if re.search(r"\d\n *([nµm]?s|%)\b", text_of("demo_like", width))] == []


def test_text_counts_what_it_leaves_out() -> None:
    assert re.findall(r"and ([\d,]+) more[^:]*: see table (\w+)", text_of("huge", 100)) == [
        ("1,047", "fallbacks"),
        ("1,048", "breaks"),
        ("1,048", "recompiles"),
        ("1,044", "findings"),
    ]


@pytest.mark.parametrize("sample", SAMPLES)
def test_html_is_well_formed_inert_and_small(sample: str) -> None:
    html = html_of(sample)
    page = Elements(html)
    assert page.open == page.crossed == []
    assert set(page.tags) <= TEXT_TAGS | TABLE_TAGS
    assert page.attributes <= {"class", "style", "scope", "role", "aria-label", "aria-hidden"}
    assert not re.search(r"url\(|@import|https?:|src=\"|href=", html.replace("&quot;", ""))
    assert len(html.encode("utf-8")) < 60_000
    assert html.count("<caption>") == html.count("<table>")
    assert html.count("<th ") == html.count('<th scope="col"')


def test_html_shows_rows_of_a_huge_capture_and_counts_the_rest() -> None:
    for source in ("graphs", "breaks", "recompiles", "fallbacks", "sessions", "findings"):
        left = re.search(rf"([\d,]+) more rows in <code>\.{source}</code>", html_of("huge"))
        assert left is not None
        assert 950 < int(left[1].replace(",", "")) < 1050


def test_html_holds_what_there_is_under_one_name() -> None:
    assert "<table>" not in html_of("empty")
    assert "<caption><strong>Recompiles" not in html_of("whole")
    assert ("width:100.0%" in html_of("whole"), "width:96.4%" in html_of("demo_like")) == (True, True), "the bar"
    assert Elements(html_of("demo_like")).texts.count("0/0") == 1
    assert "backward" in Elements(html_of("training")).texts
    assert failure_html(["<b>"]) == "<div><p>&lt;b&gt;</p></div>"


@pytest.fixture(scope="module")
def reference() -> Elements:
    return Elements(mimebundle(lambda: hostile("x"))["text/html"])


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_stays_text(reference: Elements, text: str) -> None:
    page = Elements(mimebundle(lambda: hostile(text or "x"))["text/html"])
    assert page.open == page.crossed == []
    assert {tag for tag in page.tags if tag != "code"} == {tag for tag in reference.tags if tag != "code"}
    assert page.attributes == reference.attributes
    assert len(summary(hostile(text or "x")).splitlines()) < 48


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ("4000000", "2.0 times as fast as without torch.compile: 4.00 ms there"),
        ("1000000", "2.0 times as long as without torch.compile: 1.00 ms there"),
        ("2100000", "about as long as without torch.compile: 2.10 ms there"),
        *((plain, "") for plain in ("0", "-5", "9" * 40, "nonsense")),
    ],
)
def test_a_measured_call_is_held_against_the_uncompiled_one(plain: str, words: str) -> None:
    capture = replace(SAMPLES["told"], ledger=ledger(run=1_500_000, residual=500_000), **head({"uncompiled_ns": plain}))
    assert against_sentence(capture).partition(", measured")[0] == words
    crowd = {**facts_of(capture), "torch_threads": "2", "ledger_others": "1.05", "ledger_idle": "0.02"}
    crowded = against_sentence(replace(capture, **head(crowd)))
    assert ("threads waited for cores" in crowded) == bool(words)
    assert "times as" not in crowded
    assert against_sentence(replace(capture, ledger=())) == ""


@pytest.mark.parametrize(
    ("environment", "busy"),
    [
        *(({"ledger_others": others, "ledger_idle": idle}, False) for others, idle in (("0.24", "0.0"), ("1.05", "0.25"), ("nan", "0"))),
        *(({"ledger_others": others, "ledger_idle": idle}, found) for others, idle, found in (("1.05", "0.02", True), ("1", "", False))),
        *(({"ledger_spread": spread}, spread == "1.50") for spread in ("1.50", "1.49", "", "nan", "nonsense")),
    ],
)
def test_a_busy_machine_is_told_beside_the_time_of_a_call(environment: dict[str, str], *, busy: bool) -> None:
    measured = replace(SAMPLES["told"], **head(environment))
    assert is_busy(measured) is busy
    assert ("the machine was busy: " in " ".join(summary(measured, width=400).split())) is busy


@pytest.mark.parametrize("width", [80, 120])
def test_advice_and_places_are_never_cut_off(width: int) -> None:
    advice = (
        "Compute gradients outside of the compiled function, from what it returns, or set `torch._dynamo.config.trace_autograd_ops = True`"
        " and return losses detached"
    )
    broken = Break(break_id="b0", reason="why", file="/a/training/some_program.py", line=12345, advice=advice, overhead_ns=10**6)
    stays = Fallback(graph_id="g0", node="n", target="aten.convolution_backward.default", reason_code="no_converter", reason="r")
    stays = replace(stays, file="/a/training/some_program.py", line=54321, calls=3, total_ns=10**7)
    graph = Graph(graph_id="g0", compile_id="0/0", phase="inference", op_count=3, node_count=3, partition_count=1, coverage=0.5)
    text = summary(Capture(graphs=(graph,), breaks=(broken,), fallbacks=(stays,)), width=width)
    plain = " ".join(text.split())
    assert plain.count("and return losses detached") == 1  # where to look first; the break refers to it
    assert "To do: see 1. below" in plain
    assert "training/some_program.py:54321" in plain
    assert max(map(len, text.split("\n"))) <= width
