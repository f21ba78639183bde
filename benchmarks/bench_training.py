"""A training step of small models: forward, loss, backward, AdamW. ortlens against eager and Inductor, reported.

Usage: python benchmarks/bench_training.py [--threads 1] [--quick] [--json FILE] [--no-inductor] [--steps 200] [--fused]
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


class Classified(torch.nn.Module):
    """A classifier with its loss, each input of a class of its own."""

    def __init__(self, model: torch.nn.Module, pooled: tuple[int, ...] = ()) -> None:
        """Wrap a model that returns scores, once they are averaged over dimensions."""
        super().__init__()
        self.model, self.pooled = model, pooled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Cross entropy."""
        scores: torch.Tensor = self.model(x)
        scores = scores.mean(self.pooled) if self.pooled else scores
        return torch.nn.functional.cross_entropy(scores, torch.arange(len(x)) % scores.shape[1])


def small_models(*, quick: bool) -> dict[str, tuple[torch.nn.Module, torch.Tensor]]:
    """The models with their losses, and an input of each."""
    nn, width = torch.nn, 32 if quick else 128
    mlp = nn.Sequential(nn.Linear(2 * width, 4 * width), nn.GELU(), nn.Linear(4 * width, 4 * width), nn.GELU(), nn.Linear(4 * width, 10))
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True)
    encoder = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 10))
    tokens = torch.randint(0, VOCABULARY, (2, 8) if quick else (4, 64))
    return {
        "an MLP": (Classified(mlp), torch.randn(64, 2 * width)),
        "a transformer of two layers": (Classified(encoder, pooled=(1,)), torch.randn(8, 64, width)),
        "ResNet-18 at 32 x 32": (Classified(FirstOutput(resnet(4, 2 * width)), pooled=(2, 3)), torch.randn(8, 3, 32, 32)),
        "a small GPT-2": (NextToken(FirstOutput(gpt2(1 if quick else 4, 2 * width))), tokens),
    }


class Step:
    """A training step over a copy of the model, with an optimiser of its own.

    Attributes:
        spent_ns: Time in `forward`, `backward` and `optimiser`, of all steps.
    """

    def __init__(self, model: torch.nn.Module, backend: str, *, fused: bool) -> None:
        """Compile; `fused` as for the optimiser."""
        mine = copy.deepcopy(model)
        self._optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-3, fused=fused)
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
    steps = {
        backend: Step(model.train(), backend, fused=options.fused) for backend in ("eager", "ortlens", *([] if why_not else ["inductor"]))
    }
    for _ in range(options.steps):
        losses = {backend: step(x) for backend, step in steps.items()}
        for loss in losses.values():
            torch.testing.assert_close(loss, losses["eager"], atol=_TOLERANCE, rtol=_TOLERANCE)
    for step in steps.values():
        step.spent_ns = dict.fromkeys(step.spent_ns, 0)
    turns = take_turns(called_with(steps, x), quick=options.quick)
    rows = [turns.compared(f"ortlens to {other}", "ortlens", other) for other in steps if other != "ortlens"]
    remarks = [f"a step of {backend}: {step.shares()}" for backend, step in steps.items()]
    return Table(title=f"A training step of {name}", rows=rows, remarks=[*remarks, *([why_not] if why_not else [])])


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--steps", type=int, default=3, help="steps before the times, whose losses are compared with eager's")
    parser.add_argument("--fused", action="store_true", help="AdamW(fused=True)")
    options = parser.parse_args()
    start(options)
    why_not = why_no_inductor(options)
    models = small_models(quick=options.quick)
    report("Training", [measured(name, *given, options, why_not) for name, given in models.items()], options)


if __name__ == "__main__":
    main()
