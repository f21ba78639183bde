"""ONNX functions of our own, for operators that people's models use and the registry of torch and onnxscript lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def own_functions() -> dict[Any, Callable[..., Any]]:
    """The functions for operators that exist in this process.

    `transformers` registers its grouped matrix product, which its mixtures of experts use, when their code is imported.

    Returns:
        Op overload -> function; asked anew for each compilation, since operators come with imports.
    """
    grouped = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    return {} if grouped is None else {grouped.default: grouped_mm}


def grouped_mm(tokens: Any, weight: Any, offs: Any) -> Any:
    """Rows of a matrix, in groups, each group times a matrix of its own.

    Args:
        tokens: [row, in]; the rows of a group lie together.
        weight: [group, in, out], with a known number of groups.
        offs: [group], where each group ends.

    Returns:
        [row, out]; rows after the last group are zero. Source: `grouped_mm_fallback` in `transformers/integrations/moe.py`.
    """
    from onnxscript import opset18

    op: Any = opset18  # its annotations are about scripts; this function is traced with symbolic values
    zero = op.Constant(value_ints=[0])
    ends = op.Cast(offs, to=7)  # INT64
    start, parts = zero, []
    for group in range(int(weight.shape[0])):
        end = op.Slice(ends, op.Constant(value_ints=[group]), op.Constant(value_ints=[group + 1]))
        parts.append(op.MatMul(op.Slice(tokens, start, end, zero), op.Gather(weight, op.Constant(value_int=group))))
        start = end
    left = op.Sub(op.Shape(tokens, start=0, end=1), start)
    return op.Pad(op.Concat(*parts, axis=0), op.Concat(zero, zero, left, zero, axis=0))
