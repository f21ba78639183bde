"""Kinds of recompiles: each names its guard, and none is left once the advice is followed."""

# ruff: noqa: ANN401 - what is called takes anything

from __future__ import annotations

import enum
import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from ortlens.analysis.first_look import looks_of
from ortlens.analysis.overview import overview_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortlens.trace.records import Recompile

X = torch.ones(3)
SCALE: Any = 2
MODE = "sine"
CALLS = 0
STATIC, DYNAMIC = {"dynamic": False}, {"dynamic": True}


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    globals().update(SCALE=2, MODE="sine", CALLS=0)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(mode=False)
    torch.set_num_threads(threads)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Net(nn.Module):
    """A module that reads one of its attributes."""

    def __init__(self, by: Any = None) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3)])
        self.drop = nn.Dropout(0.0)
        self.by = by

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.by


class Counting(Net):
    def forward(self, x: torch.Tensor) -> Any:
        self.by = self.by + 1
        return x * self.by


class Dropping(Net):
    def forward(self, x: torch.Tensor) -> Any:
        return self.drop(x) + 1


class Linear(Net):
    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x)


class Layers(Net):
    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def times(x: torch.Tensor, n: Any = 2) -> torch.Tensor:
    return torch.mul(x, n)


def by_flag(x: torch.Tensor, mode: Any) -> torch.Tensor:
    return x.sin() if mode in ("sine", True, Color.RED) else x.cos()


def by_global(x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, SCALE)


def by_global_flag(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if MODE == "sine" else x.cos()


def added(x: torch.Tensor, y: Any) -> torch.Tensor:
    return x if y is None else torch.add(x, y)


def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y])


def summed(x: torch.Tensor, items: Any) -> torch.Tensor:
    for item in items.values() if isinstance(items, dict) else items:
        x = x + item
    return x


def summed_tensor(x: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    return x + items.sum(0)


def applied(x: torch.Tensor, f: Any) -> torch.Tensor:
    return torch.add(f(x), 1)


def scaled(x: torch.Tensor, config: Any) -> torch.Tensor:
    return torch.mul(x, config.scale)


def keywords(x: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
    return summed(x, kwargs)


def even(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] % 2 == 0 else x + 2


def from_numpy(x: torch.Tensor, a: Any) -> torch.Tensor:
    return x + torch.from_numpy(a)


def to_dtype(x: torch.Tensor, size: Any) -> torch.Tensor:
    return x.reshape(size)


Call: TypeAlias = tuple[Any, ...]
"""A call: its arguments, what happens before it, its context, and keyword arguments in `Named`."""


@dataclass(frozen=True)
class Before:
    change: Callable[[], object]


@dataclass(frozen=True)
class Named:
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Under:
    context: Callable[[], AbstractContextManager[object]]


def recompiles(function: Any, calls: tuple[Call, ...], options: dict[str, Any] | None = None) -> tuple[Recompile, ...]:
    torch._dynamo.reset()
    lens = Lens("eager")
    compiled = torch.compile(function, backend=lens, **(options or {}))
    for args in calls:
        context: AbstractContextManager[object] = nullcontext()
        for arg in args:
            if isinstance(arg, Before):
                arg.change()
            if isinstance(arg, Under):
                context = arg.context()
        given = [arg for arg in args if not isinstance(arg, Before | Under | Named)]
        named = {name: value for arg in args if isinstance(arg, Named) for name, value in arg.arguments.items()}
        with context:
            compiled(*given, **named)
    return lens.captured().recompiles


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Calls that compile a function twice, and what follows the advice.

    Attributes:
        guard: Part of the guard that fails.
        says: Beginning of the advice.
        function: The function; makes one if it is in a module.
        calls: Its calls.
        options: Of `torch.compile`.
        followed: Function, calls and options as the advice says.
    """

    guard: str
    says: str
    function: Any
    calls: tuple[Call, ...]
    options: dict[str, Any] | None = None
    followed: tuple[tuple[Any, tuple[Call, ...], dict[str, Any]], ...]


def marked(*sizes: int) -> tuple[Call, ...]:
    made = [torch.ones(size) for size in sizes]
    torch._dynamo.mark_dynamic(made[0], 0)
    return tuple((x,) for x in made)


def closure(n: Any) -> tuple[Any, Before]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, n)

    def change() -> None:
        nonlocal n
        n = n + 3

    return inner, Before(change)


def on(module: Net, change: Callable[[Net], object], x: torch.Tensor = X) -> tuple[Call, ...]:
    return (x,), (Before(lambda: change(module)), x)


with torch.inference_mode():
    INFERENCE = torch.ones(3)

WIDE, NARROW = torch.ones(4, 5), torch.ones(5, 4).t()
SIZES = tuple((torch.ones(size),) for size in (3, 4, 5))
KEPT = lambda x: x * 2  # noqa: E731 - the object that is kept
NUMBER, NUMBER_CHANGES = closure(2)
NUMBER_AGAIN, NUMBER_CHANGES_AGAIN = closure(2)
TENSOR, TENSOR_CHANGES = closure(torch.tensor(2))
FLOAT, FLOAT_TENSOR, MODAL, COUNTER, TENSOR_COUNTER = Net(2.5), Net(torch.tensor(2.5)), Dropping(), Counting(0), Counting(torch.tensor(0))
MODAL_KEPT, FROZEN, FROZEN_BEFORE, GROWING, GROWN, SWAPPED, SWAPPED_ALIKE = (
    Dropping(),
    Linear(),
    Linear(),
    Layers(),
    Layers(),
    Linear(),
    Linear(),
)
FLOAT_DYNAMIC = Net(2.5)
FROZEN_BEFORE.requires_grad_(requires_grad=False)

KINDS = {
    "size": Kind(
        guard="size mismatch",
        says="Call `torch._dynamo.mark_dynamic(x, 0)` before the first call, or compile with `dynamic=True`",
        function=plain,
        calls=SIZES,
        options=STATIC,
        followed=((plain, marked(3, 4, 5), {}), (plain, SIZES, DYNAMIC)),
    ),
    "size of 1": Kind(
        guard="size mismatch",
        says="Nothing to change, unless calls with size 0 or 1 in dimension 0 of `x` can be avoided",
        function=plain,
        calls=((torch.ones(4),), (torch.ones(1),)),
        followed=((plain, ((torch.ones(4),), (torch.ones(4),)), {}),),
    ),
    "rank": Kind(
        guard="rank mismatch",
        says="Call with the same number of dimensions for `x`",
        function=plain,
        calls=((X,), (torch.ones(3, 3),)),
        followed=((plain, ((torch.ones(2, 3),), (torch.ones(3, 3),)), DYNAMIC),),
    ),
    "dtype": Kind(
        guard="dtype mismatch",
        says="Convert `x` to one dtype before the call",
        function=plain,
        calls=((X,), (X.double(),)),
        followed=((plain, ((X,), (X.double().float(),)), {}),),
    ),
    "stride": Kind(
        guard="stride mismatch",
        says="Pass `x` in one memory layout, for example as `x.contiguous()`",
        function=plain,
        calls=((WIDE,), (NARROW,)),
        followed=((plain, ((WIDE,), (NARROW.contiguous(),)), {}),),
    ),
    "requires_grad": Kind(
        guard="requires_grad mismatch",
        says="Call with `x.requires_grad` the same every time, or with `x.detach()`",
        function=plain,
        calls=((X,), (X.clone().requires_grad_(),)),
        followed=((plain, ((X,), (X.clone().requires_grad_().detach(),)), {}),),
    ),
    "requires_grad of a weight": Kind(
        guard="requires_grad mismatch",
        says="Keep `self.linear.",
        function=FROZEN,
        calls=on(FROZEN, lambda net: net.requires_grad_(requires_grad=False)),
        followed=((FROZEN_BEFORE, ((X,), (X,)), {}),),
    ),
    "grad mode": Kind(
        guard="grad_mode",
        says="Make every call in the same mode, with or without `torch.no_grad()`",
        function=plain,
        calls=((X,), (Under(torch.no_grad), X)),
        followed=((plain, ((Under(torch.no_grad), X), (Under(torch.no_grad), X)), {}),),
    ),
    "inference tensor": Kind(
        guard="dispatch key set",
        says="Create `x` always under `torch.inference_mode()` or never",
        function=plain,
        calls=((X,), (INFERENCE,)),
        followed=((plain, ((INFERENCE,), (INFERENCE,)), {}),),
    ),
    "autocast": Kind(
        guard="autocast(cpu)_enabled",
        says="Make every call inside `torch.autocast`, or every call outside",
        function=plain,
        calls=((X,), (Under(lambda: torch.autocast("cpu")), X)),
        followed=((plain, ((Under(lambda: torch.autocast("cpu")), X),) * 2, {}),),
    ),
    "autocast dtype": Kind(
        guard="autocast(cpu)_dtype",
        says="Use one dtype for `torch.autocast`",
        function=plain,
        calls=tuple((Under(functools.partial(torch.autocast, "cpu", dtype)), X) for dtype in (torch.bfloat16, torch.float16)),
        followed=((plain, ((Under(lambda: torch.autocast("cpu", torch.bfloat16)), X),) * 2, {}),),
    ),
    "default dtype": Kind(
        guard="default_dtype",
        says="Set `torch.set_default_dtype` once, before the first call",
        function=plain,
        calls=((X,), (Before(lambda: torch.set_default_dtype(torch.float64)), X)),
        followed=((plain, ((Before(lambda: torch.set_default_dtype(torch.float64)), X), (X,)), {}),),
    ),
    "deterministic": Kind(
        guard="deterministic_algorithms",
        says="Set `torch.use_deterministic_algorithms` once, before the first call",
        function=plain,
        calls=((X,), (Before(lambda: torch.use_deterministic_algorithms(mode=True)), X)),
        followed=((plain, ((Before(lambda: torch.use_deterministic_algorithms(mode=True)), X), (X,)), {}),),
    ),
    "threads": Kind(
        guard="num_threads",
        says="Set `torch.set_num_threads` once, before the first call",
        function=plain,
        calls=((X,), (Before(lambda: torch.set_num_threads(torch.get_num_threads() + 1)), X)),
        followed=((plain, ((Before(lambda: torch.set_num_threads(2)), X), (X,)), {}),),
    ),
    "int": Kind(
        guard="n == 2",
        says="Compile with `dynamic=True`, or pass `n` as a tensor, unless it is a size",
        function=times,
        calls=((X, 2), (X, 3)),
        followed=((times, ((X, 2), (X, 3)), DYNAMIC), (times, ((X, torch.tensor(2)), (X, torch.tensor(3))), {})),
    ),
    "default argument": Kind(
        guard="n == 2",
        says="Compile with `dynamic=True`, or pass `n` as a tensor",
        function=times,
        calls=((X,), (X, 5)),
        followed=((times, ((X,), (X, 5)), DYNAMIC), (times, ((X, torch.tensor(2)), (X, torch.tensor(5))), {})),
    ),
    "int and float": Kind(
        guard="n == 2",
        says="Pass `n` as a tensor, unless it is a size",
        function=times,
        calls=((X, 2), (X, 2.5)),
        followed=((times, ((X, torch.tensor(2.0)), (X, torch.tensor(2.5))), {}),),
    ),
    "float": Kind(
        guard="n == 2.5",
        says="Pass `n` as a tensor, or compile with `dynamic=True`",
        function=times,
        calls=((X, 2.5), (X, 3.5)),
        followed=((times, ((X, torch.tensor(2.5)), (X, torch.tensor(3.5))), {}), (times, ((X, 2.5), (X, 3.5)), DYNAMIC)),
    ),
    "bool": Kind(
        guard="mode == True",
        says="Call with one value of `mode`, or write a separate function for each",
        function=by_flag,
        calls=((X, True), (X, False)),
        followed=((by_flag, ((X, True), (X, True)), {}),),
    ),
    "string": Kind(
        guard="mode == 'sine'",
        says="Call with one value of `mode`, or write a separate function for each",
        function=by_flag,
        calls=((X, "sine"), (X, "cosine")),
        followed=((by_flag, ((X, "sine"), (X, "sine")), {}),),
    ),
    "enum": Kind(
        guard="___check_obj_id(mode",
        says="Pass the same object for `mode` every time",
        function=by_flag,
        calls=((X, Color.RED), (X, Color.BLUE)),
        followed=((by_flag, ((X, Color.RED), (X, Color.RED)), {}),),
    ),
    "None": Kind(
        guard="expected type of 'y'",
        says="Pass a tensor for `y` every time: None is compiled separately",
        function=added,
        calls=((X, X + 1), (X, None)),
        followed=((added, ((X, X + 1), (X, torch.zeros(3))), {}),),
    ),
    "tensor and number": Kind(
        guard="expected type of 'n'",
        says="Pass the same kind of object for `n` every time",
        function=times,
        calls=((X, torch.tensor(2.0)), (X, 2.0)),
        followed=((times, ((X, torch.tensor(2.0)), (X, torch.tensor(2.0))), {}),),
    ),
    "length of a list": Kind(
        guard="len(items) == 2",
        says="Pass `items` with the same number of items every time, or its items as one tensor",
        function=summed,
        calls=((X, [X, X + 1]), (X, [X, X + 1, X + 2])),
        followed=(
            (summed, ((X, [X + 1, X + 2]), (X, [X + 3, X + 4])), {}),
            (summed_tensor, tuple((X, torch.ones(count, 3)) for count in (2, 3, 4)), DYNAMIC),
        ),
    ),
    "keys": Kind(
        guard="dict.keys(items)",
        says="Pass `items` with the same keys in the same order every time",
        function=summed,
        calls=((X, {"a": X, "b": X + 1}), (X, {"b": X + 1, "a": X})),
        followed=((summed, ((X, {"a": X, "b": X + 1}), (X, {"a": X, "b": X + 2})), {}),),
    ),
    "number of keys": Kind(
        guard="len(items) != 1",
        says="Pass `items` with the same keys every time",
        function=summed,
        calls=((X, {"a": X + 1}), (X, {"a": X + 1, "b": X + 2})),
        followed=((summed, ((X, {"a": X + 1}), (X, {"a": X + 2})), {}),),
    ),
    "keyword arguments": Kind(
        guard="len(kwargs) != 1",
        says="Pass the same keyword arguments every time",
        function=keywords,
        calls=((X, Named({"a": X + 1})), (X, Named({"a": X + 1, "b": X + 2}))),
        followed=((keywords, ((X, Named({"a": X + 1})), (X, Named({"a": X + 2}))), {}),),
    ),
    "class of an argument": Kind(
        guard="___check_type_id(items",
        says="Pass an object of the same class for `items` every time",
        function=summed,
        calls=((X, [X, X + 1]), (X, (X, X + 1))),
        followed=((summed, ((X, [X, X + 1]), (X, [X, X + 2])), {}),),
    ),
    "function": Kind(
        guard="___check_obj_id(f",
        says="Pass the same object for `f` every time: its identity",
        function=applied,
        calls=((X, torch.sin), (X, torch.cos)),
        followed=((applied, ((X, torch.sin), (X, torch.sin)), {}),),
    ),
    "lambda": Kind(
        guard="f.__code__",
        says="Pass the same object for `f` every time, created once and not on every call",
        function=applied,
        calls=((X, lambda x: x * 2), (X, lambda x: x * 2)),
        followed=((applied, ((X, KEPT), (X, KEPT)), {}),),
    ),
    "closure": Kind(
        guard="n == 2",
        says="Compile with `dynamic=True`, or pass `n` as a tensor",
        function=NUMBER,
        calls=((X,), (NUMBER_CHANGES, X)),
        followed=((NUMBER_AGAIN, ((X,), (NUMBER_CHANGES_AGAIN, X)), DYNAMIC), (TENSOR, ((X,), (TENSOR_CHANGES, X)), {})),
    ),
    "field of an object": Kind(
        guard="config.scale == 2.5",
        says="Pass `config.scale` as a tensor, or compile with `dynamic=True`",
        function=scaled,
        calls=((X, SimpleNamespace(scale=2.5)), (X, SimpleNamespace(scale=3.5))),
        followed=(
            (scaled, ((X, SimpleNamespace(scale=torch.tensor(2.5))), (X, SimpleNamespace(scale=torch.tensor(3.5)))), {}),
            (scaled, ((X, SimpleNamespace(scale=2.5)), (X, SimpleNamespace(scale=3.5))), DYNAMIC),
        ),
    ),
    "global": Kind(
        guard="G['SCALE'] == 2",
        says="Make the global `SCALE` a tensor",
        function=by_global,
        calls=((X,), (Before(lambda: globals().update(SCALE=3)), X)),
        followed=(
            (
                by_global,
                tuple((Before(functools.partial(globals().update, SCALE=torch.tensor(by))), X) for by in (2, 3)),
                {},
            ),
        ),
    ),
    "global string": Kind(
        guard="G['MODE'] == 'sine'",
        says="Call with one value of `MODE`, or write a separate function for each",
        function=by_global_flag,
        calls=((X,), (Before(lambda: globals().update(MODE="cosine")), X)),
        followed=((by_global_flag, ((X,), (X,)), {}),),
    ),
    "number of a module": Kind(
        guard="self.by == 2.5",
        says="Pass `self.by` as a tensor, or compile with `dynamic=True`",
        function=FLOAT,
        calls=on(FLOAT, lambda net: setattr(net, "by", 3.5)),
        followed=(
            (FLOAT_TENSOR, on(FLOAT_TENSOR, lambda net: setattr(net, "by", torch.tensor(3.5))), {}),
            (FLOAT_DYNAMIC, on(FLOAT_DYNAMIC, lambda net: setattr(net, "by", 3.5)), DYNAMIC),
        ),
    ),
    "counter": Kind(
        guard="self.by == 0",
        says="Make `self.by` a tensor, as a buffer of the module, or set `torch._dynamo.config.allow_unspec_int_on_nn_module = True`, "
        "which still compiles 0 and 1 separately",
        function=COUNTER,
        calls=((X,), (X,)),
        followed=((TENSOR_COUNTER, ((X,), (X,), (X,)), {}),),
    ),
    "mode of a module": Kind(
        guard="training == True",
        says="Keep `self.drop` in one mode, `train()` or `eval()`, for all calls: each mode is compiled separately",
        function=MODAL,
        calls=on(MODAL, nn.Module.eval),
        followed=((MODAL_KEPT, ((X,), (X,)), {}),),
    ),
    "number of layers": Kind(
        guard="len(self._modules['layers']._modules)",
        says="Keep the same modules in `self.layers`",
        function=GROWING,
        calls=on(GROWING, lambda net: net.layers.append(nn.Linear(3, 3))),
        followed=((GROWN, ((X,), (X,)), {}),),
    ),
    "class of a layer": Kind(
        guard="___check_type_id(self._modules['linear']",
        says="Keep an object of the same class in `self.linear` every time",
        function=SWAPPED,
        calls=on(SWAPPED, lambda net: setattr(net, "linear", nn.Identity())),
        followed=((SWAPPED_ALIKE, on(SWAPPED_ALIKE, lambda net: setattr(net, "linear", nn.Linear(3, 3))), {}),),
    ),
    "same tensor": Kind(
        guard="Duplicate tensors",
        says="Pass different tensors for `x`, `y`, or the same one every time",
        function=added,
        calls=((X, X + 1), (X, X)),
        followed=((added, ((X, X + 1), (X, X.clone())), {}), (added, ((X, X), (X, X)), {})),
    ),
    "equal sizes": Kind(
        guard="size()[0] == ",
        says="Let `",
        function=joined,
        calls=((torch.ones(4), torch.ones(4)), (torch.ones(4), torch.ones(6))),
        options=DYNAMIC,
        followed=((joined, ((torch.ones(4), torch.ones(5)), (torch.ones(4), torch.ones(6)), (torch.ones(4), torch.ones(4))), DYNAMIC),),
    ),
    "equal sizes and 1": Kind(
        guard="size()[0] == ",
        says="Nothing to change, unless calls with size 0 or 1 in dimension 0 of `y` can be avoided",
        function=added,
        calls=((torch.ones(4), torch.ones(4)), (torch.ones(4), torch.ones(1))),
        options=DYNAMIC,
        followed=((added, ((torch.ones(4), torch.ones(4)), (torch.ones(5), torch.ones(5))), DYNAMIC),),
    ),
    "condition on a size": Kind(
        guard="% 2) == 0",
        says="Call with sizes for which `(x.size()[0] % 2) == 0` is always true or always false",
        function=even,
        calls=((torch.ones(4),), (torch.ones(5),)),
        options=DYNAMIC,
        followed=((even, ((torch.ones(4),), (torch.ones(6),)), DYNAMIC),),
    ),
    "array": Kind(
        guard="dtype mismatch",
        says="Convert `a` to one dtype before the call",
        function=from_numpy,
        calls=((X, np.ones(3, np.float32)), (X, np.ones(3, np.float64))),
        followed=((from_numpy, ((X, np.ones(3, np.float32)), (X, np.zeros(3, np.float32))), {}),),
    ),
    "size as an argument": Kind(
        guard="size[0] == 2",
        says="Compile with `dynamic=True`, or pass `size[0]` as a tensor, unless it is a size",
        function=to_dtype,
        calls=((torch.ones(16), (2, 8)), (torch.ones(16), (4, 4))),
        followed=((to_dtype, ((torch.ones(16), (2, 8)), (torch.ones(16), (4, 4))), DYNAMIC),),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_recompile_names_its_guard_and_is_gone_once_its_advice_is_followed(name: str) -> None:
    kind = KINDS[name]
    first = recompiles(kind.function, kind.calls, kind.options)[0]
    assert kind.guard in (first.guard or "")
    assert (first.advice or "").startswith(kind.says)
    assert "___" not in (first.advice or "")
    for function, calls, options in kind.followed:
        assert [item.guard for item in recompiles(function, calls, options)] == []


def counted_before_a_break(x: torch.Tensor) -> torch.Tensor:
    global CALLS  # noqa: PLW0603 - what users do
    CALLS += 1
    torch._dynamo.graph_break()
    return x.sin()


def test_code_without_a_graph_is_compiled_again_too() -> None:
    """What stands before the first break reaches no backend, and takes as long to compile at every call."""
    lens = ortlens.explain(counted_before_a_break, backend="eager", calls=6)(X)
    assert [item.compile_id.partition("/")[2] for item in lens.captured().recompiles] == ["1", "2", "3", "4", "5"]
    assert all((item.dynamo_ns or 0) > 0 for item in lens.captured().recompiles)
    overview = overview_of(lens.captured())
    assert overview.graph_count == 1
    assert overview.ledger is None or not overview.ledger.is_measured  # no call that compiles is comparable
    assert "not measured; 6 calls were made, and each compiled code" in lens.summary()
    first = looks_of(overview)[0]
    assert (first.subject, first.count, first.recompile_ns) == ("recompile", 5, sum(overview.recompile_ns.values()))
    assert "Make the global `CALLS` a tensor" in (first.advice or "")


def test_the_calls_that_compiled_are_those_that_were_made() -> None:
    said = " ".join(str(ortlens.explain(counted_before_a_break, calls=2)(X).summary()).split())
    assert "not measured; 2 calls were made, and each compiled code" in said
    assert "explain called it 2 times" in said


def test_calls_past_the_limit_do_not_compile() -> None:
    lens = ortlens.explain(counted_before_a_break, backend="eager", calls=14)(X)
    assert any("recompile" in item.reason.lower() for item in lens.captured().breaks)
    assert "each compiled" not in lens.summary()


def test_two_compiled_functions_of_one_code_are_compiled_again() -> None:
    """Why nobody is told to compile a function once for each value of a flag: PyTorch keeps what it compiled with the code."""
    lens = Lens("eager")
    for mode in ("sine", "cosine"):
        torch.compile(by_flag, backend=lens)(X, mode)
    assert len(lens.recompiles) == 1
