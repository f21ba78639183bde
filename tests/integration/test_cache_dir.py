"""`cache_dir`: what one process converted, the next one reads; whatever else lies in the folder is passed over."""

import json
import pathlib
import shutil
import stat
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import ortlens
from ortlens.backend import cache
from ortlens.backend.cache import ModelCache, surroundings
from tests.integration.against_eager import assert_same
from tests.threads import in_threads


class Small(torch.nn.Module):
    """Two layers with an operator between them that stays in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.shift = torch.nn.Buffer(torch.arange(16.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(torch.special.bessel_j0(self.first(x).relu() + self.shift))
        return made.softmax(-1)


X = torch.linspace(0, 1, 24).reshape(3, 8)


def run(model: torch.nn.Module, folder: pathlib.Path, *args: torch.Tensor, **options: object) -> ortlens.Lens:
    """Compile as a new process would: nothing of earlier compilations is left but the folder."""
    torch.compiler.reset()
    ortlens.OrtBackend.clear_cached_instances()
    lens = ortlens.Lens(options={"cache_dir": folder, **options})
    with torch.no_grad():
        assert_same(torch.compile(model, backend=lens)(*args), model(*args))
    return lens


def entries(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, Small, ortlens.Lens]:
    """A folder that was filled, what filled it and what was recorded."""
    folder, model = tmp_path_factory.mktemp("cache"), Small().eval()
    return folder, model, run(model, folder, X)


@pytest.fixture
def filled(cold: tuple[pathlib.Path, Small, ortlens.Lens], tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(cold[0], tmp_path / "filled"))


def test_the_second_time_nothing_is_converted(filled: pathlib.Path, cold: tuple[pathlib.Path, Small, ortlens.Lens]) -> None:
    _, model, first = cold
    before = entries(filled)
    assert first.models.cached.tolist() == [False, False]
    assert len(before) == 2
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in cold[0].iterdir())
    warm = run(model, filled, X)
    assert warm.models.cached.tolist() == [True, True]
    assert warm.models.sha256.tolist() == first.models.sha256.tolist()
    assert (warm.graphs.convert_ns == 0).all()
    assert entries(filled) == before
    assert warm.nodes.drop(columns="graph_id").equals(first.nodes.drop(columns="graph_id"))
    assert run(Small().eval(), filled, X).models.cached.all(), "other weights of the same model share an entry"


@pytest.mark.parametrize("trains", [False, True])
def test_symbolic_sizes_and_training_graphs(*, trains: bool, tmp_path: pathlib.Path) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))

    def function(x: torch.Tensor) -> Any:  # noqa: ANN401 - a tensor or gradients
        return torch.cat([x, x * x.shape[0]]).reshape(-1) if not trains else layers(x).square().sum()

    for expected in (False, True):
        torch.compiler.reset()
        lens = ortlens.Lens(options={"cache_dir": tmp_path})
        fast = torch.compile(function, backend=lens, dynamic=True)
        for rows in (3,) if trains else (3, 5, 9):
            found, wanted = fast(x := torch.rand(rows, 8)), function(x)
            if trains:
                found, wanted = (torch.autograd.grad(loss, list(layers.parameters())) for loss in (found, wanted))
            assert_same(found, wanted)
        assert set(lens.graphs.phase) == ({"forward", "backward"} if trains else {"inference"})
        assert set(lens.models.cached) == {expected}


CHANGES: dict[str, Any] = {
    "another_shape": lambda model, x: (model, torch.cat([x, x]), {}),
    "another_dtype": lambda model, x: (model.double(), x.double(), {}),
    "another_opset": lambda model, x: (model, x, {"export_options": {"opset_version": 21}}),
    "another_constant": lambda model, x: (lambda value: model(value * 3.5), x, {}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_converted_anew(filled: pathlib.Path, change: str) -> None:
    model, x, options = CHANGES[change](Small().eval(), X)
    assert not run(model, filled, x, **options).models.cached.iloc[0]


def test_constants_inside_the_graph_are_told_apart(tmp_path: pathlib.Path) -> None:
    def with_constant(number: float) -> torch.nn.Module:
        constant = torch.full((4,), number)

        class Adds(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x + torch.tensor([number, 1.0, 2.0, 3.0]) + constant

        return Adds()

    x = torch.rand(2, 4)
    for number in (1.0, 2.0, 2.5):
        assert not run(with_constant(number), tmp_path, x).models.cached.any()


def test_an_edited_source_makes_new_entries(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "ortlens"
    shutil.copytree(pathlib.Path(ortlens.__file__).parent, package, ignore=shutil.ignore_patterns("static", "__pycache__"))
    monkeypatch.setattr(ortlens, "__file__", str(package / "__init__.py"))
    seen = [surroundings.__wrapped__()]
    assert surroundings.__wrapped__() == seen[0]
    for source in ("backend/conversion/converter.py", "backend/operators/registry.py", "_torch/exporter.py", "analysis/cut.py"):
        with (package / source).open("a", encoding="utf-8") as edited:
            edited.write("# edited\n")
        seen.append(surroundings.__wrapped__())
    assert len(set(seen)) == 5


def test_other_versions_are_passed_over(filled: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "surroundings", lambda: "torch=1.0")
    assert not run(Small().eval(), filled, X).models.cached.any()
    assert run(Small().eval(), filled, X).models.cached.all()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"",
    "foreign": lambda _: b"PK\x03\x04 something else",
    "head": lambda data: data[:10],
    "flipped": lambda data: data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
}


@pytest.mark.parametrize("pair", [("truncated", "empty"), ("foreign", "head"), ("flipped", "flipped")])
def test_damaged_entries_are_passed_over_and_written_anew(filled: pathlib.Path, pair: tuple[str, str]) -> None:
    sound = entries(filled)
    for path, how in zip(sorted(filled.iterdir()), pair, strict=True):
        path.write_bytes(DAMAGES[how](path.read_bytes()))
    assert not run(Small().eval(), filled, X).models.cached.any()
    assert entries(filled) == sound


def test_a_folder_that_cannot_be_written_costs_a_finding(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "file"
    place.write_text("not a folder")
    with pytest.warns(RuntimeWarning, match="could not be kept in cache_dir"):
        lens = run(Small().eval(), place / "cache", X)
    assert set(lens.findings.rule) == {"cache_failed"}


def test_no_half_written_files_are_left(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pathlib.Path, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.warns(RuntimeWarning, match="No space left"):
        run(Small().eval(), tmp_path, X)
    assert list(tmp_path.iterdir()) == []


def test_models_with_functions_of_the_users_are_not_kept(tmp_path: pathlib.Path) -> None:
    from onnxscript import opset18

    def doubled(x: Any) -> Any:  # noqa: ANN401
        return opset18.Mul(x, opset18.Constant(value_float=2.0))

    options: dict[str, Any] = {"cache_dir": tmp_path, "custom_translation_table": {torch.ops.aten.sin.default: doubled}}
    fast = torch.compile(torch.sin, backend="ortlens", options=options)
    x = torch.rand(4)
    assert_same(fast(x), x * 2)
    assert list(tmp_path.iterdir()) == []


def test_threads_that_write_and_read_one_entry(filled: pathlib.Path) -> None:
    key = next(iter(filled.iterdir())).stem
    kept = ModelCache(filled)
    entry = kept.load(key)
    assert entry is not None
    seen: list[bool] = []

    def work(_: int) -> None:
        for _ in range(30):
            kept.store(key, entry)
            seen.append(kept.load(key) is not None)

    in_threads(work)
    assert seen == [True] * 120


PROGRAM = """
import json, sys, torch, ortlens
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
x = torch.rand(3, 8)
with torch.no_grad():
    actual = torch.compile(model, backend="ortlens", options={"cache_dir": sys.argv[1]})(x)
    assert torch.allclose(actual, model(x), atol=1e-6)
assert ortlens.OrtBackend.get_cached_instances()[0].execution_count == 1
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.slow
def test_a_process_that_finds_its_graph_imports_nothing_that_converts(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, run_python: Callable[..., str]
) -> None:
    ortlens.OrtBackend.clear_cached_instances()
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path)])
    exec(PROGRAM, {})  # noqa: S102 - what the process runs, here first
    assert set(sys.modules) >= FOR_CONVERTING
    assert not FOR_CONVERTING & set(json.loads(run_python(PROGRAM, str(tmp_path)).splitlines()[-1]))


FOR_CONVERTING = {
    "onnx_ir",
    "onnxscript",
    "ortlens.backend.conversion.converter",
    "ortlens.backend.graph",
    "ortlens.backend.operators.registry",
}
