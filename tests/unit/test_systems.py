"""What is decided by the name of the system, or by what it lacks, on each system."""

import os
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest

from ortlens import _files, _ort, doctor
from ortlens._torch import process as torch_process
from ortlens.backend import cache
from ortlens.backend.basis.saved_graph import SavedGraph
from ortlens.backend.runtime import processor
from ortlens.studies import environments
from tests.systems import SYSTEMS, put_on


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_system_has_forms_of_its_own(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on(monkeypatch, system, _files, _ort, cache, doctor, environments, torch_process)
    windows, linux = system == "win32", system == "linux"
    refused = iter([windows, windows, False])

    def replace(made: Path, place: Path, real: Callable[..., Path] = Path.replace) -> Path:
        if next(refused):  # as by Windows, while somebody reads what is there
            raise PermissionError(13, "Access is denied", str(place))
        return real(made, place)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        _files.write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert environments.default_folder().is_relative_to(tmp_path / "local") == windows
    monkeypatch.setattr(_ort, "cuda_libraries", lambda: ["libcudart.so.13"])
    assert bool(list(doctor._cuda_libraries("13.0"))) == linux
    assert linux or torch_process.openmp_pause.__wrapped__() is None
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o777)  # modes say nothing on Windows
    kept = cache.ModelCache(tmp_path / "all")
    (tmp_path / "all" / f"{'a' * 64}.ortlens").write_bytes(SavedGraph(manifest={"key": "a" * 64}, files={}).to_bytes())
    assert (kept.load("a" * 64) is not None) == windows
    with _ort.watched(onnxruntime.SessionOptions(), tmp_path, ours=True, with_model=True):
        assert (tmp_path / "weights.bin").is_symlink() != windows


def test_what_only_windows_has(run_python: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor, "_LISTED", tmp_path / "none")
    monkeypatch.setattr(processor, "_listed", processor._listed.__wrapped__)
    monkeypatch.setenv("PROCESSOR_IDENTIFIER", "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel")
    assert processor.stalls_at_denormals()
    monkeypatch.setattr(os, "O_BINARY", os.O_EXCL, raising=False)  # a flag that can be seen here
    (script := tmp_path / "script.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    with pytest.raises(FileExistsError):
        _files.opened_above_streams(script, os.O_CREAT | os.O_WRONLY)
    program = "from ortlens.job import process as p; import os, sys, types; p.os = types.SimpleNamespace(**{**vars(os), 'name': 'nt'}); "
    program += "print(p.Program(sys.argv[1], [], is_module=False).run(lambda: None) & 0xFFFFFFFF)"
    assert int(run_python(program, str(script))) == 0xC000013A, "what Python ends with on Ctrl-C"
