"""`as_strided` as a gather of values, where the storage that it reads is known.

An ONNX tensor has no storage. `as_strided` can be expressed if the tensor that owns the storage fills it, and if all numbers are
known: sizes, strides and offsets. Dynamo guards the sizes and strides of an input, but not its offset. So a window that starts at a
given offset of an input's storage stays in PyTorch, and so does one that reaches past the values.

PyTorch's kernels of `copy`, `select_scatter` and its like copy the whole storage: the new value of an input that was written to through a
view begins where the input does. So they count as views of their first argument here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.basis.memory_order import inverse_order, last_place, may_overlap_itself, order_from_strides
from ortlens.backend.basis.provenance import call_like
from ortlens.backend.lowering.returned_views import base_of, chain_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_aten = torch.ops.aten
PART_WRITERS = (_aten.select_scatter.default, _aten.slice_scatter.default, _aten.diagonal_scatter.default)
_COPIES = (_aten.copy.default, *PART_WRITERS, _aten.as_strided_scatter.default)


def keeps_storage_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """Find whose storage, or a copy of it, a result lies in at the same place, one step towards the owner; None for its own."""
    first = node.args[0] if node.target in _COPIES else None
    return first if isinstance(first, torch.fx.Node) else base_of(node)


def gather_windows(module: torch.fx.GraphModule) -> None:
    """Replace the calls of `as_strided` that can be expressed, in place; see `support.storage_readers` for the others."""
    windows = module.graph.find_nodes(op="call_function", target=_aten.as_strided.default)
    chains: dict[torch.fx.Node, list[Any]] = {node: [view.args[0] for view in chain_of(node, ())] for node in windows}  # down to the owner
    starts = {node: None if _is_written(node) else _start(node, chain[-1]) for node, chain in chains.items()}
    read = {window for node, chain in chains.items() if starts[node] is None for window in chain}
    for node, start in starts.items():
        if start is not None and node not in read:
            _replace(module, node, chains[node][-1], start)


def _is_written(window: torch.fx.Node) -> bool:
    """Tell whether elements that share memory are written through a part of the window, which changes others of them."""
    if not may_overlap_itself(window.meta["val"]):
        return False
    reached = [window]
    for node in reached:  # grows
        if node is not window and node.target in _COPIES:
            return True
        reached += [user for user in node.users if keeps_storage_of(user) is node]
    return False


def _root(node: torch.fx.Node) -> torch.fx.Node:
    """Find the value whose storage a node's was copied from."""
    while (source := keeps_storage_of(node)) is not None:
        node = source
    return node


def _start(node: torch.fx.Node, owner: torch.fx.Node) -> int | None:
    """Find where the window begins among the owner's values; None when the window cannot be expressed."""
    source: Any = node.args[0]
    tensor, whole, (size, stride, given) = source.meta["val"], owner.meta.get("val"), _window(node)
    if not isinstance(whole, torch.Tensor) or (given is not None and _root(owner).op != "call_function"):
        return None
    begins = tensor.storage_offset() if given is None else given
    numbers = (*size, *stride, begins, *whole.shape, *whole.stride(), whole.storage_offset())
    if not all(isinstance(number, int) for number in numbers) or 0 in size or tensor.dtype is not whole.dtype:
        return None
    start: int = begins - whole.storage_offset()
    last = start + last_place(size, stride)
    fills = whole.permute(order_from_strides(whole.shape, whole.stride())).is_contiguous()
    return start if fills and start >= 0 and last < whole.numel() else None


def _window(node: torch.fx.Node) -> tuple[Sequence[Any], Sequence[Any], Any]:
    arguments: Any = node.args
    _, size, stride, *offset = arguments
    return size, stride, offset[0] if offset else node.kwargs.get("storage_offset")


def _replace(module: torch.fx.GraphModule, node: torch.fx.Node, owner: torch.fx.Node, start: int) -> None:
    """Gather rows of the flat storage, as long as rows can be, in the memory order of the result."""
    size, stride, _ = _window(node)
    order = order_from_strides(size, stride)
    sizes, strides = [size[dim] for dim in order], [stride[dim] for dim in order]
    length, outer = _row(sizes, strides, start, owner.meta["val"].numel())
    index = torch.tensor(start // length, device="cpu")
    for count, step in zip(sizes[:outer], strides[:outer], strict=True):
        index = index.unsqueeze(-1) + torch.arange(count, device="cpu") * (step // length)
    name = f"{node.name}_rows"
    module.register_buffer(name, index.reshape(-1), persistent=False)
    value, graph = owner.meta["val"], module.graph
    with graph.inserting_before(node):
        rows = graph.get_attr(name)
        rows.meta = {**node.meta, "val": value.new_empty(index.numel(), dtype=torch.int64)}
        stored = order_from_strides(value.shape, value.stride())
        made = owner if stored == sorted(stored) else _call(node, _aten.permute.default, owner, stored)
        made = _call(node, _aten.view.default, made, [-1, length])
        made = _call(node, _aten.index_select.default, made, 0, rows)
        made = _call(node, _aten.view.default, made, sizes)
        if order != sorted(order):
            made = _call(node, _aten.permute.default, made, list(inverse_order(order)))
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _row(sizes: list[int], strides: list[int], start: int, whole: int) -> tuple[int, int]:
    """Find the longest run of values that every window index takes as a whole, and how many dimensions count such runs."""
    outer, length = len(sizes), 1
    while outer and strides[outer - 1] == length:
        longer = length * sizes[outer - 1]
        if math.gcd(start, whole, *strides[: outer - 1]) % longer:
            break
        outer, length = outer - 1, longer
    return length, outer


def _call(like: torch.fx.Node, target: Any, *args: Any) -> torch.fx.Node:
    values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
    return call_like(like, target, args, target(*values))
