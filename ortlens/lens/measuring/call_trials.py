"""Trials of whole calls of the target: threads, guards, and partitions left to PyTorch, which all act on the rest of the call."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ortlens._process import usable_cores
from ortlens.analysis.findings.sessions import SESSIONS
from ortlens.backend.runtime.threads import ThreadChoice
from ortlens.backend.runtime.turns import clocked
from ortlens.lens.measuring.trials import ObservedPartition, Pair, Trial, prepared, present
from ortlens.lens.shadow_sessions import variant_of
from ortlens.lens.watching import around_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from ortlens.lens.measuring.trials import Run

MAX_RUNNERS = 8
"""Partitions that are measured at most, the most expensive ones."""

MAKING_NS = 3_000_000_000
"""A trial whose sessions take longer to create than this is skipped; estimated by the time that those in use took."""

_FEW_NODES = 5

GUARDS = "guards"
"""Subject of the finding about guards: they are evaluated for the call as a whole."""

GUARDS_NS, GUARDS_SHARE, ONE_GRAPH_SHARE = 200_000, 0.25, 0.5
"""What skipping them must save to be worth a warning: that of several graphs can be had without a risk, by merging them."""


@dataclass(frozen=True, slots=True)
class CallTrials:
    """Makes the trials of whole calls.

    Attributes:
        seen: The partitions that a call runs, the most expensive first.
        call: Calls the target.
    """

    seen: list[ObservedPartition]
    call: Callable[[], Any]

    def threads(self) -> Iterator[Trial]:
        """Yield trials of other numbers of threads, and of threads that sleep instead of spinning, as they apply to the present threads."""
        cores = usable_cores()
        several = [seen for seen in self.seen if seen.choice.count != 1]
        spinning = [seen for seen in several if seen.choice.spinning]
        crowded = [seen for seen in self.seen if seen.choice.count > cores]
        if spinning:
            yield self._with_threads(
                "spinning_threads",
                "letting threads sleep",
                'Add the entry "session.intra_op.allow_spinning" = "0" to ort_session_options.',
                {seen: replace(seen.choice, spinning=False) for seen in spinning},
            )
        if crowded:
            yield self._with_threads(
                "too_many_threads",
                f"giving each session {cores} threads",
                f"torch.set_num_threads({cores}), or intra_op_num_threads={cores} in ort_session_options.",
                {seen: replace(seen.choice, count=cores) for seen in crowded},
            )
            return
        other = 1 if several else cores
        if other != 1 or several:
            yield self._with_threads(
                "thread_count",
                f"giving each session {other} thread{'s' if other > 1 else ''}",
                f"torch.set_num_threads({other}), or intra_op_num_threads={other} in ort_session_options.",
                {seen: ThreadChoice(count=other, spinning=False, reason="probed") for seen in (several or self.seen)},
            )

    def left_to_torch(self, fired: Container[tuple[str, str | None]]) -> Iterator[Trial]:
        """Yield one trial of running partitions in PyTorch per graph that the rule `small_partitions` or `tiny_graph` names in `fired`."""
        by_graph: dict[str, list[ObservedPartition]] = defaultdict(list)
        for seen in self.seen:
            by_graph[seen.identity.graph_id].append(seen)
        for rule, most in (("small_partitions", _FEW_NODES), ("tiny_graph", None)):
            for graph_id, members in by_graph.items():
                chosen = [seen for seen in members if most is None or seen.node_count <= most]
                if (rule, graph_id) in fired and chosen:
                    yield self._without(rule, graph_id, chosen)

    def guards(self, *, several: bool) -> Iterator[Trial]:
        """Yield a trial of calls that skip Dynamo's guards.

        If a call enters `several` graphs, merging them saves guards without risk; otherwise their cost is information below half a call.
        """

        def pair() -> Pair:
            plain = self._whole({})

            def unguarded() -> int:
                with torch.compiler.set_stance("fail_on_recompile", skip_guard_eval_unsafe=True):
                    return plain()

            return plain, unguarded

        yield Trial(
            rule="heavy_guards",
            subject=GUARDS,
            change="skipping the guards",
            mitigation="Remove the graph breaks, so that guards run once per call."
            if several
            else "They run once per call, for everything that the code reads: modules, their Python attributes, globals. "
            "For deployment, `ortlens.freeze(model, x)` runs the same sessions without them.",
            worth_ns=GUARDS_NS,
            worth_share=GUARDS_SHARE if several else ONE_GRAPH_SHARE,
            pair=pair,
        )

    def _with_threads(self, rule: str, change: str, mitigation: str, choices: dict[ObservedPartition, ThreadChoice]) -> Trial:
        def pair() -> Pair | None:
            chosen = list(choices)[:MAX_RUNNERS]
            if sum(seen.runner.sessions[-1].create_ns for seen in chosen) > MAKING_NS:
                return None
            made = {seen: prepared(variant_of(seen.runner, choice=choices[seen]), seen) for seen in chosen}
            return self._whole({}), self._whole(made)

        return Trial(rule=rule, subject=SESSIONS, change=change, mitigation=mitigation, pair=pair)

    def _without(self, rule: str, graph_id: str, chosen: list[ObservedPartition]) -> Trial:
        largest = max(seen.node_count for seen in chosen)
        return Trial(
            rule=rule,
            subject=graph_id,
            change=f"leaving {len(chosen)} partition{'s' if len(chosen) > 1 else ''} of {graph_id} to PyTorch",
            mitigation=f"min_partition_nodes={largest + 1} leaves partitions of up to {largest} compute nodes to PyTorch.",
            pair=lambda: (self._whole({}), self._whole({seen: seen.runner.partition.module for seen in chosen})),
        )

    def _whole(self, others: dict[ObservedPartition, Run]) -> Callable[[], int]:
        """Time whole calls in which some partitions run otherwise. All are intercepted and uncounted, so that both sides cost the same."""
        ways = {seen: others.get(seen) or present(seen) for seen in self.seen}
        once = clocked(self.call)

        def intercepted() -> int:
            with contextlib.ExitStack() as stack:
                for seen, way in ways.items():
                    stack.enter_context(around_runs(seen.runner, _instead(way)))
                return once()

        return intercepted


def _instead(way: Run) -> Callable[[Run, tuple[Any, ...]], tuple[Any, ...]]:
    return lambda _inner, values: way(*values)
