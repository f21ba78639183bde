"""Sums whose terms cancel: their rounding errors are as large as the terms make them, however small the result is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens.lens.verify.lockstep import call_in_double, widened

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.lens.verify.compare_values import Tolerance

_aten = torch.ops.aten

_SUMS = (_aten.sum.default, _aten.sum.dim_IntList, _aten.mean.default, _aten.mean.dim)

NOTE = "beyond the tolerance but ok: the terms of this sum cancel, and the difference is rounding beside their magnitudes"


def cancels(node: torch.fx.Node, ort: Any, eager: Any, read: Callable[[torch.fx.Node], Any], tolerance: Tolerance | None) -> bool:
    """Tell whether two results of a sum or mean are the same within the tolerance, taken of the magnitudes of its terms.

    Adding n numbers in any order is off by a few roundings of what is added. If terms of both signs cancel, that is much of the result, and
    how much differs between PyTorch, which adds in a tree, and ONNX Runtime. A lost term, or a sum of so many that rounding adds up, is
    larger. A tolerance that the user chose is taken as it is.
    """
    if node.target not in _SUMS or tolerance is None or tolerance.given:
        return False
    if not all(isinstance(value, torch.Tensor) and value.dtype.is_floating_point for value in (ort, eager)) or ort.shape != eager.shape:
        return False
    magnitudes = call_in_double(node, lambda source: _magnitude(read(source)))
    if not isinstance(magnitudes, torch.Tensor):
        return False
    distance = (ort.detach().double() - eager.detach().double()).abs()
    return bool((distance <= tolerance.atol + tolerance.rtol * magnitudes).all())


def _magnitude(value: Any) -> Any:
    wide = widened(value)
    return wide.abs() if isinstance(wide, torch.Tensor) else wide
