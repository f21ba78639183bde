"""The folder of converted models: what is stored comes back under its own key only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto, helper

from ortlens.backend.cache.store import CachedModel, ModelCache

if TYPE_CHECKING:
    import pathlib


def entry(name: str) -> CachedModel:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    return CachedModel(model=helper.make_model(helper.make_graph([], name, [value], [value])), facts={"permutations": [[1, 0], None]})


def test_what_is_stored_comes_back(tmp_path: pathlib.Path) -> None:
    cache = ModelCache(tmp_path / "new")
    cache.store("a" * 64, entry("one"))
    assert cache.load("a" * 64) == entry("one")
    assert cache.load("b" * 64) is None
    assert cache.load(None) is None


def test_a_renamed_file_is_a_miss(tmp_path: pathlib.Path) -> None:
    cache = ModelCache(tmp_path)
    cache.store("a" * 64, entry("one"))
    (tmp_path / f"{'a' * 64}.ortlens").rename(tmp_path / f"{'b' * 64}.ortlens")
    assert cache.load("b" * 64) is None
