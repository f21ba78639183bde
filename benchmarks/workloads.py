"""Everyday programs for `bench_workloads.py`: generation, recommenders, encoders, bfloat16, optimisers, Fourier layers. Weights are random.

Each builder returns a function of nothing that takes one step on its own state, so that ways are told apart by building it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
    Step = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A program and its goal.

    Attributes:
        name: As the table says it.
        build: Given what compiles a function (or returns it as it is) and whether sizes are tiny, returns the step.
        to: The way that the goal compares with.
        goal: Largest ratio of times that meets it.
        trains: Whether gradients are enabled.
        tolerance: Absolute and relative, of the results.
        frozen: Largest ratio of `ortlens.freeze` to the same way; None where it is not measured, as for steps that are no single graph.
    """

    name: str
    build: Callable[[Compile, bool], Step]
    to: str = "eager"
    goal: float = 1.0
    trains: bool = False
    tolerance: float = 1e-4
    frozen: float | None = None


class CachedAttention(nn.Module):
    """One layer of attention that writes the new key and value into a cache of a fixed length, as StaticCache does."""

    def __init__(self, length: int, width: int = 512, heads: int = 8) -> None:
        """Make weights and an empty cache."""
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("keys", torch.randn(1, heads, length, self.head))
        self.register_buffer("values", torch.randn(1, heads, length, self.head))
        self.keys: torch.Tensor
        self.values: torch.Tensor

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """One token, (1, 1, width), at a position, (1,)."""
        q, k, v = self.qkv(x).view(1, 1, 3, self.heads, self.head).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        seen = torch.arange(self.keys.shape[2]) <= position
        made = functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen[None, None, None])
        out: torch.Tensor = self.out(made.transpose(1, 2).reshape(1, 1, -1))
        return out


def attention(length: int) -> Callable[[Compile, bool], Step]:
    """A step of one layer with a cache of that length."""

    def build(compiled: Compile, quick: bool) -> Step:  # noqa: FBT001 - of every builder
        layer = CachedAttention(min(length, 64) if quick else length).eval()
        call, x, position = compiled(layer), torch.randn(1, 1, 512), torch.tensor([length // 2 if not quick else 5])
        return lambda: call(x, position)

    return build


class CachedDecoder(nn.Module):
    """Layers of attention with a cache of a fixed length and a feed-forward net, and a head: one step of decoding."""

    def __init__(self, layers: int, length: int, width: int = 512) -> None:
        """Make weights and empty caches."""
        super().__init__()
        self.attention = nn.ModuleList(CachedAttention(length, width) for _ in range(layers))
        self.forth = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """One token, (1, 1, width), at a position, (1,), to its logits."""
        for norm, attention, forth in zip(self.norms, self.attention, self.forth, strict=True):
            x = x + attention(norm(x), position)
            x = x + forth(x)
        logits: torch.Tensor = self.head(x)
        return logits


def decode_step(length: int) -> Callable[[Compile, bool], Step]:
    """A step of a decoder of four layers with caches of that length."""

    def build(compiled: Compile, quick: bool) -> Step:  # noqa: FBT001
        model = CachedDecoder(1 if quick else 4, 64 if quick else length).eval()
        call, x, position = compiled(model), torch.randn(1, 1, 512), torch.tensor([5 if quick else length // 2])
        return lambda: call(x, position)

    return build


def llama(quick: bool) -> Any:  # noqa: ANN401, FBT001 - a model of transformers
    """A small LLaMA."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers = (32, 1) if quick else (512, 4)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=1000,
        max_position_embeddings=4096,
    )
    return LlamaForCausalLM(config).eval()


def decoding(cache: str) -> Callable[[Compile, bool], Step]:
    """Greedy generation of a few tokens with a cache of that kind; the whole model is compiled, and `generate` calls it."""

    def build(compiled: Compile, quick: bool) -> Step:  # noqa: FBT001
        model, ids = llama(quick), torch.arange(16)[None]
        model.forward = compiled(model.forward)
        tokens = 4 if quick else 16
        kind = {} if cache == "dynamic" else {"cache_implementation": "static"}
        return lambda: model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0, disable_compile=True, **kind
        )

    return build


def bags(count: int) -> Callable[[Compile, bool], Step]:
    """Sums of embeddings, eight to a bag."""

    def build(compiled: Compile, quick: bool) -> Step:  # noqa: ARG001, FBT001
        call = compiled(nn.EmbeddingBag(10_000, 64, mode="sum"))
        ids, offsets = torch.randint(0, 10_000, (8 * count,)), torch.arange(0, 8 * count, 8)
        return lambda: call(ids, offsets)

    return build


class Recommender(nn.Module):
    """As DLRM: bags of sparse features, a stack for dense ones, their products, a stack on top."""

    def __init__(self, tables: int = 8, width: int = 32) -> None:
        """Make tables and stacks."""
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(10_000, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid())
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)
        self.pairs: torch.Tensor

    def forward(self, dense: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Probabilities of a batch."""
        low = self.bottom(dense)
        parts = torch.stack([low, *(table(ids[at], offsets) for at, table in enumerate(self.tables))], dim=1)
        products = (parts @ parts.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        made: torch.Tensor = self.top(torch.cat([low, products], dim=1))
        return made


def recommender(compiled: Compile, quick: bool) -> Step:  # noqa: FBT001
    """A batch of a small DLRM."""
    batch = 8 if quick else 256
    call = compiled(Recommender().eval())
    dense, ids, offsets = torch.randn(batch, 13), torch.randint(0, 10_000, (8, 4 * batch)), torch.arange(0, 4 * batch, 4)
    return lambda: call(dense, ids, offsets)


def encoder(compiled: Compile, quick: bool) -> Step:  # noqa: FBT001
    """`nn.TransformerEncoder` in eval mode."""
    width = 32 if quick else 256
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
    call, x = compiled(nn.TransformerEncoder(layer, 2 if quick else 4).eval()), torch.randn(4, 64, width)
    return lambda: call(x)


def multihead(compiled: Compile, quick: bool) -> Step:  # noqa: FBT001
    """`nn.MultiheadAttention` in eval mode."""
    width = 32 if quick else 256
    layer, x = nn.MultiheadAttention(width, 4, batch_first=True).eval(), torch.randn(4, 64, width)
    call = compiled(lambda x: layer(x, x, x, need_weights=False)[0])
    return lambda: call(x)


def autocast(compiled: Compile, quick: bool) -> Step:  # noqa: FBT001
    """Inference of an MLP under bfloat16 autocast."""
    width = 32 if quick else 512
    net = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10)).eval()
    call, x = compiled(net), torch.randn(32, width)

    def step() -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return call(x).float()

    return step


def optimiser(kind: type[torch.optim.Optimizer], **options: Any) -> Callable[[Compile, bool], Step]:  # noqa: ANN401 - of the optimiser
    """Steps of an optimiser, compiled by itself."""

    def build(compiled: Compile, quick: bool) -> Step:  # noqa: FBT001
        net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(2 if quick else 8)))
        for weight in net.parameters():
            weight.grad = torch.randn(weight.shape)
        made = kind(net.parameters(), lr=1e-6, **options)
        call = compiled(made.step)
        with torch.no_grad():
            made.step()  # its state is made by the first step, which is compiled apart

        def step() -> object:
            call()
            return next(net.parameters()).detach().clone()

        return step

    return build


class Fourier(nn.Module):
    """A layer of a Fourier neural operator."""

    def __init__(self, width: int = 32, modes: int = 12) -> None:
        """Make complex weights."""
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, modes, dtype=torch.cfloat) / width)
        self.beside = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, width, H, W) to the same."""
        spectrum = torch.fft.rfft2(x)
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, : self.modes, : self.modes], self.weight)
        filled = functional.pad(torch.view_as_real(low), (0, 0, 0, spectrum.shape[3] - self.modes, 0, spectrum.shape[2] - self.modes))
        made = torch.fft.irfft2(torch.view_as_complex(filled), s=x.shape[-2:])
        return functional.gelu(made + self.beside(x))


def fourier(compiled: Compile, quick: bool) -> Step:  # noqa: FBT001
    """Four layers of a Fourier neural operator."""
    call = compiled(nn.Sequential(*(Fourier() for _ in range(1 if quick else 4))).eval())
    x = torch.randn(2, 32, 32, 32)
    return lambda: call(x)


WORKLOADS = (
    *(Workload(name=f"attention, StaticCache of {size}", build=attention(size), to="inductor") for size in (64, 2048, 8192)),
    Workload(name="decode step, StaticCache of 2048", build=decode_step(2048), to="inductor", frozen=0.8),
    Workload(name="generate, dynamic cache", build=decoding("dynamic"), goal=0.8),
    Workload(name="generate, static cache", build=decoding("static"), goal=0.8),
    *(Workload(name=f"EmbeddingBag, {count} bags", build=bags(count)) for count in (32, 256, 1024)),
    Workload(name="DLRM", build=recommender),
    Workload(name="nn.TransformerEncoder, eval", build=encoder),
    Workload(name="nn.MultiheadAttention, eval", build=multihead),
    Workload(name="MLP, bfloat16 autocast", build=autocast, tolerance=2e-2),
    Workload(name="SGD step", build=optimiser(torch.optim.SGD), tolerance=1e-5),
    Workload(name="SGD with momentum step", build=optimiser(torch.optim.SGD, momentum=0.9), tolerance=1e-5),
    Workload(name="Adam step", build=optimiser(torch.optim.Adam), tolerance=1e-4),
    Workload(name="AdamW step", build=optimiser(torch.optim.AdamW), tolerance=1e-4),
    Workload(name="AdamW step, foreach", build=optimiser(torch.optim.AdamW, foreach=True), tolerance=1e-4),
    Workload(name="Fourier neural operator", build=fourier, goal=1.3),
)
