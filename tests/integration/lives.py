"""Lives of small models: calls and changes in any order, each answer held against the same module run by PyTorch.

A life is a list of steps, and a step is a name and a number that everything in it is drawn from. So a life reads as one line, runs
again the same way, and stays a life when steps are left out of it: `shortest` leaves out all that a failure does not need.
"""

# ruff: noqa: ANN401 - arguments and results of modules are Any in torch itself

from __future__ import annotations

import copy
import gc
import itertools
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import torch
from torch import nn
from torch.nn import functional

from ortlens.backend.runtime import runner

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterable, Sequence

    from torch.optim import Optimizer

T = TypeVar("T")
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
FLOATS = tuple(TOLERANCES)
_KEPT = 4  # results of earlier calls that are looked at again


class Draw:
    """Random choices that follow from one number."""

    def __init__(self, number: int) -> None:
        self._generator = torch.Generator().manual_seed(number)

    def below(self, limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=self._generator))

    def choice(self, items: Iterable[T]) -> T:
        several = list(items)
        return several[self.below(len(several))]

    def values(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(dtype)


class Mlp(nn.Module):
    """Takes any dtype; has a buffer of numbers and one of truth values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.shift = nn.Buffer(torch.linspace(-1, 1, 8))
        self.kept = nn.Buffer(torch.arange(8) != 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.first(x.to(self.shift.dtype)))
        result: torch.Tensor = self.last(self.norm(torch.where(self.kept, hidden, self.shift)) + self.shift)
        return result

    def inputs(self, draw: Draw, batch: int) -> torch.Tensor:
        return draw.values(batch, 6).mul(2).to(draw.choice((*FLOATS, torch.int32, torch.int64, torch.bool)))


class Conv(nn.Module):
    """Convolutions, one of them in groups, with statistics of batches that training writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, groups=4), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        result: torch.Tensor = self.last(functional.relu(self.second(hidden)).mean((2, 3)))
        return result

    def inputs(self, draw: Draw, batch: int) -> torch.Tensor:
        layout = draw.choice((torch.contiguous_format, torch.channels_last))
        return draw.values(batch, 3, 8, 8, dtype=self.last.bias.dtype).contiguous(memory_format=layout)


class Block(nn.Module):
    """A transformer block whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(17, 8), nn.Linear(8, 17)
        self.head.weight = self.embed.weight
        self.norm, self.mix, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.drop = nn.Dropout(0.2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        parts = self.mix(self.norm(hidden)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        result: torch.Tensor = self.head(hidden + self.drop(self.out(mixed.transpose(1, 2).flatten(2))))
        return result

    def inputs(self, draw: Draw, batch: int) -> torch.Tensor:
        tokens = draw.values(batch, 5).mul(100).long().remainder(17)
        return tokens.to(draw.choice((torch.int64, torch.int64, torch.int32)))


KINDS: dict[str, Callable[[], nn.Module]] = {"conv": Conv, "mlp": Mlp, "block": Block}


@dataclass(eq=False)
class Pair:
    """A module, and what was compiled from it; the module itself is the judge."""

    module: Any
    compiled: Callable[..., Any]
    optimizer: Optimizer | None = None


@dataclass(eq=False)
class Life:
    """What the steps of one life work on; copies of the module join the pairs."""

    kind: str
    compile: Callable[[nn.Module], Callable[..., Any]]
    pairs: list[Pair] = field(default_factory=list)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.add(KINDS[self.kind]().eval())

    def add(self, module: nn.Module) -> None:
        self.pairs = [*self.pairs[-1:], Pair(module, self.compile(module))]

    def compile_anew(self) -> None:
        for pair in self.pairs:
            pair.compiled = _nothing
        gc.collect()
        for pair in self.pairs:
            pair.compiled = self.compile(pair.module)

    def check(self, pair: Pair, x: torch.Tensor, mode: Callable[[], Any], tolerance: float = 0.0) -> torch.Tensor:
        """Run a call both ways; results, gradients, arguments and buffers must agree, and earlier results stay as they were."""
        buffers = {name: value.clone() for name, value in pair.module.named_buffers()}

        def by_torch(value: torch.Tensor) -> Any:
            return torch.func.functional_call(pair.module, buffers, (value,)) if pair.module.training else pair.module(value)

        expected, wanted = _outcome(by_torch, pair.module, x, mode)
        actual, given = _outcome(pair.compiled, pair.module, x, mode)
        assert (actual.requires_grad, actual.is_inference()) == (expected.requires_grad, expected.is_inference())
        _close(actual, expected, tolerance)
        largest = max((float(g.abs().max()) for g in wanted if g is not None and g.numel()), default=0.0)
        for mine, theirs in itertools.zip_longest(given, wanted):
            _close(
                mine, theirs, tolerance, largest, looser=10
            )  # what cancels out, as the gradient of a key's bias, is noise of the others' size
        for name, value in pair.module.named_buffers():
            _close(value, buffers[name], tolerance)
        for earlier, copied in self.kept:
            assert torch.equal(earlier, copied), "the result of an earlier call changed"
        self.kept = [*self.kept[1 - _KEPT :], (actual.detach(), actual.detach().clone())]
        result: torch.Tensor = actual
        return result


def _nothing(*_: Any) -> None:
    """In the place of a compiled module that is to be collected."""


def _outcome(function: Callable[..., Any], module: nn.Module, x: torch.Tensor, mode: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """The result, and, where there are any, the gradients of input and parameters."""
    given = copy.deepcopy(x)
    with mode():
        leaves: list[torch.Tensor] = [p for p in module.parameters() if p.requires_grad] if torch.is_grad_enabled() else []
        if torch.is_grad_enabled() and x.is_floating_point():
            leaves.append(given.requires_grad_())
        torch.manual_seed(1)
        result = function(given)
        gradients = torch.autograd.grad(_loss(result), leaves, allow_unused=True) if result.requires_grad else ()
    assert torch.equal(given, x), "a call changed its argument"
    return result, list(gradients)


def _loss(result: torch.Tensor) -> torch.Tensor:
    """Linear, so that it magnifies no difference, and different for every element."""
    flat = result.float().flatten()
    return flat @ torch.arange(flat.numel()).cos()


def _close(actual: Any, expected: Any, tolerance: float, largest: float = 1.0, looser: float = 1.0) -> None:
    assert (actual is None) == (expected is None)
    if actual is None:
        return
    least = max(tolerance, TOLERANCES.get(expected.dtype, 0.0))
    least = max(least, min(looser * least, 0.1))
    if expected.numel() and expected.is_floating_point():
        largest = max(1.0, largest, float(expected.detach().abs().max().nan_to_num(1, 1, 1)))
    torch.testing.assert_close(actual, expected, atol=least * largest, rtol=least, equal_nan=True)


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what it does, and the number that its details are drawn from."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}:{self.number}"


Steps = dict[str, "Callable[[Life, Draw], None]"]


def random_life(seed: int, names: Sequence[str], length: int) -> list[Step]:
    """Steps of which every other one is a call, so that each change meets one that came before it and one after."""
    draw = Draw(seed)
    changes = [Step(draw.choice(names), draw.below(10_000)) for _ in range(length)]
    return [step for change in changes for step in (Step("call", draw.below(10_000)), change)] + [Step("call", draw.below(10_000))]


def recompiling_at_will() -> contextlib.AbstractContextManager[object]:
    """Dynamo gives a function up after eight versions of it, and then nothing would be compared; the setting is one thread's own."""
    limits: dict[str, Any] = {"recompile_limit": 10_000, "accumulated_recompile_limit": 10_000, "fail_on_recompile_limit_hit": True}
    patched: contextlib.AbstractContextManager[object] = torch._dynamo.config.patch(**limits)
    return patched


def failure_of(kind: str, steps: Sequence[Step], known: Steps, compile_module: Callable[[nn.Module], Any]) -> Exception | None:
    """Live a life; a fresh Dynamo sees to it that nothing outlives it."""
    torch.compiler.reset()
    life = Life(kind, compile_module)
    # Weights that change often are frozen no more, after which no change is of interest: here they stay frozen until a step ends that.
    with recompiling_at_will(), mock.patch.object(runner, "_MAX_REFREEZES", sys.maxsize):
        for step in steps:
            try:
                known[step.name](life, Draw(step.number))
            except Exception as error:  # noqa: BLE001, PERF203 - whatever went wrong is what was looked for
                return error
    return None


def shortest(steps: Sequence[Step], still_fails: Callable[[Sequence[Step]], bool], *, seconds: float = 120) -> list[Step]:
    """Leave out steps, larger runs of them first, for as long as the failure stays."""
    end, left, size = time.monotonic() + seconds, list(steps), len(steps)
    while size:
        start = 0
        while start < len(left) and time.monotonic() < end:
            shorter = left[:start] + left[start + size :]
            if still_fails(shorter):
                left = shorter
            else:
                start += size
        size = size // 2
    return left


def live(kind: str, steps: Sequence[Step], known: Steps, compile_module: Callable[[nn.Module], Any]) -> None:
    """Live a life, and when it fails, say in which least way."""
    error = failure_of(kind, steps, known, compile_module)
    if error is None:
        return

    def still_fails(shorter: Sequence[Step]) -> bool:
        return type(failure_of(kind, shorter, known, compile_module)) is type(error)

    least = shortest(steps, still_fails)
    shown = failure_of(kind, least, known, compile_module) or error
    raise AssertionError(f"{text_of_life(kind, least)}\n{type(shown).__name__}: {shown}") from shown


def text_of_life(kind: str, steps: Sequence[Step]) -> str:
    return " ".join([kind, *map(str, steps)])


def life_from_text(text: str) -> tuple[str, list[Step]]:
    kind, *steps = text.split()
    return kind, [Step(name, int(number)) for name, number in (step.split(":") for step in steps)]
