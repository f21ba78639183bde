"""Small programs without faults, for what architectures do not show: long reductions, dtypes, training, state, what amplifies rounding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_LONG = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function or module, and how it is called.

    Attributes:
        build: Makes it.
        inputs: Makes positional arguments.
        first: Makes those of the call that compiles; None: the same.
        dynamic: As for `explain`.
        train: Whether gradients are compared as well.
    """

    build: Callable[[], Callable[..., Any]]
    inputs: Callable[[], tuple[Any, ...]]
    first: Callable[[], tuple[Any, ...]] | None = None
    dynamic: bool | None = None
    train: bool = False


def _mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).to(dtype)


def _cnn() -> nn.Module:
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5))
    return nn.Sequential(*layers)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return made


class _Recurrent(nn.Module):
    """Step by step, since Dynamo leaves `nn.GRU` itself to PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 12)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state


class _Cache(nn.Module):
    """Writes into a buffer at a place that moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(8, 4))
        self.kept: torch.Tensor

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.kept.index_copy_(0, place, x)
        return self.kept.softmax(-1).sum(0)


def _quantised(x: torch.Tensor) -> torch.Tensor:
    return (x.softmax(-1) * 127).round() / 127


def _hard_mask(x: torch.Tensor) -> torch.Tensor:
    scores = (x @ x.T).masked_fill(torch.ones(x.shape[0], x.shape[0]).triu(1).bool(), float("-inf"))
    return scores.softmax(-1) @ x


def _best(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = x.topk(5)
    return found.values, found.indices


def _written(x: torch.Tensor) -> torch.Tensor:
    x[1:] = x[:-1].cumsum(0)
    return x.cos()


def _broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.exp().mean(0)


def _loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(x.tanh() * 3, labels)


def _embedded(weight: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return functional.embedding(places, weight).square().mean(1)


def _views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.t(), x[::2], (x * 2).unflatten(1, (2, -1)), x.sin().chunk(2)[1]


def _whole_numbers(x: torch.Tensor) -> torch.Tensor:
    return (x * 7 // 3 % 5) << 2


def _long(*dtypes: torch.dtype, offset: float = 0.0, width: int = _LONG) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(offset + torch.rand(width, dtype=dtype) for dtype in dtypes)


def _rand(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Callable[[], tuple[torch.Tensor]]:
    return lambda: (torch.randn(*shape, dtype=dtype).requires_grad_(grad),)


def _of(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    return lambda: function


_F32, _F64, _F16, _BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16

PROGRAMS: dict[str, Program] = {
    "perceptron": Program(build=_mlp, inputs=_rand(4, 32)),
    "perceptron, training": Program(build=_mlp, inputs=_rand(4, 32), train=True),
    "perceptron, float64": Program(build=lambda: _mlp(_F64), inputs=_rand(4, 32, dtype=_F64)),
    "perceptron, float64, training": Program(build=lambda: _mlp(_F64), inputs=_rand(4, 32, dtype=_F64), train=True),
    "perceptron, float16": Program(build=lambda: _mlp(_F16), inputs=_rand(4, 32, dtype=_F16)),
    "perceptron, bfloat16": Program(build=lambda: _mlp(_BF16), inputs=_rand(4, 32, dtype=_BF16)),
    "perceptron, dynamic": Program(build=_mlp, first=_rand(4, 32), inputs=_rand(9, 32), dynamic=True),
    "convolutions": Program(build=lambda: _cnn().eval(), inputs=_rand(2, 3, 8, 8)),
    "convolutions, training": Program(build=_cnn, inputs=_rand(2, 3, 8, 8), train=True),
    "transposed convolution": Program(build=lambda: nn.ConvTranspose2d(4, 3, 3, 2, 1, 1), inputs=_rand(1, 4, 5, 5), train=True),
    "group normalisation, training": Program(build=lambda: nn.GroupNorm(2, 8), inputs=_rand(2, 8, 5, 5), train=True),
    "recurrent": Program(build=_Recurrent, inputs=_rand(2, 6, 8), train=True),
    "attention": Program(build=lambda: _Attention().eval(), inputs=_rand(2, 6, 16)),
    "attention, training": Program(build=_Attention, inputs=_rand(2, 6, 16), train=True),
    "attention, dynamic": Program(build=lambda: _Attention().eval(), first=_rand(2, 6, 16), inputs=_rand(3, 11, 16), dynamic=True),
    "dropout": Program(build=lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)), inputs=_rand(16, 8), train=True),
    "infinite mask": Program(build=_of(_hard_mask), inputs=_rand(6, 4)),
    "rounding decides": Program(build=_of(_quantised), inputs=_rand(64, 64)),
    "largest": Program(build=_of(_best), inputs=lambda: ((torch.rand(8, 40) * 9).round(),)),
    "writes to its input": Program(build=_of(_written), inputs=_rand(6, 3)),
    "writes to a buffer": Program(build=_Cache, inputs=lambda: (torch.rand(2, 4), torch.tensor([5, 1]))),
    "graph break": Program(build=_of(_broken), inputs=_rand(8, 8)),
    "loss, training": Program(build=_of(_loss), inputs=lambda: (torch.randn(6, 9, requires_grad=True), torch.arange(6)), train=True),
    "embedding, training": Program(
        build=_of(_embedded), inputs=lambda: (torch.randn(9, 4, requires_grad=True), torch.tensor([[1, 1], [8, 0]])), train=True
    ),
    "views": Program(build=_of(_views), inputs=_rand(6, 4)),
    "whole numbers": Program(build=_of(_whole_numbers), inputs=lambda: (torch.arange(-40, 40),)),
    "long sum": Program(build=_of(lambda x: x.sum()), inputs=_long(_F32)),
    "long sum around zero": Program(build=_of(lambda x: x.sum()), inputs=_long(_F32, offset=-0.5)),
    "long mean far from zero": Program(build=_of(lambda x: x.mean()), inputs=_long(_F32, offset=100.0)),
    "long variance": Program(build=_of(lambda x: x.var()), inputs=_long(_F32, offset=10.0)),
    "long norm": Program(build=_of(torch.linalg.vector_norm), inputs=_long(_F32)),
    "long dot product": Program(build=_of(torch.dot), inputs=_long(_F32, _F32)),
    "long log-sum-exp": Program(build=_of(lambda x: x.logsumexp(0)), inputs=_long(_F32)),
    "long softmax": Program(build=_of(lambda x: x.softmax(0)), inputs=_long(_F32, width=1_000_000)),
    "long cumulative sum": Program(build=_of(lambda x: x.cumsum(0)), inputs=_long(_F32, width=1_000_000)),
    "long sum, float16": Program(build=_of(lambda x: x.sum()), inputs=_long(_F16, width=10_000)),
    "long sum, float64": Program(build=_of(lambda x: x.sum()), inputs=_long(_F64)),
    "long rows": Program(build=_of(lambda x: x.reshape(10, -1).mean(1)), inputs=_long(_F32)),
}
