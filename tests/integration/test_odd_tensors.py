"""Tensors that are not what their memory holds: negative views, zeros without memory, expanded and overlapping ones."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ortlens import Lens, OrtBackend

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.linspace(-2, 3, 24).reshape(4, 6)
Z = torch.complex(X, X.flip(0).contiguous())


def negative() -> torch.Tensor:
    made = Z.conj().imag
    assert made.is_neg()
    return made


def zeros_without_memory() -> torch.Tensor:
    return torch._efficientzerotensor(4, 6)


ODD: dict[str, Callable[[], torch.Tensor]] = {
    "negative": negative,
    "negative_transposed": lambda: torch.t(Z.t().conj().imag),
    "zeros_without_memory": zeros_without_memory,
    "expanded": lambda: X[:1].expand(4, 6),
    "expanded_number": lambda: torch.tensor(-0.5).expand(4, 6),
    "overlapping": lambda: torch.arange(-5.0, 11.0).as_strided((4, 6), (3, 1)),
}

INSIDE: dict[str, Callable[[torch.Tensor], Any]] = {
    "imaginary_part_of_a_conjugate": lambda x: torch.relu(torch.fft.rfft(x).conj().imag),
    "negative_view": lambda x: torch._neg_view(x).relu() + 1,
    "negative_view_of_a_result": lambda x: torch._neg_view(x * 2).exp() + torch._neg_view(x).relu(),
    "negative_view_returned": lambda x: (torch._neg_view(x * 2), x + 1),
}


@pytest.mark.parametrize(
    ("first", "second"),
    [((3, 0, 2), (0, 4)), ((3, 0, 2), (3, 0, 4)), ((0, 2), (2, 3, 0, 4)), ((0, 2, 3), (2, 1)), ((2, 0, 2, 3), (2, 1))],
    ids=str,
)
def test_a_transposed_product_of_nothing(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.mT @ b * 0.5

    args = torch.ones(first), torch.ones(second)
    compiled, written = torch.compile(product, backend=OrtBackend()), product(*args)
    for _ in range(3):
        used = torch.full((max(written.numel(), 1),), 7.0)  # what is not written into its memory shows
        del used
        torch.testing.assert_close(compiled(*args), written)


@pytest.mark.parametrize("name", INSIDE)
def test_negative_views_inside_a_graph(name: str) -> None:
    function = INSIDE[name]
    compiled = torch.compile(function, backend=OrtBackend())
    for x in (X, X[:3], X[:2]):  # the second compilation is for varying sizes
        torch.testing.assert_close(compiled(x), function(x))


def test_odd_tensors_as_inputs() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() + 1

    lens = Lens()
    program = OrtBackend().compile_program(torch.export.export(Net(), (X,)))
    for run in (torch.compile(Net(), backend=lens), program):
        for make in (lambda: X, *ODD.values(), lambda: X):
            torch.testing.assert_close(run(make()), make().relu() + 1)
    assert lens.captured().findings == ()
    assert lens.fallbacks.empty


def test_odd_gradients() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.relu() * 2).sin()

    compiled = torch.compile(function, backend=OrtBackend())
    for make in ODD.values():
        ours, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
        compiled(ours).backward(make())
        function(theirs).backward(make())
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("freeze", ["auto", False])
def test_a_negative_view_as_weight(freeze: object) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(negative(), requires_grad=False)
            self.shift: torch.Tensor
            self.register_buffer("shift", negative())

        def forward(self, x: torch.Tensor) -> Any:
            return (x * self.scale).exp() + self.shift

    net, lens = Net(), Lens(options={"freeze_weights": freeze})
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(net, backend=lens)(X), net(X))
    assert lens.fallbacks.empty
