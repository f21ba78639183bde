"""No gain is more than a call takes, nor more than the part of it that the finding is about."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from ortlens.analysis.index import graph_by_partition
from ortlens.analysis.timing import call_times, calls_by_graph, graph_times

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ortlens.trace.records import Capture, Finding, LedgerPartName

_INSIDE: frozenset[LedgerPartName] = frozenset({"run"})
_SESSION: frozenset[LedgerPartName] = frozenset({"bind", "run", "output", "residual"})
_CROSSING: frozenset[LedgerPartName] = frozenset({"bind", "output"})
_PARTS: Mapping[str, frozenset[LedgerPartName]] = {
    "boundary_copies": _CROSSING,
    "copying_kernels": _INSIDE,
    "costly_entry": frozenset({"guards"}),
    "elementwise_chain": _INSIDE,
    "float16_nodes": _INSIDE,
    "float64_nodes": _INSIDE,
    "heavy_guards": frozenset({"guards"}),
    "large_outputs": _INSIDE,
    "layout_copy": frozenset({"bind"}),
    "slow_kernel": _INSIDE,
    "small_partitions": _SESSION,
    "unfrozen_weights": _SESSION,
}
"""The part of a call that a rule is about; of any other rule, the whole call."""


def within_a_call(findings: Iterable[Finding], capture: Capture) -> tuple[Finding, ...]:
    """Cut the gains of findings so that they fit into a call, one by one and together; `at_most` marks those that were cut.

    A gain is measured or estimated beside the calls that the ledger measured, and perhaps while the machine was slower. Of findings about
    the same part of a call, the first come first. Where no call was measured as a whole, only the parts inside the graphs are limits.
    """
    left = _Left(capture)
    kept = []
    for finding in findings:
        gain = left.most(finding)
        kept.append(finding if gain == finding.gain_ns else replace(finding, gain_ns=gain, at_most=True))
    return tuple(kept)


class _Left:
    """Time of a call that no gain is about yet: by function, and by graph and part."""

    def __init__(self, capture: Capture) -> None:
        self._by_part = _time_by_part(capture)
        self._is_measured = any(part == "residual" for _, part in self._by_part)
        first = next((graph_id for graph_id, _ in self._by_part), "")
        self._function = {graph_id: time.graph_ids[0] for time in call_times(capture) for graph_id in time.graph_ids}
        self._measured_function = self._function.get(first, first)
        self._whole: defaultdict[str, float] = defaultdict(float)
        for (graph_id, _), ns in self._by_part.items():
            self._whole[self._function.get(graph_id, self._measured_function)] += ns
        by_partition = graph_by_partition(capture)
        self._graph_of = {graph.graph_id: graph.graph_id for graph in capture.graphs} | by_partition
        self._graph_of |= {row.session_id: by_partition.get(row.partition_id, "") for row in capture.sessions}

    def most(self, finding: Finding) -> int | None:
        """Return what a finding may gain at most, and take that off what is left for the next ones."""
        graph_id = self._graph_of.get((finding.subject or "").partition(":")[0], "")
        function = self._function.get(graph_id, self._measured_function)
        parts = _PARTS.get(finding.rule)
        own = [key for key in self._by_part if parts and key[1] in parts and key[0] == (graph_id or key[0])]
        if not finding.gain_ns or function not in self._whole or not (own if parts else self._is_measured):
            return finding.gain_ns
        there = sum(self._by_part[key] for key in own)
        gain = min(finding.gain_ns, round(self._whole[function]), *([round(there)] if parts else []))
        self._whole[function] -= gain
        for key in own:
            self._by_part[key] -= gain * self._by_part[key] / max(there, 1.0)
        return gain


def _time_by_part(capture: Capture) -> dict[tuple[str, LedgerPartName], float]:
    """Sum up the time per call by graph and part: of the ledger, or of the logs for graphs that it lacks, such as a backward."""
    ranks = len({row.rank for row in capture.ledger}) or 1
    found: defaultdict[tuple[str, LedgerPartName], float] = defaultdict(float)
    for row in capture.ledger:
        found[row.graph_id, row.part] += row.ns / ranks
    known, calls = {graph_id for graph_id, _ in found}, calls_by_graph(capture)
    for graph_id, time in graph_times(capture).items() if known else ():
        if graph_id not in known and time.calls and graph_id in calls:
            found[graph_id, "run"] = (time.ort_ns + time.foreign_ns) / calls[graph_id]
            found[graph_id, "eager"] = time.eager_ns / calls[graph_id]
    return dict(found)
