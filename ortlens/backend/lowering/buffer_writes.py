"""Writes into large buffers that PyTorch makes in place, such as those of a static key-value cache.

AOTAutograd makes `cache.index_copy_(2, position, key)` an `index_put` that returns a changed copy of the whole buffer, and copies it back
after the graph. ONNX Runtime would copy it as well, with transposes where the index is not in front. Instead, PyTorch writes into the
buffer between two partitions, and the graph returns the buffer itself: copying that back does nothing.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens.backend.lowering import provenance
from ortlens.backend.lowering.returned_views import base_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

_aten = torch.ops.aten
_WORTH_BYTES = 1 << 18
_MARK = "ortlens.in_place"


def write_in_place(module: torch.fx.GraphModule, mutated: Sequence[int], except_for: Container[Any] = ()) -> tuple[str, ...]:
    """Let the graph write into large inputs that the program writes to, where nothing reads or returns the value before.

    Args:
        module: An inference graph whose nodes carry `meta["val"]`; changed in place.
        mutated: Positions of the inputs whose new values are the first outputs, in that order.
        except_for: Operators that have functions of the user's.

    Returns:
        Names of the nodes that write, none of which ONNX Runtime can run.
    """
    _drop_whole_slices(module.graph)
    placeholders, output = module.graph.find_nodes(op="placeholder"), next(iter(module.graph.find_nodes(op="output")))
    returned = list(output.args[0]) if isinstance(output.args[0], (list, tuple)) else []
    names: list[str] = []
    for place, value in zip(mutated, returned, strict=False):
        writes = _writes_into(placeholders[place], value)
        if not writes or provenance.tensor_bytes(placeholders[place].meta["val"]) < _WORTH_BYTES:
            continue
        if _is_returned_once(writes[0], returned) and not any(node.target in except_for for node in writes):
            for node in writes:
                node.target = _in_place_forms()[node.target]
                node.meta[_MARK] = True
                names.append(node.name)
    return tuple(names)


def writes_alone(node: torch.fx.Node) -> bool:
    """Whether a node writes into a tensor that nothing else reads before: what follows it in the graph need not wait for it.

    Args:
        node: Of an ATen graph.

    Returns:
        True for the nodes that `write_in_place` changed.
    """
    return _MARK in node.meta


@functools.cache
def _in_place_forms() -> dict[Any, Any]:
    """Operators that change a part of their first argument -> the same in place."""
    return {
        _aten.index_add.default: _aten.index_add_.default,
        _aten.index_copy.default: _aten.index_copy_.default,
        _aten.index_put.default: _aten.index_put_.default,
        _aten.scatter.src: _aten.scatter_.src,
        _aten.scatter.value: _aten.scatter_.value,
        _aten.scatter_add.default: _aten.scatter_add_.default,
    }


def _drop_whole_slices(graph: torch.fx.Graph) -> None:
    """Take out slices over whole dimensions, and writes of them: with symbolic sizes, `cache[:, :, position] = key` consists of such."""
    for node in graph.find_nodes(op="call_function", target=_aten.slice.Tensor):
        if _is_whole(*node.args[2:]) and all(user.op == "call_function" for user in node.users):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    for node in graph.find_nodes(op="call_function", target=_aten.slice_scatter.default):
        if _is_whole(*node.args[3:]) and _takes_the_place_of(node.args[1], node):
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)


def _takes_the_place_of(source: torch.fx.Node, written: torch.fx.Node) -> bool:
    """Whether a value may be used for the result of writing it: only that reads it, and it has the same dtype and memory order."""
    fresh = source.op == "call_function" and list(source.users) == [written] and base_of(source) is None
    made, given = source.meta["val"], written.meta["val"]
    return fresh and (made.dtype, str(made.shape), str(made.stride())) == (given.dtype, str(given.shape), str(given.stride()))


def _is_whole(start: Any = None, end: Any = None, step: Any = 1) -> bool:
    given = all(value is None or isinstance(value, int) for value in (start, end, step))
    return given and (start or 0) == 0 and (end is None or end == torch.iinfo(torch.int64).max) and step == 1


def _writes_into(buffer: torch.fx.Node, value: Any) -> list[torch.fx.Node]:
    """The writes that lead from an input to its new value, the last one first; none where something else reads a value in between."""
    writes: list[torch.fx.Node] = []
    while isinstance(value, torch.fx.Node) and value.target in _in_place_forms():
        writes.append(value)
        value = value.args[0]
        if not isinstance(value, torch.fx.Node) or list(value.users) != [writes[-1]] or value in writes[-1].all_input_nodes[1:]:
            return []
    return writes if value is buffer and all(map(_keeps_type, writes)) else []


def _keeps_type(write: torch.fx.Node) -> bool:
    made, given = write.meta["val"], write.args[0].meta["val"]  # type: ignore[union-attr]  # a node, as `_writes_into` has checked
    return bool(made.dtype == given.dtype and made.dim() == given.dim())


def _is_returned_once(node: torch.fx.Node, returned: Sequence[Any]) -> bool:
    """Whether a value is returned for its input alone: a second result must not share the input's memory."""
    return sum(value is node for value in returned) == 1 and not any(view in returned for view in _views_of(node))


def _views_of(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    for user in node.users:
        if user.op == "call_function" and base_of(user) is node:
            yield user
            yield from _views_of(user)
