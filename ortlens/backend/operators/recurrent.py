"""Recurrent layers, which Dynamo compiles with `torch._dynamo.config.allow_rnn`: one operator each for inference.

Layers that are trained are decomposed to their steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from ortlens import _torch
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op
from ortlens.backend.operators.facts import torch_op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten
_LSTM = _aten.lstm.input
_RECURRENT = (_aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)

_LSTM_MODE = 2  # of oneDNN's kinds of recurrent layers


def lstm_layer(given: Any) -> list[Any]:
    """`aten.mkldnn_rnn_layer` of one direction: all steps, the last hidden and cell state; a fourth output serves the backward."""
    x, reverse = given.input, given.reverse
    is_single = given.mode == _LSTM_MODE and given.num_layers == 1 and not (given.batch_sizes or given.bidirectional)
    if not is_single or given.batch_first or given.train:
        raise basics.NotConvertibleError("is more than one layer of an LSTM in one direction, for inference, with the steps first")
    if int(x.dtype) != basics.FLOAT:
        raise basics.NotConvertibleError("has 16-bit floats, which ONNX Runtime's LSTM does not take")
    states = (x, given.hx_, given.cx_)
    if not isinstance(x.shape[1], int) or not x.shape[1]:
        # ONNX Runtime, and PyTorch's operator as well, end the process for a batch of none: add one, and leave it out again.
        states = tuple(op.Pad(state, op.Constant(value_ints=[0, 0, 0, 0, 1, 0])) for state in states)
    zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
    parameters = (given.weight0, given.weight1, *((given.weight2, given.weight3) if given.has_biases else ()))
    into, back, *biases = map(_gates_in_order, parameters)
    bias = op.Unsqueeze(op.Concat(*biases, axis=0), zero) if biases else None
    direction = "reverse" if reverse else "forward"
    weights = [op.Unsqueeze(weight, zero) for weight in (into, back)]
    steps, end, end_cell = op.LSTM(states[0], *weights, bias, None, *states[1:], hidden_size=given.hidden_size, direction=direction)
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

    def network(x: Any, hidden: Any, params: Sequence[Any], *settings: Any) -> list[Any]:
        has_biases, num_layers, dropout, train, bidirectional, batch_first = settings
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
    torch_op(_layer.default)(facts.named(_layer.default)(lstm_layer))


def _is_one_in_ort(target: Any, tensor: torch.Tensor, *_: Any) -> bool:
    """Tell whether a recurrent layer has an ONNX function: those of float32, but for ReLU on CUDA, and on the CPU `nn.RNN` of float64."""
    if target is _aten.gru.input or tensor.device.type == "cuda":
        return target in (_aten.gru.input, _aten.rnn_tanh.input) and tensor.dtype is torch.float32
    return target in _RECURRENT and tensor.dtype in (torch.float32, torch.float64)


def _recurrent_results(tensor: torch.Tensor, states: Any, *given: Any) -> tuple[torch.Tensor, ...]:
    *_, bidirectional, batch_first = given
    states = (states,) if isinstance(states, torch.Tensor) else states
    steps, batch = reversed(tensor.shape[:2]) if batch_first else tensor.shape[:2]
    made = tensor.new_empty((steps, batch, states[0].shape[2] * (1 + bidirectional)))
    return made.transpose(0, 1) if batch_first else made, *(state.new_empty(state.shape) for state in states)


_MOST_STEPS = 64
"""Recurrent networks of more steps are not unrolled: each step is some twenty operators per layer and direction."""


def _in_program(target: Any) -> Callable[..., Any]:
    """Decompose recurrent networks, which PyTorch's decompositions would unroll, step by step.

    Most become an ONNX operator per layer and direction, an LSTM by way of oneDNN's. Others, as of 16 bits or with projections, stay
    whole, in PyTorch, or are unrolled if they have few steps: then a model can be deployed.
    """

    def of_torch(torchs: Callable[..., Any], _: Any) -> Callable[..., Any]:
        of_layers = _torch.decomposition_of(_LSTM)  # now: while a program is traced, the table has what knows the results

        def decomposed(x: torch.Tensor, *args: Any) -> Any:
            if _is_one_in_ort(target, x):
                return NotImplemented
            if target is _LSTM and _has_layers(x, *args):
                with torch.backends.mkldnn.flags(enabled=True):  # switched off while programs are decomposed
                    return of_layers(x, *args)
            steps = x.shape[1 if args[-1] else 0]
            return torchs(x, *args) if isinstance(steps, int) and steps <= _MOST_STEPS else NotImplemented

        return decomposed

    return of_torch


def _has_layers(x: torch.Tensor, states: Sequence[torch.Tensor], *given: Any) -> bool:
    """Tell whether oneDNN has an operator for each layer of an LSTM."""
    _, _, layers, dropout, train, _, _ = given
    is_plain = x.dtype is torch.float32 and x.device.type == "cpu" and states[0].shape[2] == states[1].shape[2]
    return is_plain and not (train and dropout and layers > 1)


facts.as_torch(*_RECURRENT, unless=_is_one_in_ort)
facts.keeps_whole(*_RECURRENT, when=lambda tracing: not tracing.with_gradient)
for _target in (_LSTM, *_RECURRENT):
    facts.FACTS[_target].in_program = _in_program(_target)
    facts.FACTS[_target].result_in_program = _recurrent_results
