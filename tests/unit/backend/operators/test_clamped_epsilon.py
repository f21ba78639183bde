"""Normalisations with a negative epsilon, which ONNX Runtime's kernels of cuDNN take for 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import ortlens
from ortlens.backend.operators import norms
from ortlens.backend.runtime import devices
from tests.unit.backend.operators.one_graph import as_pytorch

if TYPE_CHECKING:
    from collections.abc import Callable

    Norm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]

NORMS: dict[str, Norm] = {
    "group": lambda x, w, eps: functional.group_norm(x, 2, w, w, eps),
    "group, plain": lambda x, _, eps: functional.group_norm(x, 2, None, None, eps),
    "instance": lambda x, w, eps: functional.instance_norm(x, None, None, w, w, eps=eps),
    "instance, by statistics": lambda x, w, eps: functional.instance_norm(x, w + 0, w + 0, w, w, use_input_stats=False, eps=eps),
}
CLAMPING = {"InstanceNormalization", "BatchNormalization"}


def kinds(norm: Norm, device: str, eps: float) -> set[str]:
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        x, w = torch.empty(3, 4, 5, 5, device=device), torch.empty(4, device=device)
        capture = ortlens.explain(lambda x, w: norm(x, w, eps) * 2, dry_run=True, calls=1)(x, w).captured()
    assert not capture.fallbacks
    return {kind for row in capture.nodes for kind in row.onnx_ops}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_only_on_cuda_a_negative_epsilon_is_added_by_plain_operators(norm: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: ("CUDAExecutionProvider", devices.CPU))
    assert not kinds(norm, "cuda", -1e-5) & CLAMPING
    for device, eps in (("cuda", 0.0), ("cuda", 1e-6), ("cpu", -1e-5)):
        assert kinds(norm, device, eps) & CLAMPING


def test_plain_operators_normalise_as_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def is_clamped(_: torch.Tensor, eps: float) -> bool:
        asked.append(eps)
        return True

    monkeypatch.setattr(norms, "_is_clamped", is_clamped)
    w = torch.rand(4) + 1.0
    as_pytorch({name: lambda x, norm=norm: norm(x, w, -0.1) for name, norm in NORMS.items()}, torch.randn(3, 4, 5, 5))
    assert len(asked) == len(NORMS)
