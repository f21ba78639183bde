"""What happens inside a library is the consequence of the user's line that calls it, unless the library holds the model."""

import importlib
import logging
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import ortlens
from ortlens.analysis.problems.stream import problems_of
from ortlens.lens.measuring import tried_changes

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dynamo about what it cannot trace

X = torch.linspace(0.1, 1, 32).reshape(4, 8)
_LOG = logging.getLogger(__name__)
_DROP = "torch._dynamo.config.ignore_logging_functions.add(logging.Logger.warning)"
_LIBRARY = """
from torch import nn
class Net(nn.Module):
    def forward(self, x):
        return scaled(x.sin())
def scaled(x):
    x = x.double()
    if x.sum() > 0:
        x = x + 1
    return x.float()
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "trackers.py").write_text(_LIBRARY)
    monkeypatch.syspath_prepend(folder)
    return importlib.reload(importlib.import_module("trackers"))


def warned(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        if x.sum() > 0 and x.mean() > 0:  # PyTorch gives the function up
            x = x.sin()
    _LOG.warning("largest %s", x.max())
    return x


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_python_logs_with_is_named_by_the_line_that_logs(*, dynamic: bool | None) -> None:
    lens, line = ortlens.explain(warned, dynamic=dynamic, calls=4)(X), warned.__code__.co_firstlineno + 4
    tables = (lens.graphs, lens.recompiles, lens.nodes)  # of what the logger computes
    assert [{*zip(table.file, table.line, strict=True)} for table in tables] == [{(__file__, line)}] * 3
    (problem,) = [item for item in problems_of(lens.captured()) if item.line == line]
    assert problem.settings == (_DROP,)
    assert "recompile" in [item.rule for item in problem.consequences]


def test_a_call_of_a_library_is_moved_as_a_whole_with_what_follows_from_it(library: ModuleType) -> None:
    def calling(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = library.scaled(x.cos())
        return y.tan()

    lens = ortlens.explain(calling)(X)
    (advised,) = {(item.file, item.todo) for item in problems_of(lens.captured()) if item.kind == "break"}
    assert advised == (__file__, "Call `library.scaled` before or after the compiled function")
    assert set(lens.nodes.file) == {__file__}
    assert "float64_nodes" not in {item.rule for item in problems_of(lens.captured())}


def test_a_library_that_holds_the_model_keeps_its_lines(library: ModuleType) -> None:
    lens = ortlens.explain(nn.Sequential(library.Net()))(X)
    assert set(lens.breaks.file) | set(lens.nodes.file) == {library.__file__}


def doubled(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    _LOG.warning("doubled")
    torch._dynamo.graph_break()
    return x * 2


def test_what_drops_a_log_line_is_tried_beside_another_break_and_said_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tried_changes, "_BUDGET_NS", 10**11)
    assert ortlens.explain(doubled)(X).captured().breaks[0].removed_by == ("log_outside", _DROP)
    with torch._dynamo.config.patch(ignore_logging_functions={logging.Logger.warning}):
        lens = ortlens.explain(doubled)(X)
    assert "eager also runs `logging.Logger.warning`" in " ".join(lens.summary().split())
