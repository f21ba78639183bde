"""Whatever fails on the way to ONNX Runtime, the model's answer comes first: from PyTorch, with the reason, never in silence."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
from onnxscript import opset18, script

from ortlens import ConversionError, Lens, SessionError, explain
from ortlens.backend.basis.pass_runner import Pass
from ortlens.backend.conversion import optimize
from ortlens.backend.operators import registry


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


def reordered_outputs(model: onnx.ModelProto) -> None:
    values = list(model.graph.output)[::-1]
    del model.graph.output[:]
    model.graph.output.extend(values)


def half_outputs(model: onnx.ModelProto) -> None:
    value = model.graph.output[0]
    model.graph.node.append(onnx.helper.make_node("Cast", [value.name], ["halved"], to=onnx.TensorProto.FLOAT16))
    value.name, value.type.tensor_type.elem_type = "halved", onnx.TensorProto.FLOAT16


def flat_outputs(model: onnx.ModelProto) -> None:
    axes = onnx.numpy_helper.from_array(np.array([0], dtype=np.int64), "axes")
    model.graph.initializer.append(axes)
    value = model.graph.output[0]
    model.graph.node.append(onnx.helper.make_node("Unsqueeze", [value.name, "axes"], ["raised"]))
    value.CopyFrom(onnx.helper.make_tensor_value_info("raised", onnx.TensorProto.FLOAT, [1, 7]))


def renamed_output(model: onnx.ModelProto) -> None:
    value = model.graph.output[0]
    model.graph.node.append(onnx.helper.make_node("Identity", [value.name], ["another"]))
    value.name = "another"


@script()
def untyped(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - that is the point
    return opset18.Sin(x)


def calls_of(compiled: Callable[..., Any], times: int = 3, eager: Callable[..., Any] = function) -> list[str]:
    """Call, compare with eager, and return the warnings of ortlens."""
    with warnings.catch_warnings(record=True) as heard, torch.no_grad():
        warnings.simplefilter("always")
        for _ in range(times):
            torch.testing.assert_close(compiled(X.clone()), eager(X))
    return [str(warning.message) for warning in heard if "ortlens" in str(warning.message)]


def codes(lens: Lens) -> dict[str, str]:
    return dict(zip(lens.fallbacks.target, lens.fallbacks.reason_code, strict=True))


def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin() * 2, x.cos() + 1


class Failure(NamedTuple):
    """What fails, what stays in PyTorch for it (None: the whole graph), and why; what is raised where the user wants that."""

    lost: set[str] | None
    code: str
    said: str
    error: type[Exception]
    transform: Callable[[onnx.ModelProto], None] | None = None
    table: Mapping[Any, Callable[..., Any]] = {}


SIN, COS = torch.ops.aten.sin.default, torch.ops.aten.cos.default
BOTH = dict.fromkeys((SIN, COS), raising_converter)
SINE, BROKEN = {"aten.sin.default"}, "this converter is broken"
UNTYPED, KEEP = "the function untyped returns 0 values and aten.sin.default needs 1.*-> FLOAT", ".*pre_ort_model_transforms must keep"
FAILURES: dict[str, Failure] = {
    "a converter": Failure(SINE, "converter_raised", BROKEN, ConversionError, table={SIN: raising_converter}),
    "converters": Failure({"aten.cos.default", *SINE}, "converter_raised", BROKEN, ConversionError, table=BOTH),
    "other arguments": Failure(SINE, "converter_raised", "argument", ConversionError, table={SIN: lambda: opset18.Constant(value_int=0)}),
    "no return type": Failure(SINE, "converter_raised", UNTYPED, ConversionError, table={SIN: untyped}),
    "no such operator": Failure(None, "session_refused", "refused.*NoSuchOperator", SessionError, refused_model),
    "outputs in another order": Failure(None, "session_refused", f"outputs are reordered: {KEEP}", SessionError, reordered_outputs),
    "another dtype": Failure(None, "session_refused", f"has element type 10 of ONNX{KEEP}", SessionError, half_outputs),
    "another rank": Failure(None, "session_refused", f"has 2 dimensions{KEEP}", SessionError, flat_outputs),
    "a transform": Failure(None, "converter_raised", "LookupError.*no idea what to do", ConversionError, raising_transform),
    "nothing": Failure(set(), "", "", ConversionError, renamed_output),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_costs_what_it_must_and_says_why_or_raises_if_asked_to(name: str) -> None:
    failure = FAILURES[name]
    options = {
        "custom_translation_table": failure.table,
        "pre_ort_model_transforms": [failure.transform] if failure.transform is not None else [],
    }
    lens = Lens(options=options)
    warned = calls_of(torch.compile(two, backend=lens), eager=two)
    assert [re.search(failure.said, text) is not None for text in warned] == [True] * (name == "a transform")
    (graph,) = lens.captured().graphs
    assert len(lens.fallbacks) == graph.node_count if failure.lost is None else set(lens.fallbacks.target) == failure.lost
    assert set(lens.fallbacks.reason_code) == ({failure.code} if failure.code else set())
    assert all(re.search(failure.said, reason, re.DOTALL) and len(reason) < 500 for reason in lens.fallbacks.reason)
    assert failure.lost is None or set(lens.fallbacks.calls) <= {3}
    assert graph.coverage == pytest.approx(1 - len(lens.fallbacks) / lens.graphs.node_count.item())
    assert lens.partitions.empty == lens.sessions.empty == (failure.lost is None)
    assert set(lens.sessions.calls) <= {3}
    if failure.code:
        torch.compiler.reset()
        with torch.no_grad(), pytest.raises(Exception, match=f"(?s){failure.said}") as raised:
            torch.compile(two, backend=Lens(options={**options, "on_error": "raise"}))(X)
        # While compiling, Dynamo wraps what a backend raises.
        assert isinstance(getattr(raised.value, "inner_exception", raised.value), failure.error)


@contextlib.contextmanager
def said(text: str) -> Iterator[None]:
    """Expect a warning of ortlens that contains this text; others are allowed."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield
    assert any(text in str(warning.message) for warning in heard)


def test_an_optimisation_pass_that_raises_costs_the_optimisation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Any) -> None:
        del model.graph.inputs[:]  # leaves the model half changed
        raise RuntimeError("the optimiser tripped")

    planted = Pass(name="planted", run=broken)
    monkeypatch.setattr(optimize, "PASSES", (*optimize.PASSES, planted))
    lens = Lens()
    assert calls_of(torch.compile(function, backend=lens)) == []  # the model runs in ONNX Runtime all the same
    (finding,) = lens.captured().findings
    assert finding.rule == "optimiser_failed"
    assert "the pass 'planted' failed" in finding.evidence
    assert "the optimiser tripped" in finding.evidence
    assert lens.fallbacks.empty
    assert lens.graphs.coverage.tolist() == [1.0]
    assert lens.sessions.calls.tolist() == [3]


@pytest.fixture
def broken_decompositions(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise IndexError("planted")

    targets = (torch.ops.aten.softmax.int, torch.ops.aten._softmax.default, torch.ops.aten.sin.default)
    own = {**registry.decompositions(), **dict.fromkeys(targets, broken)}
    monkeypatch.setattr(registry, "decompositions", lambda: own)


@pytest.mark.usefixtures("own_instances", "broken_decompositions")
def test_a_decomposition_that_raises_costs_the_decompositions() -> None:
    lens, x = Lens(), X.clone().requires_grad_()
    with pytest.warns(RuntimeWarning, match="lowered without them: IndexError: planted"):
        torch.testing.assert_close(torch.compile(function, backend=lens)(x), function(x))
    assert [finding.rule for finding in lens.captured().findings] == ["lowering_failed"]
    assert lens.fallbacks.empty


@pytest.mark.usefixtures("own_instances", "broken_decompositions")
def test_a_decomposition_that_raises_leaves_a_program_undivided_and_raises_if_asked_to() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    program = torch.export.export(Module(), (X,))
    with pytest.warns(RuntimeWarning, match="IndexError: planted"):
        lens = explain(program, calls=1)(X)
    torch.testing.assert_close(lens.result, function(X))
    with pytest.raises(IndexError, match="planted"):
        torch.compile(function, backend=Lens(options={"on_error": "raise"}))(X)


def test_a_refused_node_takes_only_its_equals_along() -> None:
    def refuse_pairs(model: onnx.ModelProto) -> None:
        """Make the model wrong for pairs alone, as a kernel with a limit on sizes would be."""
        for value in model.graph.value_info:
            makers = [node for node in model.graph.node if value.name in node.output and node.op_type == "Sin"]
            if makers and [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [2]:
                makers[0].attribute.append(onnx.helper.make_attribute("no_such_attribute", 1))

    def sines(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x.sin() * 2).sum() + (y.sin() * 3).sum() + (y * 2).sin().sum()

    lens, args = Lens(options={"pre_ort_model_transforms": [refuse_pairs]}), (torch.ones(5), torch.ones(2))
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(sines, backend=lens)(*args), sines(*args))
    assert lens.fallbacks.node.tolist() == ["sin_1", "sin_2"]
    assert set(lens.fallbacks.reason_code) == {"session_refused"}


def test_a_refusal_that_names_a_node_costs_only_its_kind() -> None:
    def in_double(x: torch.Tensor) -> torch.Tensor:
        return (x.double().erf() + x.erf().cos()).sin()  # ONNX Runtime has no erf for float64 on the CPU

    lens = Lens()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(in_double, backend=lens)(X), in_double(X))
    assert codes(lens) == {"aten.erf.default": "session_refused"}
    assert "Erf" in lens.fallbacks.reason.item()
    assert lens.nodes.query("target == 'aten.erf.default'").supported.tolist() == [False, True]


def test_a_run_that_fails_three_times_in_a_row_goes_back_for_good_and_at_once_raises_if_asked_to() -> None:
    options: dict[str, Any] = {"pre_ort_model_transforms": [failing_run]}
    with torch.no_grad(), pytest.raises(SessionError, match="failed while running"):
        torch.compile(function, backend=Lens(options={**options, "on_error": "raise"}))(X)
    torch.compiler.reset()
    lens = Lens(options=options)
    first, last = calls_of(torch.compile(function, backend=lens), times=5)
    assert "the session stayed in use" in first
    assert "falls back to PyTorch, because 3 runs in a row failed" in last
    findings = lens.captured().findings
    assert [(finding.rule, finding.severity) for finding in findings] == [("run_failed", "warning")] * 2
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
    with torch.no_grad(), said("falls back to PyTorch"):
        for _ in range(4):
            torch.testing.assert_close(compiled(X), two_pieces(X))
    assert codes(lens) == {"prims.bessel_j0.default": "no_converter", "aten.sin.default": "session_refused"}
    assert sorted(lens.sessions.calls) == [0, 4]
    assert lens.graphs.partition_count.tolist() == [1]


@pytest.mark.parametrize("on_error", ["fallback", "raise"])
def test_a_bad_input_raises_what_pytorch_raises_and_costs_nothing(on_error: str) -> None:
    table, lens = torch.nn.Embedding(10, 4), Lens(options={"on_error": on_error})
    compiled, good = torch.compile(table, backend=lens), torch.tensor([1, 9])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(4):
            with pytest.raises(IndexError, match="index out of range in self"):
                compiled(torch.tensor([3, 10]))
            torch.testing.assert_close(compiled(good), table(good))
    assert lens.sessions.calls.tolist() == [4], "every good call still runs in ONNX Runtime"
    assert lens.captured().findings == ()
    assert lens.fallbacks.empty


def test_what_raises_after_a_draw_leaves_the_generator_as_eager_does() -> None:
    def noisy(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.normal(0.0, x.abs() * 2 + 1)  # between two partitions; the division could be in the first
        return noise + 1, torch.div(torch.full_like(i, 5), i, rounding_mode="trunc") * 2

    def state_after(function: Callable[..., Any], divisor: int) -> torch.Tensor:
        torch.manual_seed(0)
        with pytest.raises(RuntimeError, match="ZeroDivisionError") if not divisor else contextlib.nullcontext():
            function(X, torch.tensor([divisor, 2]))
        return torch.get_rng_state()

    compiled = torch.compile(noisy, backend="ortlens", options={"min_partition_nodes": 3})
    for divisor in (1, 0):
        assert torch.equal(state_after(compiled, divisor), state_after(noisy, divisor))


def test_one_size_that_always_fails_leaves_the_others_in_the_session() -> None:
    def in_rows_of_four(model: onnx.ModelProto) -> None:
        value, given = model.graph.output[0], model.graph.output[0].name
        for name, sizes in (("rows", [-1, 4]), ("flat", [-1])):
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(sizes, dtype=np.int64), f"{name}_sizes"))
            model.graph.node.append(onnx.helper.make_node("Reshape", [given, f"{name}_sizes"], [name]))
            value.name = given = name

    lens = Lens(options={"pre_ort_model_transforms": [in_rows_of_four]})
    compiled = torch.compile(function, backend=lens, dynamic=True)
    with torch.no_grad(), said("falls back to PyTorch for calls of these sizes"):
        for size in (4, 13, 13, 13, 13, 13, 8, 13, 4):
            x = torch.linspace(-1, 1, size)
            torch.testing.assert_close(compiled(x), function(x))
    assert lens.sessions.calls.tolist() == [3]
    assert lens.graphs.coverage.tolist() == [1.0]


def test_a_failure_in_training_falls_back_in_both_phases() -> None:
    lens = Lens(options={"pre_ort_model_transforms": [failing_run]})
    compiled = torch.compile(function, backend=lens)
    with said("falls back to PyTorch"):
        for _ in range(3):
            ours, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
            compiled(ours).sum().backward()
            function(theirs).sum().backward()
            torch.testing.assert_close(ours.grad, theirs.grad)
    assert lens.graphs.coverage.tolist() == [0.0, 0.0]
