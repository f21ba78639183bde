"""Losses, normalisations, products of matrices and vectors, and recurrent layers.

Losses make the checks of PyTorch's kernels, which torch's decompositions leave out: classes exist, and probabilities are some. ONNX
Runtime's normalisations raise for nothing. Recurrent layers, which Dynamo compiles with `torch._dynamo.config.allow_rnn`, become one
operator each for inference; layers that are trained are decomposed to their steps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from ortlens import _torch
from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.basics import op, torch_op
from ortlens.backend.conversion.functions.indexing import not_from_the_end
from ortlens.backend.conversion.functions.reductions import sum_
from ortlens.backend.conversion.functions.special import log1p

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_aten = torch.ops.aten
_LEAST = -100.0  # PyTorch's least logarithm


@torch_op(_aten.nll_loss2d_forward.default, _aten.nll_loss_forward.default)
def nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignore_index: Any) -> tuple[Any, Any]:
    """`aten.nll_loss_forward` and `aten.nll_loss2d_forward`, one loss per row or pixel; decompositions make the others of it."""
    if reduction or len(x.shape) < 2:  # noqa: PLR2004 - rows of classes
        raise basics.NotConvertibleError("gives one loss per row of classes only")
    place = op.Constant(value_ints=[1])
    wide = target if int(target.dtype) == basics.INT64 else basics.typed(op.Cast(target, to=basics.INT64), basics.INT64, target)
    ignored = op.Equal(wide, basics.number(wide, ignore_index))
    classes = not_from_the_end(basics.typed(op.Where(ignored, basics.number(wide, 0), wide), basics.INT64, wide))
    losses = op.Neg(op.Squeeze(op.GatherElements(x, op.Unsqueeze(classes, place), axis=1), place))
    if weight is not None:
        losses = op.Mul(losses, op.Gather(weight, classes))
    return op.Where(ignored, basics.number(x, 0.0), losses), op.Constant(value_int=0)


@torch_op(_aten.binary_cross_entropy.default)
@basics.in_float32
def binary_cross_entropy(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    """`aten.binary_cross_entropy`, one loss per element; a decomposition makes the others of it. The run fails for no probabilities.

    Their logarithms are NaN, and so is the square root of `target * (1 - target)` beyond 0 and 1.
    """
    if weight is not None or reduction:
        raise basics.NotConvertibleError("gives one loss per element, without weights, only")
    least = basics.number(x, _LEAST)
    negative = basics.typed(op.Neg(x), int(x.dtype), x)
    of_one, of_zero = (basics.typed(made, int(x.dtype), x) for made in (op.Log(x), log1p(negative)))
    rest = op.Sub(target, basics.number(x, 1.0))
    losses = op.Sub(op.Mul(rest, op.Max(of_zero, least)), op.Mul(target, op.Max(of_one, least)))
    if 0 in list(x.shape):
        return losses
    checked = op.Sub(op.Add(of_one, of_zero), op.Sqrt(op.Neg(op.Mul(target, rest))))  # no infinities of two signs, which add up to NaN
    return basics.unless(op.IsNaN(op.ReduceSum(checked, keepdims=0)), basics.typed(losses, int(x.dtype), x))


@torch_op(_aten.mse_loss.default)
def mse_loss(x: Any, target: Any, reduction: int = 1) -> Any:
    """`aten.mse_loss`, one loss per element; a decomposition makes the others of it. The kernel rounds the difference to 16 bits."""
    _expect_one_per_element(x, reduction)
    difference = basics.rounded_step(op.Sub(x, target), x)
    return op.Mul(difference, difference)


@torch_op(_aten.smooth_l1_loss.default)
def smooth_l1_loss(x: Any, target: Any, reduction: int = 1, beta: Any = 1.0) -> Any:
    """`aten.smooth_l1_loss`, likewise; the kernel rounds each step and the number to 16 bits."""
    _expect_one_per_element(x, reduction)
    half, beta = basics.number(x, 0.5), basics.number(x, beta)
    distance = basics.rounded_step(op.Abs(op.Sub(x, target)), x)
    near = op.Div(basics.rounded_step(op.Mul(op.Mul(half, distance), distance), x), beta)
    return op.Where(op.Less(distance, beta), near, op.Sub(distance, basics.rounded_step(op.Mul(half, beta), x)))


@torch_op(_aten.huber_loss.default)
@basics.in_float32
def huber_loss(x: Any, target: Any, reduction: int = 1, delta: Any = 1.0) -> Any:
    """`aten.huber_loss`, likewise; the kernel rounds once."""
    _expect_one_per_element(x, reduction)
    half, delta = basics.number(x, 0.5), basics.number(x, delta)
    distance = op.Abs(op.Sub(x, target))
    distance.dtype = x.dtype
    near, far = op.Mul(op.Mul(half, distance), distance), op.Mul(delta, op.Sub(distance, op.Mul(half, delta)))
    return op.Where(op.LessOrEqual(distance, delta), near, far)


def _expect_one_per_element(x: Any, reduction: int) -> None:
    if reduction or not basics.is_float(x):
        raise basics.NotConvertibleError("gives one loss per element, of floats, only")


@torch_op(_aten.native_layer_norm.default)
def native_layer_norm(x: Any, normalized_shape: Sequence[Any], weight: Any, bias: Any, eps: float) -> Any:
    """`aten.native_layer_norm`; the mean of nothing is 0, its reciprocal deviation NaN."""
    if 0 not in list(normalized_shape):
        return basics.registered(_aten.native_layer_norm.default)(x, normalized_shape, weight, bias, eps)
    lead = len(x.shape) - len(normalized_shape)
    sizes = op.Concat(op.Shape(x, start=0, end=lead), op.Constant(value_ints=[1] * len(normalized_shape)), axis=0)
    return op.Identity(x), *(op.Expand(op.CastLike(op.Constant(value_float=number), x), sizes) for number in (0.0, math.nan))


@torch_op(_aten.layer_norm.default)
def layer_norm(x: Any, normalized_shape: Sequence[Any], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    """`aten.layer_norm`, as exported programs contain it."""
    if 0 not in list(normalized_shape):
        return basics.registered(_aten.layer_norm.default)(x, normalized_shape, weight, bias, eps)
    return op.Identity(x)


_LSTM_MODE = 2  # of oneDNN's kinds of recurrent layers


def lstm_layer(
    x: Any,
    input_weight: Any,
    hidden_weight: Any,
    input_bias: Any,
    hidden_bias: Any,
    hidden: Any,
    cell: Any,
    reverse: bool,
    batch_sizes: Any,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> list[Any]:
    """`aten.mkldnn_rnn_layer` of one direction: all steps, the last hidden and cell state; a fourth output serves the backward."""
    if mode != _LSTM_MODE or num_layers != 1 or batch_sizes or bidirectional or batch_first or train:
        raise basics.NotConvertibleError("is more than one layer of an LSTM in one direction, for inference, with the steps first")
    if int(x.dtype) != basics.FLOAT:
        raise basics.NotConvertibleError("has 16-bit floats, which ONNX Runtime's LSTM does not take")
    states = (x, hidden, cell)
    if not isinstance(x.shape[1], int) or not x.shape[1]:
        # ONNX Runtime, and PyTorch's operator as well, end the process for a batch of none: add one, and leave it out again.
        states = tuple(op.Pad(state, op.Constant(value_ints=[0, 0, 0, 0, 1, 0])) for state in states)
    zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
    parameters = (input_weight, hidden_weight, *((input_bias, hidden_bias) if has_biases else ()))
    into, back, *biases = map(_gates_in_order, parameters)
    bias = op.Unsqueeze(op.Concat(*biases, axis=0), zero) if biases else None
    direction = "reverse" if reverse else "forward"
    weights = [op.Unsqueeze(weight, zero) for weight in (into, back)]
    steps, end, end_cell = op.LSTM(states[0], *weights, bias, None, *states[1:], hidden_size=hidden_size, direction=direction)
    made = _with_nan(states, (*_limited(op.Squeeze(steps, one), end, like=x), end_cell), reverse=reverse)
    return made if states[0] is x else [op.Slice(value, zero, op.Constant(value_ints=[-1]), one) for value in made]


def _limited(*states: Any, like: Any, start: Any = None) -> list[Any]:
    """Limit hidden states to 1, or to what they start with: ONNX Runtime's tanh and sigmoid may be beyond 1 by a rounding."""
    one = basics.number(like, 1.0)
    if start is None:
        return [op.Clip(state, op.Neg(one), one) for state in states]
    size = op.Abs(start)
    largest = op.Where(op.Less(size, one), one, size)
    return [op.Max(op.Min(state, largest), op.Neg(largest)) for state in states]


def _with_nan(states: Sequence[Any], made: Sequence[Any], *, reverse: bool) -> list[Any]:
    """Put NaN into the results from the step on that takes the first one, which ONNX Runtime turns into finite numbers.

    Two infinities count as NaN, since most sums over both are; a single one, and those of the cell state, ONNX Runtime computes rightly.
    """
    x, hidden, *cell = states
    steps, *last = made
    zero = op.Constant(value_float=0.0)
    before = _invalid(hidden)
    if cell:
        before = op.Max(before, _invalid(op.Where(op.IsInf(cell[0]), zero, cell[0])))
    among = _invalid(x)
    since = op.Add(op.CumSum(among, op.Constant(value_int=0), reverse=int(reverse)), before)
    at_end = op.Add(op.ReduceSum(among, op.Constant(value_ints=[0])), before)
    nan = op.Constant(value_float=float("nan"))
    is_valid, is_valid_at_end = (op.Equal(number, zero) for number in (since, at_end))
    return [op.Where(is_valid, steps, nan), *(op.Where(is_valid_at_end, state, nan) for state in last)]


def _invalid(x: Any) -> Any:
    """Mark each row that has a NaN or two infinities with 1, else 0; the last dimension has size 1."""
    numbers = op.Add(op.Cast(op.IsInf(x), to=basics.FLOAT), op.Mul(op.Cast(op.IsNaN(x), to=basics.FLOAT), op.Constant(value_float=2.0)))
    return op.Cast(op.Greater(op.ReduceSum(numbers, op.Constant(value_ints=[-1])), op.Constant(value_float=1.5)), to=basics.FLOAT)


def _gates_in_order(weight: Any) -> Any:
    """Reorder gates: PyTorch has input, forget, cell, output; ONNX has input, output, forget, cell."""
    into, forget, cell, out = op.Split(weight, num_outputs=4, axis=0)
    return op.Concat(into, out, forget, cell, axis=0)


def _network(layer: Callable[..., tuple[Any, Any]], *, pads: bool = False) -> Callable[..., list[Any]]:
    """Make the function of a recurrent network in exported programs from that of one layer in one direction.

    Steps of all layers, and the last state of each. With `pads`, the layer needs a batch of one at least, as `lstm_layer` does.
    """

    def network(
        x: Any,
        hidden: Any,
        params: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> list[Any]:
        if train and dropout and num_layers > 1:
            raise basics.NotConvertibleError("drops out at random between its layers")
        batch = x.shape[0 if batch_first else 1]
        flow, states = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x, hidden
        is_padded = pads and (not isinstance(batch, int) or not batch)
        if is_padded:
            flow, states = (op.Pad(value, op.Constant(value_ints=[0, 0, 0, 0, 1, 0])) for value in (flow, states))
        zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
        given, last = iter(params), list[Any]()
        for _ in range(num_layers):
            made = []
            for reverse in (False, True)[: 1 + bidirectional]:
                weights = [next(given) for _ in range(2 + 2 * has_biases)]
                place = len(last)
                start = op.Slice(states, op.Constant(value_ints=[place]), op.Constant(value_ints=[place + 1]), zero)
                steps, end = layer(flow, start, *weights, reverse=reverse)
                made.append(steps)
                last.append(end)
            flow = op.Concat(*made, axis=2)
        results = [flow, op.Concat(*last, axis=0)]
        if is_padded:
            results = [op.Slice(value, zero, op.Constant(value_ints=[-1]), one) for value in results]
        return [op.Transpose(results[0], perm=[1, 0, 2]) if batch_first else results[0], results[1]]

    return network


def _by_operator(operator: str, gates: Sequence[int], **attributes: int) -> Callable[..., tuple[Any, Any]]:
    """Make a layer of an operator of ONNX, from where that has each of PyTorch's gates.

    Source: "GRU" and "RNN" in the operators of ONNX; `nn.GRU` for the gates.
    """

    def in_order(weight: Any) -> Any:
        parts = op.Split(weight, num_outputs=len(gates), axis=0) if len(gates) > 1 else [weight]
        return op.Concat(*(parts[gate] for gate in gates), axis=0)

    def layer(flow: Any, start: Any, into: Any, back: Any, *biases: Any, reverse: bool) -> tuple[Any, Any]:
        if int(into.dtype) != basics.FLOAT:
            raise basics.NotConvertibleError(f"has other numbers than float32, which ONNX Runtime's {operator} does not take")
        zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
        weights = [op.Unsqueeze(in_order(weight), zero) for weight in (into, back)]
        bias = op.Unsqueeze(op.Concat(*map(in_order, biases), axis=0), zero) if biases else None
        direction, run = "reverse" if reverse else "forward", getattr(op, operator)
        steps, end = run(flow, *weights, bias, None, start, hidden_size=int(back.shape[1]), direction=direction, **attributes)
        steps, end = _with_nan((flow, start), _limited(op.Squeeze(steps, one), end, like=into, start=start), reverse=reverse)
        return steps, end

    return layer


def _step_by_step(nonlinearity: str) -> Callable[..., tuple[Any, Any]]:
    """Make a layer of a Scan over products, which pack the recurrent weight once; ONNX Runtime's RNN packs it in each step."""

    def layer(flow: Any, start: Any, into: Any, back: Any, *biases: Any, reverse: bool) -> tuple[Any, Any]:
        if basics.device_type.get() == "cuda":
            raise basics.NotConvertibleError("would launch kernels in each step, where PyTorch calls cuDNN once")
        if int(into.dtype) not in (basics.FLOAT, basics.DOUBLE):
            raise basics.NotConvertibleError("has 16-bit floats, which PyTorch rounds several times in each step")
        products = op.MatMul(flow, op.Transpose(into, perm=[1, 0]))
        given = op.Add(products, op.Add(*biases)) if biases else products
        before, product = (ir.Value(type=ir.TensorType(into.dtype), shape=ir.Shape([None, back.shape[1]])) for _ in range(2))
        summed = ir.node("Gemm", [before, back, product], {"transB": 1})
        after = ir.node(nonlinearity, summed.outputs)
        copied = ir.node("Identity", after.outputs)  # no value is returned twice
        body = ir.Graph([before, product], [*after.outputs, *copied.outputs], nodes=[summed, after, copied], name="step")
        directions = {f"scan_{side}_directions": [int(reverse)] for side in ("input", "output")}
        zero = op.Constant(value_ints=[0])
        scan = ir.node("Scan", [op.Squeeze(start, zero), given], {"body": body, "num_scan_inputs": 1, **directions}, num_outputs=2)
        last, steps = _torch.recorded(scan)
        if nonlinearity == "Tanh":
            last, steps = _limited(last, steps, like=into)
        return steps, op.Unsqueeze(last, zero)

    return layer


@torch_op(_aten.lstm.input)
def lstm(*_: Any) -> Any:
    """`aten.lstm` of exported programs, where its layers have become no operators of oneDNN."""
    raise basics.NotConvertibleError(
        "has projections, a dropout or other numbers than float32 on the CPU, and too many steps to unroll them"
    )


torch_op(_aten.gru.input)(_network(_by_operator("GRU", (1, 0, 2), linear_before_reset=1), pads=True))
_rnn_tanh, _rnn_tanh_on_cuda = _network(_step_by_step("Tanh")), _network(_by_operator("RNN", (0,)), pads=True)
torch_op(_aten.rnn_relu.input)(_network(_step_by_step("Relu")))


@torch_op(_aten.rnn_tanh.input)
def rnn_tanh(*arguments: Any) -> list[Any]:
    """`aten.rnn_tanh`; on CUDA each step of a Scan would launch kernels, and ONNX Runtime's operator is one call of cuDNN."""
    return (_rnn_tanh_on_cuda if basics.device_type.get() == "cuda" else _rnn_tanh)(*arguments)


if (_layer := getattr(_aten, "mkldnn_rnn_layer", None)) is not None:  # absent from builds of PyTorch without oneDNN
    torch_op(_layer.default)(lstm_layer)


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
    return _sum(x, sum_(products, 0), beta, alpha)


torch_op(_aten._int_mm.default)(lambda first, second: op.MatMulInteger(first, second))  # noqa: PLW0108 - as of `operator.pos`
torch_op(_aten.addmv.default)(lambda x, matrix, vector, beta=1, alpha=1: _sum(x, mv(matrix, vector), beta, alpha))


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
    return value if not basics.is_value(factor) and factor == 1 else op.Mul(value, basics.number(like, factor))


def _fits_float32(factor: Any) -> bool:
    """Tell whether an attribute of a node, which is a float32, can hold a number."""
    return not basics.is_value(factor) and float(torch.tensor(factor, dtype=torch.float32)) == factor
