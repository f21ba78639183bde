"""The folder of converted models: what is stored comes back under its own key only."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from ortlens.backend.basis.saved_graph import SavedGraph
from ortlens.backend.cache import ModelCache


def entry(name: str) -> SavedGraph:
    return SavedGraph(manifest={"permutations": [[1, 0], None]}, files={"model.onnx": name.encode()})


def test_what_is_stored_comes_back(tmp_path: pathlib.Path) -> None:
    cache = ModelCache(tmp_path / "new")
    cache.store("a" * 64, entry("one"))
    assert cache.load("a" * 64) == entry("one")
    (tmp_path / "new" / f"{'a' * 64}.ortlens").rename(tmp_path / "new" / f"{'b' * 64}.ortlens")
    assert cache.load("b" * 64) is None
    assert cache.load(None) is None


POSIX = pytest.mark.skipif(os.name != "posix", reason="owners and modes of POSIX")


@POSIX
def test_a_folder_that_everybody_may_write_to_is_not_used(tmp_path: pathlib.Path) -> None:
    cache = ModelCache(tmp_path)
    cache.store("a" * 64, entry("one"))
    tmp_path.chmod(0o777)
    assert cache.load("a" * 64) is None
    with pytest.raises(PermissionError, match="everybody can write to it"):
        cache.store("b" * 64, entry("two"))


@POSIX
def test_in_a_folder_of_a_group_only_models_that_nobody_else_can_write_to_are_read(tmp_path: pathlib.Path) -> None:
    cache, key = ModelCache(tmp_path), "a" * 64
    tmp_path.chmod(0o770)
    cache.store(key, entry("one"))
    assert cache.load(key) == entry("one")
    (tmp_path / f"{key}.ortlens").chmod(0o660)
    assert cache.load(key) is None


@POSIX
@pytest.mark.parametrize("place", ["folder", "entry", "link"])
def test_what_belongs_to_another_user_is_not_used(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """As a plain user sees it, who cannot give files away: the system reports another owner of one of them."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    cache, key = ModelCache(tmp_path / "link"), "a" * 64
    cache.store(key, entry("one"))
    assert cache.load(key) == entry("one")
    foreign = {"folder": tmp_path / "real", "entry": tmp_path / "real" / f"{key}.ortlens", "link": tmp_path / "link"}[place].lstat().st_ino
    for name in ("stat", "lstat", "fstat"):
        monkeypatch.setattr(os, name, _with_owner(getattr(os, name), foreign))
    assert cache.load(key) is None
    if place == "folder":
        with pytest.raises(PermissionError, match="belongs to another user"):
            cache.store(key, entry("two"))


def _with_owner(asked: Callable[..., os.stat_result], foreign: int) -> Callable[..., os.stat_result]:
    def answered(*args: Any, **kwargs: Any) -> os.stat_result:  # noqa: ANN401 - those of the system call
        found = asked(*args, **kwargs)
        return os.stat_result([*found[:4], 12345, *found[5:]]) if found.st_ino == foreign else found

    return answered


@POSIX
def test_no_link_and_no_pipe_is_read(tmp_path: pathlib.Path) -> None:
    cache, key = ModelCache(tmp_path / "cache"), "a" * 64
    cache.store(key, entry("one"))
    made = tmp_path / "cache" / f"{key}.ortlens"
    made.rename(tmp_path / "elsewhere")
    made.symlink_to(tmp_path / "elsewhere")
    assert cache.load(key) is None
    made.unlink()
    os.mkfifo(made)
    assert cache.load(key) is None
    made.unlink()
    made.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    cache.store(key, entry("two"))
    assert (tmp_path / "elsewhere").read_bytes() == before, "the link is replaced, not what it leads to"
    assert cache.load(key) == entry("two")
