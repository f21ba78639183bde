"""Recompiles have the advice that fits their guard and their values, and none is left once the program is changed as advised."""

# ruff: noqa: ANN401 - what is called takes anything

import dataclasses
import enum
import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from ortlens.analysis.answers.overview import compilation_count
from ortlens.analysis.ledger import ledger_totals
from ortlens.analysis.problems.advice import advice_of
from ortlens.analysis.problems.catalogue import advise
from ortlens.analysis.problems.stream import problems_of
from ortlens.analysis.timing import recompile_times
from ortlens.trace.records import Break, Capture, Recompile

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


class Picking(Net):
    def forward(self, x: torch.Tensor) -> Any:
        return [self.linear, self.drop][self.by](x).sin()


class Dropping(Net):
    def forward(self, x: torch.Tensor) -> Any:
        return self.drop(x) + 1


class Called(nn.Module):
    """Has a number of its class until the first call sets one of its own."""

    calls = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x * self.calls


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


def clamped(x: torch.Tensor, n: float) -> torch.Tensor:
    return x.clamp(max=n)


def leaking(x: torch.Tensor, n: float) -> torch.Tensor:
    return torch.nn.functional.leaky_relu(x, n)


def times(x: torch.Tensor, n: Any = 2) -> torch.Tensor:
    return torch.mul(x, n)


def first_rows(x: torch.Tensor, n: int) -> torch.Tensor:
    return x[:n].sin()


def one_row(x: torch.Tensor, n: int) -> torch.Tensor:
    return x[n].sin()


def by_number(x: torch.Tensor, n: int) -> torch.Tensor:
    return x.sin() if n > 2 else x.cos()


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


def captured(function: Any, made: tuple[Call, ...], *, dynamic: bool | None = None) -> Capture:
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
    return lens.captured()


def marked(*sizes: Any, dims: Any = 0) -> tuple[Call, ...]:
    tensors = [torch.ones(size) for size in sizes]
    torch._dynamo.mark_dynamic(tensors[0], dims)
    return calls(*((x,) for x in tensors))


def both_marked(*sizes: int) -> tuple[Call, ...]:
    return calls(*((x.args[0], n.args[0]) for x, n in zip(marked(*sizes), marked(*sizes), strict=True)))


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


@contextmanager
def high_precision() -> Iterator[None]:
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


class Kind(NamedTuple):
    """Calls that compile a function twice.

    Attributes:
        told: The advice: its kind, then its parameters; a star stands for the rest, which depends on the order of guards.
        function: The function.
        calls: Its calls.
        dynamic: As `torch.compile` takes it.
    """

    told: str
    function: Any
    calls: tuple[Call, ...]
    dynamic: bool | None = None


KINDS = (
    Kind("mark_dynamic name=x dim=0", plain, SIZES, dynamic=False),
    Kind(
        "mark_dynamic name=x dim=[0, 1]", plain, calls(*((torch.ones(a, b),) for a, b in ((3, 4), (3, 5), (6, 5), (7, 8)))), dynamic=False
    ),
    Kind("mark_dynamic name=x dim=[0, 1]", plain, calls((torch.ones(3, 4),), (torch.ones(5, 6),)), dynamic=False),  # one guard names one
    Kind(
        "mark_dynamic name=n dim=0 others=`torch._dynamo.mark_dynamic(x, 0)`",
        times,
        calls(*((torch.ones(size), torch.ones(size)) for size in (3, 4))),
        dynamic=False,
    ),
    Kind("expected_size name=x dim=0", plain, calls((torch.ones(4),), (torch.ones(1),))),
    Kind("same_rank name=x", plain, calls((X,), (torch.ones(3, 3),))),
    Kind("one_dtype name=x", plain, calls((X,), (X.double(),))),
    Kind("one_dtype name=a", from_numpy, calls((X, np.ones(3, np.float32)), (X, np.ones(3, np.float64)))),
    Kind("one_layout name=x", plain, calls((WIDE,), (NARROW,))),
    Kind("pass_same_requires_grad name=x", plain, calls((X,), (X.clone().requires_grad_(),))),
    Kind("same_requires_grad name=self.linear.*", *of_module(Linear(), lambda net: net.requires_grad_(requires_grad=False))),
    Kind("one_grad_mode", plain, (Call((X,)), Call((X,), context=torch.no_grad))),
    Kind("one_inference_mode name=x", plain, calls((X,), (INFERENCE,))),
    Kind("one_autocast", plain, (Call((X,)), Call((X,), context=bfloat16))),
    Kind("one_autocast_dtype", plain, (Call((X,), context=bfloat16), Call((X,), context=float16))),
    Kind("set_once name=torch.set_default_dtype", plain, changing(lambda: torch.set_default_dtype(torch.float64))),
    Kind("set_once name=torch.use_deterministic_algorithms", plain, changing(lambda: torch.use_deterministic_algorithms(mode=True))),
    Kind("set_once name=torch.set_num_threads", plain, changing(lambda: torch.set_num_threads(torch.get_num_threads() + 1))),
    # numbers, by where they come from
    Kind("pass_as_tensor name=n dynamic sized", times, calls((X, 2), (X, 3))),
    Kind("pass_as_tensor name=n dynamic sized", times, calls((X,), (X, 5))),
    Kind("pass_as_tensor name=n dynamic sized", *closure(2)),
    Kind("pass_as_tensor name=n sized", times, calls((X, 2), (X, 2.5))),
    Kind("pass_as_tensor name=n floats", times, calls((X, 2.5), (X, 3.5))),
    Kind("pass_as_tensor name=n", clamped, calls((X, 2.5), (X, 3.5))),  # `dynamic=True` would change nothing
    Kind("one_value name=n", leaking, calls((X, 0.1), (X, 0.2))),  # neither would a tensor, except for a graph break
    Kind("expected_attribute name=self.calls", Called(), calls((X,), (X,))),
    Kind("pass_as_tensor name=config.scale floats", scaled, calls((X, SimpleNamespace(scale=2.5)), (X, SimpleNamespace(scale=3.5)))),
    Kind("pass_as_tensor name=self.by floats", *number_of_module(2.5, 3.5)),
    Kind("pass_as_tensor name=size[0] dynamic sized", reshaped, RESHAPED),
    Kind("expected_number name=n", lambda x, n: x + torch.zeros(n, 3), calls((X, 1), (X, 2)), dynamic=True),
    Kind("size_as_number name=n", first_rows, calls((WIDE, 2), (WIDE, 3))),
    Kind("few_indexes name=self.by kept", *of_module(Picking(0), lambda net: setattr(net, "by", 1))),
    Kind("few_indexes name=n", one_row, calls((WIDE, 2), (WIDE, 3))),
    Kind("one_value name=n flag", by_number, calls((X, 2), (X, 3))),
    Kind("make_tensor name=SCALE outside", by_global, changing(set_global(SCALE=3))),
    Kind(
        "number_in_buffer name=self.by setting=torch._dynamo.config.allow_unspec_int_on_nn_module = True special",
        Counting(0),
        calls((X,), (X,)),
    ),
    # flags and objects
    Kind("one_value name=mode flag", by_flag, calls((X, True), (X, False))),
    Kind("one_value name=mode", by_flag, calls((X, "sine"), (X, "cosine"))),
    Kind("one_value name=MODE", by_global_flag, changing(set_global(MODE="cosine"))),
    Kind("same_object name=mode", by_flag, calls((X, Color.RED), (X, Color.BLUE))),
    Kind("same_object name=f", applied, calls((X, torch.sin), (X, torch.cos))),
    Kind("same_object name=f code", applied, calls((X, lambda x: x * 2), (X, lambda x: x * 2))),
    Kind("pass_tensor name=y", added, calls((X, X + 1), (X, None))),
    Kind("same_kind name=n", times, calls((X, torch.tensor(2.0)), (X, 2.0))),
    Kind("same_count name=items", summed, calls((X, [X, X + 1]), (X, [X, X + 1, X + 2]))),
    Kind("same_count name=items", lambda x, items: summed(x.sin(), items), calls((X, []), (X, [X]))),
    Kind("one_set_of_modes", plain, (Call((X,)), Call((X,), context=functools.partial(torch.device, "cpu")))),
    Kind("set_once name=torch.set_float32_matmul_precision", plain, (Call((X,)), Call((X,), context=high_precision))),
    Kind("same_keys name=items ordered", summed, calls((X, {"a": X, "b": X + 1}), (X, {"b": X + 1, "a": X}))),
    Kind("same_keys name=items", summed, calls((X, {"a": X + 1}), (X, {"a": X + 1, "b": X + 2}))),
    Kind("same_keyword_arguments", keywords, calls((X, Kwargs(a=X + 1)), (X, Kwargs(a=X + 1, b=X + 2)))),
    Kind("same_class name=items", summed, calls((X, [X, X + 1]), (X, (X, X + 1)))),
    Kind("same_class name=f", applied, calls((X, nn.ReLU()), (X, nn.Tanh()))),
    # modules
    Kind("one_mode name=self.drop", *of_module(Dropping(), nn.Module.eval)),
    Kind("same_modules name=self.layers", *of_module(Layers(), lambda net: net.layers.append(nn.Linear(3, 3)))),
    Kind("same_class name=self.linear kept", *of_module(Linear(), lambda net: setattr(net, "linear", nn.Identity()))),
    # several tensors
    Kind("different_tensors names=`x`, `y`", added, calls((X, X + 1), (X, X))),
    Kind("differ_at_first names=*", joined, calls((torch.ones(4), torch.ones(4)), (torch.ones(4), torch.ones(6))), dynamic=True),
    Kind("expected_size name=y dim=0", added, calls((torch.ones(4), torch.ones(4)), (torch.ones(4), torch.ones(1))), dynamic=True),
    Kind("same_condition condition=(x.size()[0] % 2) == 0", even, calls((torch.ones(4),), (torch.ones(5),)), dynamic=True),
)
NUMBERS = calls((X, 2), (X, 3), (X, 4))
FLOATS = calls((X, 2.5), (X, 3.5), (X, 4.5))
TENSORS = calls((X, torch.tensor(2)), (X, torch.tensor(3)))
FIELDS = tuple(calls(*((X, SimpleNamespace(scale=scale)) for scale in scales)) for scales in ((2.5, 3.5), torch.tensor([2.5, 3.5])))
EQUAL_SIZES = calls(*((torch.ones(4), torch.ones(size)) for size in (5, 6, 4)))
FOLLOWED: dict[str, tuple[Any, tuple[Call, ...], bool | None]] = {
    "sizes that are marked": (plain, marked(3, 4, 5), None),
    "sizes of two dimensions that are marked": (plain, marked((3, 4), (3, 5), (6, 7), (9, 8), dims=[0, 1]), False),
    "sizes of two arguments that are marked": (times, both_marked(3, 4, 5), False),
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


def told(capture: Capture, item: Break | Recompile) -> str:
    """The advice on it: its kind, then its parameters."""
    advice = advice_of(capture)[item]
    assert advice is not None
    assert advice.sentence() == item.advice
    return " ".join((advice.kind, *(f"{name}={value}" if value else name for name, value in advice.params.items())))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.told)
def test_a_recompile_has_the_advice_that_fits_its_guard(kind: Kind) -> None:
    capture = captured(kind.function, kind.calls, dynamic=kind.dynamic)
    found = told(capture, capture.recompiles[0])
    assert found.startswith(kind.told[:-1]) if kind.told.endswith("*") else found == kind.told
    assert "___" not in found


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_program_changed_as_advised_is_not_recompiled(name: str) -> None:
    function, made, dynamic = FOLLOWED[name]
    assert [item.guard for item in captured(function, made, dynamic=dynamic).recompiles] == []


def counted_before_a_break(x: torch.Tensor) -> torch.Tensor:
    global CALLS  # noqa: PLW0603 - what users do
    CALLS += 1
    if CALLS > 10**6:  # torch 2.15 looks at the number only where something depends on it
        return x
    torch._dynamo.graph_break()
    return x.sin()


def test_code_without_a_graph_is_compiled_again_too() -> None:
    """What stands before the first break reaches no backend, and takes as long to compile at every call."""
    lens = ortlens.explain(counted_before_a_break, backend="eager", calls=6)(X)
    assert [item.compile_id.partition("/")[2] for item in lens.captured().recompiles] == ["1", "2", "3", "4", "5"]
    assert all((item.dynamo_ns or 0) > 0 for item in lens.captured().recompiles)
    found = lens.captured()
    assert compilation_count(found) == 1
    totals = ledger_totals(found)
    assert totals is None or not totals.is_measured  # no call that compiles is comparable
    assert "6 calls were made, and each compiled code" in lens.summary()
    first = problems_of(found)[:3][0]
    assert (first.kind, first.count, first.recompile_ns) == ("recompile", 5, sum(recompile_times(found).values()))
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


TABLES = {size: torch.arange(float(size)) for size in (3, 4, 5, 6)}
OF_TABLES = tuple(Call((torch.ones(size),)) for size in TABLES)


def looked_up(x: torch.Tensor) -> torch.Tensor:
    """Adds what a dictionary holds for the size, which makes the size a constant."""
    return x + TABLES[x.shape[0]]


@pytest.mark.parametrize("dynamic", [None, True])
def test_nobody_is_told_to_mark_a_size_that_the_code_makes_a_constant(*, dynamic: bool | None) -> None:
    capture = captured(looked_up, OF_TABLES, dynamic=dynamic)
    assert [told(capture, row) for row in capture.recompiles] == ["few_sizes name=x dim=0"] * 3
    with pytest.raises(Exception, match="specialized it to be a constant"):  # what marking does
        captured(looked_up, marked(3))


def test_after_a_reset_the_constants_of_another_function_do_not_count() -> None:
    lens = Lens("eager")
    for function, advice in ((looked_up, "few_sizes"), (torch.nn.functional.silu, "mark_dynamic")):
        torch._dynamo.reset()

        def applied_once(x: torch.Tensor, function: Callable[..., Any] = function) -> torch.Tensor:
            made: torch.Tensor = function(x)
            return made

        compiled = torch.compile(applied_once, backend=lens)
        for size in (3, 4):
            compiled(torch.ones(size))
        assert told(lens.captured(), lens.captured().recompiles[-1]).startswith(advice)


def test_a_limit_that_sizes_reached_which_are_constants_does_not_say_mark() -> None:
    with torch._dynamo.config.patch(recompile_limit=2):
        capture = captured(looked_up, OF_TABLES)
    kinds = {told(capture, item).partition(" ")[0] for item in capture.breaks}
    assert "few_sizes" in kinds
    assert "mark_dynamic" not in kinds


@pytest.mark.parametrize(("folder", "advice"), [("site-packages", "unbreak_caller"), ("mine", "one_dtype name=x")])
def test_of_a_librarys_function_that_was_compiled_by_itself_the_graph_break_before_it_is_named(
    folder: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / folder
    package.mkdir()
    name = f"helper_{folder[:4]}"
    (package / f"{name}.py").write_text("def double(x):\n    return x * 2\n", encoding="utf-8")
    monkeypatch.syspath_prepend(package)
    helper = importlib.import_module(name)

    def breaks_in_a_loop(*tensors: torch.Tensor) -> list[torch.Tensor]:
        made = []
        for x in tensors:
            torch._dynamo.graph_break()
            made.append(helper.double(x))
        return made

    capture = captured(breaks_in_a_loop, calls((X, X.double())))
    assert [(row.function, told(capture, row)) for row in capture.recompiles] == [("double", advice)]
    capture = captured(helper.double, calls((X,), (X.double(),)))  # the user calls it
    assert told(capture, capture.recompiles[0]) == "one_dtype name=x"


VALUES: list[tuple[Any, tuple[Call, ...], bool | None, tuple[str, ...]]] = [
    (plain, SIZES, False, ("3", "4", "5")),
    (times, NUMBERS, False, ("2", "3", "4")),
    (times, FLOATS, False, ("2.5", "3.5", "4.5")),
    (times, calls((X, 2), (X, 3.5)), False, ("2", "3.5")),
    (lambda x, sizes: x * len(sizes), calls((X, [2, 3]), (X, [2, 3, 4])), None, ("2", "3")),
    (plain, calls((X,), (X.double(),)), None, ("Float", "Double")),
    (lambda x, n: x + torch.zeros(n, 3), calls((X, 1), (X, 2)), True, ("1", "2")),
    (*of_module(Dropping(), nn.Module.eval), None, ("True", "False")),
    (applied, calls((X, nn.ReLU()), (X, nn.Tanh())), None, ("<class 'ReLU'>", "<class 'Tanh'>")),
]


@dataclasses.dataclass
class Item:
    """Its `__init__` is code that no file has, and is compiled by itself since the graph breaks in it."""

    x: torch.Tensor
    scale: float

    def __post_init__(self) -> None:
        torch._dynamo.graph_break()


def test_of_code_that_was_made_from_a_text_the_line_of_its_caller_is_named() -> None:
    def of_items(x: torch.Tensor, n: float) -> Any:
        item = Item(x * 2, scale=n)
        return item.x * item.scale

    lens = Lens()
    call = torch.compile(of_items, backend=lens)
    for n in (1.5, 2.5):
        call(X, n)
    (made,) = (row for row in lens.captured().recompiles if row.function == "__init__")
    assert (made.file, made.line) == (__file__, of_items.__code__.co_firstlineno + 1)
    assert "<string>" not in f"{lens.summary()}{lens.frames.to_string()}"


def test_values_that_came_are_read_from_the_frame() -> None:
    for function, made, dynamic, values in VALUES:
        rows = captured(function, made, dynamic=dynamic).recompiles
        assert [row.values for row in rows] == [values[:count] for count in range(2, len(values) + 1)]


def test_a_guard_that_always_fails_is_named_with_its_values_and_remedy() -> None:
    capture = captured(Counting(0), calls(*[(X,)] * 11))
    assert len(capture.recompiles) == torch._dynamo.config.recompile_limit - 1
    for number, row in enumerate(capture.recompiles, start=1):
        assert row.guard == f"self.by == {number - 1}"
        assert row.values == tuple(str(n) for n in range(number + 1))
        assert told(capture, row).startswith("number_in_buffer name=self.by")
    (limit,) = capture.breaks
    assert "limit" in limit.reason
    assert (limit.file, limit.function) == (__file__, "forward")
    assert "Make `self.by` a tensor" in (limit.advice or "")
    assert "seen: 0, 1, 2, 3, 4, 5, 6, 7, 8)" in (limit.advice or "")


def test_two_functions_at_the_limit_are_two_breaks_each_where_its_guard_was_read() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = ["0"]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.seen[0] != "none":  # read here
                self.seen[0] = str(int(self.seen[0]) + 1)
            return x + 1

    def shorter(x: torch.Tensor, key: str) -> torch.Tensor:
        return x - len(key)

    lens = Lens("eager")
    counts, other = torch.compile(Counts(), backend=lens), torch.compile(shorter, backend=lens)
    for number in range(10):
        counts(X)
        other(X, "a" * number)
    first, second = lens.captured().breaks
    assert (first.function, second.function) == ("forward", "shorter")
    assert (first.source or "").endswith("# read here")
    assert "`key == 'aaaaaaa'`" in (second.advice or "")
