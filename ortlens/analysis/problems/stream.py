"""All problems of a capture: what the rules find and what was recorded, ranked, with what follows under its cause."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING

from ortlens.analysis.index import graph_by_partition, graph_by_session, graphs_by_id, once, summed
from ortlens.analysis.ledger import measured_call, time_base
from ortlens.analysis.problems import calls, kernels, movement, sessions, slower, splitting
from ortlens.analysis.problems.advice import line_after
from ortlens.analysis.problems.catalogue import advise
from ortlens.analysis.problems.problem import FIELDS, Problem, ProblemRule, gathered
from ortlens.analysis.speed import MUCH, is_busy
from ortlens.analysis.timing import call_times, entries_by_graph, graph_times
from ortlens.trace.records import Finding, same

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ortlens.trace.records import Break, Capture, Fallback, Kind, LedgerPartName, Node


_MODULES = (calls, slower, sessions, kernels, movement, splitting)
RULES: Mapping[str, ProblemRule] = {
    item.name: item for module in _MODULES for item in vars(module).values() if isinstance(item, ProblemRule)
}
"""Every rule by name, in the order in which they are asked."""

SPLITTING: tuple[Kind, ...] = ("break", "fallback", "nothing_runs", "recompile")
"""Kinds whose records have tables of their own: they are no rows of `lens.findings`."""

RECORDED: Mapping[str, str] = {
    "provider_unavailable": "A provider that the options name is not installed.",
    "provider_rules": "In a dry run, what a provider would run is by rules that ONNX Runtime ships; `evidence` has their notes.",
    "layout_copy": "Each call copies an input of 64 KiB or more for its memory layout. A warning where binding takes 50 µs and 10 % of it.",
    "device_copy": "Every call copies tensors on `mps` or `xpu` to the CPU and results back: ONNX Runtime has no binding for their memory.",
    "launch_times": "The kernels of a session on a GPU have the times of their launches: torch's profiler did not show the device's.",
    "run_failed": "ONNX Runtime failed a run that PyTorch could compute. After three, the partition or these sizes stay in PyTorch.",
    "uncounted_write": "A frozen weight changed unseen by torch, as through `param.data`; earlier calls may have used the previous values.",
    "slow_start": "A session that takes 1 s to create takes 70 % of it from a saved optimised model, or its provider's compiled one.",
    "memory_ratchet": "A watched session keeps 32 MiB or more for a tenth of its calls at most; the others have less than half the sizes.",
    "memory_leak": "Memory grows with each call, in each quarter of them alike: after 64 calls or more, and by 16 MiB at least.",
    "memory_fragmented": "32 MiB or more, and an eighth of the resident memory, lie free between blocks that `malloc` has given out.",
    "called_in_capture": "PyTorch captured a CUDA graph around a call and computed it: ONNX Runtime would have ended the process there.",
    "cuda_graph_failed": "A CUDA graph of a session could not be captured; the session runs without one.",
    "session_dropped": "With `dynamic_shapes=False`, a partition met more than 16 sets of sizes; the session not used for longest goes.",
    "lowering_failed": "A graph could not be lowered with the backend's decompositions; it was lowered without them.",
    "heavy_guards": "Calls of several graphs are faster with PyTorch's guards skipped, by 200 µs and 25 %. `explain()` measures it where "
    "entering compiled code takes that much; of a single graph 50 %.",
    "compiled_model_bypassed": "A model was compiled, but only its `generate` was called, which calls the uncompiled model.",
    "backend_failed": "A graph could not be prepared for ONNX Runtime and stays in PyTorch.",
    "profile_failed": "A partition could not be profiled; its kernels are not in the capture.",
    "profile_cut_short": "The time of `profile` was over before all partitions were profiled; kernels of the others are missing.",
    "call_differs": "`verify` found other results, written tensors, gradients, shared memory or random numbers than those of the function "
    "or model that it compares with.",
    "scale_misfit": "A scale of a quantised model covers less than half, or 4 times, what its values in the reference need.",
    "float16_overflow": "A value of an ONNX model is infinite where that of the reference is finite, as beyond 65,504 in float16.",
    "narrow_nodes": "Outputs of a quantised model, or in narrower floats, gain 1 dB or more with some nodes as in the reference.",
    "loses_accuracy": "`verify` found a value that ONNX Runtime computes far less accurately than PyTorch, or in TF32.",
    "numbers_differ": "`verify` found values that differ from PyTorch's by more than the tolerance.",
    "fusion_changes_numbers": "`verify` found an ONNX Runtime rewrite that changes results.",
    "nonfinite_origin": "`verify` found where NaN or Inf first appears.",
    "no_accuracy_level": "Products with quantised weights of an ONNX model, without `accuracy_level`, compute in float32 on the CPU.",
    "all_nan": "Every element of an output of an ONNX model is NaN.",
    "shapes_unknown": "Types and shapes of an ONNX model could not be inferred.",
    "optimiser_failed": "The ONNX optimiser failed on a model; the model runs unoptimised.",
    "cache_failed": "A converted model could not be written to `cache_dir`.",
    "dump_failed": "A model could not be written to `dump_path`.",
    "dry_run_ended": "A dry run ended where the model needs the values of a tensor.",
    "journal_failed": "The journal could not be written to its end; the lens still has what it lacks.",
    "journal_not_closed": "The capture was read from a journal whose process was killed, or still runs: what came after is missing.",
    "lens_failed": "The lens itself failed; parts of the capture are missing.",
    "rule_failed": "A rule failed; the other findings hold.",
}
"""Findings that are recorded while the model is compiled, runs, or is measured, by name."""

_SEVERITIES = ("error", "warning", "info")

URGENT: tuple[Kind, ...] = ("finding", "for_training", "slower", "nothing_runs")
"""What comes before all that has a price. Without gradients, weights are constants and nothing is kept: every time changes."""
_KINDS: tuple[Kind, ...] = (*URGENT, "break", "fallback", "recompile", "rule")
_MOST = 100
_MUCH_MEASURED = 0.05  # share of a call from which a gain that was measured in turns is worth a word, found for information
_REST = 4  # what a call loses besides the causes that have prices counts so many times less: it shrinks when these are mended


class Tier(IntEnum):
    """What decides the place of a problem first."""

    URGENT = 0  # the rest may be incomplete, or changes when it is mended: in the order of `URGENT`
    PRICED = 1  # the dearest first, where a call was measured: else breaks have no price to compare with
    STORM = 2  # a call that compiles takes a hundred times as long
    IN_TURN = 3  # the first of each kind before the second of any


@once
def findings_of(capture: Capture) -> tuple[Problem, ...]:
    """Collect the rows of `lens.findings`, errors first, then the most expensive: what was recorded, and what the rules find in it.

    A recorded finding replaces that of a rule of the same name and subject, which is an estimate. A measured one replaces
    all earlier ones about the same subject. A saved capture holds the recorded findings; rules are evaluated on access.
    """
    recorded = movement.with_cost_of_copies([_of_record(finding) for finding in _latest(capture.findings)], capture)
    known = {(item.rule, item.subject) for item in recorded}
    rules = (rule for rule in RULES.values() if rule.kind not in SPLITTING)
    found = [item for rule in rules for item in _applied(rule, capture) if (item.rule, item.subject) not in known]
    rows = within_a_call(sorted([*recorded, *found], key=_rank), capture)
    graphs = graphs_by_id(capture)
    busy, per = is_busy(capture), time_base(capture)
    return tuple(
        replace(item, index=index, is_busy=busy, per=per, graph_ids=(item.subject,) if item.subject in graphs else ())
        for index, item in enumerate(rows)
    )


@once
def finding_records(capture: Capture) -> tuple[Finding, ...]:
    """Return the same as records of a capture."""
    return tuple(item.record() for item in findings_of(capture))


@once
def problems_of(capture: Capture) -> tuple[Problem, ...]:
    """List what can be done about a capture, the most useful first, each with what follows from it; one change, one problem."""
    worth = [item for item in findings_of(capture) if _is_worth_a_word(item, capture)]
    busy, per, names = is_busy(capture), time_base(capture), ("nothing_runs", "break", "fallback", "recompile")
    split = [replace(item, is_busy=busy, per=per) for name in names for item in _applied(RULES[name], capture)]
    seen = dict.fromkeys(_KINDS, 0)
    ranked: list[tuple[tuple[int, int, int], Problem]] = []
    for item in gathered([*worth, *split]):
        ranked.append((_place(item, seen[item.kind], capture), item))
        seen[item.kind] += 1
    placed: tuple[Node | Fallback | Break, ...] = (*capture.nodes, *capture.fallbacks, *capture.breaks)
    sources: dict[tuple[str | None, int | None], str]
    sources = {(item.file, item.line): item.source for item in reversed(placed) if item.source and item.file}
    return tuple(_completed(item, sources) for _, item in sorted(ranked, key=lambda pair: pair[0])[:_MOST])


def _place(item: Problem, earlier: int, capture: Capture) -> tuple[int, int, int]:
    """Rank a problem; `earlier` ones are of its kind."""
    if "function" in item.traits:  # all that it runs is in no graph, and in no price
        return Tier.URGENT, 1, -1
    if urgent := [URGENT.index(each.kind) for each in (item, *item.consequences) if each.kind in URGENT]:
        return Tier.URGENT, min(urgent), 0
    if measured_call(capture) is not None and item.price_ns is not None:
        return Tier.PRICED, -item.weight_ns // (_REST if item.rule == calls.slower_call.name else 1), 0
    if not item.traits.isdisjoint(("storm", "gave_up")):
        return Tier.STORM, 0, 0
    return Tier.IN_TURN, earlier, _KINDS.index(item.kind)


def _completed(item: Problem, sources: Mapping[tuple[str | None, int | None], str]) -> Problem:
    source = item.source if item.kind == "break" else sources.get((item.file, item.line))
    return replace(
        item,
        source=source.strip() if source else None,
        patch=line_after(source or "", item.advice) if item.kind in ("break", "finding") else None,
        tried=(item.advice is not None and item.advice.is_tried) or (item.measured and item.rule == sessions.too_many_threads.name),
    )


def _is_worth_a_word(item: Problem, capture: Capture) -> bool:
    """Tell whether a finding is a warning, or information about a slow call or about much of one."""
    if item.severity != "info":
        return True
    if item.rule == calls.slower_call.name:  # no program is slower without a word about it, but for what other work explains
        return not is_busy(capture)
    call = measured_call(capture)
    return call is not None and (item.gain_ns or 0) >= (_MUCH_MEASURED if item.measured else MUCH) * call.total_ns > 0


def _of_record(finding: Finding) -> Problem:
    rule = RULES.get(finding.rule)
    kind: Kind = rule.kind if rule is not None else "rule" if finding.measured else "finding"
    advice = advise("choose_with_where") if finding.rule == "dry_run_ended" else None
    return Problem(kind=kind, advice=advice, **same(finding, *FIELDS))


def _latest(findings: tuple[Finding, ...]) -> list[Finding]:
    """Leave out findings that a later measurement of the same rule and subject replaced."""
    kept: list[Finding] = []
    for finding in findings:
        if finding.measured:
            kept = [known for known in kept if (known.rule, known.subject) != (finding.rule, finding.subject)]
        kept.append(finding)
    return kept


def _applied(rule: ProblemRule, capture: Capture) -> Iterator[Problem]:
    """Ask a rule; one that fails must not take the others with it."""
    try:
        yield from list(rule.check(capture))
    except Exception as error:  # noqa: BLE001 - a guard of the lens
        yield Problem(
            kind="finding",
            rule="rule_failed",
            subject=rule.name,
            severity="warning",
            title=f"the rule {rule.name} failed; the other findings hold",
            evidence=f"{type(error).__name__}: {error}"[:2000],
            hazard="What this rule detects may be present and unreported.",
            mitigation="Report it with the evidence and, if you can, the saved capture.",
        )


def _rank(finding: Problem) -> tuple[int, bool, bool, int]:
    is_of_all_guards = finding.rule == calls.HEAVY_GUARDS  # those of a container, which has a name, are some of them
    is_slower = finding.rule == slower.slower_than_torch.name
    return _SEVERITIES.index(finding.severity), not is_slower, is_of_all_guards, -(finding.gain_ns or 0)


_INSIDE: frozenset[LedgerPartName] = frozenset({"run", "wait"})
_SESSION: frozenset[LedgerPartName] = frozenset({"bind", "run", "output", "residual", "wait"})
_PARTS: Mapping[str, frozenset[LedgerPartName]] = {
    "copying_kernels": _INSIDE,
    "costly_entry": frozenset({"guards", "bind"}),
    "float16_nodes": _INSIDE,
    "float64_nodes": _INSIDE,
    "device_copy": frozenset({"bind", "output"}),
    "device_idle": _INSIDE,
    "large_outputs": _INSIDE,
    "layout_copy": frozenset({"bind"}),
    "unfrozen_weights": _SESSION,
}
"""The part of a call that a rule is about; of others the whole call, as of guards, which evict from the caches what the rest needs."""


def within_a_call(findings: Iterable[Problem], capture: Capture) -> tuple[Problem, ...]:
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
        self._whole = summed((self._function.get(graph_id, self._measured_function), ns) for (graph_id, _), ns in self._by_part.items())
        own = {graph.graph_id: graph.graph_id for graph in capture.graphs}
        self._graph_of = own | graph_by_partition(capture) | graph_by_session(capture)

    def most(self, finding: Problem) -> int | None:
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
    found = summed(((row.graph_id, row.part), float(row.ns)) for row in capture.ledger)
    known, entries = {graph_id for graph_id, _ in found}, entries_by_graph(capture)
    for graph_id, time in graph_times(capture).items() if known else ():
        if graph_id not in known and time.calls and graph_id in entries:
            found[graph_id, "run"] = time.ort_ns / time.calls * entries[graph_id]
            found[graph_id, "eager"] = time.eager_ns / time.calls * entries[graph_id]
    return found
