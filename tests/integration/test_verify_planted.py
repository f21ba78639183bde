"""Wrong answers that the backend once gave, or could give, planted on purpose: `verify` reports each with its scope and user line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
from onnxscript import opset18

import ortlens
from ortlens.backend.lowering import entry
from ortlens.backend.runtime import call as call_module
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


def views_left_inside(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(entry, "without_returned_views", lambda *_: None)


def copies_returned(patch: pytest.MonkeyPatch) -> None:
    plain: Any = entry.DynamoGraph.compile

    def compiled(self: object, *args: object) -> Callable[..., Any]:
        run = plain(self, *args)
        return lambda *values: [made.clone() for made in run(*values)]

    patch.setattr(entry.DynamoGraph, "compile", compiled)


def bits_ignored(patch: pytest.MonkeyPatch) -> None:
    """The memory of an input is bound as it is, whatever its negative bit says."""
    writer: Any = call_module._Writer
    plain = writer._bind_input

    def bind(self: Any, index: int, item: object) -> list[str]:  # noqa: ANN401 - a private class
        self.constants["raw"] = lambda value: torch._neg_view(value) if value.is_neg() else value
        return [f"a{index} = raw(a{index})", *plain(self, index, item)]

    patch.setattr(writer, "_bind_input", bind)


def changes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(call_module._Writer, "_staleness", lambda *_: [])


def clamps_merged(model: ir.Model) -> None:
    """Takes the second of two clamps as if the first were not there: right only where their ranges overlap."""
    for node in model.graph:
        producer = node.inputs[0].producer() if node.op_type == "Clip" and node.inputs[0] is not None else None
        if producer is not None and producer.op_type == "Clip":
            node.replace_input_with(0, producer.inputs[0])
            node.replace_input_with(2, producer.inputs[2])


def baked(self: torch.Tensor, size: list[int], stride: list[int], offset: int | None = None) -> torch.Tensor:
    start = int(self.storage_offset())
    places = torch.arange(size[0]) * stride[0] + (start if offset is None else int(offset)) - start
    return self.reshape(-1)[places]


def plain_product(x: Value, y: Value) -> Value:
    return op.MatMul(x, y)


def naive_mean(x: Value, dtype: int | None = None) -> Value:
    del dtype
    return op.ReduceMean(x, keepdims=0)


def leaking_relu(x: Value) -> Value:
    return op.LeakyRelu(x, alpha=0.1)


# ------------------------------------------------------------------------------------------------------------ the programs


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = x.chunk(2, -1)  # the line
    return first, second


def written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[1:3] = 5.0  # the line
    return y


def written_input(x: torch.Tensor) -> torch.Tensor:
    x[1:3] = 5.0  # the line
    return x * 2


def squashed(x: torch.Tensor) -> torch.Tensor:
    return x.tanh() * 2  # the line


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)  # the line


def strided(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((4,), (2,), 4) * 2  # the line


def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), x.cos()  # the line


def one(x: torch.Tensor) -> torch.Tensor:
    return x.sin()  # the line


def with_view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), x[1:]  # the line


def product(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return x @ v  # the line


def clamped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(0, 1).clamp(2, 3)  # the line


def imaginary(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.conj().imag)  # the line


def average(x: torch.Tensor) -> torch.Tensor:
    return x.mean()  # the line


def overflowing(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * x - 100) + 1  # the line


_LINEAR = torch.nn.Linear(64, 64)


def linear(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, _LINEAR.weight)  # the line


def one_large() -> torch.Tensor:
    x = torch.linspace(-3, 3, 64).half()
    x[5] = 1000
    return x


def needing_grad(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, requires_grad=True)


PLANTED: dict[str, Planted] = {
    "views of inputs": Planted(
        function=halves,
        first=lambda: (torch.rand(3, 8),),
        args=lambda: (torch.rand(3, 12),),
        plant=views_left_inside,
        dynamic=True,
        wrong={"result[1]": ""},
        says=BOUNDARY,
    ),
    "dropped write": Planted(
        function=written,
        args=lambda: (torch.rand(4, 2),),
        plant=decomposing({_aten.slice_scatter.default: lambda x, *_, **__: x.clone()}),
        wrong={"result": ""},
        says=LOWERING,
    ),
    "dropped write into an input": Planted(
        function=written_input,
        args=lambda: (torch.rand(4, 2),),
        plant=decomposing({_aten.slice_scatter.default: lambda x, *_, **__: x.clone()}),
        wrong={"result": "", "x after the call": ""},
        elsewhere=("result",),
        says=LOWERING,
    ),
    "wrong gradient": Planted(
        function=squashed,
        args=lambda: (needing_grad(3, 4),),
        plant=decomposing({_aten.tanh_backward.default: lambda grad, y: grad * (1 - y)}),
        wrong={"gradient of x": ""},
        says=LOWERING,
    ),
    "other random numbers": Planted(
        function=noisy,
        args=lambda: (torch.rand(3, 4),),
        plant=decomposing({_aten.rand_like.default: lambda x, **_: torch.rand((2, *x.shape))[1]}),
        wrong={"result": "", "random state": "other random numbers were drawn"},
        says=LOWERING,
    ),
    "offset of the traced input": Planted(
        function=strided,
        first=lambda: (torch.arange(40.0)[0:20],),
        args=lambda: (torch.arange(40.0)[3:23],),
        plant=decomposing({_aten.as_strided.default: baked}),
        wrong={"result": ""},
        says=LOWERING,
    ),
    "swapped outputs": Planted(
        function=two,
        args=lambda: (torch.rand(3),),
        plant=returning(lambda outputs: outputs[::-1]),
        wrong={"result[0]": "", "result[1]": ""},
        says=BOUNDARY,
    ),
    "wrong dtype": Planted(
        function=one,
        args=lambda: (torch.rand(3),),
        plant=returning(lambda outputs: [outputs[0].double()]),
        wrong={"result": "float64 from the compiled function, float32 from PyTorch"},
        says=BOUNDARY,
    ),
    "wrong shape": Planted(
        function=one,
        args=lambda: (torch.rand(3),),
        plant=returning(lambda outputs: [outputs[0].unsqueeze(0)]),
        wrong={"result": "shape"},
        says=BOUNDARY,
    ),
    "missing alias": Planted(
        function=with_view,
        args=lambda: (torch.rand(3),),
        plant=copies_returned,
        wrong={"result[1]": "shares no memory with x"},
        says="No value inside a partition differs",
    ),
    "unwanted alias": Planted(
        function=two,
        args=lambda: (torch.zeros(3),),
        plant=returning(lambda outputs: [outputs[0], outputs[0]]),
        wrong={"result[1]": "shares memory with result[0]"},
        says=BOUNDARY,
    ),
    "matrix and vector": Planted(
        function=product,
        args=lambda: (needing_grad(5, 4), needing_grad(4)),
        options={"custom_translation_table": {_aten.mv.default: plain_product}},
        wrong={"gradient of v": ""},
        says=INSIDE,
        inside=("output", "fusion_changes_numbers"),
        because="MatmulTransposeFusion causes it",
    ),
    "unsound rewrite": Planted(
        function=clamped,
        args=lambda: (torch.rand(3),),
        plant=rewriting(clamps_merged),
        wrong={"result": ""},
        says=INSIDE,
        inside=("value", "fusion_changes_numbers"),
    ),
    "negative bit": Planted(
        function=imaginary,
        args=lambda: (torch.randn(4, dtype=torch.complex64),),
        plant=bits_ignored,
        wrong={"result": ""},
        says=INSIDE,
        inside=("value", "numbers_differ"),
        because="right on plain copies of its inputs",
    ),
    "lost accuracy": Planted(
        function=average,
        args=lambda: (100 + torch.rand(4_000_000),),
        options={"custom_translation_table": {_aten.mean.default: naive_mean}},
        wrong={"result": ""},
        says=INSIDE,
        inside=("value", "loses_accuracy"),
        because="in float64 its ONNX function is right, in float32 rounding adds up",
    ),
    "wrong beside an overflow": Planted(
        function=overflowing,
        args=lambda: (one_large(),),
        options={"custom_translation_table": {_aten.relu.default: leaking_relu}},
        wrong={"result": ""},
        says=INSIDE,
        inside=("value", "numbers_differ"),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_wrong_answer_is_reported_with_its_scope_and_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_reported(PLANTED[name], monkeypatch)


@torch.no_grad()
def test_a_session_with_outdated_weights_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    changes_unnoticed(monkeypatch)
    x = torch.rand(4, 64)
    lens = ortlens.explain(linear, calls=1)(x)
    before = _LINEAR.weight.detach().clone()
    try:
        _LINEAR.weight.data[5] = 100.0
        numerics = lens.verify(x)
    finally:
        _LINEAR.weight.data.copy_(before)
    wrong = numerics[numerics.ok == False]  # noqa: E712 - a column with gaps
    assert list(wrong.scope) == ["output", "call"]
    assert set(wrong.line) == {line_of(linear)}
    assert "holds weights from before a change that was not noticed" in wrong.note.iloc[0]
    (finding,) = lens.findings[lens.findings.rule == "numbers_differ"].to_dict("records")
    assert "outdated weights" in finding["title"]


@pytest.mark.parametrize("name", [name for name in PLANTED if name not in ("matrix and vector", "lost accuracy")])
def test_without_the_fault_nothing_differs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_clean(PLANTED[name], monkeypatch)
