"""What would avoid a graph break is tried by tracing: nothing of the program runs, nothing stays, and what fails is not advised."""

# ruff: noqa: T201, SIM108 - what breaks the graph, and in which form

import contextlib
import copy
import io
import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import ortlens
from ortlens.lens.measuring import tried_changes

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dynamo about what it cannot trace

X = torch.linspace(0.1, 1, 32).reshape(4, 8)
SCALARS, SHAPES, RNN = (
    f"torch._dynamo.config.{name} = True" for name in ("capture_scalar_outputs", "capture_dynamic_output_shape_ops", "allow_rnn")
)


def scattered(src: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    src = src.sin()
    rows = int(at.max().item()) + 1
    return src.new_zeros(rows, src.shape[1]).index_add_(0, at, src)


def turned(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    return x.cos() if x.sum() > 0 else x.tan()  # either way


def scaled(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    return x / float(x.norm())


def scaled_by_item(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    y: torch.Tensor = x / (1 + x.norm().item())
    return y


def decayed(x: torch.Tensor, at: int) -> torch.Tensor:
    x = x.sin()
    weight = math.exp(-x[0][at])
    return x * weight


def chosen(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    return [x, x.cos()][int(at.item())].tan()


def masked(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    rows = (x[:, 0] > 0).nonzero()[:, 0]
    return x[rows].cos().sum()


def told(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    print("mean", x.mean().item())
    return x.cos()


def shown(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    print("mean", x.mean())
    return x.cos()


def twice(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    x = x * x.mean().item()
    x = x.cos()
    return x * x.amax().item()


def branched(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    if x.sum() > 0:  # either way
        x = x.exp()
    else:
        x = x.cos()
    return x.tan()


def copied(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    kept = copy.deepcopy(x)
    return x.cos() + kept


@torch.compiler.disable
def untraced(x: torch.Tensor) -> torch.Tensor:
    return x


def lowered(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    x = untraced(x)
    return x * x.mean().item()


class Running(nn.Module):
    """A module that keeps numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        self.means.append(0.5 * x.mean().item())
        return x.cos()


class Halved(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.mean().item()


class Layered(nn.Module):
    """A module of whose parts one breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), Halved()

    def forward(self, x: torch.Tensor) -> Any:  # noqa: ANN401 - a module returns anything
        return self.second(self.first(x))


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(8, 8), layer

    def forward(self, x: torch.Tensor) -> Any:  # noqa: ANN401 - likewise
        return self.layer(self.first(x).sin())[0]


class Row(NamedTuple):
    """A program, and what is advised first.

    Attributes:
        target: The program.
        args: Its arguments.
        is_tried: Whether the advice was tried.
        settings: The settings that it names.
        patch: The line as it would be.
        do: How the advice begins.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    is_tried: bool
    settings: tuple[str, ...] = ()
    patch: str | None = None
    do: str = ""


ONE = torch.tensor(1)
TRIED, UNTRIED = (True,), (False,)
ROWS = (
    Row(scattered, (X, torch.tensor([0, 2, 1, 2])), *TRIED, (SCALARS,)),
    Row(scaled, (X,), *TRIED, (), "return x / (x.norm())"),
    Row(decayed, (X, 3), *TRIED, (), "weight = torch.exp(-x[0][at])"),
    Row(masked, (X,), *TRIED, (SHAPES,)),
    Row(shown, (X,), *TRIED, ("torch._dynamo.config.reorderable_logging_functions.add(print)",)),
    Row(Layered(), (X,), *TRIED, (), "return x * x.mean()"),
    Row(branched, (X,), *TRIED, (), "result = torch.where(x.sum() > 0, result_if_true, result_if_false)", "Compute both outcomes"),
    Row(turned, (X,), *TRIED, (), "return torch.where(x.sum() > 0, x.cos(), x.tan())"),
    Row(copied, (X,), *TRIED, (), "kept = x.clone()"),
    Row(Recurrent(nn.GRU(8, 8)), (X,), *TRIED, (RNN,)),
    Row(Recurrent(nn.RNN(8, 8)), (X,), *TRIED, (RNN,)),
    Row(Recurrent(nn.LSTM(8, 8)), (X,), *UNTRIED, (), None, "Call the recurrent layer outside"),
    # What fails is not advised.
    Row(chosen, (X, ONE), *UNTRIED, (), None, "Use `torch.index_select`"),
    Row(told, (X,), *TRIED, (), None, "Print before or after the compiled function"),  # left out, but not printed by PyTorch
)


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tried_changes, "_BUDGET_NS", 10**12)


def first_action(target: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401 - of any program
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        actions = ortlens.explain(target, calls=1)(*args).actions
    return actions[actions.kind == "break"].iloc[0]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: getattr(row.target, "__name__", type(row.target).__name__))
def test_what_removes_a_break_is_advised_and_what_does_not_is_left_out(row: Row) -> None:
    found = first_action(row.target, *row.args)
    assert (bool(found.tried), tuple(found.settings), found.do.startswith(row.do)) == (row.is_tried, row.settings, True)
    assert row.patch == (found.patch if isinstance(found.patch, str) else None)


def test_with_gradients_the_setting_for_recurrent_layers_is_not_to_be_pasted() -> None:
    actions = ortlens.explain(Recurrent(nn.GRU(8, 8)), calls=1)(X).actions
    found = actions[actions.kind == "break"].iloc[0]
    assert (tuple(found.settings), "torch.no_grad()" in found.do) == ((), True)


def test_where_the_backend_fails_the_line_is_named_once_and_what_it_needs() -> None:
    with torch.no_grad():
        lens = ortlens.explain(decayed, calls=1)(X, torch.tensor(3))
    assert {(item.source, "torch.index_select" in (item.advice or "")) for item in lens.captured().breaks} == {
        ("weight = math.exp(-x[0][at])", True)
    }


def test_breaks_are_tried_one_after_the_other_each_with_what_removed_those_before() -> None:
    with torch.no_grad():
        breaks = ortlens.explain(twice, calls=1)(X).captured().breaks
    assert [item.removed_by for item in breaks] == [("keep_in_tensor",)] * 2


def test_what_is_behind_a_break_that_nothing_removes_is_not_said_to_be_tried() -> None:
    with torch.no_grad():
        branch, number = ortlens.explain(lowered, calls=1)(X).captured().breaks
    assert (branch.removed_by, number.removed_by, number.kept_despite) == ((), (), ())


def test_nothing_runs_and_nothing_stays(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Counter[str]()

    def counted(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        runs["python"] += 1
        print("mean", x.mean())
        return x * float(x.norm())

    counters.clear()
    code, config = counted.__code__, torch._dynamo.config.get_config_copy()
    with torch.no_grad():
        lens = ortlens.explain(counted, calls=1)(X)
        assert any(item.removed_by for item in lens.captured().breaks)
        assert (runs["python"], capsys.readouterr().out.count("mean")) == (1, 1)
        assert counted.__code__ is code
        assert torch._dynamo.config.get_config_copy() == config
        before = sum(counters["graph_break"].values())
        plain = ortlens.Lens("eager")
        torch.compile(counted, backend=plain)(X)
    assert not any(item.removed_by or item.kept_despite for item in plain.captured().breaks), "only `explain` tries"
    assert sum(counters["graph_break"].values()) == 2 * before, "what was tried counts nowhere"


def explained(target: Callable[..., Any]) -> ortlens.Lens:
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        return ortlens.explain(target)(X)


@pytest.mark.parametrize("target", [copied, told, branched, Layered(), twice])
def test_what_was_tried_is_timed(target: Callable[..., Any]) -> None:
    lens = explained(target)
    saved = [item.saved_ns for item in lens.captured().breaks]
    assert saved
    assert all(ns is not None and ns >= 0 for ns in saved)
    gains = lens.actions.gain_ns[lens.actions.kind == "break"].sum()
    assert gains == sum(ns or 0 for ns in saved)
    assert "with and without it" in " ".join(lens.summary().split())


def test_a_changed_line_that_changes_more_than_the_result_is_not_run() -> None:
    module = Running()
    (item,) = explained(module).captured().breaks
    assert "keep_in_tensor" in item.removed_by
    assert {type(mean) for mean in module.means} == {float}


@pytest.mark.parametrize(
    ("gains", "removed_by", "kept_despite", "saved"),
    [
        ({"keep_in_tensor": 7, SCALARS: 9}, (SCALARS, "keep_in_tensor"), (), 9),
        ({"keep_in_tensor": -4, SCALARS: -9}, ("keep_in_tensor",), (SCALARS,), 0),
        ({"keep_in_tensor": None, SCALARS: 0}, ("keep_in_tensor",), (SCALARS,), None),
        ({"keep_in_tensor": None, SCALARS: "raises"}, ("keep_in_tensor",), (SCALARS,), None),
        ({"keep_in_tensor": "raises", SCALARS: 9}, (SCALARS,), ("keep_in_tensor",), 9),
    ],
)
def test_what_takes_no_less_time_is_not_advised_as_a_setting(
    gains: dict[str, Any],
    removed_by: tuple[str, ...],
    kept_despite: tuple[str, ...],
    saved: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def timed(_self: tried_changes.Trials, way: tried_changes.Helpful, *_: Any) -> Any:  # noqa: ANN401 - of any kind
        if gains[way.name] == "raises":
            raise RuntimeError("of the program")
        return gains[way.name]

    monkeypatch.setattr(tried_changes.Trials, "_timed", timed)
    (item,) = explained(scaled_by_item).captured().breaks
    assert (item.removed_by, item.kept_despite, item.saved_ns) == (removed_by, kept_despite, saved)


LOG = logging.getLogger("model")


def logs_behind(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    io.StringIO().close()
    x = x.cos()
    LOG.warning("x")
    return x.tan()


@pytest.mark.parametrize(("named", "removes"), [(logging.Logger.warning, True), (logging.Logger.info, False)])
def test_a_setting_is_tried_behind_a_break_that_stays(named: Any, removes: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401, FBT001 - a row
    monkeypatch.setattr(tried_changes, "_named", lambda _node: named)
    with torch.no_grad():
        *_, item = ortlens.explain(logs_behind)(X).captured().breaks
    line = "torch._dynamo.config.ignore_logging_functions.add(logging.Logger.warning)"
    assert line in (item.removed_by if removes and item.saved_ns else item.kept_despite)


def test_what_a_lens_reports_is_not_logged_as_well() -> None:
    heard: list[str] = []

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    logging.getLogger("torch").addHandler(handler := Hearing())
    ortlens.explain(scaled_by_item, calls=1)(X)
    logging.getLogger("torch").removeHandler(handler)
    assert [text for text in heard if text.startswith("Graph break from")] == []
