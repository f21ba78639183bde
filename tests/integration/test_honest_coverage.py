"""Code that runs outside the graphs: no screen may say that ONNX Runtime runs everything."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import ortlens
from ortlens.analysis.answers.overview import figures_of
from ortlens.analysis.coverage import coverage_of
from ortlens.views.payload import payload_from_capture
from ortlens.views.rendering import mimebundle
from ortlens.views.report import report_page


def _busy() -> int:
    return sum(i * i for i in range(200))


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


def hopeless(x: torch.Tensor) -> torch.Tensor:
    try:
        torch._dynamo.graph_break()
    finally:
        y = x.sin()
    return y


def asks_for_a_value(x: torch.Tensor) -> torch.Tensor:
    y = _affine(x)
    return y.sin() if y.sum() > 0 else y.cos()


OUTSIDE: dict[str, Callable[..., Any]] = {
    "heavy Python between graphs": heavy_python_between,
    "a disabled part": Disabled().eval(),
    "a frame that is skipped": skipped_frame,
    "a generator": from_a_generator,
    "nothing compiled": hopeless,
}


@torch.no_grad()
def undecided() -> ortlens.Lens:
    """A dry run that ended before its first graph."""
    layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))

    def decides(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
            if x.sum() > 0:
                x = x.relu()
        return x

    return ortlens.explain(decides, dry_run=True)(torch.rand(2, 3))


@torch.no_grad()
def broken() -> ortlens.Lens:
    return ortlens.explain(heavy_python_between, calls=6)(torch.rand(2, 4))


@pytest.mark.parametrize(("made", "verdict"), [(broken, "compiled"), (undecided, "empty")])
def test_no_screen_says_everything_of_code_outside_the_graphs(made: Callable[[], ortlens.Lens], verdict: str) -> None:
    lens = made()
    capture = lens.captured()
    page, overview = report_page(capture, models=False), payload_from_capture(capture)["overview"]
    screens = {
        "summary": " ".join(lens.summary().split()),
        "repr": repr(lens),
        "html": mimebundle(lambda: capture)["text/html"],
        "report": page[: page.index('<section class="or-explorer')] + page[page.index("<main>") : page.index("</main>")],
        "explorer": f"{overview['verdict']} {overview['answers']['ort'][0]}",
    }
    assert coverage_of(capture).verdict == verdict
    for name, text in screens.items():
        assert not re.search(r"[Ee]verything: |100 % of the model|, 100 % in ONNX", text), name


_MOVES_NOTHING = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_strided", "as_strided", "view", "reshape", "_reshape_alias", "t", "transpose", "detach", "alias", "set_")
)
_LAYERS = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4), torch.nn.LayerNorm(4)).eval()
INSIDE: tuple[Callable[..., Any], ...] = (
    _LAYERS,
    lambda x: _affine(x.sort(dim=1)[0]),
    lambda x: _affine(torch.from_numpy(x.numpy() * 2)),
    lambda x: torch.utils.checkpoint.checkpoint(_affine, x, use_reentrant=False),
)


@pytest.mark.parametrize("name", OUTSIDE)
@torch.no_grad()
def test_code_outside_the_graphs_leaves_no_whole(name: str) -> None:
    lens = ortlens.Lens()
    torch.compile(OUTSIDE[name], backend=lens)(torch.rand(2, 4))
    assert lens.graphs.coverage.eq(1.0).all(), "everything that was compiled runs in ONNX Runtime"
    coverage = coverage_of(lens.captured())
    assert coverage.verdict == ("empty" if OUTSIDE[name] is hopeless else "compiled")
    assert coverage.break_count


@torch.no_grad()
def test_what_is_said_to_run_whole_runs_no_operator_of_pytorch() -> None:
    """Held against PyTorch's own profiler, which sees each operator that PyTorch runs."""
    lens, x = ortlens.Lens(), torch.rand(2, 4)
    fast = torch.compile(lambda x: [function(x) for function in INSIDE], backend=lens)
    for _ in range(3):
        fast(x)
    with torch.autograd.profiler.profile() as profiled:
        fast(x)
    assert coverage_of(lens.captured()).verdict == "whole"
    assert not {event.name for event in profiled.function_events or () if event.name.startswith("aten::")} - _MOVES_NOTHING


class Layers(torch.nn.Module):
    """PyTorch gives its forward up, and compiles the layers one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if x.sum() > 1e6:  # three operators
                x = x / 2
            x = layer(x).sin()
        return x.cos()


@torch.no_grad()
def test_a_function_that_was_given_up_is_on_every_screen() -> None:
    lens = ortlens.explain(Layers().eval())(torch.rand(2, 4))
    capture, (problem, *_) = lens.captured(), lens.actions.to_dict("records")
    lost = lens.frames[lens.frames.operators.fillna(0) > 0]
    assert [(row.frame, row.status, row.operators, row.cause) for row in lost.itertuples()] == [("Layers.forward", "failed", 13, "loop")]
    coverage, code = coverage_of(capture), payload_from_capture(capture)["overview"]["code"]
    assert (coverage.operator_count, coverage.compiled_operator_count, coverage.share) == (13, 0, 0.0)
    first = inspect.getsourcelines(Layers.forward)[1]
    assert [(row["line"] - first, row["state"]) for row in code["lines"] if row["state"]] == [
        (2, "uncompiled"),
        (4, "uncompiled"),
        (5, "uncompiled"),
    ]
    assert (problem["kind"], problem["line"]) == ("break", first + 2)
    assert "Layers.forward given up" in lens.summary()
    assert figures_of(capture)["skipped"] == 1
    with pytest.raises(ortlens.CheckFailed, match=r"Layers\.forward"):
        lens.check(max_skipped=0)


@torch.no_grad()
def test_lines_of_a_call_and_where_they_run() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = _affine(x) + x.mode(dim=-1, keepdim=True).values
        if y.sum() > 0:
            y = _affine(y)
        return _kept_out(y)  # type: ignore[no-any-return]  # of a decorated function

    lens = ortlens.explain(model)(torch.rand(2, 4))
    lines = payload_from_capture(lens.captured())["overview"]["code"]["lines"]
    assert [(line["state"], line["operators"]) for line in lines if line["state"]] == [
        ("torch", 4),
        ("between", 3),
        ("ort", 2),
        ("uncompiled", 150),
    ]
    coverage = coverage_of(lens.captured())
    assert (coverage.ort_operator_count, coverage.compiled_operator_count, coverage.operator_count) == (7, 8, 159)
    assert lens.check(max_skipped=2, min_coverage=0.03).verdict.tolist() == ["passed", "passed"]


class Nested(torch.nn.Module):
    """Its layers are modules of their own, with a graph break between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Layers()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(_affine(x)).mode(dim=-1).values
        return y * 2


@torch.no_grad()
def test_lines_of_the_target_are_found_below_functions_of_the_program() -> None:
    model, lens, x = Nested().eval(), ortlens.Lens(), torch.rand(2, 4)
    fast = torch.compile(model, backend=lens)

    def evaluate(step: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return step(x) + 1

    fast(x)
    lens.measured(lambda: evaluate(fast), uncompiled=lambda: evaluate(model))
    found = payload_from_capture(lens.captured())["overview"]["code"]
    first = inspect.getsourcelines(Nested.forward)[1]
    assert found["function"] == "Nested.forward"
    states = [(row["line"] - first, row["state"], row["operators"]) for row in found["lines"]]
    assert states == [(0, None, 0), (1, "uncompiled", 16), (2, "ort", 1)]  # no line of `evaluate`


@torch.no_grad()
def test_the_recompile_limit_leaves_code_outside() -> None:
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return _affine(x) * factor

    lens = ortlens.Lens()
    fast = torch.compile(scaled, backend=lens, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        for factor in (0.5, 1.5, 2.5, 3.5):
            fast(torch.rand(3), factor)
    assert coverage_of(lens.captured()).verdict == "compiled"


@torch.no_grad()
def test_a_dry_run_that_ended_early_is_not_whole() -> None:
    lens = ortlens.explain(asks_for_a_value, dry_run=True)(torch.rand(3))
    coverage = coverage_of(lens.captured())
    assert (coverage.verdict, coverage.is_cut_short) == ("compiled", True)
    assert lens.findings.line[lens.findings.rule == "dry_run_ended"].item() > inspect.getsourcelines(asks_for_a_value)[1]


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
    coverage, line, counts = coverage_of(lens.captured()), repr(lens), repr(lens.output())
    with torch.set_grad_enabled(mode != "inference"):
        lens.verify(x)
    assert coverage_of(lens.captured()) == coverage
    assert (repr(lens), repr(lens.output()), len(lens.recompiles)) == (line, counts, 0)
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
