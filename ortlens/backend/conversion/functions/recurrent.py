"""Layers of an LSTM, which Dynamo compiles with `torch._dynamo.config.allow_rnn`, for inference on a CPU, as one operator each.

Other recurrent layers, and an LSTM elsewhere, are decomposed to their steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import basics

if TYPE_CHECKING:
    from collections.abc import Callable

_LSTM_MODE = 2  # of oneDNN's kinds of recurrent layers


def lstm_layer(  # noqa: PLR0913, PLR0917 - the schema
    x: Any,
    input_weight: Any,
    hidden_weight: Any,
    input_bias: Any,
    hidden_bias: Any,
    hidden: Any,
    cell: Any,
    reverse: bool,  # noqa: FBT001 - same
    batch_sizes: Any,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,  # noqa: FBT001 - same
    bidirectional: bool,  # noqa: FBT001 - same
    batch_first: bool,  # noqa: FBT001 - same
    train: bool,  # noqa: FBT001 - same
) -> list[Any]:
    """`aten.mkldnn_rnn_layer` of one direction: outputs of all steps, the last hidden and the last cell state.

    Its fourth output serves the backward.
    """
    if mode != _LSTM_MODE or num_layers != 1 or batch_sizes or bidirectional or batch_first or train:
        raise basics.NotConvertibleError("is more than one layer of an LSTM in one direction, for inference, with the steps first")
    if int(x.dtype) != basics.FLOAT:
        raise basics.NotConvertibleError("has 16-bit floats, which ONNX Runtime's LSTM does not take")
    op = basics.opset()
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
    steps, *last = op.LSTM(states[0], *weights, bias, None, *states[1:], hidden_size=hidden_size, direction=direction)
    made = _with_nan(states, (op.Squeeze(steps, one), *last), reverse=reverse)
    return made if states[0] is x else [op.Slice(value, zero, op.Constant(value_ints=[-1]), one) for value in made]


def _with_nan(states: tuple[Any, Any, Any], made: tuple[Any, Any, Any], *, reverse: bool) -> list[Any]:
    """Put NaN into the results from the step on that takes the first one, which ONNX Runtime turns into finite numbers.

    Two infinities count as NaN, since most sums over both are; a single one, and those of the cell state, ONNX Runtime computes rightly.
    """
    op = basics.opset()
    x, hidden, cell = states
    steps, last_hidden, last_cell = made
    zero = op.Constant(value_float=0.0)
    before = op.Max(_invalid(hidden), _invalid(op.Where(op.IsInf(cell), zero, cell)))
    among = _invalid(x)
    since = op.Add(op.CumSum(among, op.Constant(value_int=0), reverse=int(reverse)), before)
    at_end = op.Add(op.ReduceSum(among, op.Constant(value_ints=[0])), before)
    nan = op.Constant(value_float=float("nan"))
    is_valid, is_valid_at_end = (op.Equal(number, zero) for number in (since, at_end))
    return [op.Where(is_valid, steps, nan), *(op.Where(is_valid_at_end, state, nan) for state in (last_hidden, last_cell))]


def _invalid(x: Any) -> Any:
    """Mark each row that has a NaN or two infinities with 1, else 0; the last dimension has size 1."""
    op = basics.opset()
    numbers = op.Add(op.Cast(op.IsInf(x), to=basics.FLOAT), op.Mul(op.Cast(op.IsNaN(x), to=basics.FLOAT), op.Constant(value_float=2.0)))
    return op.Cast(op.Greater(op.ReduceSum(numbers, op.Constant(value_ints=[-1])), op.Constant(value_float=1.5)), to=basics.FLOAT)


def _gates_in_order(weight: Any) -> Any:
    """Reorder gates: PyTorch has input, forget, cell, output; ONNX has input, output, forget, cell."""
    op = basics.opset()
    into, forget, cell, out = op.Split(weight, num_outputs=4, axis=0)
    return op.Concat(into, out, forget, cell, axis=0)


_LAYER = getattr(torch.ops.aten, "mkldnn_rnn_layer", None)  # absent from builds of PyTorch without oneDNN
FUNCTIONS: dict[Any, Callable[..., Any]] = {} if _LAYER is None else {_LAYER.default: lstm_layer}
"""Op overload -> function."""
