"""Overflows that ONNX Runtime would hide: PyTorch computes the call, and others run as before."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere
from torch import nn

from ortlens import Lens


def answers(function: Callable[[torch.Tensor], torch.Tensor], *calls: torch.Tensor) -> tuple[list[torch.Tensor], int]:
    """The compiled results, and how many runs failed."""
    torch.compiler.reset()
    lens = Lens()
    compiled = torch.compile(function, backend=lens)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = [compiled(call) for call in calls]
    return got, sum(finding.rule == "run_failed" for finding in lens.captured().findings)


def with_one(number: float, x: torch.Tensor, row: int) -> torch.Tensor:
    x = x.clone()
    x[row].view(-1)[0] = number
    return x


NORMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    **{f"layer_norm of {size}": (lambda x: F.layer_norm(x, x.shape[-1:]) * 2, (3, size)) for size in (4, 60, 768)},
    "layer_norm, two": (lambda x: F.layer_norm(F.layer_norm(x, (16,)).tanh() + x, (16,)).relu(), (3, 16)),
    "layer_norm, of two shapes": (lambda x: F.layer_norm(F.layer_norm(x, (16,)).unflatten(1, (4, 4)), (4,)), (3, 16)),
    "layer_norm, then products": (lambda x: F.layer_norm(x, (16,)).unflatten(1, (2, 8)) @ x[0].view(8, 2), (3, 16)),
    "group_norm": (lambda x: F.group_norm(x, 2), (3, 4)),
    "group_norm of images": (lambda x: F.group_norm(x, 2, x[0, :, 0, 0], x[1, :, 0, 0]), (3, 4, 4, 4)),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_a_row_whose_squares_overflow_is_pytorchs(name: str, *, grad: bool) -> None:
    function, shape = NORMS[name]
    plain = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    calls = [plain, with_one(1e30, plain, 1), with_one(torch.nan, plain, 2), plain.mul(1e15)]
    with torch.set_grad_enabled(grad):
        got, failed = answers(function, *(call.requires_grad_(grad) for call in calls))
        for ours, call in zip(got, calls, strict=True):
            torch.testing.assert_close(ours, function(call), equal_nan=True, rtol=1e-4, atol=1e-5)
    assert failed == 1


class Integers(nn.Module):
    q: torch.Tensor
    scale: torch.Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        high = 2 ** (bits - 1)
        self.register_buffer("q", torch.randint(-high, high, (128, 256), dtype=torch.int8, generator=torch.Generator().manual_seed(0)))
        self.register_buffer("scale", torch.full((128, 1), 1e-3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.q.float() * self.scale).relu()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, 1e37])
def test_a_product_with_integers_is_pytorchs_at_infinity(bits: int, number: float) -> None:
    layer, plain = Integers(bits), torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
    calls = [plain, with_one(number, plain, 1), with_one(torch.nan, plain, 2)]
    with torch.no_grad():
        got, failed = answers(layer, *calls)
        for ours, call in zip(got, calls, strict=True):
            torch.testing.assert_close(ours, layer(call), equal_nan=True, rtol=1e-3, atol=1e-3)
    assert failed == 1
