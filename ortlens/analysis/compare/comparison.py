"""Two captures of one program, compared; and side by side: a row for each operator and break of either."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.compare.changes import Change, break_key, changes_of
from ortlens.analysis.compare.durations import Timing, ends_moved, timings_of
from ortlens.analysis.compare.kernels import KernelTime, Measured, after_name, before_name, kernel_times
from ortlens.analysis.compare.pairing import Match, Pairing, paired
from ortlens.analysis.coverage import current_graphs
from ortlens.analysis.index import grouped, nodes_by_graph
from ortlens.errors import UsageError
from ortlens.trace.records import Break, column, optional
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ortlens.analysis.compare.changes import Effect
    from ortlens.analysis.speed import SpeedVerdict
    from ortlens.trace.records import Capture, Node


_SAME_PROGRAM = 0.1  # captures that share fewer of their operators are of different models


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedOperator:
    """An operator of either capture, and its partner."""

    target: str = column("Operator, as `aten.add.Tensor`.")
    module: str | None = optional("nn.Module path, in the second capture where both have it.")
    match: Match | None = optional(
        "How it was recognised: `exact`, by `structure` (module, target, producers), by `module` and target, or `renamed`: by target and "
        "producers in another module. Empty where only one capture has it."
    )
    before_graph: str | None = optional("Graph in the first capture.")
    before_node: str | None = optional("Node in the first capture.")
    before_partition: str | None = optional("Partition in the first capture; empty in PyTorch.")
    after_graph: str | None = optional("Graph in the second capture.")
    after_node: str | None = optional("Node in the second capture.")
    after_partition: str | None = optional("Partition in the second capture; empty in PyTorch.")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What comparing two captures came to."""

    before: Capture  # the first capture
    after: Capture  # the second
    changes: tuple[Change, ...]  # what differs besides times
    timings: tuple[Timing, ...]  # times of what both have
    operators: tuple[AlignedOperator, ...]  # every operator with its partner
    machine_differs: bool  # whether they were recorded on different machines or with different numbers of threads
    ends_moved: bool  # whether times of calls are left out, because operators moved into or out of what they cover

    @cached_property
    def kernels(self) -> tuple[KernelTime, ...]:
        """What operators take in both."""
        return kernel_times(self)

    @property
    def is_worse(self) -> bool:
        """Whether anything got worse or slower."""
        return any(row.effect == "worse" for row in self.changes) or any(row.verdict == "slower" for row in self.timings)


def compared(before: Capture, after: Capture) -> Compared:
    """Compare two captures of one program, aligned by module path, target and structure of the operators.

    Raises `UsageError` if a capture is empty, or they are of different models.
    """
    for which, capture in (("first", before), ("second", after)):
        if not capture.graphs and not capture.call_lines:  # of a function that PyTorch gave up, these are all
            raise UsageError(
                f"the {which} capture{_named(capture)} has no graphs to compare; call the compiled function while the lens is recording"
            )
    pairing = paired(before, after)
    elsewhere = len(pairing.entered) + len(pairing.left)
    shared = sum(pair.match != "renamed" for pair in pairing.operators) + elsewhere
    smaller = min(len(pairing.operators) + elsewhere + len(side) for side in (pairing.removed, pairing.added))
    if before.name != after.name and (shared < _SAME_PROGRAM * smaller if smaller else not pairing.graphs):
        raise UsageError(
            f"the captures{_named(before)} and{_named(after)} share {shared} of {counted(smaller, 'operator')}: "
            "they are of different models; compare captures of the same program"
        )
    changes, moved = changes_of(before, after, pairing), ends_moved(before, after, pairing)
    return Compared(
        before=before,
        after=after,
        changes=changes,
        timings=timings_of(before, after, pairing, with_calls=not moved),
        operators=_aligned(pairing),
        machine_differs=any(row.kind == "machine" or row.subject == "torch_threads" for row in changes),
        ends_moved=moved,
    )


def _named(capture: Capture) -> str:
    return f" {capture.name[:60]!r}" if capture.name else ""


def _aligned(pairing: Pairing) -> tuple[AlignedOperator, ...]:
    return (
        *(_row(pair.after, pair.before, pair.after, pair.match) for pair in pairing.operators),
        *(_row(node, node, None, None) for node in (*pairing.left, *pairing.removed)),
        *(_row(node, None, node, None) for node in (*pairing.entered, *pairing.added)),
    )


def _row(node: Node, before: Node | None, after: Node | None, match: Match | None) -> AlignedOperator:
    places = {
        f"{side}_{name}": None if item is None else getattr(item, field)
        for side, item in (("before", before), ("after", after))
        for name, field in (("graph", "graph_id"), ("node", "node"), ("partition", "partition_id"))
    }
    return AlignedOperator(target=node.target, module=node.module, match=match, **places)


Difference: TypeAlias = Literal["same", "added", "removed", "moved", "slower", "faster", "fused", "split"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneSide:
    """An operator or a break in one capture."""

    name: str  # graph and node, as `g0:addmm`; of a break the graph that it ends, and its id
    item: Node | Break  # the record
    kernels: tuple[str, ...] = ()  # operators of the kernels that compute it
    is_fused: bool = False  # whether ONNX Runtime fused it with others
    ns: int | None = None  # time that is charged to it; None where another operator bears it, or nothing was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneRow:
    """A row of both panes."""

    # what differs: `added` and `removed` are in one capture only, `moved` between ONNX Runtime and PyTorch, `slower` and `faster` as the
    # kernels say, `fused` with other operators in the second capture only, `split` in the first only
    difference: Difference
    effect: Effect  # whether that is worse, better or neither
    before: PaneSide | None = None  # in the first capture; None where it is not there
    after: PaneSide | None = None  # in the second, likewise


def panes(compared: Compared) -> tuple[PaneRow, ...]:
    """Lay two captures side by side: a row for every operator and break of the newest graphs, in the order of the first capture.

    What only the second has follows what it follows there. Empty for backends whose operators are not recorded.
    """
    if not compared.operators:
        return ()
    left, right = _sides(compared.before), _sides(compared.after)
    partner = _breaks(left, right)
    for row in compared.operators:
        first, second = before_name(row), after_name(row)
        if first is not None and second is not None:
            partner[first] = second
    verdicts = {name: row.verdict for row in compared.kernels for name in (row.before_nodes or row.after_nodes)}
    rows = ((_difference(before, after, verdicts), before, after) for before, after in _merged(left, right, partner))
    return tuple(PaneRow(difference=kind, effect=effect, before=before, after=after) for (kind, effect), before, after in rows)


def _sides(capture: Capture) -> list[PaneSide]:
    measured = Measured(capture)
    sides: list[PaneSide] = []
    for graph in current_graphs(capture):
        sides += [_side(node, measured) for node in nodes_by_graph(capture).get(graph.graph_id, ()) if node.kind == "compute"]
        ends = (item for item in capture.breaks if graph.compile_id in item.compile_ids and graph.phase != "backward")
        sides += [PaneSide(name=f"{graph.graph_id} {item.break_id}", item=item, ns=item.cost_ns) for item in ends]
    return sides


def _side(node: Node, measured: Measured) -> PaneSide:
    name = f"{node.graph_id}:{node.node}"
    return PaneSide(
        name=name,
        item=node,
        kernels=tuple(kernel.op_type for kernel in measured.kernels.get(name, ())),
        is_fused=measured.is_fused(name),
        ns=measured.ns(name),
    )


def _breaks(left: Iterable[PaneSide], right: Iterable[PaneSide]) -> dict[str, str]:
    """Pair the breaks of the first with those of the second; equal ones in their order."""
    waiting = grouped((break_key(side.item), side.name) for side in right if isinstance(side.item, Break))
    pairs: dict[str, str] = {}
    for side in left:
        if isinstance(side.item, Break) and (others := waiting.get(break_key(side.item))):
            pairs[side.name] = others.pop(0)
    return pairs


def _merged(
    left: Sequence[PaneSide], right: Sequence[PaneSide], partner: Mapping[str, str]
) -> Iterator[tuple[PaneSide | None, PaneSide | None]]:
    """Yield pairs in the order of the first; what only the second has follows what it follows there."""
    paired = set(partner.values())
    following: dict[str, list[PaneSide]] = defaultdict(list)
    last = ""
    for side in right:
        if side.name in paired:
            last = side.name
        else:
            following[last].append(side)
    others = {side.name: side for side in right}
    yield from ((None, side) for side in following[""])
    for side in left:
        other = partner.get(side.name)
        yield side, others.get(other or "")
        if other is not None:
            yield from ((None, extra) for extra in following[other])


def _difference(before: PaneSide | None, after: PaneSide | None, verdicts: Mapping[str, SpeedVerdict]) -> tuple[Difference, Effect]:
    if before is None or after is None:
        is_break = any(side is not None and isinstance(side.item, Break) for side in (before, after))
        return ("added", "worse" if is_break else "neutral") if before is None else ("removed", "better" if is_break else "neutral")
    if isinstance(before.item, Break) or isinstance(after.item, Break):
        return "same", "neutral"
    if before.item.supported != after.item.supported:
        return "moved", "better" if after.item.supported else "worse"
    verdict = verdicts.get(before.name)
    if verdict in ("slower", "faster") and before.ns is not None and after.ns is not None:
        return verdict, "worse" if verdict == "slower" else "better"
    if before.is_fused != after.is_fused and before.kernels and after.kernels:
        return "fused" if after.is_fused else "split", "neutral"
    return "same", "neutral"
