"""`export_onnx`: a file that a bare ONNX Runtime runs with the same numbers, or a refusal that leaves everything as it was."""

# ruff: noqa: ANN401 - arguments and results of models are Any in torch itself

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.utils import _pytree as pytree

import ortlens
from ortlens import ConversionError, Lens, UsageError
from ortlens.backend.deploy import export as deploy_export
from tests.integration.small_models import SMALL_MODELS
from tests.sample import sampled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def run_bare(path: Path, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Check a file and run it in a session that knows nothing of ortlens; the inputs' names must be the file's."""
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == list(inputs)
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


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 64)
        self.down = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(self.up(x).relu())


@pytest.mark.parametrize("name", sampled(SMALL_MODELS, ("resnet",)))
def test_real_architectures_by_the_names_of_their_arguments(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = SMALL_MODELS[name].build().eval(), SMALL_MODELS[name].inputs(2)
    with torch.no_grad():
        lens, expected = ortlens.explain(model, calls=1)(**inputs), model(**inputs)
    path = lens.export_onnx(tmp_path / "model.onnx")
    assert path == tmp_path / "model.onnx"
    assert_leaves_match(run_bare(path, inputs), expected)
    assert only(tmp_path, "model.onnx")


@pytest.mark.parametrize("name", sampled(["bert", "resnet"], ("resnet",)))
def test_other_sizes_in_the_bare_session(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = SMALL_MODELS[name].build().eval()
    with torch.no_grad():
        lens = ortlens.explain(model, calls=1, dynamic=True)(**SMALL_MODELS[name].inputs(4))
        path = lens.export_onnx(tmp_path / "dynamic.onnx")
        for batch in (2, 7):
            inputs = SMALL_MODELS[name].inputs(batch)
            assert_leaves_match(run_bare(path, inputs), model(**inputs))


def test_weights_have_the_names_of_the_state_dict(tmp_path: Path) -> None:
    model, x = Net().eval(), torch.randn(2, 4)
    path = explained(model, x).export_onnx(tmp_path / "net.onnx")
    proto = onnx.load(path)
    assert {value.name for value in proto.graph.initializer} >= {"up.bias", "down.bias"}
    assert not {entry.domain for entry in proto.opset_import} - {"", "ai.onnx"}
    assert_leaves_match(run_bare(path, {"x": x}), model(x).detach())


def test_a_recompiled_model_is_exported_as_it_was_last_compiled(tmp_path: Path) -> None:
    model, lens = Net().eval(), Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        for size in (2, 3, 7):
            compiled(torch.randn(size, 4))
        x = torch.randn(11, 4)
        assert_leaves_match(run_bare(lens.export_onnx(tmp_path / "net.onnx"), {"x": x}), model(x))


def test_the_weights_are_those_of_the_moment(tmp_path: Path) -> None:
    model, x, lens = Net().eval(), torch.randn(2, 4), Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        compiled(x)
        model.up.weight.add_(1)
        compiled(x)
        assert_leaves_match(run_bare(lens.export_onnx(tmp_path / "net.onnx"), {"x": x}), model(x))


def test_functions_with_nested_arguments_and_several_outputs(tmp_path: Path) -> None:
    def function(pair: tuple[torch.Tensor, torch.Tensor], *, scale: torch.Tensor) -> Any:
        return {"sum": pair[0] + pair[1], "rest": (pair[0] * scale, pair[1].exp())}

    x, y, scale = torch.randn(3), torch.randn(3), torch.tensor(2.0)
    with torch.no_grad():
        lens = ortlens.explain(function, calls=1)((x, y), scale=scale)
    path = lens.export_onnx(tmp_path / "function.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    assert len(names) == 3
    assert "scale" in names
    others = dict(zip([name for name in names if name != "scale"], (x, y), strict=True))
    inputs = {name: scale if name == "scale" else others[name] for name in names}
    assert_leaves_match(run_bare(path, inputs), function((x, y), scale=scale))


def test_outputs_that_pytorch_permutes_come_in_logical_order(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> Any:
        return (x + 1).transpose(0, 2), (x * 2).permute(1, 2, 0), nn.functional.relu(x)

    x = torch.randn(2, 3, 5)
    assert_leaves_match(run_bare(explained(function, x).export_onnx(tmp_path / "f.onnx"), {"x": x}), function(x))
    image = torch.randn(1, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    conv = nn.Conv2d(3, 4, 3).eval()
    path = explained(conv, image).export_onnx(tmp_path / "conv.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), conv(image).detach())


def test_a_module_of_torch_itself_keeps_the_names_of_its_arguments(tmp_path: Path) -> None:
    layer, x = nn.Linear(4, 2).eval(), torch.randn(3, 4)
    assert_leaves_match(run_bare(explained(layer, x).export_onnx(tmp_path / "layer.onnx"), {"input": x}), layer(x).detach())


def test_an_output_that_is_an_input_and_one_given_twice(tmp_path: Path) -> None:
    class Passing(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            made = x.sin()
            return x, made, None, 3, made

    x = torch.randn(3)
    lens = ortlens.explain(export(Passing(), (x,)), calls=1)(x)
    assert_leaves_match(run_bare(lens.export_onnx(tmp_path / "f.onnx"), {"x": x}), Passing()(x))


class Stateful(nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> Any:
        self.count.add_(1)
        return {"a": self.linear(x).transpose(0, 1) + y, "b": x.sum() + self.count}


def test_an_exported_program_with_state(tmp_path: Path) -> None:
    x, y = torch.randn(2, 4), torch.randn(3, 1)
    program = export(Stateful(), (x,), {"y": y}, dynamic_shapes={"x": {0: Dim("batch")}, "y": None})
    path = ortlens.explain(program, calls=1)(x, y=y).export_onnx(tmp_path / "stateful.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    assert set(names) == {"x", "y", "count"}, "a buffer that changes is the caller's to keep"
    module, count = Stateful(), torch.zeros(1)
    module.load_state_dict({**program.state_dict, "count": count})
    for size in (2, 5):
        x = torch.randn(size, 4)
        given = {"x": x, "y": y, "count": count}
        results = run_bare(path, {name: given[name] for name in names})
        expected = module(x, y=y)
        count = results.pop("count.updated")
        torch.testing.assert_close(count, module.count)
        assert_leaves_match(results, pytree.tree_map(torch.Tensor.detach, expected))


def test_a_compiled_model_with_state_hands_it_over_as_a_program_does(tmp_path: Path) -> None:
    class Counting(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x * self.count

    model, x = Counting(), torch.randn(3)
    path = explained(model, x).export_onnx(tmp_path / "counting.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    assert set(names) == {"x", "count"}
    results = run_bare(path, {name: {"x": x, "count": torch.full((1,), 6.0)}[name] for name in names})
    torch.testing.assert_close(results.pop("count.updated"), torch.full((1,), 7.0))
    assert_leaves_match(results, x * 7)


@pytest.mark.parametrize("road", ["compiled", "exported"])
def test_a_size_among_the_outputs_is_right_or_refused(road: str, tmp_path: Path) -> None:
    class Sized(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x * 2, x.shape[0] + 1

    x = torch.randn(3, 4)
    target = Sized() if road == "compiled" else export(Sized(), (x,), dynamic_shapes={"x": {0: Dim("batch")}})
    lens = explained(target, x, dynamic=True if road == "compiled" else None)
    try:
        path = lens.export_onnx(tmp_path / "sized.onnx")
    except UsageError:
        assert only(tmp_path)
        return
    results = list(run_bare(path, {"x": torch.ones(7, 4)}).values())
    torch.testing.assert_close(results[0], torch.full((7, 4), 2.0))
    assert [int(size) for size in results[1:]] == [8]


def test_numbers_among_the_arguments_are_inputs_too(tmp_path: Path) -> None:
    path = explained(lambda x, n: x * n + n, torch.randn(3), 5, dynamic=True).export_onnx(tmp_path / "f.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {"x": torch.ones(4), "n": torch.tensor(7)}
    results = run_bare(path, {value.name: given[value.name] for value in session.get_inputs()})
    assert_leaves_match(results, torch.full((4,), 14.0))


def test_a_program_is_exported_with_the_names_of_its_signature(tmp_path: Path) -> None:
    program, x = export(Net().eval(), (torch.randn(2, 4),), dynamic_shapes={"x": {0: Dim("batch")}}), torch.randn(6, 4)
    path = ortlens.explain(program, calls=1)(x).export_onnx(tmp_path / "net.onnx")
    assert_leaves_match(run_bare(path, {"x": x}), program.module()(x).detach())


def test_large_weights_lie_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Net().eval(), torch.randn(2, 4)
    lens = explained(model, x)
    monkeypatch.setattr(deploy_export, "_INLINE_BYTES", 64)
    for _ in range(3):  # each time over the one before
        path = lens.export_onnx(tmp_path / "net.onnx")
        (data,) = (file for file in tmp_path.iterdir() if file != path)
        assert data.suffix == ".data"
        assert_leaves_match(run_bare(path, {"x": x}), model(x).detach())
    proto = onnx.load(path, load_external_data=False)
    outside = [value for value in proto.graph.initializer if value.data_location == onnx.TensorProto.EXTERNAL]
    assert {entry.value for value in outside for entry in value.external_data if entry.key == "location"} == {data.name}
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in (path, data):
        file.rename(moved / file.name)
    assert_leaves_match(run_bare(moved / "net.onnx", {"x": x}), model(x).detach())


def test_files_that_are_not_the_models_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lens = explained(Net().eval(), torch.randn(2, 4))
    (tmp_path / "net.data").write_text("the user's")
    (tmp_path / "net.1.data").write_text("the user's")
    lens.export_onnx(tmp_path / "net.onnx")
    assert {(tmp_path / name).read_text() for name in ("net.data", "net.1.data")} == {"the user's"}
    monkeypatch.setattr(deploy_export, "_INLINE_BYTES", 64)
    (tmp_path / "net.1.data").unlink()
    lens.export_onnx(tmp_path / "other.onnx")
    assert (tmp_path / "net.data").read_text() == "the user's"


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("place", ["save", "check", "checker", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    outside: bool,  # noqa: FBT001 - a parameter of the test
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, old, new = torch.randn(2, 4), Net().eval(), Net().eval()
    if outside:
        monkeypatch.setattr(deploy_export, "_INLINE_BYTES", 64)
    path = explained(old, x).export_onnx(tmp_path / "net.onnx")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    torch.compiler.reset()
    lens = explained(new, x)
    raised = {"checker": onnx.checker.ValidationError("planted"), "check": RuntimeError("planted")}.get(place, OSError("planted"))

    def fail(*_: Any, **__: Any) -> None:
        raise raised

    owner, name = {"save": (onnx_ir, "save"), "replace": (os, "replace")}.get(place, (onnx.checker, "check_model"))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises({"checker": ConversionError, "check": RuntimeError}.get(place, UsageError), match="planted"):
            lens.export_onnx(path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert_leaves_match(run_bare(path, {"x": x}), old(x).detach())
    assert_leaves_match(run_bare(lens.export_onnx(path), {"x": x}), new(x).detach())


def test_a_failure_between_the_two_files_leaves_a_pair_that_belongs_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy_export, "_INLINE_BYTES", 64)
    x, old, new = torch.randn(2, 4), Net().eval(), Net().eval()
    path = explained(old, x).export_onnx(tmp_path / "net.onnx")
    torch.compiler.reset()
    lens, replace = explained(new, x), os.replace

    def fail_on_the_model(source: Any, target: Any) -> None:
        if str(target).endswith(".onnx"):
            raise OSError("planted")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail_on_the_model)
        with pytest.raises(UsageError, match="planted; what was there is untouched"):
            lens.export_onnx(path)
    assert_leaves_match(run_bare(path, {"x": x}), old(x).detach())


def test_a_kill_between_the_two_files_leaves_no_pair_of_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy_export, "_INLINE_BYTES", 64)
    x, old, new = torch.randn(2, 4), Net().eval(), Net().eval()
    right = [model(x).detach() for model in (old, new)]
    written, path, left = explained(old, x), tmp_path / "net.onnx", 0
    torch.compiler.reset()
    lens, move = explained(new, x), {name: getattr(os, name) for name in ("rename", "replace")}

    def killed(name: str, *places: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        move[name](*places)

    absent, ended = 0, False
    for left_at in range(10):
        written.export_onnx(path)
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
            (found,) = run_bare(path, {"x": x}).values()
            assert any(torch.allclose(found, want, atol=1e-5) for want in right)
        else:
            absent += 1
            assert [kept.name for kept in tmp_path.glob(".ortlens-*/old/*.onnx")] == [path.name]
        for file in tmp_path.iterdir():
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    assert ended
    assert absent == 3


def test_a_first_export_that_fails_leaves_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy_export, "_INLINE_BYTES", 64)
    lens = explained(Net().eval(), torch.randn(2, 4))

    def fail(*_: object) -> None:
        raise OSError("planted")

    monkeypatch.setattr(os, "replace", fail)
    refused(lens, tmp_path, "planted")


def refused(lens: Lens, folder: Path, match: str, **given: Any) -> None:
    target = folder / "refused.onnx"
    with pytest.raises(UsageError, match=match):
        lens.export_onnx(target, **given)
    assert not list(folder.iterdir())


def test_nodes_that_stay_in_pytorch_are_named_with_their_reasons(tmp_path: Path) -> None:
    lens = explained(lambda x: torch.cummax(x * 2, 0).values.sin(), torch.randn(3))
    refused(lens, tmp_path, r"1 nodes? stays? in PyTorch: cummax.*has no ONNX function")


def test_a_model_in_pieces_is_refused(tmp_path: Path) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    refused(explained(broken, torch.randn(3)), tmp_path, "2 graphs")


def test_a_training_graph_is_refused(tmp_path: Path) -> None:
    refused(ortlens.explain(Net(), calls=1)(torch.randn(2, 4)), tmp_path, r"no_grad")


def test_nothing_to_export(tmp_path: Path) -> None:
    refused(Lens(), tmp_path, "nothing to export")
    refused(explained(torch.sin, torch.randn(2), backend="eager"), tmp_path, "nothing to export")


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        explained(Net().eval(), torch.randn(2, 4)).export_onnx(tmp_path / "missing" / "net.onnx")
    assert only(tmp_path)


def test_a_relative_path_and_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = explained(Net().eval(), torch.randn(2, 4)).export_onnx("net.onnx")
    assert path == tmp_path / "net.onnx"
    assert only(tmp_path, "net.onnx")


def test_a_model_that_returns_a_value_and_a_view_of_it(tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            hidden = torch.relu(x)
            return hidden, hidden[:, 0], x.t()

    x = torch.randn(3, 4)
    with torch.no_grad():
        lens = ortlens.explain(Both())(x)
    path = lens.export_onnx(tmp_path / "both.onnx")
    got = run_bare(path, {"x": x})
    for made, expected in zip(got.values(), Both()(x), strict=True):
        torch.testing.assert_close(made, expected)


def test_views_of_other_outputs_are_computed_with_the_weights(tmp_path: Path) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            whole = self.up(x)
            return whole[:, : x.shape[0]], whole

    model, lens = Part().eval(), Lens()
    fast = torch.compile(model, backend=lens, dynamic=True)
    with torch.no_grad():
        for rows in (3, 4):
            x = torch.rand(rows, 6)
            fast(x)
            assert_leaves_match(run_bare(lens.export_onnx(tmp_path / f"{rows}.onnx"), {"x": x}), model(x))
