"""Products with heads that several query heads share: computed group by group, without a copy of each head per query.

Grouped-query attention multiplies each key head with the queries of a group. Programs repeat the heads, as `repeat_kv` of transformers
and `scaled_dot_product_attention(enable_gqa=True)` do, and then make one product per query head. The repeated keys and values of a
cache are several times as large as the cache, and are copied at every token. Here, the rows of a group's queries lie below each other in
one matrix, and one product per head that is not repeated makes the same numbers. Products of varying sizes stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

if TYPE_CHECKING:
    from collections.abc import Collection

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)  # noqa: SLF001 - an operator's name
_HEADS = 2
"""The dimension in which repeated heads lie before they are one dimension with the others: (batch, head, copy, row, feature)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repeated:
    """Matrices that are repeated for each query head of a group.

    Attributes:
        source: (batch, head, row, feature), each head once.
        count: How many query heads share a head.
        transposed: Whether the product reads (feature, row).
    """

    source: torch.fx.Node
    count: int
    transposed: bool


def multiply_by_group(graph: torch.fx.Graph) -> None:
    """Let batched products with repeated matrices read each of them once.

    Args:
        graph: An ATen graph whose nodes carry `meta["val"]`; changed in place. The copies that nothing reads any more stay in it.
    """
    for product in graph.find_nodes(op="call_function", target=_aten.bmm.default):
        left, right = product.args
        repeated = _repeated(right) if _has_fixed_sizes(left) and _has_fixed_sizes(right) else None
        if repeated is not None:
            _regroup(graph, product, repeated)


def _repeated(node: Any) -> _Repeated | None:
    """The matrices that the second operand of a product repeats; None if it does not."""
    flat: Any = _before(node, _RESHAPES)
    if flat is None or flat.meta["val"].dim() != 4 or _shape(flat)[2:] != _shape(node)[1:]:  # noqa: PLR2004 - batch, head, row, feature
        return None
    while flat.target is _aten.expand.default and _shape(flat.args[0]) == _shape(flat):
        flat = flat.args[0]
    transposed = _is_transposed(flat)
    wide: Any = _before(flat.args[0] if transposed else flat, _RESHAPES)
    if wide is not None and wide.target is _aten.clone.default:
        wide = wide.args[0]
    single: Any = None if wide is None else _before(wide, (_aten.expand.default,))
    source = None if single is None or not _has_fixed_sizes(wide) else _before(single, (_aten.unsqueeze.default,))
    if source is None or source.meta["val"].dim() != 4 or single.args[1] not in (_HEADS, _HEADS - 5):  # noqa: PLR2004 - as above
        return None
    heads = flat.args[0] if transposed else flat
    batch, head, count, *matrix = _shape(wide)
    merged = [batch, str(int(head) * int(count)), *matrix]
    if count == "1" or _shape(heads) != merged or _shape(source) != [batch, head, *matrix]:
        return None
    return _Repeated(source=source, count=int(count), transposed=transposed)


def _regroup(graph: torch.fx.Graph, product: torch.fx.Node, repeated: _Repeated) -> None:
    """Change a product so that it multiplies the rows of whole groups, and give its readers the shape that they know."""
    left, was = product.args[0], product.meta["val"]
    batch, head, rows, feature = repeated.source.meta["val"].shape
    many = was.shape[1] * repeated.count
    with graph.inserting_before(product):
        grouped = _reshaped(graph, product, left, [batch * head, many, feature if repeated.transposed else rows])
        right = _reshaped(graph, product, repeated.source, [batch * head, rows, feature])
        if repeated.transposed:
            matrices = right.meta["val"]
            right = graph.call_function(_aten.transpose.int, (right, 1, 2))
            right.meta = {**product.meta, "val": matrices.transpose(1, 2)}
    product.args = (grouped, right)
    product.meta = {**product.meta, "val": was.new_empty([batch * head, many, was.shape[2]])}
    with graph.inserting_after(product):
        made = graph.call_function(_aten.view.default, (product, list(was.shape)))
        made.meta = {**product.meta, "val": was}
    product.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def _reshaped(graph: torch.fx.Graph, like: torch.fx.Node, node: Any, sizes: list[int]) -> torch.fx.Node:
    made = graph.call_function(_aten.reshape.default, (node, sizes))
    made.meta = {**like.meta, "val": node.meta["val"].new_empty(sizes)}
    return made


def _before(node: Any, targets: Collection[Any]) -> torch.fx.Node | None:
    """What a node of some operators reads."""
    source = node.args[0] if isinstance(node, torch.fx.Node) and node.target in targets else None
    return source if isinstance(source, torch.fx.Node) and isinstance(source.meta.get("val"), torch.Tensor) else None


def _is_transposed(node: torch.fx.Node) -> bool:
    if node.target is _aten.transpose.int:
        return {int(dim) % 4 for dim in node.args[1:]} == {2, 3}  # type: ignore[arg-type]  # numbers, by the schema
    return node.target is _aten.permute.default and list(node.args[1]) == [0, 1, 3, 2]  # type: ignore[arg-type]  # likewise


def _has_fixed_sizes(node: Any) -> bool:
    return all(type(size) is int for size in node.meta["val"].shape)


def _shape(node: Any) -> list[str]:
    """The sizes of a node as texts: comparing symbols would add guards."""
    return [str(size) for size in node.meta["val"].shape]
