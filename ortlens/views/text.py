"""The summary of a capture as a few lines of text."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from ortlens.analysis.answers.overview import overview_of
from ortlens.analysis.answers.verdict import recompiles_by_role
from ortlens.analysis.numbers import numbers_of
from ortlens.analysis.timing import own_code_ns
from ortlens.units import counted, percent, time_from_ns
from ortlens.views.hints import SAVED
from ortlens.views.sentences import (
    MAX_PROBLEMS,
    consequence_sentences,
    coverage_sentence,
    dry_run_sentence,
    empty_sentence,
    finding_sentence,
    numbers_sentence,
    onnx_answers,
    partitions_sentence,
    problem_sentence,
    reason_words,
    title,
    wrong_sentence,
)
from ortlens.views.tiles import memory_words, tile_sentence, tiles_of
from ortlens.views.time_sentences import generation_sentences, per_call_sentences, price_words
from ortlens.views.wording import PHASE_WORDS, ascii_from_text, clipped, first_sentence, function, guard, place, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.analysis.answers.overview import Overview
    from ortlens.analysis.fallbacks import FallbackGroup
    from ortlens.analysis.numbers import NumericsSummary
    from ortlens.analysis.slow_lines import SlowLine
    from ortlens.trace.records import Break, Capture, Finding, Recompile
    from ortlens.views.hints import Hints

_LABEL = 18
_TILES = {"speed": "Speed", "time": "Time in ORT", "splits": "Splits", "correct": "Correct", "memory": "Memory"}
_MIN_WIDTH = 60
_BAR = 20
_MAX_FALLBACKS = 3
_MAX_BREAKS = 2
_MAX_RECOMPILES = 2
_MAX_FINDINGS = 3
_MAX_CONSEQUENCES = 2
_MAX_PHASES = 4
_MAX_ADVICE_LINES = 8  # at 80 columns the longest advice takes five: what to do is never cut off
_MAX_CALLS = 4
_UNIT = re.compile(r"(\d) ([nµm]?s|%)(?!\w)")
_BOLD, _RED, _PLAIN = "\x1b[1m", "\x1b[1;31m", "\x1b[0m"


def summary(  # noqa: PLR0913 - how it is written, and for whom
    capture: Capture,
    *,
    width: int = 100,
    ascii_only: bool = False,
    colour: bool = False,
    overview: Overview | None = None,
    hints: Hints = SAVED,
) -> str:
    """Summarise in about ten to twenty lines how a model runs in ONNX Runtime; `width` is at least 60.

    `colour` prints labels bold; names from the capture never bring their own control codes.
    """
    overview = overview or overview_of(capture)
    room = max(width, _MIN_WIDTH) - _LABEL
    lines = [clipped(title(overview), room + _LABEL), ""]
    numbers = numbers_of(capture)
    if wrong := wrong_sentence(numbers):
        lines += [
            _head("WRONG RESULTS" if number == 0 else "", colour=colour, code=_RED) + line
            for number, line in enumerate(_prose(wrong, room, lines=4))
        ]
    tiles = [
        (_TILES[tile.name], _prose(tile_sentence(tile), room, lines=4))
        for tile in tiles_of(capture, overview, hints)
        if overview.onnx is None or tile.name == "correct"
    ]
    for label, body in (*tiles, *_sections(overview, numbers, room)):
        lines += [_head(label if number == 0 else "", colour=colour) + line for number, line in enumerate(body)]
    text = "\n".join(line.rstrip() for line in lines)
    return ascii_from_text(text) if ascii_only else text


def _head(label: str, *, colour: bool, code: str = _BOLD) -> str:
    padded = label.ljust(_LABEL)
    return f"{code}{padded}{_PLAIN}" if colour and label else padded


def _prose(text: str, room: int, *, indent: str = "", hang: str = "", lines: int = 2) -> list[str]:
    """Wrap words over a few lines, the later ones set in by `hang`; what is beyond them is cut off."""
    if any(len(word) > room for word in text[: room * lines].split()):  # a name longer than a line has to do with two
        lines = min(lines, 2)
    bounded = _UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", clipped(text, room * lines))
    wrapped = textwrap.wrap(bounded, room, initial_indent=indent, subsequent_indent=indent + hang, max_lines=lines, placeholder=" …")
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped] or [indent]


def _sections(overview: Overview, numbers: NumericsSummary | None, room: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the answers, in the order in which people ask; a section without an answer is left out."""
    if overview.onnx is not None:
        for label, answer in onnx_answers(overview, overview.onnx):
            yield label, _prose(answer, room, lines=3)
        yield from _verdicts(overview, numbers, room)
        return
    if dry := dry_run_sentence(overview, head=""):
        yield "Dry run", _prose(dry, room, lines=3)
    yield "In ONNX Runtime", _prose(_bar(overview) + coverage_sentence(overview), room, lines=3)
    if said := generation_sentences(overview):
        yield "Generation", [line for sentence in said for line in _prose(sentence, room, hang="  ")]
    if overview.coverage.verdict == "empty" and overview.breaks:
        yield "Graph breaks", list(_breaks(overview, room))
    if overview.coverage.verdict != "empty":
        yield "Partitions", _prose(partitions_sentence(overview), room)
        yield from _fallbacks(overview, room)
        yield "Graph breaks", list(_breaks(overview, room))
        yield "Recompiles", list(_recompiles(overview, room))
        yield from _times(overview, room)
        if overview.memory is not None and not overview.memory.is_much_more:  # which is a tile
            yield "Memory of a call", _prose(memory_words(overview.memory), room)
    yield from _verdicts(overview, numbers, room)


def _verdicts(overview: Overview, numbers: NumericsSummary | None, room: int) -> Iterator[tuple[str, list[str]]]:
    if numbers is not None:
        yield "Numerics", _prose(numbers_sentence(numbers), room, lines=3)
    if _findings_apart(overview):
        yield "Findings", list(_findings(overview, room))
    yield "Look first at", list(_problems(overview, room))


def _bar(overview: Overview) -> str:
    share = overview.coverage.share
    if not share or overview.coverage.verdict == "compiled":
        return ""
    filled = max(1, int(share * _BAR))  # rounds down: a full bar means all of it
    return "█" * filled + "░" * (_BAR - filled) + " "


def _fallbacks(overview: Overview, room: int) -> Iterator[tuple[str, list[str]]]:
    groups = overview.fallbacks
    if not groups:
        return
    shown = groups[:_MAX_FALLBACKS]
    rows = [(clipped(group.target, 40), counted(group.node_count, "node"), _cost(group)) for group in shown]
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for group, row in zip(shown, rows, strict=True):
        head, where = "  ".join(map(str.ljust, row, sizes)), place(group.file, group.line, group.module)
        whole = f"{head}  {where}".rstrip()
        lines += [whole] if len(whole) <= room else [clipped(head.rstrip(), room), f"  {clipped(where, room - 2)}"]
        lines += _prose(reason_words(group), room, indent="  ")
    left = groups[_MAX_FALLBACKS:]
    if left:
        nodes = counted(sum(group.node_count for group in left), "node")
        lines += _prose(f"and {counted(len(left), 'more operator')} ({nodes}): see table fallbacks", room)
    yield "Stays in PyTorch", lines


def _cost(group: FallbackGroup) -> str:
    return "" if group.ns_per_call is None else f"{time_from_ns(group.ns_per_call)} per call"


def _breaks(overview: Overview, room: int) -> Iterator[str]:
    breaks = overview.breaks
    if not breaks:
        yield "none"
        return
    times = "" if overview.break_occurrences == len(breaks) else f", {counted(overview.break_occurrences, 'time')} in all"
    yield from _prose(f"{counted(len(breaks), 'place')} where PyTorch had to stop tracing and start a new graph{times}", room)
    said = _said_below(overview)
    for item in breaks[:_MAX_BREAKS]:
        yield from _break_lines(item, said, room, is_busy=overview.is_busy)
    if len(breaks) > _MAX_BREAKS:
        yield f"and {counted(len(breaks) - _MAX_BREAKS, 'more place')}: see table breaks"


def _said_below(overview: Overview) -> dict[str, list[str]]:
    """Return where the screen says what to do about a break or recompile, by its id; all of one problem share the list."""
    places = enumerate(overview.problems, start=1)
    numbered = ((item, [f"see {number}. below"] if number <= MAX_PROBLEMS else []) for number, item in places if item.advice is not None)
    return {name: place for item, place in numbered for name in item.records}


def _to_do(name: str, words: str, said: dict[str, list[str]], room: int) -> list[str]:
    """Say what to do, once per screen."""
    place = said.get(name, [])
    if place:
        shown = place[0]
        place[0] = ""
        return [f"  To do: {shown}"] if shown else []
    place.append("")
    return _prose(f"To do: {words}", room, indent="  ", lines=_MAX_ADVICE_LINES)


def _break_lines(item: Break, said: dict[str, list[str]], room: int, *, is_busy: bool) -> Iterator[str]:
    yield clipped(f"{place(item.file, item.line)}  {visible(item.source or '')}".rstrip(), room)
    price = price_words(item, is_busy=is_busy)
    yield from _prose((f"{price}: " if price else "") + item.reason, room, indent="  ", lines=3 if own_code_ns(item) else 2)
    if item.advice:
        yield from _to_do(item.break_id, item.advice, said, room)
    elif item.hints:
        yield from _prose(f"Hint: {first_sentence(item.hints[0])}", room, indent="  ", lines=3)


def _recompiles(overview: Overview, room: int) -> Iterator[str]:
    recompiles = overview.recompiles
    if not recompiles:
        yield "none"
        return
    after = len(recompiles) - sum(recompiles_by_role(overview).values())
    of_which = f", of which {after:,} {'compiles' if after == 1 else 'compile'} decode after prefill" if after else ""
    yield from _prose(f"{len(recompiles):,}{of_which}: code was compiled again because something it relied on had changed", room)
    said = _said_below(overview)
    for item in recompiles[:_MAX_RECOMPILES]:
        yield from _prose(_recompile(item), room)
        if item.advice:
            yield from _to_do(item.compile_id, item.advice, said, room)
    if len(recompiles) > _MAX_RECOMPILES:
        yield f"and {len(recompiles) - _MAX_RECOMPILES:,} more: see table recompiles"


def _recompile(item: Recompile) -> str:
    seen = f" (seen: {', '.join(map(visible, item.values))})" if item.values else ""
    return f"{place(item.file, item.line)}  {function(item.function)}; guard failed: {guard(item.guard or item.reason)}{seen}"


def _times(overview: Overview, room: int) -> Iterator[tuple[str, list[str]]]:
    lines = per_call_sentences(overview)
    shown = [line for sentence in lines[:_MAX_CALLS] for line in _prose(sentence, room, lines=3)]
    if len(lines) > _MAX_CALLS:
        shown.append(f"and {counted(len(lines) - _MAX_CALLS, 'more function')}: see table sessions")
    if shown:
        yield "Time per call", shown
    if slow := [item for item in overview.slow_lines if not item.is_torch]:  # what PyTorch runs has its time above
        yield "Slowest in ORT", [line for item in slow for line in _prose(_slow_line(item), room, hang="  ")]
    if overview.compile_ns:
        ranked = sorted(overview.phases, key=lambda phase: -phase.total_ns)[:_MAX_PHASES]
        phases = ", ".join(f"{PHASE_WORDS[phase.phase]} {time_from_ns(phase.total_ns)}" for phase in ranked if phase.total_ns)
        yield "Compile time", _prose(f"{time_from_ns(overview.compile_ns)}: {phases}", room)


def _slow_line(item: SlowLine) -> str:
    code = f"  {visible(item.source.strip())}" if item.source else ""
    return f"{place(item.file, item.line)}  {time_from_ns(item.ns)}, {percent(item.share)}{code}"


def _findings(overview: Overview, room: int) -> Iterator[str]:
    telling = _findings_apart(overview)
    for finding in telling[:_MAX_FINDINGS]:
        yield from _prose(finding_sentence(finding, is_busy=overview.is_busy), room, hang="  ", lines=_MAX_ADVICE_LINES)
    if len(telling) > _MAX_FINDINGS:
        yield f"and {len(telling) - _MAX_FINDINGS:,} more: see table findings"


def _findings_apart(overview: Overview) -> list[Finding]:
    """List the findings that nothing else on the screen says, without those that were measured to gain nothing."""
    said = {each.index for item in overview.problems[:MAX_PROBLEMS] for each in (item, *item.consequences)}
    return [finding for index, finding in enumerate(overview.findings) if index not in said and finding.gain_ns != 0]


def _problems(overview: Overview, room: int) -> Iterator[str]:
    problems = overview.problems[:MAX_PROBLEMS]
    for number, item in enumerate(problems, start=1):
        yield from _prose(f"{number}. {problem_sentence(item)}", room, hang="   ", lines=_MAX_ADVICE_LINES)
        also = consequence_sentences(item)
        for sentence in also[:_MAX_CONSEQUENCES]:
            yield from _prose(sentence, room, indent="   ", hang="  ", lines=_MAX_ADVICE_LINES)
        if len(also) > _MAX_CONSEQUENCES:
            yield f"   and {len(also) - _MAX_CONSEQUENCES:,} more of the same cause"
    if not problems:
        empty = overview.coverage.verdict == "empty"
        yield from _prose(empty_sentence(overview) if empty else "nothing stands out", room, lines=_MAX_ADVICE_LINES)
