"""Our own ONNX functions, for operators that torch's registry lacks or whose functions differ from PyTorch; one file per family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion.functions import (  # noqa: F401 - each registers its functions
    activations,
    arithmetic,
    attention,
    basics,
    indexing,
    layers,
    numbers,
    ordering,
    pooling,
    quotients,
    reductions,
    shapes,
    special,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def own_functions() -> dict[Any, Callable[..., Any]]:
    """Map op overloads to our functions, for each compilation anew, since an import can register operators.

    `transformers` registers the grouped matrix product of its mixture-of-experts models when their code is imported, and torch a fused
    product and sum, which optimisers decompose to.
    """
    late = (
        (getattr(torch.ops.transformers, "grouped_mm_fallback", None), layers.grouped_mm),
        (getattr(torch.ops.prims, "fma", None), arithmetic.fma),
    )
    return {**basics.FUNCTIONS, **{packet.default: function for packet, function in late if packet is not None}}
