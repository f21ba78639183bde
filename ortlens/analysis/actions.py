"""Everything that can be done about a capture, as one list: breaks, operators in PyTorch, recompiles and findings, by what they bring."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.first_look import ranked_looks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ortlens.analysis.first_look import Look
    from ortlens.analysis.overview import FallbackGroup, Overview
    from ortlens.trace.records import Break, Capture, Fallback, Finding, Node

GainConfidence: TypeAlias = Literal["measured", "estimated", "unknown"]

OPTIONS = ("min_partition_nodes", "on_slow", "preallocate_output", "cache_dir", "upcast", "freeze_weights", "prepack_weights", "on_error")
"""Options of the backend that findings name; a test holds them against the backend's own."""

MAX_ACTIONS = 100

_SETTING = re.compile(r"`(torch\._(?:dynamo|functorch|inductor)\.config\.\w+ = \w+)`")
_LISTED = re.compile(r"add `(?P<what>[\w.]+)` to `(?P<where>torch\._dynamo\.config\.\w+)`")
_OPTION = re.compile(rf"(?<![\w{{\"])({'|'.join(OPTIONS)})=(\"[^\"]*\"|\w+)")
_SPELLED = re.compile(r"options=(\{[^{}]*\})")
_BRANCH = re.compile(r"^(?:el)?if (?P<condition>.+):$")
_CHOICE = re.compile(r"^(?P<head>return |\w+ = )(?P<yes>.+) if (?P<condition>.+) else (?P<no>.+)$")
_WORDED = re.compile(r"\b(?:and|or|not|is|in)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing to do.

    Attributes:
        look: What it is about, with its price or gain.
        source: The user's line; None where it is not known.
        why: The reason of the break, why an operator stays in PyTorch, the guard that failed, or the hazard of the finding.
        do: What to change, in words; empty where nothing is known.
        confidence: How the price or gain is known.
        after: The line as it would be; empty text to delete it; None where no rule can write it.
        paste: Lines that make the change as a setting: an option of the backend, or a setting of PyTorch.
    """

    look: Look
    source: str | None
    why: str
    do: str
    confidence: GainConfidence
    after: str | None
    paste: tuple[str, ...]


def actions_of(capture: Capture, overview: Overview) -> tuple[Action, ...]:
    """List what can be done, the most useful first, at most `MAX_ACTIONS`; what one change mends is one action."""
    found = _Found(capture, overview)
    return tuple(found.action(look) for look in ranked_looks(overview)[:MAX_ACTIONS])


class _Found:
    """The records behind looks."""

    def __init__(self, capture: Capture, overview: Overview) -> None:
        self._sources: dict[tuple[str | None, int | None], str] = {}
        placed: tuple[Node | Fallback | Break, ...] = (*capture.nodes, *capture.fallbacks, *capture.breaks)
        for item in placed:
            if item.source and item.file:
                self._sources.setdefault((item.file, item.line), item.source)
        self._breaks: Mapping[tuple[object, ...], Break] = {(item.reason, item.file, item.line): item for item in reversed(overview.breaks)}
        self._groups: Mapping[tuple[object, ...], FallbackGroup] = {
            (group.target, group.file, group.line): group for group in reversed(overview.fallbacks)
        }
        self._findings: Mapping[tuple[object, ...], Finding] = {
            (item.title, item.file, item.line): item for item in reversed(overview.findings)
        }

    def action(self, look: Look) -> Action:
        key = (look.what, look.file, look.line)
        item, finding, group = self._breaks.get(key), self._findings.get(key), self._groups.get(key)
        source = item.source if item is not None and look.subject == "break" else self._sources.get((look.file, look.line))
        do = look.advice or ""
        if look.subject in ("finding", "for_training", "slower", "rule") and finding is not None:
            do = finding.mitigation
        elif look.subject == "break" and item is not None and not do:
            do = (item.hints or ("",))[0]
        why = group.reason if group is not None and look.subject in ("fallback", "nothing_runs") else look.what
        if finding is not None and look.subject in ("finding", "for_training", "slower", "rule"):
            why = finding.hazard or look.what  # the title is there already
        return Action(
            look=look,
            source=source.strip() if source else None,
            why=why,
            do=do,
            confidence=_confidence(look),
            after=line_after(source or "", do) if look.subject in ("break", "finding") else None,
            paste=tuple(dict.fromkeys(settings_in(do))),
        )


def _confidence(look: Look) -> GainConfidence:
    if look.ns_per_call is None and not look.recompile_ns:  # a measured 0 is a figure
        return "unknown"
    return "measured" if look.is_measured else "estimated"


def settings_in(advice: str) -> Iterator[str]:
    """Yield lines of Python for the settings that advice names, such as `torch._dynamo.config.capture_scalar_outputs = True`."""
    yield from (found[1] for found in _SETTING.finditer(advice))
    yield from (f"{found['where']}.add({found['what']})" for found in _LISTED.finditer(advice))
    options = [found[1] for found in _SPELLED.finditer(advice)]
    options += [f'{{"{found[1]}": {found[2]}}}' for found in _OPTION.finditer(advice)]
    yield from (f'model = torch.compile(model, backend="ortlens", options={option})' for option in options)


def line_after(source: str, advice: str) -> str | None:
    """Rewrite the user's line as advised, with names that say what to fill in; empty to delete it, None where no rule fits."""
    line = source.strip()
    if line == "torch._dynamo.graph_break()":
        return ""
    if "without `.item()`" in advice and line.count(".item()") == 1:
        return line.replace(".item()", "")
    if "torch.where" not in advice or "condition" in advice:
        return None
    branch, choice = _BRANCH.match(line), _CHOICE.match(line)
    condition = (branch or choice or {"condition": "and"})["condition"]
    if _WORDED.search(condition):  # Python's words for one truth do not work on a tensor of them
        return None
    if branch:
        return f"result = torch.where({condition}, result_if_true, result_if_false)"
    return f"{choice['head']}torch.where({condition}, {choice['yes']}, {choice['no']})" if choice else None
