"""Every renderer over every sample, so that a new renderer or situation is tested at birth."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from functools import cache, partial
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortlens.analysis.first_look import looks_of
from ortlens.analysis.overview import overview_of
from ortlens.trace.records import Break, Capture, Fallback, Graph, LedgerPart
from ortlens.views.html import failure_html, summary_html
from ortlens.views.sentences import coverage_sentence, look_sentence
from ortlens.views.text import summary
from ortlens.views.time_sentences import against_sentence
from tests.unit.views.sample_captures import SAMPLES, hostile

if TYPE_CHECKING:
    from collections.abc import Callable

RENDERERS: dict[str, Callable[[Capture], str]] = {
    "text": summary,
    "narrow": partial(summary, width=80),
    "ascii": partial(summary, ascii_only=True),
    "html": summary_html,
}


@cache
def rendered(renderer: str, sample: str) -> str:
    """A sample as a renderer shows it, made once for all tests."""
    return RENDERERS[renderer](SAMPLES[sample])


@cache
def text_of(sample: str, width: int) -> str:
    """A sample as text of a width, made once for all tests."""
    return summary(SAMPLES[sample], width=width)


_VOID = {"br", "img", "meta", "link", "input"}


class _Page(HTMLParser):
    """What a browser would make of a fragment: its elements, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("renderer", RENDERERS)
def test_every_renderer_tells_how_much_runs(renderer: str, sample: str) -> None:
    shown = rendered(renderer, sample)
    plain = " ".join(_Page(shown).texts if renderer == "html" else shown.split())
    expected = {"empty": "nothing was compiled", "measured": "nothing was compiled", "demo_like": "27 of 28 compute nodes (96.4 %)"}
    expected["told"] = expected["demo_like"]
    expected |= {
        "no_compute": "nothing to run",
        "nothing_runs": "nothing: PyTorch runs all 2",
        "whole": "everything: 1 compute node (100 %)",
    }
    expected |= {"foreign": "nothing: the backend is inductor", "training": "all 20 compute nodes", "hostile": "1 of 2 compute nodes"}
    assert expected.get(sample, "nothing: PyTorch runs all 27,000 compute nodes") in plain


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("renderer", RENDERERS)
def test_no_control_or_bidirectional_character_gets_through(renderer: str, sample: str) -> None:
    shown = rendered(renderer, sample).replace("\n", "")
    assert {unicodedata.category(char) for char in shown}.isdisjoint({"Cc", "Cf", "Cs"})
    shown.encode("utf-8")


@pytest.mark.parametrize("renderer", RENDERERS)
def test_every_renderer_names_break_fallback_recompile_and_times(renderer: str) -> None:
    shown = rendered(renderer, "demo_like")
    plain = re.sub(r"\s+", " ", " ".join(_Page(shown).texts) if renderer == "html" else shown)
    for fact in (
        "aten.median.dim",
        "project/attention.py:48",
        "attention.py:71",
        "if x.abs().max()",
        "Use `torch.cond`",
        "logits == False",
    ):
        assert fact in plain
    for fact in ("no ONNX conversion is registered", "rest of forward after line 71", "304 ", "950 ms", "tracing 500 ms"):
        assert fact in plain
    assert "# if logits" not in plain


@pytest.mark.parametrize("renderer", RENDERERS)
def test_every_renderer_tells_the_ledger_prices_and_what_to_do(renderer: str) -> None:
    shown = rendered(renderer, "told")
    plain = re.sub(r"\s+", " ", " ".join(_Page(shown).texts) if renderer == "html" else shown)
    parts = (
        "75.0 % ONNX Runtime",
        "17.5 % PyTorch operators and Python between graphs",
        "6.2 % entering compiled code",
        "1.2 % unattributed",
    )
    for fact in ("Per call: 400 " if renderer == "html" else "Time per call 400 ", *parts, "23.4 ", "Choose with `torch.where`"):
        assert fact in plain
    for fact in ("False, True", "Call with one value of `logits`", "raised ValueError: no axis 7", "choose with `torch.where` (23.4 "):
        assert fact in plain
    assert "Use `torch.cond`" not in plain, "the advice stands in the place of the hint"
    assert "mean of" not in plain


@pytest.mark.parametrize("width", [60, 80, 100, 120])
@pytest.mark.parametrize("sample", SAMPLES)
def test_text_keeps_to_the_width(sample: str, width: int) -> None:
    lines = text_of(sample, width).split("\n")
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("sample", SAMPLES)
def test_text_is_a_few_lines(sample: str) -> None:
    assert len(rendered("text", sample).split("\n")) <= (28 if sample not in {"huge", "hostile"} else 56)


@pytest.mark.parametrize("sample", SAMPLES)
def test_ascii_only_is_ascii(sample: str) -> None:
    assert rendered("ascii", sample).isascii()


def test_colour_marks_labels_only_and_changes_nothing_else() -> None:
    coloured = summary(SAMPLES["hostile"], colour=True)
    assert "\x1b[1mGraph breaks" in coloured
    assert re.sub(r"\x1b\[[01]m", "", coloured) == rendered("text", "hostile")


def test_text_answers_in_the_order_in_which_people_ask() -> None:
    text = rendered("text", "demo_like")
    labels = [line.split("  ")[0] for line in text.split("\n")[2:] if not line.startswith(" ")]
    assert labels == [
        "Speed",
        "Time in ORT",
        "Splits",
        "Correct",
        "In ONNX Runtime",
        "Partitions",
        "Stays in PyTorch",
        "Graph breaks",
        "Recompiles",
        "Time per call",
        "Compile time",
        "Look first at",
    ]


@pytest.mark.parametrize("width", range(60, 121))
def test_text_never_parts_a_number_from_its_unit(width: int) -> None:
    assert not re.search(r"\d\n *([nµm]?s|%)\b", text_of("demo_like", width))


def test_text_says_how_much_it_leaves_out() -> None:
    text = rendered("text", "huge")
    for note in ("and 2,997 more operators (2,997 nodes): see table fallbacks", "and 2,998 more places: see table breaks"):
        assert note in text
    assert "and 2,998 more: see table recompiles" in text


def test_text_says_when_a_graph_runs_whole() -> None:
    assert "1, in 1 graph; it covers the whole graph" in rendered("text", "whole")


def test_text_says_when_a_break_is_met_more_often_than_it_has_places() -> None:
    assert "new graph, 3 times in all" in re.sub(r"\s+", " ", rendered("text", "hostile"))


@pytest.mark.parametrize("sample", SAMPLES)
def test_html_is_well_formed_inert_and_small(sample: str) -> None:
    html = rendered("html", sample)
    page = _Page(html)
    assert page.open == []
    assert set(page.tags) <= {
        "div",
        "style",
        "p",
        "strong",
        "span",
        "ol",
        "ul",
        "li",
        "small",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "code",
    }
    assert page.attributes <= {"class", "style", "scope", "role", "aria-label", "aria-hidden"}
    assert not re.search(r"url\(|@import|https?:|src=\"|href=", html.replace("&quot;", ""))
    assert len(html.encode("utf-8")) < 60_000


@pytest.mark.parametrize("sample", ["demo_like", "hostile", "huge", "training"])
def test_html_tables_have_captions_and_scoped_heads(sample: str) -> None:
    html = rendered("html", sample)
    tables = html.count("<table>")
    assert tables >= 2
    assert html.count("<caption>") == tables
    assert html.count("<th ") == html.count('<th scope="col"')


def test_html_shows_rows_of_a_huge_capture_and_counts_the_rest() -> None:
    html = rendered("html", "huge")
    for source in ("graphs", "breaks", "recompiles", "fallbacks", "sessions", "findings"):
        left = re.search(rf"([\d,]+) more rows in <code>\.{source}</code>", html)
        assert left is not None
        assert 2900 < int(left[1].replace(",", "")) < 3000


def test_html_leaves_out_tables_without_rows() -> None:
    assert "<table>" not in rendered("html", "empty")
    assert "Recompiles" not in rendered("html", "whole")


def test_html_names_the_graph_of_a_session_as_the_graphs_do() -> None:
    shown = _Page(rendered("html", "demo_like")).texts
    assert shown.count("0/0") == 3  # the graph and its two sessions
    assert "0/0 backward" in _Page(rendered("html", "training")).texts


def test_html_bar_is_full_only_when_everything_runs() -> None:
    assert "width:100.0%" in rendered("html", "whole")
    assert "width:96.4%" in rendered("html", "demo_like")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_text_stays_text(text: str) -> None:
    reference = _Page(summary_html(hostile("x")))
    page = _Page(summary_html(hostile(text or "x")))
    assert page.open == []
    assert {tag for tag in page.tags if tag != "code"} == {tag for tag in reference.tags if tag != "code"}
    assert page.attributes == reference.attributes
    assert len(summary(hostile(text or "x")).splitlines()) < 48


def test_text_and_html_tell_the_same_story() -> None:
    overview = overview_of(SAMPLES["demo_like"])
    text = re.sub(r"\s+", " ", rendered("text", "demo_like"))
    shown = "".join(_Page(rendered("html", "demo_like")).texts)
    for sentence in (coverage_sentence(overview), *(look_sentence(look) for look in looks_of(overview))):
        assert sentence in text
        assert sentence in shown


def test_failure_html_is_escaped() -> None:
    assert failure_html(["<b>"]) == "<div><p>&lt;b&gt;</p></div>"


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ("4000000", "2.0 times as fast as without torch.compile: 4.00 ms there, measured in turns"),
        ("1000000", "2.0 times as long as without torch.compile: 1.00 ms there, measured in turns"),
        ("2100000", "about as long as without torch.compile: 2.10 ms there, measured in turns"),
        ("0", ""),
        ("-5", ""),
        ("9" * 40, ""),
        ("nonsense", ""),
    ],
)
def test_a_measured_call_is_held_against_the_uncompiled_one(plain: str, words: str) -> None:
    ledger = (
        LedgerPart(graph_id="g0", part="run", ns=1_500_000, share=0.75),
        LedgerPart(graph_id="g0", part="residual", ns=500_000, share=0.25),
    )
    capture = replace(SAMPLES["told"], ledger=ledger, environment={"uncompiled_ns": plain})
    assert against_sentence(overview_of(capture)) == words
    assert words in " ".join(summary(capture, width=400).split())
    crowd = {**capture.environment, "torch_threads": "2", "ledger_others": "1.05", "ledger_idle": "0.02"}
    crowded = against_sentence(overview_of(replace(capture, environment=crowd)))
    assert crowded.endswith(" without torch.compile, measured in turns, while threads waited for cores") == bool(words)
    assert "times as" not in crowded
    assert against_sentence(overview_of(replace(capture, ledger=()))) == ""


@pytest.mark.parametrize(
    ("others", "idle", "told"),
    [("1.05", "0.02", True), ("0.24", "0.0", False), ("1.05", "0.25", False), ("nan", "0", False), ("1", "", False)],
)
def test_other_processes_are_told_beside_the_time_of_a_call(others: str, idle: str, told: bool) -> None:  # noqa: FBT001 - a case
    measured = replace(SAMPLES["told"], environment={"ledger_others": others, "ledger_idle": idle})
    said = "the machine was busy: other processes had 1.1 of its cores, and none was idle"
    assert (said in " ".join(summary(measured, width=400).split())) is told


@pytest.mark.parametrize(("spread", "told"), [("1.50", True), ("1.49", False), ("", False), ("nan", False), ("nonsense", False)])
def test_a_busy_machine_is_told_beside_the_time_of_a_call(spread: str, told: bool) -> None:  # noqa: FBT001 - a case
    measured = replace(SAMPLES["told"], environment={"ledger_spread": spread})
    assert ("the machine was busy: half of the calls took 1.5 times" in " ".join(summary(measured, width=400).split())) is told


@pytest.mark.parametrize("width", [80, 120])
def test_advice_and_places_are_never_cut_off(width: int) -> None:
    advice = (
        "Compute gradients outside of the compiled function, from what it returns, or set `torch._dynamo.config.trace_autograd_ops = True`"
    )
    advice += " and return losses detached"
    broken = Break(break_id="b0", reason="why", file="/a/training/some_program.py", line=12345, advice=advice, overhead_ns=10**6)
    stays = Fallback(graph_id="g0", node="n", target="aten.convolution_backward.default", reason_code="no_converter", reason="r")
    stays = replace(stays, file="/a/training/some_program.py", line=54321, calls=3, total_ns=10**7)
    graph = Graph(graph_id="g0", compile_id="0/0", phase="inference", op_count=3, node_count=3, partition_count=1, coverage=0.5)
    text = summary(Capture(graphs=(graph,), breaks=(broken,), fallbacks=(stays,)), width=width)
    plain = " ".join(text.split())
    assert plain.count("and return losses detached") == 2
    assert "training/some_program.py:54321" in plain
    assert max(map(len, text.split("\n"))) <= width
