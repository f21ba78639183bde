"""What a rule is: a name, the words that explain it, and a pure function of a capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ortlens.trace.records import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortlens.trace.records import Capture, Severity


class Placed(Protocol):
    """What may have a user line, such as most records."""

    @property
    def file(self) -> str | None:
        """Its file."""

    @property
    def line(self) -> int | None:
        """Its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule."""

    name: str  # as in the column `rule`
    looks_for: str  # what it looks for, in one sentence
    fires: str  # from where on it reports, and why from there
    hazard: str  # why it matters
    probed: str  # what `lens.probe()` measures about it; empty when its gain is estimated or unknown
    check: Callable[[Capture], Iterator[Finding]]  # yields what it finds in a capture; pure

    def finding(self, *at: Placed | None, severity: Severity = "warning", **known: Any) -> Finding:  # noqa: ANN401 - fields of the record
        """Make a finding of this rule, at the first of some things that has a user line."""
        place = next((item for item in at if item is not None and item.file), at[-1] if at else None)
        where = {} if place is None else {"file": place.file, "line": place.line}
        return Finding(rule=self.name, hazard=self.hazard, severity=severity, **where | known)


def rule(
    *, name: str, looks_for: str, fires: str, hazard: str, probed: str = ""
) -> Callable[[Callable[[Capture], Iterator[Finding]]], Rule]:
    """Decorate a function of a capture to make it a `Rule` with these fields."""
    return lambda check: Rule(name=name, looks_for=looks_for, fires=fires, hazard=hazard, probed=probed, check=check)
