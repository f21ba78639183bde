"""Operators that stay in PyTorch because their ONNX functions give different results, always or for some arguments."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.fx

from ortlens.backend.conversion.functions import numbers
from ortlens.backend.partitioning.wrong_structures import wrong_structure
from ortlens.backend.partitioning.wrong_values import wrong_values

_aten = torch.ops.aten


def wrong_for(node: torch.fx.Node) -> str | None:
    """Describe what the ONNX function (onnxscript 0.7, `torch_lib/ops/nn.py` and `core.py`) does wrong for these arguments, or None."""
    return wrong_structure(node) or wrong_values(node) or numbers.missing(node)


@functools.cache
def invented_outputs() -> dict[Any, frozenset[int]]:
    """List the outputs that ONNX functions fill with constants; in a graph that reads one, the operator stays in PyTorch.

    Inference never reads them. Source: onnxscript 0.7, `onnxscript/function_libs/torch_lib/ops/`, where each is marked as faked.
    """
    bag, attention_extras = frozenset({1, 2, 3}), frozenset(range(1, 9))
    return {
        _aten.adaptive_max_pool2d.default: frozenset({1}),
        _aten.adaptive_max_pool3d.default: frozenset({1}),
        _aten.embedding_bag.default: bag,
        _aten.embedding_bag.padding_idx: bag,
        _aten._embedding_bag.default: bag,  # noqa: SLF001 - an operator's name, here and below
        _aten._embedding_bag_forward_only.default: bag,  # noqa: SLF001 - same
        _aten._linalg_det.default: frozenset({1, 2}),  # noqa: SLF001 - same
        _aten._native_batch_norm_legit_no_training.default: frozenset({1, 2}),  # noqa: SLF001 - same
        _aten._scaled_dot_product_efficient_attention.default: attention_extras,  # noqa: SLF001 - same
        _aten._scaled_dot_product_flash_attention.default: attention_extras,  # noqa: SLF001 - same
        _aten.nll_loss_forward.default: frozenset({1}),
    }
