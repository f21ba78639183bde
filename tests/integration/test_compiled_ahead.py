"""Functions compiled ahead of time: right in another process, without Dynamo and conversion, and seen by a lens there."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

import ortlens
from ortlens import _torch
from ortlens.backend import ahead
from ortlens.backend.cache import ModelCache, surroundings
from ortlens.backend.runtime.runner import PartitionRunner
from ortlens.backend.runtime.session import ModelRefused
from tests.integration import ahead_programs as programs

FOR_CONVERTING = {"onnx_ir", "onnxscript", "ortlens.backend.planner", "ortlens.backend.operators.registry"}


def loaded_from(path: Path) -> Callable[..., object]:
    """What `torch.compiler.load_compiled_function` makes of a file."""
    with path.open("rb") as file:
        loaded: Callable[..., object] = torch.compiler.load_compiled_function(file, f_globals=vars(programs))
        return loaded


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Compile a program ahead of time; the path of its file."""

    def save(name: str, **options: object) -> Path:
        programs.save(name, tmp_path / name, options)
        return tmp_path / name

    return save


@pytest.mark.slow
def test_results_in_another_process(tmp_path: Path) -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "tests.integration.ahead_programs", what, str(tmp_path)], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for what in ("save", "load")
    ]
    *rows, modules = map(json.loads, outputs[1])
    assert [name for name, _, _ in rows] == list(programs.PROGRAMS)
    assert {name: worst for name, worst, _ in rows if worst > (1e-2 if name == "upcast" else 1e-5)} == {}
    assert {name for name, _, runs in rows if not runs} == {"updates"}  # which PyTorch runs
    assert set(json.loads(outputs[0][-1])) >= FOR_CONVERTING
    assert not FOR_CONVERTING & set(modules)


def test_a_capture_records_what_was_loaded_before_it(saved: Callable[..., Path]) -> None:
    loaded, model, x = loaded_from(saved("alternating")), programs.Alternating().eval(), torch.rand(3, 8)
    with torch.no_grad():
        loaded(model, x)
        with ortlens.capture() as lens:
            loaded(model, x)
        loaded(model, x)
        assert len(lens.partitions) == len(lens.sessions) == 2
        assert set(lens.sessions.calls) == {2}
        assert list(lens.fallbacks.target) == ["prims.bessel_j0.default"]
        assert lens.graphs.target.iloc[0] == "Module"
        assert int(lens.graphs.aot_ns.iloc[0]) == 0  # what the other process took is no time of this one
        assert "layers.first" in set(lens.nodes.module)
        assert set(lens.nodes.file.dropna()) == {programs.__file__}
        assert len(lens.profile(model, x))


def test_explain_of_what_was_loaded(saved: Callable[..., Path], tmp_path: Path) -> None:
    loaded, model, x = loaded_from(saved("layers")), programs.Layers().eval(), torch.rand(3, 8)
    with torch.no_grad():
        lens = ortlens.explain(loaded)(model, x)
        numerics, again = lens.verify(model, x), loaded(model, x)
    assert (len(lens.graphs), len(lens.partitions)) == (1, 1)
    torch.testing.assert_close(again, lens.result, rtol=0, atol=0)
    assert numerics.ok[numerics.scope != "call"].any()
    assert numerics.ok[numerics.scope == "call"].isna().all()  # there is no uncompiled function to compare the call with
    session = onnxruntime.InferenceSession(lens.export_onnx(tmp_path / "model.onnx"))
    (exported,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(exported), again)


def test_written_weights_are_noticed(saved: Callable[..., Path]) -> None:
    loaded, model, x = loaded_from(saved("layers")), programs.Layers().eval(), torch.rand(3, 8)
    with torch.no_grad():
        loaded(model, x)
        model.first.weight.mul_(2)
        torch.testing.assert_close(loaded(model, x), model(x))


def test_what_a_lens_compiles_ahead_can_be_saved(tmp_path: Path) -> None:
    lens, model, x = ortlens.Lens(), programs.Layers().eval(), torch.rand(3, 8)
    with torch.no_grad():
        compiled: Any = torch.compile(model, backend=lens, fullgraph=True)
        made = compiled.forward.aot_compile(((x,), {}))
        made(model, x)
        made.save_compiled_function(str(tmp_path / "saved"))
        assert lens.sessions.calls.sum() == 1
        torch.testing.assert_close(loaded_from(tmp_path / "saved")(model, x), model(x))


def test_options_are_those_of_the_compilation(saved: Callable[..., Path]) -> None:
    model, x = programs.Layers().eval(), torch.rand(3, 8)
    saved("layers")  # what AOTAutograd keeps of it is for these options only
    with torch.no_grad():
        lens = ortlens.explain(loaded_from(saved("layers", min_partition_nodes=50)), calls=1)(model, x)
    assert set(lens.fallbacks.reason_code) == {"too_small"}


@pytest.mark.parametrize("here", ["code=0", "onnxruntime=0"])
def test_other_versions_are_refused(saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, here: str) -> None:
    path, present = saved("layers"), surroundings()
    name = here.partition("=")[0]
    changed = " ".join(here if entry.startswith(f"{name}=") else entry for entry in present.split())
    monkeypatch.setattr(ahead, "surroundings", lambda: changed)
    with pytest.raises(ortlens.UnsupportedVersionError, match=rf"{name} \S+ \(here 0\)"):
        loaded_from(path)
    with pytest.raises(ortlens.UnsupportedVersionError, match="compile it again"):
        ahead.CompiledAhead.deserialize_compile_artifacts(b"\x0b\0\0\0torch=2.12.0")


def test_session_options_cannot_be_saved(saved: Callable[..., Path]) -> None:
    with pytest.raises(ortlens.UsageError, match="ort_session_options"):
        saved("layers", ort_session_options=onnxruntime.SessionOptions())


def test_pytorch_computes_what_onnx_runtime_refuses(saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ModelRefused("planted")

    loaded, model, x = loaded_from(saved("layers")), programs.Layers().eval(), torch.rand(3, 8)
    monkeypatch.setattr(PartitionRunner, "prepare", refuse)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="planted"):
        torch.testing.assert_close(loaded(model, x), model(x))


def test_what_cannot_be_asked_of_a_loaded_function(saved: Callable[..., Path]) -> None:
    with pytest.raises(ortlens.UsageError, match="compiled ahead of time"):
        ortlens.explain(loaded_from(saved("updates")))(torch.ones(3, 8), torch.ones(3, 8))
    loaded, model, x = loaded_from(saved("layers")), programs.Layers().eval(), torch.rand(3, 8)
    with pytest.raises(ortlens.UsageError, match="dry run"):
        ortlens.explain(loaded, dry_run=True)(model, x)
    with pytest.raises(ortlens.UsageError, match="freeze the model itself"):
        ortlens.freeze(loaded, model, x)


ARTIFACTS = """
import pathlib, sys, torch
torch.manual_seed(0)
model, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU()).eval(), torch.rand(3, 8)
fast = torch.compile(model, backend="ortlens", options={"cache_dir": sys.argv[2]})
if sys.argv[1] == "load":
    assert torch.compiler.load_cache_artifacts(pathlib.Path(sys.argv[3]).read_bytes()).artifacts["ortlens"]
with torch.no_grad():
    assert torch.allclose(fast(x), model(x), atol=1e-6)
if sys.argv[1] == "save":
    pathlib.Path(sys.argv[3]).write_bytes(torch.compiler.save_cache_artifacts()[0])
print("onnxscript" in sys.modules)
"""


@pytest.mark.slow
def test_artifacts_of_torch_carry_converted_models(tmp_path: Path, run_python: Callable[..., str]) -> None:
    said = [run_python(ARTIFACTS, what, str(tmp_path / what), str(tmp_path / "artifacts")).strip() for what in ("save", "load")]
    assert said == ["True", "False"]


def test_a_damaged_artifact_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch, "loaded_artifact", lambda _: b"ortlens cache 1\n" + bytes(64))
    assert ModelCache(tmp_path).load("key") is None
