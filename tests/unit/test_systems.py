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


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    put_on(monkeypatch, name, _files, _ort, cache, doctor, environments, torch_process)
    return name


def test_a_file_that_is_being_read_is_replaced_on_windows_too(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(made: Path, place: Path, real: Callable[..., Path] = Path.replace, tried: list[Path] = []) -> Path:  # noqa: B006
        tried.append(place)
        if system == "win32" and len(tried) < 3:
            raise PermissionError(13, "Access is denied", str(place))
        return real(made, place)

    monkeypatch.setattr(Path, "replace", replace)
    _files.write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_file_is_opened_for_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, where a stream of text makes two bytes of the end of a line."""
    monkeypatch.setattr(os, "O_BINARY", os.O_EXCL, raising=False)  # a flag that can be seen here
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        _files.opened_above_streams(tmp_path / "file", os.O_CREAT | os.O_WRONLY)


def test_what_has_another_form_on_each_system(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = system == "win32"
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert environments.default_folder().is_relative_to(tmp_path / "local") == windows
    monkeypatch.setattr(_ort, "cuda_libraries", lambda: ["libcudart.so.13"])
    assert bool(list(doctor._cuda_libraries("13.0"))) == (system == "linux")
    if system != "linux":
        assert torch_process.openmp_pause.__wrapped__() is None
    tmp_path.chmod(0o777)
    kept = cache.ModelCache(tmp_path)
    if windows:  # modes say nothing there
        kept.store("a" * 64, SavedGraph(manifest={}, files={}))
    assert (kept.load("a" * 64) is not None) == windows
    with _ort.watched(onnxruntime.SessionOptions(), tmp_path, ours=True, with_model=True):
        assert (tmp_path / "weights.bin").is_symlink() != windows


def test_the_vendor_of_the_processor_is_known_on_windows_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor, "_LISTED", tmp_path / "none")
    monkeypatch.setattr(processor, "_listed", processor._listed.__wrapped__)
    assert not processor.stalls_at_denormals()
    monkeypatch.setenv("PROCESSOR_IDENTIFIER", "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel")
    assert processor.stalls_at_denormals()


INTERRUPTED = """
import os, sys, types
from ortlens.job import process
process.os = types.SimpleNamespace(**{**vars(os), "name": "nt"})
print(process.Program(sys.argv[1], [], is_module=False).run(lambda: None) & 0xFFFFFFFF)
"""


def test_an_interrupt_ends_a_program_on_windows_as_python_does(run_python: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    assert int(run_python(INTERRUPTED, str(tmp_path / "script.py"))) == 0xC000013A
