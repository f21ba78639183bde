"""A bisection in words: a table and sentences for a terminal, and a folder with a text for an issue."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ortlens._files import whole_folder
from ortlens.lens.observing.optimizers import LEVELS
from ortlens.lens.repro.evidence import versions, without_paths
from ortlens.units import counted, distance, size_from_bytes, time_from_ns
from ortlens.views.table import brief_columns, shown_columns
from ortlens.views.wording import place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ortlens.analysis.compare.changes import Change
    from ortlens.studies.bisect import BisectedSide, Bisection, OperatorKernels
    from ortlens.studies.first_difference import Difference

_WORTH, _SHARE = 1.1, 0.05  # of operators whose time differs: the least ratio, and the least share of a call
_NAMED = 5  # operators that are listed
_RIGHT = {
    "base": "The reference implementation of ONNX agrees with the base.",
    "other": "The reference implementation of ONNX agrees with the other side.",
    "both": "Both are within rounding of the reference implementation of ONNX.",
    "neither": "The reference implementation of ONNX agrees with neither.",
}
_FILES = {"model": "model.onnx", "inputs": "inputs.npz", "expected": "expected.npz"}  # of the smallest model
_CHANGES = {"break": "a graph break", "recompile": "a recompile", "function": "a function that is not compiled"}
_REPRO = """\
# Run it in either environment: needs onnxruntime and numpy. It ends with 1 where results differ from those of the base.
import sys

import numpy as np
import onnxruntime


def read(path):
    with np.load(path) as file:
        return {{str(name): file[f"arr_{{place}}"] for place, name in enumerate(file["names"])}}


options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.{level}
session = onnxruntime.InferenceSession("model.onnx", options, providers=sys.argv[1:] or [{provider}])
expected, results = read("expected.npz"), session.run(None, read("inputs.npz"))
print("onnxruntime", onnxruntime.__version__, session.get_providers())
same = True
for (name, base), own in zip(expected.items(), results):
    close = base.shape == own.shape and np.allclose(own, base, rtol=1e-5, atol=1e-7, equal_nan=True)
    print(name, "as the base" if close else "DIFFERS\\nbase:\\n%s\\nhere:\\n%s" % (base, own))
    same = same and close
sys.exit(not same)
"""


def sentences(result: Bisection) -> Iterator[str]:
    """Say what differs from the base, a side after the other."""
    base = result.base
    for row in result.rows:
        if row.status == "refused":
            yield f"{row.way}: refused: broken by ONNX Runtime's {row.note}"
            continue
        if row.status != "ok":
            yield f"{row.way}: {row.status}: {row.note}{_origin(row.first) if row.first is not None else ''}"
            continue
        yield from (_change(row, change) for change in row.changes)
        if row.output is not None:
            yield f"{row.way}: {_difference(row.output)}{_origin(row.first, row.other_bits_from)}"
        if row.unsteady is not None:
            what = f"the last of {row.runs} runs differs from the first in one process"
            yield f"{row.way}: {what}: {_difference(row.unsteady)}{_origin(row.unsteady_first)}"
        if row.growth is not None and row.growth.low > 0:
            what = "malloc holds" if row.growth.of == "heap" else "the process holds"
            low, high = size_from_bytes(row.growth.low), size_from_bytes(row.growth.high)
            more = f"{size_from_bytes(row.growth.per_run)} more after each of {row.runs} runs"
            yield f"{row.way}: {what} {more} (99 % interval {low} to {high})"
        if row is not base and (changed := changed_kernels(base, row)):
            yield f"{row.way}: time per call by operator, of the base -> here: {'; '.join(changed)}"
    if result.smallest is not None:
        right = f" {_RIGHT[result.smallest.right]}" if result.smallest.right else ""
        yield f"A model of {counted(result.smallest.nodes, 'node')} shows the difference on {result.smallest_side}.{right}"
    if not result.differs and all(row.output is None and not row.changes for row in result.rows):
        which = "All sides" if all(row.status == "ok" for row in result.rows) else "The sides that run"
        yield f"{which} give the same bits{', and no memory grows' if result.base.growth is not None else ''}."


def _change(row: BisectedSide, change: Change) -> str:
    does = {"added": "adds", "removed": "no longer has"}.get(change.change, f"has {change.after}, not {change.before},")
    return f"{row.way} {does} {_CHANGES[change.kind]} at {place(change.file, change.line)}: {change.subject}"


def _difference(found: Difference) -> str:
    if found.max_abs is None:
        return f"{found.value} is {found.note}"
    how = "within rounding" if found.kind == "rounding" else "beyond rounding"
    return f"{found.value} differs {how}, {distance(found.max_abs, found.max_rel)}{f'; {found.note}' if found.note else ''}"


def _origin(first: Difference | None, other_bits_from: str | None = None) -> str:
    if first is None:
        return ". No single value inside the models differs as much"
    place = f" at {first.line}" if first.line else ""
    note = f" ({first.note})" if first.note and first.kind != "fails" else ""
    before = f"; other bits from {other_bits_from} on" if other_bits_from and other_bits_from != first.node else ""
    return f". First in {first.node} ({first.op_type}){place}{note}{before}"


def changed_kernels(base: BisectedSide, row: BisectedSide) -> list[str]:
    """List the operators whose time differs by more than their stretches do, the largest difference first."""
    ours, theirs = ({kernel.op_type: kernel for kernel in side.kernels} for side in (row, base))
    whole = max(sum(kernel.total_ns for kernel in base.kernels), 1)
    found = []
    for name in dict.fromkeys([*theirs, *ours]):
        before, after = theirs.get(name), ours.get(name)
        gap = abs((after.total_ns if after else 0) - (before.total_ns if before else 0))
        if gap >= _SHARE * whole and (before is None or after is None or _apart(before, after)):
            found.append((gap, f"{name} {_kernel_words(before)} -> {_kernel_words(after)}"))
    return [words for _, words in sorted(found, reverse=True)[:_NAMED]]


def _apart(one: OperatorKernels, other: OperatorKernels) -> bool:
    slow, fast = (one, other) if one.total_ns >= other.total_ns else (other, one)
    banded = slow.low_ns is not None and fast.high_ns is not None
    return slow.total_ns >= _WORTH * max(fast.total_ns, 1) and banded and (slow.low_ns or 0) > (fast.high_ns or 0)


def _kernel_words(kernel: OperatorKernels | None) -> str:
    return "none" if kernel is None else f"{time_from_ns(kernel.total_ns)} in {kernel.count}"


def write_issue(result: Bisection, folder: Path, command: str) -> Bisection:
    """Write a folder with a text for an issue and, where one was found, the smallest model with its inputs and a script.

    Returns the result, with the files of that model there.
    """
    with whole_folder(folder, mark="ISSUE.md") as made:
        cut = result.smallest
        if cut is not None:
            row = next(row for row in result.rows if row.way == result.smallest_side)
            for name, file in _FILES.items():
                shutil.copyfile(getattr(cut, name), made / file)
            provider = repr((row.provider, dict(row.provider_options)))
            (made / "repro.py").write_text(_REPRO.format(level=LEVELS[row.level], provider=provider), encoding="utf-8")
        (made / "ISSUE.md").write_text(issue_of(result, command), encoding="utf-8")
    there: dict[str, Any] = {name: str(folder / file) for name, file in _FILES.items()}
    return result if cut is None else replace(result, smallest=replace(cut, **there))


def issue_of(result: Bisection, command: str) -> str:
    """Write an issue in Markdown."""
    base = result.base
    others = [row for row in result.rows if row is not base]
    lines = [f"# {_title(result)}", "", *(f"- {without_paths(line)}" for line in sentences(result)), "", "## Sides", ""]
    shown = shown_columns(result.rows, (*brief_columns(result.rows), "status"))
    lines += _table([[column.head for column in shown], *zip(*(column.cells for column in shown), strict=True)])
    lines += ["", "## Versions", "", *(f"- {name} {version}" for name, version in {**versions(), **base.versions}.items())]
    for row in others:
        other = [f"{name} {version}" for name, version in row.versions.items() if base.versions.get(name) != version]
        lines += [f"- {row.way}: {', '.join(other)}"] if other else []
    lines += ["", "## To reproduce", "", "```", without_paths(command), "```", ""]
    if result.smallest is not None:
        text = "The folder has the smallest model that shows it, its inputs, and the results of the base:"
        lines += [text, "", "```", "python repro.py", "```", "", "The inputs and constants are those of the run, not random ones.", ""]
    return "\n".join(lines)


def _title(result: Bisection) -> str:
    base = result.base
    others = [row for row in result.rows if row is not base]
    row = next((row for row in others if row.output is not None and row.output.kind == "differs"), None)
    if (failed := next((row for row in others if row.status in ("crashed", "failed")), None)) is not None:
        return f"{failed.first.op_type if failed.first is not None else 'The model'}: fails in {failed.way}, runs in {base.way}"
    if row is not None:
        node = f"{row.first.op_type}: " if row.first is not None else ""
        right = None if result.smallest is None or result.smallest_side != row.way else result.smallest.right
        wrong = {"other": (base.way, row.way), "base": (row.way, base.way)}.get(right or "")
        if wrong is not None:
            return f"{node}wrong results in {wrong[0]}, right ones in {wrong[1]}"
        return f"{node}other results in {row.way} than in {base.way}"
    said = [_change(row, change) for row in others for change in row.changes if change.effect == "worse"]
    said += [f"Memory grows with each run in {row.way}" for row in result.rows if row.growth is not None and row.growth.low > 0]
    said += [f"{row.way} takes {row.ratio:.2f} times as long as {base.way}" for row in others if row.verdict in ("slower", "faster")]
    return said[0] if said else f"{base.way} against {counted(len(others), 'other side')}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|" + "---|" * len(rows[0]), *body]
