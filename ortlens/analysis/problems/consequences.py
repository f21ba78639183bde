"""What has one cause is one problem: a table of what follows from what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.analysis.problems.problem import Problem


@dataclass(frozen=True, slots=True)
class Consequence:
    """A problem may follow from another. Each is named by its rule, or `break`, `fallback`, `nothing_runs`."""

    effect: str
    cause: str
    effect_if: str = ""  # a trait that the effect must have
    cause_if: str = ""  # one that the cause must have
    unless: str = ""  # one that the cause must not have
    same_graph: bool = False  # whether both must be in one graph
    share: float = 0.0  # least part of what the effect costs that the cause does


LINKS: tuple[Consequence, ...] = (
    Consequence("slower_than_torch", "fallback", same_graph=True, share=0.5, unless="stays"),  # of less, other things make it slower
    Consequence("fallback", "float64_nodes", effect_if="float64 refused", same_graph=True),
    Consequence("nothing_runs", "float64_nodes", effect_if="float64", same_graph=True),
    Consequence("fallback", "slower_than_torch", effect_if="stays", same_graph=True),
    Consequence("nothing_runs", "slower_than_torch", effect_if="stays", same_graph=True),
    Consequence("heavy_guards", "break", cause_if="guarded"),  # the price of each break has them
    Consequence("heavy_guards", "costly_guards"),
    Consequence("weights_changed", "break", effect_if="several_modules", cause_if="only"),
    Consequence("slower_call", "training_forward"),
    Consequence("slower_call", "nothing_runs"),
    Consequence("slower_call", "break", cause_if="compile_forward_alone"),
    *(Consequence("call_differs", inside) for inside in ("numbers_differ", "loses_accuracy", "fusion_changes_numbers", "nonfinite_origin")),
)
"""What follows from what, the surest cause first."""


def gathered(problems: Sequence[Problem]) -> list[Problem]:
    """Put each problem under the one that is its cause, or is alike and comes first; those that nothing causes keep their order."""
    causes: dict[int, int] = {}
    for place in range(len(problems)):
        cause = next(_causes(place, problems), None)
        if cause is not None and place not in _path(cause, causes):
            causes[place] = cause
    under: dict[int, list[Problem]] = {}
    for place in sorted(causes, key=lambda place: -(problems[place].gain_ns or 0)):
        under.setdefault(_path(place, causes)[-1], []).append(problems[place])
    return [replace(item, consequences=tuple(under.get(at, ()))) for at, item in enumerate(problems) if at not in causes]


def _path(place: int, causes: dict[int, int]) -> list[int]:
    path = [place]
    while path[-1] in causes:
        path.append(causes[path[-1]])
    return path


def _causes(place: int, problems: Sequence[Problem]) -> Iterator[int]:
    """Yield the places of what causes a problem, the surest first, and of several the costliest; then of what is alike and before it."""
    effect = problems[place]
    ranked = sorted(range(len(problems)), key=lambda at: -(problems[at].gain_ns or 0))
    for link in LINKS:
        if link.effect == effect.rule:
            yield from (at for at in ranked if link.cause == problems[at].rule and _holds(link, effect, problems[at]))
    yield from (at for at in range(place) if _is_alike(effect, problems[at]))


def _holds(link: Consequence, effect: Problem, cause: Problem) -> bool:
    return (
        effect.traits.issuperset(link.effect_if.split())
        and cause.traits.issuperset(link.cause_if.split())
        and (not link.unless or link.unless not in cause.traits)
        and (not link.same_graph or not set(effect.graph_ids).isdisjoint(cause.graph_ids))
        and (cause.gain_ns or 0) + cause.splitting_ns >= link.share * (effect.gain_ns or 0)
    )


def _is_alike(one: Problem, other: Problem) -> bool:
    """Tell whether one change mends both: two findings of one rule that say the same to do, with nothing of their own in it."""
    is_finding = one.index is not None and other.index is not None
    return is_finding and other.severity != "error" and all(getattr(one, name) == getattr(other, name) for name in _ALIKE)


_ALIKE = ("rule", "mitigation", "severity")
