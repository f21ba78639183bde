"""Products of matrices and vectors, and convolutions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens.backend.basis import provenance
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op
from ortlens.backend.operators.facts import STAYS, Call, decomposes, torch_op

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_aten = torch.ops.aten


@torch_op("transformers::grouped_mm_fallback")  # which `transformers` registers with its mixture-of-experts models
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
    return _sum(x, basics.own(_aten.sum.default)(products, 0), beta, alpha)


torch_op(_aten._int_mm.default)(lambda first, second: op.MatMulInteger(first, second))  # noqa: PLW0108 - as of `operator.pos`
torch_op(_aten.addmv.default)(lambda x, matrix, vector, beta=1, alpha=1: _sum(x, mv(matrix, vector), beta, alpha))


@torch_op(_aten.addr.default)
def addr(x: Any, first: Any, second: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """`aten.addr`: an outer product. The kernel rounds each step to 16 bits."""
    column = basics.rounded_step(basics.scaled(first, alpha, x), x)
    outer = basics.rounded_step(
        op.Mul(op.Unsqueeze(column, op.Constant(value_ints=[1])), op.Unsqueeze(second, op.Constant(value_ints=[0]))), x
    )
    if basics.is_value(beta) or beta == 0:
        return _sum(x, outer, beta, 1)
    return op.Add(basics.rounded_step(basics.scaled(x, beta, x), x), outer)


def _sum(x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """Compute `beta * x + alpha * product`; with `beta=0`, PyTorch ignores `x`, also where it is NaN."""
    if basics.is_value(beta):
        beta = basics.number(x, beta)
        x = op.Where(op.Equal(beta, basics.number(x, 0)), basics.number(x, 0), x)
    elif beta == 0:
        return basics.scaled(product, alpha, x)
    return op.Add(basics.scaled(x, beta, x), basics.scaled(product, alpha, x))


def _fits_float32(factor: Any) -> bool:
    """Tell whether an attribute of a node, which is a float32, can hold a number."""
    return not basics.is_value(factor) and float(torch.tensor(factor, dtype=torch.float32)) == factor


@decomposes(_aten._trilinear.default)
@facts.named(_aten._trilinear.default)
def _trilinear(given: Any) -> torch.Tensor:
    """Decompose into two products [row, in1] x [out, in1, in2] x [row, in2] -> [row, out], the form in which `nn.Bilinear` calls it."""
    first, weight, second = given.i1, given.i2, given.i3
    lacking, summed = (given.expand1, given.expand2, given.expand3), given.sumdim
    if [list(dims) for dims in (*lacking, summed)] != [[1, 3], [0], [1, 2], [2, 3]]:
        return _summed_product((first, weight, second), lacking, summed)
    out, in1, in2 = weight.shape
    product = torch.matmul(first, weight.permute(1, 0, 2).reshape(in1, out * in2)).reshape(-1, out, in2)
    return torch.matmul(product, second.unsqueeze(-1)).squeeze(-1)


def _summed_product(tensors: Sequence[torch.Tensor], expanded: Sequence[Sequence[int]], summed: Sequence[int]) -> torch.Tensor:
    """Contract two tensors at a time, for gradients: `expanded` has the dimensions that each lacks, `summed` those to add up."""
    rank = tensors[0].dim() + len(expanded[0])
    letters = "abcdefghijklmnop"[:rank]
    names = ["".join(letter for place, letter in enumerate(letters) if place not in lacking) for lacking in expanded]
    kept = "".join(letter for place, letter in enumerate(letters) if place not in summed)
    return torch.einsum(f"{','.join(names)}->{kept}", *tensors)


@decomposes(_aten._convolution.default)
def _without_flags(tensor: torch.Tensor, *arguments: Any) -> Any:
    """Drop the flags of cuDNN, which the CPU ignores."""
    return _aten.convolution.default(tensor, *arguments[:8])


@decomposes(_aten.convolution.default)
@facts.named(_aten.convolution.default)
def _whole_convolution(given: Any) -> Any:
    """Give a convolution one number per dimension, as ONNX wants them, where its lists have one for all dimensions.

    One of each channel by itself, in one dimension, becomes one in two: ONNX Runtime has a kernel for those alone, which takes a third of
    the time.
    """
    tensor, weight, groups = given.input, given.weight, given.groups
    dims = weight.dim() - 2
    lists = (given.stride, given.padding, given.dilation, given.output_padding)
    by_channel = dims == 1 and not given.transposed and groups > 1 and statically_known_true(weight.shape[1] == 1)
    flat = by_channel and tensor.device.type == "cpu" and tensor.dtype is torch.float32
    if all(len(numbers) == dims for numbers in lists) and not flat:
        return STAYS
    steps, pads, distances, ends = ([*numbers] * dims if len(numbers) == 1 else [*numbers] for numbers in lists)
    if not flat:
        return _aten.convolution.default(tensor, weight, given.bias, steps, pads, distances, given.transposed, ends, groups)
    # In two dimensions, the strides of these decide those of the result.
    images, kernels = tensor.contiguous().unsqueeze(2), weight.contiguous().unsqueeze(2)
    wide = [1, *steps], [0, *pads], [1, *distances], given.transposed, [0, *ends]
    return _aten.convolution.default(images, kernels, given.bias, *wide, groups).squeeze(2)


_FIRST_FACTOR: Mapping[Any, int] = {
    **dict.fromkeys((_aten.mm.default, _aten.bmm.default, _aten.matmul.default, _aten.linear.default), 0),
    **dict.fromkeys((_aten.addmm.default, _aten.baddbmm.default), 1),
}
"""Products of matrices, and where the first of them is among the arguments."""


def _may_multiply_nothing(call: Call) -> bool:
    place = _FIRST_FACTOR[call.node.target]
    first, second = call.tensor(place), call.tensor(place + 1)
    if first is None or second is None or not first.dim():
        return False
    # Both have the size that is summed over; one may be known where the other is computed.
    summed = (first.shape[-1], second.shape[-1 if second.dim() == 1 or call.node.target is _aten.linear.default else -2])
    some = any(statically_known_true(size > 0) for size in summed) and all(statically_known_true(size > 0) for size in first.shape[:-2])
    return any(isinstance(size, int) and not size for size in first.shape) or not some


def _convolution(call: Call) -> str | None:
    if 0 in call["weight"].shape:
        return "refuses images without channels"
    if not call["weight"].dtype.is_floating_point:
        return "takes floats only"
    if not all(isinstance(number, int) for name in ("stride", "padding", "dilation", "output_padding") for number in call[name]):
        return "needs known strides, paddings and dilations"
    if not isinstance(call["groups"], int):
        return "needs a known number of groups"
    if not call["transposed"]:
        return None
    strides = [*call["stride"]] * (len(call["output_padding"]) // max(len(call["stride"]), 1) or 1)
    larger = any(isinstance(extra, int) and extra >= step for extra, step in zip(call["output_padding"], strides, strict=False))
    return "needs an output_padding smaller than the stride" if larger else None


_SMALL_KERNEL = 3
"""The largest kernel of a strided transposed convolution in three dimensions that ONNX Runtime computes in 0.4 to 1.15 of oneDNN's time."""


def _is_deep_in_onednn(call: Call) -> bool:
    weight, result = call.tensor(1), call.result
    if weight is None or weight.dim() not in (3, 5):  # one and three dimensions of pixels
        return False
    if weight.dim() == 3 and min(_torch.size_hint(call[name][0]) for name in ("stride", "dilation")) == 1:  # noqa: PLR2004 - likewise
        return False
    if result is None or result.device.type != "cpu" or not provenance.is_large(result):
        return False
    steps, kernel = (max(map(_torch.size_hint, sizes)) for sizes in (call["stride"], weight.shape[2:]))
    if call["transposed"] and steps > 1 and kernel <= _SMALL_KERNEL:
        return False
    arguments: Any = torch.fx.node.map_arg(call.node.args, lambda source: source.meta["val"])
    return _torch.convolution_is_in_onednn(*arguments)


_MANY_IMAGES, _FEW_PIXELS = 8, 16


def _reads_weights_per_image(call: Call) -> bool:
    """Tell whether a training step convolves many images of few pixels with large weights, which no session holds in another order."""
    weight, result = call.tensor(1), call.result
    if weight is None or result is None or weight.dim() != 4 or result.device.type != "cpu":  # noqa: PLR2004 - two dimensions of pixels
        return False
    saved = any(user.op == "output" for user in call.node.all_input_nodes[1].users)
    images, pixels = _torch.size_hint(result.shape[0]), math.prod(map(_torch.size_hint, result.shape[2:]))
    return saved and images >= _MANY_IMAGES and pixels <= _FEW_PIXELS and weight[0, 0].numel() > 1 and provenance.is_large(weight)


facts.wrong(
    *_FIRST_FACTOR, reason="may have nothing to multiply, where ONNX Runtime fails or leaves results unwritten", when=_may_multiply_nothing
)
facts.wrong(_aten.addr.default, reason="multiplies no booleans", when=facts.makes_booleans)
facts.lacks_outputs(_aten._linalg_det.default, count=3)
facts.wrong(_aten.convolution.default, when=_convolution)
facts.wrong(_aten.im2col.default, reason="fails on tensors without elements", when=facts.lacks_elements("self"))
facts.wrong(
    _aten.im2col.default,
    reason=f"takes whole numbers{facts.REFUSED}",
    when=lambda call: facts.is_whole(call) and call["self"].dtype is not torch.bool,
)
# One thread, two volumes of 16 channels of 16 x 28 x 28: oneDNN 4.2 ms, ONNX Runtime 6.8 ms; one, which PyTorch computes itself: PyTorch
# 9.0 ms, ONNX Runtime 3.4 ms. Two rows of 8 channels, strided and dilated: 2.6 and 4.4 ms; 64 to 128 channels, 4.1 and 4.7 ms.
facts.slow(
    _aten.convolution.default,
    reason="ONNX Runtime takes 1.2 to 3.5 times as long for 3D, and strided and dilated 1D, convolutions that PyTorch passes to oneDNN",
    when=_is_deep_in_onednn,
)
# One thread, 8 and 32 images of 2 x 2, 3 x 3 weights from 512 to 512 channels: PyTorch 2.2 and 5.7 ms, ONNX Runtime 5.1 and 19.6 ms.
facts.slow(
    _aten.convolution.default,
    reason="ONNX Runtime reads the weights once for each image, in 1.2 to 5 times as long where images have few pixels",
    when=_reads_weights_per_image,
)
