"""The page of all findings, made from the rules themselves."""

from __future__ import annotations

import sys

from ortlens.analysis.findings.registry import RECORDED, RULES

_PREFACE = """\
# Findings

What ortlens reports about a model is in one table, `lens.findings`; the summary shows the three most expensive. Each has a hazard
(why it matters), evidence (the recorded facts) and a mitigation (what to change). `gain_ns` is what the mitigation saves per call:
with `measured` it was measured on this machine by `lens.probe(*args)`, which really runs the alternative and compares medians of
interleaved calls; otherwise it is an estimate, and the evidence says how it was made. The column is empty where nothing is known.
No gain is more than the part of a call that it is about, nor are all together more than a call: what exceeds that is cut, and `at_most`
says so.

Rules are functions of what was recorded. They are evaluated on every access, also for a saved capture; a finding recorded by a
probe replaces the rule's own. A rule that fails becomes a finding itself (`rule_failed`).

This page is generated from the code: `python -m ortlens.analysis.findings.catalogue > docs/findings.md`.

## Rules
"""

_RECORDED = """\
## Recorded as it happens

These come from the backend, the lens and its probes, and are saved with a capture.

| name | what happened |
|---|---|"""


def markdown() -> str:
    """Write the page: a heading per rule, and a row per finding that is recorded as it happens."""
    rules = [_section(rule.name, rule.looks_for, rule.fires, rule.hazard, rule.probed) for rule in RULES]
    rows = [f"| `{name}` | {meaning} |" for name, meaning in RECORDED.items()]
    return "\n".join([_PREFACE, *rules, _RECORDED, *rows, ""])


def _section(name: str, looks_for: str, fires: str, hazard: str, probed: str) -> str:
    parts = [f"### `{name}`", "", looks_for, "", f"- **Fires** {fires[0].lower()}{fires[1:]}", f"- **Hazard** {hazard}"]
    if probed:
        parts.append(f"- **Probe** {probed}")
    return "\n".join([*parts, ""])


if __name__ == "__main__":
    sys.stdout.write(markdown())
