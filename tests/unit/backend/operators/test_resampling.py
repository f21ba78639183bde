"""Interpolation in every mode, up and down, and samples of images: at places in them, at borders, outside, and at no numbers."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ortlens import Lens
from tests.unit.backend.operators.one_graph import as_pytorch, left

X = torch.sin(torch.arange(2 * 2 * 5 * 7 * 6.0)).reshape(2, 2, 5, 7, 6)
MODES = {
    "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "area": (1, 2), "linear": (1,), "bilinear": (2,), "bicubic": (2,), "trilinear": (3,),
}  # fmt: skip
TARGETS: tuple[dict[str, Any], ...] = (
    {"size": 11},
    {"size": 3},
    {"size": 1},
    {"scale_factor": 2.0},
    {"scale_factor": 0.6},
    {"scale_factor": 1.7},
    {"scale_factor": 0.6, "recompute_scale_factor": True},
)


def cases() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for mode, target in itertools.product(MODES, TARGETS):
        corners: tuple[dict[str, Any], ...] = (
            ({"align_corners": False}, {"align_corners": True}) if "linear" in mode or mode == "bicubic" else ({},)
        )
        smooth: tuple[dict[str, Any], ...] = ({}, {"antialias": True}) if mode in {"bilinear", "bicubic"} else ({},)
        for dims, corner, extra in itertools.product(MODES[mode], corners, smooth):
            more = {**target, **corner, **extra}
            made[f"{mode} of {dims} dimensions, {more}"] = lambda x, d=dims, m=mode, k=more: F.interpolate(x[(0,) * (3 - d)], mode=m, **k)
    return made


@pytest.mark.slow
def test_as_pytorch() -> None:
    capture = as_pytorch(cases(), X)
    assert left(capture) <= {"aten._upsample_bilinear2d_aa.default", "aten._upsample_bicubic2d_aa.default"}


def test_smoothing_runs_in_onnx_runtime_where_it_does_the_same() -> None:
    smooth = {name: case for name, case in cases().items() if "antialias" in name and "'align_corners': False" in name and "'size'" in name}
    as_pytorch(smooth, X, stays=())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "gradients"])
def test_smoothing_to_one_column_or_row(*, dynamic: bool, grad: bool) -> None:
    """PyTorch's kernel repeats the first row of a single column."""
    sizes = {"1 column": lambda x: (3, x.shape[2] - 6), "1 row": lambda x: (x.shape[2] - 6, 3), "1 number": lambda _: (1, 1)}
    made = {
        f"{mode}, {name}": lambda x, m=mode, of=of: F.interpolate(x, size=of(x), mode=m, antialias=True)
        for mode, (name, of) in itertools.product(("bilinear", "bicubic")[: 1 if dynamic and grad else 2], sizes.items())
    }  # of bicubic gradients, torch's shape function takes no symbolic sizes
    as_pytorch(made, X[0], dynamic=dynamic, grad=grad)


def test_smoothing_of_bytes() -> None:  # without smoothing, torch.compile itself rounds some otherwise, with any backend
    images = torch.randint(0, 256, (2, 3, 10, 20), dtype=torch.uint8)
    made = {
        f"{mode}, {size}": lambda x, m=mode, s=size: F.interpolate(x, size=s, mode=m, antialias=True)
        for mode, size in itertools.product(("bilinear", "bicubic"), (3, 7, 23))
    }
    as_pytorch(made, images)


TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


@pytest.mark.parametrize("gap", [1, 2])
def test_transposed_convolutions_with_more_output_padding_than_stride(gap: int) -> None:
    made: dict[str, Any] = {
        f"{dims} dimensions, padding {extra}": lambda x, d=dims, e=extra: TRANSPOSED[d - 1](
            x[(0,) * (3 - d)], torch.ones(*x.shape[4 - d : 5 - d], 3, *(2,) * d), output_padding=e, dilation=gap
        )
        for dims, extra in itertools.product((1, 2, 3), range(gap))
    }
    as_pytorch(made, X)


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "gradients"])
def test_convolutions_with_one_number_for_all_dimensions(*, grad: bool) -> None:
    made: dict[str, Any] = {
        f"{dims} dimensions, transposed {back}": lambda x, d=dims, t=back: torch.ops.aten.convolution(
            x[(0,) * (3 - d)], torch.ones(*x.shape[4 - d : 5 - d] * 2, *(2,) * d), None, (2,), (1,), (1,), t, (0,), 1
        )
        for dims, back in itertools.product((1, 2, 3), (False, True))
    }
    capture = as_pytorch(made, X, grad=grad)
    assert grad or not left(capture)


def test_gradients_of_sizes_that_vary() -> None:
    """Torch's shape functions of the gradients fail there, so that the whole graph stayed in PyTorch."""
    made: dict[str, Any] = {
        f"{mode}, {dims}": lambda x, d=dims, m=mode: F.interpolate(x[(0,) * (3 - d)], scale_factor=2.0, mode=m)
        for mode, known in MODES.items()
        for dims in known
        if mode != "area"
    }
    made["smooth"] = lambda x: F.interpolate(x[0], size=(x.shape[3] - 2, 3), mode="bicubic", antialias=True)
    made |= {"hardshrink": F.hardshrink, "softshrink": F.softshrink}
    as_pytorch(made, X, dynamic=True, grad=True)


inf, nan = torch.inf, torch.nan
SAMPLED: dict[str, Any] = {
    f"{mode}, {padding}, {corners}": lambda x, g, mode=mode, padding=padding, corners=corners: F.grid_sample(x, g, mode, padding, corners)
    for mode, padding, corners in itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True))
}
SQUARE = torch.tensor([inf, 0.25, 1, 2, 1, 0.5, 0, -0.5]).reshape(1, 2, 2, 2)
IMAGE = torch.sin(torch.arange(70.0)).reshape(1, 2, 7, 5)
FAR = torch.linspace(-7, 7, 84).reshape(1, 6, 7, 2)
ODD = torch.tensor([inf, -inf, nan, 0.1, 3, 5, 0.2, nan, 0.25, inf, -1e5, 0.3]).reshape(1, 1, 6, 2)


@pytest.mark.parametrize(("image", "places"), [(SQUARE, ODD), (SQUARE[:, :, :1], FAR)])
def test_samples_at_places_of_any_kind(image: torch.Tensor, places: torch.Tensor) -> None:
    as_pytorch(SAMPLED, image, places, stays=())


def test_samples_of_symbolic_sizes() -> None:
    few = {name: SAMPLED[name] for name in ("bilinear, zeros, False", "nearest, reflection, True")}
    as_pytorch(few, IMAGE, FAR, dynamic=True, stays=())


def halves(high: int, wide: int, *, corners: bool) -> torch.Tensor:
    """Places on and between the elements of an image, and as far beside it."""
    sizes = [max(size - 1, 1) if corners else size for size in (high, wide)]
    y, x = (
        (2 * torch.arange(-2.0 * size, 2.0 * size, 0.5) + (not corners)) / part - 1 for size, part in zip((high, wide), sizes, strict=True)
    )
    return torch.stack([x.expand(len(y), -1), y[:, None].expand(-1, len(x))], -1)[None]


@pytest.mark.parametrize(("sizes", "dynamic"), [((30, 20), False), ((32, 32), True), ((7, 5), True), ((1, 6), True)])
def test_a_place_between_two_elements_is_that_of_the_same_one(sizes: tuple[int, int], *, dynamic: bool) -> None:
    image, grids = torch.arange(float(math.prod(sizes))).view(1, 1, *sizes), [halves(*sizes, corners=corners) for corners in (False, True)]
    cases: dict[str, Any] = {
        f"{padding}, {corners}": lambda x, *given, p=padding, c=corners: F.grid_sample(x, given[c], "nearest", p, c)
        for padding, corners in itertools.product(("zeros", "border", "reflection"), (False, True))
    }
    as_pytorch(cases, image, *grids, dynamic=dynamic, atol=0, stays=())


@pytest.mark.parametrize("dynamic", [False, True])
def test_affine_grids_to_the_last_bit(*, dynamic: bool) -> None:
    def grids(*given: torch.Tensor) -> list[torch.Tensor]:
        sizes = ((1, 1, 16, 16), (1, 1, 7, 30), (1, 1, 3, 5, 12))
        made = [F.affine_grid(given[len(size) - 4], [2, 1, *size[2:]], align) for size in sizes for align in (False, True)]
        return [*made, F.affine_grid(given[0], [2, 1, 1, 33], align_corners=False)]

    scaled = (torch.eye(2, 3) * torch.tensor([[1.0], [2.0]])).expand(2, -1, -1).clone(), torch.eye(3, 4).expand(2, -1, -1).clone()
    lens = Lens()
    assert all(map(torch.equal, torch.compile(grids, backend=lens, dynamic=dynamic)(*scaled), grids(*scaled)))
    assert not left(lens.captured())
