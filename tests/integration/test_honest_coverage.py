"""Code that runs outside the graphs: no screen may say that ONNX Runtime runs everything."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ortlens
from ortlens.analysis.coverage import coverage_of
from ortlens.analysis.overview import overview_of
from ortlens.views.html import summary_html
from ortlens.views.payload import payload_from_capture
from ortlens.views.report.page import report_page
from ortlens.views.text import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _busy() -> int:
    return sum(i * i for i in range(20_000))


def _affine(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def heavy_python_between(x: torch.Tensor) -> torch.Tensor:
    y = _affine(x)
    torch._dynamo.graph_break()
    _busy()
    return _affine(y)


@torch.compiler.disable
def _kept_out(x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        x = _affine(x).relu()
    return x


class Disabled(torch.nn.Module):
    """A part of the model is never compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _kept_out(self.first(x))  # type: ignore[no-any-return]  # of a decorated function


def skipped_frame(x: torch.Tensor) -> torch.Tensor:
    try:
        torch._dynamo.graph_break()
        y = _affine(x)
    finally:
        _busy()
    return y


def from_a_generator(x: torch.Tensor) -> torch.Tensor:
    def pieces() -> Iterator[torch.Tensor]:
        try:
            yield x.sin()
            torch._dynamo.graph_break()
            yield x.cos()
        finally:
            _busy()

    return _affine(sum(pieces(), torch.zeros(())))


def asks_for_a_value(x: torch.Tensor) -> torch.Tensor:
    y = _affine(x)
    return y.sin() if y.sum() > 0 else y.cos()


OUTSIDE: dict[str, Callable[..., Any]] = {
    "heavy Python between graphs": heavy_python_between,
    "a disabled part": Disabled().eval(),
    "a frame that is skipped": skipped_frame,
    "a generator": from_a_generator,
}


def screens(lens: ortlens.Lens) -> dict[str, str]:
    """Every text that says how much runs in ONNX Runtime."""
    capture = lens.captured()
    overview = payload_from_capture(capture)["overview"]
    page = report_page(capture, models=False)
    return {
        "summary": " ".join(lens.summary().split()),
        "repr": repr(lens),
        "html": summary_html(capture),
        "report": page[: page.index('<section class="or-explorer')] + page[page.index("<main>") : page.index("</main>")],
        "explorer": f"{overview['verdict']} {overview['coverage_sentence']}",
    }


@pytest.mark.parametrize("name", OUTSIDE)
@torch.no_grad()
def test_code_outside_the_graphs_is_on_every_screen(name: str) -> None:
    lens = ortlens.explain(OUTSIDE[name], calls=6)(torch.rand(2, 4))
    said = screens(lens)
    assert lens.graphs.coverage.eq(1.0).all(), "everything that was compiled runs in ONNX Runtime"
    for name_of_screen, text in said.items():
        assert not re.search(r"[Ee]verything: |100 % of the model|, 100 % in ONNX", text), name_of_screen
        assert "of the compiled code" in text, name_of_screen
    for name_of_screen in ("summary", "html", "report", "explorer"):
        assert re.search(r"[\d.]+ % of a call(&#x27;|')s time", said[name_of_screen]), name_of_screen
    assert re.search(r"graph breaks? leaves? code outside it", said["summary"])
    assert overview_of(lens.captured()).coverage.verdict == "compiled"
    assert '<div class="ol-bar"' not in said["html"], "a full bar of operators would say everything"


_MOVES_NOTHING = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_strided", "as_strided", "view", "reshape", "_reshape_alias", "t", "transpose", "detach", "alias", "set_")
)
_LAYERS = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4), torch.nn.LayerNorm(4)).eval()
INSIDE: dict[str, Callable[..., Any]] = {
    "layers": _LAYERS,
    "a sort": lambda x: _affine(x.sort(dim=1)[0]),
    "NumPy's functions": lambda x: _affine(torch.from_numpy(x.numpy() * 2)),
    "a checkpoint": lambda x: torch.utils.checkpoint.checkpoint(_affine, x, use_reentrant=False),
}


@pytest.mark.parametrize("name", [*OUTSIDE, *INSIDE])
@torch.no_grad()
def test_what_is_said_to_run_whole_runs_no_operator_of_pytorch(name: str) -> None:
    """Held against PyTorch's own profiler, which sees each operator that PyTorch runs."""
    lens, x = ortlens.Lens(), torch.rand(2, 4)
    fast = torch.compile((OUTSIDE | INSIDE)[name], backend=lens)
    for _ in range(3):
        fast(x)
    with torch.autograd.profiler.profile() as profiled:
        fast(x)
    ran = {event.name for event in profiled.function_events or () if event.name.startswith("aten::")} - _MOVES_NOTHING
    assert (overview_of(lens.captured()).coverage.verdict == "whole") is (name in INSIDE)
    assert not (ran and name in INSIDE), ran


@torch.no_grad()
def test_the_recompile_limit_leaves_code_outside() -> None:
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return _affine(x) * factor

    lens = ortlens.Lens()
    fast = torch.compile(scaled, backend=lens, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        for factor in (0.5, 1.5, 2.5, 3.5):
            fast(torch.rand(3), factor)
    for name, text in screens(lens).items():
        assert not re.search(r"[Ee]verything: |100 % of the model|, 100 % in ONNX", text), name
    assert "runs scaled in plain Python from now on" in lens.summary()


@torch.no_grad()
def test_a_dry_run_that_ended_early_does_not_say_everything() -> None:
    lens = ortlens.explain(asks_for_a_value, dry_run=True)(torch.rand(3))
    for name, text in screens(lens).items():
        assert not re.search(r"[Ee]verything: |100 % of the model|, 100 % in ONNX", text), name
    said = " ".join(lens.summary().split())
    line = inspect.getsourcelines(asks_for_a_value)[1]
    assert re.search(r"the dry run ended at \S+:(\d+), where the model needs the values of a tensor, and what follows is unknown", said)
    assert int(lens.findings.line[lens.findings.rule == "dry_run_ended"].iloc[0]) > line
    assert "dry run, cut short at " in payload_from_capture(lens.captured())["overview"]["verdict"]


@torch.no_grad()
def test_a_dry_run_that_ended_before_its_first_graph_knows_nothing() -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))

    def decides(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
            if x.sum() > 0:
                x = x.relu()
        return x

    lens = ortlens.explain(decides, dry_run=True)(torch.rand(2, 3))
    assert lens.graphs.empty
    for name, text in screens(lens).items():
        assert "ran it as it is" not in text, name
        assert "dry run" in text, name
    overview = payload_from_capture(lens.captured())["overview"]
    assert overview["verdict"].startswith("unknown: the dry run ended at ")
    assert overview["dry_run_sentence"].startswith("a dry run with fake tensors: nothing was run")


@torch.no_grad()
def test_a_whole_dry_run_says_that_nothing_ran() -> None:
    lens = ortlens.explain(torch.nn.Linear(3, 3), dry_run=True)(torch.rand(2, 3))
    assert payload_from_capture(lens.captured())["overview"]["verdict"].startswith("dry run: 100 % of the model would run in ONNX Runtime")
    assert "Dry run" in lens.summary()


@torch.no_grad()
def test_a_function_that_could_not_be_compiled_at_all_says_why() -> None:
    def hopeless(x: torch.Tensor) -> torch.Tensor:
        try:
            torch._dynamo.graph_break()
        finally:
            y = x.sin()
        return y

    lens = ortlens.Lens()
    torch.compile(hopeless, backend=lens)(torch.rand(3))
    assert lens.graphs.empty
    said = " ".join(lens.summary().split())
    assert "nothing: PyTorch could not compile the function, and ran it as it is" in said
    assert "Graph breaks 1 place" in said


@torch.no_grad()
def test_a_function_without_breaks_is_still_everything() -> None:
    lens = ortlens.explain(_affine, calls=1)(torch.rand(3))
    assert "everything: all 2 compute nodes (100 %)" in lens.summary()
    assert "100 % of the model runs" in payload_from_capture(lens.captured())["overview"]["verdict"]


def _headline(lens: ortlens.Lens) -> list[str]:
    """What the first screen says about coverage, partitions, splits and compiling."""
    heads = ("Time in ORT", "Splits", "In ONNX Runtime", "Partitions", "Recompiles", "Compile time")
    return [line for line in summary(lens.captured(), width=400).splitlines() if line.startswith(heads)]


@pytest.mark.parametrize("mode", ["inference", "inference, verified with gradients", "training without a backward", "training"])
def test_verify_changes_no_coverage(mode: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Softplus(), torch.nn.Conv1d(4, 4, 3, padding=1), torch.nn.Linear(16, 4))
    x = torch.randn(4, 8)
    with torch.set_grad_enabled("training" in mode):
        lens = ortlens.Lens()
        compiled = torch.compile(model, backend=lens)
        result = compiled(x)
    if mode == "training":
        result.sum().backward()
    before, coverage, line = _headline(lens), coverage_of(lens.captured()), repr(lens)
    with torch.set_grad_enabled(mode != "inference"):
        lens.verify(x)
    assert _headline(lens) == before
    assert coverage_of(lens.captured()) == coverage
    assert repr(lens) == line
    assert lens.graphs.only_verified.any() == ("without" in mode or "with gradients" in mode), "the frame names what verify compiled"


def test_a_backward_that_the_program_calls_after_verify_counts() -> None:
    model, x = torch.nn.Linear(8, 4), torch.randn(4, 8)
    lens = ortlens.Lens()
    compiled = torch.compile(model, backend=lens)
    compiled(x)
    lens.verify(x)
    assert coverage_of(lens.captured()).graph_count == 1
    compiled(x).sum().backward()
    assert coverage_of(lens.captured()).graph_count == 2
    assert not lens.graphs.only_verified.any()
