"""What stays in PyTorch goes back as the operators that the program calls, forward and backward."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils._python_dispatch import TorchDispatchMode

from ortlens import Lens, freeze

IMAGES, VOLUMES = (4, 64, 64, 64), (2, 3, 16, 32, 32)
TARGET = torch.ones(IMAGES)
CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], torch.dtype]] = {
    "layer_norm over three dimensions": (nn.LayerNorm(IMAGES[1:]), IMAGES, torch.float32),
    "group_norm": (nn.GroupNorm(8, 64), IMAGES, torch.float32),
    "group_norm of a convolution": (nn.Sequential(nn.Conv3d(3, 16, 3), nn.GroupNorm(4, 16)), VOLUMES, torch.float32),
    "pooling of float16": (nn.AdaptiveAvgPool3d(4), VOLUMES, torch.float16),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, TARGET), IMAGES, torch.float32),
}


class Ran(TorchDispatchMode):
    """Counts operators that compute."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - as torch has it
        if not any(returned.alias_info for returned in func._schema.returns):
            self.targets[str(func)] += 1
        return func(*args, **(kwargs or {}))


def result_and_gradient(function: Callable[..., Any], x: torch.Tensor, *, grad: bool) -> list[torch.Tensor]:
    given = x.detach().clone().requires_grad_(grad)
    made = function(given)
    return [made.detach(), *(torch.autograd.grad(made, [given], torch.ones_like(made)) if grad else ())]


@pytest.mark.parametrize(("name", "grad"), [(name, grad) for name in CASES for grad in (False, True) if not grad or "float16" not in name])
def test_the_operators_are_those_of_eager(name: str, *, grad: bool) -> None:
    function, sizes, dtype = CASES[name]
    x, lens = torch.randn(sizes, dtype=dtype), Lens()
    compiled = torch.compile(function, backend=lens)
    with torch.set_grad_enabled(grad):
        with Ran() as ran:
            expected = result_and_gradient(function, x, grad=grad)
        for ours, theirs in zip(result_and_gradient(compiled, x, grad=grad), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
    around = Counter({"aten.clone.default": 1, "aten.ones_like.default": 1})
    views = {"aten.view.default", "aten.detach.default", "aten.expand.default"}
    assert lens.partitions.empty
    assert Counter(target for target in lens.fallbacks.target if target not in views) == ran.targets - around


def test_a_frozen_callable_runs_them_as_well() -> None:
    function, sizes, _ = CASES["group_norm of a convolution"]
    x = torch.randn(sizes)
    frozen = freeze(function, x)
    torch.testing.assert_close(frozen(x), function(x))
    assert list(frozen.graph.left_in_torch()) == ["convolution", "native_group_norm_default"]


def test_a_graph_that_stays_is_the_one_that_dynamo_recorded() -> None:
    compiled = torch.compile(lambda x: F.cosine_similarity(x, x * 0.5 + 1), backend="ortlens")
    x = torch.randn(256, 256)
    torch.testing.assert_close(compiled(x), F.cosine_similarity(x, x * 0.5 + 1))
    with torch.profiler.profile() as profile:
        compiled(x)
    assert "aten::cosine_similarity" in {event.key for event in profile.key_averages()}


class Cache(nn.Module):
    """Reads a buffer in one operator of many parts, and then writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.arange(float(1 << 20)).reshape(1024, 1024))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        kept = self.get_buffer("kept")
        before = F.layer_norm(kept, (1024, 1024))
        kept.index_copy_(0, place, x)
        return before.sum(1) + kept[0].sum()


def test_what_reads_a_buffer_does_so_before_it_is_written_to() -> None:
    ours, theirs = Cache(), Cache()
    lens = Lens(options={"min_partition_nodes": 1000})
    compiled: Any = torch.compile(ours, backend=lens)
    with torch.no_grad():
        for number in range(3):
            given = torch.full((1, 1024), number * 1e4), torch.tensor([number])
            torch.testing.assert_close(compiled(*given), theirs(*given), atol=1e-3, rtol=1e-3)
    assert ours.get_buffer("kept").equal(theirs.get_buffer("kept"))
    assert lens.findings.empty
