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
    """The key of a partition's model or of a whole graph.

    It covers everything that the result depends on: the graph, the settings, the versions of all packages and the machine.

    Args:
        kind: What is kept under the key.
        module: The partition's module, or Dynamo's graph.
        *settings: Whatever else the result depends on; their `repr` counts.
        inputs: The example inputs of Dynamo's graph.

    Returns:
        64 hexadecimal digits; None for a graph without a fingerprint, which is not cached.
    """
    try:
        text = fingerprint.text_of(module, inputs)
    except fingerprint.NoFingerprint:
        return None
    return hashlib.sha256(f"{kind}\n{fingerprint.surroundings()}\n{settings!r}\n{text}".encode()).hexdigest()
