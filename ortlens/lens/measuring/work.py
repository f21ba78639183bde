"""What a call did that a usual call does not: compile code, create sessions. Such a call is not comparable with the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ortlens.backend.graph import CompiledGraph
    from ortlens.lens.dynamo.listener import DynamoWatch
    from ortlens.trace.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What was done so far that later calls need not do again; equal before and after a call that did nothing of the kind.

    Attributes:
        compiled: Compilations. Dynamo compiles functions without a graph too, an exported program has only graphs.
        created: Sessions, by their ids.
        attempts: How often a session was to be created: one that ONNX Runtime refuses has no id.
        trial_ns: Time left for the trials of `on_slow="fallback"`.
    """

    compiled: int
    created: int
    attempts: int = 0
    trial_ns: int = 0

    def compiled_since(self, before: Work) -> bool:
        """Tell whether anything was compiled since `before`."""
        return self.compiled != before.compiled


def work_so_far(recorder: Recorder, watch: DynamoWatch, graphs: Iterable[CompiledGraph]) -> Work:
    """Read the counts; nothing is counted in a call itself, except where a session is created."""
    graphs = tuple(graphs)
    trials = {id(graph.context.trials): graph.context.trials for graph in graphs if graph.context.trials is not None}
    return Work(
        compiled=len(watch.started) + recorder.count(r.Graph),
        created=recorder.ids_given("s"),
        attempts=sum(runner.attempts for graph in graphs for runner in graph.runners),
        trial_ns=sum(made.left_ns for made in trials.values()),
    )
