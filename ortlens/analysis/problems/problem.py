"""A problem, the rules that find problems, and what follows from what: pure functions of a capture."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ortlens.trace.records import Finding, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ortlens.analysis.problems.catalogue import Advice
    from ortlens.trace.records import Capture, GainConfidence, Kind, ReasonCode, Severity


FIELDS = tuple(field.name for field in fields(Finding))
"""Of a row of `lens.findings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(Finding):
    """One thing that costs time, memory or correctness, and what to do about it: a row of `lens.findings` with all that views need.

    Of a graph break, an operator in PyTorch and a recompile, `rule` is its kind, `title` its reason, the operator or the guard that failed,
    `hazard` why, and `cost_ns` what it takes per call; `gain_ns` is what a change was seen to save.
    """

    kind: Kind = "rule"
    index: int | None = None  # row in `lens.findings`; None where it has none
    records: tuple[str, ...] = ()  # ids of the breaks or recompiles behind it
    graph_ids: tuple[str, ...] = ()  # current graphs that it is in
    traits: frozenset[str] = frozenset()  # what decides whether it causes, or follows from, another: see `LINKS`
    module: str | None = None  # nn.Module that it is in, for an operator
    reason_code: ReasonCode | None = None  # why it stays in PyTorch, for an operator
    count: int = 1  # nodes, graph boundaries or recompiles behind it
    other_lines: int = 0  # that need the same change, for breaks and operators; `line` is the costliest of all
    cost_ns: int | None = None  # what a break costs per call, or an operator takes in PyTorch; None where not measured, and for findings
    per: Literal["call", "run"] = "call"  # what its times are per, see `ledger.time_base`
    is_busy: bool = False  # whether other work ran beside the calls, so that its time is less certain
    own_code_ns: int = 0  # besides, what the program itself does there between graphs, which stays when the break goes
    splitting_ns: int = 0  # besides, about what entering ONNX Runtime again behind an operator costs
    recompile_ns: int = 0  # what compiling again took in all
    advice: Advice | None = None  # what to change; None where nothing is known, and for most findings
    tried: bool = False  # whether the change was made, and helped or was timed
    source: str | None = None  # the user's line
    patch: str | None = None  # the line as it would be; empty text to delete it, None where no rule can write it
    consequences: tuple[Problem, ...] = ()  # what has the same cause: it follows from this, or is alike

    def record(self) -> Finding:
        """Return what is a row of `lens.findings` alone."""
        return Finding(**same(self, *FIELDS))

    @property
    def confidence(self) -> GainConfidence:
        """How the price or gain is known."""
        if self.price_ns is None and not self.recompile_ns:  # a measured 0 is a figure
            return "unknown"
        return "measured" if self.measured else "estimated"

    @property
    def first_step(self) -> str:
        """What to do first, as a clause; empty where nothing is known, or only PyTorch's hint."""
        return self.todo or ("" if self.index is None else self.mitigation.rstrip("."))

    @property
    def price_ns(self) -> int | None:
        """What is named first: what a change saves where that is known, else what it costs."""
        return self.cost_ns if self.gain_ns is None else self.gain_ns

    @property
    def weight_ns(self) -> int:
        """What a change saves, else all that may go per call."""
        return (self.cost_ns or 0) + self.own_code_ns + self.splitting_ns if self.gain_ns is None else self.gain_ns


class Placed(Protocol):
    """What may have a user line, such as most records."""

    @property
    def file(self) -> str | None:
        """Its file."""

    @property
    def line(self) -> int | None:
        """Its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRule:
    """One rule."""

    name: str  # as in the column `rule`
    looks_for: str  # what it looks for, in one sentence
    fires: str  # from where on it reports, and why from there
    hazard: str  # why it matters
    check: Callable[[Capture], Iterator[Problem]]  # yields what it finds in a capture; pure
    kind: Kind = "rule"

    def problem(self, *at: Placed | None, severity: Severity = "warning", **known: Any) -> Problem:  # noqa: ANN401 - fields of a problem
        """Make a problem of this rule, at the first of some things that has a user line."""
        place = next((item for item in at if item is not None and item.file), at[-1] if at else None)
        where = {} if place is None else {"file": place.file, "line": place.line}
        return Problem(**{"kind": self.kind, "rule": self.name, "hazard": self.hazard, "severity": severity, **where, **known})


def rule(**about: Any) -> Callable[[Callable[[Capture], Iterator[Problem]]], ProblemRule]:  # noqa: ANN401 - fields of a rule
    """Decorate a function of a capture to make it a `ProblemRule` with these fields."""
    return lambda check: ProblemRule(check=check, **about)


@dataclass(frozen=True, slots=True)
class Consequence:
    """A problem may follow from another. Each is named by its rule, or `break`, `fallback`, `nothing_runs`."""

    effect: str
    cause: str
    effect_if: str = ""  # a trait that the effect must have
    cause_if: str = ""  # one that the cause must have
    unless: str = ""  # one that the cause must not have
    same_graph: bool = False  # whether both must be in one graph
    same_line: bool = False  # whether both must be at one line of the program
    share: float = 0.0  # least part of what the effect costs that the cause does


LINKS: tuple[Consequence, ...] = (
    Consequence("slower_than_torch", "fallback", same_graph=True, share=0.5, unless="stays"),  # of less, other things make it slower
    Consequence("fallback", "float64_nodes", effect_if="float64 refused", same_graph=True),
    Consequence("nothing_runs", "float64_nodes", effect_if="float64", same_graph=True),
    Consequence("fallback", "slower_than_torch", effect_if="stays", same_graph=True),
    Consequence("nothing_runs", "slower_than_torch", effect_if="stays", same_graph=True),
    Consequence("heavy_guards", "break", cause_if="guarded"),  # the price of each break has them
    Consequence("heavy_guards", "costly_guards"),
    Consequence("recompile", "break", effect_if="library_alone", same_line=True),  # the break is what a library's code is compiled for
    *(Consequence(name, "break", cause_if="behind", same_line=True) for name in ("float64_nodes", "fallback", "slower_than_torch")),
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
    for place in sorted(causes, key=lambda place: -(problems[place].price_ns or 0)):
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
    ranked = sorted(range(len(problems)), key=lambda at: -(problems[at].price_ns or 0))
    for link in LINKS:
        if link.effect == effect.rule:
            yield from (at for at in ranked if link.cause == problems[at].rule and _holds(link, effect, problems[at]))
    yield from (at for at in range(place) if _is_alike(effect, problems[at]))


def _holds(link: Consequence, effect: Problem, cause: Problem) -> bool:
    return (
        effect.traits.issuperset(link.effect_if.split())
        and cause.traits.issuperset(link.cause_if.split())
        and (not link.unless or link.unless not in cause.traits)
        and (not link.same_line or (effect.line is not None and (effect.file, effect.line) == (cause.file, cause.line)))
        and (not link.same_graph or not set(effect.graph_ids).isdisjoint(cause.graph_ids))
        and (cause.price_ns or 0) + cause.splitting_ns >= link.share * (effect.price_ns or 0)
    )


def _is_alike(one: Problem, other: Problem) -> bool:
    """Tell whether one change mends both: two findings of one rule that say the same to do, with nothing of their own in it."""
    is_finding = one.index is not None and other.index is not None
    return is_finding and other.severity != "error" and all(getattr(one, name) == getattr(other, name) for name in _ALIKE)


_ALIKE = ("rule", "mitigation", "severity")
