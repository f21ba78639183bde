"""Faults planted on the way between PyTorch and ONNX Runtime: decompositions, rewrites, boundaries, weights, gradients, random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
import onnxruntime
import pytest
import torch
from onnxscript import opset18
from torch.nn import functional

import ortlens
from ortlens.backend.api import OrtBackend
from ortlens.backend.runtime import call as call_module
from ortlens.backend.runtime.session_config import SessionConfig
from tests.integration.planting import (
    BOUNDARY,
    INSIDE,
    LOWERING,
    Planted,
    check_clean,
    check_reported,
    decomposing,
    line_of,
    returning,
    rewriting,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

Value: TypeAlias = Any  # of ONNX Script
op: Any = opset18
_aten = torch.ops.aten

# These run in every test run, the others carry the marker `slow`.
ALWAYS = ("boundary: offset of an input ignored", "boundary: buffer not updated", "optimisation of ONNX Runtime", "dynamic: later sizes")

# ----------------------------------------------------------------------------------------------------- how to plant


def binding(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """Binds the memory of each input after a change."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        writer: Any = call_module._Writer
        plain = writer._bind_input

        def bind(self: Any, index: int, item: object) -> list[str]:  # noqa: ANN401 - a private class
            self.constants["raw"] = lambda value: change(value) if isinstance(value, torch.Tensor) else value
            return [f"a{index} = raw(a{index})", *plain(self, index, item)]

        patch.setattr(writer, "_bind_input", bind)

    return plant


def detached(patch: pytest.MonkeyPatch) -> None:
    """Results do not take part in differentiation."""
    plain: Any = OrtBackend.__call__

    def compiled(self: object, *args: object, **settings: object) -> Callable[..., Any]:
        run = plain(self, *args, **settings)
        return lambda *values: [made.detach() for made in run(*values)]

    patch.setattr(OrtBackend, "__call__", compiled)


def dense(value: torch.Tensor) -> torch.Tensor:
    """The memory in its own order, whatever the strides say."""
    strides = torch.empty(value.shape, device="meta").stride()
    return value.as_strided(value.shape, strides)


def from_the_start(value: torch.Tensor) -> torch.Tensor:
    return value.as_strided(value.shape, value.stride(), 0)


def optimising(change: Callable[[onnx.ModelProto], object]) -> Callable[[pytest.MonkeyPatch], None]:
    """A rewrite that ONNX Runtime makes unless its optimisations are off."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        plain = SessionConfig.session

        def session(self: SessionConfig, serialized: bytes, **settings: Any) -> onnxruntime.InferenceSession:  # noqa: ANN401 - passed on
            model = onnx.load_from_string(serialized)
            if self.options.graph_optimization_level != onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL:
                change(model)
            return plain(self, model.SerializeToString(), **settings)

        patch.setattr(SessionConfig, "session", session)

    return plant


def replacing(op_type: str, by: str) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    """Takes every operator of a type for another."""

    def change(model: onnx.ModelProto) -> onnx.ModelProto:
        for node in model.graph.node:
            node.op_type = by if node.op_type == op_type else node.op_type
        return model

    return change


def without_bias(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        if node.op_type == "Gemm":
            others = [attribute for attribute in node.attribute if attribute.name != "beta"]
            del node.attribute[:]
            node.attribute.extend([*others, onnx.helper.make_attribute("beta", 0.0)])
    return model


def reversed_parts(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        if node.op_type == "Concat":
            parts = list(node.input)[::-1]
            del node.input[:]
            node.input.extend(parts)
    return model


def merged(op_type: str) -> Callable[[ir.Model], None]:
    """Leaves out the first of two operators of a type, one after the other."""

    def change(model: ir.Model) -> None:
        for node in model.graph:
            producer = node.inputs[0].producer() if node.op_type == op_type and node.inputs[0] is not None else None
            if producer is not None and producer.op_type == op_type:
                node.replace_input_with(0, producer.inputs[0])

    return change


def once(run: list[Any]) -> Callable[[list[Any]], list[Any]]:
    """Returns the results of the first call for ever."""

    def change(outputs: list[Any]) -> list[Any]:
        run.append([output.clone() for output in outputs])
        return [output.clone() for output in run[0]]

    return change


# ------------------------------------------------------------------------------------------------------ the programs


def product_added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(x, y, y, value=3)  # the line


def enlarged(x: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(x, size=(5, 7))  # the line


def attending(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, k, is_causal=True)  # the line


def not_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object, **__: object) -> tuple[torch.Tensor, ...]:
    scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def centre(x: torch.Tensor) -> torch.Tensor:
    return x.mean(0)  # the line


def by_one_less(x: torch.Tensor, dim: list[int], keepdim: bool = False, **_: object) -> torch.Tensor:  # noqa: FBT001, FBT002 - the schema's
    return x.sum(dim, keepdim) / (x.shape[dim[0]] - 1)


def by_a_size_that_stays(x: torch.Tensor, dim: list[int], keepdim: bool = False, **_: object) -> torch.Tensor:  # noqa: FBT001, FBT002 - same
    size: int = torch.sym_min(x.shape[dim[0]], 4)
    return x.sum(dim, keepdim) / size


def cut_and_back(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int32).to(torch.float32) + 1  # the line


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.relu().permute(1, 2, 0).cos().permute(1, 0, 2)  # the line


_LINEAR = torch.nn.Linear(8, 8)
_NORM = torch.nn.BatchNorm1d(4)


def linear(x: torch.Tensor) -> torch.Tensor:
    return _LINEAR(x)  # type: ignore[no-any-return]  # the line


def side_by_side(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.sin(), y.cos()])  # the line


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sin() + y  # the line


def reshaped(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)  # the line


def two(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"first": x.sin(), "second": x.cos()}  # the line


def both(x: torch.Tensor) -> torch.Tensor:
    return x > 0.5  # the line


def counted(x: torch.Tensor) -> torch.Tensor:
    return (x * 10).to(torch.int64)  # the line


def kept(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)  # the line
    return x.cos()


def sized(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x.sin(), x.shape[0] * 3  # the line


def quiet(x: torch.Tensor) -> torch.Tensor:  # the line
    return x.sin()


def normalised(x: torch.Tensor) -> torch.Tensor:
    return _NORM(x)  # type: ignore[no-any-return]  # the line


def dropped(x: torch.Tensor) -> torch.Tensor:
    return functional.dropout(x, 0.5)  # the line


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn_like(x)  # the line


def rectified(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2  # the line


def multiplied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y  # the line


def looked_up(weight: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return functional.embedding(places, weight)  # the line


def shares(x: torch.Tensor) -> torch.Tensor:
    return functional.softmax(x, -1)  # the line


def pooled(x: torch.Tensor) -> torch.Tensor:
    return functional.max_pool2d(x, 2)  # the line


def step(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 1)  # the line


def looped(x: torch.Tensor) -> torch.Tensor:
    for _ in range(12):
        torch._dynamo.graph_break()
        x = step(x)
    return x


def rotated(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x.exp(), x.sin())  # the line


def huge(x: torch.Tensor) -> torch.Tensor:
    return x.abs()  # the line


def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin()  # the line


# ---------------------------------------------------------------------------------------------- the wrong functions


def wave_of_four(x: Value) -> Value:
    """Right for up to four rows."""
    head, tail = (
        op.Slice(x, op.Constant(value_ints=[a]), op.Constant(value_ints=[b]), op.Constant(value_ints=[0]))
        for a, b in ((0, 4), (4, 1 << 30))
    )
    return op.Concat(op.Sin(head), tail, axis=0)


def through_half(x: Value) -> Value:
    return op.CastLike(op.Cast(op.Sin(x), to=10), x)


def through_float(x: Value) -> Value:
    return op.CastLike(op.Sin(op.Cast(x, to=1)), x)


def off_by_two_percent(x: Value) -> Value:
    return op.Mul(op.Sin(x), op.CastLike(op.Constant(value_float=1.02), x))


def one_more(x: Value) -> Value:
    return op.Add(op.Abs(x), op.Constant(value_ints=[1]))


def doubled_from_ten(x: Value) -> Value:
    return op.Where(op.Greater(x, op.Constant(value_float=10.0)), op.Mul(x, op.Constant(value_float=2.0)), op.Relu(x))


def everything_passes(grad: Value, x: Value, threshold: float) -> Value:
    del x, threshold
    return op.Identity(grad)


def last_write_wins(grad: Value, places: Value, count: int, *_: object) -> Value:
    zeros = op.Expand(op.Constant(value_float=0.0), op.Concat(op.Constant(value_ints=[count]), op.Shape(grad, start=-1), axis=0))
    return op.ScatterND(zeros, op.Unsqueeze(places, op.Constant(value_ints=[-1])), grad)


def of_sigmoid(grad: Value, output: Value, dim: int, input_dtype: int) -> Value:
    del dim, input_dtype
    return op.Mul(grad, op.Mul(output, op.Sub(op.Constant(value_float=1.0), output)))


def needing_grad(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, requires_grad=True)


def with_weight(value: float) -> Callable[[], tuple[torch.Tensor]]:
    """The argument of `linear`, after a change of its weight."""

    def made() -> tuple[torch.Tensor]:
        with torch.no_grad():
            _LINEAR.bias[0] = value
        return (torch.rand(3, 8),)

    return made


# ---------------------------------------------------------------------------------------------------------- the table

FUNCTION = "its ONNX function is wrong"
VALUE, OUTPUT, REWRITE = ("value", "numbers_differ"), ("output", "numbers_differ"), ("value", "fusion_changes_numbers")


def functions(table: dict[Any, Callable[..., Any]]) -> dict[str, Any]:
    return {"custom_translation_table": table}


PATHS: dict[str, Planted] = {
    # Decompositions.
    "decomposition: factor ignored": Planted(
        function=product_added,
        args=lambda: (torch.rand(3), torch.rand(3)),
        plant=decomposing({_aten.addcmul.default: lambda x, y, z, **_: x + y * z}),
        wrong={"result": ""},
        says=LOWERING,
    ),
    "decomposition: resize": Planted(
        function=enlarged,
        args=lambda: (torch.rand(1, 2, 3, 4),),
        plant=decomposing({_aten._unsafe_index.Tensor: lambda x, places: x[:, :, places[2], places[3].clamp(max=1)]}),
        wrong={"result": ""},
        says=LOWERING,
    ),
    "decomposition: mask ignored": Planted(
        function=attending,
        args=lambda: (torch.rand(1, 2, 4, 8), torch.rand(1, 2, 4, 8)),
        plant=decomposing({_aten._scaled_dot_product_flash_attention_for_cpu.default: not_causal}),
        wrong={"result": ""},
        says=LOWERING,
    ),
    "dynamic: size off by one": Planted(
        function=centre,
        args=lambda: (torch.rand(5, 3),),
        plant=decomposing({_aten.mean.dim: by_one_less}),
        wrong={"result": ""},
        says=LOWERING,
        dynamic=True,
    ),
    "dynamic: later sizes": Planted(
        function=centre,
        first=lambda: (torch.rand(3, 3),),
        args=lambda: (torch.rand(7, 3),),
        plant=decomposing({_aten.mean.dim: by_a_size_that_stays}),
        wrong={"result": ""},
        says=LOWERING,
        dynamic=True,
    ),
    "dynamic: later sizes in ONNX": Planted(
        function=wave,
        first=lambda: (torch.rand(3, 3),),
        args=lambda: (torch.rand(7, 3),),
        options=functions({_aten.sin.default: wave_of_four}),
        wrong={"result": ""},
        says=INSIDE,
        inside=VALUE,
        because=FUNCTION,
        dynamic=True,
    ),
    # Precision.
    "precision: through float16": Planted(
        function=wave,
        args=lambda: (torch.rand(8),),
        options=functions({_aten.sin.default: through_half}),
        wrong={"result": ""},
        says=INSIDE,
        inside=VALUE,
        because=FUNCTION,
    ),
    "precision: float64 through float32": Planted(
        function=wave,
        args=lambda: (torch.rand(8).double(),),
        options=functions({_aten.sin.default: through_float}),
        wrong={"result": ""},
        says=INSIDE,
        inside=VALUE,
        because=FUNCTION,
    ),
    "precision: float16 off by two percent": Planted(
        function=wave,
        args=lambda: (torch.rand(8).half(),),
        options=functions({_aten.sin.default: off_by_two_percent}),
        wrong={"result": ""},
        says=INSIDE,
        inside=VALUE,
        because=FUNCTION,
    ),
    "precision: integers that no float64 holds": Planted(
        function=huge,
        args=lambda: (torch.tensor([2**60, -(2**61)]),),
        options=functions({_aten.abs.default: one_more}),
        wrong={"result": ""},
        says=INSIDE,
        inside=VALUE,
        because=FUNCTION,
    ),
    "precision: imaginary part": Planted(
        function=rotated,
        args=lambda: (torch.rand(8),),
        options=functions({_aten.sin.default: off_by_two_percent}),
        wrong={"result": ""},
        says=INSIDE,
        inside=VALUE,
        because=FUNCTION,
    ),
    # Rewrites: ours, the user's, ONNX Runtime's.
    "rewrite: casts merged": Planted(
        function=cut_and_back,
        args=lambda: (torch.rand(4) * 9,),
        plant=rewriting(merged("Cast")),
        wrong={"result": ""},
        says=INSIDE,
        inside=REWRITE,
        because="a rewrite of the model before ONNX Runtime",
    ),
    "rewrite: addition for subtraction": Planted(
        function=added,
        args=lambda: (torch.rand(3), torch.rand(3)),
        options={"pre_ort_model_transforms": [replacing("Add", "Sub")]},
        wrong={"result": ""},
        says=INSIDE,
        inside=REWRITE,
        because="pre_ort_model_transforms causes it",
    ),
    "rewrite: bias lost": Planted(
        function=linear,
        first=with_weight(0.5),
        args=with_weight(0.5),
        options={"pre_ort_model_transforms": [without_bias]},
        wrong={"result": ""},
        says=INSIDE,
        inside=REWRITE,
        because="pre_ort_model_transforms causes it",
    ),
    "rewrite: parts reversed": Planted(
        function=side_by_side,
        args=lambda: (torch.rand(3), torch.rand(3)),
        options={"pre_ort_model_transforms": [reversed_parts]},
        wrong={"result": ""},
        says=INSIDE,
        inside=REWRITE,
        because="pre_ort_model_transforms causes it",
    ),
    "optimisation of ONNX Runtime": Planted(
        function=side_by_side,
        args=lambda: (torch.rand(3), torch.rand(3)),
        plant=optimising(reversed_parts),
        wrong={"result": ""},
        says=INSIDE,
        inside=("output", "fusion_changes_numbers"),
        because="right without ONNX Runtime's rewrites",
    ),
    # Boundaries.
    "boundary: strides of an input ignored": Planted(
        function=reshaped,
        args=lambda: (torch.randn(4, 6)[:, ::2],),
        plant=binding(dense),
        wrong={"result": ""},
        says=INSIDE,
        inside=VALUE,
        because="right on plain copies of its inputs",
    ),
    "boundary: offset of an input ignored": Planted(
        function=reshaped,
        args=lambda: (torch.randn(8)[4:],),
        plant=binding(from_the_start),
        wrong={"result": ""},
        says=INSIDE,
        inside=VALUE,
        because="right on plain copies of its inputs",
    ),
    "boundary: strides of an output ignored": Planted(
        function=reshaped,
        args=lambda: (torch.randn(4, 6),),
        plant=returning(lambda outputs: [outputs[0].as_strided((4, 6), (1, 4))]),
        wrong={"result": ""},
        says=BOUNDARY,
    ),
    "boundary: one result twice": Planted(
        function=two,
        args=lambda: (torch.rand(3),),
        plant=returning(lambda outputs: [outputs[0], outputs[0].clone()]),
        wrong={"result['second']": ""},
        says=BOUNDARY,
    ),
    "boundary: results of the call before": Planted(
        function=wave,
        first=lambda: (torch.rand(3),),
        args=lambda: (torch.rand(3),),
        plant=returning(once([])),
        wrong={"result": ""},
        says=BOUNDARY,
    ),
    "boundary: bool as bytes": Planted(
        function=both,
        args=lambda: (torch.rand(3),),
        plant=returning(lambda outputs: [outputs[0].to(torch.uint8)]),
        wrong={"result": "uint8 from the compiled function, bool from PyTorch"},
        says=BOUNDARY,
    ),
    "boundary: int64 as int32": Planted(
        function=counted,
        args=lambda: (torch.rand(3),),
        plant=returning(lambda outputs: [outputs[0].to(torch.int32)]),
        wrong={"result": "int32 from the compiled function, int64 from PyTorch"},
        says=BOUNDARY,
    ),
    "boundary: write to an input lost": Planted(
        function=kept,
        args=lambda: (torch.rand(3),),
        plant=returning(lambda outputs: [outputs[0] / 2, *outputs[1:]]),
        wrong={"x after the call": ""},
        says=BOUNDARY,
    ),
    "boundary: buffer not updated": Planted(
        function=normalised,
        args=lambda: (torch.rand(5, 4),),
        plant=returning(lambda outputs: [outputs[0], outputs[1] * 0, *outputs[2:]]),
        wrong={"_NORM.running_mean after the call": ""},
        says=BOUNDARY,
    ),
    # Weights.
    "weights: outdated bias": Planted(
        function=linear,
        first=with_weight(0.5),
        args=with_weight(-1.5),
        plant=lambda patch: patch.setattr(call_module._Writer, "_staleness", lambda *_: []),
        wrong={"result": ""},
        says=INSIDE,
        inside=OUTPUT,
        because="holds weights from before a change that was not noticed",
    ),
    # Gradients.
    "gradient: everything passes": Planted(
        function=rectified,
        args=lambda: ((torch.randn(4)).requires_grad_(),),
        options=functions({_aten.threshold_backward.default: everything_passes}),
        wrong={"gradient of x": ""},
        says=INSIDE,
        inside=VALUE,
        because=FUNCTION,
    ),
    "gradient: not accumulated": Planted(
        function=looked_up,
        args=lambda: (needing_grad(4, 2), torch.tensor([1, 1, 3])),
        options=functions({_aten.embedding_dense_backward.default: last_write_wins}),
        wrong={"gradient of weight": ""},
        says=INSIDE,
        inside=VALUE,
        because=FUNCTION,
    ),
    "gradient: of another function": Planted(
        function=shares,
        args=lambda: (needing_grad(3, 4),),
        options=functions({_aten._softmax_backward_data.default: of_sigmoid}),
        wrong={"gradient of x": ""},
        says=INSIDE,
        inside=VALUE,
        because=FUNCTION,
    ),
    "gradient: zero": Planted(
        function=wave,
        args=lambda: (needing_grad(4),),
        plant=returning(lambda outputs: [outputs[0] * 0] if len(outputs) == 1 else outputs),
        wrong={"gradient of x": ""},
        says=BOUNDARY,
    ),
    "gradient: cut off": Planted(
        function=wave,
        args=lambda: (needing_grad(4),),
        plant=detached,
        wrong={"result": "requires_grad is False, PyTorch's is True", "gradient of x": "computed by PyTorch only"},
        says=LOWERING,
    ),
    "gradient: exchanged": Planted(
        function=multiplied,
        args=lambda: (needing_grad(4), needing_grad(4)),
        plant=returning(lambda outputs: outputs[::-1] if len(outputs) == 2 else outputs),
        wrong={"gradient of x": "", "gradient of y": ""},
        says=BOUNDARY,
    ),
    "gradient: decomposition": Planted(
        function=pooled,
        args=lambda: (needing_grad(1, 2, 4, 4),),
        plant=decomposing(
            {_aten.max_pool2d_with_indices_backward.default: lambda grad, x, *_: functional.interpolate(grad, size=x.shape[2:]) / 4}
        ),
        wrong={"gradient of x": ""},
        says=LOWERING,
    ),
    # Random numbers.
    "random: drawn twice": Planted(
        function=dropped,
        args=lambda: (needing_grad(64),),
        plant=decomposing({_aten.native_dropout.default: lambda x, p, _: (x * (torch.rand_like(x) > p), torch.rand_like(x) > p)}),
        wrong={"result": "", "gradient of x": ""},
        says=LOWERING,
    ),
    "random: another distribution": Planted(
        function=noisy,
        args=lambda: (torch.rand(8),),
        plant=decomposing({_aten.randn_like.default: lambda x, **_: torch.rand_like(x)}),
        wrong={"result": "", "random state": "other random numbers were drawn"},
        says=LOWERING,
    ),
    "random: drawn for nothing": Planted(
        function=quiet,
        args=lambda: (torch.rand(3),),
        plant=returning(lambda outputs: [outputs[0] + 0 * torch.rand(1)]),
        wrong={"random state": "other random numbers were drawn"},
        says=BOUNDARY,
    ),
}


@pytest.mark.parametrize("name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in PATHS])
def test_a_planted_fault_is_reported_with_its_scope_and_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_reported(PATHS[name], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_without_the_fault_nothing_differs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_clean(PATHS[name], monkeypatch)


def test_a_fault_in_the_second_of_two_compiled_functions_is_reported() -> None:
    x = torch.rand(3)
    with torch.no_grad():
        lens = ortlens.Lens(options=functions({_aten.cos.default: off_by_two_percent}))
        torch.compile(wave, backend=lens)(x)
        torch.compile(second, backend=lens)(x)
        numerics = lens.verify(x)
    call = numerics[numerics.scope == "call"].set_index("node")
    assert dict(call.ok) == {"wave: result": True, "second: result": False}
    assert (call.file["second: result"], call.line["second: result"]) == (__file__, line_of(second))
    (finding,) = lens.findings[lens.findings.rule == "call_differs"].to_dict("records")
    assert finding["title"].startswith("second: result differs")


def test_a_fault_in_a_late_call_of_a_partition_is_found() -> None:
    with torch.no_grad():
        lens = ortlens.explain(looped, calls=1, options=functions({_aten.relu.default: doubled_from_ten}))(torch.zeros(3))
        numerics = lens.verify(torch.zeros(3))
    assert lens.partitions.shape[0] == 1
    (first,) = numerics[numerics.first_divergence].to_dict("records")
    assert (first["scope"], first["node"], first["file"], first["line"]) == ("value", "relu", __file__, line_of(step))
    assert list(numerics[numerics.scope == "call"].ok) == [False]
    assert {"call_differs", "numbers_differ"} <= set(lens.findings.rule)


def second(x: torch.Tensor) -> torch.Tensor:
    return x.cos()  # the line
