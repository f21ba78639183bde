"""One quantity, one value: a number that stands in two places is the same in both, in captures that were really recorded."""

import html
import re
from typing import Any

import pandas as pd
import pytest

from ortlens.analysis.answers.overview import break_occurrences, graph_rows
from ortlens.analysis.answers.verdict import numbers_of
from ortlens.analysis.costs import fallback_groups
from ortlens.analysis.coverage import coverage_of, current_ids, own_recompiles
from ortlens.analysis.ledger import ledger_totals
from ortlens.analysis.problems.stream import findings_of, problems_of
from ortlens.analysis.speed import call_pace, is_busy
from ortlens.analysis.timing import call_time, call_times, compile_total_ns, slowest_sessions
from ortlens.trace.schema import SHOWN_TABLES
from ortlens.units import counted, percent, time_from_ns
from ortlens.views.actions import records_of
from ortlens.views.capture_view import SavedCapture
from ortlens.views.flame import flame_of
from ortlens.views.payload import payload_from_capture
from ortlens.views.rendering import summary
from ortlens.views.report import current_kernels, report_tables
from ortlens.views.screen import capture_screen
from ortlens.views.sentences import numbers_sentence, problem_sentence
from ortlens.views.table import shown_columns
from ortlens.views.tiles import tile_sentence, tiles_of
from ortlens.views.time_sentences import against_sentence, call_sentences, gain_words
from tests.recorded import FILES, recorded
from tests.same_figures import contradicting_figures


class Seen:
    """One capture in every view."""

    def __init__(self, name: str) -> None:
        self.capture = recorded(name)
        self.view = SavedCapture(self.capture)
        self.text = " ".join(summary(self.capture, width=2000).split())
        self.page = html.unescape(re.sub(r"<[^>]+>", " ", self.view._repr_html_()))
        self.payload: dict[str, Any] = payload_from_capture(self.capture)
        self.facts: dict[str, Any] = self.payload["overview"]
        self.tables = {table.source: table for table in report_tables(self.capture)}
        self.current = current_ids(self.capture)

    def cells(self, source: str, column: str) -> list[str]:
        table = self.tables.get(source)
        return [] if table is None else next((found.cells for found in table.columns if found.name == column), [])


@pytest.fixture(scope="module", params=["bert", "pieces", "twelve", "gpt2_steps", "deep_break", "demo", "dry", "split"])
def seen(request: pytest.FixtureRequest) -> Seen:
    return Seen(request.param)


def test_every_recorded_capture_says_where_it_is_from() -> None:
    assert [name for name, path in FILES.items() if path.stem not in (path.parent / "README.md").read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("name", FILES)
def test_every_figure_is_the_same_in_text_html_json_and_frames(name: str) -> None:
    assert contradicting_figures(SavedCapture(recorded(name))) == []


def test_a_figure_that_one_view_has_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SavedCapture, "summary", lambda _: "Splits 9 graph breaks; no recompile")
    assert [line.partition(":")[0] for line in contradicting_figures(SavedCapture(recorded("twelve")))] == ["graph breaks"]


def test_every_sentence_of_the_screen_is_in_every_rendering(seen: Seen) -> None:
    screen = capture_screen(seen.capture)
    said = [sentence for answer in screen.answers for sentence in answer.said]
    assert len(said) > 3
    page = " ".join(seen.page.split())
    assert [sentence for sentence in said if sentence not in page] == []
    assert [number for sentence in said for number in re.findall(r"[\d.,]*\d", sentence) if number not in seen.text] == []
    assert seen.facts["answers"] == {answer.name: list(answer.said) for answer in screen.answers}
    first = next(answer for answer in screen.answers if answer.name == "first")
    assert [look["sentence"] for look in seen.facts["looks"]] == [item.head for item in first.items]
    assert [item.head for item in first.items if item.head not in page] == []


def test_coverage_is_that_of_the_nodes_partitions_and_graphs(seen: Seen) -> None:
    coverage, ours = coverage_of(seen.capture), seen.view.graphs[seen.view.graphs.graph_id.isin(seen.current)]
    nodes, parts = seen.view.nodes, seen.view.partitions
    assert seen.facts["coverage"]["ort_node_count"] == coverage.ort_node_count
    assert seen.facts["coverage"]["share"] == coverage.share
    assert coverage.node_count == ours.node_count.sum()
    assert coverage.ort_node_count == parts[parts.graph_id.isin(seen.current)].node_count.sum()
    assert coverage.partition_count == ours.partition_count.sum() == parts.graph_id.isin(seen.current).sum()
    if len(nodes):
        inside = nodes[nodes.partition_id.notna() & nodes.graph_id.isin(seen.current) & (nodes.kind == "compute")]
        assert coverage.ort_node_count == len(inside)
    for row in graph_rows(seen.capture):
        graph = row.graph
        if row.ort_node_count is None or not graph.node_count:
            continue
        assert graph.coverage == pytest.approx(row.ort_node_count / graph.node_count)
        assert graph.partition_count == (parts.graph_id == graph.graph_id).sum()
        assert graph.fallback_count == (seen.view.fallbacks.graph_id == graph.graph_id).sum()
    shown = [row.coverage for row in seen.capture.graphs[: len(seen.cells("graphs", "coverage"))]]
    assert seen.cells("graphs", "coverage") == ["" if share is None else percent(share) for share in shown]


def test_counts_are_those_of_the_frames(seen: Seen) -> None:
    view = seen.view
    assert "breaks" not in seen.tables or len(seen.tables["breaks"].records) == len(view.breaks)
    assert break_occurrences(seen.capture) == view.breaks.occurrences.sum()
    assert len(own_recompiles(seen.capture)) == len(view.recompiles)
    assert sum(group.node_count for group in fallback_groups(seen.capture)) == view.fallbacks.graph_id.isin(seen.current).sum()
    assert (
        seen.cells("fallbacks", "node_count")
        == [f"{group.node_count:,}" for group in fallback_groups(seen.capture)][: len(seen.cells("fallbacks", "node_count"))]
    )
    for group in fallback_groups(seen.capture)[:3]:
        assert counted(group.node_count, "node") in seen.text
    assert len(findings_of(seen.capture)) == len(view.findings)
    for name in SHOWN_TABLES:
        records = records_of(seen.capture, name)
        assert len(getattr(view, name)) == len(records) == seen.payload["tables"][name]["total"]
        if not records:
            assert view.brief(name)[name].item() == view.hints.for_empty(name)
            continue
        assert view.brief(name).equals(view.brief(getattr(view, name)))
        assert [*view.brief(name)] == [column.head for column in shown_columns(records)]


def test_times_are_the_same_in_every_view(seen: Seen) -> None:
    view = seen.view
    assert seen.facts["compile_ns"] == compile_total_ns(seen.capture)
    assert sum(phase["ns"] for phase in seen.facts["phases"]) == compile_total_ns(seen.capture)
    if compile_total_ns(seen.capture):
        assert compile_total_ns(seen.capture) == view.graphs.compile_ns.sum()
        assert time_from_ns(compile_total_ns(seen.capture)) in seen.text
        assert time_from_ns(compile_total_ns(seen.capture)) in seen.page
    for group, cell in zip(fallback_groups(seen.capture), seen.cells("fallbacks", "call_ns"), strict=False):
        assert cell == ("" if group.call_ns is None else time_from_ns(group.call_ns))
    if (ledger := ledger_totals(seen.capture)) is not None:
        assert ledger.total_ns == view.ledger.ns.sum()
        assert view.ledger.share.sum() == pytest.approx(1)
        if not ledger.is_measured:  # both are means over the logs of all calls, rounded graph by graph
            called = sum(call.total_ns for call in call_times(seen.capture))
            assert ledger.total_ns == pytest.approx(called, abs=2 * len(seen.capture.graphs))
        for part, ns in ledger.ns.items():
            assert ns == view.ledger[view.ledger.part == part].ns.sum()
            assert ledger.share[part] == pytest.approx(view.ledger[view.ledger.part == part].share.sum())
    for cost in slowest_sessions(seen.capture):
        assert cost.share == pytest.approx(cost.session.total_ns / max(sum(row.total_ns for row in seen.capture.sessions), 1))


def test_kernels_add_up_to_their_sessions(seen: Seen) -> None:
    kernels, shown = seen.view.kernels, current_kernels(seen.capture)
    if kernels.empty:
        return
    cells = seen.cells("kernels", "share")
    ranked = sorted(shown, key=lambda kernel: -(kernel.mean_ns or 0))
    assert cells == [percent(kernel.share or 0.0) for kernel in ranked][: len(cells)]
    for session_id, rows in kernels.groupby("session_id"):
        assert rows.share.sum() == pytest.approx(1, abs=0.001), session_id
        assert list(rows.share) == pytest.approx(list(rows.total_ns / rows.total_ns.sum()))
    assert (kernels.mean_ns - kernels.total_ns / kernels.calls).abs().max() <= 1


def test_gains_are_the_same_in_every_view(seen: Seen) -> None:
    findings = findings_of(seen.capture)
    words = [gain_words(finding) for finding in findings]
    assert seen.facts["gains"] == words
    assert [None if pd.isna(gain) else int(gain) for gain in seen.view.findings.gain_ns] == [item.gain_ns for item in findings]
    for look, shown in zip(problems_of(seen.capture)[:3], seen.facts["looks"], strict=True):
        assert shown["sentence"] == problem_sentence(look)
        assert not look.gain_ns or ("measured" if look.measured else "estimated") in problem_sentence(look)
    busy = " on a busy machine" if is_busy(seen.capture) else ""
    for finding, text in zip(findings, words, strict=True):
        assert text.endswith(f", {'measured' if finding.measured else 'estimated'}{busy}" if finding.gain_ns else "")


def test_a_call_takes_the_same_in_every_view(seen: Seen) -> None:
    call, shown = call_time(seen.capture), seen.facts["call"]
    assert {name: shown[name] for name in ("calls", "ort_ns", "eager_ns", "foreign_ns", "total_ns")} == {
        "calls": call.calls,
        "ort_ns": call.ort_ns,
        "eager_ns": call.eager_ns,
        "foreign_ns": call.foreign_ns,
        "total_ns": call.total_ns,
    }
    for sentence in call_sentences(seen.capture)[:2]:
        assert [number for number in re.findall(r"[\d.,]*\d", sentence) if number not in seen.text] == []
        assert sentence in " ".join(seen.page.split())
    medians = [cost.session.p50_ns for cost in slowest_sessions(seen.capture)]
    cells = seen.cells("sessions", "p50_ns")
    assert cells == ["" if ns is None else time_from_ns(ns) for ns in medians][: len(cells)]


def test_the_tiles_say_what_stands_elsewhere(seen: Seen) -> None:
    tiles = {tile["name"]: tile for tile in seen.facts["tiles"]}
    assert [tile_sentence(tile) for tile in tiles_of(seen.capture) if tile_sentence(tile) not in seen.text] == []
    assert [tile["detail"] for tile in tiles.values() if tile["detail"] not in seen.page] == []
    assert (tiles["speed"]["word"] == "not measured") == (not against_sentence(seen.capture))
    if said := against_sentence(seen.capture):
        assert re.findall(r"[\d.,]*\d", tiles["speed"]["word"]) == re.findall(r"[\d.,]*\d", said.partition(":")[0])
        pace = call_pace(seen.capture)
        assert pace is not None
        assert f"{time_from_ns(pace.call_ns or 0)}, eager {time_from_ns(pace.eager_ns or 0)}" in tiles["speed"]["detail"]
    share = seen.view.ledger[seen.view.ledger.part == "run"].ns.sum() / max(seen.view.ledger.ns.sum(), 1)
    if tiles["time"]["share"] is not None:
        assert tiles["time"]["share"] == pytest.approx(share)
    if tiles["correct"]["word"] != "not checked":
        numbers = numbers_of(seen.capture)
        assert numbers is not None
        counts = r"([\d,]+) (?:values?|operators?)(?: of the call| on its own| one by one)?(?= of| and)"
        in_sentence = re.findall(counts, numbers_sentence(numbers))
        rows = seen.view.numerics.dropna(subset="ok")
        judged = rows.groupby(["partition_id", "node"], dropna=False).ok.all()
        largest = numbers.largest.max_abs if numbers.largest is not None else 0.0
        assert largest == rows.max_abs.max() == seen.view.figures()["max_abs"]
        assert sum(int(number.replace(",", "")) for number in in_sentence) == len(judged)
        assert (tiles["correct"]["state"] == "bad") == (not judged.all())


def test_a_break_takes_the_same_in_the_lists_the_flame_graph_and_the_timeline(seen: Seen) -> None:
    flame, order = flame_of(seen.capture), seen.facts["call_order"]
    slabs = [frame for frame in flame.root.children if frame.kind == "break"]
    for frame in slabs:
        item = seen.capture.breaks[frame.ref]
        assert frame.ns == item.cost_ns == (item.overhead_ns or 0) + (item.entering_ns or 0)
    costs = {item.break_id: item.cost_ns for item in seen.capture.breaks}
    named = [item for item in problems_of(seen.capture) if item.kind == "break" and item.cost_ns is not None]
    assert [item.cost_ns for item in named] == [sum(costs[name] or 0 for name in item.records) for item in named]
    assert seen.view.actions.query("kind == 'break'").cost_ns.dropna().tolist() == [item.cost_ns for item in named]
    assert all(item.gain_ns is None and f"costs {time_from_ns(item.cost_ns or 0)} per call" in problem_sentence(item) for item in named)
    graphs = [seen.capture.graphs[frame.ref].graph_id for frame in flame.root.children if frame.kind == "graph"]
    assert [graph_id for graph_id in graphs if graph_id in order["graphs"]] == order["graphs"]
    met = [row for graph_id in order["graphs"] for row in order["ahead"].get(graph_id, [])] + order["behind"]
    assert sorted(met) == list(range(len(seen.capture.breaks)))
    assert [frame.ref for frame in slabs] == [row for row in met if row in {frame.ref for frame in slabs}]
    entering = sum(frame.ns for frame in flame.root.children if frame.kind == "guards")
    told_apart = [seen.capture.breaks[frame.ref].overhead_ns for frame in slabs]
    ledger = ledger_totals(seen.capture)
    if ledger is not None and ledger.is_measured and None not in told_apart:
        assert entering + sum(ns or 0 for ns in told_apart) == pytest.approx(ledger.ns.get("guards", 0), abs=10)
