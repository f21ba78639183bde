"""`custom_translation_table`: ONNX Script functions for operators that ONNX does not know."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

from typing import Any

import torch
from onnxscript import opset18 as op

from ortlens import Lens

X = torch.linspace(-1, 1, 7)


def test_a_custom_operator_stays_until_it_has_a_translation() -> None:
    @torch.library.custom_op("ortlens_test::plus_two", mutates_args=())
    def plus_two(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    plus_two.register_fake(torch.empty_like)

    def use(x: torch.Tensor) -> Any:
        return plus_two(x.sin()) * 2

    lens = Lens()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(use, backend=lens)(X), use(X))
    assert lens.fallbacks[["target", "reason_code"]].values.tolist() == [["ortlens_test.plus_two.default", "no_converter"]]

    def plus_two_in_onnx(x: Any) -> Any:
        return op.Add(x, op.Constant(value_float=2.0))

    torch.compiler.reset()
    lens = Lens(options={"custom_translation_table": {torch.ops.ortlens_test.plus_two.default: plus_two_in_onnx}})
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(use, backend=lens)(X), use(X))
    assert lens.fallbacks.empty
    assert lens.graphs.coverage.tolist() == [1.0]


def test_a_table_goes_before_the_built_in_functions_and_concerns_no_other_backend() -> None:
    def negated_sine(x: Any) -> Any:
        return op.Neg(op.Sin(x))

    plain, custom = Lens(), Lens(options={"custom_translation_table": {torch.ops.aten.sin.default: negated_sine}})
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(torch.sin, backend=custom)(X), -X.sin())
        torch.testing.assert_close(torch.compile(torch.sin, backend=plain)(X), X.sin())
    assert [set(lens.models.ops.item()) for lens in (plain, custom)] == [{"Sin:1"}, {"Sin:1", "Neg:1"}]
