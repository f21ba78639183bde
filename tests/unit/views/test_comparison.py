import re
from dataclasses import replace
from pathlib import Path

import pytest

import ortlens
from ortlens import cli
from ortlens.analysis.compare.comparison import compared
from ortlens.errors import CaptureError, UsageError
from ortlens.trace import store
from ortlens.trace.records import Break, Capture
from ortlens.units import time_from_ns
from ortlens.views.capture_view import SavedCapture
from ortlens.views.comparison import comparison_html, comparison_page
from tests.answers import answered
from tests.recorded import COMPARED, recorded
from tests.unit.views.sample_captures import HOSTILE, SAMPLES

EDITED = COMPARED / "before.ortlens", COMPARED / "after.ortlens"
PLAIN, PLANTED = str(COMPARED / "plain2.ortlens"), str(COMPARED / "planted2.ortlens")


def test_two_captures_of_one_program(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = ortlens.load(PLAIN).compare(str(COMPARED / "plain3.ortlens"))
    assert not comparison.is_worse
    assert repr(comparison) == "<Comparison: no difference outside the noise>"
    assert len(comparison.changes) == 0
    assert list(comparison.times.scope) == ["call", "partition", "partition", "partition"]
    assert str(comparison.times.before_ns.dtype) == "Int64"
    assert set(comparison.operators.match) == {"exact"}
    assert cli.main(["compare", PLAIN, str(COMPARED / "plain3.ortlens")]) == 0
    assert capsys.readouterr().out.splitlines()[2] == "Verdict           No difference outside the noise"


def test_a_slower_partition_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", PLAIN, PLANTED, "--json"]) == 0
    found = answered(capsys.readouterr().out)
    assert found["is_worse"]
    (partition,) = (row for row in found["times"] if row["scope"] == "partition" and row["verdict"] == "slower")
    assert (partition["subject"], partition["module"]) == ("p1", "back")
    assert 1.15 < partition["ratio"] < 1.45
    text = ortlens.load(PLAIN).compare(ortlens.load(PLANTED)).summary()
    assert "partition p1 (back)" in text.splitlines()[2] + text.splitlines()[3]


@pytest.mark.parametrize(
    ("other", "message"),
    [(7, "expected a lens, a capture or"), (["run.ortlens"], "expected a lens, a capture or"), (Capture(), "has no graphs to compare")],
)
def test_what_is_no_capture_is_refused(other: object, message: str) -> None:
    view = ortlens.load(PLAIN)
    with pytest.raises(UsageError, match=message):
        view.compare(other)  # type: ignore[arg-type]  # what the test is about


def test_a_missing_file_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = ortlens.load(PLAIN)
    with pytest.raises(CaptureError):
        view.compare(tmp_path / "none.ortlens")
    assert cli.main(["compare", PLAIN, str(tmp_path / "none.ortlens")]) == 2
    assert cli.main(["compare", PLAIN, str(store.save(SAMPLES["demo_like"], tmp_path / "other.ortlens"))]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "they are of different models; compare captures of the same program" in errors[1]


def test_nothing_from_a_capture_works_on_the_terminal_or_the_page() -> None:
    before = replace(recorded("before"), name=HOSTILE, backend=HOSTILE, created=HOSTILE)
    nodes = tuple(replace(node, module=HOSTILE, target=HOSTILE, partition_id=HOSTILE) for node in before.nodes)
    kernels = tuple(replace(kernel, op_type=HOSTILE, kernel=HOSTILE, provider=HOSTILE, module=HOSTILE) for kernel in before.kernels)
    broken = Break(break_id=HOSTILE, reason=HOSTILE, file=HOSTILE, compile_ids=("0/0",))
    after = replace(before, nodes=nodes, kernels=kernels, breaks=(broken,), environment={"version_torch": HOSTILE, HOSTILE: HOSTILE})
    comparison = SavedCapture(before).compare(after)
    assert "\x1b" not in comparison.summary()
    assert "\u202e" not in comparison.summary()
    for page in (comparison._repr_html_(), comparison_page(compared(before, after), title=HOSTILE)):
        assert "<img" not in page
        assert "<script" not in page
        assert not {"\u202e", "\x00", "\x1b"}.intersection(page)
        page.encode("utf-8")


@pytest.mark.parametrize("width", [10, 60, 100])
def test_lines_keep_to_the_width(width: int) -> None:
    text = ortlens.load(PLAIN).compare(PLANTED).summary(width=width)
    assert max(map(len, text.splitlines())) <= max(width, 60)


def test_the_page_is_written_and_loads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "compare.html"
    assert cli.main(["compare", *map(str, EDITED), "--html", str(page)]) == 0
    assert capsys.readouterr().out.endswith(f"\nSide by side: {page}\n")
    html = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in html
    assert "script-src" not in html
    assert set(re.findall(r'(?:href|src)="([^"]*)"', html)) <= {f"#{name}" for name in re.findall(r' id="([^"]*)"', html)}
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    assert cli.main(["compare", *map(str, EDITED), "--html", str(tmp_path / "mine.txt")]) == 2
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "mine"


def test_figures_of_the_page_are_those_of_the_frames() -> None:
    comparison = ortlens.load(EDITED[0]).compare(EDITED[1])
    html = comparison._repr_html_()
    assert html.index('<div class="oc-cards">') < html.index("<table")
    assert 'id="' not in html
    assert "<a " not in html
    times = comparison.times
    for ns in (*times.before_ns, *times.after_ns, *comparison.kernels.difference_ns[:5].abs()):
        assert time_from_ns(int(ns)) in html


def test_a_large_comparison_stays_small_and_counts_what_it_leaves_out() -> None:
    before = recorded("before")
    nodes = tuple(replace(before.nodes[0], node=f"n{number}", module=f"layers.{number}") for number in range(1_500))
    moved = tuple(replace(node, supported=not node.supported) if int(node.node[1:]) % 2 else node for node in nodes)
    found = compared(replace(before, nodes=nodes), replace(before, nodes=moved))
    html = comparison_html(found)
    assert len(html) < 100_000
    assert re.search(r"and [\d,]+ more rows: see <code>.operators</code>", html)
    assert len(comparison_page(found)) < 3_000_000
    last = (*nodes[:-1], replace(nodes[-1], supported=not nodes[-1].supported))
    html = comparison_html(compared(replace(before, nodes=nodes), replace(before, nodes=last)))
    assert len(html) < 60_000
    assert "1,499 operators without a difference (layers.0 … layers.1498)" in html
    assert 'class="oc-moved' in html


@pytest.mark.parametrize("sample", sorted(set(SAMPLES) - {"empty", "measured", "huge"}))
def test_every_capture_is_drawn_beside_itself(sample: str) -> None:
    found = compared(SAMPLES[sample], SAMPLES[sample])
    assert found.changes == ()
    html = comparison_html(found)
    assert "none fixed, none new" in html
    assert 'class="oc-moved' not in html
    assert html.count("<table") == html.count("</table>")


def test_why_calls_are_not_compared_is_said() -> None:
    before = recorded("before")
    nodes = tuple(replace(node, supported=False, partition_id=None) if node.graph_id == "g1" else node for node in before.nodes)
    found = compared(replace(before, nodes=nodes), before)
    assert "operators moved into or out of what is timed" in comparison_html(found)
    assert "slower" not in comparison_html(found).partition('<div class="oc-cards">')[0].partition("</style>")[2]


def test_times_that_do_not_differ_are_folded_and_counted() -> None:
    twelve = recorded("twelve")
    found = compared(twelve, twelve)
    folded = sum(row.scope != "call" for row in found.timings)
    assert folded > 10
    assert f"{folded} more graphs and partitions: none differs outside the noise</summary>" in comparison_html(found)
