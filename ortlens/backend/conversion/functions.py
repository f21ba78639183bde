"""Our own ONNX functions, for operators that torch's registry lacks or whose functions differ from PyTorch.

ONNX Runtime ignores NaN when it reduces or sorts, PyTorch does not: a model whose values overflow would look correct. The wrappers
here call the registry's function and restore NaN where PyTorch has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten
_FLOATS = (1, 10, 11, 16)  # FLOAT, FLOAT16, DOUBLE, BFLOAT16 in onnx.TensorProto
_INT64, _FLOAT, _BOOL = 7, 1, 9
_LARGEST = {1: torch.finfo(torch.float32).max, 10: torch.finfo(torch.float16).max}  # FLOAT, FLOAT16


def own_functions() -> dict[Any, Callable[..., Any]]:
    """List the functions for operators that exist in this process.

    `transformers` registers the grouped matrix product of its mixture-of-experts models when their code is imported.

    Returns:
        Op overload -> function. Called for each compilation, since an import can register operators.
    """
    grouped = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    return _OWN if grouped is None else {**_OWN, grouped.default: grouped_mm}


def _opset() -> Any:
    from onnxscript import opset18

    return opset18  # its annotations are about scripts; these functions are traced with symbolic values


def grouped_mm(tokens: Any, weight: Any, offs: Any) -> Any:
    """Multiply each group of rows by its own matrix.

    Args:
        tokens: [row, in]; the rows of a group are adjacent.
        weight: [group, in, out], with a known number of groups.
        offs: [group], the end of each group.

    Returns:
        [row, out]; rows after the last group are zero. Source: `grouped_mm_fallback` in `transformers/integrations/moe.py`.
    """
    op = _opset()
    zero = op.Constant(value_ints=[0])
    ends = op.Cast(offs, to=_INT64)
    start, parts = zero, []
    for group in range(int(weight.shape[0])):
        end = op.Slice(ends, op.Constant(value_ints=[group]), op.Constant(value_ints=[group + 1]))
        parts.append(op.MatMul(op.Slice(tokens, start, end, zero), op.Gather(weight, op.Constant(value_int=group))))
        start = end
    left = op.Sub(op.Shape(tokens, start=0, end=1), start)
    return op.Pad(op.Concat(*parts, axis=0), op.Concat(zero, zero, left, zero, axis=0))


def split_with_sizes(x: Any, split_sizes: Sequence[Any], dim: int = 0) -> Sequence[Any]:
    """`aten.split_with_sizes` without an ONNX sequence, on which the optimiser fails for symbolic sizes."""
    parts = _opset().Split(x, split_sizes, axis=dim, num_outputs=len(split_sizes))  # the recorder needs the number of outputs
    parts = parts if isinstance(parts, list | tuple) else [parts]
    parts[0].producer().attributes.pop("num_outputs")  # ONNX accepts the sizes or their number, not both
    return list(parts)


def _is_float(x: Any) -> bool:
    return x.dtype is not None and int(x.dtype) in _FLOATS


def _with_nan(x: Any, reduced: Any, axes: Sequence[int] | None, *, keepdim: bool) -> Any:
    """A maximum or minimum that is NaN where one of its elements was."""
    op = _opset()
    if not _is_float(x):
        return reduced
    marks = op.Cast(op.IsNaN(x), to=_FLOAT)
    if axes is None:
        found = op.ReduceMax(marks, keepdims=int(keepdim))
    else:
        found = op.ReduceMax(marks, op.Constant(value_ints=list(axes)), keepdims=int(keepdim))
    return op.Where(op.Cast(found, to=_BOOL), op.CastLike(op.Constant(value_float=float("nan")), x), reduced)


def _extreme(name: str, x: Any, dim: Sequence[int], *, keepdim: bool) -> Any:
    op = _opset()
    reduce = op.ReduceMax if name == "max" else op.ReduceMin
    wide = op.Cast(x, to=_INT64) if int(x.dtype) == _BOOL else x  # ONNX does not reduce bools
    axes = list(dim) or None
    reduced = reduce(wide, keepdims=int(keepdim)) if axes is None else reduce(wide, op.Constant(value_ints=axes), keepdims=int(keepdim))
    return _with_nan(x, op.CastLike(reduced, x), axes, keepdim=keepdim)


def amax(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.amax`; propagates NaN, as PyTorch does."""
    return _extreme("max", x, dim, keepdim=keepdim)


def amin(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.amin`; propagates NaN, as PyTorch does."""
    return _extreme("min", x, dim, keepdim=keepdim)


def max_all(x: Any) -> Any:
    """`aten.max` over all elements."""
    return _extreme("max", x, (), keepdim=False)


def min_all(x: Any) -> Any:
    """`aten.min` over all elements."""
    return _extreme("min", x, (), keepdim=False)


def _registered(target: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = _torch.shared_registry().get_decomps(target)[0].onnx_function
    return function


def max_dim(x: Any, dim: int, keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.max.dim`: values, with NaN, and indices."""
    values, indices = _registered(_aten.max.dim)(x, dim, keepdim)
    return _with_nan(x, values, [dim], keepdim=keepdim) if len(x.shape) else values, indices


def min_dim(x: Any, dim: int, keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.min.dim`: values, with NaN, and indices."""
    values, indices = _registered(_aten.min.dim)(x, dim, keepdim)
    return _with_nan(x, values, [dim], keepdim=keepdim) if len(x.shape) else values, indices


def _nan_last(x: Any) -> Any:
    """A sort key that puts NaN last, as PyTorch does: NaN becomes infinity, and infinity the largest finite number."""
    op = _opset()
    largest = _LARGEST.get(int(x.dtype))
    finite = x if largest is None else op.Min(x, op.CastLike(op.Constant(value_float=largest), x))
    key = op.Where(op.IsNaN(x), op.CastLike(op.Constant(value_float=float("inf")), x), finite)
    key.dtype, key.shape = x.dtype, x.shape  # the registry's function reads them
    return key


def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.sort`; NaN is the largest."""
    ordered = _registered(_aten.sort.default)
    if not _is_float(x) or not len(x.shape):
        return ordered(x, dim, descending)
    _, indices = ordered(_nan_last(x), dim, descending)
    return _opset().GatherElements(x, indices, axis=dim), indices


def topk(x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # noqa: A002, FBT001, FBT002 - the schema
    """`aten.topk`; NaN is the largest."""
    ordered = _registered(_aten.topk.default)
    if not _is_float(x) or not len(x.shape):
        return ordered(x, k, dim, largest, sorted)
    _, indices = ordered(_nan_last(x), k, dim, largest, sorted)
    return _opset().GatherElements(x, indices, axis=dim), indices


def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.argmax`; the first NaN is the largest."""
    return _registered(_aten.argmax.default)(_nan_last(x) if _is_float(x) else x, dim, keepdim)


def argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the operator's schema
    """`aten.argmin`; the first NaN is also the smallest."""
    if not _is_float(x):
        return _registered(_aten.argmin.default)(x, dim, keepdim)
    negative = _opset().Neg(x)
    negative.dtype, negative.shape = x.dtype, x.shape
    return argmax(negative, dim, keepdim)


def _pool_of(target: Any, dims: int) -> Callable[..., Any]:
    """A maximum pool that propagates NaN; ONNX Runtime's drops it at some positions of the window."""

    def max_pool(x: Any, *window: Any, **more: Any) -> Any:
        registered = _registered(target)
        pooled = registered(x, *window, **more)
        if not _is_float(x):
            return pooled
        op = _opset()
        marks = _typed_float(op.Cast(op.IsNaN(x), to=_FLOAT), x)
        nan = op.CastLike(op.Constant(value_float=float("nan")), x)
        if not isinstance(pooled, (list, tuple)):
            return op.Where(op.Cast(registered(marks, *window, **more), to=_BOOL), nan, pooled)
        found = op.Cast(registered(marks, *window, **more)[0], to=_BOOL)
        last, _ = registered(_typed_float(op.Mul(marks, _places(x, dims)), x), *window, **more)  # PyTorch returns the index of the last NaN
        place = op.Sub(op.Cast(last, to=_INT64), op.Constant(value_int=1))
        return op.Where(found, nan, pooled[0]), op.Where(found, place, pooled[1])

    return max_pool


def _typed_float(made: Any, x: Any) -> Any:
    """Set the type and shape that the registry's function reads: those of `x`, in float32."""
    made.dtype, made.shape = type(x.dtype)(_FLOAT), x.shape
    return made


def _places(x: Any, dims: int) -> Any:
    """1, 2, 3 ... over the last dimensions, as float32."""
    op = _opset()
    plane, one = op.Shape(x, start=-dims), op.Constant(value_int=1)
    end = op.Add(op.ReduceProd(plane, keepdims=0), one)
    return op.Reshape(op.Cast(op.Range(one, end, one), to=_FLOAT), plane)


def sign(x: Any) -> Any:
    """`aten.sign`; PyTorch returns 0 for NaN."""
    op = _opset()
    if int(x.dtype) == _BOOL:
        return op.Identity(x)
    found = op.Sign(x)
    return op.Where(op.IsNaN(x), op.CastLike(op.Constant(value_float=0.0), x), found) if _is_float(x) else found


def _below_zero(x: Any) -> Any:
    """Whether the sign bit is set, also for -0.0."""
    op = _opset()
    zero = op.CastLike(op.Constant(value_float=0.0), x)
    one = op.CastLike(op.Constant(value_float=1.0), x)
    return op.Or(op.Less(x, zero), op.And(op.Equal(x, zero), op.Less(op.Div(one, x), zero)))


def signbit(x: Any) -> Any:
    """`aten.signbit`; true for -0.0."""
    return _below_zero(x) if _is_float(x) else _opset().Less(x, _opset().CastLike(_opset().Constant(value_int=0), x))


def atan2(y: Any, x: Any) -> Any:
    """`aten.atan2`; respects the sign of zeros, as IEEE 754 defines."""
    op = _opset()
    pi = op.CastLike(op.Constant(value_float=torch.pi), x)
    zero = op.CastLike(op.Constant(value_float=0.0), x)
    half = op.Div(pi, op.CastLike(op.Constant(value_float=2.0), x))
    negative_y, negative_x = _below_zero(y), _below_zero(x)
    both_zero = op.And(op.Equal(x, zero), op.Equal(y, zero))
    # The angle in the right half-plane. Division by zero and 0/0 are replaced before the quotient is used.
    quotient = op.Div(y, op.Where(op.Equal(x, zero), op.CastLike(op.Constant(value_float=1.0), x), x))
    upright = op.Where(negative_y, op.Neg(half), half)
    angle = op.Where(both_zero, zero, op.Where(op.Equal(x, zero), upright, op.Atan(quotient)))
    magnitude = op.Where(both_zero, zero, op.Abs(angle))
    turned = op.Where(op.And(negative_x, op.Not(op.And(op.Equal(x, zero), op.Not(op.Equal(y, zero))))), op.Sub(pi, magnitude), magnitude)
    return op.Where(op.Or(op.IsNaN(x), op.IsNaN(y)), op.Add(x, y), op.Where(negative_y, op.Neg(turned), turned))


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - the operator's names
    """`aten.clamp`; without a bound, ONNX Runtime's Clip clips infinity to the largest finite number, PyTorch does not."""
    if not _is_float(x) or (min is not None and max is not None):
        return _registered(_aten.clamp.default)(x, min, max)
    infinity = float("inf")
    return _registered(_aten.clamp.default)(x, -infinity if min is None else min, infinity if max is None else max)


def gelu(x: Any, approximate: str = "none") -> Any:
    """`aten.gelu`, its products in the order that ONNX Runtime fuses into one operator."""
    import onnx_ir as ir

    if approximate != "none" or not _is_float(x):
        return _registered(_aten.gelu.default)(x, approximate)
    op = _opset()
    root, one, half = (ir.tensor(number, dtype=x.dtype) for number in (2**0.5, 1.0, 0.5))
    return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, root)), one)), half)


def mv(matrix: Any, vector: Any) -> Any:
    """`aten.mv`, as a product of two matrices.

    ONNX Runtime's `MatmulTransposeFusion` is wrong if one operand of MatMul is one-dimensional: it moves the Transpose of the matrix
    into FusedMatMul, which then computes with other elements. Seen in version 1.31; gradients of a product make the form, too.
    """
    op = _opset()
    axis = op.Constant(value_ints=[-1])
    return op.Squeeze(op.MatMul(matrix, op.Unsqueeze(vector, axis)), axis)


def addmv(x: Any, matrix: Any, vector: Any, beta: float = 1, alpha: float = 1) -> Any:
    """`aten.addmv`; with `beta=0`, PyTorch ignores `x`, also where it is NaN."""
    op = _opset()
    product = _scaled(mv(matrix, vector), alpha)
    return product if beta == 0 else op.Add(_scaled(x, beta), product)


def _scaled(x: Any, factor: float) -> Any:
    op = _opset()
    constant = op.Constant(value_int=factor) if isinstance(factor, int) else op.Constant(value_float=factor)
    return x if factor == 1 else op.Mul(x, op.CastLike(constant, x))


_OWN: dict[Any, Callable[..., Any]] = {
    _aten.mv.default: mv,
    _aten.addmv.default: addmv,
    _aten.amax.default: amax,
    _aten.amin.default: amin,
    _aten.max.default: max_all,
    _aten.min.default: min_all,
    _aten.max.dim: max_dim,
    _aten.min.dim: min_dim,
    _aten.sort.default: sort,
    _aten.topk.default: topk,
    _aten.argmax.default: argmax,
    _aten.clamp.default: clamp,
    _aten.gelu.default: gelu,
    _aten.argmin.default: argmin,
    _aten.sign.default: sign,
    _aten.signbit.default: signbit,
    _aten.atan2.default: atan2,
    _aten.split_with_sizes.default: split_with_sizes,
    _aten.max_pool1d.default: _pool_of(_aten.max_pool1d.default, 1),
    _aten.max_pool2d.default: _pool_of(_aten.max_pool2d.default, 2),
    _aten.max_pool3d.default: _pool_of(_aten.max_pool3d.default, 3),
    _aten.max_pool2d_with_indices.default: _pool_of(_aten.max_pool2d_with_indices.default, 2),
    _aten.max_pool3d_with_indices.default: _pool_of(_aten.max_pool3d_with_indices.default, 3),
}
