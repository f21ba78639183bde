"""What a rule is: a name, the words that explain it, and a pure function of a capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.trace.records import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortlens.trace.records import Capture, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule."""

    name: str  # as in the column `rule`
    looks_for: str  # what it looks for, in one sentence
    fires: str  # from where on it reports, and why from there
    hazard: str  # why it matters
    probed: str  # what `lens.probe()` measures about it; empty when its gain is estimated or unknown
    check: Callable[[Capture], Iterator[Finding]]  # yields what it finds in a capture; pure

    def finding(  # noqa: PLR0913 - the fields of the record, but for those that the rule knows
        self,
        *,
        subject: str | None,
        title: str,
        evidence: str,
        mitigation: str,
        todo: str = "",
        settings: tuple[str, ...] = (),
        severity: Severity = "warning",
        file: str | None = None,
        line: int | None = None,
        gain_ns: int | None = None,
        measured: bool = False,
        at_most: bool = False,
    ) -> Finding:
        """Make a finding of this rule."""
        return Finding(
            rule=self.name,
            subject=subject,
            severity=severity,
            title=title,
            file=file,
            line=line,
            evidence=evidence,
            hazard=self.hazard,
            mitigation=mitigation,
            todo=todo,
            settings=settings,
            gain_ns=gain_ns,
            measured=measured,
            at_most=at_most,
        )


def rule(
    *, name: str, looks_for: str, fires: str, hazard: str, probed: str = ""
) -> Callable[[Callable[[Capture], Iterator[Finding]]], Rule]:
    """Decorate a function of a capture to make it a `Rule` with these fields."""

    def made(check: Callable[[Capture], Iterator[Finding]]) -> Rule:
        return Rule(name=name, looks_for=looks_for, fires=fires, hazard=hazard, probed=probed, check=check)

    return made
