"""Every renderer over every sample, so that a new renderer or situation is tested at birth."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortlens.analysis.speed import is_busy
from ortlens.trace.records import Break, Capture, Fallback, Graph, Numeric, Session
from ortlens.trace.schema import TABLES, facts_of
from ortlens.views.capture_view import CaptureView, SavedCapture
from ortlens.views.rendering import failure_html, mimebundle, summary
from ortlens.views.table import table
from ortlens.views.time_sentences import against_sentence
from tests.facts import head
from tests.unit.analysis.hand_made import ledger
from tests.unit.views.elements import Elements
from tests.unit.views.sample_captures import SAMPLES, hostile


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
        ("4000000", "2.0 times as fast as eager: 4.00 ms there"),
        ("1000000", "2.0 times as long as eager: 1.00 ms there"),
        ("2100000", "about as fast as eager: 2.10 ms there"),
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
    broken = Break(break_id="b0", reason="why", file="/a/training/some_program.py", line=12345, advice=advice, cost_ns=10**6)
    stays = Fallback(graph_id="g0", node="n", target="aten.convolution_backward.default", reason_code="no_converter", reason="r")
    stays = replace(stays, file="/a/training/some_program.py", line=54321, calls=3, total_ns=10**7)
    graph = Graph(graph_id="g0", compile_id="0/0", phase="inference", op_count=3, node_count=3, partition_count=1, coverage=0.5)
    text = summary(Capture(graphs=(graph,), breaks=(broken,), fallbacks=(stays,)), width=width)
    plain = " ".join(text.split())
    assert plain.count("and return losses detached") == 1  # where to look first; the break refers to it
    assert "To do: see 1. below" in plain
    assert "training/some_program.py:54321" in plain
    assert max(map(len, text.split("\n"))) <= width


class _Broken(CaptureView):
    """A view whose capture cannot be made."""

    def captured(self) -> Capture:
        raise RuntimeError("<script>the recorder\x1b broke")


@pytest.mark.parametrize("sample", SAMPLES)
def test_repr_is_short_and_printable(sample: str) -> None:
    shown = repr(SavedCapture(SAMPLES[sample]))
    assert len(shown) < 200
    assert shown.isprintable()
    assert sample != "demo_like" or shown.startswith("<SavedCapture 'demo': 3 graphs, 1 graph break, 1 recompile")


def test_the_bundle_holds_text_and_html() -> None:
    view = SavedCapture(SAMPLES["demo_like"])
    bundle = view._repr_mimebundle_(include=None, exclude={"text/html"})
    assert bundle == {"text/plain": view.summary(), "text/html": view._repr_html_()}
    assert view.summary() == summary(SAMPLES["demo_like"])


def test_a_failure_while_drawing_is_told_and_never_raised() -> None:
    view = _Broken()
    assert "RuntimeError" in repr(view)
    bundle = view._repr_mimebundle_()
    assert bundle["text/plain"].startswith("ortlens could not draw this capture: RuntimeError: <script>the recorder\\u001b broke")
    assert "&lt;script&gt;the recorder" in bundle["text/html"]
    assert bundle["text/html"] == view._repr_html_()
    for read in (view.summary, lambda: view.graphs):
        with pytest.raises(RuntimeError, match="broke"):
            read()


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_table_keeps_to_the_width(sample: str) -> None:
    for name in TABLES:
        shown = table(getattr(SAMPLES[sample], name), width=100)
        assert max(len(line) for line in shown.split("\n") if not line.startswith("...")) <= 100, name
        shown.encode("utf-8")


def test_columns_are_aligned_numbers_to_the_right() -> None:
    rows = [Session(session_id="s0", partition_id="p", calls=9, total_ns=1500), Session(session_id="s10", partition_id="p", calls=1234)]
    assert table(rows, ("session_id", "calls", "total_ns")).split("\n") == [
        "session_id  calls    total",
        "----------  -----  -------",
        "s0              9  1.50 µs",
        "s10         1,234     0 ns",
    ]


def test_values_are_shown_as_people_read_them() -> None:
    row = Graph(graph_id="g", phase="inference", op_count=1, coverage=0.5, dynamic_shapes=True, line=2000, file="/a/b/c.py")
    shown = table([row], ("coverage", "dynamic_shapes", "line", "file", "node_count")).split("\n")[2]
    assert shown.split() == ["50.0", "%", "yes", "2000", "b/c.py"]
    number = table([Numeric(partition_id="p", node="n", max_abs=1.23456e-7, ok=False)], ("max_abs", "ok"))
    assert number.split("\n")[2].split() == ["1.2e-07", "no"]
    assert [text for text in ("2.00 KiB", "MatMul:2") if text not in table(SAMPLES["demo_like"].models)] == []
    assert table(()) == "no rows"


def test_rows_and_columns_left_out_are_counted() -> None:
    shown = table(SAMPLES["demo_like"].graphs, width=40, limit=2)
    assert "... and 1 more row" in shown
    assert "not enough room for" in shown
    assert "compile_ns" in shown.split("\n")[-1]


ADVICE = "Move `.item()` out of the compiled function, or keep the value as a tensor and select with torch.where, which stays in one graph."
BREAKS = tuple(
    Break(
        break_id=f"b{at}",
        reason="Attempted to call Tensor.item() with config.capture_scalar_outputs=False",
        file="/home/ada/project/attention.py",
        line=71 + at,
        source="if x.abs().max().item() > self.limit:",
        cost_ns=1_234_000,
        compile_ids=("0/0",),
        advice=ADVICE,
    )
    for at in range(2)
)


@pytest.mark.parametrize("width", [80, 120])
def test_breaks_say_reason_place_cost_and_the_whole_advice(width: int) -> None:
    lines = table(BREAKS, width=width).split("\n")
    head, rule, *body = [line for line in lines if not line.startswith("...")]
    assert head.split()[:4] == ["reason", "place", "cost", "advice"]
    assert max(map(len, lines[:-1])) <= width
    assert "project/attention.py:71  1.23 ms" in body[0]
    ends = [len(rule) - len(rest) for rest in (rule, *(rule.split("  ", at)[at] for at in range(1, 4)))]
    column = [line[ends[3] :].split("  ")[0].strip() for line in body]
    assert " ".join(filter(None, column)) == f"{ADVICE} {ADVICE}"
    assert lines[-1].startswith("... not enough room for")


def test_wide_shows_every_column_on_one_line_per_row() -> None:
    head, rule, *body = table(BREAKS, width=None).split("\n")
    assert len(body) == 2
    assert all(ADVICE in line and "if x.abs().max().item() > self.limit:" in line for line in body)
    assert set(head.split()) >= {"break_id", "compile_ids", "occurrences", "source"}
    assert len(rule) == max(map(len, (head, *body)))


def test_one_column_is_shown_however_narrow() -> None:
    assert table(SAMPLES["demo_like"].graphs, width=1).startswith("graph_id\n")
