"""Samples of images: at places in them, at their borders, outside, and at places that are no numbers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from tests.unit.backend.conversion.functions.one_graph import as_pytorch

inf, nan = torch.inf, torch.nan
CASES: dict[str, Any] = {
    f"{mode}, {padding}, {corners}": lambda x, g, mode=mode, padding=padding, corners=corners: F.grid_sample(x, g, mode, padding, corners)
    for mode, padding, corners in itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True))
}
SQUARE = torch.tensor([inf, 0.25, 1, 2, 1, 0.5, 0, -0.5]).reshape(1, 2, 2, 2)
IMAGE = torch.sin(torch.arange(70.0)).reshape(1, 2, 7, 5)
FAR = torch.linspace(-7, 7, 84).reshape(1, 6, 7, 2)
ODD = torch.tensor([inf, -inf, nan, 0.1, 3, 5, 0.2, nan, 0.25, inf, -1e5, 0.3]).reshape(1, 1, 6, 2)


@pytest.mark.parametrize(("image", "places"), [(SQUARE, ODD), (SQUARE[:, :, :1], FAR)])
def test_as_pytorch(image: torch.Tensor, places: torch.Tensor) -> None:
    as_pytorch(CASES, image, places, stays=())


def test_symbolic_sizes() -> None:
    few = {name: CASES[name] for name in ("bilinear, zeros, False", "nearest, border, True", "bicubic, reflection, False")}
    as_pytorch(few, IMAGE, FAR, dynamic=True, stays=())
