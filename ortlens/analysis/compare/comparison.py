"""Two captures of one program, compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ortlens.analysis.compare.changes import Change, changes_of
from ortlens.analysis.compare.durations import Timing, ends_moved, timings_of
from ortlens.analysis.compare.kernels import KernelTime, kernel_times
from ortlens.analysis.compare.pairing import Match, Pairing, paired
from ortlens.errors import UsageError
from ortlens.trace.records import column, optional
from ortlens.units import counted

if TYPE_CHECKING:
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
    def slower(self) -> tuple[Timing, ...]:
        """What takes longer outside the noise."""
        return tuple(row for row in self.timings if row.verdict == "slower")

    @property
    def worse(self) -> tuple[Change, ...]:
        """Changes for the worse."""
        return tuple(row for row in self.changes if row.effect == "worse")

    @property
    def is_worse(self) -> bool:
        """Whether anything got worse or slower."""
        return bool(self.worse or self.slower)


def compared(before: Capture, after: Capture) -> Compared:
    """Compare two captures of one program, aligned by module path, target and structure of the operators.

    Raises `UsageError` if a capture is empty, or they are of different models.
    """
    for which, capture in (("first", before), ("second", after)):
        if not capture.graphs:
            raise UsageError(
                f"the {which} capture{_named(capture)} has no graphs to compare; call the compiled function while the lens is recording"
            )
    pairing = paired(before, after)
    _check_same_program(before, after, pairing)
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


def _check_same_program(before: Capture, after: Capture, pairing: Pairing) -> None:
    shared = sum(pair.match != "renamed" for pair in pairing.operators)
    smaller = min(len(pairing.operators) + len(side) for side in (pairing.removed, pairing.added))
    if before.name == after.name or (smaller and shared >= _SAME_PROGRAM * smaller) or (not smaller and pairing.graphs):
        return
    raise UsageError(
        f"the captures{_named(before)} and{_named(after)} share {shared} of {counted(smaller, 'operator')}: they are of different models; "
        "compare captures of the same program"
    )


def _named(capture: Capture) -> str:
    return f" {capture.name[:60]!r}" if capture.name else ""


def _aligned(pairing: Pairing) -> tuple[AlignedOperator, ...]:
    return (
        *(_row(pair.after, pair.before, pair.after, pair.match) for pair in pairing.operators),
        *(_row(node, node, None, None) for node in pairing.removed),
        *(_row(node, None, node, None) for node in pairing.added),
    )


def _row(node: Node, before: Node | None, after: Node | None, match: Match | None) -> AlignedOperator:
    places = {
        f"{side}_{name}": None if item is None else getattr(item, field)
        for side, item in (("before", before), ("after", after))
        for name, field in (("graph", "graph_id"), ("node", "node"), ("partition", "partition_id"))
    }
    return AlignedOperator(target=node.target, module=node.module, match=match, **places)
