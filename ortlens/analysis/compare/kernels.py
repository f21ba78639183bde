"""Times of operators in two captures, as far as both were profiled: what ONNX Runtime fused on either side is one row."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ortlens.analysis.index import graph_by_partition, grouped, kernels_by_session, parts_of
from ortlens.analysis.onnx_model import own_nodes
from ortlens.analysis.speed import WORTH_APART, SpeedVerdict
from ortlens.analysis.timing import fallback_ns
from ortlens.trace.records import column, optional

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ortlens.analysis.compare.comparison import AlignedOperator, Compared
    from ortlens.analysis.compare.durations import Timing
    from ortlens.trace.records import Capture, Kernel

_SHARE = 0.1  # of what a unit became slower, a kernel must explain at least a tenth: a profile shows the noise of its repeats alone


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """Operators that one kernel computes in either capture, and what they take in both."""

    operators: tuple[str, ...] = column("Operators, each once; empty for kernels that belong to none.")
    module: str | None = optional("nn.Module path of the first of them that has one.")
    verdict: SpeedVerdict = column(
        "`slower` or `faster` where the partition, else the graph, else the call is so outside the noise, and these operators explain a "
        "tenth of its difference at least and differ by a tenth themselves, not within their own noise; "
        "`unmeasured` without both times or such a unit."
    )
    outside_noise: bool | None = optional(
        "Whether the noise of both profiles, from the fastest to the slowest stretch of their repeats, lies apart and the times differ by "
        "a tenth; empty where a side is not known, was repeated fewer than 8 times, or runs in PyTorch."
    )
    difference_ns: int | None = optional("Second less first.", unit="ns")
    ratio: float | None = optional("Second over first.")
    before_ns: int | None = optional(
        "Time of their kernels per run of the session, in the first capture; of operators in PyTorch per call.", unit="ns"
    )
    after_ns: int | None = optional("Likewise in the second.", unit="ns")
    before_low_ns: int | None = optional("Lower end of that noise in the first capture.", unit="ns")
    before_high_ns: int | None = optional("Upper end.", unit="ns")
    after_low_ns: int | None = optional("Lower end in the second.", unit="ns")
    after_high_ns: int | None = optional("Upper end.", unit="ns")
    before_kernels: tuple[str, ...] = column("Operators of these kernels in the first capture; `PyTorch` where it ran them.", default=())
    after_kernels: tuple[str, ...] = column("Likewise in the second.", default=())
    before_nodes: tuple[str, ...] = column("Graph and node of each operator in the first capture, as `g0:addmm`.", default=())
    after_nodes: tuple[str, ...] = column("Likewise in the second.", default=())


def kernel_times(compared: Compared) -> tuple[KernelTime, ...]:
    """Compare what groups of operators take, the largest growth first; empty where neither capture knows the time of an operator."""
    before = Measured(compared.before)
    after = Measured(compared.after)
    members = _members(compared.operators, before, after)
    rows = [_row([compared.operators[index] for index in group], before, after, compared.timings) for group in members]
    rows += _of_no_operator(compared, before, after)
    return tuple(sorted((row for row in rows if row is not None), key=lambda row: (row.difference_ns is None, -(row.difference_ns or 0))))


class Measured:
    """Kernels and times of one capture by graph and node, as `g0:addmm`."""

    def __init__(self, capture: Capture) -> None:
        """Look through the kernels of a capture."""
        self.torch_ns = {f"{graph}:{node}": ns for (graph, node), ns in fallback_ns(capture).items()}  # per call, in PyTorch
        self.kernels: dict[str, list[Kernel]] = defaultdict(list)  # that compute a node, also with others; of one session per partition
        self.by_session: dict[str, list[Kernel]] = defaultdict(list)  # of these sessions
        profiled = kernels_by_session(capture)
        self._names: dict[int, list[str]] = {}
        self._fused: set[int] = set()
        self._makers = grouped(((node.partition_id or "", name), node.node) for node in capture.nodes for name in node.onnx_nodes)
        graphs = graph_by_partition(capture)
        seen: set[str] = set()
        for session in capture.sessions:  # one of each partition: those for other sizes would count an operator twice
            partition, kernels = session.partition_id, profiled.get(session.session_id)
            if kernels and partition not in seen:
                seen.add(partition)
                self.by_session[session.session_id] = kernels
                self._add(kernels, partition, graphs.get(partition, ""))

    def _add(self, kernels: list[Kernel], partition: str, graph: str) -> None:
        for kernel, own in zip(kernels, own_nodes(kernels), strict=True):
            made = (node for name in own for node in self._makers.get((partition, name), ()))
            nodes = dict.fromkeys(node for node in (kernel.node, *made) if node is not None)
            self._names[id(kernel)] = [f"{graph}:{node}" for node in nodes]
            self._fused |= {id(kernel)} if len(own) > 1 else set()
            for name in self._names[id(kernel)]:
                self.kernels[name].append(kernel)

    def is_fused(self, name: str) -> bool:
        """Tell whether a kernel computes several ONNX nodes at once, of this node or with others."""
        return any(id(kernel) in self._fused for kernel in self.kernels.get(name, ()))

    def names(self, kernel: Kernel) -> list[str]:
        """List the nodes that a kernel computes, the one that its time is charged to first; without those that others may compute."""
        return self._names[id(kernel)]

    def ns(self, name: str) -> int | None:
        """Return the time that is charged to a node: of its kernels, or in PyTorch; None where it is not known."""
        kernels = [kernel for kernel in self.kernels.get(name, ()) if self.names(kernel)[0] == name]
        if kernels:
            return sum(kernel.mean_ns or 0 for kernel in kernels)
        return round(self.torch_ns[name]) if name in self.torch_ns else None


def before_name(row: AlignedOperator) -> str | None:
    """Name the operator in the first capture, as `g0:addmm`; None where it is not there."""
    return None if row.before_node is None else f"{row.before_graph}:{row.before_node}"


def after_name(row: AlignedOperator) -> str | None:
    """Name the operator in the second capture likewise."""
    return None if row.after_node is None else f"{row.after_graph}:{row.after_node}"


def _members(operators: tuple[AlignedOperator, ...], before: Measured, after: Measured) -> list[list[int]]:
    """Gather the operators that a kernel of either capture computes together, by index."""
    together: list[tuple[int, int]] = []
    for side, name_of in ((before, before_name), (after, after_name)):
        first: dict[int, int] = {}
        for index, row in enumerate(operators):
            together += [(first.setdefault(id(kernel), index), index) for kernel in side.kernels.get(name_of(row) or "", ())]
    return parts_of(range(len(operators)), together)


def _row(rows: list[AlignedOperator], before: Measured, after: Measured, timings: Iterable[Timing]) -> KernelTime | None:
    ours, theirs = _side(before, filter(None, map(before_name, rows))), _side(after, filter(None, map(after_name, rows)))
    if ours.ns is None and theirs.ns is None:
        return None
    return _compared(
        ours,
        theirs,
        _unit(timings, rows),
        operators=tuple(dict.fromkeys(row.target for row in rows)),
        module=next((row.module for row in rows if row.module), None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelSide:
    ns: int | None
    kernels: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    low_ns: int | None = None
    high_ns: int | None = None


def _band(kernels: Iterable[Kernel]) -> dict[str, Any]:
    """Add up the noise of kernels; empty where that of one is not known."""
    ends = [(kernel.low_ns, kernel.high_ns) for kernel in kernels]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    is_known = bool(known) and len(known) == len(ends)
    return {"low_ns": sum(low for low, _ in known), "high_ns": sum(high for _, high in known)} if is_known else {}


def _side(measured: Measured, names: Iterable[str]) -> _KernelSide:
    nodes = tuple(names)
    kernels = {id(kernel): kernel for name in nodes for kernel in measured.kernels.get(name, ())}
    in_torch = [measured.torch_ns[name] for name in nodes if name in measured.torch_ns]
    known = bool(kernels or in_torch)
    return _KernelSide(
        ns=sum(kernel.mean_ns or 0 for kernel in kernels.values()) + round(sum(in_torch)) if known else None,
        kernels=(*(kernel.op_type for kernel in kernels.values()), *(("PyTorch",) if in_torch else ())),
        nodes=nodes,
        **({} if in_torch else _band(kernels.values())),
    )


def _compared(
    ours: _KernelSide, theirs: _KernelSide, unit: Timing | None, *, operators: tuple[str, ...] = (), module: str | None
) -> KernelTime:
    outside = _is_outside(ours, theirs)
    verdict = _verdict(ours.ns, theirs.ns, unit)
    return KernelTime(
        operators=operators,
        module=module,
        verdict="same" if outside is False and verdict != "unmeasured" else verdict,
        outside_noise=outside,
        difference_ns=None if ours.ns is None or theirs.ns is None else theirs.ns - ours.ns,
        ratio=theirs.ns / ours.ns if theirs.ns is not None and ours.ns else None,
        **{f"before_{item.name}": getattr(ours, item.name) for item in fields(_KernelSide)},
        **{f"after_{item.name}": getattr(theirs, item.name) for item in fields(_KernelSide)},
    )


def _is_outside(ours: _KernelSide, theirs: _KernelSide) -> bool | None:
    """Tell whether the noise of two profiles lies apart and the times differ by a tenth; None where one is not known."""
    if ours.ns is None or theirs.ns is None or ours.low_ns is None or theirs.low_ns is None:
        return None
    is_apart = (ours.high_ns or 0) < theirs.low_ns or (theirs.high_ns or 0) < ours.low_ns
    return is_apart and max(ours.ns, theirs.ns) >= WORTH_APART * min(ours.ns, theirs.ns)


def _unit(timings: Iterable[Timing], rows: list[AlignedOperator]) -> Timing | None:
    """Find the smallest unit with a verdict that holds these operators in the first capture; a call only where there is one."""
    subjects = {"partition": {row.before_partition for row in rows}, "graph": {row.before_graph for row in rows}}
    decided = [row for row in timings if row.verdict != "unmeasured"]
    holding = [row for scope, own in subjects.items() for row in decided if row.scope == scope and own == {row.subject}]
    calls = [row for row in decided if row.is_whole]
    return holding[0] if holding else calls[0] if len(calls) == 1 else None


def _verdict(before: int | None, after: int | None, unit: Timing | None) -> SpeedVerdict:
    if before is None or after is None or unit is None or unit.before_ns is None or unit.after_ns is None:
        return "unmeasured"
    if unit.verdict not in ("slower", "faster"):
        return unit.verdict
    explained = (after - before) / (unit.after_ns - unit.before_ns)
    larger, smaller = max(before, after), min(before, after)
    return unit.verdict if explained >= _SHARE and larger >= WORTH_APART * smaller else "same"


def _of_no_operator(compared: Compared, before: Measured, after: Measured) -> Iterator[KernelTime]:
    """Yield the times of kernels whose origin is not known, by partition: what a transform of the user added, for example."""
    partner = {row.before_id: row for row in compared.timings if row.scope == "partition"}
    for session, row in partner.items():
        ours, theirs = _unowned(before, session), _unowned(after, row.after_id)
        if ours.kernels or theirs.kernels:
            yield _compared(ours, theirs, row, module=row.module)


def _unowned(measured: Measured, session: str | None) -> _KernelSide:
    kernels = measured.by_session.get(session or "", ())
    unowned = [kernel for kernel in kernels if not measured.names(kernel)]
    return _KernelSide(
        ns=sum(kernel.mean_ns or 0 for kernel in unowned) if kernels else None,
        kernels=tuple(kernel.op_type for kernel in unowned),
        **_band(unowned),
    )
