"""Kinds of graph breaks: each has its place and its advice, and is gone once the advice is followed."""

# ruff: noqa: ANN401, T201 - programs compute whatever, and print

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import nn

from ortlens import Lens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortlens.trace.records import Break

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dynamo about what it cannot trace, and of a program that warns

HERE = Path(__file__)
LOG = logging.getLogger("ortlens.tests.break_kinds")
WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
X = torch.linspace(0.1, 1, 32).reshape(4, 8)
ONE, TWO, THREE = (torch.tensor(n) for n in (1, 2, 3))


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.no_grad():
        yield


def hidden(x: torch.Tensor) -> torch.Tensor:
    return (x @ WEIGHT).tanh()


def explained(program: Callable[..., Any], args: tuple[Any, ...], backend: str = "eager") -> Lens:
    lens = Lens(backend)
    torch.compile(program, backend=lens)(*args)
    return lens


def graphs_without_ortlens(program: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """How many graphs Dynamo makes of a call for a backend that does nothing else."""
    torch._dynamo.reset()
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compile(program, backend=backend)(*args)
    return len(graphs)


OUTSIDE = "before or after the compiled function"
HEAD = """
import copy, datetime, gc, hashlib, inspect, json, logging, os, pickle, queue, random, sys, threading, time, uuid, warnings
import numpy
import torch

rng, lock, log = numpy.random.default_rng(0), threading.Lock(), logging.getLogger("ortlens.tests")
lstm, linear = torch.nn.LSTM(8, 8), torch.nn.Linear(8, 8)
scripted, trained = torch.jit.script(linear), torch.nn.Linear(8, 8)
optimiser = torch.optim.SGD(trained.parameters(), lr=0.0)
"""
TAKEN_OUT = {
    "text = str(y.sum())": f"Format tensors as text {OUTSIDE}",
    "time.perf_counter()": "Read the clock around the call of the compiled function",
    "time.sleep(0)": f"Call `time.sleep` {OUTSIDE}",
    "datetime.datetime.now(tz=datetime.timezone.utc)": f"Call `datetime.datetime.now` {OUTSIDE}",
    "dir(linear)": f"Call `dir` {OUTSIDE}",
    "sys.stdout.flush()": f"Call `sys.stdout.flush` {OUTSIDE}",
    "torch.manual_seed(0)": f"Call `torch.manual_seed` {OUTSIDE}",
    "torch.save(y, os.devnull)": f"Call `torch.save` {OUTSIDE}",
    "rng.random()": f"Call `rng.random` {OUTSIDE}",
    'os.environ["ORTLENS_BREAK_KINDS"] = "1"': f"Move the line {OUTSIDE}",
    'os.path.exists("/")': f"Move the line {OUTSIDE}",  # of a frozen module
    'json.dumps({"a": [1]})': f"Move the line {OUTSIDE}",
    "inspect.currentframe()": f"Move the line {OUTSIDE}",
    "threading.current_thread()": f"Move the line {OUTSIDE}",
    'hashlib.sha256(b"a").hexdigest()': f"Move the line {OUTSIDE}",
    "y.t() @ torch.linalg.lstsq(y.t(), y.t()).solution": f"Move the line {OUTSIDE}",
    "optimiser.step()": f"Move the optimiser's step {OUTSIDE}",
    "torch._dynamo.graph_break()": "Delete the call of `torch._dynamo.graph_break()`",
    "open(os.devnull).close()": f"Open files {OUTSIDE}",
    "if torch.isnan(y).any(): raise ValueError(y)": f"Check values {OUTSIDE}",
    "numpy.random.rand()": "Draw random numbers with torch",
    "random.gauss(0, 1)": "Draw random numbers with torch",
    "numpy.interp(y.numpy(), [-1, 1], [0, 2])": "Use a torch function instead of NumPy's `interp`",
    "parts = y.split(torch.tensor([1, 3]).tolist())": "Compute with the tensor instead of the numbers of `.tolist()`",
    "y = copy.deepcopy(y)": "Copy tensors with `.clone()`",
    "y = torch.autograd.Variable(y)": "Remove `Variable(...)`",
    "y = y + y.to_sparse().sum()": "Use dense tensors inside the compiled function",
}
"""Lines that do not belong into a compiled function, each with the beginning of its advice."""
TAKEN_OUT_LAST = {
    "with lock: y = y + 1": "Enter `lock` around the call of the compiled function",
    "y = scripted(y)": "Use the plain nn.Module",
    "y = lstm(y)[0]": "Call the recurrent layer outside of the compiled function",
}
"""The same for lines behind which PyTorch compiles nothing more of the function."""


def test_lines_to_take_out_are_placed_and_have_their_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines_to_take_out.py"
    parts = [list(TAKEN_OUT), *([line] for line in TAKEN_OUT_LAST)]
    text = HEAD
    for number, lines in enumerate(parts):
        text += f"\ndef part_{number}(y):\n    y = y.tan()\n"
        text += "".join(f"    {line}\n    y = y.sin()\n" for line in lines) + "    return y\n"
    file.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    program, lens = importlib.import_module(file.stem), Lens("eager")
    for number in range(len(parts)):
        torch.compile(getattr(program, f"part_{number}"), backend=lens)(X)
    first: dict[str, Break] = {}
    for item in lens.captured().breaks:
        assert (item.file, item.occurrences) == (str(file), 1)
        first.setdefault(item.source or "", item)
    expected = TAKEN_OUT | TAKEN_OUT_LAST
    assert {line: (first[line].advice or "")[: len(advice)] for line, advice in expected.items()} == expected
    assert all(text.splitlines()[(item.line or 0) - 1].strip() == line for line, item in first.items())
    assert any("json" in frame for frame in first['json.dumps({"a": [1]})'].user_stack), "the stack still shows the library"


class Kind(NamedTuple):
    """A program whose graph breaks at the lines that end in its name, and the program changed as the advice says.

    Attributes:
        program: The program.
        advice: How the advice of each line begins; None where there is none.
        calls: Arguments of its calls; the first breaks the graph at every line.
        instead: The changed program.
        settings: Settings of `torch._dynamo.config` with which the program has no break.
        calls_instead: Arguments for the changed program, where they are others.
    """

    program: Callable[..., Any]
    advice: tuple[str | None, ...]
    calls: tuple[tuple[Any, ...], ...] = ((X,), (X * 0.5,))
    instead: Callable[..., Any] | None = None
    settings: dict[str, Any] | None = None
    calls_instead: tuple[tuple[Any, ...], ...] | None = None

    @property
    def lines(self) -> list[int]:
        source = HERE.read_text(encoding="utf-8").splitlines()
        return [at for at, text in enumerate(source, start=1) if text.endswith(f"  # {self.program.__name__}")]


BOTH = "Compute both outcomes and choose with `torch.where`"
SCALARS = ", or set `torch._dynamo.config.capture_scalar_outputs = True`"
SHAPES = ", or set `torch._dynamo.config.capture_dynamic_output_shape_ops = True`"


def decides(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    if y.sum() > 0:  # decides
        y = y + 1
    if y.max().item() > 1:  # decides
        y = y / 2
    y = y * {True: 1.0, False: 2.0}[bool(y.sum() > 0)]  # decides
    return y.cos() if 0.0 in y else y  # decides


def chooses(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    y = torch.where(y.sum() > 0, y + 1, y)
    y = torch.where(y.max() > 1, y / 2, y)
    y = y * torch.where(y.sum() > 0, 1.0, 2.0)
    return torch.where((y == 0.0).any(), y.cos(), y)


def loops(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    while y.abs().sum() > 1:  # loops
        y = y * 0.5
    return y


def loops_six_times(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    for _ in range(6):
        y = torch.where(y.abs().sum() > 1, y * 0.5, y)
    return y


def numbers(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    y = y * y.sum().item()  # numbers
    return y / float(y.norm())  # numbers


def tensors_of_numbers(x: torch.Tensor) -> Any:
    y = hidden(x)
    y = y * y.sum()
    return y / y.norm()


def kept_number(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    low = y.min().item()  # kept_number
    return (y - low) * 2


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    for _ in range(3):
        y = y * y.mean().item()  # in_a_loop
    return y


def picks(x: torch.Tensor, i: torch.Tensor, n: torch.Tensor) -> Any:
    y = hidden(x)
    y = [y, y + 1, y + 2][i.item()].sin()  # type: ignore[index]  # it is whole  # picks
    z = y[: n.item()].sin()  # picks
    return y[:n] + z  # picks


def picks_by_number(x: torch.Tensor, i: torch.Tensor, n: int) -> torch.Tensor:
    y = hidden(x)
    y = torch.stack([y, y + 1, y + 2]).index_select(0, i.reshape(1))[0].sin()
    return y[:n] + y[:n].sin()


def masks(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    y = y + y[y > 0].sin().sum()  # masks
    return (y[:, 0] > 0).nonzero().sum() + y  # masks


def masks_with_where(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    y = y + torch.where(y > 0, y.sin(), 0.0).sum()
    return torch.where(y[:, 0] > 0, torch.arange(4), 0).sum() + y


def unique(x: torch.Tensor) -> Any:
    y = hidden(x)
    return torch.unique((y * 4).round())  # unique


def compares(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    y = y if torch.equal(y, x) else y.sin()  # compares
    y = y if torch.allclose(y, x) else y.cos()  # compares
    return sorted([y.sum(), y.mean(), y.max()])[1] + y  # compares


def compares_tensors(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    y = torch.where((y == x).all(), y, y.sin())
    y = torch.where(torch.isclose(y, x).all(), y, y.cos())
    return torch.sort(torch.stack([y.sum(), y.mean(), y.max()])).values[1] + y


def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


kept_out = torch.compiler.disable(tripled)


def disabled(x: torch.Tensor) -> Any:
    y = hidden(x)
    return kept_out(y).sin()  # disabled


def skipped(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    torch._dynamo.skip_frame()  # skipped
    return y.sin()


def gradient(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(hidden(x).sum(), x)  # gradient
    return slope.sin()


def speaks(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    LOG.debug("sum %s", y.sum())  # speaks
    y = y.sin()
    warnings.warn("careful", stacklevel=1)  # speaks
    y = y.cos()
    print(end="")  # speaks
    return y.tan()


def rows_of(y: torch.Tensor) -> Iterator[torch.Tensor]:
    for row in y:
        yield row + 1 if row.sum() > 0 else row - 1  # generator


def generator(x: torch.Tensor) -> torch.Tensor:
    return torch.stack(list(rows_of(hidden(x))))


@contextlib.contextmanager
def context() -> Iterator[None]:
    yield


def in_a_context(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    with context():
        print(end="")  # in_a_context
    return y.sin()


def in_a_try(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    try:
        if y.sum() > 0 and y.mean() > 0:  # in_a_try
            y = y + 1
    finally:
        y = y * 2
    return y


class Codebook(nn.Module):
    """Keeps in a buffer whether it was initialised, and in a bool."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ready", torch.tensor([True]))
        self.is_ready = True


CODEBOOK = Codebook()


def flagged(x: torch.Tensor) -> torch.Tensor:
    def forward(self: Any, y: torch.Tensor) -> torch.Tensor:
        if not self.ready:  # flagged
            y = y + 1
        return y * 2

    return forward(CODEBOOK, hidden(x))


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)  # marks_dirty
        return x.mul_(2)


def marks_dirty(x: torch.Tensor) -> Any:
    y = hidden(x)
    return Dirty.apply(y).sin()


def makes_parameter(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    CODEBOOK.kept = nn.Parameter(y.clone())  # makes_parameter
    return y.sin()


def defines_class(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)

    class Inner:  # defines_class
        by = 2

    return y * Inner.by


def asks_for_inference(x: torch.Tensor) -> torch.Tensor:
    y = hidden(x)
    return y.sin() + float(y.is_inference())  # asks_for_inference


KEEP = "Keep the value in a tensor without "
SIZE = "Take the number out of the tensor before the compiled function"
MASK = f"Keep all elements and mask with `torch.where`{SHAPES}"
ANSWER = "Keep the answer in a tensor, as `{}` does, and choose with `torch.where`"
LOGGING = {"reorderable_logging_functions": {print, warnings.warn}, "ignore_logging_functions": {logging.Logger.debug}}
KINDS = (
    Kind(decides, (BOTH,) * 4, ((X,), (-X,)), instead=chooses),
    Kind(loops, ("Loop a fixed number of times",), instead=loops_six_times),
    Kind(
        numbers,
        (f"{KEEP}`.item()`{SCALARS}", f"{KEEP}`float()`{SCALARS}"),
        instead=tensors_of_numbers,
        settings={"capture_scalar_outputs": True},
    ),
    Kind(kept_number, (f"{KEEP}`.item()`",), instead=lambda x: ((y := hidden(x)) - y.min()) * 2),
    Kind(in_a_loop, (f"{KEEP}`.item()`{SCALARS}",), settings={"capture_scalar_outputs": True}),
    Kind(
        picks,
        ("Use `torch.index_select` with the tensor as index", SIZE, SIZE),
        ((X, ONE, THREE), (X, TWO, TWO)),
        instead=picks_by_number,
        calls_instead=((X, ONE, 3), (X, TWO, 2)),
    ),
    Kind(masks, (MASK, MASK), instead=masks_with_where, settings={"capture_dynamic_output_shape_ops": True}),
    Kind(unique, (f"Call `torch.unique` {OUTSIDE}{SHAPES}",), settings={"capture_dynamic_output_shape_ops": True}),
    Kind(
        compares,
        (ANSWER.format("(a == b).all()"), ANSWER.format("torch.isclose(a, b).all()"), "Stack the tensors and sort them with `torch.sort`"),
        instead=compares_tensors,
    ),
    Kind(
        disabled,
        (f"Call `tripled` {OUTSIDE}, or remove `torch.compiler.disable` from it",),
        instead=lambda x: tripled(hidden(x)).sin(),
    ),
    Kind(skipped, ("Delete the call of `torch._dynamo.skip_frame()`",), instead=lambda x: hidden(x).sin()),
    Kind(
        gradient,
        ("Compute gradients outside of the compiled function, from what it returns, or set `torch._dynamo.config.trace_autograd_ops",),
        ((X.clone().requires_grad_(),),),
        settings={"trace_autograd_ops": True},
    ),
    Kind(
        generator,
        (BOTH,),
        ((X,), (-X,)),
        instead=lambda x: torch.stack([torch.where(row.sum() > 0, row + 1, row - 1) for row in hidden(x)]),
    ),
    Kind(
        speaks,
        (
            f"Log {OUTSIDE}, or add the method to `torch._dynamo.config.ignore_logging_functions`",
            f"Warn {OUTSIDE}, or add `warnings.warn` to `torch._dynamo.config.reorderable_logging_functions`",
            f"Print {OUTSIDE}, or add `print` to `torch._dynamo.config.reorderable_logging_functions`",
        ),
        settings=LOGGING,
    ),
    Kind(in_a_context, (f"Print {OUTSIDE}",)),
    Kind(in_a_try, (BOTH,)),
    Kind(
        flagged,
        ("Keep `self.ready` in a Python bool, beside the tensor if that is saved with the model",),
        instead=lambda x: hidden(x) * 2 if CODEBOOK.is_ready else (hidden(x) + 1) * 2,
    ),
    *(Kind(program, (None,)) for program in (marks_dirty, makes_parameter, defines_class, asks_for_inference)),
)
NAMES = [kind.program.__name__ for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_break_has_its_count_its_line_and_its_advice(kind: Kind) -> None:
    lens = explained(kind.program, kind.calls[0])
    breaks = lens.captured().breaks
    advice = {item.line or 0: item.advice for item in reversed(breaks)}  # the first of a line
    assert sorted(advice) == kind.lines
    for line, expected in zip(kind.lines, kind.advice, strict=True):
        assert advice[line] is None if expected is None else (advice[line] or "").startswith(expected)
    graphs = graphs_without_ortlens(kind.program, kind.calls[0])
    assert lens.output().graph_count == graphs
    assert lens.output().graph_break_count == max(graphs - 1, len(breaks)), "one per boundary, and those that no graph follows"


def assert_unbroken(kind: Kind, changed: Callable[..., Any]) -> None:
    lens = Lens("ortlens")
    compiled = torch.compile(changed, backend=lens)
    for args, given in zip(kind.calls, kind.calls_instead or kind.calls, strict=True):
        torch.testing.assert_close(compiled(*given), kind.program(*args))
    assert [(item.line, item.reason) for item in lens.captured().breaks] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.instead], ids=lambda kind: kind.program.__name__)
def test_the_program_changed_as_advised_has_no_break_and_the_same_result(kind: Kind) -> None:
    assert kind.instead is not None
    assert_unbroken(kind, kind.instead)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.settings], ids=lambda kind: kind.program.__name__)
def test_with_the_advised_setting_the_program_has_no_break_and_the_same_result(kind: Kind) -> None:
    with torch._dynamo.config.patch(kind.settings):
        assert_unbroken(kind, kind.program)
