"""A training step of a small transformer: forward, loss, backward, AdamW. ortlens against eager and Inductor, reported.

Usage: python benchmarks/bench_training.py [--threads 1] [--quick] [--json FILE] [--no-inductor]
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from measure import Table, called_with, isolated, parser_for, report, start, take_turns, why_no_inductor
from models import VOCABULARY, FirstOutput, gpt2

if TYPE_CHECKING:
    from collections.abc import Callable

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


def step_of(model: torch.nn.Module, backend: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A training step over a copy of the model, with an optimiser of its own.

    Args:
        model: Returns the loss.
        backend: As for `torch.compile`, or `eager` for the model as it is.

    Returns:
        A function of the tokens that returns the loss before the step.
    """
    mine = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-3)
    loss_of = mine if backend == "eager" else isolated(mine, backend)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = loss_of(tokens)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    return step


def main() -> None:
    """Run and print."""
    options = parser_for(__doc__).parse_args()
    start(options)
    why_not = why_no_inductor(options)
    layers, hidden, batch, tokens = (1, 32, 2, 8) if options.quick else (4, 256, 4, 64)
    model, x = NextToken(FirstOutput(gpt2(layers, hidden))).train(), torch.randint(0, VOCABULARY, (batch, tokens))
    steps = {backend: step_of(model, backend) for backend in ("eager", "ortlens", *([] if why_not else ["inductor"]))}
    for _ in range(_CHECKED_STEPS):
        losses = {backend: step(x) for backend, step in steps.items()}
        for loss in losses.values():
            torch.testing.assert_close(loss, losses["eager"], atol=_TOLERANCE, rtol=_TOLERANCE)
    turns = take_turns(called_with(steps, x), quick=options.quick)
    rows = [turns.compared(f"ortlens to {other}", "ortlens", other) for other in steps if other != "ortlens"]
    report("Training", [Table(title="A training step of GPT-2, small", rows=rows, remarks=[why_not] if why_not else [])], options)


if __name__ == "__main__":
    main()
