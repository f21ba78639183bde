"""A training step of a small GPT-2 and a small ResNet: forward, loss, backward, AdamW. ortlens against eager and Inductor, reported.

Usage: python benchmarks/bench_training.py [--threads 1] [--quick] [--json FILE] [--no-inductor]
"""

from __future__ import annotations

import copy
import itertools
import time
from typing import TYPE_CHECKING

import torch
from measure import Table, called_with, isolated, parser_for, report, start, take_turns, why_no_inductor
from models import VOCABULARY, FirstOutput, gpt2, resnet

if TYPE_CHECKING:
    import argparse

_TOLERANCE = 1e-3
_CHECKED_STEPS = 3


class NextToken(torch.nn.Module):
    """A language model with its loss."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Wrap a model of tokens that returns logits."""
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Cross entropy of each token given those before it."""
        logits: torch.Tensor = self.model(tokens)[:, :-1]
        return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


class PooledImage(torch.nn.Module):
    """A convolutional net with a loss."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Wrap a model of images that returns a map of features."""
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Mean square of the features, each averaged over the map."""
        features: torch.Tensor = self.model(images).mean(dim=(2, 3))
        return features.square().mean()


class Step:
    """A training step over a copy of the model, with an optimiser of its own.

    Attributes:
        spent_ns: Time in `forward`, `backward` and `optimiser`, of all steps.
    """

    def __init__(self, model: torch.nn.Module, backend: str) -> None:
        """Compile."""
        mine = copy.deepcopy(model)
        self._optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-3)
        self._loss_of = mine if backend == "eager" else isolated(mine, backend)
        self.spent_ns = dict.fromkeys(("forward", "backward", "optimiser"), 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Take a step; the loss before it."""
        times = [time.perf_counter_ns()]
        loss: torch.Tensor = self._loss_of(x)
        times.append(time.perf_counter_ns())
        torch.autograd.backward(loss)
        times.append(time.perf_counter_ns())
        self._optimizer.step()
        self._optimizer.zero_grad()
        times.append(time.perf_counter_ns())
        for part, (begun, ended) in zip(self.spent_ns, itertools.pairwise(times), strict=True):
            self.spent_ns[part] += ended - begun
        return loss.detach()

    def shares(self) -> str:
        """What a step spends its time on."""
        total = sum(self.spent_ns.values())
        return ", ".join(f"{100 * spent / total:.0f} % {part}" for part, spent in self.spent_ns.items())


def measured(name: str, model: torch.nn.Module, x: torch.Tensor, options: argparse.Namespace, why_not: str) -> Table:
    """Time the steps of one model."""
    torch.compiler.reset()
    steps = {backend: Step(model, backend) for backend in ("eager", "ortlens", *([] if why_not else ["inductor"]))}
    for _ in range(_CHECKED_STEPS):
        losses = {backend: step(x) for backend, step in steps.items()}
        for loss in losses.values():
            torch.testing.assert_close(loss, losses["eager"], atol=_TOLERANCE, rtol=_TOLERANCE)
    for step in steps.values():
        step.spent_ns = dict.fromkeys(step.spent_ns, 0)
    turns = take_turns(called_with(steps, x), quick=options.quick)
    rows = [turns.compared(f"ortlens to {other}", "ortlens", other) for other in steps if other != "ortlens"]
    remarks = [f"a step of {backend}: {step.shares()}" for backend, step in steps.items()]
    return Table(title=f"A training step of {name}, small", rows=rows, remarks=[*remarks, *([why_not] if why_not else [])])


def main() -> None:
    """Run and print."""
    options = parser_for(__doc__).parse_args()
    start(options)
    why_not = why_no_inductor(options)
    layers, hidden, batch, tokens = (1, 32, 2, 8) if options.quick else (4, 256, 4, 64)
    gpt = NextToken(FirstOutput(gpt2(layers, hidden))).train(), torch.randint(0, VOCABULARY, (batch, tokens))
    net = PooledImage(FirstOutput(resnet(layers, hidden))).train(), torch.randn(batch, 3, tokens, tokens)
    tables = [measured(name, *given, options, why_not) for name, given in (("GPT-2", gpt), ("ResNet", net))]
    report("Training", tables, options)


if __name__ == "__main__":
    main()
