"""The time of real architectures goes back to lines of their code."""

from __future__ import annotations

import pytest
import torch

import ortlens
from tests.integration.small_models import SMALL_MODELS
from tests.sample import sampled


@pytest.mark.parametrize("name", sampled(["llama", "resnet"], ["resnet"]))
def test_kernel_time_goes_back_to_user_lines(name: str) -> None:
    torch.manual_seed(0)
    small = SMALL_MODELS[name]
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
