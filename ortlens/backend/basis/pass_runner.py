"""Ordered lists of passes, each with what it requires and ensures: one runner for FX graphs and for ONNX models."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_Graph = TypeVar("_Graph")


class Condition(Enum):
    """What is true of a graph between two passes: the value is a text for messages, and `holds` tells whether it is true."""

    holds: Callable[[Any], bool]

    def __new__(cls, text: str, holds: Callable[[Any], bool]) -> Self:
        """Make the text the value of the member."""
        made = object.__new__(cls)
        made._value_, made.holds = text, holds
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A change of a graph, and its contract."""

    name: str  # appears in the error when the pass fails
    run: Callable[[Any], Any]  # changes the graph that it takes and returns None, or returns another graph
    requires: Collection[Condition] = ()  # what must be true of the graph before it
    ensures: Collection[Condition] = ()  # what is true afterwards
    invalidates: Collection[Condition] = ()  # what may no longer be true


class PassError(Exception):
    """A pass failed, with its cause chained, or a graph lacks a condition."""


def run_passes(
    graph: _Graph, passes: Iterable[Pass], known: Collection[Condition] = (), *, wraps: bool = False
) -> tuple[_Graph, frozenset[Condition]]:
    """Run passes in order on a graph of which some conditions are known; returns it with those that are true in the end.

    Raise `PassError` if no earlier pass ensures what one requires, and, if it `wraps`, from what a pass raises.
    """
    established = frozenset(known)
    for entry in passes:
        if missing := frozenset(entry.requires) - established:
            raise PassError(f"no earlier pass ensures what the pass '{entry.name}' requires: {texts_of(missing)}")
        try:
            made = entry.run(graph)
        except Exception as error:
            if not wraps:
                raise
            raise PassError(f"the pass '{entry.name}' failed: {type(error).__name__}: {error}") from error
        graph = graph if made is None else made
        established = (established - frozenset(entry.invalidates)) | frozenset(entry.ensures)
    return graph, established


def texts_of(conditions: Iterable[Condition]) -> str:
    """List conditions in a message."""
    return " and ".join(sorted(condition.value for condition in conditions))
