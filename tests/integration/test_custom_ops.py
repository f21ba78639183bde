"""Operators of `torch.library` in ONNX Runtime, by a backend's own table or by `register_op` for the whole process."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from onnxscript import opset18 as op
from torch import nn
from torch.export import export

import ortlens
from ortlens import Lens
from ortlens.backend.basis import options


@torch.library.custom_op("ortlens_custom::affine", mutates_args=())
def affine(x: torch.Tensor, factor: float, shift: int = 1) -> torch.Tensor:
    """An operator that ONNX has never heard of."""
    return x * factor + shift


@torch.library.custom_op("ortlens_custom::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One with two outputs."""
    return x[: x.shape[0] // 2].clone(), x[x.shape[0] // 2 :].clone()


affine.register_fake(lambda x, factor, shift=1: torch.empty_like(x))  # noqa: ARG005 - the operator's own arguments
affine.register_autograd(
    lambda context, gradient: (affine(gradient, context.factor, 0), None, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),  # noqa: ARG005 - torch's own names
)
halves.register_fake(lambda x: (x.new_empty(x.shape[0] // 2), x.new_empty(x.shape[0] - x.shape[0] // 2)))

pytestmark = pytest.mark.usefixtures("own_instances")
AFFINE, HALVES = torch.ops.ortlens_custom.affine.default, torch.ops.ortlens_custom.halves.default
X = torch.linspace(-1, 1, 6)


def affine_in_onnx(x: Any, factor: float, shift: int = 1) -> Any:
    scaled = op.Mul(x, op.Constant(value_float=factor))
    return op.Add(scaled, op.Constant(value_float=float(shift)))


def halves_in_onnx(x: Any) -> Any:
    return op.Split(x, num_outputs=2)


def use(x: torch.Tensor) -> Any:
    return affine(x.sin(), 2.5).cos()


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the process as it was: there is no way to take an operator back."""
    monkeypatch.setattr(options, "_registered", {})


def run(function: Callable[..., Any], *args: Any, table: dict[Any, Any] | None = None) -> Lens:
    with torch.no_grad():
        return ortlens.explain(function, calls=1, options={"custom_translation_table": table} if table else None)(*args)


def test_by_table_with_the_operators_own_arguments_and_two_outputs() -> None:
    def function(x: torch.Tensor) -> Any:
        return use(x), affine(x, -0.5, 3), [half * 2 for half in halves(x)]

    lens = run(function, X, table={AFFINE: affine_in_onnx, HALVES: halves_in_onnx})
    torch.testing.assert_close(lens.result, function(X))
    assert lens.graphs.coverage.tolist() == [1.0]


def test_by_registration_from_the_next_compilation_on() -> None:
    lens = Lens()
    compiled = torch.compile(use, backend=lens, dynamic=False)
    with torch.no_grad():
        compiled(X)
        assert lens.fallbacks.target.tolist() == ["ortlens_custom.affine.default"]
        ortlens.register_op(AFFINE, affine_in_onnx)
        torch.testing.assert_close(compiled(X), use(X))
        assert len(lens.graphs) == 1, "what is compiled stays as it is"
        torch.testing.assert_close(compiled(X[:4]), use(X[:4]))
    assert lens.graphs.coverage.tolist()[1:] == [1.0]
    assert lens.sessions.calls.sum() == 2 * 2 + 1


def test_a_registration_goes_before_the_built_in_function_and_the_built_in_decomposition() -> None:
    ortlens.register_op(torch.ops.aten.sin.default, lambda x: op.Neg(op.Sin(x)))
    torch.testing.assert_close(run(lambda x: x.sin() + 1, X).result, 1 - X.sin())
    ortlens.register_op(torch.ops.aten.silu.default, lambda x: op.Mul(op.Sigmoid(x), op.Neg(x)))
    torch.testing.assert_close(run(nn.functional.silu, X).result, -nn.functional.silu(X))


def test_an_operator_that_is_not_trusted_is_when_the_user_says_how() -> None:
    """The built-in function of this one is never used: it makes up the second output. The user's is taken at its word."""

    def marked(x: Any, target: Any, *_: Any) -> Any:
        loss = op.NegativeLogLikelihoodLoss(x, target, reduction="sum")
        return op.Mul(loss, op.Constant(value_float=-3.0)), op.Constant(value_float=1.0)

    logits, labels = torch.randn(4, 5).log_softmax(1), torch.tensor([0, 2, 4, 1])

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.ops.aten.nll_loss_forward.default(x, y, None, 2, -100)[0]

    torch.testing.assert_close(run(loss, logits, labels).result, loss(logits, labels))
    torch.compiler.reset()
    lens = run(loss, logits, labels, table={torch.ops.aten.nll_loss_forward.default: marked})
    torch.testing.assert_close(lens.result, -3 * loss(logits, labels))
    assert lens.graphs.coverage.tolist() == [1.0]
    torch.compiler.reset()
    torch.testing.assert_close(run(loss, logits, labels).result, loss(logits, labels), msg="the table was another backend's")


def test_training_forward_and_backward() -> None:
    x, own = X.clone().requires_grad_(), X.clone().requires_grad_()
    lens = Lens(options={"custom_translation_table": {AFFINE: affine_in_onnx}})
    torch.compile(use, backend=lens)(x).sum().backward()
    use(own).sum().backward()
    torch.testing.assert_close(x.grad, own.grad)
    assert lens.graphs.phase.tolist() == ["forward", "backward"]
    assert lens.graphs.coverage.tolist() == [1.0, 1.0]


def test_an_exported_program_and_the_model_to_deploy(tmp_path: Path) -> None:
    class Using(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return use(x)

    program = export(Using(), (X,))
    assert run(program, X).fallbacks.target.tolist() == ["ortlens_custom.affine.default"]
    ortlens.register_op(AFFINE, affine_in_onnx)
    lens = run(program, X)
    torch.testing.assert_close(lens.result, use(X))
    path = lens.export_onnx(tmp_path / "custom.onnx")
    (result,) = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": X.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), use(X))
