"""Products of matrices and vectors."""

from __future__ import annotations

from typing import Any

import torch

from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.basics import op, torch_op
from ortlens.backend.conversion.functions.reductions import sum_

_aten = torch.ops.aten


def grouped_mm(tokens: Any, weight: Any, offs: Any) -> Any:
    """Multiply each group of adjacent rows, which ends at `offs`, by its own matrix; rows after the last group are zero.

    Shapes: [row, in] and [group, in, out] give [row, out]. Source: `grouped_mm_fallback` in `transformers/integrations/moe.py`.
    """
    zero = op.Constant(value_ints=[0])
    ends = op.Cast(offs, to=basics.INT64)
    start, parts = zero, []
    for group in range(int(weight.shape[0])):
        end = op.Slice(ends, op.Constant(value_ints=[group]), op.Constant(value_ints=[group + 1]))
        parts.append(op.MatMul(op.Slice(tokens, start, end, zero), op.Gather(weight, op.Constant(value_int=group))))
        start = end
    left = op.Sub(op.Shape(tokens, start=0, end=1), start)
    return op.Pad(op.Concat(*parts, axis=0), op.Concat(zero, zero, left, zero, axis=0))


@torch_op(_aten._int_mm.default)
def int_mm(first: Any, second: Any) -> Any:
    """`aten._int_mm`: a product of int8 matrices in int32."""
    return op.MatMulInteger(first, second)


@torch_op(_aten.mv.default)
def mv(matrix: Any, vector: Any) -> Any:
    """`aten.mv`, as a product of two matrices.

    ONNX Runtime's `MatmulTransposeFusion` is wrong if one operand of MatMul is one-dimensional: it moves the Transpose of the matrix
    into FusedMatMul, which then computes with other elements. Seen in version 1.31; gradients of a product make the form, too.
    """
    axis = op.Constant(value_ints=[-1])
    return op.Squeeze(op.MatMul(matrix, op.Unsqueeze(vector, axis)), axis)


@torch_op(_aten.dot.default)
def dot(x: Any, y: Any) -> Any:
    """`aten.dot` and `aten.vdot` of real vectors; ONNX Runtime's shape inference refuses a MatMul of two vectors of size 1."""
    row, column = op.Unsqueeze(x, op.Constant(value_ints=[0])), op.Unsqueeze(y, op.Constant(value_ints=[1]))
    return op.Squeeze(op.MatMul(row, column), op.Constant(value_ints=[0, 1]))


@torch_op(_aten.addmm.default)
def addmm(x: Any, first: Any, second: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """`aten.addmm`; Gemm, unless there is nothing to sum over: then ONNX Runtime forgets to multiply by `beta`."""
    fits = int(x.dtype) != basics.DOUBLE or (_fits_float32(beta) and _fits_float32(alpha))
    known = not basics.is_value(beta) and not basics.is_value(alpha) and beta != 0
    if known and fits and basics.is_float(x) and isinstance(first.shape[1], int) and first.shape[1] > 0:
        return basics.registered(_aten.addmm.default)(x, first, second, beta=beta, alpha=alpha)
    return _sum(x, op.MatMul(first, second), beta, alpha)


@torch_op(_aten.baddbmm.default)
@basics.with_exact_numbers
def baddbmm(x: Any, first: Any, second: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _sum(x, op.MatMul(first, second), beta, alpha)


@torch_op(_aten.addbmm.default)
@basics.with_exact_numbers
def addbmm(x: Any, first: Any, second: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """`aten.addbmm`: the products of a batch are added up."""
    products = op.MatMul(first, second)
    if int(x.dtype) != basics.INT64:
        return _sum(x, op.ReduceSum(products, op.Constant(value_ints=[0]), keepdims=0), beta, alpha)
    products.dtype, products.shape = first.dtype, type(first.shape)([*list(first.shape)[:2], second.shape[2]])
    return _sum(x, sum_(products, 0), beta, alpha)


@torch_op(_aten.addmv.default)
def addmv(x: Any, matrix: Any, vector: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _sum(x, mv(matrix, vector), beta, alpha)


@torch_op(_aten.addr.default)
def addr(x: Any, first: Any, second: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """`aten.addr`: an outer product. The kernel rounds each step to 16 bits."""
    column = basics.rounded_step(_scaled(first, alpha, x), x)
    outer = basics.rounded_step(
        op.Mul(op.Unsqueeze(column, op.Constant(value_ints=[1])), op.Unsqueeze(second, op.Constant(value_ints=[0]))), x
    )
    if basics.is_value(beta) or beta == 0:
        return _sum(x, outer, beta, 1)
    return op.Add(basics.rounded_step(_scaled(x, beta, x), x), outer)


def _sum(x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """Compute `beta * x + alpha * product`; with `beta=0`, PyTorch ignores `x`, also where it is NaN."""
    if basics.is_value(beta):
        beta = basics.number(x, beta)
        x = op.Where(op.Equal(beta, basics.number(x, 0)), basics.number(x, 0), x)
    elif beta == 0:
        return _scaled(product, alpha, x)
    return op.Add(_scaled(x, beta, x), _scaled(product, alpha, x))


def _scaled(value: Any, factor: Any, like: Any) -> Any:
    """Multiply by a number, in the element type of `like`."""
    return value if not basics.is_value(factor) and factor == 1 else op.Mul(value, basics.number(like, factor))


def _fits_float32(factor: Any) -> bool:
    """Tell whether an attribute of a node, which is a float32, can hold a number."""
    return not basics.is_value(factor) and float(torch.tensor(factor, dtype=torch.float32)) == factor
