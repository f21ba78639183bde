"""`export_onnx`: a file that a bare ONNX Runtime runs with the same numbers, or a refusal that leaves everything as it was."""

# ruff: noqa: ANN401 - arguments and results of models are Any in torch itself

import copy
import dataclasses
import math
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.utils import _pytree as pytree

import ortlens
from ortlens import ConversionError, Lens, UsageError
from ortlens.backend.deploy import export as deploy_export
from tests.integration.signature_cases import decorated
from tests.integration.small_models import SMALL_MODELS
from tests.integration.test_lens import broken
from tests.integration.test_verify_calls import Counting


def run_bare(path: Path, inputs: dict[str, torch.Tensor], *, in_order: bool = True) -> dict[str, torch.Tensor]:
    """Check a file and run it in a session that knows nothing of ortlens; the inputs' names must be the file's, in its order or any."""
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    order = list if in_order else sorted
    assert order(value.name for value in session.get_inputs()) == order(inputs)
    names = [value.name for value in session.get_outputs()]
    assert len(set(names)) == len(names)
    results = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
    return {name: torch.from_numpy(result) for name, result in zip(names, results, strict=True)}


def assert_leaves_match(results: dict[str, torch.Tensor], expected: Any) -> None:
    tensors = [leaf for leaf in pytree.tree_leaves(expected) if isinstance(leaf, torch.Tensor)]
    assert len(results) == len(tensors)
    for result, want in zip(results.values(), tensors, strict=True):
        torch.testing.assert_close(result, want, atol=1e-4, rtol=1e-3)


def explained(model: Callable[..., Any], *args: Any, **options: Any) -> Lens:
    with torch.no_grad():
        return ortlens.explain(model, calls=1, **options)(*args)


def only(folder: Path, *names: str) -> bool:
    """Whether the folder holds these files and nothing else, hidden ones included."""
    return sorted(path.name for path in folder.iterdir()) == sorted(names)


X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 64)
        self.down = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(self.up(x).relu())


@pytest.fixture(scope="module")
def nets() -> list[tuple[Net, Lens]]:
    """Two models of the same shapes, and what was recorded of a call of each."""
    made = []
    for model in (Net().eval(), Net().eval()):
        torch.compiler.reset()
        made.append((model, explained(model, X)))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "resnet", "t5", "llama"])
def test_real_architectures_by_the_names_of_their_arguments(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, dynamic = SMALL_MODELS[name].build(), True if name in {"bert", "resnet"} else None
    with torch.no_grad():
        path = ortlens.explain(model, calls=1, dynamic=dynamic)(**SMALL_MODELS[name].inputs(4)).export_onnx(tmp_path / "model.onnx")
        assert path == tmp_path / "model.onnx"
        for batch in (2, 7) if dynamic else (4,):
            inputs = SMALL_MODELS[name].inputs(batch)
            assert_leaves_match(run_bare(path, inputs), model(**inputs))
    assert only(tmp_path, "model.onnx")


def test_a_recompiled_model_is_exported_as_it_was_last_compiled_and_with_the_weights_of_the_moment(tmp_path: Path) -> None:
    model, lens = Net().eval(), Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        for size in (2, 3, 7):
            compiled(torch.randn(size, 4))
        model.up.weight.add_(1)
        compiled(torch.randn(7, 4))
        x = torch.randn(11, 4)
        path = lens.export_onnx(tmp_path / "net.onnx")
        assert_leaves_match(run_bare(path, {"x": x}), model(x))
    proto = onnx.load(path)
    assert {value.name for value in proto.graph.initializer} >= {"up.bias", "down.bias"}
    assert not {entry.domain for entry in proto.opset_import} - {"", "ai.onnx"}


class Passing(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        made = x.sin()
        return x, made, None, 3, made


def permuted(x: torch.Tensor) -> Any:
    return (x + 1).transpose(0, 2), (x * 2).permute(1, 2, 0), nn.functional.relu(x)


def viewed(x: torch.Tensor) -> Any:
    hidden = torch.relu(x)
    return hidden, hidden[:, 0], x.t()


IMAGE = torch.randn(1, 3, 6, 6).contiguous(memory_format=torch.channels_last)
OUTPUTS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "permuted": (permuted, {"x": torch.randn(2, 3, 5)}),
    "channels last, names of torch's own module": (nn.Conv2d(3, 4, 3).eval(), {"input": IMAGE}),
    "a value and a view of it": (viewed, {"x": torch.randn(3, 4)}),
    "an input and a value twice": (Passing(), {"x": torch.randn(3)}),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_come_as_eager_returns_them(name: str, tmp_path: Path) -> None:
    function, inputs = OUTPUTS[name]
    lens = explained(export(function, tuple(inputs.values())) if isinstance(function, Passing) else function, *inputs.values())
    with torch.no_grad():
        assert_leaves_match(run_bare(lens.export_onnx(tmp_path / "model.onnx"), inputs), function(*inputs.values()))


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.count = nn.Buffer(torch.zeros(1))

    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> Any:
        self.count.add_(1)
        return {"a": self.linear(x).transpose(0, 1) + y, "b": x.sum() + self.count}


@pytest.mark.parametrize("road", ["compiled", "exported"])
def test_a_model_with_state_hands_it_over(road: str, tmp_path: Path) -> None:
    module, x, y = Stateful(), torch.randn(2, 4), torch.randn(3, 1)
    target: Any = copy.deepcopy(module)
    if road == "exported":
        target = export(target, (x,), {"y": y}, dynamic_shapes={"x": {0: Dim("batch")}, "y": None})
    with torch.no_grad():
        path = ortlens.explain(target, calls=1)(x, y=y).export_onnx(tmp_path / "stateful.onnx")
    count = torch.zeros(1)
    for size in (2, 5) if road == "exported" else (2, 2):
        x = torch.randn(size, 4)
        results = run_bare(path, {"x": x, "y": y, "count": count}, in_order=False)  # a buffer that changes is the caller's to keep
        expected = module(x, y=y)
        count = results.pop("count.updated")
        torch.testing.assert_close(count, module.count)
        assert_leaves_match(results, pytree.tree_map(torch.Tensor.detach, expected))


def test_large_weights_lie_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nets: list[tuple[Net, Lens]]) -> None:
    model, lens = nets[0]
    monkeypatch.setattr(deploy_export, "_INLINE_BYTES", 64)
    for _ in range(3):  # each time over the one before
        path = lens.export_onnx(tmp_path / "net.onnx")
        (data,) = (file for file in tmp_path.iterdir() if file != path)
        assert data.suffix == ".data"
        assert_leaves_match(run_bare(path, {"x": X}), model(X).detach())
    proto = onnx.load(path, load_external_data=False)
    outside = [value for value in proto.graph.initializer if value.data_location == onnx.TensorProto.EXTERNAL]
    assert {entry.value for value in outside for entry in value.external_data if entry.key == "location"} == {data.name}
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in (path, data):
        file.rename(moved / file.name)
    assert_leaves_match(run_bare(moved / "net.onnx", {"x": X}), model(X).detach())


def test_files_that_are_not_the_models_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nets: list[tuple[Net, Lens]]) -> None:
    lens = nets[0][1]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.data").write_text("the user's")
    (tmp_path / "net.1.data").write_text("the user's")
    assert lens.export_onnx("net.onnx") == tmp_path / "net.onnx"
    assert {(tmp_path / name).read_text() for name in ("net.data", "net.1.data")} == {"the user's"}
    monkeypatch.setattr(deploy_export, "_INLINE_BYTES", 64)
    (tmp_path / "net.1.data").unlink()
    lens.export_onnx(tmp_path / "other.onnx")
    assert (tmp_path / "net.data").read_text() == "the user's"


def raising(error: Exception, *, only_for: str = "") -> Callable[..., Any]:
    replace = os.replace

    def fail(*given: Any, **_: Any) -> None:
        if only_for and not str(given[1]).endswith(only_for):
            return replace(*given)
        raise error

    return fail


FAILURES: list[tuple[bool, Any, str, Callable[..., Any], type[Exception]]] = [
    (False, onnx.checker, "check_model", raising(onnx.checker.ValidationError("planted")), ConversionError),
    (True, os, "replace", raising(OSError("planted"), only_for=".onnx"), UsageError),
]
"""Whether the weights are a file of their own, and what fails; a full disk fails in `test_whole_files.py`."""


@pytest.mark.parametrize("case", range(len(FAILURES)))
def test_a_failure_leaves_the_old_file_and_nothing_else(
    case: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nets: list[tuple[Net, Lens]]
) -> None:
    (old, before), (new, lens) = nets
    outside, owner, name, fail, error = FAILURES[case]
    if outside:
        monkeypatch.setattr(deploy_export, "_INLINE_BYTES", 64)

    def fails() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(error, match="planted"):
                lens.export_onnx(tmp_path / "net.onnx")

    fails()
    assert only(tmp_path), "a first export leaves nothing"
    path = before.export_onnx(tmp_path / "net.onnx")
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    fails()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files
    assert_leaves_match(run_bare(path, {"x": X}), old(X).detach())
    assert_leaves_match(run_bare(lens.export_onnx(path), {"x": X}), new(X).detach())


def test_a_kill_between_the_two_files_leaves_no_pair_of_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nets: list[tuple[Net, Lens]]
) -> None:
    monkeypatch.setattr(deploy_export, "_INLINE_BYTES", 64)
    (old, written), (new, lens) = nets
    right = [model(X).detach() for model in (old, new)]
    path, left, move = tmp_path / "net.onnx", 0, {name: getattr(os, name) for name in ("rename", "replace")}

    def killed(name: str, *places: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        move[name](*places)

    absent, ended = 0, False
    written.export_onnx(path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for left_at in range(10):
        for file, data in before.items():
            file.write_bytes(data)
        left = left_at
        with monkeypatch.context() as patch:
            for name in move:
                patch.setattr(os, name, partial(killed, name))
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
            try:
                lens.export_onnx(path)
                ended = True
            except KeyboardInterrupt:
                pass
        if path.exists():
            (found,) = run_bare(path, {"x": X}).values()
            assert any(torch.allclose(found, want, atol=1e-5) for want in right)
        else:
            absent += 1
            assert [kept.name for kept in tmp_path.glob(".ortlens-*/old/*.onnx")] == [path.name]
        for file in tmp_path.iterdir():
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    assert ended
    assert absent == 3


REFUSED: dict[str, tuple[Callable[[], Lens], str]] = {
    "a node of PyTorch": (lambda: explained(lambda x: torch.cummax(x * 2, 0).values.sin(), X), r"1 nodes? stays? in PyTorch: cummax"),
    "pieces": (lambda: explained(broken, X), "2 graphs"),
    "nothing": (Lens, "nothing to export"),
    "another backend": (lambda: explained(torch.sin, X, backend="eager"), "nothing to export"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_whole_model_is_refused(case: str, tmp_path: Path) -> None:
    make, said = REFUSED[case]
    with pytest.raises(UsageError, match=said):
        make().export_onnx(tmp_path / "refused.onnx")
    assert only(tmp_path)


def test_a_missing_folder(tmp_path: Path, nets: list[tuple[Net, Lens]]) -> None:
    with pytest.raises(UsageError, match="no folder"):
        nets[0][1].export_onnx(tmp_path / "missing" / "net.onnx")
    assert only(tmp_path)


class Part(nn.Module):
    """Returns a value and a view of it, of a size that varies."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = self.up(x)
        return whole[:, : x.shape[0]], whole


def test_views_of_other_outputs_are_computed_with_the_weights(tmp_path: Path) -> None:
    model, lens = Part().eval(), Lens()
    fast = torch.compile(model, backend=lens, dynamic=True)
    with torch.no_grad():
        for rows in (3, 4):
            x = torch.rand(rows, 6)
            fast(x)
            assert_leaves_match(run_bare(lens.export_onnx(tmp_path / f"{rows}.onnx"), {"x": x}), model(x))


LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def run_by_place(path: Path, *tensors: torch.Tensor, level: str = "ORT_ENABLE_ALL") -> list[torch.Tensor]:
    """Run a file in a plain session, fed by place."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    made = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)})
    return [torch.from_numpy(array) for array in made]


class Layer:
    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys, self.values, self.kind = keys, values, "dynamic"


class Cache:
    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    past: Cache | None = None


HELD = torch.linspace(0, 1, 4)


class Signature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.weight = 0.5, nn.Parameter(torch.rand(4))

    @decorated
    def forward(self, x: torch.Tensor, unused: torch.Tensor, parts: Any = None, *, y: torch.Tensor, flag: bool = True) -> Any:
        first = (y - y.mean(1, keepdim=True)) - x * self.scale + HELD
        last = first if parts is None else first + parts["a"] * parts["b"][0]
        return {"first": first, "same": first, "given": unused, "weight": self.weight, "flag": flag, "last": (last.t(), None, x)}

    def cached(self, x: torch.Tensor) -> Answer:
        return Answer(x * self.weight, Cache([Layer(x + 1, x + 2), Layer(x + 3, x)]))


GIVEN = {"x": torch.randn(3, 4), "y": torch.randn(3, 4), "unused": torch.zeros(2), "parts": {"a": torch.randn(3, 4), "b": [torch.ones(4)]}}
RESULTS = ["first", "same", "given", "weight", "last.0", "last.2"]


@pytest.mark.parametrize("road", ["place", "name", "nested", "training", "program", "torch.compile"])
def test_the_signature_is_that_of_the_function(road: str, tmp_path: Path) -> None:
    """Arguments in order of definition, unused ones too, no captured tensor and no attribute; all results, as they are nested."""
    model = Signature()
    x, unused, y, parts = (GIVEN[name] for name in ("x", "unused", "y", "parts"))
    args: tuple[Any, ...] = () if road == "name" else (x, unused, parts) if road == "nested" else (x, unused)
    kwargs = {"y": y, "unused": unused, "x": x} if road == "name" else {"y": y}
    lens = Lens()
    with torch.set_grad_enabled(road == "training"):
        if road == "program":
            lens = ortlens.explain(export(model, args, kwargs), calls=1)(*args, **kwargs)
        elif road == "torch.compile":
            torch.compile(model, backend=lens, dynamic=True)(*args, **kwargs)
        else:
            lens = ortlens.explain(model, calls=1)(*args, **kwargs)
    made = lens.export_onnx(tmp_path / "model.onnx")
    nested = ["parts_a", "parts_b_0"] if road == "nested" else []
    assert [value.name for value in made.inputs] == ["x", "unused", *nested, "y"]
    assert [value.name for value in made.outputs] == RESULTS
    assert made.outputs[-1].path == "result['last'][2]"
    given = [tensor for tensor in pytree.tree_leaves((x, unused, parts if nested else None, y)) if tensor is not None]
    want = [leaf.detach() for leaf in pytree.tree_leaves(model(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    for level in LEVELS:
        torch.testing.assert_close(run_by_place(made, *given, level=level), want)


def test_objects_in_results_are_taken_apart_and_nothing_stays_registered(tmp_path: Path) -> None:
    model, x, known = Signature(), torch.randn(3, 4), dict(pytree.SUPPORTED_NODES)
    with torch.no_grad():
        made = ortlens.explain(model.cached, calls=1)(x).export_onnx(tmp_path / "model.onnx")
        want = [x * model.weight, x + 1, x + 2, x + 3, x]
    assert [value.name for value in made.outputs] == ["logits", "past.0.key", "past.0.value", "past.1.key", "past.1.value"]
    torch.testing.assert_close(run_by_place(made, x), want)
    assert known == pytree.SUPPORTED_NODES


def test_an_object_among_the_arguments(tmp_path: Path) -> None:
    def grown(x: torch.Tensor, past: Cache) -> Cache:
        for layer in past.layers:
            layer.keys = torch.cat([layer.keys, x])
        return past

    x, layers = torch.randn(1, 4), [torch.randn(rows, 4) for rows in (2, 2, 2, 2)]
    with torch.no_grad():
        lens = ortlens.explain(grown, calls=1)(x, Cache([Layer(*layers[:2]), Layer(*layers[2:])]))
    made = lens.export_onnx(tmp_path / "model.onnx")
    assert [value.name for value in made.inputs] == ["x", *(f"past_{layer}_{part}" for layer in (0, 1) for part in ("key", "value"))]
    results = run_by_place(made, x, *layers)
    torch.testing.assert_close(results, [torch.cat([layers[0], x]), layers[1], torch.cat([layers[2], x]), layers[3]])


def window(x: torch.Tensor) -> torch.Tensor:
    return (x[:, -8:] if x.shape[1] > 8 else x).sum(1)


def of_same_sizes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sum() + y.sum() if x.shape[0] == y.shape[0] else x.sum() - y.sum()


def of_one(x: torch.Tensor) -> torch.Tensor:
    return x.sum() if x.shape[0] == 1 else x.sum() * 2


def of_none(x: torch.Tensor) -> torch.Tensor:
    return x.new_full((2,), 7.0) if x.shape[0] == 0 else x.sum(1)[:2]


def of_some(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0) / max(x.shape[0], 1) if x.shape[1] else x.new_ones(1)


def of_pairs(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, 2 * (x.shape[1] // 2)) + 1


def of_ceilings(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if math.ceil(x.shape[0] / 3) == 2 else x


def sized(*shape: int) -> torch.Tensor:
    return torch.rand(shape)


def of_ones(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] == 1 and x.shape[1] == 1 else x


def of_moved_matrices(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ torch.cat([x, y], 1).transpose(1, 2)


BOUNDED: dict[str, tuple[Any, list[Any], list[Any], list[Any]]] = {
    "a bound": (window, [(2, 5)], [[(2, 5)], [(4, 8)], [(1, 3)]], [[(2, 9)], [(2, 12)]]),
    "the same size": (of_same_sizes, [(3, 2), (3, 4)], [[(3, 2), (3, 4)], [(5, 1), (5, 2)]], [[(3, 2), (4, 2)], [(3, 2), (1, 2)]]),
    "not the same size": (of_same_sizes, [(3, 2), (4, 4)], [[(3, 2), (4, 4)], [(1, 2), (5, 2)]], [[(3, 2), (3, 2)]]),
    "not 0": (of_none, [(3, 2)], [[(3, 2)], [(1, 2)], [(3, 0)]], [[(0, 2)]]),
    "a truth value and a maximum": (of_some, [(3, 2)], [[(3, 2)], [(1, 1)]], [[(0, 2)], [(3, 0)]]),
    "not 1": (of_one, [(3, 2)], [[(3, 2)], [(2, 2)]], [[(1, 2)]]),
    "not 1 of two": (of_ones, [(3, 4)], [[(3, 4)], [(2, 1)]], [[(1, 1)]]),
    "1, where memory lies otherwise": (of_moved_matrices, [(3, 1, 4), (3, 2, 4)], [[(1, 1, 1), (1, 5, 1)]], [[(2, 1, 4), (3, 1, 4)]]),
    "a multiple": (of_pairs, [(3, 4)], [[(3, 4)], [(5, 2)]], [[(3, 5)]]),
    "rounded": (of_ceilings, [(4,)], [[(4,)], [(6,)]], [[(3,)], [(7,)]]),
    "squeezed": (lambda x: x.squeeze(0) + 1, [(3, 4)], [[(3, 4)], [(2, 1)]], [[(1, 4)]]),
    "a name of Python's": (lambda input: input.squeeze(0) + 1, [(3, 4)], [[(2, 1)]], [[(1, 4)]]),  # noqa: A006
    "none": (lambda x: x.relu().mean(1), [(3, 4)], [[(3, 4)], [(1, 4)], [(7, 2)]], []),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_a_plain_session_takes_the_sizes_of_the_trace_and_no_others(name: str, tmp_path: Path) -> None:
    function, traced, inside, outside = BOUNDED[name]
    made = explained(function, *(sized(*shape) for shape in traced), dynamic=True).export_onnx(tmp_path / "model.onnx")
    assert bool(made.conditions) == bool(outside)
    for level in LEVELS:
        for shapes in inside:
            given = [sized(*shape) for shape in shapes]
            torch.testing.assert_close(run_by_place(made, *given, level=level), [function(*given)])
        for shapes in outside:
            with pytest.raises(Exception, match=r"requires|re-use buffer") as raised:  # which ONNX Runtime does for sizes of one name
                run_by_place(made, *(sized(*shape) for shape in shapes), level=level)
            assert any(condition in str(raised.value) for condition in made.conditions) or "re-use" in str(raised.value)


def test_numbers_that_vary_are_those_that_were_compiled_for(tmp_path: Path) -> None:
    def function(x: torch.Tensor, n: int, y: torch.Tensor) -> torch.Tensor:
        return x[:, :n] * 2 + y if n > 3 else x.sum() - y

    with torch.no_grad():
        made = ortlens.explain(function, dynamic=True, calls=1)(sized(3, 9), 5, sized(3, 1)).export_onnx(tmp_path / "model.onnx")
    assert [(value.name, value.shape) for value in made.inputs] == [("x", ("x_dim_0", "x_dim_1")), ("n", ()), ("y", ("x_dim_0", 1))]
    for level in LEVELS:
        x, y = sized(4, 11), sized(4, 1)
        torch.testing.assert_close(run_by_place(made, x, torch.tensor(8), y, level=level), [function(x, 8, y)])
        for rows, n, others in ((4, 3, 4), (1, 8, 1), (4, 12, 4), (4, 8, 3)):
            with pytest.raises(Exception, match="requires"):
                run_by_place(made, sized(rows, 11), torch.tensor(n), sized(others, 1), level=level)


def test_arguments_that_have_no_parameters_vary_too(tmp_path: Path) -> None:
    class Added(nn.Module):
        def forward(self, *parts: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
            return parts[1] - parts[0] * named["b"]

    model, x = Added(), sized(3)
    with torch.no_grad():
        made = ortlens.explain(model, calls=1, dynamic=True)(x, x, b=x, a=x).export_onnx(tmp_path / "model.onnx")
    assert [(value.name, value.shape) for value in made.inputs] == [
        *((name, ("parts_0_dim_0",)) for name in ("parts_0", "parts_1", "b")),
        ("a", ("a_dim_0",)),
    ]
    given = [sized(5) for _ in range(4)]
    torch.testing.assert_close(run_by_place(made, *given), [given[1] - given[0] * given[2]])
    assert "forward" not in vars(model)


def test_a_condition_without_a_form_refuses_the_export(tmp_path: Path) -> None:
    lens = explained(lambda x: x * 2 if x.shape[0] / x.shape[1] > 1 else x, torch.rand(5, 3), dynamic=True)
    with pytest.raises(UsageError, match=r"x\.shape\[0\] / x\.shape\[1\]"):
        lens.export_onnx(tmp_path / "model.onnx")
    assert only(tmp_path)


NAMED = {"batch": Dim("batch", min=3, max=6), "pairs": 2 * Dim("pairs", max=50)}


@pytest.mark.parametrize("name", NAMED)
def test_sizes_have_the_names_that_the_user_gave(name: str, tmp_path: Path) -> None:
    class Added(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return x + y, torch.cat([x, x])

    x, dims = torch.rand(4, 3), {0: NAMED[name]}
    with torch.no_grad():
        program = export(Added(), (x, x.clone()), dynamic_shapes=(dims, dims))
        made = ortlens.explain(program, calls=1)(x, x).export_onnx(tmp_path / "model.onnx")
    assert made.inputs[0].shape[1] == 3
    assert name in str(made.inputs[0].shape[0])
    assert name in str(made.outputs[1].shape[0])
    torch.testing.assert_close(run_by_place(made, x, x), [x + x, torch.cat([x, x])])
    for shapes in ([(4, 3), (6, 3)], [(7, 3), (7, 3)], [(1, 3), (1, 3)]):
        with pytest.raises(Exception, match="requires"):
            run_by_place(made, *(sized(*shape) for shape in shapes))


def test_a_name_that_the_user_gave_means_one_size(tmp_path: Path) -> None:
    class Joined(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, y])

    with torch.no_grad():
        program = export(Joined(), (sized(4), sized(3)), dynamic_shapes=({0: Dim.AUTO}, {0: Dim("x_dim_0")}))
        made = ortlens.explain(program, calls=1)(sized(4), sized(3)).export_onnx(tmp_path / "model.onnx")
    assert [value.shape for value in made.inputs] == [("x_dim_0_",), ("x_dim_0",)]


def test_a_number_that_varies_is_an_input_of_any_sign(tmp_path: Path) -> None:
    """torch.export would take it for a size, which is 0 at least."""
    made = explained(lambda x, n: x[: n + 4] + n // -2, sized(6, 4), 1, dynamic=True).export_onnx(tmp_path / "model.onnx")
    assert [value.name for value in made.inputs] == ["x", "n"]
    for rows, number in ((7, 1), (6, 2), (6, -1), (7, -2)):
        x = sized(rows, 4)
        assert_leaves_match(run_bare(made, {"x": x, "n": torch.tensor(number)}), x[: number + 4] + number // -2)


def test_sizes_among_the_results(tmp_path: Path) -> None:
    made = explained(lambda x: (x.shape[0] * 2, x + 1, (x.shape[0] + 1) // 2), sized(5, 4), dynamic=True).export_onnx(
        tmp_path / "model.onnx"
    )
    x = sized(8, 4)
    torch.testing.assert_close(run_by_place(made, x), [torch.tensor(16), x + 1, torch.tensor(4)])


def test_the_weights_of_a_method_have_the_names_of_its_module(tmp_path: Path) -> None:
    model, other = Signature(), Signature()
    made = explained(model.cached, sized(3, 4)).export_onnx(tmp_path / "model.onnx", weights=other.state_dict())
    x = sized(3, 4)
    torch.testing.assert_close(run_by_place(made, x)[0], (x * other.weight).detach())


def test_a_call_with_other_sizes_opens_these_alone(tmp_path: Path) -> None:
    with torch.no_grad():
        lens = ortlens.explain(window, calls=1)(torch.rand(2, 5))
        assert lens.export_onnx(tmp_path / "one.onnx").inputs[0].shape == (2, 5)
        lens.verify(torch.rand(3, 5))
    made = lens.export_onnx(tmp_path / "other.onnx")
    assert made.inputs[0].shape == ("x_dim_0", 5)
    x = torch.rand(6, 5)
    torch.testing.assert_close(run_by_place(made, x), [x.sum(1)])


def test_an_export_changes_nothing_of_the_model(tmp_path: Path) -> None:
    model = Counting()
    lens = explained(model, X)
    before = model.calls
    made = lens.export_onnx(tmp_path / "model.onnx")
    assert model.calls == before
    assert made == tmp_path / "model.onnx"
    assert made.parent == tmp_path
