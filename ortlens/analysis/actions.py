"""Everything that can be done about a capture, as one list: breaks, operators in PyTorch, recompiles and findings, by what they bring."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.first_look import Subject, ranked_looks
from ortlens.trace.records import column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ortlens.analysis.first_look import Look
    from ortlens.analysis.overview import Overview
    from ortlens.trace.records import Break, Capture, Fallback, Node

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What to do about one cause, as a row of `lens.actions`."""

    rank: int = column("Place in the order of usefulness, from 1.")
    kind: Subject = column(  # noqa: RUF009 - field() in disguise
        "What it is about: a `break`, a `fallback` (`nothing_runs` where no operator runs in ONNX Runtime), a `recompile`; a `finding` of "
        "the lens itself, graphs compiled `for_training`, what is `slower` than PyTorch, or what another `rule` reports."
    )
    subject: str = column("The reason of the break, the operator, the guard that failed, or the title of the finding.")
    subject_id: str | None = column("What to select for it: `lens.show(selected=...)`.", default=None)
    file: str | None = column("File of the user line; of several lines, the costliest.", default=None)
    line: int | None = column("Number of the user line.", default=None)
    do: str = column("What to change.")
    gain_ns: int | None = column(
        "Time per call that it costs now: what a break or a finding takes away, and what an operator takes in PyTorch.",
        unit="ns",
        default=None,
    )
    confidence: GainConfidence = column(  # noqa: RUF009 - likewise
        "How that is known: `measured`, `estimated`, or `unknown`."
    )
    tried: bool = column("Whether `lens.probe()` made the change and timed it.", default=False)
    settings: tuple[str, ...] = column("Lines of Python that make the change as a setting, one per item.", default=())
    patch: str | None = column("The line as it would be; empty text deletes it, and a missing value says that no rule can write it.")


def actions_of(capture: Capture, overview: Overview) -> tuple[Action, ...]:
    """List what can be done, the most useful first, at most `MAX_ACTIONS`; what one change mends is one action."""
    sources = _sources(capture)
    return tuple(_action(look, overview, sources) for look in ranked_looks(overview)[:MAX_ACTIONS])


def _action(look: Look, overview: Overview, sources: Mapping[tuple[str | None, int | None], str]) -> Action:
    source, do, why = sources.get((look.file, look.line)), look.advice or "", look.what
    if look.subject == "break":
        item = overview.breaks[look.index]
        source, do = item.source, do or (item.hints or ("",))[0]
    elif look.subject in ("fallback", "nothing_runs"):
        why = overview.fallbacks[look.index].reason
    elif look.subject != "recompile":
        finding = overview.findings[look.index]
        do, why = finding.mitigation, finding.hazard or look.what  # the title is there already
    return Action(
        look=look,
        source=source.strip() if source else None,
        why=why,
        do=do,
        confidence=_confidence(look),
        after=line_after(source or "", do) if look.subject in ("break", "finding") else None,
        paste=tuple(dict.fromkeys(settings_in(do))),
    )


def _sources(capture: Capture) -> dict[tuple[str | None, int | None], str]:
    placed: tuple[Node | Fallback | Break, ...] = (*capture.nodes, *capture.fallbacks, *capture.breaks)
    return {(item.file, item.line): item.source for item in reversed(placed) if item.source and item.file}


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
