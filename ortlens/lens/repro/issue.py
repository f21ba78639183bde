"""The issue text of a reproduction: versions, command, expected and actual result, ready to paste."""

from __future__ import annotations

import platform
import re
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from ortlens._versions import version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.lens.repro.case import Case

Outcome: TypeAlias = list[dict[str, Any]] | str
"""A row per compared output, or a text that says why there are none."""


def versions() -> dict[str, str]:
    """Return the versions that the result depends on, by name."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for package in ("torch", "onnxruntime", "onnx", "onnxscript"):
        # The module's own version includes the build, such as `2.13.0+cpu`.
        known = getattr(sys.modules.get(package), "__version__", None) or version_of(package)
        if known is not None:
            found[package] = known
    return found


def without_paths(text: str) -> str:
    """Remove folders and colours from a text, such as the message of an exception; bare file names stay."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.sub(r"(?:[A-Za-z]:)?(?:[/\\][\w.@~+-]+)+[/\\](?=[\w.@~+-])", "", text)


def issue_of(cases: Sequence[Case], outcomes: Sequence[Outcome], *, source: bool) -> str:
    """Write an issue in Markdown."""
    lines = [f"# {cases[0].facts['title']}" + (f", and {len(cases) - 1} more" if len(cases) > 1 else ""), "", "## Versions", ""]
    lines += [f"- {name} {version}" for name, version in versions().items()]
    lines += ["", "## To reproduce", "", "With the attached folder:", "", "```", "python repro.py", "```", ""]
    lines += ["`bench_repro.py` times both sides; nothing was timed for this text.", ""]
    for case, outcome in zip(cases, outcomes, strict=True):
        lines += _case_lines(case, outcome)
    lines += ["## What the folder holds", "", *_contents(cases, source=source), ""]
    return "\n".join(lines)


def _case_lines(case: Case, outcome: Outcome) -> list[str]:
    reason = case.subject.reason
    expected = "ONNX Runtime gives what PyTorch gives." if case.model is not None else "`torch.onnx.export` converts the operator."
    lines = [
        f"## {case.subject.name}",
        "",
        f"Expected: {expected}",
        "",
        f"Actual, on the inputs that `repro.py` makes: {_said(case, outcome)}",
        "",
    ]
    if reason is not None:
        lines += [f"It stays in PyTorch ({reason[0]}): {without_paths(reason[1])}", ""]
    if not isinstance(outcome, str) and outcome:
        lines += ["| output | max abs | max rel | allowed rel | |", "|---|---|---|---|---|"]
        verdicts = ["ok" if row["ok"] else "**differs**" if row["same_kind"] else "**NaN or infinity on one side**" for row in outcome]
        lines += [
            f"| {row['output']} | {row['max_abs']:.3g} | {row['max_rel']:.3g} | {row['rtol']:.3g} | {verdict} |"
            for row, verdict in zip(outcome, verdicts, strict=True)
        ]
        lines.append("")
    return [*lines, "Operators: " + ", ".join(f"`{name}` {count}" for name, count in case.ops.items()), ""]


def _said(case: Case, outcome: Outcome) -> str:
    if isinstance(outcome, str):
        return outcome
    if case.model is None:
        return "it does."
    wrong = sum(not row["ok"] for row in outcome)
    return f"{wrong} of {len(outcome)} outputs differ." if wrong else "it does, within the tolerance."


def _contents(cases: Sequence[Case], *, source: bool) -> list[str]:
    items = [item for case in cases for item in case.facts["inputs"]]
    kept = {name for case in cases for name in case.values}
    drawn = [item for item in items if "source" in item and item["name"] not in kept]
    standard = [item["name"] for item in drawn if item["source"] == "standard"]
    made = [item["name"] for item in drawn if item["source"] == "recorded"]
    lines = []
    if made:
        lines.append(f"- Random values with recorded statistics (range, mean, spread, shares of NaN and infinity): {', '.join(made)}")
    if standard:
        lines.append(f"- Random values of standard statistics, since no values were seen: {', '.join(standard)}")
    if kept:
        lines.append(f"- Values as they were: {', '.join(sorted(kept))}")
    elsewhere = {name for case in cases for name in case.facts["ran_on"]} - {"CPUExecutionProvider"}
    if elsewhere:
        lines.append(
            f"- The folder runs on the CPU; the model ran on {', '.join(sorted(elsewhere))}, so the figures above are not from there"
        )
    lines.append(f"- The operators as PyTorch runs them, {'with' if source else 'without'} the lines they come from")
    return lines
