"""Rules on real models: the fault is planted, and the finding names it; on clean models nothing is found."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from ortlens.analysis.problems.stream import RULES, findings_of
from ortlens.analysis.roofline import roofs
from ortlens.lens.observing import environment
from ortlens.trace.records import Finding

FILE = __file__


def called(target: Callable[..., Any], *args: torch.Tensor, calls: int = 12, options: Mapping[str, Any] | None = None) -> Lens:
    with torch.no_grad():
        return ortlens.explain(target, calls=calls, options=options)(*args)


def told(lens: Lens, rule: str) -> list[Finding]:
    return [finding for finding in findings_of(lens.captured()) if finding.rule == rule]


def line_of(function: Callable[..., Any], offset: int) -> int:
    return int(function.__code__.co_firstlineno) + offset


class Layers(nn.Module):
    """Some layers of moderate size with something between them."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor], count: int = 3, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.between(layer(x))
        return x


def between(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.special.bessel_j0(x)
    return made


def test_an_operator_that_stays_behind_is_named_with_its_line() -> None:
    lens = called(Layers(between, count=4), torch.randn(64, 256))
    (action,) = lens.actions[lens.actions.kind == "fallback"].itertuples()
    assert action.subject == "prims.bessel_j0.default"
    assert (action.file, action.line) == (FILE, line_of(between, 1))
    assert "bessel_j0" in lens.summary()
    assert "bessel_j0" in lens._repr_html_()
    assert lens.captured().findings == ()
    assert RULES.keys() >= set(lens.findings.rule)


def test_dropout_left_on_is_named() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    assert "Draw the random" in str(called(model.train(), torch.ones(2, 8)).actions.do[0])
    assert called(model.eval(), torch.ones(2, 8)).actions.empty


@pytest.mark.parametrize(("fixed", "count"), [(False, 1), (True, 0)])
def test_a_session_per_size_is_told(fixed: bool, count: int) -> None:  # noqa: FBT001
    lens = ortlens.Lens(options={"export_options": {"dynamic_shapes": fixed}})
    compiled = torch.compile(lambda x: x.sin() + 1, backend=lens, dynamic=True)
    with torch.no_grad():
        for rows in range(3, 9):
            compiled(torch.ones(rows, 4))
    findings = told(lens, "session_churn")
    assert len(findings) == count
    assert lens.sessions.cause.tolist() == (["first"] if fixed else ["first", *["sizes"] * 5])
    if count:
        assert "6 sessions" in findings[0].title


def test_weights_that_change_are_told_and_then_that_they_are_not_frozen() -> None:
    layer, lens = nn.Linear(256, 256), ortlens.Lens()
    compiled, x = torch.compile(layer, backend=lens), torch.ones(1, 256)
    with torch.no_grad():
        compiled(x)
        assert told(lens, "weights_changed") == told(lens, "unfrozen_weights") == []
        for number in range(3):
            layer.weight.add_(1)
            torch.testing.assert_close(compiled(x), layer(x))
            (finding,) = told(lens, "weights_changed")
            assert (finding.file, finding.line) == (FILE, line_of(test_weights_that_change_are_told_and_then_that_they_are_not_frozen, 7))
            assert not finding.settings or number == 2
    assert lens.sessions.cause.tolist() == ["first", "weights", "weights", "weights"]
    assert lens.sessions.frozen_bytes.tolist() == [4 * 256 * 257] * 3 + [0]
    assert lens.sessions.changed_weights.tolist() == [(), *[("weight",)] * 3]
    assert told(lens, "unfrozen_weights") == []  # of one change, one recommendation


def updated_by_hand(layer: nn.Module) -> Callable[[], None]:
    @torch.no_grad()
    def step() -> None:
        for parameter in layer.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad.square().sqrt(), alpha=1e-3)

    return step


@pytest.mark.parametrize("kind", ["by hand", "Adam"])
def test_gradients_are_no_weights_that_somebody_replaced(kind: str) -> None:
    layer, lens = nn.Linear(256, 256), ortlens.Lens()
    optimiser = torch.optim.Adam(layer.parameters())
    step = torch.compile(updated_by_hand(layer) if kind == "by hand" else optimiser.step, backend=lens)
    for _ in range(5):
        optimiser.zero_grad()
        layer(torch.ones(1, 256)).square().sum().backward()
        step()
    assert lens.sessions.cause.tolist() == ["first"]
    assert told(lens, "weights_changed") == told(lens, "unfrozen_weights") == []


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def test_a_number_that_changes_with_every_call_is_a_storm() -> None:
    lens = ortlens.Lens()
    compiled = torch.compile(scaled, backend=lens, dynamic=False)
    with torch.no_grad():
        for number in range(6):
            compiled(torch.ones(2), number)
    (action,) = lens.actions.itertuples()
    assert (action.kind, action.rank) == ("recompile", 1)
    assert "factor" in str(action.do)
    assert "5 recompiles" in lens.summary()
    with torch.no_grad():
        for number in range(6, 12):
            compiled(torch.ones(2), number)
    assert "limit" in str(lens.actions[lens.actions.kind == "break"].subject.iloc[0])


class Stopping(nn.Module):
    """A layer with a break in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        torch._dynamo.graph_break()
        return x.sin()


def test_weights_of_several_modules_follow_from_the_break_in_their_layer() -> None:
    lens = called(nn.Sequential(*(Stopping() for _ in range(4))), torch.ones(2, 8), calls=30)
    first = lens.actions.iloc[0]
    assert (first.kind, first.file, first.line) == ("break", FILE, line_of(Stopping.forward, 2))
    (changed,) = told(lens, "weights_changed")
    assert "several modules share its code" in changed.evidence
    assert changed.title in first.consequences


def called_with_rows(model: nn.Module, *rows: int) -> Lens:
    compiled = torch.compile(model.eval(), backend="ortlens")
    with ortlens.capture() as lens, torch.no_grad():
        for count in rows:
            compiled(torch.ones(count, 8))
    return lens


class VaryingLength(nn.Module):
    """Layers with a break in them, on as many rows as the call number says."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Stopping() for _ in range(3))
        self.lengths = itertools.cycle((5, 7, 6, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        x = x[: next(self.lengths)]
        for layer in self.layers:
            x = layer(x)
        return x


LAYERS = [nn.Linear(8, 8) for _ in range(3)]


def each_compiled() -> Lens:
    lens, x = ortlens.Lens(), torch.ones(1, 8)
    with torch.no_grad():
        for layer in [torch.compile(layer, backend=lens) for layer in LAYERS] * 2:
            x = layer(x)
    return lens


@pytest.mark.parametrize(
    ("run", "count"),
    [
        (lambda: called_with_rows(nn.Sequential(*(Stopping() for _ in range(3))), 5, 7, 7, 7, 7), 2),  # the first version runs no more
        (lambda: called_with_rows(nn.Sequential(*(Stopping() for _ in range(6))), 5), 1),
        (lambda: called(VaryingLength().eval(), torch.ones(9, 8), calls=6), 2),  # no call of the first version is measured
        (each_compiled, 1),
    ],
    ids=["capture", "single call", "explain", "global list"],
)
def test_modules_that_share_code_are_no_change_of_weights(run: Callable[[], Lens], count: int) -> None:
    lens = run()
    titles = [finding.title for finding in told(lens, "weights_changed")]
    assert len(titles) == count
    assert all("several modules share" in title and "changed" not in title for title in titles)
    assert set(lens.sessions.weights_change.dropna()) == {"other_module"}


def test_parameters_that_are_assigned_are_not_said_to_be_another_module() -> None:
    layer, lens = nn.Linear(8, 8), ortlens.Lens()
    compiled, x = torch.compile(layer, backend=lens), torch.ones(1, 8)
    with torch.no_grad():
        compiled(x)
        layer.weight = nn.Parameter(torch.rand(8, 8))
        torch.testing.assert_close(compiled(x), layer(x))
        layer.weight.mul_(2)
        torch.testing.assert_close(compiled(x), layer(x))
    assert lens.sessions.weights_change.tolist()[1:] == ["replaced", "written"]
    (finding,) = told(lens, "weights_changed")
    assert lens.sessions.changed_weights.tolist()[1:] == [("weight",)] * 2
    assert finding.settings == ()


def test_a_model_called_without_no_grad_is_told() -> None:
    model, x = nn.Linear(8, 8), torch.ones(2, 8)
    assert len(told(ortlens.explain(model, calls=5)(x), "training_forward")) == 1
    assert told(called(model, x), "training_forward") == []
    lens = ortlens.Lens()
    compiled = torch.compile(model, backend=lens)
    for _ in range(4):
        compiled(x).sum().backward()
    assert told(lens, "training_forward") == []


def doubled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.double() @ weight.double()


def test_double_precision_is_told_with_the_line_that_brought_it() -> None:
    (finding,) = told(called(doubled, torch.ones(8, 8), torch.ones(8, 8)), "float64_nodes")
    assert (finding.file, finding.line) == (FILE, line_of(doubled, 1))
    assert told(called(lambda x, weight: x @ weight, torch.ones(8, 8), torch.ones(8, 8)), "float64_nodes") == []


@torch.no_grad()
@pytest.mark.parametrize(
    ("function", "size"),
    [
        (lambda x, factor: x * (factor * 1.9), 10),
        (lambda x, _: x.sum() + x.mean(), 70_000),
        (lambda x, _: x.cumsum(0), 70_000),
        (lambda x, _: torch.ldexp(x, torch.ones(1, dtype=torch.int32)), 10),
        (lambda x, _: torch.std_mean(x), 70_000),
    ],
    ids=["floats", "sum", "cumsum", "ldexp", "std_mean"],
)
def test_float64_that_no_tensor_of_the_program_has_is_not_told(function: Callable[[torch.Tensor, float], Any], size: int) -> None:
    lens = ortlens.Lens()
    compiled = torch.compile(function, backend=lens)
    for number in range(3):
        compiled(torch.ones(size), 1 + number / 100)
    assert told(lens, "float64_nodes") == []


def products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, y)


def test_thousands_of_tiny_products_are_far_below_the_roof() -> None:
    x, y = torch.rand(40_000, 2, 2), torch.rand(40_000, 2, 2)
    lens = called(products, x, y, calls=3)
    with torch.no_grad():
        lens.profile(x, y)
    (product,) = (row for row in roofs(lens.captured()) if row.flops)
    assert lens.roofline().kernel.tolist() == [row.kernel for row in roofs(lens.captured())]
    assert (product.file, product.line) == (FILE, line_of(products, 1))
    assert product.flops == 2 * 40_000 * 2**3
    assert product.bound == "memory"
    assert product.reached < 0.25


def test_peaks_are_measured_once_and_kept_with_the_capture() -> None:
    environment.measure_cpu({"float32", "int64"}, 1)
    first = environment.known_peaks()
    on_one = {peak.dtype: peak.per_s for peak in first if peak.threads == 1}
    assert set(on_one) >= {"float32", None}
    assert not any(peak.dtype == "int64" for peak in first)
    assert 1e8 < on_one["float32"] < 1e14
    assert 1e8 < on_one[None] < 1e13
    environment.measure_cpu({"float32"}, 1)
    assert environment.known_peaks() == first
    assert called(torch.sin, torch.ones(2), calls=1).captured().figures.peaks == first
