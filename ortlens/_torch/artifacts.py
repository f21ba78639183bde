"""Entries of our cache among the artifacts that `torch.compiler.save_cache_artifacts` collects."""

from __future__ import annotations

import functools

_TYPE = "ortlens"
_loaded: dict[str, bytes] = {}  # what `load_cache_artifacts` brought, by key


@functools.cache
def register_artifacts() -> bool:
    """Let torch know entries of our cache, once; False where it collects none.

    Without that, it loads nothing of what was saved with them.
    """
    import torch

    if not hasattr(torch.compiler, "load_cache_artifacts"):
        return False
    from torch.compiler._cache import CacheArtifact, CacheArtifactFactory

    class ModelArtifact(CacheArtifact):
        def populate_cache(self) -> None:
            _loaded[self.key] = self.content

        @staticmethod
        def type() -> str:
            return _TYPE

    CacheArtifactFactory.register(ModelArtifact)
    return True


def record_artifact(key: str, data: bytes) -> None:
    """Give torch an entry that was used, for `save_cache_artifacts`."""
    if register_artifacts():
        from torch.compiler._cache import CacheArtifactManager

        CacheArtifactManager.record_artifact(_TYPE, key, data)


def loaded_artifact(key: str) -> bytes | None:
    """Return an entry that `load_cache_artifacts` brought; nothing of it has been checked."""
    return _loaded.get(key)
