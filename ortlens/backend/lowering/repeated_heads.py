"""Reads what attention repeats once: keys and values per group of query heads, masks per value.

Grouped-query attention multiplies each key head with the queries of a group. Programs repeat the heads, as `repeat_kv` of transformers
and `scaled_dot_product_attention(enable_gqa=True)` do, and then make one product per query head. The repeated keys and values of a
cache are several times as large as the cache, and are copied at every token. `multiply_by_group` puts the rows of a group's queries below
each other in one matrix, and one product per head that is not repeated makes the same numbers. Batch, rows and features may vary, heads
may not.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.fx

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)  # noqa: SLF001 - an operator's name
_Size: TypeAlias = tuple[torch.fx.Node, int, int]  # a multiple of a size: a node, one of its dimensions, and the factor
_HEADS = 2  # the dimension in which repeated heads lie before they are one dimension with the others: (batch, head, copy, row, feature)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repeated:
    """Matrices that are repeated for each query head of a group."""

    source: torch.fx.Node  # (batch, head, row, feature), each head once
    count: int  # how many query heads share a head
    transposed: bool  # whether the product reads (feature, row)


def multiply_by_group(graph: torch.fx.Graph) -> None:
    """Let batched products with repeated matrices read each of them once; the copies that nothing reads any more stay."""
    for product in graph.find_nodes(op="call_function", target=_aten.bmm.default):
        repeated = _repeated_matrices(product.args[1])
        if repeated is not None:
            _regroup(graph, product, repeated)


def read_unexpanded(graph: torch.fx.Graph) -> None:
    """Let what reads the first of expanded values read the value before it was expanded: masks, whose copies nothing reads then."""
    sources: dict[torch.fx.Node, torch.fx.Node] = {}  # a slice of an expanded value -> the value
    for node in graph.find_nodes(op="call_function", target=_aten.slice.Tensor):
        base: Any = node.args[0]
        source = sources.get(base, _before(base, (_aten.expand.default,)))
        if source is None or list(node.args[2:]) != [0, 1]:
            continue
        sources[node] = source
        added = node.meta["val"].dim() - source.meta["val"].dim()
        if _shape(node) != ["1"] * added + _shape(source):
            continue
        with graph.inserting_before(node):
            for _ in range(added):
                plain = source.meta["val"]
                source = graph.call_function(_aten.unsqueeze.default, (source, 0))
                source.meta = {**node.meta, "val": plain.unsqueeze(0)}
        node.replace_all_uses_with(source)


def _repeated_matrices(node: Any) -> _Repeated | None:
    """Find the matrices that the second operand of a product repeats; None if it does not."""
    flat: Any = _before(node, _RESHAPES)
    if flat is None or flat.meta["val"].dim() != 4 or _shape(node) != _one_by_one(flat):  # noqa: PLR2004 - batch, head, row, feature
        return None
    while flat.target is _aten.expand.default and _shape(flat.args[0]) == _shape(flat):
        flat = flat.args[0]
    transposed = _is_transposed(flat)
    wide: Any = _before(flat.args[0] if transposed else flat, _RESHAPES)
    if wide is not None and wide.target is _aten.clone.default:
        wide = wide.args[0]
    single: Any = None if wide is None else _before(wide, (_aten.expand.default,))
    source = None if single is None else _before(single, (_aten.unsqueeze.default,))
    if source is None or source.meta["val"].dim() != 4 or single.args[1] not in (_HEADS, _HEADS - 5):  # noqa: PLR2004 - as above
        return None
    head, count = wide.meta["val"].shape[1:3]
    if type(head) is not int or type(count) is not int or count == 1:
        return None
    batch, _, _, *matrix = _shape(wide)
    if _shape(flat.args[0] if transposed else flat) != [batch, str(head * count), *matrix] or _shape(source) != [batch, str(head), *matrix]:
        return None
    return _Repeated(source=source, count=count, transposed=transposed)


def _regroup(graph: torch.fx.Graph, product: torch.fx.Node, repeated: _Repeated) -> None:
    """Change a product so that it multiplies the rows of whole groups, and give its readers the shape that they know."""
    left: Any = product.args[0]
    source, was = repeated.source, product.meta["val"]
    with graph.inserting_before(product):
        matrices = (source, 0, source.meta["val"].shape[1])
        grouped = _reshaped(product, left, [matrices, (left, 1, repeated.count), (left, 2, 1)])
        single = _reshaped(product, source, [matrices, (source, 2, 1), (source, 3, 1)])
        if repeated.transposed:
            plain = single.meta["val"]
            single = graph.call_function(_aten.transpose.int, (single, 1, 2))
            single.meta = {**product.meta, "val": plain.transpose(1, 2)}
    product.args = (grouped, single)
    product.meta = {**product.meta, "val": was.new_empty([*grouped.meta["val"].shape[:2], was.shape[2]])}
    with graph.inserting_before(product.next):
        made = _reshaped(product, product, [(left, 0, 1), (left, 1, 1), (source, 2 if repeated.transposed else 3, 1)])
    made.meta["val"] = was
    product.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def _reshaped(like: torch.fx.Node, node: Any, sizes: Sequence[_Size]) -> torch.fx.Node:
    """Give a value other sizes, before the product that it is for."""
    known = [of.meta["val"].shape[dim] * factor for of, dim, factor in sizes]
    varying = [place for place, size in enumerate(known) if type(size) is not int]
    if len(varying) == 1 and all(size for size in known if type(size) is int):  # with a size of 0, -1 could be any number
        given = [-1 if place in varying else size for place, size in enumerate(known)]
    else:
        given = [_size(*size) if place in varying else known[place] for place, size in enumerate(sizes)]
    made = like.graph.call_function(_aten.reshape.default, (node, given))
    made.meta = {**like.meta, "val": node.meta["val"].new_empty(known)}
    return made


def _size(of: torch.fx.Node, dim: int, factor: int) -> torch.fx.Node:
    size = of.graph.call_function(_aten.sym_size.int, (of, dim))
    size.meta = {"val": of.meta["val"].shape[dim]}
    if factor == 1:
        return size
    made = of.graph.call_function(operator.mul, (size, factor))
    made.meta = {"val": size.meta["val"] * factor}
    return made


def _before(node: Any, targets: Collection[Any]) -> torch.fx.Node | None:
    """Return what a node of some operators reads, if that is a tensor."""
    source = node.args[0] if isinstance(node, torch.fx.Node) and node.target in targets else None
    return source if isinstance(source, torch.fx.Node) and isinstance(source.meta.get("val"), torch.Tensor) else None


def _is_transposed(node: torch.fx.Node) -> bool:
    if node.target is _aten.transpose.int:
        return {int(dim) % 4 for dim in node.args[1:]} == {2, 3}  # type: ignore[arg-type]  # numbers, by the schema
    return node.target is _aten.permute.default and list(node.args[1]) == [0, 1, 3, 2]  # type: ignore[arg-type]  # likewise


def _one_by_one(node: Any) -> list[str]:
    """Compute the sizes of the matrices of (batch, head, row, feature) when batch and head are one dimension."""
    batch, head, *matrix = node.meta["val"].shape
    return [str(size) for size in (batch * head, *matrix)]


def _shape(node: Any) -> list[str]:
    """Return the sizes of a node as texts: comparing symbols would add guards."""
    return [str(size) for size in node.meta["val"].shape]
