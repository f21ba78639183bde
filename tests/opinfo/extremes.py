"""Values at the edges of each element type, and many operators over them in one compiled function."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ortlens import Lens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.trace.records import Capture

_PLAIN = (0.0, 1.0, 0.5, 1.5, 2.0, 2.5, 3.0, 5.0, 6.0, 10.0, 12.5, 20.0, 50.0, 88.0, 89.0, 100.0, 200.0, 1e4, 1e-2, 1e-4, 1e-8)
_PEAKS = {torch.float32: (1e10, 1e20, 1e-20, 1e-40), torch.float64: (1e10, 1e20, 1e-20, 1e200, 1e-300), torch.float16: (2049.0, 1e-7)}
_RTOL = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def extremes(dtype: torch.dtype) -> torch.Tensor:
    """The values of an element type at which functions go wrong: edges of its range, zeros of both signs, NaN, plain ones."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        limit = torch.finfo(dtype)
        odd = (limit.max, limit.tiny, limit.smallest_normal / 4, float("inf"))
        above = (*_PLAIN, *_PEAKS.get(dtype, ()), *odd)
        return torch.tensor([sign * number for number in above for sign in (1.0, -1.0)] + [float("nan")], dtype=dtype)
    limit_int = torch.iinfo(dtype)
    wide = (0, 1, 2, 3, 7, 8, 100, 127, 128, 255, 2**31 - 1, 2**31 + 1, 2**33, 2**53 + 1, 2**62)
    held = [sign * number for number in wide for sign in (1, -1) if limit_int.min <= sign * number <= limit_int.max]
    return torch.tensor([*held, limit_int.max, limit_int.min], dtype=dtype)


def pairs(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every value of one vector with every value of another, as two vectors."""
    return first.repeat_interleave(len(second)), second.repeat(len(first))


def differing(
    cases: Mapping[str, Callable[..., Any]],
    *tensors: torch.Tensor,
    dynamic: bool = False,
    backward: bool = False,
    atol: float = 0.0,
) -> tuple[dict[str, str], Capture]:
    """Compare many operators with eager at once: they are compiled as one function."""

    def whole(*given: torch.Tensor) -> dict[str, Any]:
        return {name: function(*given) for name, function in cases.items()}

    lens = Lens()
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(whole, backend=lens, dynamic=dynamic)
        expected, ours = _results(whole, tensors, backward=backward), _results(compiled, tensors, backward=backward)
    found = {}
    for name in cases:
        if text := _difference(ours[name], expected[name], tensors, atol):
            found[name] = text
    return found, lens.captured()


def _results(function: Callable[..., Any], tensors: Sequence[torch.Tensor], *, backward: bool) -> dict[str, Any]:
    if not backward:
        with torch.no_grad():
            made: dict[str, Any] = function(*(tensor.clone() for tensor in tensors))
            return made
    results = {}
    torch._functorch.config.donated_buffer = False  # each case has a backward call of its own
    own = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
    wanted = [tensor for tensor in own if tensor.requires_grad]
    for name, value in function(*own).items():
        loss = sum(leaf.sum() for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.requires_grad)
        grads = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True) if isinstance(loss, torch.Tensor) else ()
        results[name] = (pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, value), grads)
    return results


def _difference(got: Any, want: Any, tensors: Sequence[torch.Tensor], atol: float) -> str:
    for ours, theirs in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        if not isinstance(theirs, torch.Tensor):
            if ours != theirs:
                return f"{ours} instead of {theirs}"
            continue
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
        floor = max(torch.finfo(theirs.dtype).tiny, atol) if theirs.dtype.is_floating_point else 0.0
        same = torch.isclose(ours, theirs, rtol=_RTOL.get(theirs.dtype, 0.0), atol=floor, equal_nan=True)
        if not same.all():
            return _described(ours, theirs, ~same, tensors)
    return ""


def _described(ours: torch.Tensor, theirs: torch.Tensor, bad: torch.Tensor, tensors: Sequence[torch.Tensor]) -> str:
    """The first elements that differ, with the arguments at their places."""
    shown = []
    places = bad.reshape(-1).nonzero()[:, 0].tolist()
    for place in places[:4]:
        at = ", ".join(str(tensor.reshape(-1)[place].item()) for tensor in tensors if tensor.shape == theirs.shape)
        shown.append(f"({at}) -> {ours.reshape(-1)[place].item()} instead of {theirs.reshape(-1)[place].item()}")
    return f"{len(places)} of {bad.numel()}: " + "; ".join(shown)
