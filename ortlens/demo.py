"""The bundled model that shows every concept at once: one graph break, one operator that stays in PyTorch, one recompile."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ortlens.lens.lens import Lens

_VOCABULARY = 1000
_WIDTH = 128
_HEADS = 4
_TOKENS = (4, 32)  # batch, sequence
_CALLS = 10
_TOLERANCE = 1e-4


class SpectralNorm(nn.Module):
    """Divide by the largest singular value, so that no direction outweighs the others. ONNX has no singular values."""

    def __init__(self, width: int) -> None:
        """Make one gain per channel."""
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Centre every position, then scale each sequence by its largest singular value."""
        centred = x - x.mean(dim=-1, keepdim=True)
        largest = torch.linalg.svd(centred, full_matrices=False).S.amax(dim=-1)
        scaled: torch.Tensor = self.gain * centred / (largest[:, None, None] + 1e-5)
        return scaled


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        """Make the projections; `heads` must divide the width."""
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Let every position look at every other."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        answer: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return answer


class DemoModel(nn.Module):
    """An attention block and an MLP with one graph break, one fallback and one recompile."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, _WIDTH)
        self.attention = Attention(_WIDTH, _HEADS)
        self.norm = SpectralNorm(_WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))
        self.head = nn.Linear(_WIDTH, _VOCABULARY)
        self.limit = 1e4

    def forward(self, tokens: torch.Tensor, *, want_logits: bool = False) -> torch.Tensor:
        """Encode tokens; with `want_logits` also score the vocabulary, which compiles the second half again."""
        x = self.embed(tokens)
        x = self.norm(x + self.attention(x))
        # Python needs a number here, in the middle of the model: a graph break.
        if x.abs().max() > self.limit:
            x = x.clamp(-self.limit, self.limit)
        x = x + self.mlp(x)
        answer: torch.Tensor = self.head(x) if want_logits else x
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the demo found."""

    lens: Lens
    max_abs_difference: float  # largest absolute difference between ONNX Runtime's answers and plain PyTorch's
    calls: int  # calls of the compiled model, all of which were compared

    @property
    def is_match(self) -> bool:
        """True when the answers agree to four digits after the point."""
        return self.max_abs_difference <= _TOLERANCE


def run_demo() -> DemoResult:
    """Run the bundled model in plain PyTorch and through ONNX Runtime, compare every answer, and capture the second."""
    model, tokens = _model_and_tokens()
    lens = Lens(name="demo")
    compiled = torch.compile(model, backend=lens)
    differences = []
    with torch.no_grad():
        for want_logits in (False, True):
            expected = model(tokens, want_logits=want_logits)
            for _ in range(_CALLS):
                answer = compiled(tokens, want_logits=want_logits)
                differences.append((answer - expected).abs().max())
        # Where the wall time of a call goes, and what it takes uncompiled.
        lens.measured(lambda: compiled(tokens, want_logits=True), uncompiled=lambda: model(tokens, want_logits=True))
    return DemoResult(
        lens=lens,
        max_abs_difference=float(torch.stack(differences).max()),  # NaN stays NaN, and is no match
        calls=len(differences),
    )


def _model_and_tokens() -> tuple[DemoModel, torch.Tensor]:
    """Make the same weights and tokens every time, without touching the caller's random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DemoModel().eval(), torch.randint(0, _VOCABULARY, _TOKENS)
