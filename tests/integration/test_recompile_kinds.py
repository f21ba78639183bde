"""Kinds of recompiles: each names its guard and its advice, and none is left once the program is changed as advised."""

# ruff: noqa: ANN401 - what is called takes anything

from __future__ import annotations

import enum
import functools
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from ortlens.analysis.catalogue import advise
from ortlens.analysis.overview import overview_of
from ortlens.analysis.recommendations import looks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortlens.trace.records import Recompile

X = torch.ones(3)
SCALE: Any = 2
MODE = "sine"
CALLS = 0


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


def applied(x: torch.Tensor, f: Any) -> torch.Tensor:
    return torch.add(f(x), 1)


def scaled(x: torch.Tensor, config: Any) -> torch.Tensor:
    return torch.mul(x, config.scale)


def keywords(x: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
    return summed(x, kwargs)


def even(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] % 2 == 0 else x + 2


def reshaped(x: torch.Tensor, size: Any) -> torch.Tensor:
    return x.reshape(size)


def from_numpy(x: torch.Tensor, a: Any) -> torch.Tensor:
    return x + torch.from_numpy(a)


class Kwargs(dict[str, Any]):
    """Keyword arguments of a call, its last argument."""


class Call(NamedTuple):
    """A call: its arguments, what happens before it, and its context."""

    args: tuple[Any, ...]
    before: Callable[[], object] = bool
    context: Any = None


def calls(*args: tuple[Any, ...]) -> tuple[Call, ...]:
    return tuple(Call(each) for each in args)


def changing(change: Callable[[], object], *args: Any) -> tuple[Call, ...]:
    """Two calls with a change before the second."""
    return Call(args or (X,)), Call(args or (X,), before=change)


def recompiles(function: Any, made: tuple[Call, ...], *, dynamic: bool | None = None) -> tuple[Recompile, ...]:
    torch._dynamo.reset()
    lens = Lens("eager")
    compiled = torch.compile(function, backend=lens, dynamic=dynamic)
    for args, before, context in made:
        before()
        *given, last = args
        with ExitStack() as stack:
            if context is not None:
                stack.enter_context(context())
            compiled(*given, **last) if isinstance(last, Kwargs) else compiled(*args)
    return lens.captured().recompiles


def marked(*sizes: int) -> tuple[Call, ...]:
    tensors = [torch.ones(size) for size in sizes]
    torch._dynamo.mark_dynamic(tensors[0], 0)
    return calls(*((x,) for x in tensors))


def closure(n: Any) -> tuple[Any, tuple[Call, ...]]:
    """A function that multiplies by a variable around it, and calls that change the variable."""

    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, n)

    def change() -> None:
        nonlocal n
        n = n + 3

    return inner, changing(change)


def of_module(module: Net, change: Callable[[Net], object] = bool) -> tuple[Any, tuple[Call, ...]]:
    return module, changing(lambda: change(module))


def number_of_module(start: Any, then: Any) -> tuple[Any, tuple[Call, ...]]:
    return of_module(Net(start), lambda net: setattr(net, "by", then))


def set_global(**values: Any) -> Callable[[], object]:
    return functools.partial(globals().update, **values)


with torch.inference_mode():
    INFERENCE = torch.ones(3)

WIDE, NARROW = torch.ones(4, 5), torch.ones(5, 4).t()
SIZES = calls(*((torch.ones(size),) for size in (3, 4, 5)))
RESHAPED = calls((torch.ones(16), (2, 8)), (torch.ones(16), (4, 4)))
bfloat16, float16 = (functools.partial(torch.autocast, "cpu", dtype) for dtype in (torch.bfloat16, torch.float16))


class Kind(NamedTuple):
    """Calls that compile a function twice.

    Attributes:
        guard: Part of the guard that fails.
        advice: Beginning of the advice.
        function: The function.
        calls: Its calls.
        dynamic: As `torch.compile` takes it.
    """

    guard: str
    advice: str
    function: Any
    calls: tuple[Call, ...]
    dynamic: bool | None = None


ONE_VALUE = "Call with one value of `{}`, or write a separate function for each"
KINDS = {
    "size": Kind(
        "size mismatch",
        "Call `torch._dynamo.mark_dynamic(x, 0)` before the first call, or compile with `dynamic=True`",
        plain,
        SIZES,
        dynamic=False,
    ),
    "size of 1": Kind(
        "size mismatch",
        "Nothing to change, unless calls with size 0 or 1 in dimension 0 of `x` can be avoided",
        plain,
        calls((torch.ones(4),), (torch.ones(1),)),
    ),
    "rank": Kind("rank mismatch", "Call with the same number of dimensions for `x`", plain, calls((X,), (torch.ones(3, 3),))),
    "dtype": Kind("dtype mismatch", "Convert `x` to one dtype before the call", plain, calls((X,), (X.double(),))),
    "stride": Kind("stride mismatch", "Pass `x` in one memory layout, for example as `x.contiguous()`", plain, calls((WIDE,), (NARROW,))),
    "requires_grad": Kind(
        "requires_grad mismatch",
        "Call with `x.requires_grad` the same every time, or with `x.detach()`",
        plain,
        calls((X,), (X.clone().requires_grad_(),)),
    ),
    "requires_grad of a weight": Kind(
        "requires_grad mismatch", "Keep `self.linear.", *of_module(Linear(), lambda net: net.requires_grad_(requires_grad=False))
    ),
    "grad mode": Kind(
        "grad_mode",
        "Make every call in the same mode, with or without `torch.no_grad()`",
        plain,
        (Call((X,)), Call((X,), context=torch.no_grad)),
    ),
    "inference tensor": Kind(
        "dispatch key set", "Create `x` always under `torch.inference_mode()` or never", plain, calls((X,), (INFERENCE,))
    ),
    "autocast": Kind(
        "autocast(cpu)_enabled",
        "Make every call inside `torch.autocast`, or every call outside",
        plain,
        (Call((X,)), Call((X,), context=bfloat16)),
    ),
    "autocast dtype": Kind(
        "autocast(cpu)_dtype", "Use one dtype for `torch.autocast`", plain, (Call((X,), context=bfloat16), Call((X,), context=float16))
    ),
    "default dtype": Kind(
        "default_dtype",
        "Set `torch.set_default_dtype` once, before the first call",
        plain,
        changing(lambda: torch.set_default_dtype(torch.float64)),
    ),
    "deterministic": Kind(
        "deterministic_algorithms",
        "Set `torch.use_deterministic_algorithms` once, before the first call",
        plain,
        changing(lambda: torch.use_deterministic_algorithms(mode=True)),
    ),
    "threads": Kind(
        "num_threads",
        "Set `torch.set_num_threads` once, before the first call",
        plain,
        changing(lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    ),
    "int": Kind("n == 2", "Compile with `dynamic=True`, or pass `n` as a tensor, unless it is a size", times, calls((X, 2), (X, 3))),
    "default argument": Kind("n == 2", "Compile with `dynamic=True`, or pass `n` as a tensor", times, calls((X,), (X, 5))),
    "int and float": Kind("n == 2", "Pass `n` as a tensor, unless it is a size", times, calls((X, 2), (X, 2.5))),
    "float": Kind("n == 2.5", "Pass `n` as a tensor, or compile with `dynamic=True`", times, calls((X, 2.5), (X, 3.5))),
    "bool": Kind("mode == True", ONE_VALUE.format("mode"), by_flag, calls((X, True), (X, False))),
    "string": Kind("mode == 'sine'", ONE_VALUE.format("mode"), by_flag, calls((X, "sine"), (X, "cosine"))),
    "enum": Kind("___check_obj_id(mode", "Pass the same object for `mode` every time", by_flag, calls((X, Color.RED), (X, Color.BLUE))),
    "None": Kind(
        "expected type of 'y'", "Pass a tensor for `y` every time: None is compiled separately", added, calls((X, X + 1), (X, None))
    ),
    "tensor and number": Kind(
        "expected type of 'n'", "Pass the same kind of object for `n` every time", times, calls((X, torch.tensor(2.0)), (X, 2.0))
    ),
    "length of a list": Kind(
        "len(items) == 2",
        "Pass `items` with the same number of items every time, or its items as one tensor",
        summed,
        calls((X, [X, X + 1]), (X, [X, X + 1, X + 2])),
    ),
    "keys": Kind(
        "dict.keys(items)",
        "Pass `items` with the same keys in the same order every time",
        summed,
        calls((X, {"a": X, "b": X + 1}), (X, {"b": X + 1, "a": X})),
    ),
    "number of keys": Kind(
        "len(items) != 1", "Pass `items` with the same keys every time", summed, calls((X, {"a": X + 1}), (X, {"a": X + 1, "b": X + 2}))
    ),
    "keyword arguments": Kind(
        "len(kwargs) != 1",
        "Pass the same keyword arguments every time",
        keywords,
        calls((X, Kwargs(a=X + 1)), (X, Kwargs(a=X + 1, b=X + 2))),
    ),
    "class of an argument": Kind(
        "___check_type_id(items", "Pass an object of the same class for `items` every time", summed, calls((X, [X, X + 1]), (X, (X, X + 1)))
    ),
    "class of a module": Kind(
        "___check_type_id(f", "Pass an object of the same class for `f` every time", applied, calls((X, nn.ReLU()), (X, nn.Tanh()))
    ),
    "function": Kind(
        "___check_obj_id(f", "Pass the same object for `f` every time: its identity", applied, calls((X, torch.sin), (X, torch.cos))
    ),
    "lambda": Kind(
        "f.__code__",
        "Pass the same object for `f` every time, created once and not on every call",
        applied,
        calls((X, lambda x: x * 2), (X, lambda x: x * 2)),
    ),
    "closure": Kind("n == 2", "Compile with `dynamic=True`, or pass `n` as a tensor", *closure(2)),
    "field of an object": Kind(
        "config.scale == 2.5",
        "Pass `config.scale` as a tensor, or compile with `dynamic=True`",
        scaled,
        calls((X, SimpleNamespace(scale=2.5)), (X, SimpleNamespace(scale=3.5))),
    ),
    "global": Kind("G['SCALE'] == 2", "Make the global `SCALE` a tensor", by_global, changing(set_global(SCALE=3))),
    "global string": Kind("G['MODE'] == 'sine'", ONE_VALUE.format("MODE"), by_global_flag, changing(set_global(MODE="cosine"))),
    "number of a module": Kind("self.by == 2.5", "Pass `self.by` as a tensor, or compile with `dynamic=True`", *number_of_module(2.5, 3.5)),
    "counter": Kind(
        "self.by == 0",
        "Make `self.by` a tensor, as a buffer of the module, or set `torch._dynamo.config.allow_unspec_int_on_nn_module = True`, "
        "which still compiles 0 and 1 separately",
        Counting(0),
        calls((X,), (X,)),
    ),
    "mode of a module": Kind(
        "training == True",
        "Keep `self.drop` in one mode, `train()` or `eval()`, for all calls: each mode is compiled separately",
        *of_module(Dropping(), nn.Module.eval),
    ),
    "number of layers": Kind(
        "len(self._modules['layers']._modules)",
        "Keep the same modules in `self.layers`",
        *of_module(Layers(), lambda net: net.layers.append(nn.Linear(3, 3))),
    ),
    "class of a layer": Kind(
        "___check_type_id(self._modules['linear']",
        "Keep an object of the same class in `self.linear` every time",
        *of_module(Linear(), lambda net: setattr(net, "linear", nn.Identity())),
    ),
    "same tensor": Kind(
        "Duplicate tensors", "Pass different tensors for `x`, `y`, or the same one every time", added, calls((X, X + 1), (X, X))
    ),
    "equal sizes": Kind(
        "size()[0] == ", "Let `", joined, calls((torch.ones(4), torch.ones(4)), (torch.ones(4), torch.ones(6))), dynamic=True
    ),
    "equal sizes and 1": Kind(
        "size()[0] == ",
        "Nothing to change, unless calls with size 0 or 1 in dimension 0 of `y` can be avoided",
        added,
        calls((torch.ones(4), torch.ones(4)), (torch.ones(4), torch.ones(1))),
        dynamic=True,
    ),
    "condition on a size": Kind(
        "% 2) == 0",
        "Call with sizes for which `(x.size()[0] % 2) == 0` is always true or always false",
        even,
        calls((torch.ones(4),), (torch.ones(5),)),
        dynamic=True,
    ),
    "array": Kind(
        "dtype mismatch",
        "Convert `a` to one dtype before the call",
        from_numpy,
        calls((X, np.ones(3, np.float32)), (X, np.ones(3, np.float64))),
    ),
    "size as an argument": Kind(
        "size[0] == 2", "Compile with `dynamic=True`, or pass `size[0]` as a tensor, unless it is a size", reshaped, RESHAPED
    ),
}
NUMBERS = calls((X, 2), (X, 3), (X, 4))
FLOATS = calls((X, 2.5), (X, 3.5), (X, 4.5))
TENSORS = calls((X, torch.tensor(2)), (X, torch.tensor(3)))
FIELDS = tuple(calls(*((X, SimpleNamespace(scale=scale)) for scale in scales)) for scales in ((2.5, 3.5), torch.tensor([2.5, 3.5])))
EQUAL_SIZES = calls(*((torch.ones(4), torch.ones(size)) for size in (5, 6, 4)))
FOLLOWED: dict[str, tuple[Any, tuple[Call, ...], bool | None]] = {
    "sizes that are marked": (plain, marked(3, 4, 5), None),
    "sizes that are dynamic": (plain, SIZES, True),
    "one memory layout": (plain, calls((WIDE,), (NARROW.contiguous(),)), None),
    "without gradients": (plain, calls((X,), (X.clone().requires_grad_().detach(),)), None),
    "numbers that are dynamic": (times, NUMBERS, True),
    "floats that are dynamic": (times, FLOATS, True),
    "numbers as tensors": (times, TENSORS, False),
    "a default that is dynamic": (times, calls((X,), (X, 5)), True),
    "items as one tensor": (lambda x, items: x + items.sum(0), calls(*((X, torch.ones(count, 3)) for count in (2, 3, 4))), True),
    "a closure that is dynamic": (*closure(2), True),
    "a closure of a tensor": (*closure(torch.tensor(2)), None),
    "a field that is dynamic": (scaled, FIELDS[0], True),
    "a field that is a tensor": (scaled, FIELDS[1], None),
    "a global tensor": (by_global, tuple(Call((X,), before=set_global(SCALE=torch.tensor(by))) for by in (2, 3)), None),
    "a module's number as a tensor": (*number_of_module(torch.tensor(2.5), torch.tensor(3.5)), None),
    "a module's number that is dynamic": (*number_of_module(2.5, 3.5), True),
    "a counter that is a tensor": (Counting(torch.tensor(0)), calls(*[(X,)] * 11), None),
    "a layer of the same class": (*of_module(Linear(), lambda net: setattr(net, "linear", nn.Linear(3, 3))), None),
    "other sizes in the first call": (joined, EQUAL_SIZES, True),
    "a size that is dynamic": (reshaped, RESHAPED, True),
}
"""Programs changed as advised, but for those that only make the same call again."""


@pytest.mark.parametrize("name", KINDS)
def test_a_recompile_names_its_guard_and_its_advice(name: str) -> None:
    kind = KINDS[name]
    first = recompiles(kind.function, kind.calls, dynamic=kind.dynamic)[0]
    assert kind.guard in (first.guard or "")
    assert (first.advice or "").startswith(kind.advice)
    assert "___" not in (first.advice or "")


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_program_changed_as_advised_is_not_recompiled(name: str) -> None:
    function, made, dynamic = FOLLOWED[name]
    assert [item.guard for item in recompiles(function, made, dynamic=dynamic)] == []


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
    assert "6 calls were made, and each compiled code" in lens.summary()
    first = looks_of(overview)[0]
    assert (first.subject, first.count, first.recompile_ns) == ("recompile", 5, sum(overview.recompile_ns.values()))
    assert first.advice == advise("make_tensor", name="CALLS", outside=True)


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
