"""The verdict as four tiles in words: the explorer, the report, the summary and the magics draw these and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.index import graph_by_partition
from ortlens.analysis.numbers import numbers_of
from ortlens.analysis.verdict import verdict_of
from ortlens.units import counted, percent, time_from_ns, times
from ortlens.views.wording import farthest_words, place, visible

if TYPE_CHECKING:
    from ortlens.analysis.onnx_model import OnnxFacts
    from ortlens.analysis.overview import Overview, UncountedCalls
    from ortlens.analysis.verdict import Correct, OrtTime, Pace, Splits, Verdict
    from ortlens.trace.records import Capture

State: TypeAlias = Literal["good", "bad", "caution", "unknown", "plain"]

SIGNS: dict[State, str] = {"good": "✓", "bad": "✗", "caution": "▲", "unknown": "○", "plain": ""}
"""A sign for each state, so that colour is not the only one."""
_UNEVEN = 1.2  # below, the median call and the shortest are the same to a reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One answer."""

    name: str  # `speed`, `time`, `splits` or `correct`
    title: str  # what is asked
    state: State  # how good the answer is
    word: str  # the answer in a few words
    detail: str  # the figures behind it
    share: float | None = None  # filled part of a bar, 0 to 1; None without one
    call: str = ""  # what to call where nothing was measured; empty elsewhere
    tab: str = "overview"  # panel of the explorer that shows the evidence
    card: str = ""  # card of its overview
    selected: str | None = None  # id that is selected there

    @property
    def sign(self) -> str:
        """The sign of its state."""
        return SIGNS[self.state]


def tiles_of(capture: Capture, overview: Overview) -> tuple[Tile, ...]:
    """Make the four tiles of a capture: speed, time in ONNX Runtime, splits, correctness."""
    verdict = verdict_of(capture, overview)
    if overview.onnx is not None:
        correct = _correct(verdict.correct, capture, overview)
        return (*_onnx_tiles(overview.onnx), replace(correct, call=correct.call and "lens.verify(module)"))
    return (
        _speed(verdict, overview),
        _time(verdict.time, overview),
        _splits(verdict.splits, overview),
        _correct(verdict.correct, capture, overview),
    )


def _onnx_tiles(facts: OnnxFacts) -> tuple[Tile, Tile, Tile]:
    """Say what a call of an ONNX model takes, which kernels, and on which execution providers."""
    if facts.p50_ns is None:
        speed = Tile(name="speed", title="Time per call", state="unknown", word="not measured", detail="nothing ran", card="time")
    else:
        detail = "one call" if facts.calls == 1 else f"median of {facts.calls:,} calls"
        speed = Tile(name="speed", title="Time per call", state="plain", word=time_from_ns(facts.p50_ns), detail=detail, card="time")
    if facts.kernel_shares:
        op, share = facts.kernel_shares[0]
        rest = ", ".join(f"{visible(name)} {percent(part)}" for name, part in facts.kernel_shares[1:3])
        kernels = Tile(
            name="time", title="Kernels", state="plain", word=f"{visible(op)} {percent(share)}", detail=rest, share=share, tab="flame"
        )
    else:
        call = "lens.profile()" if facts.providers else ""
        kernels = Tile(name="time", title="Kernels", state="unknown", word="not profiled", detail="", call=call, card="ort")
    first = facts.providers[0] if facts.providers else None
    elsewhere = sum(count for provider, count in facts.placed if provider != first)
    state: State = "unknown" if first is None else "caution" if elsewhere or facts.copies else "good"
    word = "no session" if first is None else f"{counted(elsewhere, 'node')} elsewhere" if elsewhere else visible(first)
    copies = counted(facts.copies, "copy between providers", "copies between providers")
    detail = f"not on {visible(first or '')}; {copies}" if elsewhere else counted(facts.node_count, "node")
    return speed, kernels, Tile(name="splits", title="Placement", state=state, word=word, detail=detail, tab="graph")


def tile_sentence(tile: Tile) -> str:
    """Put a tile on one line, without a full stop, with what to call where nothing was measured."""
    said = f"{tile.sign} {tile.word}; {tile.detail}".strip()
    return f"{said}; {tile.call}" if tile.call else said


def _speed(verdict: Verdict, overview: Overview) -> Tile:
    pace = verdict.speed
    title = "Speed"
    if pace.verdict == "unmeasured":
        calls = overview.uncounted
        if calls is not None and overview.ledger is not None and not overview.ledger.is_measured:
            return _uncounted(calls, overview)
        detail = "nothing ran" if verdict.is_dry_run else "against eager PyTorch"
        call = _call("lens.measure(x)", overview)
        return Tile(name="speed", title=title, state="unknown", word="not measured", detail=detail, call=call, card="time")
    state: dict[str, State] = {"faster": "good", "slower": "caution", "same": "plain"}
    details = [f"{time_from_ns(pace.call_ns or 0)}, eager {time_from_ns(pace.eager_ns or 0)}", "in turns"]
    if pace.interval is not None:
        details.append(f"99 % interval {_interval(pace)} of eager")
    elif verdict.spread is not None and verdict.spread >= _UNEVEN:
        details.append(f"median call {times(verdict.spread)} the shortest")
    is_uncertain = verdict.is_crowded and pace.interval is None
    if is_uncertain:
        details.append("threads waited for cores that other processes had; try OMP_NUM_THREADS=1")
    elif verdict.is_busy:
        details.append("machine was busy")
    details += [f"inductor: {pace_words(verdict.inductor)} eager"] if verdict.inductor is not None else []
    if is_uncertain:  # no ratio: that of times of waiting would be the largest number on the screen
        return Tile(name="speed", title=title, state="unknown", word="uncertain", detail="; ".join(details), card="time")
    word = f"{pace_words(pace)} eager"
    return Tile(name="speed", title=title, state=state[pace.verdict], word=word, detail="; ".join(details), card="time")


def _uncounted(calls: UncountedCalls, overview: Overview) -> Tile:
    """Say why no call could be timed.

    Sessions are there after a few calls, so that measuring again helps; a function that compiles goes on.
    """
    each = "it" if calls.made == 1 else "each" if calls.made == calls.compiled + calls.created else "each that was timed"
    did = [*(["compiled code"] if calls.compiled else []), *(["created a session"] if calls.created else [])]
    detail = f"{counted(calls.made, 'call was', 'calls were')} made, and {each} {' or '.join(did)}"
    if calls.created:
        call = _call("lens.measure(x)", overview)
        return Tile(name="speed", title="Speed", state="unknown", word="not measured", detail=detail, call=call, card="time")
    return Tile(name="speed", title="Speed", state="caution", word="not measured", detail=detail, tab="breaks")


def pace_words(pace: Pace) -> str:
    """Compare a measured way: `1.4 times as fast as`, `about as fast as`, to be followed by what it is compared with."""
    ratio = pace.ratio or 1.0
    if pace.verdict == "same":
        return "about as fast as"
    return f"{times(1 / ratio)} as fast as" if pace.verdict == "faster" else f"{times(ratio)} as long as"


def _interval(pace: Pace) -> str:
    low, high = pace.interval or (1.0, 1.0)
    return f"{low:.2f}x to {high:.2f}x"


def _time(time: OrtTime, overview: Overview) -> Tile:
    title = "Time in ONNX Runtime"
    nodes = f"{time.ort_node_count:,} of {counted(time.node_count, 'operator')}"
    share = f" ({percent(time.ort_node_count / time.node_count)})" if time.node_count else ""
    if time.verdict == "measured":
        return Tile(
            name="time",
            title=title,
            state="plain",
            word=f"{percent(time.share or 0.0)} of a call",
            detail=nodes + share,
            share=time.share,
            tab="flame",
        )
    words: dict[str, tuple[State, str, str]] = {
        "unmeasured": ("unknown", "not measured", nodes + share),
        "planned": ("unknown", "nothing ran", f"planned: {nodes}{share}"),
        "foreign": ("plain", "none", f"the backend is {visible(overview.backend)}"),
        "none": ("caution", "none", nodes),
        "empty": ("unknown", "unknown" if overview.coverage.is_cut_short else "none", "nothing was compiled"),
    }
    state, word, detail = words[time.verdict]
    call = _call("lens.measure(x)", overview) if time.verdict == "unmeasured" else ""
    return Tile(name="time", title=title, state=state, word=word, detail=detail, call=call, card="ort")


def _splits(splits: Splits, overview: Overview) -> Tile:
    title = "Splits"
    partitions = [] if splits.partitions is None else [counted(splits.partitions, "partition")]
    facts = [
        counted(splits.breaks, "graph break") if splits.breaks else "no graph break",
        *partitions,
        counted(splits.recompiles, "recompile") if splits.recompiles else "no recompile",
    ]
    tab = "breaks" if splits.breaks or splits.recompiles else "graph"
    if splits.is_cut_short:
        end = next((item for item in overview.findings if item.rule == "dry_run_ended"), None)
        at = f" at {place(end.file, end.line)}" if end is not None and end.file else ""
        detail = f"the dry run ended{at}; until there {', '.join(facts)}"
        return Tile(name="splits", title=title, state="caution", word="unknown: cut short", detail=detail, tab="breaks")
    if not splits.graphs and not splits.breaks:
        return Tile(name="splits", title=title, state="unknown", word="none", detail="nothing was compiled")
    first = 0 if splits.breaks else len(facts) - 1 if splits.recompiles else 1 if splits.partitions is not None else 0
    word = facts.pop(first)
    state: State = "good" if splits.is_whole else "caution"
    if splits.is_whole and splits.partitions == 0:  # nothing to split is no merit
        word, state = "no partition", "plain"
    if overview.is_dry_run:
        word, state = f"planned: {word}", "unknown" if splits.is_whole else "caution"
    return Tile(name="splits", title=title, state=state, word=word, detail=", ".join(facts), tab=tab)


def _correct(correct: Correct, capture: Capture, overview: Overview) -> Tile:
    title = "Correct"
    call = _call("lens.verify(x)", overview) if correct.verdict == "unchecked" else ""
    compared = f"{counted(correct.right + correct.wrong, 'value')} compared with PyTorch"
    numbers = numbers_of(capture)
    farthest = farthest_words(numbers.farthest if numbers is not None else None)
    by = f", by up to {farthest}" if farthest else ""
    others = "the results differ without a verdict" if numbers is not None and numbers.is_undecided else "others were not compared"
    words: dict[str, tuple[State, str, str]] = {
        "verified": ("good", "verified", f"{compared}, all match"),
        "partly": ("unknown", "verified in part", f"{compared}, all match; {others}"),
        "differs": ("bad", "differs", f"{correct.wrong:,} of {compared} {'differs' if correct.wrong == 1 else 'differ'}{by}"),
        "unchecked": ("unknown", "not checked", "nothing ran" if overview.is_dry_run else "against PyTorch"),
        "nothing": ("unknown", "not checked", "ONNX Runtime computed nothing"),
    }
    state, word, detail = words[correct.verdict]
    return Tile(name="correct", title=title, state=state, word=word, detail=detail, call=call, tab="numerics", selected=_wrong(capture))


def _wrong(capture: Capture) -> str | None:
    """Find the id of the first wrong value, as the explorer knows it."""
    graph_of = graph_by_partition(capture)
    wrong = [row for row in capture.numerics if row.ok is False and row.partition_id in graph_of]
    first = next((row for row in wrong if row.first_divergence), wrong[0] if wrong else None)
    return None if first is None else f"node:{graph_of[first.partition_id or '']}/{first.node}"


def _call(call: str, overview: Overview) -> str:
    """Return what fills the tile in; empty where nothing is measured: in a dry run, or where nothing was compiled."""
    return "" if overview.is_dry_run or overview.coverage.verdict == "empty" else call
