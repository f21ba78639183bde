"""A file has the signature of its function, and gives PyTorch's answers in a plain session: exported, frozen and from a program."""

# ruff: noqa: ANN401 - arguments and results of models are Any in torch itself

import functools
import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from torch.export import Dim
from torch.onnx import OnnxExporterError
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.utils import _pytree as pytree

import ortlens
from ortlens import OrtLensError, UsageError
from tests.integration.signature_cases import CASES, Case, Road

ROADS: tuple[Road, ...] = ("compiled", "frozen", "program")
LEVELS = tuple(
    getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{name}") for name in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")
)
_registry = functools.cache(ONNXRegistry.from_torchlib)  # reading the sources of all conversions takes longer than an export


class Call(NamedTuple):
    """The tensors of a call in order of definition, and those of its result."""

    given: list[np.ndarray]
    results: list[torch.Tensor]


class Reference(NamedTuple):
    """What `torch.onnx.export` writes: the names and sizes of the inputs, and names of the results of its own."""

    inputs: list[str]
    sizes: list[list[int | str]]
    outputs: list[str]


def _module(case: Case) -> torch.nn.Module:
    torch.manual_seed(0)
    target = case.build()
    if isinstance(target, torch.nn.Module):
        return target
    made = torch.nn.Module()
    made.forward = target
    return made


def _arguments(case: Case, sizes: Mapping[str, int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(len(sizes))
    return case.call(**sizes)


def _bound(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], road: Road = "compiled") -> dict[str, Any]:
    """Pair arguments with parameters, in order of definition; a program knows that of the call alone."""
    if road == "program":
        return {**inspect.signature(module.forward).bind_partial(*args).arguments, **kwargs}
    return inspect.signature(module.forward).bind(*args, **kwargs).arguments


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _call(case: Case, road: Road, sizes: Mapping[str, int]) -> Call:
    module, (args, kwargs) = _module(case), _arguments(case, sizes)
    bound, buffers = _bound(module, args, kwargs, road), dict(module.named_buffers())
    state = [buffers[name] for name in case.written if name in buffers]
    given = [tensor.clone().numpy() for tensor in (*_tensors(list(bound.values())), *state)]
    with torch.no_grad():
        results = _tensors(module(*args, **kwargs))
    return Call(given, [*results, *(bound[name] if name in bound else buffers[name] for name in case.written)])


def _shapes(case: Case, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Which sizes are open, for `torch.export.export`."""
    if case.shapes is not True:
        return case.shapes
    opened = lambda leaf: dict.fromkeys(range(leaf.dim()), Dim.AUTO) if isinstance(leaf, torch.Tensor) else None  # noqa: E731
    return pytree.tree_map(opened, _bound(module, args, kwargs))


def _mark(value: Any, shapes: Any) -> None:
    """Tell Dynamo which sizes are open."""
    if isinstance(value, torch.Tensor):
        for dim, size in (shapes or {}).items():
            lowest, highest = max(getattr(size, "min", 0), 2), getattr(size, "max", None)  # Dynamo has graphs of their own for 0 and 1
            bounded = lowest > 2 or isinstance(highest, int)
            limits = {"min": lowest, "max": highest if isinstance(highest, int) else sys.maxsize} if bounded else {}
            torch._dynamo.mark_dynamic(value, dim, **limits)
    elif isinstance(value, (list, tuple)) and shapes is not None:
        for part, shape in zip(value, shapes, strict=True):
            _mark(part, shape)


@functools.cache
def _reference(name: str) -> Reference | None:
    """Export a model by PyTorch; None where that fails, and the case has its names."""
    case = CASES[name]
    module, (args, kwargs) = _module(case), _arguments(case, {})
    shapes = _shapes(case, module, args, kwargs)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(_registry))
        try:
            program: Any = torch.onnx.export(module, args, kwargs=kwargs, dynamic_shapes=shapes, dynamo=True, verbose=False)
        except OnnxExporterError:
            if case.inputs is None:
                raise
            return None
    inputs, outputs = program.model.graph.inputs, program.model.graph.outputs
    return Reference(
        [value.name.removesuffix("_orig") for value in inputs],
        [[size if isinstance(size, int) else size.value for size in value.shape] for value in inputs],
        [value.name for value in outputs],
    )


def _write(case: Case, road: Road, folder: Path) -> Path:
    module, (args, kwargs) = _module(case), _arguments(case, {})
    if road == "frozen":
        opened = {"dynamic": True} if case.shapes is True else {"dynamic_shapes": case.shapes}
        return ortlens.freeze(module, *args, **opened, **kwargs).save(folder / "frozen") / "model.onnx"
    target: Any = module
    if road == "program":
        with warnings.catch_warnings():  # of attributes that are assigned
            warnings.simplefilter("ignore")
            target = torch.export.export(module, args, kwargs, dynamic_shapes=_shapes(case, module, args, kwargs))
    elif case.shapes is not True and case.shapes is not None:
        for name, value in _bound(module, args, kwargs).items():
            _mark(value, case.shapes[name])
    with torch.set_grad_enabled(case.grad and road == "compiled"):
        lens = ortlens.explain(target, calls=1, dynamic=True if case.shapes is True and road == "compiled" else None)(*args, **kwargs)
        if case.verify is not None and road == "compiled":
            more, named = _arguments(case, case.verify)
            lens.verify(*more, **named)
        return lens.export_onnx(folder / "model.onnx")


def _sessions(path: Path) -> list[onnxruntime.InferenceSession]:
    """Load a file at each level of optimisation, without options of ours."""
    made = []
    for level in LEVELS:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.log_severity_level, options.intra_op_num_threads = level, 4, 1
        made.append(onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))
    return made


def _check_file(path: Any, name: str, road: Road) -> None:
    case, reference, sessions = CASES[name], _reference(name), _sessions(path)
    inputs, outputs = ([value.name for value in values] for values in (sessions[0].get_inputs(), sessions[0].get_outputs()))
    if reference is None or (case.inputs is not None and road != "program"):
        assert inputs == list(case.inputs or ())
    else:
        assert inputs == [*reference.inputs, *(name for name in case.written if name not in reference.inputs)]
    assert reference is None or len(outputs) == len(reference.outputs) + len(case.written)
    assert len({*inputs, *outputs}) == len(inputs) + len(outputs)
    if road != "frozen":
        written = [[(each.name, list(each.shape)) for each in tensors] for tensors in (path.inputs, path.outputs)]
        assert written == [[(each.name, each.shape) for each in values] for values in (sessions[0].get_inputs(), sessions[0].get_outputs())]
    assert [name if name in inputs else given for given, name in zip_longest(outputs, case.outputs)] == list(case.outputs)
    if reference is not None and case.inputs is None and case.shapes is not True:
        _check_sizes([value.shape for value in sessions[0].get_inputs()][: len(reference.sizes)], reference.sizes, road)
    calls = [_call(case, road, sizes) for sizes in ({}, *case.inside)]
    for session in sessions:
        for call in calls:
            feeds = dict(zip(inputs, call.given, strict=True))
            _compare(session.run(None, feeds), call.results)
            _compare(session.run(outputs[::-1], dict(reversed(feeds.items()))), call.results[::-1])
        for sizes in case.outside:
            with pytest.raises((RuntimeError, Fail, InvalidArgument, RuntimeException)):
                session.run(None, dict(zip(inputs, _call(case, road, sizes).given, strict=True)))


def _check_sizes(sizes: list[list[int | str]], reference: list[list[int | str]], road: Road) -> None:
    """Sizes have the names that the user gave, and one that may not vary is a number."""
    if road == "compiled":  # Dynamo has no names for sizes
        sizes, reference = (
            [[size if isinstance(size, int) else "" for size in shape] for shape in shapes] for shapes in (sizes, reference)
        )
    assert sizes == reference


def _compare(results: Sequence[Any], expected: Sequence[torch.Tensor]) -> None:
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        tolerance = 1e-2 if wanted.dtype is torch.float16 else 1e-4
        torch.testing.assert_close(torch.from_numpy(np.asarray(result)), wanted, atol=tolerance, rtol=1e-3)


def _check_folder(folder: Path, case: Case) -> None:
    is_of_case = lambda part: type(part).__module__ == Case.__module__  # noqa: E731 - an object without names, which a folder takes as a list
    for sizes in ({}, *case.inside):
        loaded, (args, kwargs) = ortlens.load_frozen(folder), _arguments(case, sizes)
        args = pytree.tree_map(lambda part: pytree.tree_leaves(part) if is_of_case(part) else part, args, is_leaf=is_of_case)
        results, bound = _tensors(loaded(*args, **kwargs)), _bound(_module(case), args, kwargs)
        written = [bound[name] if name in bound else loaded.state[name] for name in case.written]
        _compare([*results, *written], _call(case, "frozen", sizes).results)
    for sizes in case.outside:
        args, kwargs = _arguments(case, sizes)
        with pytest.raises(UsageError):
            loaded(*args, **kwargs)


def _rows() -> Iterator[Any]:
    """Each case on each road: those of every run, then one road of each other case, in turn; the rest is in `make sweep-soak`."""
    for place, (name, case) in enumerate(CASES.items()):
        for turn, road in enumerate(ROADS):
            marks = () if case.always else pytest.mark.slow if place % len(ROADS) == turn else pytest.mark.soak
            yield pytest.param(name, road, marks=marks)


@pytest.mark.parametrize(("name", "road"), list(_rows()))
def test_a_file_has_the_signature_of_its_function(name: str, road: Road, tmp_path: Path) -> None:
    case = CASES[name]
    if road in case.refused:
        with pytest.raises(OrtLensError):
            _write(case, road, tmp_path)
        assert list(tmp_path.iterdir()) == []
        return
    path = _write(case, road, tmp_path)
    _check_file(path, name, road)
    if road == "frozen":
        _check_folder(path.parent, case)
