"""Remarks as SARIF, which GitHub's code scanning and editors read.

Source: "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", OASIS, and "SARIF support for code scanning" of GitHub, which
takes no result without a location and follows one by `primaryLocationLineHash`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ortlens.analysis.problems.stream import RECORDED, RULES
from ortlens.views.remarks import NO_PLACE_WORDS
from ortlens.views.wording import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.trace.records import Capture
    from ortlens.views.remarks import Checkout, Remark

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"

_ABOUT: Mapping[str, tuple[str, str]] = {
    "slow_line": (
        "This line takes much of a call in ONNX Runtime.",
        "What it computes is where less work, another data type or another algorithm saves most.",
    ),
    "limit": ("A limit of `ortlens check` does not hold.", "The model became worse than it was agreed to be, or nobody measured it."),
}
"""What is at the line, and why it matters, of the remarks that are no problems."""
_WRONG = ("call_differs", "numbers_differ", "loses_accuracy", "fusion_changes_numbers", "nonfinite_origin")


def sarif_log(remarks: Sequence[Remark], capture: Capture, checkout: Checkout, version: str) -> dict[str, Any]:
    """Make a log with one run: a result per remark that has a place, and a notification per remark that has none."""
    placed = [item for item in remarks if item.file is not None]
    rules = list(dict.fromkeys(item.rule for item in remarks))
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "ortlens", "version": version, "rules": [_rule(rule) for rule in rules]}},
                "automationDetails": {"id": f"ortlens/{visible(capture.name) or 'capture'}/"},
                "originalUriBaseIds": {_ROOT: {"uri": f"{checkout.root.resolve().as_uri()}/"}},
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {"executionSuccessful": True, "toolExecutionNotifications": [_notification(item) for item in remarks if item.no_place]}
                ],
                "results": [_result(item, rules, print_) for item, print_ in zip(placed, _fingerprints(placed), strict=True)],
            }
        ],
    }


def _rule(rule: str) -> dict[str, Any]:
    known = {item.name: (item.looks_for, item.hazard) for item in RULES.values()} | {name: (text, "") for name, text in RECORDED.items()}
    short, why = _ABOUT.get(rule) or known.get(rule, (rule, ""))
    return {
        "id": rule,
        "name": rule.title().replace("_", ""),
        "shortDescription": {"text": short},
        "fullDescription": {"text": f"{short} {why}".rstrip()},
        "help": {"text": f"{why or short} Each result says what to change; `ortlens show` and the report have the whole picture."},
        "defaultConfiguration": {"level": "error" if rule in ("limit", *_WRONG) else "note" if rule == "slow_line" else "warning"},
        "properties": {"tags": ["correctness" if rule in _WRONG else "performance"]},
    }


def _fingerprints(remarks: Sequence[Remark]) -> list[str]:
    """Identify results by rule and the text of their line, not by its number, which changes with every line above."""
    seen: Counter[str] = Counter()
    found = []
    for item in remarks:
        digest = hashlib.sha256(f"{item.rule}\n{item.source}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
        seen[f"{item.file} {digest}"] += 1
        found.append(f"{digest}:{seen[f'{item.file} {digest}']}")
    return found


def _result(item: Remark, rules: Sequence[str], fingerprint: str) -> dict[str, Any]:
    location = {"artifactLocation": {"uri": quote(item.file or ""), "uriBaseId": _ROOT}, "region": {"startLine": item.line}}
    return {
        "ruleId": item.rule,
        "ruleIndex": rules.index(item.rule),
        "level": item.level,
        "message": {"text": item.text},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
        **({} if item.gain_ns is None else {"properties": {"gain_ns": item.gain_ns}}),
    }


def _notification(item: Remark) -> dict[str, Any]:
    why = NO_PLACE_WORDS[item.no_place] if item.no_place else ""
    return {
        "level": item.level,
        "message": {"text": f"{item.recorded}: {item.text} There is no result, since {why}."},
        "associatedRule": {"id": item.rule},
    }
