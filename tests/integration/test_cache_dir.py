"""`cache_dir`: what one process converted, the next one reads; whatever else lies in the folder is passed over."""

from __future__ import annotations

import json
import multiprocessing.pool
import pathlib
import shutil
import stat
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

import ortlens
from ortlens.backend.cache import fingerprint, store
from tests.integration.against_eager import assert_same


class Small(torch.nn.Module):
    """Two layers with an operator between them that stays in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.register_buffer("shift", torch.arange(16.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(torch.special.bessel_j0(self.first(x).relu() + self.shift))
        return made.softmax(-1)


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


def test_the_second_time_nothing_is_converted(tmp_path: pathlib.Path) -> None:
    model, x = Small().eval(), torch.rand(3, 8)
    cold = run(model, tmp_path, x)
    before = entries(tmp_path)
    assert cold.models.cached.tolist() == [False, False]
    assert len(before) == 2
    warm = run(model, tmp_path, x)
    assert warm.models.cached.tolist() == [True, True]
    assert warm.models.sha256.tolist() == cold.models.sha256.tolist()
    assert (warm.graphs.convert_ns == 0).all()
    assert entries(tmp_path) == before
    assert warm.nodes.drop(columns="graph_id").equals(cold.nodes.drop(columns="graph_id"))


def test_other_weights_of_the_same_model_share_an_entry(tmp_path: pathlib.Path) -> None:
    x = torch.rand(3, 8)
    run(Small().eval(), tmp_path, x)
    assert run(Small().eval(), tmp_path, x).models.cached.all()


def test_symbolic_sizes(tmp_path: pathlib.Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x * x.shape[0]]).reshape(-1)

    for expected in (False, True):
        torch.compiler.reset()
        lens = ortlens.Lens(options={"cache_dir": tmp_path})
        fast = torch.compile(function, backend=lens, dynamic=True)
        for rows in (3, 5, 9):
            x = torch.rand(rows, 4)
            assert_same(fast(x), function(x))
        assert lens.models.cached.tolist() == [expected]


def test_training_graphs(tmp_path: pathlib.Path) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)), torch.rand(3, 8)
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    for expected in (False, True):
        torch.compiler.reset()
        lens = ortlens.Lens(options={"cache_dir": tmp_path})
        found = torch.autograd.grad(torch.compile(model, backend=lens)(x).square().sum(), list(model.parameters()))
        assert_same(found, wanted)
        assert set(lens.graphs.phase) == {"forward", "backward"}
        assert (lens.models.cached == expected).all()


CHANGES: dict[str, Any] = {
    "another_shape": lambda model, x: (model, torch.cat([x, x]), {}),
    "another_dtype": lambda model, x: (model.double(), x.double(), {}),
    "another_opset": lambda model, x: (model, x, {"export_options": {"opset_version": 21}}),
    "another_constant": lambda model, x: (lambda value: model(value * 3.5), x, {}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_converted_anew(tmp_path: pathlib.Path, change: str) -> None:
    model, x = Small().eval(), torch.rand(3, 8)
    run(model, tmp_path, x)
    model, x, options = CHANGES[change](model, x)
    assert not run(model, tmp_path, x, **options).models.cached.iloc[0]


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


@pytest.mark.parametrize(
    "source", ["backend/conversion/converter.py", "backend/lowering/decompositions.py", "_torch/exporter.py", "analysis/cut.py"]
)
def test_an_edited_source_makes_new_entries(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    package = tmp_path / "ortlens"
    shutil.copytree(pathlib.Path(ortlens.__file__).parent, package, ignore=shutil.ignore_patterns("static", "__pycache__"))
    monkeypatch.setattr(ortlens, "__file__", str(package / "__init__.py"))
    before = fingerprint.surroundings.__wrapped__()
    assert fingerprint.surroundings.__wrapped__() == before
    with (package / source).open("a", encoding="utf-8") as edited:
        edited.write("# edited\n")
    assert fingerprint.surroundings.__wrapped__() != before


def test_a_graph_that_calls_a_module_has_no_key() -> None:
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    with pytest.raises(fingerprint.NoFingerprint, match="module 0"):
        fingerprint.text_of(traced, [torch.rand(1, 2)])


@pytest.mark.parametrize("surroundings", ["torch=1.0", "code=0"])
def test_other_versions_are_passed_over(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, surroundings: str) -> None:
    model, x = Small().eval(), torch.rand(3, 8)
    run(model, tmp_path, x)
    monkeypatch.setattr(fingerprint, "surroundings", lambda: surroundings)
    assert not run(model, tmp_path, x).models.cached.any()
    assert run(model, tmp_path, x).models.cached.all()


def _damage(data: bytes, how: str) -> bytes:
    if how == "flipped":
        return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]
    return {"truncated": data[: len(data) // 2], "empty": b"", "foreign": b"PK\x03\x04 something else", "head": data[:10]}[how]


@pytest.mark.parametrize("how", ["truncated", "empty", "foreign", "head", "flipped"])
def test_damaged_entries_are_passed_over_and_written_anew(tmp_path: pathlib.Path, how: str) -> None:
    model, x = Small().eval(), torch.rand(3, 8)
    run(model, tmp_path, x)
    sound = entries(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(_damage(path.read_bytes(), how))
    assert not run(model, tmp_path, x).models.cached.any()
    assert entries(tmp_path) == sound


def test_an_entry_in_anothers_place_is_none(tmp_path: pathlib.Path) -> None:
    model, x = Small().eval(), torch.rand(3, 8)
    run(model, tmp_path, x)
    first, second = sorted(tmp_path.iterdir())
    mine, yours = first.read_bytes(), second.read_bytes()
    first.write_bytes(yours)
    second.write_bytes(mine)
    assert not run(model, tmp_path, x).models.cached.any()


def test_a_folder_that_cannot_be_written_costs_a_finding(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "file"
    place.write_text("not a folder")
    torch.compiler.reset()
    model, x = Small().eval(), torch.rand(3, 8)
    lens = ortlens.Lens(options={"cache_dir": place / "cache"})
    with pytest.warns(RuntimeWarning, match="could not be kept in cache_dir"), torch.no_grad():
        assert_same(torch.compile(model, backend=lens)(x), model(x))
    assert set(lens.findings.rule) == {"cache_failed"}


def test_no_half_written_files_are_left(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "replace", full)
    torch.compiler.reset()
    with pytest.warns(RuntimeWarning, match="No space left"), torch.no_grad():
        torch.compile(Small().eval(), backend=ortlens.Lens(options={"cache_dir": tmp_path}))(torch.rand(3, 8))
    assert list(tmp_path.iterdir()) == []


def test_models_with_functions_of_the_users_are_not_kept(tmp_path: pathlib.Path) -> None:
    from onnxscript import opset18

    def doubled(x: Any) -> Any:  # noqa: ANN401
        return opset18.Mul(x, opset18.Constant(value_float=2.0))

    options: dict[str, Any] = {"cache_dir": tmp_path, "custom_translation_table": {torch.ops.aten.sin.default: doubled}}
    torch.compiler.reset()
    fast = torch.compile(torch.sin, backend="ortlens", options=options)
    x = torch.rand(4)
    assert_same(fast(x), x * 2)
    assert list(tmp_path.iterdir()) == []


def test_entries_are_for_their_owner_only(tmp_path: pathlib.Path) -> None:
    run(Small().eval(), tmp_path, torch.rand(3, 8))
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())


def test_threads_that_write_and_read_one_entry(tmp_path: pathlib.Path) -> None:
    run(Small().eval(), tmp_path, torch.rand(3, 8))
    key = next(iter(tmp_path.iterdir())).stem
    kept = store.ModelCache(tmp_path)
    entry = kept.load(key)
    assert entry is not None
    seen: list[bool] = []

    def work() -> None:
        for _ in range(30):
            kept.store(key, entry)
            seen.append(kept.load(key) is not None)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert seen == [True] * 120


PROGRAM = """
import json, sys, torch, ortlens
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
x = torch.rand(3, 8)
lens = ortlens.Lens(options={"cache_dir": sys.argv[1]})
with torch.no_grad():
    ok = torch.allclose(torch.compile(model, backend=lens)(x), model(x), atol=1e-6)
print(json.dumps({"cached": lens.models.cached.tolist(), "ok": ok}))
"""


def _process(folder: pathlib.Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_another_process_finds_it(tmp_path: pathlib.Path) -> None:
    assert _process(tmp_path) == {"cached": [False], "ok": True}
    assert _process(tmp_path) == {"cached": [True], "ok": True}


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: pathlib.Path) -> None:
    with multiprocessing.pool.ThreadPool(2) as pool:
        assert all(found["ok"] for found in pool.map(_process, [tmp_path, tmp_path]))
    assert _process(tmp_path) == {"cached": [True], "ok": True}


IMPORTS = """
import json, sys, torch, ortlens
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
x = torch.rand(3, 8)
with torch.no_grad():
    actual = torch.compile(model, backend="ortlens", options={"cache_dir": sys.argv[1]})(x)
    ok = torch.allclose(actual, model(x), atol=1e-6)
print(json.dumps({"ok": ok, "runs": ortlens.OrtBackend.get_cached_instances()[0].execution_count, "modules": sorted(sys.modules)}))
"""
FOR_CONVERTING = {
    "onnx_ir",
    "onnxscript",
    "ortlens.backend.conversion.converter",
    "ortlens.backend.graph",
    "ortlens.backend.lowering.decompositions",
}


@pytest.mark.slow
def test_a_process_that_finds_its_graph_imports_nothing_that_converts(tmp_path: pathlib.Path) -> None:
    def imported() -> set[str]:
        done = subprocess.run([sys.executable, "-c", IMPORTS, str(tmp_path)], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        assert (found["ok"], found["runs"]) == (True, 1)
        return set(found["modules"])

    assert imported() >= FOR_CONVERTING
    assert not FOR_CONVERTING & imported()
