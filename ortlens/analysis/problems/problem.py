"""A problem, and the rules that find problems: pure functions of a capture."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from ortlens.trace.records import Finding, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortlens.analysis.problems.catalogue import Advice
    from ortlens.trace.records import Capture, ReasonCode, Severity

Kind: TypeAlias = Literal["finding", "for_training", "slower", "nothing_runs", "break", "fallback", "recompile", "rule"]
GainConfidence: TypeAlias = Literal["measured", "estimated", "unknown"]
FIELDS = tuple(field.name for field in fields(Finding))
"""Of a row of `lens.findings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(Finding):
    """One thing that costs time, memory or correctness, and what to do about it: a row of `lens.findings` with all that views need.

    Of a graph break, an operator in PyTorch and a recompile, `rule` is its kind, `title` its reason, the operator or the guard that failed,
    `hazard` why, and `gain_ns` what it costs per call.
    """

    kind: Kind = "rule"
    index: int | None = None  # row in `lens.findings`; None where it has none
    records: tuple[str, ...] = ()  # ids of the breaks or recompiles behind it
    graph_ids: tuple[str, ...] = ()  # current graphs that it is in
    traits: frozenset[str] = frozenset()  # what decides whether it causes, or follows from, another: see `consequences`
    module: str | None = None  # nn.Module that it is in, for an operator
    reason_code: ReasonCode | None = None  # why it stays in PyTorch, for an operator
    count: int = 1  # nodes, graph boundaries or recompiles behind it
    other_lines: int = 0  # that need the same change, for breaks and operators; `line` is the costliest of all
    is_saving: bool = False  # whether `gain_ns` is what the change of a break saves, else what the break costs
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
        if self.gain_ns is None and not self.recompile_ns:  # a measured 0 is a figure
            return "unknown"
        return "measured" if self.measured else "estimated"

    @property
    def first_step(self) -> str:
        """What to do first, as a clause; empty where nothing is known, or only PyTorch's hint."""
        return self.todo or ("" if self.index is None else self.mitigation.rstrip("."))

    @property
    def cost_ns(self) -> int:
        """All that it takes per call."""
        return (self.gain_ns or 0) + self.own_code_ns + self.splitting_ns


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
    probed: str  # what `lens.probe()` measures about it; empty when its gain is estimated or unknown
    kind: Kind
    check: Callable[[Capture], Iterator[Problem]]  # yields what it finds in a capture; pure

    def problem(self, *at: Placed | None, severity: Severity = "warning", **known: Any) -> Problem:  # noqa: ANN401 - fields of a problem
        """Make a problem of this rule, at the first of some things that has a user line."""
        place = next((item for item in at if item is not None and item.file), at[-1] if at else None)
        where = {} if place is None else {"file": place.file, "line": place.line}
        return Problem(**{"kind": self.kind, "rule": self.name, "hazard": self.hazard, "severity": severity, **where, **known})


def rule(  # noqa: PLR0913 - the fields of a rule
    *, name: str, looks_for: str, fires: str, hazard: str, probed: str = "", kind: Kind = "rule"
) -> Callable[[Callable[[Capture], Iterator[Problem]]], ProblemRule]:
    """Decorate a function of a capture to make it a `Rule` with these fields."""
    return lambda check: ProblemRule(name=name, looks_for=looks_for, fires=fires, hazard=hazard, probed=probed, kind=kind, check=check)
