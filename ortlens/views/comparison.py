"""What `compare` returns: frames, text and HTML over two captures.

The HTML has no script: what is aligned is one row. Colours come from the summary's style sheet; every difference has a sign and a word as
well. Only the page has ids and links to them, since a notebook may hold a fragment many times.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ortlens._os_errors import with_clear_os_errors
from ortlens.analysis.compare.changes import Change
from ortlens.analysis.compare.comparison import AlignedOperator, compared, panes
from ortlens.analysis.compare.durations import Timing
from ortlens.analysis.compare.kernels import KernelTime
from ortlens.trace.records import Break
from ortlens.trace.schema import frame_from_records, table_from_record
from ortlens.units import counted, time_from_ns
from ortlens.views.comparison_screen import EFFECTS, by_verdict, comparison_screen, row_name, signed, timing_words, verdict_sentence
from ortlens.views.markup import page_html, render, write_report
from ortlens.views.rendering import screen_text
from ortlens.views.screen import EFFECT_SIGNS
from ortlens.views.wording import clipped

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    from ortlens.analysis.compare.comparison import Compared, Difference, PaneRow
    from ortlens.trace.records import Capture


@with_clear_os_errors
class Comparison:
    """Two captures of one program, aligned by module path, target and structure. A snapshot: later calls of a live lens are not in it.

    Attributes:
        lens: The lens of the second, where `lens.again()` made it; else None.
    """

    lens: Any = None

    def __init__(self, before: Capture, after: Capture) -> None:
        """Compare two captures.

        Args:
            before: The first: a baseline.
            after: The second: what it became.

        Raises:
            UsageError: A capture is empty, or they are of different models.
        """
        self._compared = compared(before, after)

    @property
    def is_worse(self) -> bool:
        """Whether something is slower outside the noise, or a break, recompile, wrong result, error or move to PyTorch is new."""
        return self._compared.is_worse

    @property
    def times(self) -> pd.DataFrame:
        """Calls, graphs and partitions that both have, with times, bands, ratio and verdict."""
        return frame_from_records(table_from_record("times", Timing), self._compared.timings)

    @property
    def changes(self) -> pd.DataFrame:
        """What differs besides times: operators, partitions, breaks, recompiles, results, findings, versions, options, providers."""
        return frame_from_records(table_from_record("changes", Change), self._compared.changes)

    @property
    def operators(self) -> pd.DataFrame:
        """Every operator of both captures with its partner, and how it was recognised."""
        return frame_from_records(table_from_record("operators", AlignedOperator), self._compared.operators)

    @property
    def kernels(self) -> pd.DataFrame:
        """What operators take in both, those that a kernel computes together in one row; the largest growth first."""
        return frame_from_records(table_from_record("kernels", KernelTime), self._compared.kernels)

    def report(self, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
        """Write both captures side by side as one HTML file that opens anywhere, offline.

        Args:
            path: The file; an existing one is replaced if it is a report.
            title: Its title; by default the names of both captures.

        Returns:
            The absolute path of the file.

        Raises:
            UsageError: It cannot be written there, or the file exists and is not a report; it is left untouched.
        """
        return write_report(path, comparison_page(self._compared, title=title))

    def summary(self, *, width: int = 100) -> str:
        """Say what differs.

        Args:
            width: Characters per line, at least 60.

        Returns:
            A verdict, then times and differences by kind.
        """
        return screen_text(comparison_screen(self._compared), width=width)

    def to_dict(self) -> dict[str, Any]:
        """Give the comparison as plain data, for JSON.

        Returns:
            `is_worse`, `verdict`, `before`, `after`, and a list of rows for each of `times`, `kernels` and `changes`.
        """
        found = self._compared
        return {
            "is_worse": found.is_worse,
            "verdict": verdict_sentence(found),
            **{
                side: {"name": capture.name, "backend": capture.backend, "created": capture.created}
                for side, capture in (("before", found.before), ("after", found.after))
            },
            "times": [asdict(row) for row in found.timings],
            "kernels": [
                {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(row).items()} for row in found.kernels
            ],
            "changes": [asdict(row) for row in found.changes],
        }

    def __repr__(self) -> str:
        """Return the verdict on one line."""
        return f"<Comparison: {verdict_sentence(self._compared)}>"

    def __str__(self) -> str:
        """Return the summary."""
        return self.summary()

    def _repr_html_(self) -> str:
        return comparison_html(self._compared)


_NOTEBOOK_ROWS, _PAGE_ROWS = 150, 4_000  # rows of both panes together; what is beyond is counted
_TIMES, _FEW_TIMES = 40, 4
_FOLD = 4  # so many equal rows or more are folded
_DIFFERENCES: Mapping[Difference, str] = {
    "same": "",
    "added": "new",
    "removed": "gone",
    "slower": "slower",
    "faster": "faster",
    "fused": "now fused",
    "split": "no longer fused",
}


def comparison_page(compared: Compared, *, title: str | None = None) -> str:
    """Make a page that loads and runs nothing, by default titled with the names of both captures; names may hold anything."""
    before, after = compared.before.name, compared.after.name
    names = f"{before or 'Comparison'}: before and after" if before == after else f"{before or 'unnamed'} → {after or 'unnamed'}"
    return page_html(
        "comparison_page.html", title or names, styles=(), fragment="comparison.html", **_about(compared, _PAGE_ROWS), anchored=True
    )


def comparison_html(compared: Compared) -> str:
    """Make a fragment for a notebook, without ids, scripts or links; names in the comparison may hold anything."""
    return render("comparison.html", **_about(compared, _NOTEBOOK_ROWS), anchored=False)


def _about(compared: Compared, max_rows: int) -> dict[str, Any]:
    rows = panes(compared)
    # The first row of the panes that holds a measured operator, by side and name.
    sides = ((number, name, side) for number, row in enumerate(rows) for name, side in (("before", row.before), ("after", row.after)))
    anchors = {(name, side.name): number for number, name, side in sides if side is not None and side.ns is not None}
    return {
        "screen": comparison_screen(compared, anchors=anchors),
        "sides": [
            (label, capture.name or "unnamed capture", capture.backend, capture.created or "no date")
            for label, capture in (("Before", compared.before), ("After", compared.after))
        ],
        **_times(compared.timings),
        "panes": _panes(compared, rows, max_rows),
    }


def _times(timings: Sequence[Timing]) -> dict[str, Any]:
    """Describe the times of calls and of what differs; the rest is folded."""
    order = by_verdict(timings)
    rest = [row for row in order if not row.is_whole and row.verdict not in EFFECTS]
    first = [row for row in order if row.is_whole or row.verdict in EFFECTS]
    if len(rest) <= _FEW_TIMES:
        first, rest = order, []
    unmeasured = sum(row.verdict == "unmeasured" for row in rest)
    words = f"{counted(len(rest), 'more graph or partition', 'more graphs and partitions')}: none differs outside the noise"
    words += f", {unmeasured:,} could not be compared" if unmeasured else ""
    words += f"; {len(rest) - _TIMES:,} are in .times only" if len(rest) > _TIMES else ""
    return {"times": [*map(_time, first[:_TIMES])], "more_times": [*map(_time, rest[:_TIMES])], "more_times_words": words}


def _time(row: Timing) -> dict[str, Any]:
    widest = max(row.before_high_ns or 0, row.after_high_ns or 0, 1)
    bands = []
    if row.before_ns is not None and row.after_ns is not None:
        bands = [
            ("before", _band(row.before_low_ns, row.before_ns, row.before_high_ns, widest)),
            ("after", _band(row.after_low_ns, row.after_ns, row.after_high_ns, widest)),
        ]
    before, after = ("" if ns is None else time_from_ns(ns) for ns in (row.before_ns, row.after_ns))
    effect = EFFECTS.get(row.verdict, "neutral")
    return {"effect": effect, "name": row_name(row), "before": before, "after": after, "bands": bands, "verdict": timing_words(row)}


def _band(low: int | None, middle: int, high: int | None, widest: int) -> dict[str, float]:
    start, end = (low or middle) / widest, (high or middle) / widest
    return {"left": start, "width": max(end - start, 0.005), "middle": middle / widest}


def _panes(compared: Compared, rows: Sequence[PaneRow], max_rows: int) -> dict[str, Any]:
    """Describe both panes, of at most `max_rows` rows: those that differ go first, with the few equal ones between them.

    Long runs of equal rows are folded, or only counted where there is no room; what was left out is counted.
    """
    runs = list(_runs(rows))
    left = sum(len(run) for run, is_folded in runs if not is_folded) - max_rows
    room, folded_room = max_rows, -left
    shown: list[dict[str, Any]] = []
    for run, is_folded in runs:
        if is_folded:
            kept = run if len(run) <= folded_room else []
            folded_room -= len(kept)
        else:
            kept = run[:room]
            room -= len(run) if room else 0
        if kept or is_folded:
            shown.append({"fold": _fold_words(run) if is_folded else "", "rows": [(number, row, _difference(row)) for number, row in kept]})
        if room < 0:
            break
    different = f"{counted(sum(not _is_same(row) for row in rows), 'row')} of {len(rows):,}"
    names = [f"{side}: {clipped(found.name, 60)}" for side, found in (("Before", compared.before), ("After", compared.after))]
    return {"runs": shown, "names": names, "different": different, "left": counted(left, "more row") if left > 0 else ""}


def _is_same(row: PaneRow) -> bool:
    return row.difference == "same" and not any(side is not None and isinstance(side.item, Break) for side in (row.before, row.after))


def _runs(rows: Sequence[PaneRow]) -> Iterator[tuple[list[tuple[int, PaneRow]], bool]]:
    """Yield numbered rows, cut where those to be folded begin or end; so few equal ones that folding hides nothing stay with the others."""
    waiting: list[tuple[int, PaneRow]] = []
    for is_same, group in groupby(enumerate(rows), key=lambda item: _is_same(item[1])):
        run = list(group)
        if is_same and len(run) >= _FOLD:
            if waiting:
                yield waiting, False
            yield run, True
            waiting = []
        else:
            waiting += run
    if waiting:
        yield waiting, False


def _fold_words(run: Sequence[tuple[int, PaneRow]]) -> str:
    modules = [side.item.module for _, row in run if (side := row.before) and not isinstance(side.item, Break) and side.item.module]
    around = clipped(modules[0] if modules[0] == modules[-1] else f"{modules[0]} … {modules[-1]}", 120) if modules else ""
    return f"{counted(len(run), 'operator')} without a difference{f' ({around})' if around else ''}"


def _difference(row: PaneRow) -> str:
    """Say what differs, after a sign for better and worse."""
    before, after = row.before, row.after
    sign = "" if row.effect == "neutral" else f"{EFFECT_SIGNS[row.effect]} "
    if isinstance(after and after.item, Break) or isinstance(before and before.item, Break):
        return sign + {"added": "new break", "removed": "fixed"}.get(row.difference, "")
    if row.difference == "moved":
        return f"{sign}moved to {'ONNX Runtime' if row.effect == 'better' else 'PyTorch'}"
    word = _DIFFERENCES[row.difference]
    if before is None or after is None or before.ns is None or after.ns is None:
        return sign + word
    if not word and before.ns == after.ns:
        return sign
    ratio = f" ({after.ns / before.ns:.2f}x)" if before.ns and word else ""
    return f"{sign}{word + ': ' if word else ''}{signed(after.ns - before.ns)}{ratio}"
