"""One quantity, one value: a number that stands in two places is the same in both, in captures that were really recorded."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from ortlens.analysis.answers.overview import Overview, overview_of
from ortlens.analysis.coverage import current_graphs
from ortlens.analysis.numbers import numbers_of
from ortlens.analysis.timing import own_code_ns, price_of
from ortlens.trace.schema import TABLES
from ortlens.units import counted, percent, time_from_ns
from ortlens.views.capture_view import SavedCapture
from ortlens.views.flame import flame_of
from ortlens.views.payload import payload_from_capture
from ortlens.views.report import current_kernels
from ortlens.views.sentences import coverage_sentence, numbers_sentence, partitions_sentence, problem_sentence
from ortlens.views.tables import report_tables
from ortlens.views.text import summary
from ortlens.views.tiles import tile_sentence, tiles_of
from ortlens.views.time_sentences import against_sentence, call_sentences, gain_words, ledger_sentence
from tests.recorded import FILES, recorded

if TYPE_CHECKING:
    from ortlens.trace.records import Capture


class Seen:
    """One capture in every view."""

    def __init__(self, name: str) -> None:
        self.capture: Capture = recorded(name)
        self.view = SavedCapture(self.capture)
        self.overview: Overview = overview_of(self.capture)
        self.text = " ".join(summary(self.capture, width=2000).split())
        self.page = html.unescape(re.sub(r"<[^>]+>", " ", self.view._repr_html_()))
        self.payload: dict[str, Any] = payload_from_capture(self.capture)
        self.facts: dict[str, Any] = self.payload["overview"]
        self.tables = {table.source: table for table in report_tables(self.capture, self.overview, current_kernels(self.capture))}
        self.current = {graph.graph_id for graph in current_graphs(self.capture.graphs)}

    def cells(self, source: str, column: str) -> list[str]:
        table = self.tables.get(source)
        return [] if table is None else [row[table.head.index(column)] for row in table.rows]


@pytest.fixture(scope="module", params=["bert", "pieces", "twelve", "gpt2_steps", "deep_break", "demo", "dry", "split"])
def seen(request: pytest.FixtureRequest) -> Seen:
    return Seen(request.param)


def test_every_recorded_capture_says_where_it_is_from() -> None:
    assert [name for name, path in FILES.items() if path.stem not in (path.parent / "README.md").read_text(encoding="utf-8")] == []


def test_sentences_are_the_same_in_every_view(seen: Seen) -> None:
    overview = seen.overview
    said = [
        coverage_sentence(overview),
        partitions_sentence(overview),
        ledger_sentence(overview),
        *map(problem_sentence, overview.problems[:3]),
    ]
    assert [sentence for sentence in said if sentence not in " ".join(seen.page.split())] == []
    assert [seen.facts["coverage_sentence"], seen.facts["partitions_sentence"]] == said[:2]
    assert [look["sentence"] for look in seen.facts["looks"]] == said[3:]
    numbers = [number for sentence in said[:3] for number in re.findall(r"[\d.,]*\d", sentence)]
    assert [number for number in numbers if number not in seen.text] == []


def test_coverage_is_that_of_the_nodes_partitions_and_graphs(seen: Seen) -> None:
    coverage, ours = seen.overview.coverage, seen.view.graphs[seen.view.graphs.graph_id.isin(seen.current)]
    nodes, parts = seen.view.nodes, seen.view.partitions
    assert seen.facts["coverage"]["ort_node_count"] == coverage.ort_node_count
    assert seen.facts["coverage"]["share"] == coverage.share
    assert coverage.node_count == ours.node_count.sum()
    assert coverage.ort_node_count == parts[parts.graph_id.isin(seen.current)].node_count.sum()
    assert coverage.partition_count == ours.partition_count.sum() == parts.graph_id.isin(seen.current).sum()
    if len(nodes):
        inside = nodes[nodes.partition_id.notna() & nodes.graph_id.isin(seen.current) & (nodes.kind == "compute")]
        assert coverage.ort_node_count == len(inside)
    for row in seen.overview.graphs:
        graph = row.graph
        if row.ort_node_count is None or not graph.node_count:
            continue
        assert graph.coverage == pytest.approx(row.ort_node_count / graph.node_count)
        assert graph.partition_count == (parts.graph_id == graph.graph_id).sum()
        assert graph.fallback_count == (seen.view.fallbacks.graph_id == graph.graph_id).sum()
    in_tables = [cell.split(" of ") for cell in seen.cells("graphs", "nodes in ORT")]
    shown = [(row.ort_node_count, row.graph.node_count) for row in seen.overview.graphs[: len(in_tables)]]
    assert [cell for cell, (ort, all_) in zip(in_tables, shown, strict=True) if ort is not None and cell != [f"{ort:,}", f"{all_:,}"]] == []


def test_counts_are_those_of_the_frames(seen: Seen) -> None:
    overview, view = seen.overview, seen.view
    assert len(overview.breaks) == len(view.breaks) == seen.tables["breaks"].total if overview.breaks else len(view.breaks) == 0
    assert overview.break_occurrences == seen.facts["break_occurrences"] == view.breaks.occurrences.sum()
    assert len(overview.recompiles) == len(view.recompiles)
    assert overview.graph_count == seen.facts["graph_count"]
    assert sum(group.node_count for group in overview.fallbacks) == view.fallbacks.graph_id.isin(seen.current).sum()
    assert (
        seen.cells("fallbacks", "nodes")
        == [f"{group.node_count:,}" for group in overview.fallbacks][: len(seen.cells("fallbacks", "nodes"))]
    )
    for group in overview.fallbacks[:3]:
        assert counted(group.node_count, "node") in seen.text
    assert len(overview.findings) == len(view.findings)
    for name in TABLES:
        records = overview.findings if name == "findings" else getattr(seen.capture, name)
        assert len(getattr(view, name)) == len(records)


def test_times_are_the_same_in_every_view(seen: Seen) -> None:
    overview, view = seen.overview, seen.view
    assert seen.facts["compile_ns"] == overview.compile_ns
    assert sum(phase["ns"] for phase in seen.facts["phases"]) == overview.compile_ns
    if overview.compile_ns:
        assert overview.compile_ns == view.graphs.compile_ns.sum()
        assert time_from_ns(overview.compile_ns) in seen.text
        assert time_from_ns(overview.compile_ns) in seen.page
    for group, cell in zip(overview.fallbacks, seen.cells("fallbacks", "per call"), strict=False):
        assert cell == ("" if group.ns_per_call is None else time_from_ns(group.ns_per_call))
    if overview.ledger is not None:
        assert overview.ledger.total_ns == view.ledger.ns.sum()
        assert view.ledger.share.sum() == pytest.approx(1)
        if overview.ledger.is_measured:
            assert time_from_ns(overview.ledger.total_ns) in seen.text
            assert time_from_ns(overview.ledger.total_ns) in seen.page
        else:  # both are means over the logs of all calls, rounded graph by graph
            assert overview.ledger.total_ns == pytest.approx(sum(call.total_ns for call in overview.calls), abs=2 * len(overview.graphs))
        for part, ns in overview.ledger.ns.items():
            assert ns == view.ledger[view.ledger.part == part].ns.sum()
            assert overview.ledger.share[part] == pytest.approx(view.ledger[view.ledger.part == part].share.sum())
    for cost, shown in zip(overview.sessions, seen.facts["sessions"], strict=False):
        assert shown == {"session_id": cost.session.session_id, "share": cost.share}
        assert cost.share == pytest.approx(cost.session.total_ns / max(sum(row.total_ns for row in seen.capture.sessions), 1))
    assert seen.cells("sessions", "share") == [percent(cost.share) for cost in overview.sessions][: len(seen.cells("sessions", "share"))]


def test_kernels_add_up_to_their_sessions(seen: Seen) -> None:
    kernels, shown = seen.view.kernels, current_kernels(seen.capture)
    if kernels.empty:
        return
    cells = seen.cells("kernels", "of session")
    ranked = sorted(shown, key=lambda kernel: -(kernel.mean_ns or 0))
    assert cells == [percent(kernel.share or 0.0) for kernel in ranked][: len(cells)]
    for session_id, rows in kernels.groupby("session_id"):
        assert rows.share.sum() == pytest.approx(1, abs=0.001), session_id
        assert list(rows.share) == pytest.approx(list(rows.total_ns / rows.total_ns.sum()))
    assert (kernels.mean_ns - kernels.total_ns / kernels.calls).abs().max() <= 1


def test_gains_are_the_same_in_every_view(seen: Seen) -> None:
    findings = seen.overview.findings
    words = [gain_words(finding, is_busy=seen.overview.is_busy) for finding in findings]
    assert seen.facts["gains"] == words
    assert seen.cells("findings", "gain per call") == words[: len(seen.cells("findings", "gain per call"))]
    assert [None if pd.isna(gain) else int(gain) for gain in seen.view.findings.gain_ns] == [item.gain_ns for item in findings]
    for look, shown in zip(seen.overview.problems[:3], seen.facts["looks"], strict=True):
        assert shown["ns_per_call"] == look.gain_ns
        assert not look.gain_ns or ("measured" if look.measured else "estimated") in problem_sentence(look)
    busy = " on a busy machine" if seen.overview.is_busy else ""
    for finding, text in zip(findings, words, strict=True):
        assert text.endswith(f", {'measured' if finding.measured else 'estimated'}{busy}" if finding.gain_ns else "")


def test_a_call_takes_the_same_in_every_view(seen: Seen) -> None:
    call, shown = seen.overview.call, seen.facts["call"]
    assert {name: shown[name] for name in ("calls", "ort_ns", "eager_ns", "foreign_ns", "total_ns")} == {
        "calls": call.calls,
        "ort_ns": call.ort_ns,
        "eager_ns": call.eager_ns,
        "foreign_ns": call.foreign_ns,
        "total_ns": call.total_ns,
    }
    for sentence in call_sentences(seen.overview)[:2]:
        assert [number for number in re.findall(r"[\d.,]*\d", sentence) if number not in seen.text] == []
        assert sentence in " ".join(seen.page.split())
    medians = [cost.session.p50_ns for cost in seen.overview.sessions]
    cells = seen.cells("sessions", "median")
    assert cells == ["" if ns is None else time_from_ns(ns) for ns in medians][: len(cells)]


def test_the_tiles_say_what_stands_elsewhere(seen: Seen) -> None:
    overview, tiles = seen.overview, {tile["name"]: tile for tile in seen.facts["tiles"]}
    assert [tile_sentence(tile) for tile in tiles_of(seen.capture, overview) if tile_sentence(tile) not in seen.text] == []
    assert [tile["detail"] for tile in tiles.values() if tile["detail"] not in seen.page] == []
    assert (tiles["speed"]["word"] == "not measured") == (not against_sentence(overview))
    if said := against_sentence(overview):
        assert re.findall(r"[\d.,]*\d", tiles["speed"]["word"]) == re.findall(r"[\d.,]*\d", said.partition(":")[0])
        assert overview.ledger is not None
        assert overview.pace is not None
        assert f"{time_from_ns(overview.ledger.total_ns)}, eager {time_from_ns(overview.pace.eager_ns or 0)}" in tiles["speed"]["detail"]
    share = seen.view.ledger[seen.view.ledger.part == "run"].ns.sum() / max(seen.view.ledger.ns.sum(), 1)
    if tiles["time"]["share"] is not None:
        assert tiles["time"]["share"] == pytest.approx(share)
        assert tiles["time"]["word"] == f"{percent(share)} of a call"
        assert percent(share) in ledger_sentence(overview)
    if overview.coverage.node_count and overview.coverage.verdict != "foreign":
        assert f"{overview.coverage.ort_node_count:,} of {counted(overview.coverage.node_count, 'operator')}" in tiles["time"]["detail"]
    splits = f"{tiles['splits']['word']} {tiles['splits']['detail']}"
    assert ("no graph break" in splits) == (len(seen.view.breaks) == 0)
    assert counted(len(seen.view.breaks), "graph break") in splits or not len(seen.view.breaks)
    if tiles["correct"]["word"] != "not checked":
        numbers = numbers_of(seen.capture)
        assert numbers is not None
        in_sentence = re.findall(
            r"([\d,]+) (?:values?|operators?)(?: of the call| on its own| one by one)?(?= of| and)", numbers_sentence(numbers)
        )
        judged = seen.view.numerics.ok.dropna()
        assert counted(len(judged), "value") in tiles["correct"]["detail"]
        assert sum(int(number.replace(",", "")) for number in in_sentence) == len(judged)
        assert (tiles["correct"]["state"] == "bad") == (not judged.all())


def test_a_break_takes_the_same_in_the_lists_the_flame_graph_and_the_timeline(seen: Seen) -> None:
    flame, order = flame_of(seen.capture), seen.facts["call_order"]
    slabs = [frame for frame in flame.root.children if frame.kind == "break"]
    for frame in slabs:
        item = seen.capture.breaks[frame.ref]
        assert frame.ns == item.cost_ns
        if item.overhead_ns is not None:
            assert own_code_ns(item) + item.overhead_ns == item.cost_ns
            assert price_of(item) == item.overhead_ns + (item.entering_ns or 0)
    graphs = [seen.capture.graphs[frame.ref].graph_id for frame in flame.root.children if frame.kind == "graph"]
    assert [graph_id for graph_id in graphs if graph_id in order["graphs"]] == order["graphs"]
    met = [row for graph_id in order["graphs"] for row in order["ahead"].get(graph_id, [])] + order["behind"]
    assert sorted(met) == list(range(len(seen.capture.breaks)))
    assert [frame.ref for frame in slabs] == [row for row in met if row in {frame.ref for frame in slabs}]
    entering = sum(frame.ns for frame in flame.root.children if frame.kind == "guards")
    told_apart = [seen.capture.breaks[frame.ref].overhead_ns for frame in slabs]
    if seen.overview.ledger is not None and seen.overview.ledger.is_measured and None not in told_apart:
        assert entering + sum(ns or 0 for ns in told_apart) == pytest.approx(seen.overview.ledger.ns.get("guards", 0), abs=10)
