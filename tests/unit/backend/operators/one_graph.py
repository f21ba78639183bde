"""Many operators in one compiled function: a table of cases costs one compilation."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ortlens import Lens
from ortlens.trace.records import Capture
from tests.integration.against_eager import twin

FLOATS = (torch.float32, torch.float64, torch.float16)
_PLAIN = (0.0, 1.0, 0.5, 1.5, 2.0, 2.5, 3.0, 5.0, 6.0, 10.0, 12.5, 20.0, 50.0, 88.0, 89.0, 100.0, 200.0, 1e4, 1e-2, 1e-4, 1e-8)
_PEAKS = {torch.float32: (1e10, 1e20, 1e-20, 1e-40), torch.float64: (1e10, 1e20, 1e-20, 1e200, 1e-300), torch.float16: (2049.0, 1e-7)}
_RTOL = {
    torch.float32: 1e-5,
    torch.float64: 1e-12,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.complex64: 1e-5,
    torch.complex128: 1e-12,
}
_LOOSE = 1e-4


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


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every extreme value with every other, as two vectors."""
    values = extremes(dtype)
    return values.repeat_interleave(len(values)), values.repeat(len(values))


def as_pytorch(  # noqa: PLR0913 - what a compilation takes
    cases: Mapping[str, Callable[..., Any]],
    *inputs: torch.Tensor,
    stays: Collection[str] | None = None,
    dynamic: bool = False,
    grad: bool = False,
    atol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> Capture:
    """Assert that the cases, compiled as one function, give what PyTorch gives, and no run fails.

    `stays` are the operators that stay in PyTorch; None: any. Without `atol`, differences up to 1e-4 are rounding; with it, those up to
    the precision of the element type.
    """
    lens = Lens(options=options)

    def whole(*given: torch.Tensor) -> dict[str, Any]:
        return {name: function(*given) for name, function in cases.items()}

    torch.compiler.reset()
    with torch.set_grad_enabled(grad), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="ortlens")
        ours, theirs = (_called(function, inputs, grad=grad) for function in (torch.compile(whole, backend=lens, dynamic=dynamic), whole))
    capture = lens.captured()
    found = {name: text for name in theirs if (text := _difference(ours[name], theirs[name], inputs, atol))}
    found |= {finding.rule: finding.evidence for finding in capture.findings if finding.rule.endswith("_failed")}
    assert found == {}, found
    assert stays is None or left(capture) == set(stays), left(capture) ^ set(stays)
    return capture


def left(capture: Capture) -> set[str]:
    """The operators that stayed in PyTorch."""
    return {row.target for row in capture.fallbacks}


def _called(function: Callable[..., dict[str, Any]], inputs: Sequence[torch.Tensor], *, grad: bool) -> dict[str, Any]:
    given = [twin(value).requires_grad_(grad and value.is_floating_point()) for value in inputs]
    results = function(*given)
    if grad:
        leaves = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        functools.reduce(torch.add, [leaf.sin().sum() for leaf in leaves]).backward()
        results |= {f"gradient {place}": value.grad for place, value in enumerate(given)}
    return results


def _difference(got: Any, want: Any, inputs: Sequence[torch.Tensor], atol: float | None) -> str:
    for ours, theirs in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        if not isinstance(theirs, torch.Tensor):
            if ours != theirs:
                return f"{ours} instead of {theirs}"
        elif ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
        else:
            loose = _LOOSE if atol is None else 0.0
            rtol = max(loose, _RTOL[theirs.dtype]) if theirs.dtype in _RTOL else 0.0
            least = max(loose, torch.finfo(theirs.dtype).tiny, atol or 0.0) if theirs.dtype in _RTOL else 0.0
            same = torch.isclose(ours, theirs, rtol=rtol, atol=least, equal_nan=True)
            if not same.all():
                return _described(ours, theirs, ~same, inputs)
    return ""


def _described(ours: torch.Tensor, theirs: torch.Tensor, bad: torch.Tensor, inputs: Sequence[torch.Tensor]) -> str:
    """The first elements that differ, with the arguments at their places."""
    places, shown = bad.reshape(-1).nonzero()[:, 0].tolist(), []
    for place in places[:4]:
        at = ", ".join(str(tensor.reshape(-1)[place].item()) for tensor in inputs if tensor.shape == theirs.shape)
        shown.append(f"({at}) -> {ours.reshape(-1)[place].item()} instead of {theirs.reshape(-1)[place].item()}")
    return f"{len(places)} of {bad.numel()}: " + "; ".join(shown)
