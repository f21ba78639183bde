"""What is decided by the name of the system is right on each of them."""

import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from ortlens import _files, _process, _torch, doctor
from ortlens.backend.basis.saved_graph import SavedGraph
from ortlens.backend.cache import ModelCache


@pytest.mark.parametrize(("system", "name", "tries"), [("linux", "posix", 1), ("darwin", "posix", 1), ("win32", "nt", 3)])
def test_each_system_has_forms_of_its_own(system: str, name: str, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert bool(list(doctor._cuda_libraries("13.0"))) == (system == "linux")
    assert system == "linux" or _torch.openmp_pause.__wrapped__() is None
    kept, key, place = ModelCache(tmp_path), "a" * 64, tmp_path / f"{'a' * 64}.ortlens"
    _files.write_file(place, SavedGraph(manifest={"key": key}, files={}).to_bytes())
    tmp_path.chmod(0o777)  # modes say nothing on Windows
    with monkeypatch.context() as patch:  # where `os.name` is another, no path can be made
        patch.setattr(os, "name", name)
        assert (kept.load(key) is not None) == (name == "nt")
        patch.setattr(Path, "replace", Mock(side_effect=[*[PermissionError] * (tries - 1), None]))  # while somebody reads the file
        _files.write_file(place, b"")
        assert Path.replace.call_count == tries  # type: ignore[attr-defined] # of the mock
        patch.setattr("ctypes.CDLL", lambda library: "/" in library)  # as it is on Windows
        assert _process._mallinfo2.__wrapped__() is None
        patch.setattr(os, "O_BINARY", os.O_EXCL, raising=False)  # likewise; a flag that can be seen here
        with pytest.raises(FileExistsError):
            _files.opened_above_streams(place, os.O_CREAT)
