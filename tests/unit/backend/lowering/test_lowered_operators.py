"""What lowering makes of operators: implicit conversions, lists of tensors, fake quantisation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ortlens import Lens
from tests.unit.backend.operators.one_graph import as_pytorch, extremes

X, Y = torch.linspace(0.1, 0.9, 6), torch.linspace(2.0, 3.0, 4)
LISTS: dict[str, Any] = {
    "unary": lambda x, y: [getattr(torch, f"_foreach_{name}")([x, y]) for name in ("sqrt", "neg", "exp", "reciprocal", "sigmoid", "trunc")],
    "add": lambda x, y: (
        torch._foreach_add([x, y], 2),
        torch._foreach_add([x, y], [x * 2, y * 3], alpha=0.5),
        torch._foreach_add([x, y], [1.5, 2.5]),
        torch._foreach_add([x, y], x[0], alpha=2),
    ),
    "sub": lambda x, y: torch._foreach_sub([x, y], [x * 2, y * 3], alpha=0.5),
    "mul": lambda x, y: (torch._foreach_mul([x, y], 0.9), torch._foreach_mul([x, y], [3.0, 0.1])),
    "div": lambda x, y: torch._foreach_div([x, y], [y[:1], x[:1]]),
    "lerp": lambda x, y: (torch._foreach_lerp([x, y], [x * 2, y * 3], 0.1), torch._foreach_lerp([x, y], [x * 2, y * 3], [x, y / 4])),
    "pow": lambda x, y: (torch._foreach_pow(0.9, [x, y]), torch._foreach_pow([x, y], 2), torch._foreach_pow([x, y], [2.0, 3.0])),
    "bounds": lambda x, y: (
        torch._foreach_maximum([x, y], 0.5),
        torch._foreach_maximum([x, y], [x * 2 - 0.5, y - 0.1]),
        torch._foreach_clamp_max([x, y], [0.3, 2.2]),
        torch._foreach_minimum([x, y], 2.5),
    ),
    "scaled": lambda x, y: (
        torch._foreach_addcmul([x, y], [x, y], [x * 2, y * 3], 0.1),
        torch._foreach_addcmul([x, y], [x, y], [x * 2, y * 3]),
        torch._foreach_addcdiv([x, y], [x, y], [x * 2, y * 3], [-0.1, 0.2]),
        torch._foreach_addcdiv([x, y], [x, y], [x + 1, y + 1], value=1),
    ),
    "norm": lambda x, y: (torch._foreach_norm([x, y]), torch._foreach_norm([x, y], 1)),
}


def _written_list(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = x.clone(), y.clone()
    torch._foreach_mul_([x, y], 0.9)
    torch._foreach_copy_([x], [x / 2])
    torch._foreach_zero_([y])
    return x, y


def test_lists_become_one_operator_per_tensor() -> None:
    as_pytorch({**LISTS, "in place": _written_list}, X, Y, stays=())


def test_lists_of_sizes_that_vary() -> None:
    as_pytorch({name: LISTS[name] for name in ("mul", "lerp", "scaled")}, X, Y, dynamic=True, stays=())


SCALES, ZEROS = torch.tensor([0.1, 3.7, 1e-3, 64.0]), torch.tensor([0, 5, -3, 127], dtype=torch.int32)
TENSOR: dict[str, Any] = {
    "uint8": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255),
    "int8": lambda x: torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -128, 127),
    "scale of a power of two": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.25, -5, -128, 127),
    "small": lambda x: torch.fake_quantize_per_tensor_affine(x, 1e-4, 0, 0, 15),
    "tensors": lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES[0], ZEROS[1], 0, 255),
    "halves": lambda x: torch.fake_quantize_per_tensor_affine(torch.arange(-20, 20) / 2 + 0 * x[0], 1.0, 1, -128, 127),
}
CHANNEL: dict[str, Any] = {
    "rows": lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS, 0, -128, 127),
    "columns": lambda x: torch.fake_quantize_per_channel_affine(x.T, SCALES, ZEROS, 1, -128, 127),
}


def test_fake_quantisation_at_the_edges() -> None:
    numbers = extremes(torch.float32)
    as_pytorch(TENSOR, numbers, atol=0, stays=())
    as_pytorch(CHANNEL, numbers[: len(numbers) // 4 * 4].reshape(4, -1), atol=0, stays=())


def test_gradients_of_fake_quantisation() -> None:
    numbers = torch.linspace(-30, 30, 101)
    as_pytorch(TENSOR, numbers, grad=True)
    as_pytorch(CHANNEL, numbers[:100].reshape(4, 25), grad=True)


def test_fake_quantisation_of_other_types_stays_in_pytorch() -> None:
    doubles = torch.ones(3, dtype=torch.float64)
    capture = as_pytorch({"float64": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255)}, doubles, atol=0)
    assert [row.target for row in capture.fallbacks] == ["aten.fake_quantize_per_tensor_affine_cachemask.default"]


CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "number minus integers": lambda x: 1.5 - x,
    "number minus mask": lambda x: 1.0 - (x > 0).int(),
    "scaled": lambda x: torch.rsub(x, 2.5, alpha=2),
    "number divided by integers": lambda x: 7.5 // (x.abs() + 1),
    "remainder of a number": lambda x: 7.5 % (x.abs() + 1),
    "number to the power of integers": lambda x: 2.5**x,
    "two numbers": lambda x: torch.div(3, 4) + x,
    "fractional bounds": lambda x: torch.clamp(x, torch.tensor([1.5]), torch.tensor(3)),
    "half": lambda x: 1.5 - x.half(),
    "double": lambda x: 0.1 - x.double(),
    "stacked": lambda x: (torch.stack([x, x + 0.5], -1), torch.stack([x.int(), x]), torch.stack([x > 0, x.half(), x.float()])),
    "joined": lambda x: (torch.cat([x, x + 0.5]), torch.hstack([x > 0, x]), torch.vstack([x, x / 2]), torch.dstack([x, x.double()])),
    "joined columns": lambda x: (torch.column_stack([x, x + 0.5]), torch.cat([x > 0, x.to(torch.uint8)]), torch.cat([x[:0].half(), x])),
}


def test_numbers_in_the_place_of_tensors() -> None:
    capture = as_pytorch(CASES, torch.tensor([-3, 0, 1, 2, 3]), dynamic=True, atol=0)
    assert not capture.findings


def test_a_node_whose_conversion_is_not_known_is_excluded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.onnx._internal.fx.passes import type_promotion

    promote = type_promotion._TypePromotionInterpreter._maybe_promote_node

    def refuse(self: Any, node: torch.fx.Node, rule: Any) -> Any:  # noqa: ANN401 - as in torch
        if node.target is torch.ops.aten.mul.Tensor:
            raise RuntimeError("no such overload")
        return promote(self, node, rule)

    monkeypatch.setattr(type_promotion._TypePromotionInterpreter, "_maybe_promote_node", refuse)
    lens = Lens()
    x = torch.tensor([1, 2, 3])
    result = torch.compile(lambda x: torch.exp(x + 1) * x, backend=lens)(x)
    torch.testing.assert_close(result, torch.exp(x + 1) * x)
    captured = lens.captured()
    assert [row.target for row in captured.fallbacks] == ["aten.mul.Tensor"]
    assert "element types is not known" in str(captured.fallbacks[0].reason)
    assert captured.partitions
