"""The one function that names what the cache keeps."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ortlens.backend.cache import fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.fx

Kind: TypeAlias = Literal["partition", "whole graph"]


def key_of(kind: Kind, module: torch.fx.GraphModule, *settings: object, inputs: Sequence[Any] | None = None) -> str | None:
    """Compute the key of a partition's model or of a whole graph; None for a graph without a fingerprint, which is not cached.

    It covers everything that the result depends on: the graph, the settings, the versions of all packages and the machine.
    """
    try:
        text = fingerprint.text_of(module, inputs)
    except fingerprint.NoFingerprint:
        return None
    return hashlib.sha256(f"{kind}\n{fingerprint.surroundings()}\n{settings!r}\n{text}".encode()).hexdigest()
