"""Several ways of running a model, as a table and a conclusion."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ortlens.units import time_from_ns
from ortlens.views.wording import clipped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.analysis.compare.ways import RunVariant

_HEADS = ("way", "time per call", "of eager", "99 % interval", "first call", "difference", "")


def ways_text(rows: Sequence[RunVariant], *, width: int = 100) -> str:
    """Lay the ways, eager first, out as a table, with the reasons of those that could not be measured, and a conclusion."""
    measured = [row for row in rows if row.call_ns is not None]
    cells = [_HEADS, *(_cells(row) for row in measured)]
    sizes = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)).rstrip() for line in cells]
    lines += [clipped(f"{row.way}: not measured: {row.note}", width) for row in rows if row.call_ns is None]
    return "\n".join([*lines, "", conclusion(rows)])


def conclusion(rows: Sequence[RunVariant]) -> str:
    """Say which way is fastest, as far as that is sure."""
    faster = sorted((row for row in rows if row.verdict == "faster"), key=lambda row: row.ratio or 1.0)
    if not faster:
        return "No way is faster than eager outside the noise."
    best, *others = faster
    close = [row.way for row in others if (row.ratio_low or 0.0) <= (best.ratio_high or 1.0)]
    beside = f"; {' and '.join(close)} cannot be told apart from it" if close else ""
    return f"Fastest: {best.way}, {best.ratio or 1.0:.2f}x of eager{beside}."


def _cells(row: RunVariant) -> tuple[str, ...]:
    reference = row.verdict == "reference"
    return (
        row.way,
        time_from_ns(row.call_ns or 0),
        "" if reference else f"{row.ratio or 1.0:.2f}x",
        "" if reference else f"{row.ratio_low or 1.0:.2f}x to {row.ratio_high or 1.0:.2f}x",
        time_from_ns(row.first_ns or 0),
        "" if reference or row.max_abs is None else "other shapes or NaN" if math.isinf(row.max_abs) else f"{row.max_abs:.1e}",
        "" if reference else row.verdict,
    )
