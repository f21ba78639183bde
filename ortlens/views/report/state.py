"""Figures about what is held and what came out: memory, and the numbers beside PyTorch's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ortlens.analysis.memory import memory
from ortlens.analysis.numbers import tolerances_of
from ortlens.units import counted, size_from_bytes
from ortlens.views.report.figures import Bar, Bars, Errors, Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.trace.records import Capture, Numeric

_MAX_VALUES = 600
_HOLDERS = (
    ("weights in PyTorch's memory", "weight_bytes"),
    ("weights copied as constants", "copied_bytes"),
    ("heap used by creating sessions", "held_bytes"),
    ("activations in ONNX Runtime's arena", "arena_bytes"),
)


def memory_figure(capture: Capture) -> Figure | None:
    """Show who holds how much memory; None where no session recorded its memory."""
    rows = [row for row in memory(capture) if row.session_id is not None]
    sums = [(name, column, [value for row in rows if (value := getattr(row, column)) is not None]) for name, column in _HOLDERS]
    # Sessions of one partition read the same weights.
    partitions = {row.partition_id: row.weight_bytes or 0 for row in rows}
    sums = [(name, column, list(partitions.values()) if column == "weight_bytes" else values) for name, column, values in sums]
    bars = tuple(
        Bar(label=name, parts=(("memory", float(sum(values))),), text=size_from_bytes(sum(values)))
        for name, _, values in sums
        if values and sum(values) > 0
    )
    if not any(column == "held_bytes" and values for _, column, values in sums) or not bars:
        return None
    return Figure(
        name="memory",
        title="Where does the memory go?",
        caption=f"Read once, when each session was created: sum over {counted(len(rows), 'session')}.",
        method=(
            "Weights are the tensors that the partitions read; ONNX Runtime reads frozen ones from PyTorch's memory. The heap used by "
            "creating a session is the growth of the C library's heap meanwhile: packed copies of weights, and ONNX Runtime's own "
            "structures. The arena is the peak that ONNX Runtime's allocator reported while lens.profile(...) ran. lens.memory() has the "
            "same figures per session. Weights that several partitions read are counted once for each."
        ),
        drawing=Bars(bars=bars),
    )


def numerics_figure(capture: Capture) -> Figure | None:
    """Show how far ONNX Runtime's numbers are from PyTorch's; None where nothing was compared.

    Of many values, all wrong ones are shown, and the worst of each few others.
    """
    rows = [(number, row) for number, row in enumerate(capture.numerics) if row.ok is not None or row.max_rel is not None]
    if not rows:
        return None
    in_tolerances = all(row.max_abs is None or (row.atol is not None and row.rtol is not None) for _, row in rows)
    kept = _worst(rows, in_tolerances=in_tolerances)
    some = f"; the worst {len(kept):,} are drawn" if len(kept) < len(rows) else ""
    checked = sum(row.ok is not None for _, row in rows)
    return Figure(
        name="numerics",
        title="Are the results correct?",
        caption=f"{counted(len(rows), 'value')} of one call compared with PyTorch, {checked:,} with a verdict{some}.",
        method=(
            "lens.verify(...) calls the function once and runs every partition on the same inputs in ONNX Runtime and in PyTorch. The "
            "largest difference of each value is shown as a multiple of the tolerance: the smaller of the absolute difference over "
            "`atol` and the relative one over `rtol`, relative to the larger of the element and the root mean square of PyTorch's value. "
            "A float64 run is the arbiter: a difference beyond the tolerance is accepted where ONNX Runtime is no farther from "
            "it than PyTorch is, within a factor. Equal values are at the bottom; values that are NaN or infinite on one side "
            "only are at the top."
        ),
        drawing=Errors(
            places=tuple(number for number, _ in kept),
            errors=tuple(_error(row, in_tolerances=in_tolerances) for _, row in kept),
            verdicts=tuple(row.ok for _, row in kept),
            in_tolerances=in_tolerances,
        ),
    )


def _error(row: Numeric, *, in_tolerances: bool) -> float:
    """Return at most how many tolerances a value is away; each element may differ by `atol` and by `rtol` times its size."""
    if row.max_rel is None or row.max_abs is None:
        return 0.0 if row.ok else math.inf
    if math.isnan(row.max_rel) or math.isnan(row.max_abs):
        return math.inf
    if not in_tolerances:
        return abs(row.max_rel)
    return tolerances_of(row.max_abs, row.max_rel, row)


def _worst(rows: Sequence[tuple[int, Numeric]], *, in_tolerances: bool) -> list[tuple[int, Numeric]]:
    """Select all wrong ones up to a limit, and of the others the worst of each few in a row."""
    wrong = [item for item in rows if item[1].ok is False][:_MAX_VALUES]
    others = [item for item in rows if item[1].ok is not False]
    size = max(1, -(-len(others) // _MAX_VALUES))
    worst = [
        max(others[first : first + size], key=lambda item: _error(item[1], in_tolerances=in_tolerances))
        for first in range(0, len(others), size)
    ]
    return sorted([*wrong, *worst], key=lambda item: item[0])
