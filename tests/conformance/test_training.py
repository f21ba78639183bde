"""Training, which CONTRACT 3.1 promises of `use_aot_autograd`: whole runs of an optimiser follow eager."""

# ruff: noqa: ANN401 - results of modules are Any in torch itself

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import nn
from torch.utils.checkpoint import checkpoint

from ortlens import Lens

STEPS = 20
LOSS_TOLERANCE = 1e-3
"""How far a loss may be from eager's, relative and absolute, at any of the steps. Sums in another order differ by 1e-7 and grow by step."""


def r(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + seed))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.features(x).mean((2, 3)))


def pair(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module, Callable[..., Any], Lens]:
    torch.manual_seed(0)
    ours, lens = make(), Lens()
    return ours, copy.deepcopy(ours), torch.compile(ours, backend=lens), lens


def follow(
    forwards: tuple[Callable[..., Any], Callable[..., Any]],
    models: tuple[nn.Module, nn.Module],
    optimizer: Callable[..., torch.optim.Optimizer],
    loss_of: Callable[[Callable[..., Any], int], torch.Tensor],
    *,
    tolerance: float = LOSS_TOLERANCE,
) -> None:
    """Twenty steps side by side; every loss, the parameters and the buffers of the end agree, and the loss went down."""
    steppers = [optimizer(model.parameters()) for model in models]
    curves: list[list[float]] = [[], []]
    for step in range(STEPS):
        for side, forward in enumerate(forwards):
            steppers[side].zero_grad()
            loss = loss_of(forward, step)
            loss.backward()
            steppers[side].step()
            curves[side].append(loss.item())
    torch.testing.assert_close(curves[0], curves[1], atol=tolerance, rtol=tolerance)
    assert curves[0][-1] < curves[0][0] * 0.9
    states = [dict(model.state_dict()) for model in models]
    torch.testing.assert_close(*states, atol=5 * tolerance, rtol=5 * tolerance)


def test_3_1_training_conv_net_with_batch_norm_and_sgd() -> None:
    ours, theirs, compiled, lens = pair(ConvNet)
    images, labels = r(8, 3, 10, 10), torch.arange(8) % 4

    def loss_of(forward: Callable[..., Any], step: int) -> torch.Tensor:
        return F.cross_entropy(forward(images + 0.01 * step), labels)

    follow((compiled, theirs), (ours, theirs), lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9), loss_of)
    assert ours.features[1].num_batches_tracked.item() == STEPS  # type: ignore[index,union-attr]  # a Sequential
    assert sorted(lens.graphs.phase) == ["backward", "forward"]
    assert not lens.captured().findings
    assert set(lens.sessions.calls) == {STEPS}


def test_3_1_training_under_bfloat16_autocast() -> None:
    """The products are in bfloat16, of which ONNX Runtime's CPU provider has few: what it lacks stays, and the curves agree."""
    ours, theirs, compiled, lens = pair(lambda: nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)))
    x, y = r(12, 6), r(12, 3)

    def loss_of(forward: Callable[..., Any], _step: int) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = forward(x)
        assert out.dtype is torch.bfloat16
        return F.mse_loss(out.float(), y)

    follow((compiled, theirs), (ours, theirs), lambda p: torch.optim.SGD(p, lr=0.1), loss_of, tolerance=1e-2)
    assert set(lens.fallbacks.reason_code) <= {"session_refused", "dtype"}
    assert sum(lens.sessions.calls) > 0
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}


def test_3_1_training_under_bfloat16_autocast_with_norms() -> None:
    """A norm of bfloat16 with float32 weights saves float32 statistics, whatever PyTorch's fake tensors say of them."""
    norms = (nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.BatchNorm1d(6))
    layers = (layer for norm in norms for layer in (nn.Linear(6, 6), norm))
    ours, theirs, compiled, _ = pair(lambda: nn.Sequential(*layers, nn.Linear(6, 3)))
    for forward in (compiled, theirs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = forward(r(12, 6))
        out.float().square().mean().backward()
    torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()], atol=2e-2, rtol=5e-2)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()), atol=2e-2, rtol=5e-2)


def test_3_1_training_with_gradient_accumulation() -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    theirs, lens = copy.deepcopy(ours), Lens()
    compiled = torch.compile(ours, backend=lens, dynamic=True)
    steppers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    for _ in range(3):
        forwards: tuple[Any, ...] = (compiled, theirs)
        for forward, stepper in zip(forwards, steppers, strict=True):
            stepper.zero_grad()
            for micro in range(4):
                (forward(r(4, 6, seed=micro)).square().mean() / 4).backward()
            stepper.step()
        torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()), atol=1e-5, rtol=1e-4)
    assert set(lens.sessions.calls) == {12}


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(checkpoint(lambda value: self.first(value).tanh().exp(), x, use_reentrant=False))


@pytest.mark.parametrize("inside", [True, False], ids=["checkpoint_in_the_model", "checkpoint_around_the_model"])
def test_3_1_training_with_checkpoints(inside: bool) -> None:  # noqa: FBT001 - a parameter of the test
    ours, theirs, compiled, lens = pair(Checkpointed if inside else (lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))))
    inputs = [r(4, 6).requires_grad_() for _ in range(2)]
    forwards: tuple[Any, ...] = (compiled, theirs)
    for forward, x in zip(forwards, inputs, strict=True):
        out = forward(x) if inside else checkpoint(forward, x, use_reentrant=False)
        out.square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()], atol=1e-4, rtol=1e-4)
    assert sorted(lens.graphs.phase) == ["backward", "forward"]
    assert sum(lens.sessions.calls) >= 2
