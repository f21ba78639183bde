"""When a sum of many numbers is made in stages, which sums, means and normalisations ask.

ONNX Runtime adds 32-bit floats one after the other, so that the error grows with their number: the mean of 4 million numbers is off in the
third digit. PyTorch adds in pairs. Here, a long reduction is done dimension by dimension, and what is long within one dimension in float64.
A symbolic size is compared with the limit as Dynamo's graph is traced: the first call that crosses it makes a new graph. A program serves
all sizes, so there a symbolic one is taken for long.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_true, statically_known_true

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONG = 4096
"""Elements from which a sum across memory is staged; up to here, equal addends are off by 3e-5 at most."""
LONG_IN_ROW = 32768
"""The same for the innermost dimensions, where ONNX Runtime adds with several accumulators."""
NARROW = (torch.float32, torch.float16, torch.bfloat16)
_SERVES_ALL_SIZES = contextvars.ContextVar("serves_all_sizes", default=False)


def is_long(x: torch.Tensor, dims: Sequence[int]) -> bool:
    """Tell whether a reduction is staged; False for usual sizes, and for element types that are added exactly enough."""
    if x.dtype not in NARROW or not dims:
        return False
    axes = {dim % x.dim() for dim in dims}
    trailing = axes == set(range(x.dim() - len(axes), x.dim()))
    count = math.prod(x.shape[axis] for axis in axes)
    if len(axes) > 1 and not isinstance(count, int):
        return True  # stages cost little, a guard on a product of sizes would cost graphs
    return is_more(count, LONG_IN_ROW if trailing else LONG)


@contextlib.contextmanager
def for_all_sizes() -> Iterator[None]:
    """Decompose for whatever size comes, without guards: no other graph is made for a size that is not as in tracing."""
    token = _SERVES_ALL_SIZES.set(True)
    try:
        yield
    finally:
        _SERVES_ALL_SIZES.reset(token)


def serves_all_sizes() -> bool:
    """Tell whether a graph is decomposed for whatever size comes."""
    return _SERVES_ALL_SIZES.get()


def is_more(count: Any, limit: int) -> bool:
    """Tell whether a size exceeds a limit; one that is known at run time only does."""
    if isinstance(count, int):
        return count > limit
    if _SERVES_ALL_SIZES.get():
        return not statically_known_true(count <= limit)
    return bool(guard_or_true(count > limit))


def reduced_dims(x: torch.Tensor, dim: Any) -> list[int]:
    """List the dimensions that a reduction names, from the outermost; all if it names none."""
    given = [dim] if isinstance(dim, int) else list(dim or ())
    return sorted(axis % x.dim() for axis in given) if given and x.dim() else list(range(x.dim()))


def count_of(x: torch.Tensor, axes: Sequence[int]) -> Any:
    """Count the numbers that make one result."""
    return math.prod(x.shape[axis] for axis in axes)
