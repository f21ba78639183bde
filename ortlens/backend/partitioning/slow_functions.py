"""Operators that stay in PyTorch because every ONNX form of them is much slower than PyTorch's kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.backend.lowering import provenance

if TYPE_CHECKING:
    import torch.fx

    from ortlens.trace.records import ReasonCode

_TRANSFORMS = frozenset({"aten._fft_r2c.default", "aten._fft_c2c.default", "aten._fft_c2r.default"})
"""Transforms of signals, see the figures in docs/numerics.md."""
_BAGS = frozenset(
    {
        "aten._embedding_bag.default",
        "aten._embedding_bag_forward_only.default",
        "aten.embedding_bag.default",
        "aten.embedding_bag.padding_idx",
    }
)
"""Bags of embeddings. One thread, 1024 bags of 8 rows of 64: PyTorch 60 us, Gather and ReduceSum 310 us, padded to the longest bag 850 us,
ScatterElements 4.1 ms. PyTorch adds each row where it lies."""
_FEEDERS = frozenset({"aten.arange.default", "aten.arange.start", "aten.arange.start_step", "aten.view.default"})
"""What `embedding_bag` makes of a table of ids: the offsets of its rows, and one row."""


def slow_in_ort(node: torch.fx.Node, *, deployed: bool) -> tuple[ReasonCode, str] | None:
    """Whether an operator stays in PyTorch for its speed.

    Args:
        node: A `call_function` node.
        deployed: Whether the graph is for a model that runs without PyTorch: there a slow form is better than none.

    Returns:
        The reason code and the reason; None when it may go to ONNX Runtime.
    """
    name = provenance.target_name(node)
    if name in _TRANSFORMS:
        return "policy", f"{name} stays in PyTorch on purpose: ONNX Runtime's DFT takes 7 to 22 times as long and is less exact"
    if name in _BAGS and not deployed:
        text = "PyTorch adds the rows where they lie, ONNX Runtime would copy them first and take 3 to 60 times as long"
        return "policy", f"{name} stays in PyTorch on purpose: {text}"
    if name in _FEEDERS and not deployed and node.users and all(provenance.target_name(user) in _BAGS for user in node.users):
        return "policy", f"{name} only serves a bag of embeddings, which stays in PyTorch: a partition of its own would take longer"
    return None
