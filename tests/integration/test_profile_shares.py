"""Planted costs: the profile charges a fused kernel to the line of the product, not to that of the activation."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch import nn

import ortlens
from tests.integration.small_models import SMALL_MODELS


class Planted(nn.Module):
    """A light product with an activation that ONNX Runtime fuses with it, and a heavy one with or without."""

    def __init__(self, times: int, *, fused: tuple[bool, bool], convolutions: bool) -> None:
        super().__init__()
        self.fused = fused
        if convolutions:
            self.light: nn.Module = nn.Conv2d(16, 16, 3, padding=1)
            self.heavy: nn.Module = nn.Conv2d(16, 16 * times, 3, padding=1)
        else:
            self.light, self.heavy = nn.Linear(256, 256), nn.Linear(256, 256 * times)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        light = self.light(x)  # the light product
        if self.fused[0]:
            light = torch.relu(light)  # the light activation
        heavy = self.heavy(x)  # the heavy product
        if self.fused[1]:
            heavy = torch.relu(heavy)  # the heavy activation
        return light, heavy


def shares_by_text(lens: ortlens.Lens) -> dict[str, float]:
    """Share of each commented line of `Planted.forward`."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    found: defaultdict[str, float] = defaultdict(float)
    for kernel in lens.captured().kernels:
        found[lines[(kernel.line or 1) - 1].partition("# ")[2]] += kernel.share or 0.0
    return found


@pytest.mark.serial
@pytest.mark.timed
@pytest.mark.parametrize(
    ("times", "fused", "convolutions"),
    [(3, (True, False), False), (10, (False, True), True)],
)
def test_time_is_charged_to_the_products_and_most_to_the_heavy_one(times: int, fused: tuple[bool, bool], *, convolutions: bool) -> None:
    torch.manual_seed(0)
    model = Planted(times, fused=fused, convolutions=convolutions).eval()
    x = torch.randn(1, 16, 24, 24) if convolutions else torch.randn(48, 256)  # short runs are seldom interrupted
    with torch.no_grad():
        lens = ortlens.explain(model, calls=1)(x)
        lens.profile(x, repeat=60)
    found = shares_by_text(lens)
    assert found["the light activation"] + found["the heavy activation"] < 0.1  # what brings the result of a convolution into order
    assert found["the heavy product"] > found["the light product"] > 0


def test_a_fused_kernel_is_charged_to_the_product_and_names_both() -> None:
    torch.manual_seed(0)
    model = Planted(3, fused=(True, True), convolutions=False).eval()
    with torch.no_grad():
        lens = ortlens.explain(model, calls=1)(torch.randn(8, 256))
        lens.profile(torch.randn(8, 256), repeat=2)
    targets = {node.node: node.target for node in lens.captured().nodes}
    fused = [kernel for kernel in lens.captured().kernels if kernel.op_type == "FusedGemm"]
    assert len(fused) == 2
    assert [targets[kernel.node or ""] for kernel in fused] == ["aten.addmm.default"] * 2
    assert all("aten.relu.default" in [targets[name] for name in kernel.nodes] for kernel in fused)


def test_kernel_time_of_an_architecture_goes_back_to_user_lines() -> None:
    torch.manual_seed(0)
    small = SMALL_MODELS["resnet"]
    model, inputs = small.build().eval(), small.inputs(2)
    with torch.no_grad():
        lens = ortlens.explain(model, calls=1)(**inputs)
        kernels = lens.profile(repeat=3, **inputs)
    known = kernels[kernels.line.notna() & kernels.node.notna()]
    assert known.share.sum() >= 0.95 * lens.sessions.shape[0], kernels[kernels.line.isna()]
    assert kernels.groupby("session_id").share.sum().to_numpy() == pytest.approx(1.0)
    assert set(kernels.session_id) == set(lens.sessions.session_id)
    assert (known.confidence != "none").all()
    names = {node.node for node in lens.captured().nodes}
    assert all(set(nodes) <= names for nodes in kernels.nodes), "a kernel leads to a node that there is not"
    assert (lens.sessions.distortion >= 1).all()
    assert (lens.sessions.arena_bytes > 0).all()
    assert (lens.models.optimized_node_count < lens.models.node_count).all()
