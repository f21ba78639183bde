"""Kinds of graph breaks, each with the program changed as the advice says. `python -m tests.integration.break_kinds [KIND...]` lists them.

The line that breaks the graph ends in a comment with the name of its function. The kinds are those of `graph_break_registry.json` in torch
that a program without a GPU meets.
"""

# ruff: noqa: ANN401, T201 - programs compute whatever, and print; so does the table

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import gc
import hashlib
import inspect
import json
import logging
import os
import pickle
import queue
import random
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from ortlens import Lens

Program: TypeAlias = Callable[..., Any]
Compile: TypeAlias = Callable[[Program], Program]

_HERE = Path(__file__)
_LOG = logging.getLogger("ortlens.tests.break_kinds")
_LOCK = threading.Lock()
_THREADS = torch.get_num_threads()
_RNG = np.random.default_rng(0)
_WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
_LSTM = nn.LSTM(8, 8, batch_first=True)
_LINEAR = nn.Linear(8, 8)
_SCRIPTED: Any = torch.jit.script(_LINEAR)
X = torch.linspace(0.1, 1, 32).reshape(4, 8)
ONE, TWO, THREE = (torch.tensor(n) for n in (1, 2, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A program whose graph breaks.

    Attributes:
        program: The program.
        calls: Arguments of its calls.
        advice: How the advice begins; None where there is none.
        changes: Programs changed as it says, by the words for the change: they take what compiles a part of them.
    """

    program: Program
    calls: tuple[tuple[Any, ...], ...]
    advice: str | None
    changes: dict[str, tuple[Callable[[Compile], Program], dict[str, Any]]] = field(default_factory=dict)

    @property
    def line(self) -> int:
        """Number of the line that breaks the graph."""
        lines = _HERE.read_text(encoding="utf-8").splitlines()
        (at,) = (at for at, text in enumerate(lines, start=1) if text.endswith(f"  # {self.program.__name__}"))
        return at


KINDS: dict[str, Kind] = {}


def kind(advice: str | None, *calls: tuple[Any, ...]) -> Callable[[Program], Program]:
    """Add a program."""

    def add(program: Program) -> Program:
        KINDS[program.__name__] = Kind(program=program, calls=calls or ((X,), (X * 0.5,)), advice=advice)
        return program

    return add


def changed(name: str, how: str = "changed", **settings: Any) -> Callable[[Callable[[Compile], Program]], Callable[[Compile], Program]]:
    """Add the program changed as the advice says; `settings` are those of `torch._dynamo.config`."""

    def add(make: Callable[[Compile], Program]) -> Callable[[Compile], Program]:
        KINDS[name].changes[how] = make, settings
        return make

    return add


def set_instead(name: str, **settings: Any) -> None:
    changed(name, "setting", **settings)(lambda compiled: compiled(KINDS[name].program))


def hidden(x: torch.Tensor) -> torch.Tensor:
    return (x @ _WEIGHT).tanh()


def number_from_outside(name: str, number: Callable[[], float]) -> None:
    """A program that calls something for a number: the number is made before the compiled function."""

    def make(compiled: Compile) -> Program:
        core = compiled(lambda x, n: hidden(x).sin() + n)
        return lambda x: core(x, float(number() > 0))

    changed(name)(make)


def called_after(name: str, call: Callable[[], object]) -> None:
    """A program that calls something for its effect: it is called after the compiled function."""

    def make(compiled: Compile) -> Program:
        core = compiled(lambda x: hidden(x).sin())

        def run(x: torch.Tensor) -> object:
            y = core(x)
            call()
            return y

        return run

    changed(name)(make)


BOTH = "Compute both outcomes and choose with `torch.where`"
OUTSIDE = "before or after the compiled function"


@kind(BOTH, (X,), (-X,))
def branch(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    if y.sum() > 0:  # branch
        return y + 1
    return y - 1


@changed("branch")
def _(compiled: Compile) -> Program:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        y = hidden(x)
        return torch.where(y.sum() > 0, y + 1, y - 1)

    return compiled(chosen)


@kind(BOTH, (X,), (-X,))
def both_conditions(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    up = 1.0 if y.sum() > 0 and y.mean() > 0 else -1.0  # both_conditions
    return y * up


@changed("both_conditions")
def _(compiled: Compile) -> Program:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        y = hidden(x)
        return y * torch.where((y.sum() > 0) & (y.mean() > 0), 1.0, -1.0)

    return compiled(chosen)


@kind("Loop a fixed number of times")
def loop_on_value(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    while y.abs().sum() > 1:  # loop_on_value
        y = y * 0.5
    return y


@changed("loop_on_value")
def _(compiled: Compile) -> Program:
    def fixed(x: torch.Tensor) -> torch.Tensor:
        y = hidden(x)
        for _ in range(6):
            y = torch.where(y.abs().sum() > 1, y * 0.5, y)
        return y

    return compiled(fixed)


@kind(f"Check values {OUTSIDE}")
def checks(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    if torch.isnan(y).any():  # checks
        raise ValueError(y)
    return y.sin()


@changed("checks")
def _(compiled: Compile) -> Program:
    core = compiled(lambda x: ((y := hidden(x)).sin(), torch.isnan(y).any()))

    def run(x: torch.Tensor) -> Any:
        y, wrong = core(x)
        if wrong:
            raise ValueError(y)
        return y

    return run


@kind("Keep the value in a tensor without `.item()`, or set `torch._dynamo.config.capture_scalar_outputs = True`")
def item(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return y * y.sum().item()  # item


changed("item")(lambda compiled: compiled(lambda x: (y := hidden(x)) * y.sum()))
set_instead("item", capture_scalar_outputs=True)


@kind("Keep the value in a tensor without `float()`, or set `torch._dynamo.config.capture_scalar_outputs = True`")
def floated(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return y / float(y.norm())  # floated


changed("floated")(lambda compiled: compiled(lambda x: (y := hidden(x)) / y.norm()))
set_instead("floated", capture_scalar_outputs=True)


@kind("Keep the value in a tensor without `.item()`")
def kept_number(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    low = y.min().item()  # kept_number
    return (y - low) * 2


changed("kept_number")(lambda compiled: compiled(lambda x: ((y := hidden(x)) - y.min()) * 2))


@kind(BOTH, (X,), (X * 9,))
def branch_on_number(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    if y.max().item() > 1:  # branch_on_number
        y = y / 2
    return y.sin()


changed("branch_on_number")(lambda compiled: compiled(lambda x: torch.where((y := hidden(x)).max() > 1, y / 2, y).sin()))


@kind(BOTH, (X,), (-X,))
def key_of_value(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return y * {True: 1.0, False: 2.0}[bool(y.sum() > 0)]  # key_of_value


changed("key_of_value")(lambda compiled: compiled(lambda x: (y := hidden(x)) * torch.where(y.sum() > 0, 1.0, 2.0)))


@kind("Use `torch.index_select` with the tensor as index", (X, ONE), (X, TWO))
def index_of_list(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return [y, y + 1, y + 2][i.item()].sin()  # type: ignore[index]  # it is whole  # index_of_list


changed("index_of_list")(
    lambda compiled: compiled(lambda x, i: torch.stack([y := hidden(x), y + 1, y + 2]).index_select(0, i.reshape(1))[0].sin())
)


@kind("Take the number out of the tensor before the compiled function", (X, THREE), (X, TWO))
def size_from_tensor(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return y[: n.item()].sin()  # size_from_tensor


@changed("size_from_tensor")
def _(compiled: Compile) -> Program:
    core = compiled(lambda x, n: hidden(x)[:n].sin())
    return lambda x, n: core(x, n.item())


@kind("Take the number out of the tensor before the compiled function", (X, THREE), (X, TWO))
def tensor_as_size(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return y[:n].sin()  # tensor_as_size


changed("tensor_as_size")(KINDS["size_from_tensor"].changes["changed"][0])


@kind(BOTH, (X,), (X * 0 + 0.5,))
def contains(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    if 0.0 in y:  # contains
        return y
    return y.sin()


changed("contains")(lambda compiled: compiled(lambda x: torch.where(((y := hidden(x)) == 0.0).any(), y, y.sin())))


@kind(f"Compute with the tensor instead of the numbers of `.tolist()`, or call it {OUTSIDE}", (X, torch.tensor([1, 3])))
def listed(x: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
    y = hidden(x)
    return [part.sin() for part in y.split(lengths.tolist())]  # listed


@changed("listed")
def _(compiled: Compile) -> Program:
    core = compiled(lambda x, lengths: [part.sin() for part in hidden(x).split(lengths)])
    return lambda x, lengths: core(x, lengths.tolist())


@kind(f"Format tensors as text {OUTSIDE}")
def as_text(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    y = hidden(x)
    text = str(y.sum())  # as_text
    return y.sin(), len(text)


@changed("as_text")
def _(compiled: Compile) -> Program:
    core = compiled(lambda x: ((y := hidden(x)).sin(), y.sum()))

    def run(x: torch.Tensor) -> Any:
        y, total = core(x)
        return y, len(str(total))

    return run


@kind(f"Print {OUTSIDE}, or add `print` to `torch._dynamo.config.reorderable_logging_functions`")
def prints(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    print(end="")  # prints
    return y.sin()


called_after("prints", lambda: print(end=""))
set_instead("prints", reorderable_logging_functions={print})


@kind(f"Log {OUTSIDE}, or add the method to `torch._dynamo.config.ignore_logging_functions`")
def logs(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    _LOG.debug("sum %s", y.sum())  # logs
    return y.sin()


called_after("logs", lambda: _LOG.debug("sum"))
set_instead("logs", ignore_logging_functions={logging.Logger.debug})


@kind(f"Warn {OUTSIDE}, or add `warnings.warn` to `torch._dynamo.config.reorderable_logging_functions`")
def warns(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    warnings.warn("careful", stacklevel=1)  # warns
    return y.sin()


called_after("warns", lambda: warnings.warn("careful", stacklevel=1))
set_instead("warns", reorderable_logging_functions={warnings.warn})


@kind("Read the clock around the call of the compiled function")
def clock(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    now = time.perf_counter()  # clock
    return y.sin() + float(now > 0)


number_from_outside("clock", time.perf_counter)


@kind(f"Call `dt.datetime.now` {OUTSIDE}")
def date(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    now = dt.datetime.now(tz=dt.timezone.utc)  # date
    return y.sin() + float(now.year > 0)


number_from_outside("date", lambda: dt.datetime.now(tz=dt.timezone.utc).year)


@kind(f"Call `time.sleep` {OUTSIDE}")
def sleeps(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    time.sleep(0)  # sleeps
    return y.sin()


called_after("sleeps", lambda: time.sleep(0))


def _tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


_kept_out = torch.compiler.disable(_tripled)


@kind(f"Call `_tripled` {OUTSIDE}, or remove `torch.compiler.disable` from it")
def disabled(x: torch.Tensor) -> Any:
    y = hidden(x)
    y = _kept_out(y)  # disabled
    return y.sin()


changed("disabled", "removed")(lambda compiled: compiled(lambda x: _tripled(hidden(x)).sin()))


@changed("disabled", "outside")
def _(compiled: Compile) -> Program:
    first, then = compiled(hidden), compiled(lambda y: y.sin())
    return lambda x: then(_kept_out(first(x)))


@kind("Delete the call of `torch._dynamo.graph_break()`")
def on_purpose(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    torch._dynamo.graph_break()  # on_purpose
    return y.sin()


_OPTIMISED = nn.Linear(8, 8)
_OPTIMISER = torch.optim.SGD(_OPTIMISED.parameters(), lr=0.0)  # so that the calls do not depend on each other


@kind(f"Move the optimiser's step {OUTSIDE}")
def steps_an_optimiser(x: torch.Tensor) -> Any:
    y = hidden(x)
    _OPTIMISER.step()  # steps_an_optimiser
    return y.sin()


called_after("steps_an_optimiser", _OPTIMISER.step)


@kind("Delete the call of `torch._dynamo.skip_frame()`")
def skipped_on_purpose(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    torch._dynamo.skip_frame()  # skipped_on_purpose
    return y.sin()


def _plain(compiled: Compile) -> Program:
    return compiled(lambda x: hidden(x).sin())


changed("on_purpose")(_plain)
changed("skipped_on_purpose")(_plain)


@kind("Keep all elements and mask with `torch.where`, or set `torch._dynamo.config.capture_dynamic_output_shape_ops = True`")
def masked(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return y[y > 0].sin().sum()  # masked


changed("masked")(lambda compiled: compiled(lambda x: torch.where((y := hidden(x)) > 0, y.sin(), 0.0).sum()))
set_instead("masked", capture_dynamic_output_shape_ops=True)


@kind("Keep all elements and mask with `torch.where`, or set `torch._dynamo.config.capture_dynamic_output_shape_ops = True`")
def nonzero(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return (y[:, 0] > 0).nonzero().sum() + y  # nonzero


changed("nonzero")(lambda compiled: compiled(lambda x: torch.where((y := hidden(x))[:, 0] > 0, torch.arange(4), 0).sum() + y))
set_instead("nonzero", capture_dynamic_output_shape_ops=True)


@kind(f"Call `torch.unique` {OUTSIDE}, or set `torch._dynamo.config.capture_dynamic_output_shape_ops = True`")
def unique(x: torch.Tensor) -> Any:
    y = hidden(x)
    return torch.unique((y * 4).round())  # unique


@changed("unique")
def _(compiled: Compile) -> Program:
    core = compiled(lambda x: (hidden(x) * 4).round())
    return lambda x: torch.unique(core(x))


set_instead("unique", capture_dynamic_output_shape_ops=True)


@kind(f"Move the line {OUTSIDE}")
def least_squares(x: torch.Tensor) -> Any:
    y = hidden(x)
    return y.t() @ torch.linalg.lstsq(y.t(), y.t()).solution  # least_squares


@changed("least_squares")
def _(compiled: Compile) -> Program:
    core = compiled(hidden)
    return lambda x: (y := core(x)).t() @ torch.linalg.lstsq(y.t(), y.t()).solution


@kind("Keep the answer in a tensor, as `(a == b).all()` does, and choose with `torch.where`")
def equal(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    if torch.equal(y, x):  # equal
        return y
    return y.sin()


changed("equal")(lambda compiled: compiled(lambda x: torch.where(((y := hidden(x)) == x).all(), y, y.sin())))


@kind("Keep the answer in a tensor, as `torch.isclose(a, b).all()` does, and choose with `torch.where`")
def close(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    if torch.allclose(y, x):  # close
        return y
    return y.sin()


changed("close")(lambda compiled: compiled(lambda x: torch.where(torch.isclose(y := hidden(x), x).all(), y, y.sin())))


@kind("Stack the tensors and sort them with `torch.sort`")
def sorts(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return sorted([y.sum(), y.mean(), y.max()])[1] + y  # sorts


changed("sorts")(lambda compiled: compiled(lambda x: torch.sort(torch.stack([(y := hidden(x)).sum(), y.mean(), y.max()])).values[1] + y))


@kind("Use a torch function instead of NumPy's `interp`")
def numpy_only(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return torch.from_numpy(np.interp(y.numpy(), [-1, 1], [0, 2])).float()  # numpy_only


changed("numpy_only")(lambda compiled: compiled(lambda x: hidden(x) + 1))


@kind("Draw random numbers with torch")
def numpy_random(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return y.sin() + float(np.random.rand() >= 0)  # noqa: NPY002  # numpy_random


number_from_outside("numpy_random", lambda: np.random.rand() + 1)  # noqa: NPY002 - what is moved


@kind(f"Call `_RNG.random` {OUTSIDE}")
def numpy_generator(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    drawn = _RNG.random()  # numpy_generator
    return y.sin() + float(drawn >= 0)


number_from_outside("numpy_generator", lambda: _RNG.random() + 1)


@kind("Draw random numbers with torch")
def python_random(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    drawn = random.gauss(0, 1)  # python_random
    return y.sin() + float(drawn < 99)


number_from_outside("python_random", lambda: random.gauss(9, 0.1))


@kind("Open files before or after the compiled function")
def opens(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    with open(os.devnull):  # noqa: PTH123  # opens
        y = y + 1
    return y.sin()


@changed("opens")
def _(compiled: Compile) -> Program:
    core = compiled(lambda x: (hidden(x) + 1).sin())

    def run(x: torch.Tensor) -> Any:
        with open(os.devnull):  # noqa: PTH123 - what is moved
            return core(x)

    return run


@kind(f"Move the line {OUTSIDE}")
def environment(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    os.environ["ORTLENS_BREAK_KINDS"] = "1"  # environment
    return y.sin()


called_after("environment", lambda: os.environ.update(ORTLENS_BREAK_KINDS="1"))


@kind(f"Move the line {OUTSIDE}")
def frozen_module(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    there = os.path.exists("/")  # noqa: PTH110  # frozen_module
    return y.sin() + float(there)


number_from_outside("frozen_module", lambda: Path("/").exists())


@kind(f"Call `os.getpid` {OUTSIDE}")
def process(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    pid = os.getpid()  # process
    return y.sin() + float(pid > 0)


number_from_outside("process", os.getpid)


@kind(f"Move the line {OUTSIDE}")
def names(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    name = uuid.uuid4()  # names
    return y.sin() + float(name is not None)


number_from_outside("names", lambda: uuid.uuid4() is not None)


@kind(f"Move the line {OUTSIDE}")
def hashes(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    digest = hashlib.sha256(b"a").hexdigest()  # hashes
    return y.sin() + float(len(digest) > 0)


number_from_outside("hashes", lambda: len(hashlib.sha256(b"a").hexdigest()))


@kind(f"Move the line {OUTSIDE}")
def writes_json(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    text = json.dumps({"a": [1]})  # writes_json
    return y.sin() + float(len(text) > 0)


number_from_outside("writes_json", lambda: len(json.dumps({"a": [1]})))


@kind(f"Call `pickle.dumps` {OUTSIDE}")
def pickles(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    data = pickle.dumps([1])  # pickles
    return y.sin() + float(len(data) > 0)


number_from_outside("pickles", lambda: len(pickle.dumps([1])))


@kind(f"Call `gc.collect` {OUTSIDE}")
def collects(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    gc.collect(0)  # collects
    return y.sin()


called_after("collects", lambda: gc.collect(0))


@kind(f"Move the line {OUTSIDE}")
def inspects(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    frame = inspect.currentframe()  # inspects
    return y.sin() + float(frame is not None)


number_from_outside("inspects", lambda: inspect.currentframe() is not None)


@kind("Copy tensors with `.clone()`")
def copies(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return copy.deepcopy(y).sin()  # copies


changed("copies")(lambda compiled: compiled(lambda x: hidden(x).clone().sin()))


@kind("Call the recurrent layer outside of the compiled function")
def recurrent(x: torch.Tensor) -> Any:
    y = hidden(x)
    return _LSTM(y.unsqueeze(0))[0].sin()  # recurrent


@changed("recurrent")
def _(compiled: Compile) -> Program:
    first, then = compiled(lambda x: hidden(x).unsqueeze(0)), compiled(lambda y: y.sin())
    return lambda x: then(_LSTM(first(x))[0])


@kind("Use the plain nn.Module")
def scripted(x: torch.Tensor) -> Any:
    y = hidden(x)
    return _SCRIPTED(y).sin()  # scripted


changed("scripted")(lambda compiled: compiled(lambda x: _LINEAR(hidden(x)).sin()))


@kind(
    "Compute gradients outside of the compiled function, from what it returns, or set `torch._dynamo.config.trace_autograd_ops",
    (X.clone().requires_grad_(),),
)
def gradient(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(hidden(x).sum(), x)  # gradient
    return slope.sin()


@changed("gradient")
def _(compiled: Compile) -> Program:
    core = compiled(lambda x: hidden(x).sum())

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(core(x), x)
        return slope.sin()

    return run


set_instead("gradient", trace_autograd_ops=True)


def _rows(y: torch.Tensor) -> Iterator[torch.Tensor]:
    for row in y:
        yield row + 1 if row.sum() > 0 else row - 1  # generator


@kind(BOTH, (X,), (-X,))
def generator(x: torch.Tensor) -> torch.Tensor:
    return torch.stack(list(_rows(hidden(x))))


@changed("generator")
def _(compiled: Compile) -> Program:
    return compiled(lambda x: torch.stack([torch.where(row.sum() > 0, row + 1, row - 1) for row in hidden(x)]))


@contextlib.contextmanager
def _context() -> Iterator[None]:
    yield


@kind("Print before or after the compiled function")
def in_a_context(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    with _context():
        print(end="")  # in_a_context
    return y.sin()


called_after("in_a_context", lambda: print(end=""))


@kind(BOTH)
def in_a_try(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    try:
        if y.sum() > 0:  # in_a_try
            y = y + 1
    finally:
        y = y * 2
    return y


@changed("in_a_try")
def _(compiled: Compile) -> Program:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        y = hidden(x)
        try:
            y = torch.where(y.sum() > 0, y + 1, y)
        finally:
            y = y * 2
        return y

    return compiled(chosen)


@kind("Keep the value in a tensor without `.item()`, or set `torch._dynamo.config.capture_scalar_outputs = True`")
def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    for _ in range(3):
        y = y * y.mean().item()  # in_a_loop
    return y


@changed("in_a_loop")
def _(compiled: Compile) -> Program:
    def stays(x: torch.Tensor) -> torch.Tensor:
        y = hidden(x)
        for _ in range(3):
            y = y * y.mean()
        return y

    return compiled(stays)


set_instead("in_a_loop", capture_scalar_outputs=True)


@kind("Enter `lock` around the call of the compiled function")
def locked(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    with _LOCK:  # locked
        y = y + 1
    return y.sin()


@changed("locked")
def _(compiled: Compile) -> Program:
    core = compiled(lambda x: (hidden(x) + 1).sin())

    def run(x: torch.Tensor) -> Any:
        with _LOCK:
            return core(x)

    return run


@kind("Use dense tensors inside the compiled function")
def sparse(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return y + y.to_sparse().sum()  # sparse


changed("sparse")(lambda compiled: compiled(lambda x: (y := hidden(x)) + y.sum()))


@kind(f"Call `torch.save` {OUTSIDE}")
def saves(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    torch.save(y, os.devnull)  # saves
    return y.sin()


@changed("saves")
def _(compiled: Compile) -> Program:
    core = compiled(lambda x: ((y := hidden(x)).sin(), y))

    def run(x: torch.Tensor) -> Any:
        result, y = core(x)
        torch.save(y, os.devnull)
        return result

    return run


@kind(f"Move the line {OUTSIDE}")
def thread(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    name = threading.current_thread().name  # thread
    return y.sin() + float(len(name) > 0)


number_from_outside("thread", lambda: len(threading.current_thread().name))


@kind(f"Move the line {OUTSIDE}")
def queued(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    waiting = queue.SimpleQueue().qsize()  # queued
    return y.sin() + float(waiting == 0)


number_from_outside("queued", lambda: 1 - queue.SimpleQueue[int]().qsize())


@kind(f"Call `torch.manual_seed` {OUTSIDE}")
def seeds(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    torch.manual_seed(0)  # seeds
    return y.sin()


called_after("seeds", lambda: torch.manual_seed(0))


@kind(f"Call `torch.set_num_threads` {OUTSIDE}")
def threads(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    torch.set_num_threads(_THREADS)  # threads
    return y.sin()


called_after("threads", lambda: torch.set_num_threads(_THREADS))


@kind(f"Call `sys.stdout.flush` {OUTSIDE}")
def flushes(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    sys.stdout.flush()  # flushes
    return y.sin()


called_after("flushes", sys.stdout.flush)


@kind(f"Call `dir` {OUTSIDE}")
def lists_attributes(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    count = len(dir(_LINEAR))  # lists_attributes
    return y.sin() + float(count > 0)


number_from_outside("lists_attributes", lambda: len(dir(_LINEAR)))


def _innermost(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()  # in_a_call
    return x.cos()


@kind("Delete the call of `torch._dynamo.graph_break()`")
def in_a_call(x: torch.Tensor) -> torch.Tensor:
    return _innermost(hidden(x)).tan()


changed("in_a_call")(lambda compiled: compiled(lambda x: hidden(x).sin().cos().tan()))


class _Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)  # marks_dirty
        return x.mul_(2)


@kind(None)
def marks_dirty(x: torch.Tensor) -> Any:
    y = hidden(x)
    return _Dirty.apply(y).sin()


class _Holder(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = hidden(x)
        self.kept = nn.Parameter(y.clone())  # makes_parameter
        return y.sin()


_HOLDER = _Holder()


@kind(None)
def makes_parameter(x: torch.Tensor) -> Any:
    return _HOLDER(x)


@kind(None)
def defines_class(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)

    class Inner:  # defines_class
        by = 2

    return y * Inner.by


@kind(None)
def asks_for_inference(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return y.sin() + float(y.is_inference())  # asks_for_inference


class _Codebook(nn.Module):
    """Keeps in a buffer whether it was initialised."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ready", torch.tensor([True]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = hidden(x)
        if not self.ready:  # flagged
            y = y + 1
        return y * 2


class _CodebookWithBool(_Codebook):
    def __init__(self) -> None:
        super().__init__()
        self.is_ready = bool(self.ready)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = hidden(x)
        if not self.is_ready:
            y = y + 1
        return y * 2


_CODEBOOK, _CODEBOOK_WITH_BOOL = _Codebook(), _CodebookWithBool()


@kind("Keep `self.ready` in a Python bool, beside the tensor if that is saved with the model")
def flagged(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _CODEBOOK(x)
    return made


@changed("flagged")
def _(compiled: Compile) -> Program:
    return compiled(_CODEBOOK_WITH_BOOL)


@kind("Remove `Variable(...)`")
def variable(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    state = torch.autograd.Variable(y)  # variable
    return state * 2


@changed("variable")
def _(compiled: Compile) -> Program:
    return compiled(lambda x: hidden(x) * 2)


def graphs_without_ortlens(kind: Kind) -> int:
    """How many graphs Dynamo makes of the first call for a backend that does nothing else."""
    torch._dynamo.reset()
    made: list[object] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Program:
        made.append(graph)
        return graph.forward

    torch.compile(kind.program, backend=backend)(*kind.calls[0])
    return len(made)


def watched(kind: Kind) -> Lens:
    """A lens on the first call of the program."""
    torch._dynamo.reset()
    lens = Lens("eager")
    torch.compile(kind.program, backend=lens)(*kind.calls[0])
    return lens


def followed(kind: Kind, how: str, backend: str = "ortlens") -> tuple[Lens, Program]:
    """A lens on the changed program, and that program, compiled."""
    torch._dynamo.reset()
    lens = Lens(backend)
    make, settings = kind.changes[how]
    with torch._dynamo.config.patch(settings):
        run = make(lambda function: torch.compile(function, backend=lens))
        for args in kind.calls:
            torch.testing.assert_close(run(*args), kind.program(*args))
    return lens, run


def cpu_times(kind: Kind, how: str, rounds: int = 60) -> tuple[float, float]:
    """CPU time of a call as it was and as changed, in us: minima of calls in turns."""
    torch._dynamo.reset()
    before = torch.compile(kind.program, backend=Lens("ortlens"))
    before(*kind.calls[0])
    make, settings = kind.changes[how]
    with torch._dynamo.config.patch(settings):
        after = make(lambda function: torch.compile(function, backend=Lens("ortlens")))
        spent: tuple[list[int], list[int]] = ([], [])
        for _ in range(rounds):
            for run, kept in zip((before, after), spent, strict=True):
                started = time.process_time_ns()
                run(*kind.calls[0])
                kept.append(time.process_time_ns() - started)
    return min(spent[0]) / 1e3, min(spent[1]) / 1e3


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    for name in sys.argv[1:] or KINDS:
        kind, lens = KINDS[name], watched(KINDS[name])
        for item in lens.captured().breaks:
            place = "at its line" if item.line == kind.line else f"at {item.file}:{item.line}"
            print(f"{name}: {item.gb_id} {place}, x{item.occurrences}: {item.advice}")
        for how in kind.changes:
            left = len(followed(kind, how)[0].captured().breaks)
            before, after = cpu_times(kind, how)
            print(f"    {how}: {left} breaks left, {before:.0f} us before, {after:.0f} us after")


if __name__ == "__main__":
    main()
