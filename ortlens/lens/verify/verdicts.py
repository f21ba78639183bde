"""Turns a comparison into a verdict: right, wrong, or not checked and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens.backend.lowering import provenance
from ortlens.lens.verify.compare_values import Comparison, Tolerance, Tolerances, compare
from ortlens.lens.verify.lockstep import Missing
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The verdict on one value; becomes a row of the frame `numerics`."""

    node: str  # FX node that computes it
    scope: r.NumericScope  # what was compared
    place: int  # its place in the graph, to find the first divergence
    onnx_value: str | None = None
    ok: bool | None = None  # whether it is right; None if it was not checked
    tolerance: Tolerance | None = None  # the tolerance; None if nothing was compared
    comparison: Comparison | None = None  # how far apart the values are; None likewise
    nonfinite: str | None = None  # as in the column
    is_excused: bool = False  # whether it differs, and PyTorch might return the same; see `excuses`
    note: str = ""  # why it was not checked, or what was found
    details: tuple[str, ...] = ()  # what was found besides
    open_because: str = ""  # why there is no verdict although it was compared
    left_out: bool = False  # whether the time was over before it, or some calls of its partition, were compared
    line_of: torch.fx.Node | None  # the node whose user line is shown; None for a part of the whole call
    place_in_code: tuple[str | None, int | None] = (None, None)  # file and line of the user, where no node tells them

    @property
    def text(self) -> str:
        """The note with its details."""
        return "; ".join(filter(None, (self.note, *self.details)))

    def add(self, note: str) -> None:
        """Add to the note."""
        if self.note:
            self.details += (note,)
        else:
            self.note = note

    def restate(self, note: str) -> None:
        """Replace the note and its details."""
        self.note, self.details = note, ()

    def leave_open(self, why: str) -> None:
        """Give no verdict on what was compared."""
        self.ok, self.open_because = None, why

    def row(self, partition_id: str | None) -> r.Numeric:
        """Make the record, not marked as the first divergence; `partition_id` is None for a part of the whole call."""
        found, passed = self.comparison, self.tolerance
        file, line = self.place_in_code if self.line_of is None else provenance.user_line(self.line_of)[:2]
        return r.Numeric(
            partition_id=partition_id,
            node=self.node,
            scope=self.scope,
            onnx_value=self.onnx_value,
            max_abs=None if found is None else _finite(found.max_abs),
            max_rel=None if found is None else _finite(found.max_rel),
            ok=self.ok,
            atol=None if passed is None else passed.atol,
            rtol=None if passed is None else passed.rtol,
            closer_to_fp64=None if found is None else found.closer(),
            nonfinite=self.nonfinite,
            file=file,
            line=line,
            note="; ".join(filter(None, (self.open_because and f"no verdict: {self.open_because}", self.text))),
            why="" if self.ok is not None else self.open_because or self.note,
            is_undecided=bool(self.open_because),
            left_out=self.left_out,
        )


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def judge(verdict: Verdict, ort: Any, eager: Any, double: Any, tolerances: Tolerances) -> None:
    """Compare two values and decide whether ONNX Runtime's is right; fills in `verdict`. `double` is None where no such run is wanted."""
    ort, eager = _as_tensor(ort), _as_tensor(eager)
    if isinstance(ort, Missing) or isinstance(eager, Missing):
        verdict.note = next(value.reason for value in (ort, eager) if isinstance(value, Missing))
        return
    if ort.dtype is not eager.dtype:
        verdict.note = f"not comparable: {_short(ort)} in ONNX Runtime, {_short(eager)} in PyTorch"
        return
    if ort.shape != eager.shape:
        verdict.ok, verdict.note = False, f"shape {list(ort.shape)} in ONNX Runtime, {list(eager.shape)} in PyTorch"
        return
    wide = None if double is None else _as_tensor(double)
    if isinstance(wide, Missing):
        verdict.note, wide = f"no float64 run: {wide.reason}", None
    verdict.tolerance = tolerances.of(eager.dtype)
    verdict.comparison = compare(ort, eager, wide, verdict.tolerance)
    _decide(verdict, verdict.comparison, verdict.tolerance)


def _decide(verdict: Verdict, found: Comparison, tolerance: Tolerance) -> None:
    verdict.nonfinite = {(True, True): "both", (True, False): "ort", (False, True): "eager"}.get((found.ort_bad > 0, found.eager_bad > 0))
    if found.both_nan and found.both_nan == found.elements:
        verdict.add("only NaN on both sides: nothing to compare")
        return
    if found.both_nan:
        verdict.add(f"{found.both_nan:,} of {found.elements:,} elements are NaN on both sides and were not compared")
    verdict.ok = found.within and not found.clashes
    if found.clashes:
        verdict.add(f"{found.clashes:,} of {found.elements:,} elements are NaN or infinite on one side only")
    elif not verdict.ok and not tolerance.given and found.rounds_alike():
        verdict.ok = True
        errors = f"({found.ort_error:.2g} and {found.eager_error:.2g})"
        alike = "about as close to the float64 run as PyTorch" if not found.by_chance() else "errors of so few numbers differ by chance"
        verdict.add(f"beyond the tolerance but ok: {alike} {errors}")


def _as_tensor(value: Any) -> torch.Tensor | Missing:
    if isinstance(value, (torch.Tensor, Missing)):
        return value
    if isinstance(value, (bool, int, float)):
        return torch.tensor(value)
    return Missing(f"a {type(value).__name__} is not compared")


def _short(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def unchecked(nodes: Sequence[torch.fx.Node], scope: r.NumericScope, note: str, *, left_out: bool = False) -> list[Verdict]:
    """Make the verdicts on values of one graph that were not compared."""
    places = {node: place for place, node in enumerate(nodes[0].graph.nodes)} if nodes else {}
    return [Verdict(node=node.name, scope=scope, place=places[node], note=note, left_out=left_out, line_of=node) for node in nodes]
