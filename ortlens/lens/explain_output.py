"""The result of `torch._dynamo.explain`, made by a lens: the same names, but recompiles do not count as breaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.units import counted
from ortlens.views.html import failure_html, fragment_html
from ortlens.views.tables import Column, Table

if TYPE_CHECKING:
    import torch.fx

    from ortlens.trace.records import Break


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakReason:
    """One distinct graph break.

    Attributes:
        reason: What stopped the graph.
        user_stack: User frames, outermost first, as `file:line function`.
        graph_break: Always True.
        occurrences: Number of graph boundaries that it causes.
    """

    reason: str
    user_stack: tuple[str, ...]
    graph_break: bool = True
    occurrences: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExplainOutput:
    """Graphs and breaks, printable like PyTorch's own `ExplainOutput`.

    Attributes:
        graphs: The FX graphs that Dynamo made, recompilations included.
        graph_count: How many there are.
        graph_break_count: Boundaries between graphs that a break caused. A recompile is not a break.
        recompile_count: Compilations because a guard failed.
        break_reasons: The distinct breaks.
        op_count: Operations in all graphs.
    """

    graphs: tuple[torch.fx.GraphModule, ...]
    graph_count: int
    graph_break_count: int
    recompile_count: int
    break_reasons: tuple[BreakReason, ...]
    op_count: int

    def __str__(self) -> str:
        """Return the counts and the reasons, one per line."""
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Recompile Count: {self.recompile_count}",
            f"Op Count: {self.op_count}",
            "Break Reasons:",
        ]
        for number, reason in enumerate(self.break_reasons, start=1):
            lines += [f"  Break Reason {number} (x{reason.occurrences}):", f"    Reason: {reason.reason}", "    User Stack:"]
            lines += [f"      {frame}" for frame in reason.user_stack]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Return the counts on one line; the graphs themselves would fill the screen."""
        return f"<ExplainOutput {', '.join(self._counts())}>"

    def _repr_html_(self) -> str:
        """Return the counts and the reasons for a notebook; never raises."""
        try:
            return fragment_html(", ".join(self._counts()), [_table(self.break_reasons)] if self.break_reasons else [])
        except Exception as err:  # noqa: BLE001 - a guard of the lens: looking at an object must not raise
            return failure_html([f"ortlens could not draw this: {type(err).__name__}: {err}", "print() shows it as text."])

    def _counts(self) -> tuple[str, ...]:
        numbers = (self.graph_count, self.graph_break_count, self.recompile_count, self.op_count)
        return tuple(
            counted(number, noun) for number, noun in zip(numbers, ("graph", "graph break", "recompile", "operation"), strict=True)
        )


def _table(reasons: tuple[BreakReason, ...]) -> Table:
    return Table(
        title="Break reasons",
        help="Where PyTorch stopped a graph and started another, and how many boundaries between graphs this caused.",
        source="break_reasons",
        records=reasons,
        columns=(
            Column("reason", lambda item: item.reason),
            Column("where", lambda item: "".join(item.user_stack[-1:])),
            Column("called from", lambda item: "".join(item.user_stack[-2:-1])),
            Column("times", lambda item: f"{item.occurrences:,}", "number"),
        ),
    )


def reason_from_break(record: Break) -> BreakReason:
    """Return the reason and the stack of a break, as PyTorch's tools show it."""
    return BreakReason(reason=record.reason, user_stack=record.user_stack, occurrences=record.occurrences)
