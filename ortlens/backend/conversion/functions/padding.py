"""Padding by what a tensor holds at its edges, also by a negative number of elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten


def _pad_of(target: Any) -> Callable[..., Any]:
    """Make a padding that removes elements where its amount is negative: after it has padded, because it may repeat what is removed."""

    def pad(x: Any, padding: Sequence[Any]) -> Any:
        known = [amount for amount in padding if isinstance(amount, int)]
        if len(known) < len(padding) or min(known) >= 0:
            return basics.registered(target)(x, padding)
        op = basics.opset()
        made = basics.registered(target)(x, [max(amount, 0) for amount in known]) if max(known) > 0 else x
        for place in range(0, len(known), 2):
            axis = op.Constant(value_ints=[len(x.shape) - 1 - place // 2])
            start, end = op.Constant(value_ints=[max(-known[place], 0)]), min(known[place + 1], 0)
            until = op.Constant(value_ints=[end]) if end else op.Constant(value_ints=[torch.iinfo(torch.int64).max])
            made = op.Slice(made, start, until, axis)
        return made

    return pad


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    target: _pad_of(target)
    for target in (
        _aten.reflection_pad1d.default,
        _aten.reflection_pad2d.default,
        _aten.reflection_pad3d.default,
        _aten.replication_pad1d.default,
        _aten.replication_pad2d.default,
        _aten.replication_pad3d.default,
    )
}
"""Op overload -> function."""
