"""What happens inside a library is the consequence of the user's line that calls it, unless the library holds the model."""

import importlib
import logging
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import ortlens
from ortlens.analysis.problems.stream import problems_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dynamo about what it cannot trace

X = torch.linspace(0.1, 1, 32).reshape(4, 8)
_LOG = logging.getLogger(__name__)
_DROP = "torch._dynamo.config.ignore_logging_functions.add(logging.Logger.warning)"
_LIBRARY = """
import time
from torch import nn

class Run:
    def track(self, values):
        for value in values.values():
            if value > 1e9:
                time.time()

class Net(nn.Module):
    def forward(self, x):
        return mixed(x.sin())

def mixed(x):
    return x.cos() if x.sum() > 0 else x

def scaled(x):
    x = x.double()
    if x.sum() > 0:
        x = x + 1
    return x.float()
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = tmp_path / "site-packages" / "trackers"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(_LIBRARY)
    monkeypatch.syspath_prepend(folder.parent)
    return importlib.reload(importlib.import_module("trackers"))


def warned(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        if x.sum() > 0 and x.mean() > 0:  # PyTorch gives the function up
            x = x.sin()
    _LOG.warning("largest %s", x.max())
    return x


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_python_logs_with_is_named_by_the_line_that_logs(*, dynamic: bool | None) -> None:
    lens = ortlens.explain(warned, dynamic=dynamic, calls=4)(X)
    line = warned.__code__.co_firstlineno + 4
    capture = lens.captured()
    assert capture.graphs, "PyTorch compiles what the logger computes"
    assert {frame.file.tolist()[0] for frame in (lens.breaks, lens.graphs, lens.recompiles, lens.nodes)} == {__file__}
    assert {place for frame in (lens.graphs, lens.recompiles, lens.nodes) for place in frame.line} == {line}
    (problem,) = [item for item in problems_of(capture) if item.line == line]
    assert problem.settings == (_DROP,)
    assert "recompile" in [item.rule for item in problem.consequences]


class Tracked(nn.Module):
    def __init__(self, library: ModuleType) -> None:
        super().__init__()
        self.run, self.scaled = library.Run(), library.scaled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        self.run.track({"mean": x.mean()})
        x = self.scaled(x.cos())
        return x.tan()


def test_a_call_of_a_library_is_moved_as_a_whole_with_what_follows_from_it(library: ModuleType) -> None:
    lens = ortlens.explain(Tracked(library))(X)
    problems = [item for item in problems_of(lens.captured()) if item.kind == "break"]
    assert {(item.file, item.source, item.todo) for item in problems} == {
        (__file__, 'self.run.track({"mean": x.mean()})', "Call `self.run.track` before or after the compiled function"),
        (__file__, "x = self.scaled(x.cos())", "Call `self.scaled` before or after the compiled function"),
    }
    assert set(lens.nodes.file) == {__file__}
    assert "float64_nodes" not in lens.actions.subject.tolist()


def test_a_library_that_holds_the_model_keeps_its_lines(library: ModuleType) -> None:
    lens = ortlens.explain(nn.Sequential(library.Net()))(X)
    assert set(lens.breaks.file) | set(lens.nodes.file) == {library.__file__}


def doubled(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    _LOG.warning("doubled")
    torch._dynamo.graph_break()
    return x * 2


class _Slow(logging.Handler):
    def emit(self, _record: logging.LogRecord) -> None:
        time.sleep(0.002)


def test_what_drops_a_log_line_is_tried_beside_another_break_and_the_log_is_no_saving() -> None:
    handler = _Slow()
    _LOG.addHandler(handler)
    try:
        item = ortlens.explain(doubled)(X).captured().breaks[0]
        with torch._dynamo.config.patch(ignore_logging_functions={logging.Logger.warning}):
            lens = ortlens.explain(doubled)(X)
    finally:
        _LOG.removeHandler(handler)
    assert item.removed_by == ("log_outside", _DROP)
    figures = lens.captured().figures
    assert figures.dropped == ("logging.Logger.warning",)
    assert (figures.dropped_ns or 0) > 0
    assert "eager also runs `logging.Logger.warning`" in " ".join(lens.summary().split())
