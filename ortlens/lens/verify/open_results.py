"""Results that PyTorch itself does not define: uninitialised memory, and the order of equal values."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

_aten = torch.ops.aten

_UNINITIALISED = (
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.empty_permuted.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
)

_ORDERS = (_aten.topk.default, _aten.sort.default, _aten.sort.stable)
"""Operators whose second output holds the positions of the values. argmax and max return the first of equal values, these any."""


def is_uninitialised(node: torch.fx.Node) -> bool:
    """Tell whether an operator is of the `empty` family and returns uninitialised memory."""
    return node.target in _UNINITIALISED


def differ_by_ties(node: torch.fx.Node, item: int | None, first: Any, second: Any, source: Any) -> bool:
    """Tell whether two results of sorting differ only in the order of equal values, or of all if no order was requested.

    False also if the operator defines the order, or if a position is out of range.
    """
    if node.target not in _ORDERS or item is None or _argument(node, "stable") is True:
        return False
    if not all(isinstance(value, torch.Tensor) for value in (first, second, source)) or first.shape != second.shape or not source.dim():
        return False
    dim, in_any_order = _argument(node, "dim"), _argument(node, "sorted") is False
    if item == 0:
        return in_any_order and torch.equal(first.sort(dim).values, second.sort(dim).values)
    values = [_values_at(source, places, dim) for places in (first, second)]
    if any(value is None for value in values):
        return False
    one, other = (value.sort(dim).values if in_any_order else value for value in values if value is not None)
    return torch.equal(one, other)


def _values_at(source: torch.Tensor, places: torch.Tensor, dim: int) -> torch.Tensor | None:
    """Read the values at these positions; None if a position is out of range or repeated, which is always an error."""
    if places.numel() and (int(places.min()) < 0 or int(places.max()) >= source.shape[dim]):
        return None
    distinct = bool((places.sort(dim).values.diff(dim=dim) != 0).all())
    return source.gather(dim, places) if distinct else None


def _argument(node: torch.fx.Node, name: str) -> Any:
    """Return an argument of an operator, or its default."""
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]  # noqa: SLF001 - an overload has one
        if argument.name == name:
            return node.args[place] if place < len(node.args) else node.kwargs.get(name, argument.default_value)
    return None
