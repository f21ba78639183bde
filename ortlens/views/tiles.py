"""The verdict as four tiles in words, five where a call takes much memory: all views draw these and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.answers.overview import uncounted_calls
from ortlens.analysis.answers.verdict import benched, correct_verdict, numbers_of, ort_share, recompiles_by_role, speed_of
from ortlens.analysis.coverage import computed_ahead, coverage_of, current_graphs, given_up, is_dry_run, own_recompiles
from ortlens.analysis.index import graph_by_partition
from ortlens.analysis.ledger import ledger_totals
from ortlens.analysis.memory import call_memory
from ortlens.analysis.onnx_model import onnx_facts
from ortlens.analysis.problems.catalogue import given_up_clause
from ortlens.analysis.problems.stream import findings_of
from ortlens.analysis.speed import is_busy, is_crowded, spread_of
from ortlens.units import counted, percent, size_from_bytes, time_from_ns, times
from ortlens.views.wording import SAVED, place, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.analysis.answers.overview import UncountedCalls
    from ortlens.analysis.answers.verdict import Differences
    from ortlens.analysis.memory import CallMemory
    from ortlens.analysis.onnx_model import OnnxFacts
    from ortlens.analysis.speed import Pace
    from ortlens.trace.records import Capture
    from ortlens.views.wording import Hints, Want

    Call = Callable[[Want], str]

State: TypeAlias = Literal["good", "bad", "caution", "unknown", "plain"]

SIGNS: dict[State, str] = {"good": "✓", "bad": "✗", "caution": "▲", "unknown": "○", "plain": ""}
"""A sign for each state, so that colour is not the only one."""
_SURPRISING = 3  # times as fast as in eager PyTorch from which a reason is given
_UNEVEN = 1.2  # below, the median call and the shortest are the same to a reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One answer."""

    name: str  # `speed`, `time`, `splits`, `correct` or `memory`
    title: str  # what is asked
    label: str = ""  # the same where there is little room
    state: State  # how good the answer is
    word: str  # the answer in a few words
    detail: str  # the figures behind it
    share: float | None = None  # filled part of a bar, 0 to 1; None without one
    call: str = ""  # what to type where nothing was measured; empty elsewhere
    tab: str = "overview"  # panel of the explorer that shows the evidence
    card: str = ""  # card of its overview
    selected: str | None = None  # id that is selected there

    @property
    def sign(self) -> str:
        """The sign of its state."""
        return SIGNS[self.state]


def tiles_of(capture: Capture, hints: Hints = SAVED) -> tuple[Tile, ...]:
    """Make the tiles of a capture, with what to type for what is missing: speed, time in ONNX Runtime, splits, correctness, much memory."""
    call = partial(_call, capture=capture, hints=hints)
    correct = _correct(capture, call)
    if (facts := onnx_facts(capture)) is not None:
        return (*_onnx_tiles(facts, hints), correct)
    memory = call_memory(capture)
    more = (_memory_tile(memory),) if memory is not None and memory.is_much_more else ()
    return _speed(capture, call), _time(capture, call), _splits(capture), correct, *more


def _memory_tile(memory: CallMemory) -> Tile:
    """Say what a call holds, where that is much more than in eager PyTorch."""
    word = f"{times(memory.times or 0.0)} as much as eager"
    return Tile(name="memory", title="Memory", state="caution", word=word, detail=memory_words(memory), card="time")


def memory_words(memory: CallMemory) -> str:
    """Say what a call holds, and at which line the most."""
    plain = "" if memory.uncompiled_bytes is None else f", eager {size_from_bytes(memory.uncompiled_bytes)}"
    at = f"; most at {place(memory.node.file, memory.node.line)}" if memory.node is not None and memory.node.file else ""
    return f"{size_from_bytes(memory.bytes)} for activations{plain}{at}"


def _onnx_tiles(facts: OnnxFacts, hints: Hints) -> tuple[Tile, Tile, Tile]:
    """Say what a call of an ONNX model takes, which kernels, and on which execution providers."""
    speed = Tile(name="speed", title="Time per call", state="unknown", word="not measured", detail="nothing ran", card="time")
    if facts.p50_ns is not None:
        detail = "one call" if facts.calls == 1 else f"median of {facts.calls:,} calls"
        speed = replace(speed, state="plain", word=time_from_ns(facts.p50_ns), detail=detail)
    call = hints.text("profile", is_onnx=True) if facts.providers else ""
    kernels = Tile(name="time", title="Kernels", state="unknown", word="not profiled", detail="", call=call, card="ort")
    if facts.kernel_shares:
        (op, share), *others = facts.kernel_shares
        rest = ", ".join(f"{visible(name)} {percent(part)}" for name, part in others[:2])
        word = f"{visible(op)} {percent(share)}"
        kernels = replace(kernels, state="plain", word=word, detail=rest, share=share, call="", tab="flame", card="")
    first = facts.providers[0] if facts.providers else None
    elsewhere = sum(count for provider, count in facts.placed if provider != first)
    state: State = "unknown" if first is None else "caution" if elsewhere or facts.copies else "good"
    word = "no session" if first is None else f"{counted(elsewhere, 'node')} elsewhere" if elsewhere else visible(first)
    copies = counted(facts.copies, "copy between providers", "copies between providers")
    detail = f"not on {visible(first)}; {copies}" if first and elsewhere else counted(facts.node_count, "node")
    return speed, kernels, Tile(name="splits", title="Placement", state=state, word=word, detail=detail, tab="graph")


def tile_sentence(tile: Tile) -> str:
    """Put a tile on one line, without a full stop, with what to call where nothing was measured."""
    return "; ".join(filter(None, (f"{tile.sign} {tile.word}".strip(), tile.detail, tile.call)))


def _speed(capture: Capture, call: Call) -> Tile:
    pace, inductor, calls = speed_of(capture), benched(capture.figures, "inductor"), uncounted_calls(capture)
    tile = partial(Tile, name="speed", title="Speed", card="time")
    if pace.verdict == "unmeasured":
        if calls is not None and (totals := ledger_totals(capture)) is not None and not totals.is_measured:
            return _uncounted(calls, call)
        detail = "nothing ran" if is_dry_run(capture) else "against eager PyTorch"
        return tile(state="unknown", word="not measured", detail=detail, call=call("measure"))
    states: dict[str, State] = {"faster": "good", "slower": "caution", "same": "plain"}
    details = [f"{time_from_ns(pace.call_ns or 0)}, eager {time_from_ns(pace.eager_ns or 0)}", "in turns"]
    if pace.interval is not None:
        low, high = pace.interval
        details.append(f"99 % interval {low:.2f}x to {high:.2f}x of eager")
    elif (spread := spread_of(capture)) is not None and spread >= _UNEVEN:
        details.append(f"median call {times(spread)} the shortest")
    is_uncertain = is_crowded(capture) and pace.interval is None
    if is_uncertain:
        details.append("threads waited for cores that other processes had; try OMP_NUM_THREADS=1")
    elif pace.verdict == "unclear" or pace.is_rough:
        details.append(f"{passes_words(pace)}; measure again")
    elif is_busy(capture):
        details.append("machine was busy")
    ahead = computed_ahead(capture)
    if ahead is not None and (pace.eager_ns or 0) >= _SURPRISING * (pace.call_ns or 0):
        details.insert(1, ahead.clause)
    details[1:1] = [said] if (said := dropped_words(capture)) else []
    details += [f"inductor: {pace_words(inductor)} eager"] if inductor is not None else []
    if is_uncertain or pace.verdict == "unclear":  # no ratio: that of times of waiting would be the largest number on the screen
        return tile(state="unknown", word="uncertain", detail="; ".join(details))
    return tile(state=states[pace.verdict], word=f"{pace_words(pace)} eager", detail="; ".join(details))


def _uncounted(calls: UncountedCalls, call: Call) -> Tile:
    """Say why no call could be timed.

    Sessions are there after a few calls, so that measuring again helps; a function that compiles goes on.
    """
    each = "it" if calls.made == 1 else "each" if calls.made == calls.compiled + calls.created else "each that was timed"
    did = [*(["compiled code"] if calls.compiled else []), *(["created a session"] if calls.created else [])]
    detail = f"{counted(calls.made, 'call was', 'calls were')} made, and {each} {' or '.join(did)}"
    tile = partial(Tile, name="speed", title="Speed", word="not measured", detail=detail)
    if calls.created:
        return tile(state="unknown", call=call("measure"), card="time")
    return tile(state="caution", tab="breaks")


def passes_words(pace: Pace) -> str:
    """Say how far the passes are apart that do not agree about a verdict, or about how much."""
    what = "by how much is uncertain" if pace.is_rough else "the turns disagree"
    return f"{what}: {' to '.join(f'{ratio:.2f}' for ratio in pace.passes)} times as long"


def dropped_words(capture: Capture) -> str:
    """Say what a call in PyTorch did besides; empty where it did nothing more."""
    names = ", ".join(f"`{visible(name)}`" for name in capture.figures.dropped)
    return f"eager also runs {names}, which compiled code leaves out" if names else ""


def pace_words(pace: Pace) -> str:
    """Compare a measured way: `1.4 times as fast as`, `about as fast as`, to be followed by what it is compared with."""
    ratio = pace.ratio or 1.0
    if pace.verdict == "same":
        return "about as fast as"
    if pace.is_rough:
        return f"{pace.verdict} than"
    return f"{times(1 / ratio)} as fast as" if pace.verdict == "faster" else f"{times(ratio)} as long as"


def _time(capture: Capture, call: Call) -> Tile:
    coverage, share = coverage_of(capture), ort_share(capture)
    in_ort, whole_count = coverage.part
    nodes = f"{in_ort:,} of {counted(whole_count, 'operator')}"
    whole = nodes + (f" ({percent(coverage.share)})" if coverage.share is not None else "")
    tile = partial(Tile, name="time", title="Time in ONNX Runtime", label="Time in ORT")
    nothing: dict[str, tuple[State, str, str]] = {
        "foreign": ("plain", "none", f"the backend is {visible(capture.backend)}"),
        "none": ("caution", "none", nodes),
        "empty": ("unknown", "unknown" if coverage.is_cut_short else "none", "nothing was compiled"),
    }
    if is_dry_run(capture):
        return tile(state="unknown", word="nothing ran", detail=f"planned: {whole}", card="ort")
    if coverage.verdict in nothing:
        state, word, detail = nothing[coverage.verdict]
        return tile(state=state, word=word, detail=detail, card="ort")
    if share is None:
        return tile(state="unknown", word="not measured", detail=whole, call=call("measure"), card="ort")
    return tile(state="plain", word=f"{percent(share)} of a call", detail=whole, share=share, tab="flame")


def _splits(capture: Capture) -> Tile:
    tile, coverage = partial(Tile, name="splits", title="Splits"), coverage_of(capture)
    breaks, graphs, recompiles = len(capture.breaks), len(current_graphs(capture)), len(own_recompiles(capture))
    partitions = None if coverage.verdict in ("foreign", "empty") else coverage.partition_count
    planned = recompiles - (unplanned := sum(recompiles_by_role(capture).values()))
    facts = [
        counted(breaks, "graph break") if breaks else "no graph break",
        *([] if partitions is None else [counted(partitions, "partition")]),
        counted(recompiles, "recompile") + (f" ({planned:,} of decode after prefill)" if planned else "") if recompiles else "no recompile",
    ]
    if coverage.is_cut_short:
        detail = f"the dry run ended{dry_run_end(capture)}; until there {', '.join(facts)}"
        return tile(state="caution", word="unknown: cut short", detail=detail, tab="breaks")
    if not graphs and not breaks:
        return tile(state="unknown", word="none", detail="nothing was compiled")
    word = facts.pop(0 if breaks else len(facts) - 1 if unplanned else 1 if partitions is not None else 0)
    is_whole = not (breaks or unplanned) and (partitions or 0) <= graphs
    state: State = "good" if is_whole else "caution"
    if (lost := next((frame for frame in given_up(capture) if frame.status == "failed"), None)) is not None:
        return tile(
            state="caution",
            word=f"{visible(lost.frame)} given up",
            detail="; ".join([given_up_clause(lost), ", ".join([word, *facts])]),
            tab="breaks",
        )
    if is_whole and partitions == 0:  # nothing to split is no merit
        word, state = "no partition", "plain"
    if is_dry_run(capture):
        word, state = f"planned: {word}", "unknown" if is_whole else "caution"
    return tile(state=state, word=word, detail=", ".join(facts), tab="breaks" if breaks or unplanned else "graph")


def dry_run_end(capture: Capture) -> str:
    """Say where a dry run ended before the function did, as ` at model.py:12`; empty where that is not known."""
    end = next((finding for finding in findings_of(capture) if finding.rule == "dry_run_ended"), None)
    return f" at {place(end.file, end.line)}" if end is not None and end.file else ""


def _correct(capture: Capture, call: Call) -> Tile:
    verdict, numbers = correct_verdict(capture), numbers_of(capture)
    right, wrong = (0, 0) if numbers is None else (numbers.right_in_all, numbers.wrong_in_all)
    against = "PyTorch" if numbers is None else visible(numbers.against)
    compared = f"{counted(right + wrong, 'value')} compared with {against}"
    by = f", by up to {differences_words(numbers.largest)}" if numbers is not None and numbers.largest is not None else ""
    others = "the results differ without a verdict" if numbers is not None and numbers.is_undecided else "others were not compared"
    words: dict[str, tuple[State, str, str]] = {
        "verified": ("good", "verified", f"{compared}, all match"),
        "partly": ("unknown", "verified in part", f"{compared}, all match; {others}"),
        "differs": ("bad", "differs", f"{wrong:,} of {compared} {'differs' if wrong == 1 else 'differ'}{by}"),
        "unchecked": ("unknown", "not checked", "nothing ran" if is_dry_run(capture) else "against PyTorch"),
        "nothing": ("unknown", "not checked", "ONNX Runtime computed nothing"),
    }
    state, word, detail = words[verdict]
    if numbers is not None and numbers.is_undecided and numbers.call and numbers.call.sqnr_db is not None:
        state, word, detail = "unknown", f"{numbers.call.sqnr_db:.1f} dB", f"the SQNR of the outputs against {against}"
    todo = call("verify") if verdict == "unchecked" and numbers is None else ""
    return Tile(name="correct", title="Correct", state=state, word=word, detail=detail, call=todo, tab="numerics", selected=_wrong(capture))


def differences_words(found: Differences) -> str:
    """Say how large the largest differences are, and against what."""
    scales, tolerances = [] if found.max_rel is None else [f"{found.max_rel:.1e} of a value"], found.tolerances
    if tolerances is not None:
        scales.append(f"{percent(tolerances)} of a tolerance" if tolerances <= 1 else f"{times(tolerances)} a tolerance")
    return f"{found.max_abs:.1e}{', ' if scales else ''}{' and '.join(scales)}"


def _wrong(capture: Capture) -> str | None:
    """Find the id of the first wrong value, as the explorer knows it."""
    graph_of = graph_by_partition(capture)
    wrong = [row for row in capture.numerics if row.ok is False and row.partition_id in graph_of]
    first = next((row for row in wrong if row.first_divergence), wrong[0] if wrong else None)
    return None if first is None else f"node:{graph_of[first.partition_id or '']}/{first.node}"


def _call(want: Want, *, capture: Capture, hints: Hints) -> str:
    """Return what fills the tile in; empty where nothing is measured: in a dry run, or where nothing was compiled."""
    if is_dry_run(capture) or coverage_of(capture).verdict == "empty":
        return ""
    return hints.text(want, is_onnx=onnx_facts(capture) is not None)
