"""A screen: what a person is told of one thing, as data. It is built once per kind of thing; text, HTML and JSON only lay it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortlens.analysis.answers.overview import break_occurrences
from ortlens.analysis.answers.verdict import numbers_of, recompiles_by_role
from ortlens.analysis.costs import fallback_groups, slow_lines
from ortlens.analysis.coverage import coverage_of, own_recompiles
from ortlens.analysis.ledger import time_base
from ortlens.analysis.memory import call_memory
from ortlens.analysis.onnx_model import onnx_facts
from ortlens.analysis.problems.advice import advised, hint_for
from ortlens.analysis.problems.stream import finding_records, findings_of, problems_of
from ortlens.analysis.speed import is_busy
from ortlens.analysis.timing import compile_phases, compile_total_ns, costliest_breaks, slowest_sessions
from ortlens.units import counted, percent, time_from_ns
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
    providers_sentence,
    reason_words,
    title,
    verdict_sentence,
    wrong_sentence,
)
from ortlens.views.table import MAX_ROWS, ShownTable
from ortlens.views.tiles import memory_words, tiles_of
from ortlens.views.time_sentences import generation_sentences, per_call_sentences, price_text
from ortlens.views.wording import PHASE_WORDS, SAVED, clipped, first_sentence, function, guard, place, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ortlens.analysis.costs import FallbackGroup, SlowLine
    from ortlens.trace.records import Break, Capture, Recompile
    from ortlens.views.tiles import Tile
    from ortlens.views.wording import Hints

_MOST = 3  # items of a list
_MAX_BREAKS = 2
_MAX_CONSEQUENCES = 2
_MAX_CALLS = 4
_MAX_REASON = 300
EFFECT_SIGNS = {"worse": "✗", "better": "✓", "neutral": "·"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One of several things that an answer is about."""

    head: str  # what and where
    notes: tuple[str, ...] = ()  # what is said of it
    effect: str = ""  # of a difference: `worse`, `better` or `neutral`
    anchor: int | None = None  # row of the page that it is about

    @property
    def sign(self) -> str:
        """A sign for its effect, so that colour is not the only one."""
        return EFFECT_SIGNS.get(self.effect, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one question."""

    name: str  # by which the explorer knows it
    label: str
    said: tuple[str, ...] = ()  # sentences without full stops
    share: float | None = None  # filled part of a bar, 0 to 1; None without one
    items: tuple[Item, ...] = ()  # the first ones
    is_ranked: bool = False  # whether their order says something, so that they have numbers
    left: int = 0  # items beyond these
    frame: str = ""  # frame that has all of them
    in_table: bool = False  # whether a table of the screen shows what they say


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Everything that is told of a thing."""

    title: str
    verdict: str = ""  # all of it in one sentence, without a full stop
    leads: bool = False  # whether text begins with that, because its tiles say less
    alert: str = ""  # wrong results, which come before everything else
    dry_run: str = ""  # that nothing was run
    notes: tuple[str, ...] = ()  # what the figures depend on
    tiles: tuple[Tile, ...] = ()
    answers: tuple[Answer, ...] = ()
    tables: tuple[ShownTable, ...] = ()


def capture_screen(capture: Capture, hints: Hints = SAVED) -> Screen:
    """Say what there is to say of any capture: of a program, an ONNX model or a running session."""
    capture = advised(capture)
    numbers = numbers_of(capture)
    answers = (
        *(Answer(name=label.lower(), label=label, said=(said,)) for label, said in onnx_answers(capture)),
        *(_of_program(capture) if onnx_facts(capture) is None else (_generation(capture),)),
        Answer(name="numerics", label="Numerics", said=(numbers_sentence(numbers),) if numbers is not None else ()),
        _findings(capture),
        _first(capture),
    )
    return Screen(
        title=title(capture),
        verdict=verdict_sentence(capture),
        alert=wrong_sentence(numbers),
        dry_run=dry_run_sentence(capture),
        tiles=tiles_of(capture, hints),
        answers=tuple(answer for answer in answers if answer.said or answer.items),
        tables=answer_tables(capture),
    )


def _generation(capture: Capture) -> Answer:
    return Answer(name="generation", label="Generation", said=tuple(generation_sentences(capture)))


def _of_program(capture: Capture) -> Iterator[Answer]:
    """Yield the answers, in the order in which people ask."""
    coverage = coverage_of(capture)
    # Of compiled code alone, a full bar would say that nothing is outside.
    share = coverage.share if coverage.share and coverage.verdict != "compiled" else None
    yield Answer(name="ort", label="In ONNX Runtime", said=(coverage_sentence(capture),), share=share)
    yield Answer(name="providers", label="Providers", said=tuple(filter(None, (providers_sentence(capture),))))
    yield _generation(capture)
    if coverage.verdict == "empty":
        yield from [_breaks(capture)] if capture.breaks else []
        return
    yield Answer(name="partitions", label="Partitions", said=(partitions_sentence(capture),))
    yield _fallbacks(fallback_groups(capture), time_base(capture))
    yield _breaks(capture)
    yield _recompiles(capture)
    calls = per_call_sentences(capture)
    left = [f"and {counted(len(calls) - _MAX_CALLS, 'more function')}: see table sessions"] if len(calls) > _MAX_CALLS else []
    yield Answer(name="call", label=f"Time per {time_base(capture)}", said=(*calls[:_MAX_CALLS], *left))
    slow = tuple(Item(head=_slow_line(item)) for item in slow_lines(capture) if not item.is_torch)  # PyTorch's time stands above
    yield Answer(name="slowest", label="Slowest in ORT", items=slow)
    if spent := compile_total_ns(capture):
        ranked = sorted((phase for phase in compile_phases(capture) if phase.total_ns), key=lambda phase: -phase.total_ns)
        phases = ", ".join(f"{PHASE_WORDS[phase.phase]} {time_from_ns(phase.total_ns)}" for phase in ranked)
        yield Answer(name="compile", label="Compile time", said=(f"{time_from_ns(spent)}: {phases}",))
    memory = call_memory(capture)
    if memory is not None and not memory.is_much_more:  # which is a tile
        yield Answer(name="memory", label="Memory of a call", said=(memory_words(memory),))


def _fallbacks(groups: tuple[FallbackGroup, ...], per: str) -> Answer:
    items = tuple(_fallback(group, per) for group in groups[:_MOST])
    more = groups[_MOST:]
    nodes = counted(sum(group.node_count for group in more), "node")
    said = (f"and {counted(len(more), 'more operator')} ({nodes}): see table fallbacks",) if more else ()
    return Answer(name="fallbacks", label="Stays in PyTorch", items=(*items, *(Item(head=text) for text in said)), in_table=True)


def _fallback(group: FallbackGroup, per: str) -> Item:
    cost = "" if group.call_ns is None else f"{time_from_ns(group.call_ns)} per {per}"
    facts = (clipped(group.target, 40), counted(group.node_count, "node"), cost, place(group.file, group.line, group.module))
    return Item(head="  ".join(filter(None, facts)), notes=(clipped(reason_words(group), _MAX_REASON),))


def _breaks(capture: Capture) -> Answer:
    breaks, met = costliest_breaks(capture), break_occurrences(capture)
    times = "" if met == len(breaks) else f", {counted(met, 'time')} in all"
    said = f"{counted(len(breaks), 'place')} where PyTorch had to stop tracing and start a new graph{times}" if breaks else "none"
    below = _ToDo(capture)
    items = tuple(_break(item, below, is_busy=is_busy(capture)) for item in breaks[:_MAX_BREAKS])
    left = max(len(breaks) - _MAX_BREAKS, 0)
    return Answer(name="breaks", label="Graph breaks", said=(said,), items=items, left=left, frame="breaks", in_table=True)


def _break(item: Break, below: _ToDo, *, is_busy: bool) -> Item:
    price = price_text(item.cost_ns, item.between_ns or 0, is_busy=is_busy)
    notes = [f"{price}: {clipped(item.reason, _MAX_REASON)}" if price else clipped(item.reason, _MAX_REASON)]
    hint = hint_for(item)
    notes += below(item.break_id, item.advice) if item.advice else [f"Hint: {first_sentence(hint)}"] if hint else []
    return Item(head=f"{place(item.file, item.line)}  {visible(item.source or '')}".rstrip(), notes=tuple(notes))


def _recompiles(capture: Capture) -> Answer:
    recompiles = own_recompiles(capture)
    after = len(recompiles) - sum(recompiles_by_role(capture).values())
    of_which = f", of which {after:,} {'compiles' if after == 1 else 'compile'} decode after prefill" if after else ""
    said = f"{len(recompiles):,}{of_which}: code was compiled again because something it relied on had changed" if recompiles else "none"
    below = _ToDo(capture)
    items = tuple(_recompile(item, below) for item in recompiles[:_MAX_BREAKS])
    left = max(len(recompiles) - _MAX_BREAKS, 0)
    return Answer(name="recompiles", label="Recompiles", said=(said,), items=items, left=left, frame="recompiles", in_table=True)


def _recompile(item: Recompile, below: _ToDo) -> Item:
    seen = f" (seen: {', '.join(map(visible, item.values))})" if item.values else ""
    checked = clipped(guard(item.guard or item.reason), _MAX_REASON)
    head = f"{place(item.file, item.line)}  {function(item.function)}; guard failed: {checked}{clipped(seen, _MAX_REASON)}"
    return Item(head=head, notes=tuple(below(item.compile_id, item.advice)) if item.advice else ())


class _ToDo:
    """Says what to do about breaks or recompiles, once per screen: those that are among the first problems are told there."""

    def __init__(self, capture: Capture) -> None:
        places = enumerate(problems_of(capture), start=1)
        numbered = (
            (item, [f"see {number}. below"] if number <= MAX_PROBLEMS else []) for number, item in places if item.advice is not None
        )
        self._said = {name: told for item, told in numbered for name in item.records}  # those of one problem share the list

    def __call__(self, name: str, words: str) -> list[str]:
        told = self._said.get(name, [])
        if not told:
            told.append("")
            return [f"To do: {words}"]
        shown, told[0] = told[0], ""
        return [f"To do: {shown}"] if shown else []


def _slow_line(item: SlowLine) -> str:
    code = f"  {visible(item.source.strip())}" if item.source else ""
    return f"{place(item.file, item.line)}  {time_from_ns(item.ns)}, {percent(item.share)}{code}"


def _findings(capture: Capture) -> Answer:
    """Tell the findings that nothing else on the screen tells, without those that were measured to gain nothing."""
    told = {each.index for item in problems_of(capture)[:MAX_PROBLEMS] for each in (item, *item.consequences)}
    apart = [finding for index, finding in enumerate(findings_of(capture)) if index not in told and finding.gain_ns != 0]
    items = tuple(Item(head=finding_sentence(finding)) for finding in apart[:_MOST])
    return Answer(name="findings", label="Findings", items=items, left=max(len(apart) - _MOST, 0), frame="findings", in_table=True)


def _first(capture: Capture) -> Answer:
    problems = problems_of(capture)[:MAX_PROBLEMS]
    nothing = empty_sentence(capture) if coverage_of(capture).verdict == "empty" else "nothing stands out"
    items = tuple(Item(head=problem_sentence(item), notes=tuple(_bounded(consequence_sentences(item)))) for item in problems)
    return Answer(name="first", label="Look first at", said=() if items else (nothing,), items=items, is_ranked=True)


def _bounded(sentences: Iterable[str]) -> list[str]:
    found = list(sentences)
    more = len(found) - _MAX_CONSEQUENCES
    return [*found[:_MAX_CONSEQUENCES], *([f"and {more:,} more of the same cause"] if more > 0 else [])]


def answer_tables(capture: Capture, *, limit: int = MAX_ROWS) -> tuple[ShownTable, ...]:
    """Return the tables that have rows, each of at most `limit`: graphs, breaks, recompiles, fallbacks, sessions, findings."""
    found: tuple[tuple[str, str, Sequence[Any]], ...] = (
        ("Graphs", "graphs", capture.graphs),
        ("Graph breaks, the costliest first", "breaks", costliest_breaks(capture)),
        ("Recompiles", "recompiles", own_recompiles(capture)),
        ("Stays in PyTorch, the slowest first", "fallbacks", fallback_groups(capture)),
        ("ONNX Runtime sessions, the slowest first", "sessions", [cost.session for cost in slowest_sessions(capture)]),
        ("Findings", "findings", finding_records(capture)),
    )
    return tuple(ShownTable(title=title, source=source, records=records, limit=limit) for title, source, records in found if records)
