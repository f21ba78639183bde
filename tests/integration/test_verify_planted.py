"""Wrong answers, planted on purpose: `verify` reports each with its cause, its scope and the user's line."""

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnxscript import opset18
from torch.nn import functional

import ortlens
from ortlens import _torch
from ortlens.backend.api import OrtBackend
from ortlens.backend.lowering import entry
from ortlens.backend.runtime import call as call_module
from ortlens.backend.runtime.session import SessionConfig
from tests.integration.planting import (
    BOUNDARY,
    Plant,
    Planted,
    check_clean,
    check_reported,
    decomposing,
    instead,
    line_of,
    returning,
    rewriting,
    verified,
    with_wrong_function,
)

Value: TypeAlias = Any  # of ONNX Script
op: Any = opset18
_aten = torch.ops.aten

# ---------------------------------------------------------------------------------------------------------- how to plant


def around(owner: type, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Plant:
    """Puts something around the function that a method returns."""
    return instead(owner, name, lambda plain, *args, **settings: change(plain(*args, **settings)))


def with_results(change: Callable[[list[Any]], list[Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda run: lambda *values: change(run(*values))


def binding(change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """Binds the memory of each input after a change."""

    def bind(plain: Callable[..., Any], self: Any, index: int, item: object) -> list[str]:  # noqa: ANN401 - a private class
        self.constants["raw"] = lambda value: change(value) if isinstance(value, torch.Tensor) else value
        return [f"a{index} = raw(a{index})", *plain(self, index, item)]

    return instead(call_module._Writer, "_take_input", bind)


def without_sign(value: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(value) if value.is_neg() else value


def clamps_merged(model: ir.Model) -> None:
    """Takes the second of two clamps as if the first were not there: right only where their ranges overlap."""
    for node in model.graph:
        producer = node.inputs[0].producer() if node.op_type == "Clip" and node.inputs[0] is not None else None
        if producer is not None and producer.op_type == "Clip":
            node.replace_input_with(0, producer.inputs[0])
            node.replace_input_with(2, producer.inputs[2])


def reversing_parts(plain: Callable[..., Any], self: SessionConfig, serialized: bytes, **settings: Any) -> Any:  # noqa: ANN401 - a session
    """Makes a session with a rewrite that ONNX Runtime makes unless its optimisations are off."""
    model = onnx.load_from_string(serialized)
    if self.options.graph_optimization_level != onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL:
        (parts,) = (node.input for node in model.graph.node if node.op_type == "Concat")
        parts[:] = parts[::-1]
    return plain(self, model.SerializeToString(), **settings)


def subtracting(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        node.op_type = "Sub" if node.op_type == "Add" else node.op_type
    return model


def truncating(plain: Callable[..., Any], node: torch.fx.Node, registry: object) -> Any:  # noqa: ANN401 - an ONNX function or None
    """Divides sizes towards zero."""
    return op.Div if node.target is operator.floordiv else plain(node, registry)


def clamping(table: torch.Tensor, dim: int, index: torch.Tensor) -> Any:  # noqa: ANN401 - a value of ONNX Script
    """Reads the last element where an index is out of range."""
    return op.Gather(table, op.Min(index, op.Constant(value_ints=[3])), axis=dim)


def on_copies(run: Callable[..., Any]) -> Callable[..., Any]:
    """Takes arguments that are one tensor for two."""

    def call(*args: torch.Tensor) -> object:
        copies = [value.clone() for value in args]
        result = run(*copies)
        args[0].copy_(copies[0])
        return result

    return call


def writing_although_it_raises(run: Callable[..., Any]) -> Callable[..., Any]:
    """Writes the state before the check."""

    def call(*args: Any) -> object:  # noqa: ANN401 - what Dynamo passes
        try:
            return run(*args)
        except IndexError:
            next(value for value in args if isinstance(value, torch.Tensor) and value.shape == (7,)).add_(1)
            raise

    return call


def raising_another_error(run: Callable[..., Any]) -> Callable[..., Any]:
    """Raises what nobody who expects PyTorch's error catches."""

    def call(*args: object) -> object:
        try:
            return run(*args)
        except IndexError as error:
            raise ValueError from error

    return call


def with_other_gaps(run: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves memory between the elements of a view as it was."""

    def relaid(value: torch.Tensor) -> torch.Tensor:
        view = torch.ones(16, dtype=value.dtype).as_strided(value.shape, value.stride())
        return view.copy_(value)

    return lambda *args: [relaid(value) for value in run(*args)]


def half(x: torch.Tensor) -> torch.Tensor:
    return x[: -(-x.shape[0] // 2)] * 2


class Stepped(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a + b


def exported_step() -> torch.export.ExportedProgram:
    return torch.export.export(Stepped(), (torch.zeros(3), torch.zeros(3)))


def stored(c: torch.Tensor, e: torch.Tensor, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = e[i] * 2
    c.add_(x)
    return y.sum() + c.sum()


# ---------------------------------------------------------------------------------------- programs and functions of the tables

_LINEAR, _NORM = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(4)


def written_input(x: torch.Tensor) -> torch.Tensor:
    x[1:3] = 5.0
    return x * 2


def linear(x: torch.Tensor) -> torch.Tensor:
    return _LINEAR(x)  # type: ignore[no-any-return]  # of a module


def normalised(x: torch.Tensor) -> torch.Tensor:
    return _NORM(x)  # type: ignore[no-any-return]  # of a module


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def late_wave(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def step(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 1)


def looped(x: torch.Tensor) -> torch.Tensor:
    for _ in range(12):
        torch._dynamo.graph_break()
        x = step(x)
    return x


def plain_product(x: Value, y: Value) -> Value:
    return op.MatMul(x, y)


def doubled_from_ten(x: Value) -> Value:
    return op.Where(op.Greater(x, op.Constant(value_float=10.0)), op.Mul(x, op.Constant(value_float=2.0)), op.Relu(x))


def sine_times(factor: float) -> Callable[[Value], Value]:
    return lambda x: op.Mul(op.Sin(x), op.CastLike(op.Constant(value_float=factor), x))


def by_channel(x: Value, weight: Value, bias: Value, *sizes: Any) -> Value:  # noqa: ANN401 - same
    del weight, bias, sizes
    ones = op.Constant(value_floats=[1.0] * 4)
    normalised = op.InstanceNormalization(x, ones, op.Constant(value_floats=[0.0] * 4))
    mean = op.ReduceMean(op.Reshape(x, op.Constant(value_ints=[1, 2, -1])), op.Constant(value_ints=[2]), keepdims=0)
    return normalised, mean, mean


# ------------------------------------------------------------------------------------------------------------- the table


def one_large() -> torch.Tensor:
    x = torch.linspace(-3, 3, 64).half()
    x[5] = 1000
    return x


def needing_grad(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, requires_grad=True)


def with_bias(value: float) -> Callable[[], tuple[torch.Tensor]]:
    """The argument of `linear`, after a change of its bias."""

    def made() -> tuple[torch.Tensor]:
        with torch.no_grad():
            _LINEAR.bias[0] = value
        return (torch.rand(3, 8),)

    return made


def functions(table: dict[Any, Callable[..., Any]]) -> dict[str, Any]:
    return {"custom_translation_table": table}


MEMORY = "right on plain copies of its inputs"
VALUE, REWRITE = ("value", "numbers_differ"), ("value", "fusion_changes_numbers")

PLACES: dict[str, Planted] = {
    "lowering: write into an input": Planted(
        function=written_input,
        args=lambda: (torch.rand(4, 2),),
        plant=decomposing({_aten.slice_scatter.default: lambda x, *_, **__: x.clone()}),
        wrong={"result": "", "x after the call": ""},
        elsewhere=("result",),
    ),
    "lowering: gradient": Planted(
        function=lambda x: x.tanh() * 2,
        args=lambda: (needing_grad(3, 4),),
        plant=decomposing({_aten.tanh_backward.default: lambda grad, y: grad * (1 - y)}),
        wrong={"gradient of x": ""},
    ),
    "lowering: gradient cut off": Planted(
        function=wave,
        args=lambda: (needing_grad(4),),
        plant=around(OrtBackend, "__call__", with_results(lambda outputs: [output.detach() for output in outputs])),
        wrong={"result": "requires_grad is False, PyTorch's is True", "gradient of x": "computed by PyTorch only"},
    ),
    "lowering: random numbers": Planted(
        function=noisy,
        args=lambda: (torch.rand(3, 4),),
        plant=decomposing({_aten.rand_like.default: lambda x, **_: torch.rand((2, *x.shape))[1]}),
        wrong={"result": "", "random state": "other random numbers were drawn"},
    ),
    "boundary: dtype": Planted(
        function=wave,
        plant=returning(lambda outputs: [outputs[0].double()]),
        wrong={"result": "float64 from the compiled function, float32 from PyTorch"},
        says=BOUNDARY,
    ),
    "boundary: strides": Planted(
        function=lambda x: (x.sin(), x[:, :1] * 2),
        args=lambda: (torch.rand(3, 4),),
        plant=returning(lambda outputs: [value.mT.contiguous().mT for value in outputs]),
        wrong={"result[0]": "its strides are (1, 3), PyTorch's are (4, 1)"},  # those of dimensions of one element mean nothing
        says=BOUNDARY,
    ),
    "boundary: missing alias": Planted(
        function=lambda x: (x.sin(), x[1:]),
        plant=around(entry.DynamoGraph, "compile", with_results(lambda outputs: [output.clone() for output in outputs])),
        wrong={"result[1]": "shares no memory with x"},
        says="No value inside a partition differs",
    ),
    "boundary: unwanted alias": Planted(
        function=lambda x: (x.sin(), x.cos()),
        args=lambda: (torch.zeros(3),),
        plant=returning(lambda outputs: [outputs[0], outputs[0]]),
        wrong={"result[1]": "shares memory with result[0]"},
        says=BOUNDARY,
    ),
    "boundary: buffer": Planted(
        function=normalised,
        args=lambda: (torch.rand(5, 4),),
        plant=returning(lambda outputs: [outputs[0], outputs[1] * 0, *outputs[2:]]),
        wrong={"_NORM.running_mean after the call": ""},
        says=BOUNDARY,
    ),
    "memory: negative bit": Planted(
        function=lambda x: torch.relu(x.conj().imag),
        args=lambda: (torch.randn(4, dtype=torch.complex64),),
        plant=binding(without_sign),
        inside=VALUE,
        because=MEMORY,
    ),
    "weights: outdated": Planted(
        function=linear,
        first=with_bias(0.5),
        args=with_bias(-1.5),
        plant=instead(call_module._Writer, "_staleness", lambda *_: []),  # changes are not noticed
        inside=("output", "numbers_differ"),
        because="holds weights from before a change that was not noticed",
    ),
    "rewrite: ours": Planted(
        function=lambda x: x.clamp(0, 1).clamp(2, 3),
        plant=rewriting(clamps_merged),
        inside=REWRITE,
        because="a rewrite of the model before ONNX Runtime",
    ),
    "rewrite: the user's": Planted(
        function=lambda x, y: x.sin() + y,
        args=lambda: (torch.rand(3), torch.rand(3)),
        options={"pre_ort_model_transforms": [subtracting]},
        inside=REWRITE,
        because="pre_ort_model_transforms causes it",
    ),
    "rewrite: ONNX Runtime's": Planted(
        function=lambda x, y: torch.cat([x.sin(), y.cos()]),
        args=lambda: (torch.rand(3), torch.rand(3)),
        plant=instead(SessionConfig, "session", reversing_parts),
        inside=("output", "fusion_changes_numbers"),
        because="right without ONNX Runtime's rewrites",
    ),
    "rewrite: ONNX Runtime's in a backward": Planted(
        function=lambda x, v: x @ v,
        args=lambda: (needing_grad(5, 4), needing_grad(4)),
        options=functions({_aten.mv.default: plain_product}),
        wrong={"gradient of v": ""},
        inside=("output", "fusion_changes_numbers"),
        because="MatmulTransposeFusion causes it",
    ),
    # What values alone do not show: sizes, errors, state, memory, numbers beside 16-bit tensors.
    "class: floor division of sizes truncates": Planted(
        function=half,
        first=lambda: (torch.rand(4),),
        args=lambda: (torch.rand(5),),
        plant=instead(_torch, "dispatch", truncating),
        dynamic=True,
        wrong={"result": "shape"},
        inside=VALUE,
        because="its ONNX function is wrong",
    ),
    "class: an exported program takes one tensor for two": Planted(
        function=Stepped.forward,
        target=exported_step,
        args=lambda: (torch.zeros(3),) * 2,
        plant=around(OrtBackend, "compile_program", on_copies),
        elsewhere=("result",),
    ),
    "class: state is written although the call raises": Planted(
        function=stored,
        first=lambda: (torch.zeros(7), torch.rand(4), torch.tensor([1]), torch.ones(7)),
        args=lambda: (torch.zeros(7), torch.rand(4), torch.tensor([9]), torch.ones(7)),
        plant=around(OrtBackend, "__call__", writing_although_it_raises),
        wrong={"c after the call": "although PyTorch raises IndexError"},
        elsewhere=("c after the call",),
    ),
    "class: a check is lost": Planted(
        function=lambda e, i: torch.index_select(e, 0, i) * 2,
        first=lambda: (torch.rand(4), torch.tensor([1])),
        args=lambda: (torch.rand(4), torch.tensor([9])),
        options=functions({_aten.index_select.default: clamping}),
        wrong={"result": "returns, PyTorch raises IndexError"},
        inside=VALUE,
        because="PyTorch raises IndexError",
    ),
    "class: an error is of another class": Planted(
        function=lambda e, i: e[i] * 2,
        first=lambda: (torch.rand(4), torch.tensor([1])),
        args=lambda: (torch.rand(4), torch.tensor([9])),
        plant=around(OrtBackend, "__call__", raising_another_error),
        wrong={"result": "raises ValueError: , PyTorch raises IndexError"},
        elsewhere=("result",),
    ),
    "class: a number is rounded to float16": Planted(
        function=lambda x: x * 0.123,
        args=lambda: (torch.randn(2000).half(),),
        options=functions({_aten.mul.Tensor: lambda x, y: op.Mul(x, op.CastLike(op.Cast(y, to=10), x))}),
        wrong={},
        inside=VALUE,
        because="0.123 is rounded to 16 bits",
        says="in the ONNX function of aten.mul.Tensor",
    ),
    "class: a result is beyond the range of its operator": Planted(
        function=lambda x: x.tanh() * 2,
        args=lambda: (torch.linspace(-9, 9, 64),),
        options=functions({_aten.tanh.default: lambda x: op.Mul(op.Tanh(x), op.Constant(value_float=1.0000002))}),
        wrong={},
        inside=VALUE,
        because="is outside the range of the operator, -1 to 1",
        says="in the ONNX function of aten.tanh.default",
    ),
    "class: the gaps of a view hold other memory": Planted(
        function=lambda x: (x > 1)[..., :3],
        args=lambda: (torch.rand(4, 4),),
        plant=around(OrtBackend, "__call__", with_other_gaps),
        wrong={"result": "memory between its elements"},
    ),
    "accuracy": Planted(
        function=lambda x: x.mean(),
        args=lambda: (100 + torch.rand(4_000_000),),
        options=functions({_aten.mean.default: lambda x, **_: op.ReduceMean(x, keepdims=0)}),
        inside=("value", "loses_accuracy"),
        because="in float64 its ONNX function is right, in float32 rounding adds up",
    ),
}
FUNCTIONS: dict[str, tuple[Callable[..., Any], object, Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "function: beside an overflow": (
        lambda x: torch.relu(x * x - 100) + 1,
        _aten.relu.default,
        lambda x: op.LeakyRelu(x, alpha=0.1),
        lambda: (one_large(),),
    ),
    "function: NaN dropped": (
        lambda x: torch.relu(x) + 1,
        _aten.relu.default,
        lambda x: op.Where(op.IsNaN(x), op.CastLike(op.Constant(value_float=0.0), x), op.Relu(x)),
        lambda: (torch.tensor([0.5, -1.0, math.nan, 2.0]),),
    ),
    "function: of several outputs": (
        lambda x: functional.group_norm(x, 2),
        _aten.native_group_norm.default,
        by_channel,
        lambda: (torch.randn(1, 4, 3, 3),),
    ),
    "function: just above rounding": (wave, _aten.sin.default, sine_times(1.00003), lambda: (torch.randn(64),)),
}
PLANTED = PLACES | {name: with_wrong_function(*row) for name, row in FUNCTIONS.items()}

SLOW = ("lowering: gradient cut off", "rewrite: the user's", "function: of several outputs")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in PLANTED])
def test_a_planted_wrong_answer_is_reported_with_its_cause_scope_and_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_reported(PLANTED[name], monkeypatch)


def faultless(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Writes into an argument and a buffer, returns a view, and draws random numbers."""
    return written_input(x), y[1:], normalised(y), noisy(y)


def test_without_a_fault_nothing_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    check_clean(Planted(function=faultless, args=lambda: (torch.rand(4, 2), torch.rand(5, 4))), monkeypatch)


def test_a_fault_below_rounding_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = with_wrong_function(wave, _aten.sin.default, sine_times(1.0000002), lambda: (torch.randn(64),))
    lens, numerics = verified(planted, monkeypatch)
    assert numerics.ok.all()
    assert lens.findings[lens.findings.severity == "error"].empty


@torch.no_grad()
def test_a_fault_in_the_second_of_two_compiled_functions_is_reported() -> None:
    lens = ortlens.Lens(options=functions({_aten.cos.default: lambda x: op.Mul(op.Cos(x), op.Constant(value_float=1.02))}))
    x = torch.rand(3)
    torch.compile(wave, backend=lens)(x)
    torch.compile(late_wave, backend=lens)(x)
    numerics = lens.verify(x)
    call = numerics[numerics.scope == "call"].set_index("node")
    assert dict(call.ok) == {"wave: result": True, "late_wave: result": False}
    assert (call.file["late_wave: result"], call.line["late_wave: result"]) == (__file__, line_of(late_wave))
    (finding,) = lens.findings[lens.findings.rule == "call_differs"].to_dict("records")
    assert finding["subject"] == "late_wave: call"


@torch.no_grad()
def test_a_fault_in_a_late_call_of_a_partition_is_found() -> None:
    lens = ortlens.explain(looped, calls=1, options=functions({_aten.relu.default: doubled_from_ten}))(torch.zeros(3))
    numerics = lens.verify(torch.zeros(3))
    assert lens.partitions.shape[0] == 1
    (first,) = numerics[numerics.first_divergence].to_dict("records")
    assert (first["scope"], first["node"], first["file"], first["line"]) == ("value", "relu", __file__, line_of(step))
    assert list(numerics[numerics.scope == "call"].ok) == [False]
    assert {"call_differs", "numbers_differ"} <= set(lens.findings.rule)
