"""The list of actions: as rows of `lens.actions`, and as the explorer and the report show it, with the text of an issue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.analysis.problems.stream import finding_records, problems_of
from ortlens.trace.records import ActionRow, same
from ortlens.units import time_from_ns
from ortlens.views.sentences import consequence_sentences, problem_place, problem_sentence
from ortlens.views.time_sentences import NO_MORE, amount_words, besides
from ortlens.views.wording import REASON_WORDS, clipped, guard, visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.analysis.problems.problem import Problem
    from ortlens.trace.records import Capture, Kind

KIND_WORDS: Mapping[Kind, str] = {
    "finding": "reported",
    "for_training": "compiled for training",
    "slower": "slower than PyTorch",
    "nothing_runs": "nothing runs in ONNX Runtime",
    "break": "graph break",
    "fallback": "stays in PyTorch",
    "recompile": "recompile",
    "rule": "finding",
}
_FACTS = ("version_ortlens", "version_torch", "version_onnxruntime", "python", "platform")


def action_facts(capture: Capture) -> list[dict[str, Any]]:
    """Describe the actions of a capture as plain JSON data, the most useful one first."""
    return [facts_of_action(item, capture) for item in problems_of(capture)]


def action_rows(capture: Capture) -> list[ActionRow]:
    """List the actions of a capture as rows of a table, the most useful first."""
    return [
        ActionRow(
            rank=rank,
            subject=guard(item.title) if item.kind == "recompile" else item.title,
            subject_id=problem_id(item, capture),
            do=_do(item),
            consequences=tuple(each.title for each in item.consequences),
            **same(item, "kind", "file", "line", "gain_ns", "cost_ns", "confidence", "tried", "settings", "patch"),
        )
        for rank, item in enumerate(problems_of(capture), start=1)
    ]


def records_of(capture: Capture, table: str) -> Sequence[Any]:
    """Return the records of a table that is shown; of `findings`, also what the rules find."""
    records: Sequence[Any]
    records = finding_records(capture) if table == "findings" else action_rows(capture) if table == "actions" else getattr(capture, table)
    return records


def facts_of_action(item: Problem, capture: Capture) -> dict[str, Any]:
    """Describe one action as plain JSON data."""
    facts = {
        "kind": KIND_WORDS[item.kind],
        "subject": item.kind,
        "title": visible(item.source or item.title),
        "is_code": item.source is not None,
        "where": problem_place(item),
        "gain": gain_text(item),
        **same(item, "count", "gain_ns", "cost_ns"),
        "sure": item.confidence,
        "confidence": item.confidence + (" on a busy machine" if item.is_busy and item.confidence != "unknown" else ""),
        "why": _why(item),
        "do": _do(item),
        "before": visible(item.source) if item.source and item.patch is not None else None,
        "after": None if item.patch is None else visible(item.patch),
        "paste": list(item.settings),
        "id": problem_id(item, capture),
        "sentence": problem_sentence(item),
        "consequences": consequence_sentences(item),
    }
    return facts | {"issue": _issue(facts, capture)}


def gain_text(item: Problem) -> str:
    """Say what it costs, or what changing it saves: `saves about 1.20 ms per call`, `no time measured`, `gain unknown`.

    A break `costs`, since its time goes with it; an operator `takes` time in PyTorch, which is no gain.
    """
    if item.recompile_ns:
        return f"took {time_from_ns(item.recompile_ns)} so far"
    if item.gain_ns is not None:
        return f"saves {amount_words(item)} per {item.per}" if item.gain_ns else f"saves {NO_MORE if item.at_most else 'no time'}"
    if not item.cost_ns:
        return "gain unknown" if item.cost_ns is None else f"no time measured{besides(0, item.own_code_ns)}"
    amount = f"{time_from_ns(item.cost_ns)} per {item.per}"  # a change brings the difference to what it takes then
    return f"takes {amount} in PyTorch" if item.kind == "fallback" else f"costs {amount}{besides(item.cost_ns, item.own_code_ns)}"


def _why(item: Problem) -> str:
    if item.kind == "recompile":
        return f"guard failed: {guard(item.title)}"
    return visible(item.hazard or item.title) or (REASON_WORDS[item.reason_code] if item.reason_code is not None else "")


def _do(item: Problem) -> str:
    if item.kind == "recompile" and not item.mitigation:
        return f"Keep what `{guard(item.title)}` checks the same from call to call"
    return visible(item.mitigation) or "Rewrite the line as the reason suggests"


def _issue(facts: Mapping[str, Any], capture: Capture) -> str:
    """Write a text for an issue tracker, in Markdown."""
    known = capture.environment
    versions = ", ".join(f"{name.removeprefix('version_')} {visible(known[name])}" for name in _FACTS if known.get(name))
    parts = [f"### {facts['kind']}: {clipped(facts['title'], 100)}", ""]
    parts += [f"`{facts['where']}`", ""] if facts["where"] else []
    parts += ["```python", facts["title"], "```", ""] if facts["is_code"] else []
    parts += [f"- Why: {facts['why']}", f"- Per call: {facts['gain']} ({facts['confidence']})", f"- To do: {facts['do']}"]
    if facts["after"]:
        parts += ["", "```diff", f"- {facts['before']}", f"+ {facts['after']}", "```"]
    parts += ["", "```python", *facts["paste"], "```"] if facts["paste"] else []
    parts += ["", f"Recorded by ortlens{f' with {versions}' if versions else ''}; model: {visible(capture.name) or 'unnamed'}."]
    return "\n".join(parts)


def problem_id(item: Problem, capture: Capture) -> str | None:
    """Find the id that the explorer selects for a problem; None where nothing stands for it."""
    if item.index is not None:
        return f"finding:{item.index}"
    if item.kind in ("break", "recompile"):
        return f"{item.kind}:{item.subject}"
    if item.file:
        return f"line:{item.file}:{item.line}"
    return next((f"node:{row.graph_id}/{row.node}" for row in capture.fallbacks if row.target == item.title), None)
