"""Entries of our cache among the artifacts that `torch.compiler.save_cache_artifacts` collects."""

from __future__ import annotations

import functools

_TYPE = "ortlens"
_loaded: dict[str, bytes] = {}  # what `load_cache_artifacts` brought, by key


@functools.cache
def register_artifacts() -> None:
    """Let torch know entries of our cache, once: otherwise it loads nothing of what was saved with them."""
    from torch.compiler._cache import CacheArtifact, CacheArtifactFactory

    class ModelArtifact(CacheArtifact):
        def populate_cache(self) -> None:
            _loaded[self.key] = self.content

        @staticmethod
        def type() -> str:
            return _TYPE

    CacheArtifactFactory.register(ModelArtifact)


def record_artifact(key: str, data: bytes) -> None:
    """Give torch an entry that was used, for `save_cache_artifacts`."""
    from torch.compiler._cache import CacheArtifactManager

    register_artifacts()
    CacheArtifactManager.record_artifact(_TYPE, key, data)


def loaded_artifact(key: str) -> bytes | None:
    """Return an entry that `load_cache_artifacts` brought; nothing of it has been checked."""
    return _loaded.get(key)
