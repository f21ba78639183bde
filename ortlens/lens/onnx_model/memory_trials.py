"""What frees the memory that a session keeps for a rare call, tried on sessions like it, each way in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import TYPE_CHECKING, Any

import onnxruntime

from ortlens import _ort
from ortlens._process import resident_bytes, usable_bytes
from ortlens.analysis.problems.catalogue import remedy
from ortlens.lens.observing.session_memory import FIRST, MUCH
from ortlens.lens.onnx_model.signature import Input, generated
from ortlens.trace.guard import lens_guard
from ortlens.units import size_from_bytes, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.lens.observing.session_memory import SessionMemory, Sizes

_SHRINK, _SHARED = ("memory.enable_memory_arena_shrinkage", "cpu:0"), ("session.use_env_allocators", "1")
_ARENA = 'onnxruntime.OrtMemoryInfo("Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT)'
_WAYS = {
    "shrinking": f"Pass options to such runs: options = onnxruntime.RunOptions(); options.add_run_config_entry{_SHRINK}".replace("'", '"'),
    "no arena": "Make the session without an arena: options.enable_cpu_mem_arena = False in its SessionOptions",
    "smaller batches": "Pass at most {rows:,} rows at a time",
    "one session": "Have all callers use one session: several threads may call it at once",
    "a shared arena": f"Once: onnxruntime.create_and_register_allocator({_ARENA}, None); in the SessionOptions of each session: "
    f"options.add_session_config_entry{_SHARED}".replace("'", '"'),
}
"""What to do, by what it is called."""
_ENOUGH, _REPEATS = 0.5, 20  # share of what the best way frees, from which a faster one is better; timed runs
_SHARING, _TIMES = ("one session", "a shared arena"), ("large_ns", "usual_ns")


def try_memory(memory: SessionMemory, request: _ort.SessionRequest, signature: Sequence[Input], left_s: float) -> None:
    """Try what frees the memory that a session keeps for rare calls, if it keeps much and there is room; note what it frees and costs."""
    kinds, room = {each.name: each.type for each in signature}, (usable_bytes() or 0) - (resident_bytes(os.getpid()) or 0)
    if (found := memory.rare()) is None or not all(kinds.keys() == each.shapes.keys() for each in found):
        return
    with lens_guard(memory.recorder, "trying what frees memory"):
        (large, usual), count, end = found, len(memory.pool()), time.monotonic() + min(left_s, 300)
        if (tried := min(count, 2)) * 2 * large.raised > room:
            return
        given = {"kinds": kinds, "large": large.shapes, "usual": usual.shapes, "callers": tried, "times": min(large.calls, FIRST)}
        given |= {"large_first": large.first < usual.first, "parts": 1}
        ways = {way: given | {"way": way} for way in ("", "shrinking", "no arena", *(_SHARING if count > 1 else ()))}
        rows, whole = _fewer_rows(large, usual)
        cut = {name: (rows, *shape[1:]) if shape != usual.shapes[name] else shape for name, shape in large.shapes.items()}
        ways |= {"smaller batches": given | {"way": "smaller batches", "large": cut, "parts": -(-whole // rows)}} if rows else {}
        trials = {way: row for way in ways if (row := _ort.tried_in_child(__name__, request, ways[way], end - time.monotonic()))}
        if "" in trials:
            evidence, todo = _advice(trials.pop(""), trials, count, found, rows)
            untried = ", ".join(way for way in ways if way and way not in trials)
            memory.tried = evidence + (f"; no time for {untried}, which profile(budget_s=300) has" if untried else ""), todo
            memory.report()


def _fewer_rows(large: Sizes, usual: Sizes) -> tuple[int, int]:
    """Return how many rows to pass at a time, and of how many, where the calls differ in the number of rows alone; 0 where they do not."""
    pairs = [(shape, usual.shapes[name]) for name, shape in large.shapes.items() if shape != usual.shapes[name]]
    rows = {(most[0], few[0]) if most and few and most[1:] == few[1:] else (0, 0) for most, few in pairs}
    most, few = max(rows)
    return max(few, most // 8) if len(rows) == 1 else 0, most


def _advice(
    as_is: Mapping[str, int], trials: Mapping[str, Mapping[str, int]], count: int, found: tuple[Sizes, Sizes], rows: int
) -> tuple[str, dict[str, Any]]:
    """Say what each way frees for `count` sessions, and costs; advise those that free about as much as the best, the fastest first."""
    all_of = count / min(count, 2), count / min(count, 2)
    parts = {"one session": (all_of[0], 1), "a shared arena": (count - 1, count - 1)}  # of all sessions as tried, and of the trial
    freed = {way: round(as_is["bytes"] * own - row["bytes"] * its) for way, row in trials.items() for own, its in [parts.get(way, all_of)]}
    times = {way: " and ".join(time_from_ns(trial[name]) for name in _TIMES) for way, trial in (("", as_is), *trials.items())}
    told = [f"{way}: {size_from_bytes(max(freed[way], 0))} freed, {times[way]}" for way in trials]
    evidence = f". Tried in processes of their own, with the time of such a call and of the others, which take {times['']}: "
    worth = [way for way in trials if freed[way] >= max(MUCH // 2, _ENOUGH * max(freed.values(), default=0))]
    worth.sort(key=lambda way: sum(trials[way][name] * sizes.calls for name, sizes in zip(_TIMES, found, strict=True)))
    todo = [f"{_WAYS[way].format(rows=rows)}." for way in worth] or ["Nothing that was tried frees it: give the process this much memory."]
    return evidence + "; ".join(told), remedy(todo[0], " ".join(f"Or: {line}" for line in todo[1:])) | {"measured": True}


def answer() -> None:
    """Try one way in this process, as standard input asks, and write the figures to standard output."""
    given, process, clock = json.loads(sys.stdin.read()), os.getpid(), time.perf_counter_ns
    way, parts, kinds, shapes = given["way"], given["parts"], given["kinds"], (given["usual"], given["large"])
    usual, large = (generated([Input(name=name, type=kinds[name], shape=tuple(each[name])) for name in kinds])[0] for each in shapes)
    options = _ort.run_options(dict([_SHRINK])) if way == "shrinking" else None
    given["settings"]["enable_cpu_mem_arena"] *= way != "no arena"
    if way == "a shared arena":
        given["entries"] |= dict([_SHARED])
        kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
        onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT), None)

    def run(at: int, feed: dict[str, Any] = usual, times: int = 1) -> int:
        began = clock()
        for _ in range(times):
            sessions[at % len(sessions)].run(None, feed, None if feed is usual else options)
        return clock() - began

    def run_usual(times: int) -> list[int]:
        with ThreadPoolExecutor(given["callers"]) as callers:
            return list(callers.map(run, range(times * given["callers"])))

    before = resident_bytes(process) or 0
    sessions = [_ort.session_from(given) for _ in range(1 if way == "one session" else given["callers"])]
    run_usual(0 if given["large_first"] else FIRST)  # the first block of an arena is never given back
    for at in range(given["callers"] * given["times"]):
        run(at, large, parts)
    run_usual(FIRST)
    figures = (resident_bytes(process) or 0) - before, min(run(0, large, parts) for _ in range(2)), round(median(run_usual(_REPEATS)))
    sys.stdout.write(f"\n{json.dumps(dict(zip(('bytes', *_TIMES), figures, strict=True)))}")
