"""FLOPs of the captured nodes against those that PyTorch counts while it runs the same module."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ortlens import Lens

r = torch.randn
Q, KV = r(1, 4, 8, 16), r(1, 4, 6, 16)

MODULES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "linear": (nn.Linear(16, 32), (r(4, 16),)),
    "conv1d": (nn.Conv1d(4, 8, 3), (r(2, 4, 20),)),
    "conv2d": (nn.Conv2d(4, 8, 3, padding=1, stride=2), (r(2, 4, 12, 12),)),
    "conv3d": (nn.Conv3d(2, 4, 3), (r(1, 2, 6, 6, 6),)),
    "grouped": (nn.Conv2d(8, 16, 3, groups=2), (r(1, 8, 10, 10),)),
    "transposed": (nn.ConvTranspose2d(4, 8, 3, stride=2), (r(1, 4, 6, 6),)),
    "bmm": (torch.bmm, (r(2, 3, 5), r(2, 5, 7))),
    "baddbmm": (torch.baddbmm, (r(2, 3, 7), r(2, 3, 5), r(2, 5, 7))),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), (r(2, 3, 5), r(2, 5, 7))),
    "attention": (functional.scaled_dot_product_attention, (Q, KV, KV)),
    "encoder layer": (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(), (r(2, 5, 16),)),
    "activation": (nn.ReLU(), (r(3),)),
    "normalisation": (nn.LayerNorm(8), (r(3, 8),)),
}


def counted(run: Callable[[], object]) -> int:
    """PyTorch's count, with attention as its two products, which it counts in no other form on the CPU."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops())


@torch.no_grad()
def test_the_nodes_have_the_flops_that_pytorch_counts() -> None:
    def run(given: dict[str, tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        return [MODULES[name][0](*args) for name, args in given.items()]

    given = {name: args for name, (_, args) in MODULES.items()}
    expected = {name: counted(lambda name=name: run({name: given[name]})) for name in given}  # type: ignore[misc]  # a default
    assert {name for name, flops in expected.items() if not flops} == {"activation", "normalisation"}
    lens = Lens()
    torch.compile(run, backend=lens)(given)
    assert sum(node.flops or 0 for node in lens.captured().nodes) == sum(expected.values())
    assert sum(part.flops or 0 for part in lens.captured().partitions) == sum(expected.values())


def test_gradients_count_as_well() -> None:
    def run(given: list[tuple[torch.Tensor, ...]]) -> torch.Tensor:
        results = [MODULES[name][0](*args) for name, args in zip(("linear", "conv2d", "bmm"), given, strict=True)]
        return torch.stack([result.sum() for result in results]).sum()

    given = [tuple(arg.clone().requires_grad_() for arg in MODULES[name][1]) for name in ("linear", "conv2d", "bmm")]
    lens = Lens()
    torch.compile(run, backend=lens)(given).backward()
    assert sum(node.flops or 0 for node in lens.captured().nodes) == counted(lambda: run(given).backward())
