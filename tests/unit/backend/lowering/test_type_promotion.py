"""Implicit conversions: numbers in the place of tensors, and nodes whose conversion is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens import Lens
from tests.unit.backend.conversion.functions.one_graph import as_pytorch

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

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
