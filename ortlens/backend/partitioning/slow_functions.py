"""Operators that stay in PyTorch because every ONNX form of them is much slower than PyTorch's kernel."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch.fx

from ortlens.backend.lowering import decompositions, provenance

if TYPE_CHECKING:
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
_SUMS = {
    "aten._unsafe_index_put.default": 1,
    "aten.embedding_dense_backward.default": 0,
    "aten.index_add.default": 1,
    "aten.index_put.default": 1,
    "aten.scatter_add.default": 1,
    "aten.scatter_reduce.two": 1,
}
"""Sums at indices -> the first of the tensors that are added and of their indices. One thread, 3000 rows of 64 numbers: PyTorch 45 us,
ScatterElements 680 us. ScatterND takes 41 us, but loses rows with several threads."""
_POOL = "aten.max_pool2d_with_indices.default"
"""A pool whose indices are read, as in training: two more pools find NaN and its place. One thread, 16 images of 32 channels of 64 x 64 and
two smaller layers: the forward of a convolutional net takes 56 ms, with its pools in PyTorch 40 ms."""
_GRADIENTS = frozenset(map(str, decompositions.WHOLE_GRADIENTS))
_ROWS = "aten.expand.default"
"""An index of rows for `scatter_add`: PyTorch adds whole rows where it sees that all numbers of a row have the same index."""
_GAMMA = frozenset(
    {"aten.lgamma.default", "aten.digamma.default", "aten.polygamma.default", "prims.lgamma.default", "prims.digamma.default"}
)
"""Functions that ONNX lacks. One thread, 100,000 float32: PyTorch 2.5, 11 and 4 ms, some fifty ONNX operators 25, 30 and 19 ms."""
_FEEDERS = frozenset({"aten.arange.default", "aten.arange.start", "aten.arange.start_step", "aten.view.default"})
"""What `embedding_bag` makes of a table of ids: the offsets of its rows, and one row."""


def slow_in_ort(node: torch.fx.Node, *, deployed: bool) -> tuple[ReasonCode, str] | None:
    """Explain why an operator stays in PyTorch for its speed; None when it may go to ONNX Runtime.

    Where a model is deployed to run without PyTorch, a slow form is better than none.
    """
    name = provenance.target_name(node)
    if name in _TRANSFORMS:
        return "policy", f"{name} stays in PyTorch on purpose: ONNX Runtime's DFT takes 7 to 22 times as long and is less exact"
    reason = None if deployed else _why_slow(node, name)
    return None if reason is None else ("policy", f"{name} {reason}")


def _why_slow(node: torch.fx.Node, name: str) -> str | None:
    why = None
    if name in _BAGS:
        why = "PyTorch adds the rows where they lie, ONNX Runtime would copy them first and take 3 to 60 times as long"
    elif _adds_rows(node):
        why = "it adds whole rows, ONNX Runtime single numbers, in 5 to 15 times as long"
    elif name == _POOL and _has_large_indices(node):
        why = "ONNX Runtime loses NaN and its place, and with the operators that find them a pool takes about twice as long"
    elif name in _GRADIENTS:
        why = "PyTorch computes it in one pass, ONNX Runtime in many"
    elif name in _GAMMA:
        why = "ONNX has no such operator, and made of some fifty others it takes 3 to 10 times as long"
    if why is not None:
        return f"stays in PyTorch on purpose: {why}"
    if name in _FEEDERS and node.users and all(provenance.target_name(user) in _BAGS for user in node.users):
        return "only serves a bag of embeddings, which stays in PyTorch: a partition of its own would take longer"
    if name == _ROWS and node.users and all(_adds_rows(user) for user in node.users):
        return "only serves sums of rows, which stay in PyTorch and need its view of the index"
    return None


def _has_large_indices(pool: torch.fx.Node) -> bool:
    """Tell whether the places of the maxima of a pool are read, and there are many."""
    read = any(user.target is not operator.getitem or user.args[1] == 1 for user in pool.users)
    return read and provenance.is_large(pool.meta["val"][1])


def _adds_rows(node: torch.fx.Node) -> bool:
    """Tell whether an operator adds many numbers at indices, row by row."""
    name = provenance.target_name(node)
    if name not in _SUMS or (name.startswith("aten.scatter") and not _has_row_index(node)):
        return False
    if name.endswith("index_put.default") and not (len(node.args) > 3 and node.args[3]):  # noqa: PLR2004 - its place in the schema
        return False
    added = [tensor for source in node.all_input_nodes[_SUMS[name] :] for tensor in provenance.tensors_in(source.meta.get("val"))]
    return any(map(provenance.is_large, added))


def _has_row_index(scatter: torch.fx.Node) -> bool:
    """Tell whether an operator of the family of `scatter` takes whole rows of a table."""
    table, dim, index = scatter.args[:3]
    is_view = isinstance(index, torch.fx.Node) and provenance.target_name(index) == _ROWS
    return is_view and isinstance(table, torch.fx.Node) and dim in (0, -table.meta["val"].dim())
