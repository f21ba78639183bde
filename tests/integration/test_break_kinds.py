"""Kinds of graph breaks: each has its place and its advice, and is gone once the advice is followed."""

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch

from ortlens import Lens

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dynamo about what it cannot trace, and of a program that warns

X = torch.linspace(0.1, 1, 32).reshape(4, 8)
OUTSIDE = "before or after the compiled function"
HEAD = """
import contextlib, copy, datetime, gc, hashlib, inspect, json, logging, os, pickle, queue, random, sys, threading, time, uuid, warnings
import numpy
import torch
from torch import nn

rng, lock, log = numpy.random.default_rng(0), threading.Lock(), logging.getLogger("ortlens.tests")
lstm, linear = nn.LSTM(8, 8), nn.Linear(8, 8)
scripted, trained = torch.jit.script(linear), nn.Linear(8, 8)
optimiser = torch.optim.SGD(trained.parameters(), lr=0.0)
one, three, leaf = torch.tensor(1), torch.tensor(3), torch.ones(4, requires_grad=True)

def tripled(x):
    return x * 3

kept_out = torch.compiler.disable(tripled)

def rows_of(y):
    for row in y:
        yield row + 1 if row.sum() > 0 else row - 1

@contextlib.contextmanager
def context():
    yield

class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ready", torch.tensor([True]))

    def forward(self, y):
        if not self.ready: y = y + 1
        return y

codebook = Codebook()

class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)
"""


class Line(NamedTuple):
    """Code that breaks the graph.

    Attributes:
        text: The code, of one line or two; the break is at the first.
        advice: How its advice begins; None where there is none.
        instead: The code changed as the advice says.
        setting: A setting of `torch._dynamo.config` with which there is no break, and its value.
        at: The line of the break, where it is in a function of `HEAD`.
    """

    text: str
    advice: str | None
    instead: str | None = None
    setting: tuple[str, Any] | None = None
    at: str | None = None


BOTH = "Compute both outcomes and choose with `torch.where`"
KEEP = "Keep the value in a tensor without `{}`, or set `torch._dynamo.config.capture_scalar_outputs = True`"
SIZE = "Take the number out of the tensor before the compiled function"
SHAPES = ", or set `torch._dynamo.config.capture_dynamic_output_shape_ops = True`"
MASK = f"Keep all elements and mask with `torch.where`{SHAPES}"
ANSWER = "Keep the answer in a tensor, as `{}` does, and choose with `torch.where`"
SCALAR, SHAPE = ("capture_scalar_outputs", True), ("capture_dynamic_output_shape_ops", True)
LINES = (
    Line("text = str(y.sum())", f"Format tensors as text {OUTSIDE}"),
    Line("time.perf_counter()", "Read the clock around the call of the compiled function"),
    Line("time.sleep(0)", f"Call `time.sleep` {OUTSIDE}"),
    Line("datetime.datetime.now(tz=datetime.timezone.utc)", f"Call `datetime.datetime.now` {OUTSIDE}"),
    Line("dir(linear)", f"Call `dir` {OUTSIDE}"),
    Line("sys.stdout.flush()", f"Call `sys.stdout.flush` {OUTSIDE}"),
    Line("torch.manual_seed(0)", f"Call `torch.manual_seed` {OUTSIDE}"),
    Line("torch.save(y, os.devnull)", f"Call `torch.save` {OUTSIDE}"),
    Line("rng.random()", f"Call `rng.random` {OUTSIDE}"),
    Line('os.environ["ORTLENS_BREAK_KINDS"] = "1"', f"Move the line {OUTSIDE}"),
    Line('os.path.exists("/")', f"Move the line {OUTSIDE}"),  # of a frozen module
    Line('json.dumps({"a": [1]})', f"Move the line {OUTSIDE}"),
    Line("inspect.currentframe()", f"Move the line {OUTSIDE}"),
    Line("threading.current_thread()", f"Move the line {OUTSIDE}"),
    Line('hashlib.sha256(b"a").hexdigest()', f"Move the line {OUTSIDE}"),
    Line("y.t() @ torch.linalg.lstsq(y.t(), y.t()).solution", f"Move the line {OUTSIDE}"),
    Line("optimiser.step()", f"Move the optimiser's step {OUTSIDE}"),
    Line("torch._dynamo.graph_break()", "Delete the call of `torch._dynamo.graph_break()`", ""),
    Line("open(os.devnull).close()", f"Open files {OUTSIDE}"),
    Line("if torch.isnan(y).any(): raise ValueError(y)", f"Check values {OUTSIDE}"),
    Line("numpy.random.rand()", "Draw random numbers with torch"),
    Line("random.gauss(0, 1)", "Draw random numbers with torch"),
    Line("numpy.interp(y.numpy(), [-1, 1], [0, 2])", "Use a torch function instead of NumPy's `interp`"),
    Line("parts = y.split(torch.tensor([1, 3]).tolist())", "Compute with the tensor instead of the numbers of `.tolist()`"),
    Line("y = copy.deepcopy(y)", "Copy tensors with `.clone()`", "y = y.clone()"),
    Line("y = torch.autograd.Variable(y)", "Remove `Variable(...)`", ""),
    Line("if y.sum() > 0: y = y + 1", BOTH, "y = torch.where(y.sum() > 0, y + 1, y)"),
    Line("if y.max().item() > 1: y = y / 2", BOTH, "y = torch.where(y.max() > 1, y / 2, y)"),
    Line("y = y * {True: 1.0, False: 2.0}[bool(y.sum() > 0)]", BOTH, "y = y * torch.where(y.sum() > 0, 1.0, 2.0)"),
    Line("y = y + y.sum().item()", KEEP.format(".item()"), "y = y + y.sum()", SCALAR),
    Line("y = y / float(y.norm())", KEEP.format("float()"), "y = y / y.norm()", SCALAR),
    Line(
        "y = [y, y + 1][one.item()]",
        "Use `torch.index_select` with the tensor as index",
        "y = torch.stack([y, y + 1]).index_select(0, one.reshape(1))[0]",
    ),
    Line("y = y + y[: three.item()].sum()", SIZE, "y = y + y[:3].sum()"),
    Line("y = y + torch.unique((y * 4).round()).sum()", f"Call `torch.unique` {OUTSIDE}{SHAPES}", None, SHAPE),
    Line("if not torch.equal(y, y + 1): y = y.sin()", ANSWER.format("(a == b).all()"), "y = torch.where((y == y + 1).all(), y, y.sin())"),
    Line(
        "if torch.allclose(y, y + 1): y = y.cos()",
        ANSWER.format("torch.isclose(a, b).all()"),
        "y = torch.where(torch.isclose(y, y + 1).all(), y.cos(), y)",
    ),
    Line(
        "y = sorted([y.sum(), y.mean(), y.max()])[1] + y",
        "Stack the tensors and sort them with `torch.sort`",
        "y = torch.sort(torch.stack([y.sum(), y.mean(), y.max()])).values[1] + y",
    ),
    Line("y = kept_out(y)", f"Call `tripled` {OUTSIDE}, or remove `torch.compiler.disable` from it", "y = tripled(y)"),
    Line(
        'log.debug("sum %s", y.sum())',
        f"Log {OUTSIDE}, or add `logging.Logger.debug` to `torch._dynamo.config.ignore_logging_functions`, which drops what it logs",
        None,
        ("ignore_logging_functions", "logging.Logger.debug"),
    ),
    Line(
        'warnings.warn("careful")',
        f"Warn {OUTSIDE}, or add `warnings.warn` to `torch._dynamo.config.reorderable_logging_functions`",
        None,
        ("reorderable_logging_functions", "warnings.warn"),
    ),
    Line(
        'print("careful")',
        f"Print {OUTSIDE}, or add `print` to `torch._dynamo.config.reorderable_logging_functions`",
        None,
        ("reorderable_logging_functions", "print"),
    ),
    Line('print(end="")', f"Print {OUTSIDE}"),
    Line("codebook.kept = nn.Parameter(y.clone())", None),
    Line("class Inner: by = 2", None),
    Line("y = y + float(y.is_inference())", None),
)
ALONE = (
    Line(
        "y = codebook(y)",
        "Keep `self.ready` in a Python bool, beside the tensor if that is saved with the model",
        "",
        at="if not self.ready: y = y + 1",
    ),
    Line("y = Dirty.apply(y.clone())", None, at="ctx.mark_dirty(x)"),
    Line("y = y + y[y > 0].sin().sum()", MASK, "y = y + torch.where(y > 0, y.sin(), 0.0).sum()", SHAPE),
    Line("y = y + (y[:, 0] > 0).nonzero().sum()", MASK, "y = y + torch.where(y[:, 0] > 0, torch.arange(4), 0).sum()", SHAPE),
    Line("y = y + y[:three].mean()", SIZE, "y = y + y[:3].mean()"),
    Line("y = y + y.to_sparse().sum()", "Use dense tensors inside the compiled function", "y = y + y.sum()"),
    Line("y = y.cos() if 0.0 in y else y", BOTH, "y = torch.where((y == 0.0).any(), y.cos(), y)"),
    Line("with lock: y = y + 1", "Enter `lock` around the call of the compiled function"),
    Line("y = scripted(y)", "Use the plain nn.Module", "y = linear(y)"),
    Line("y = lstm(y)[0]", "Call the recurrent layer outside of the compiled function"),
    Line(
        "while y.abs().sum() > 1: y = y * 0.5",
        "Loop a fixed number of times",
        "for _ in range(6): y = torch.where(y.abs().sum() > 1, y * 0.5, y)",
    ),
    Line("for _ in range(3): y = y * y.mean().item()", KEEP.format(".item()"), "for _ in range(3): y = y * y.mean()", SCALAR),
    Line("torch._dynamo.skip_frame()", "Delete the call of `torch._dynamo.skip_frame()`", ""),
    Line(
        "with torch.enable_grad(): y = y + torch.autograd.grad(leaf.square().sum(), leaf)[0].sum()",
        "Compute gradients outside of the compiled function, from what it returns, or set `torch._dynamo.config.trace_autograd_ops",
        None,
        ("trace_autograd_ops", True),
    ),
    Line(
        "y = torch.stack(list(rows_of(y)))",
        BOTH,
        "y = torch.stack([torch.where(row.sum() > 0, row + 1, row - 1) for row in y])",
        at="yield row + 1 if row.sum() > 0 else row - 1",
    ),
    Line('with context(): print(end="")', f"Print {OUTSIDE}"),
    Line("try: y = y + 1 if y.sum() > 0 and y.mean() > 0 else y\n    finally: y = y * 2", BOTH),
)
"""Those behind which PyTorch compiles nothing more of the function, and those whose advice or count depends on what comes after them."""
PARTS = (*(LINES[at::3] for at in range(3)), *((line,) for line in ALONE))
"""What one function holds: the more breaks, the longer PyTorch takes for each."""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Sequence[Sequence[str]]], ModuleType]]:
    """Makes a module of functions `part_0`, `part_1` and so on, each with these lines and a sine after each."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(parts: Sequence[Sequence[str]]) -> ModuleType:
        text = HEAD
        for number, lines in enumerate(parts):
            text += f"\ndef part_{number}(y):\n    y = y.tan()\n"
            text += "".join(f"    {line}\n    y = y.sin()\n" for line in lines) + "    return y\n"
        (tmp_path / f"{tmp_path.name}.py").write_text(text, encoding="utf-8")
        return importlib.import_module(tmp_path.name)

    with torch.no_grad():
        yield load


def graphs_without_ortlens(program: Callable[..., Any]) -> int:
    """How many graphs Dynamo makes of a call for a backend that does nothing else."""
    torch._dynamo.reset()
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compile(program, backend=backend)(X)
    return len(graphs)


def test_breaks_have_their_count_their_lines_and_their_advice(load: Callable[..., ModuleType]) -> None:
    program = load([[line.text for line in lines] for lines in PARTS])
    source = inspect.getsource(program).splitlines()
    first: dict[str, Any] = {}
    for number in range(len(PARTS)):
        lens, part = Lens("eager"), getattr(program, f"part_{number}")
        torch.compile(part, backend=lens)(X)
        breaks = lens.captured().breaks
        for item in breaks:
            first.setdefault(item.source or "", item)
        if number == 0 or len(PARTS[number]) == 1:
            graphs = graphs_without_ortlens(part)
            assert lens.output().graph_count == graphs
            assert lens.output().graph_break_count == max(graphs - 1, len(breaks)), "one per boundary, and those that no graph follows"
    expected = {line.at or line.text.split("\n")[0]: line.advice for lines in PARTS for line in lines}
    assert {line: item.advice and item.advice[: len(expected.get(line) or "")] for line, item in first.items()} == expected
    assert all((item.file, source[(item.line or 0) - 1].strip()) == (program.__file__, line) for line, item in first.items())
    assert any("json" in frame for frame in first['json.dumps({"a": [1]})'].user_stack), "the stack still shows the library"


def assert_unbroken(changed: Callable[..., Any], program: Callable[..., Any]) -> None:
    lens = Lens("ortlens")
    compiled = torch.compile(changed, backend=lens)
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), program(x))
    assert [(item.line, item.reason) for item in lens.captured().breaks] == []


@pytest.mark.slow
def test_the_program_changed_as_advised_has_no_break_and_the_same_result(load: Callable[..., ModuleType]) -> None:
    lines = [line for lines in PARTS for line in lines if line.instead is not None]
    program = load([[line.text for line in lines], [line.instead or "pass" for line in lines]])
    assert_unbroken(program.part_1, program.part_0)


@pytest.mark.slow
def test_with_the_advised_settings_the_program_has_no_break_and_the_same_result(load: Callable[..., ModuleType]) -> None:
    lines = [line for lines in PARTS for line in lines if line.setting is not None]
    program = load([[line.text for line in lines]])
    settings: dict[str, Any] = {}
    for name, value in (line.setting for line in lines if line.setting is not None):
        settings[name] = value if value is True else {*settings.get(name, ()), eval(value, vars(program))}  # noqa: S307 - a name of ours
    with torch._dynamo.config.patch(settings):
        assert_unbroken(program.part_0, program.part_0)
