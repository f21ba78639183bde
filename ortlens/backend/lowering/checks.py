"""Operators that may raise, depending on their data: what the program does after one of them must not be seen if it raises.

A plan orders nodes by data alone, and eager runs them one by one. So a write in place has to wait for the checks that come before it in the
program, and a check for such writes and for draws of random numbers; a draw that comes after it and has run is taken back
(`runtime.program`).
Which operators never raise is listed; any other may.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.lowering.returned_views import base_of
from ortlens.backend.operators.facts import by_name

if TYPE_CHECKING:
    from collections.abc import Iterable

_aten = torch.ops.aten
_NEVER_RAISE = frozenset(
    f"aten::{name}"
    for name in (
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_embedding_bag_dense_backward", "_log_softmax", "_native_batch_norm_legit"),
        *("_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_scaled_dot_product_attention_math_for_mps"),
        *("_scaled_dot_product_flash_attention_for_cpu", "_softmax", "_to_copy", "_unsafe_view", "addbmm", "addmm", "addmv", "all", "amax"),
        *("amin", "aminmax", "any", "arange", "argmax", "argmin", "argsort", "avg_pool1d", "avg_pool2d", "avg_pool3d", "baddbmm", "bmm"),
        *("broadcast_tensors", "bucketize", "cat", "clone", "constant_pad_nd", "convolution", "copy", "count_nonzero", "cummax", "cummin"),
        *("cumprod", "cumsum", "dot", "empty", "empty_like", "empty_permuted", "empty_strided", "expand_copy", "eye", "fill", "flip"),
        *("full", "full_like", "grid_sampler_2d", "im2col", "lift_fresh_copy", "linear", "linspace", "logcumsumexp", "logsumexp"),
        *("masked_fill", "matmul", "max", "max_pool2d_with_indices", "max_pool3d_with_indices", "mean", "median", "min", "mm", "mv"),
        *("native_batch_norm", "native_dropout", "native_group_norm", "native_layer_norm", "new_empty", "new_empty_strided", "new_full"),
        *("new_ones", "new_zeros", "nonzero", "norm", "ones", "ones_like", "pixel_shuffle", "prod", "rand", "rand_like", "randn"),
        *("randn_like", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "repeat", "replication_pad1d", "replication_pad2d"),
        *("replication_pad3d", "rms_norm", "roll", "scalar_tensor", "scaled_dot_product_attention", "searchsorted", "select_scatter"),
        *("slice_scatter", "softmax", "sort", "stack", "std", "std_mean", "sum", "topk", "tril", "triu", "upsample_bicubic2d"),
        *("upsample_bilinear2d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "var", "var_mean", "where", "zeros"),
        *("zeros_like", "linalg_vector_norm"),
    )
) | {"prims::convert_element_type", "prims::iota"}
_DIVIDE = frozenset({"div", "divide", "floor_divide", "fmod", "pow", "remainder", "true_divide"})
"""Element by element, but of integers some may raise."""


def may_raise(node: torch.fx.Node) -> bool:
    """Tell whether an operator may raise on the data of a call, as on an index out of range; True if nothing is known about it."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    if any(_torch.depends_on_data(source.meta.get("val")) for source in node.all_input_nodes):
        return True
    if base_of(node) is not None or isinstance(node.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.name in _NEVER_RAISE:
        return schema is None or bool(schema.is_mutable)
    if (indices := _indices_of(node)) and all(_is_constant(index) for index, _ in indices):
        return False  # what raises never, or in every call
    is_pointwise = torch.Tag.pointwise in node.target.tags  # type: ignore[union-attr]  # an overload, as it has a schema
    return not is_pointwise or (schema.name.rpartition(":")[2] in _DIVIDE and not _is_floating(node))


def draws(node: torch.fx.Node) -> bool:
    """Tell whether a node draws random numbers; attention and recurrent networks do not without dropout."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _without_dropout(node)


def _without_dropout(node: torch.fx.Node) -> bool:
    """Tell whether an operator with a dropout argument draws no random numbers: it is 0, or the operator is not in training."""
    given = by_name(node.target, node.args, node.kwargs)
    dropout = given.get("dropout_p", given.get("dropout"))
    return isinstance(dropout, (int, float)) and (dropout == 0 or given.get("train") is False)


def _is_floating(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex)


def checks_before(writes: Iterable[torch.fx.Node], graph: torch.fx.Graph) -> dict[torch.fx.Node, tuple[torch.fx.Node, ...]]:
    """Map each write to the checks that it has to wait for, those since the write before, and to that write."""
    waiting: list[torch.fx.Node] = []
    found: dict[torch.fx.Node, tuple[torch.fx.Node, ...]] = {}
    written = set(writes)
    for node in graph.nodes if written else ():
        if node in written:
            found[node], waiting = tuple(waiting), [node]
        elif may_raise(node):
            waiting.append(node)
    return found


def unchecked(writes: Iterable[torch.fx.Node], late: Iterable[torch.fx.Node], graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """Find the writes that may be made although a check before them in the program fails.

    They neither read what a check lets pass nor check the same themselves. The checks `late` may run after them.
    """
    bits = {node: 1 << place for place, node in enumerate(late)}
    written, found, earlier, checks = set(writes), set(), 0, list(bits)
    passed: dict[torch.fx.Node, int] = {}  # the checks that have let pass what a node reads
    for node in graph.nodes if bits else ():
        passed[node] = functools.reduce(operator.or_, (passed[source] for source in node.all_input_nodes), 0)
        if node in written:
            own = [node, *(check for place, check in enumerate(checks) if passed[node] >> place & 1)]
            missing = [check for place, check in enumerate(checks) if (earlier & ~passed[node]) >> place & 1]
            found |= {node} if any(not _is_implied(check, own) for check in missing) else set()
        passed[node] |= bits.get(node, 0)
        earlier |= bits.get(node, 0)
    return frozenset(found)


def _is_implied(check: torch.fx.Node, others: Iterable[torch.fx.Node]) -> bool:
    """Tell whether a check of indices passes whenever others do: they look the same indices up in no more elements."""
    wanted = _indices_of(check)
    given = [pair for other in others for pair in _indices_of(other) or ()]
    return wanted is not None and all(any(index is own and room <= size for own, room in given) for index, size in wanted)


def _indices_of(node: torch.fx.Node) -> list[tuple[Any, int]] | None:
    """Find the indices that an operator checks, and how many elements there are; None for other checks."""
    if node.target not in (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default):
        return None
    value, indices = node.args[:2]
    sizes = value.meta["val"].shape  # type: ignore[union-attr]  # a node, by the schema
    pairs = [(index, size) for index, size in zip(indices, sizes, strict=False) if index is not None]  # type: ignore[arg-type]  # a list
    integers = all(index.meta["val"].dtype in (torch.int64, torch.int32) and isinstance(size, int) for index, size in pairs)
    return [(_plain(index), size) for index, size in pairs] if integers else None


def _is_constant(node: torch.fx.Node) -> bool:
    """Tell whether a value, of fixed sizes, is the same in every call: made of numbers alone, such as by `arange`."""
    value = node.meta.get("val")
    fixed = node.op == "call_function" and isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in value.shape)
    schema = getattr(node.target, "_schema", None)
    drawn = schema is None or torch.Tag.nondeterministic_seeded in node.target.tags  # type: ignore[union-attr]  # an overload, likewise
    return fixed and not drawn and all(_is_constant(source) for source in node.all_input_nodes)


def _plain(index: torch.fx.Node) -> torch.fx.Node:
    """Find the node that indices are a view of."""
    while (base := base_of(index)) is not None and base.meta["val"].numel() == index.meta["val"].numel():
        index = base
    return index
