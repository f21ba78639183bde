"""Operators that torch takes apart while tracing: whole where that is faster, with PyTorch's numbers either way."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import ortlens
from ortlens import _torch
from ortlens.backend.operators import registry
from ortlens.backend.operators.facts import Tracing
from tests.integration.against_eager import same_as_eager

aten = torch.ops.aten
LARGE, SMALL = torch.randn(2, 3, 64, 64), torch.randn(1, 2, 5, 6)
INTERPOLATED: dict[str, tuple[dict[str, Any], str]] = {  # arguments, and where large ones are computed
    "nearest by 2": ({"scale_factor": 2}, "ort"),
    "nearest to a size": ({"size": (50, 70)}, "torch"),
    "nearest exact": ({"scale_factor": 2, "mode": "nearest-exact"}, "torch"),
    "bilinear by 2": ({"scale_factor": 2, "mode": "bilinear"}, "ort"),
    "bilinear by a half": ({"scale_factor": 0.5, "mode": "bilinear"}, "ort"),
    "bilinear to four times the size": ({"size": (256, 256), "mode": "bilinear"}, "ort"),
    "bilinear by 1.7": ({"scale_factor": 1.7, "mode": "bilinear"}, "torch"),
    "bilinear, aligned": ({"scale_factor": 2, "mode": "bilinear", "align_corners": True}, "torch"),
    "bicubic": ({"scale_factor": 2, "mode": "bicubic"}, "torch"),
}


def places(function: Callable[..., Any], *args: torch.Tensor) -> tuple[int, list[str]]:
    """How many partitions there are, and what stays in PyTorch."""
    capture = same_as_eager(function, args)
    assert not capture.findings
    assert {row.reason_code for row in capture.fallbacks} <= {"policy"}
    return len(capture.partitions), [row.target for row in capture.fallbacks]


def test_interpolation() -> None:
    capture = same_as_eager(lambda x: [functional.interpolate(x, **arguments) for arguments, _ in INTERPOLATED.values()], (LARGE,))
    found = {name: "ort" if node.supported else "torch" for name, node in zip(INTERPOLATED, capture.nodes, strict=True)}
    assert found == {name: place for name, (_, place) in INTERPOLATED.items()}
    assert len(capture.partitions) == 1
    smaller = [{**arguments, "size": (9, 4)} if "size" in arguments else arguments for arguments, _ in INTERPOLATED.values()]
    assert places(lambda x: [functional.interpolate(x, **arguments) for arguments in smaller], SMALL) == (1, [])


def test_interpolation_of_special_numbers_of_other_dimensions_and_of_sizes_that_vary() -> None:
    x = LARGE.clone()
    x[0, 0, 0, 0], x[0, 1, 5, 5], x[1, 2, -1, -1] = torch.inf, torch.nan, -torch.inf
    doubled = functools.partial(functional.interpolate, scale_factor=2, mode="bilinear")
    assert places(doubled, x) == (1, [])
    capture = same_as_eager(doubled, (SMALL,), (LARGE,), dynamic=True)
    assert not capture.fallbacks
    row, volume = torch.randn(2, 3, 9), torch.randn(1, 2, 4, 5, 6)
    for mode, tensor in (("linear", row), ("trilinear", volume), ("nearest", row), ("nearest", volume)):
        same_as_eager(functools.partial(functional.interpolate, scale_factor=2, mode=mode), (tensor,))


def test_gradients_go_through_what_is_whole() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool1d(functional.hardshrink(functional.interpolate(x, scale_factor=2, mode="bilinear")).flatten(2), 2)

    x = LARGE.clone().requires_grad_()
    (step(x) ** 2).sum().backward()
    expected, x.grad = x.grad, None
    (torch.compile(step, backend="ortlens")(x) ** 2).sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_circular_padding() -> None:
    pads = (2, 1, 0, 3), (5, 0, 0, 0), (0, 0, 0, 0), (-1, 2, 1, -2), (6, 6, 5, 5)

    def padded(x: torch.Tensor) -> list[torch.Tensor]:
        return [functional.pad(x, pad, mode="circular") for pad in pads]

    assert places(padded, SMALL) == (1, [])
    assert places(padded, LARGE) == (0, ["aten._pad_circular.default"] * len(pads))


def test_large_diagonals_and_lone_constants_stay_in_pytorch() -> None:
    assert places(torch.diag_embed, SMALL) == (1, [])
    assert places(torch.diag_embed, LARGE) == (0, ["aten.diag_embed.default"])
    x, index = torch.randn(1024, 256), torch.randint(0, 1024, (1024,))
    assert places(lambda x, index: torch.zeros(1024, 256).index_add(0, index, x), x, index)[0] == 0
    assert places(lambda x: torch.zeros(1024, 256) + x.tanh(), x) == (1, [])


def test_one_hot_rows_are_written_where_there_are_many() -> None:
    few, many = torch.tensor([[1, 0], [2, 2]]), torch.randint(0, 1024, (512,))
    assert places(lambda index: functional.one_hot(index, 3).float(), few) == (1, [])
    assert places(lambda index: functional.one_hot(index, 1024), many)[0] == 0
    for classes, tensor in ((3, few), (1024, many)):
        compiled = torch.compile(functools.partial(functional.one_hot, num_classes=classes), backend="ortlens")
        for wrong, text in ((-1, "Class values must be non-negative."), (classes, "Class values must be smaller than num_classes.")):
            with pytest.raises(RuntimeError, match=f"^{text}$"):
                compiled(torch.full_like(tensor, wrong))
    same_as_eager(functional.one_hot, (few,))
    same_as_eager(lambda index: functional.one_hot(index, 3), (few,), (torch.zeros(5, 2, dtype=torch.int64),), dynamic=True)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_targets_that_are_no_probabilities_raise(reduction: str) -> None:
    compiled = torch.compile(functools.partial(functional.binary_cross_entropy, reduction=reduction), backend="ortlens")
    x = torch.rand(4)
    same_as_eager(functools.partial(functional.binary_cross_entropy, reduction=reduction), (x, torch.tensor([-0.0, 0.5, 1.0, 1e-45])))
    for wrong in (-1e-45, 1.0000001, 2.0, -1.0, torch.inf, torch.nan):
        with pytest.raises(RuntimeError, match=r"^all elements of target should be between 0 and 1$"):
            compiled(x, torch.tensor([0.0, wrong, 1.0, 0.5]))


def test_pools_in_one_dimension() -> None:
    arguments: tuple[dict[str, Any], ...] = (
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "dilation": 2, "ceil_mode": True},
    )

    def pooled(x: torch.Tensor) -> list[torch.Tensor]:
        return [functional.max_pool1d(x, **each) for each in arguments]

    assert places(pooled, SMALL[0]) == (1, [])
    assert places(pooled, LARGE.flatten(2)) == (0, ["aten.max_pool1d.default"] * len(arguments))


@pytest.mark.parametrize("gradient", [False, True])
def test_convolutions_of_each_channel_in_one_dimension_are_made_in_two(gradient: bool) -> None:  # noqa: FBT001 - a parameter
    torch.manual_seed(0)
    layer, dense = nn.Conv1d(16, 32, 3, padding=2, stride=2, groups=16), nn.Conv1d(16, 32, 3, groups=2)
    given = (
        torch.randn(2, 16, 50),
        torch.randn(2, 50, 16).mT,
        torch.randn(16, 50),
        torch.randn(2, 1, 16).mT,
        torch.randn(1, 16, 9).expand(3, 16, 9),
    )
    for x in given:
        expected = layer(x)
        made = torch.compile(layer, backend="ortlens")(x.clone(memory_format=torch.preserve_format).requires_grad_(gradient))
        torch.testing.assert_close(made, expected, check_stride=True)
    with torch.no_grad():
        shapes = [ortlens.explain(each, dry_run=True, calls=1)(given[0]).captured() for each in (layer, dense)]
    sizes = [[len(node.shape or ()) for node in capture.nodes if "convolution" in node.target] for capture in shapes]
    assert sizes == [[4], [3]]


def test_causal_attention_of_many_rows_stays_in_pytorch_with_its_gradient() -> None:
    attention = functools.partial(functional.scaled_dot_product_attention, is_causal=True)
    short, long = torch.randn(1, 1, 64, 8), torch.randn(1, 1, 1024, 8)
    assert places(attention, short, short, short) == (1, [])
    assert places(attention, long, long, long)[1] == ["aten._scaled_dot_product_flash_attention_for_cpu.default"]
    x = long.clone().requires_grad_()
    attention(x, x, x).sum().backward()
    expected, x.grad = x.grad, None
    torch.compile(attention, backend="ortlens")(x, x, x).sum().backward()
    torch.testing.assert_close(x.grad, expected, atol=1e-4, rtol=1e-4)


def test_tracing_outside_of_the_backend_takes_them_apart_as_before() -> None:
    targets = [target for gradient in (False, True) for target in registry.kept_whole(Tracing(with_gradient=gradient, on_cuda=True))]
    before = {target: dict(target.py_kernels) for target in targets}
    torch.compile(functools.partial(functional.interpolate, scale_factor=2), backend="ortlens")(SMALL)
    assert {target: target.py_kernels for target in targets} == before


def test_results_of_recurrent_layers_are_made_up_in_one_trace_alone() -> None:
    target, layer, x = torch.ops.aten.rnn_tanh.input, nn.RNN(8, 6), torch.randn(4, 3, 8)
    flags = True, 1, 0.0, False, False, False
    arguments = x, torch.zeros(1, 3, 6), list(layer.parameters()), *flags
    plain, kernels = _torch.decomposition_of(target), dict(target.py_kernels)
    with ThreadPoolExecutor(1) as pool, registry.results_known():
        known = _torch.decomposition_of(target)
        assert [tensor.shape for tensor in known(*arguments)] == [(4, 3, 6), (1, 3, 6)]
        elsewhere = pool.submit(known, *arguments).result()
    for made in (elsewhere, known(*arguments)):
        torch.testing.assert_close(made, layer(x))
    assert _torch.decomposition_of(target) is plain
    assert target.py_kernels == kernels
