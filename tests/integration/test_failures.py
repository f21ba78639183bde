"""Whatever fails on the way to ONNX Runtime, the model's answer comes first: from PyTorch, with the reason, never in silence."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch

from ortlens import ConversionError, Lens, SessionError, UsageError
from ortlens.backend.conversion import optimize
from ortlens.backend.conversion.passes import InPlace, OptimizationPass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pandas as pd


def function(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1) * x.cos()


X = torch.linspace(-1, 1, 7)


def raising_converter(_x: Any) -> Any:
    raise ZeroDivisionError("this converter is broken")


def refused_model(model: onnx.ModelProto) -> None:
    """A node that ONNX Runtime does not know."""
    model.graph.node[0].op_type = "NoSuchOperator"


def failing_run(model: onnx.ModelProto) -> None:
    """A reshape that loads and cannot run."""
    shape = onnx.numpy_helper.from_array(np.array([7, 7], dtype=np.int64), "bad_shape")
    model.graph.initializer.append(shape)
    model.graph.node.append(onnx.helper.make_node("Reshape", [model.graph.output[0].name, "bad_shape"], ["reshaped"], name="bad"))
    model.graph.output[0].name = "reshaped"


def raising_transform(model: onnx.ModelProto) -> None:
    raise LookupError(f"no idea what to do with {len(model.graph.node)} nodes")


def invalid_model(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def calls_of(compiled: Callable[..., torch.Tensor], times: int = 3) -> list[str]:
    """Call, compare with eager, and return the warnings of ortlens."""
    with warnings.catch_warnings(record=True) as heard, torch.no_grad():
        warnings.simplefilter("always")
        for _ in range(times):
            torch.testing.assert_close(compiled(X.clone()), function(X))
    return [str(warning.message) for warning in heard if "ortlens" in str(warning.message)]


def codes(lens: Lens) -> dict[str, str]:
    frame: pd.DataFrame = lens.fallbacks
    return dict(zip(frame.target, frame.reason_code, strict=True))


def test_a_converter_that_raises_costs_only_its_own_node() -> None:
    lens = Lens(options={"custom_translation_table": {torch.ops.aten.sin.default: raising_converter}})
    assert calls_of(torch.compile(function, backend=lens)) == []
    assert codes(lens) == {"aten.sin.default": "converter_raised"}
    (reason,) = lens.fallbacks.reason
    assert "ZeroDivisionError: this converter is broken" in reason
    assert lens.fallbacks.calls.tolist() == [3]
    assert lens.graphs.coverage.item() == pytest.approx(1 - 1 / lens.graphs.node_count.item())
    assert lens.sessions.calls.tolist() == [3]


def test_two_converters_that_raise_are_found_in_one_pass() -> None:
    table = {torch.ops.aten.sin.default: raising_converter, torch.ops.aten.cos.default: raising_converter}
    lens = Lens(options={"custom_translation_table": table})
    assert calls_of(torch.compile(function, backend=lens)) == []
    assert codes(lens) == {"aten.sin.default": "converter_raised", "aten.cos.default": "converter_raised"}


def test_an_optimisation_pass_that_raises_costs_the_optimisation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Any) -> None:
        del model.graph.inputs[:]  # leaves the model half changed
        raise RuntimeError("the optimiser tripped")

    planted = OptimizationPass(name="planted", make=lambda: InPlace(broken))
    monkeypatch.setattr(optimize, "PASSES", (*optimize.PASSES, planted))
    lens = Lens()
    assert calls_of(torch.compile(function, backend=lens)) == []  # the model runs in ONNX Runtime all the same
    (finding,) = lens.captured().findings
    assert finding.rule == "optimiser_failed"
    assert "the optimisation pass planted failed" in finding.evidence
    assert "the optimiser tripped" in finding.evidence
    assert lens.fallbacks.empty
    assert lens.graphs.coverage.tolist() == [1.0]
    assert lens.sessions.calls.tolist() == [3]


@pytest.mark.parametrize("spoil", [refused_model, invalid_model], ids=lambda spoil: spoil.__name__)
def test_a_model_that_onnx_runtime_refuses_goes_back_with_its_reason(spoil: Callable[[onnx.ModelProto], None]) -> None:
    lens = Lens(options={"pre_ort_model_transforms": [spoil]})
    calls_of(torch.compile(function, backend=lens))
    assert set(codes(lens).values()) == {"session_refused"}
    assert len(lens.fallbacks) == lens.graphs.node_count.item()
    assert all("refused" in reason and len(reason) < 500 for reason in lens.fallbacks.reason)
    assert lens.sessions.empty
    assert lens.partitions.empty
    assert lens.graphs.coverage.tolist() == [0.0]


def test_a_refusal_that_names_a_node_costs_only_its_kind() -> None:
    def in_double(x: torch.Tensor) -> torch.Tensor:
        return (x.double().erf() + x.erf().cos()).sin()  # ONNX Runtime has no erf for float64 on the CPU

    lens = Lens()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(in_double, backend=lens)(X), in_double(X))
    assert codes(lens) == {"aten.erf.default": "session_refused"}
    assert "Erf" in lens.fallbacks.reason.item()
    assert lens.nodes.query("target == 'aten.erf.default'").supported.tolist() == [False, True]


def test_a_run_that_fails_goes_back_for_good_with_one_warning() -> None:
    lens = Lens(options={"pre_ort_model_transforms": [failing_run]})
    (said,) = calls_of(torch.compile(function, backend=lens))
    assert "falls back to PyTorch" in said
    (finding,) = lens.captured().findings
    assert (finding.rule, finding.severity) == ("run_failed", "warning")
    assert set(codes(lens).values()) == {"session_refused"}
    (graph,) = lens.captured().graphs
    assert (graph.coverage, graph.partition_count, graph.fallback_count) == (0.0, 0, graph.node_count)
    assert not lens.nodes.supported.any()
    assert lens.sessions.calls.tolist() == [0], "a run that failed is no run"


def test_only_the_partition_whose_run_fails_is_lost() -> None:
    failed: list[str] = []

    def spoil_the_first(model: onnx.ModelProto) -> None:
        if not failed:
            failed.append(model.graph.name)
            failing_run(model)

    def two_pieces(x: torch.Tensor) -> Any:
        return torch.special.bessel_j0(x.sin()).cos()

    lens = Lens(options={"pre_ort_model_transforms": [spoil_the_first]})
    compiled = torch.compile(two_pieces, backend=lens)
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match="falls back to PyTorch"):
            torch.testing.assert_close(compiled(X), two_pieces(X))
        torch.testing.assert_close(compiled(X), two_pieces(X))
    assert codes(lens) == {"prims.bessel_j0.default": "no_converter", "aten.sin.default": "session_refused"}
    assert sorted(lens.sessions.calls) == [0, 2]
    assert lens.graphs.partition_count.tolist() == [1]


def test_a_transform_that_raises_leaves_the_graph_to_pytorch() -> None:
    lens = Lens(options={"pre_ort_model_transforms": [raising_transform]})
    (said,) = calls_of(torch.compile(function, backend=lens))
    assert "LookupError: no idea what to do with" in said
    (finding,) = lens.captured().findings
    assert "LookupError" in finding.evidence
    (graph,) = lens.captured().graphs
    assert (graph.coverage, graph.partition_count, graph.fallback_count) == (0.0, 0, graph.node_count)
    assert all("LookupError" in reason for reason in lens.fallbacks.reason)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"custom_translation_table": {torch.ops.aten.sin.default: raising_converter}}, ConversionError, "sin.*this converter is broken"),
        ({"pre_ort_model_transforms": [refused_model]}, SessionError, "refused.*NoSuchOperator"),
        ({"pre_ort_model_transforms": [failing_run]}, SessionError, "failed while running"),
        ({"pre_ort_model_transforms": [raising_transform]}, ConversionError, "raising_transform.*no idea what to do"),
        ({"preferred_execution_providers": ["NopeExecutionProvider"]}, UsageError, "NopeExecutionProvider.*CPUExecutionProvider"),
    ],
    ids=["converter", "refusal", "run", "transform", "provider"],
)
def test_raise_raises(options: dict[str, Any], error: type[Exception], said: str) -> None:
    lens = Lens(options={**options, "on_error": "raise"})
    compiled = torch.compile(function, backend=lens)
    with torch.no_grad(), pytest.raises(Exception, match=said) as raised:
        compiled(X)
    # While compiling, Dynamo wraps what a backend raises; at the first call nothing is in between.
    assert isinstance(getattr(raised.value, "inner_exception", raised.value), error)


def test_what_the_user_asked_for_and_cannot_have_is_refused_even_with_fallback() -> None:
    compiled = torch.compile(function, backend=Lens(options={"preferred_execution_providers": ["NopeExecutionProvider"]}))
    with torch.no_grad(), pytest.raises(UsageError, match="NopeExecutionProvider"):
        compiled(X)


@pytest.fixture
def unwatched() -> Iterator[None]:
    """Options shared by instances are cleared, so that a spoiled backend serves no other test."""
    from ortlens import OrtBackend

    OrtBackend.clear_cached_instances()
    yield
    OrtBackend.clear_cached_instances()


@pytest.mark.usefixtures("unwatched")
def test_failures_are_survived_without_any_lens() -> None:
    from ortlens import OrtBackend

    for spoil in (refused_model, failing_run, raising_transform):
        torch.compiler.reset()
        calls_of(torch.compile(function, backend=OrtBackend({"pre_ort_model_transforms": [spoil]})))


def test_a_failure_in_training_falls_back_in_both_phases() -> None:
    lens = Lens(options={"pre_ort_model_transforms": [failing_run]})
    compiled = torch.compile(function, backend=lens)
    ours, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
    with pytest.warns(RuntimeWarning, match="falls back to PyTorch"):
        compiled(ours).sum().backward()
    function(theirs).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert lens.graphs.coverage.tolist() == [0.0, 0.0]


def test_the_programming_error_of_the_user_reaches_the_user() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(3, 2)

    with pytest.raises(Exception, match="same reduction dim"):
        torch.compile(wrong, backend=Lens())(torch.ones(4))
