"""The list of actions as the explorer and the report show it: words, and the text of an issue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.analysis.findings.registry import PROBED
from ortlens.analysis.overview import overview_of
from ortlens.analysis.recommendations import ActionRow, recommendations_of
from ortlens.trace.records import same
from ortlens.units import time_from_ns
from ortlens.views.sentences import consequence_sentences, look_place, look_sentence
from ortlens.views.time_sentences import NO_MORE, amount_words, besides
from ortlens.views.wording import REASON_WORDS, clipped, guard, visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortlens.analysis.overview import Overview
    from ortlens.analysis.recommendations import Recommendation, Subject
    from ortlens.trace.records import Capture

KIND_WORDS: Mapping[Subject, str] = {
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


def action_facts(capture: Capture, overview: Overview) -> list[dict[str, Any]]:
    """Describe the actions of a capture as plain JSON data, the most useful one first."""
    return [_facts(action, capture, overview) for action in recommendations_of(capture, overview)]


def action_rows(capture: Capture) -> list[ActionRow]:
    """List the actions of a capture as rows of a table, the most useful first."""
    overview = overview_of(capture)
    return [
        ActionRow(
            rank=rank,
            kind=action.subject,
            subject=guard(action.what) if action.subject == "recompile" else action.what,
            subject_id=look_id(action, overview, capture),
            do=_do(action),
            gain_ns=action.ns_per_call,
            consequences=tuple(item.what for item in action.consequences),
            tried=(action.advice is not None and action.advice.is_tried) or _was_probed(action, overview),
            **same(action, "file", "line", "confidence", "settings", "patch"),
        )
        for rank, action in enumerate(recommendations_of(capture, overview), start=1)
    ]


def _was_probed(look: Recommendation, overview: Overview) -> bool:
    return look.subject in ("rule", "slower") and look.is_measured and overview.findings[look.index].rule in PROBED


def _facts(look: Recommendation, capture: Capture, overview: Overview) -> dict[str, Any]:
    facts = {
        "kind": KIND_WORDS[look.subject],
        "subject": look.subject,
        "title": visible(look.source or look.what),
        "is_code": look.source is not None,
        "where": look_place(look),
        "count": look.count,
        "gain": gain_text(look),
        "ns": look.ns_per_call,
        "sure": look.confidence,
        "confidence": look.confidence + (" on a busy machine" if look.is_busy and look.confidence != "unknown" else ""),
        "why": _why(look),
        "do": _do(look),
        "before": visible(look.source) if look.source and look.patch is not None else None,
        "after": None if look.patch is None else visible(look.patch),
        "paste": list(look.settings),
        "id": look_id(look, overview, capture),
        "sentence": look_sentence(look),
        "consequences": consequence_sentences(look),
    }
    return facts | {"issue": _issue(facts, capture)}


def gain_text(look: Recommendation) -> str:
    """Say what it costs, or what changing it saves: `saves about 1.20 ms per call`, `no time measured`, `gain unknown`.

    A break `costs`, since its time goes with it; an operator `takes` time in PyTorch, which is no gain.
    """
    if look.recompile_ns:
        return f"took {time_from_ns(look.recompile_ns)} so far"
    if look.ns_per_call is None:
        return "gain unknown"
    if not look.ns_per_call:
        nothing = NO_MORE if look.at_most else "no time" if look.is_saving else None
        return f"saves {nothing}" if nothing else f"no time measured{besides(0, look.own_code_ns)}"
    amount = time_from_ns(look.ns_per_call)
    if look.subject == "fallback":  # a change brings the difference to what it takes then
        return f"takes {amount} per call in PyTorch"
    if look.subject == "break" and not look.is_saving:
        return f"costs {amount} per call{besides(look.ns_per_call, look.own_code_ns)}"
    return f"saves {amount_words(look.ns_per_call, is_measured=look.is_measured, at_most=look.at_most)} per call"


def _why(look: Recommendation) -> str:
    if look.subject == "recompile":
        return f"guard failed: {guard(look.what)}"
    return visible(look.why) or (REASON_WORDS[look.reason_code] if look.reason_code is not None else "")


def _do(look: Recommendation) -> str:
    if look.subject == "recompile" and not look.do:
        return f"Keep what `{guard(look.what)}` checks the same from call to call"
    return visible(look.do) or "Rewrite the line as the reason suggests"


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


def look_id(look: Recommendation, overview: Overview, capture: Capture) -> str | None:
    """Find the id that the explorer selects for a look; None where nothing stands for it."""
    if look.subject == "break":
        return f"break:{overview.breaks[look.index].break_id}"
    if look.subject == "recompile":
        return f"recompile:{overview.recompiles[look.index].compile_id}"
    if look.subject not in ("fallback", "nothing_runs"):
        return f"finding:{look.index}"
    if look.file:
        return f"line:{look.file}:{look.line}"
    return next((f"node:{item.graph_id}/{item.node}" for item in capture.fallbacks if item.target == look.what), None)
