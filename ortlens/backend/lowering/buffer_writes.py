"""Writes into large buffers that PyTorch makes in place, such as those of a static key-value cache.

AOTAutograd makes `cache.index_copy_(2, position, key)` an `index_put` that returns a changed copy of the whole buffer, and copies it back
after the graph. A write through a view, as into one layer of a cache for all of them, becomes a copy of that part and then, by a
`select_scatter`, of the whole. ONNX Runtime would make these copies as well, with transposes where the index is not in front. Instead,
PyTorch writes into the buffer between two partitions, and the graph returns the buffer itself: copying that back does nothing. What was
written through a view lies in the buffer already, so its `select_scatter` is taken out of the graph. PyTorch also makes the views of such a
buffer that a session can read where they lie, such as one layer of that cache; ONNX Runtime would copy them.

One form needs no partition to end: rows that are written into the buffer by one operator, before anything reads it. A session can write
them where they lie (`runtime.in_place`), if all that reads the buffer is in its partition.

What reads the buffer before such a write has to run before it, and what reads it after the write, after. What may raise before it in the
program has to run before it as well: eager would not have written. The plan of the graph knows that by `read_before` and `written_before`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.basis import provenance
from ortlens.backend.lowering import checks
from ortlens.backend.lowering.returned_views import base_of, inputs_of, outputs_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

_aten = torch.ops.aten
_WORTH_BYTES = 1 << 18
_WORTH_VIEWING = 1 << 14  # bytes of a view. ONNX Runtime copies as many in the time in which PyTorch makes the view
_READ_BEFORE = "ortlens.read_before"
_WRITTEN_BEFORE = "ortlens.written_before"
WRITES = "writes into a large buffer in place; ONNX Runtime would copy all of it"
VIEWS = "is a view of a large buffer that PyTorch writes to; ONNX Runtime would copy it"
_LIBRARY = torch.library.Library("ortlens", "FRAGMENT")  # type: ignore[no-untyped-call]  # as torch declares it
_PARTS = {_aten.select_scatter.default: _aten.select.int, _aten.slice_scatter.default: _aten.slice.Tensor}
"""Operators that write over a part of their first argument -> the view that is this part."""
_MOVES = frozenset(
    {_aten.view.default, _aten.permute.default, _aten.transpose.int, _aten.t.default, _aten.unsqueeze.default, _aten.squeeze.dim}
)
"""Views of all elements."""
_ANY_LAYOUT = (_MOVES - {_aten.view.default}) | {_aten.select.int, _aten.slice.Tensor, _aten.expand.default}
"""Views that every memory layout allows."""


def session_writes(module: torch.fx.GraphModule, mutated: Sequence[int], except_for: Container[Any] = ()) -> tuple[torch.fx.Node, ...]:
    """Find the writes of rows at one index into large inputs that nothing else reads: one session may make them where these lie."""
    placeholders, returned = inputs_of(module.graph), outputs_of(module.graph)
    found = []
    for place, value in zip(mutated, returned, strict=False):
        buffer, meta = placeholders[place], placeholders[place].meta["val"]
        is_put = isinstance(value, torch.fx.Node) and value.target is _aten.index_put.default and value.target not in except_for
        if is_put and provenance.tensor_bytes(meta) >= _WORTH_BYTES and list(buffer.users) == [value] and value.args[0] is buffer:
            plain = _has_fixed_sizes(buffer) and meta.is_contiguous() and not meta.is_neg() and _keeps_type(value)
            if plain and _puts_rows(value) and returned.count(value) == 1:
                found.append(value)
    return tuple(found)


def _puts_rows(node: torch.fx.Node) -> bool:
    """Tell whether an `index_put` writes over rows at one index that has one dimension and is no mask."""
    indices = [index for index in node.args[1] if index is not None]  # type: ignore[union-attr]  # a list, by the schema
    if len(indices) != 1 or (len(node.args) > 3 and node.args[3]):  # noqa: PLR2004 - the place of `accumulate` in the schema
        return False
    meta = indices[0].meta["val"]  # type: ignore[union-attr]  # a node: constants are attributes of the graph
    return bool(meta.dim() == 1 and meta.dtype in (torch.int64, torch.int32))


def write_in_place(
    module: torch.fx.GraphModule, mutated: Sequence[int], except_for: Container[Any] = (), left: Container[torch.fx.Node] = ()
) -> dict[str, str]:
    """Let the graph write into large inputs that the program writes to, where nothing reads a value after it was written over.

    `mutated`: inputs whose new values are the first outputs. `except_for`: operators with functions of the user's. `left`: writes that
    sessions make. Returns the nodes that are to stay in PyTorch, and why: writes and views of the buffers.
    """
    _drop_whole_slices(module.graph)
    module.graph.eliminate_dead_code()
    placeholders, returned = inputs_of(module.graph), outputs_of(module.graph)
    order = {node: place for place, node in enumerate(module.graph.nodes)}
    written: dict[str, str] = {}
    for place, value in zip(mutated, returned, strict=False):
        buffer = placeholders[place]
        if provenance.tensor_bytes(buffer.meta["val"]) < _WORTH_BYTES or value in left:
            continue
        way = _way_to(value, buffer)
        if way is None or not _writes_of(way) or any(node.target in except_for for node in way):
            continue
        readers = _readers(way, buffer, returned, order)
        if readers is None:
            continue
        views = _views_read(way, buffer)
        kept = _make_writes(way, readers, module.graph)
        written.update(dict.fromkeys((node.name for node in kept), WRITES) | dict.fromkeys(views, VIEWS))
    writes = [node for node in module.graph.nodes if read_before(node) is not None]
    for write, before in checks.checks_before(writes, module.graph).items():
        write.meta[_READ_BEFORE] = tuple(dict.fromkeys((*write.meta[_READ_BEFORE], *before)))
    return written


def _make_writes(way: Sequence[torch.fx.Node], readers: Sequence[tuple[torch.fx.Node, ...]], graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Turn the writes of a way into those in place, and drop those of what lies there already; returns the nodes that are left."""
    waiting: tuple[torch.fx.Node, ...] = ()
    made: list[torch.fx.Node] = []
    writes = _writes_of(way)
    lying = {write for write in writes if _lies_in_its_part(write)}
    for write, before in zip(writes, readers, strict=True):
        if write in lying:
            waiting = (*waiting, *before)
            for user in write.users:
                user.meta[_WRITTEN_BEFORE] = (*written_before(user), made[-1])
            write.replace_all_uses_with(write.args[0])  # type: ignore[arg-type]  # a node, as its way was found through it
            graph.erase_node(write)
            continue
        write.target = _in_place_forms()[write.target]
        write.meta[_READ_BEFORE] = (*waiting, *before)
        waiting = ()
        made.append(write)
    return [node for node in way if node not in lying]


def _views_read(way: Sequence[torch.fx.Node], buffer: torch.fx.Node) -> list[str]:
    """List the views of a buffer, before or after writes, that a session can read where they lie but would have to copy."""
    members = set(way)
    found = dict.fromkeys(user for node in (buffer, *way) for user in node.users if user not in members)
    return [view.name for view in found if view.target in _PARTS.values() and _is_worth_viewing(view)]


def _is_worth_viewing(view: torch.fx.Node) -> bool:
    value = view.meta["val"]
    return _has_fixed_sizes(view) and value.is_contiguous() and provenance.tensor_bytes(value) >= _WORTH_VIEWING


def read_before(node: torch.fx.Node) -> tuple[torch.fx.Node, ...] | None:
    """List what must run before a write: earlier checks, and readers of what it changes. None for what `write_in_place` left alone."""
    before: tuple[torch.fx.Node, ...] | None = node.meta.get(_READ_BEFORE)
    return before


def order_of_writes(graph: torch.fx.Graph) -> dict[str, list[tuple[str, ...] | None]]:
    """Write down, by name of node, what `read_before` and `written_before` list."""
    orders = {node.name: [node.meta.get(key) for key in (_READ_BEFORE, _WRITTEN_BEFORE)] for node in graph.nodes}
    named = {name: [before and tuple(each.name for each in before) for before in order] for name, order in orders.items()}
    return {name: order for name, order in named.items() if order != [None, None]}


def set_order_of_writes(nodes: Mapping[str, torch.fx.Node], orders: Mapping[str, Sequence[Sequence[str] | None]]) -> None:
    """Note in the nodes of a graph, by name, what `order_of_writes` wrote down."""
    for name, order in orders.items():
        for key, before in zip((_READ_BEFORE, _WRITTEN_BEFORE), order, strict=True):
            if before is not None:
                nodes[name].meta[key] = tuple(nodes[each] for each in before)


def written_before(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """List the writes in place that must run before a node, which reads their outcome in the buffer and not from their results."""
    writes: tuple[torch.fx.Node, ...] = node.meta.get(_WRITTEN_BEFORE, ())
    return writes


AT_INDICES = {
    _aten.index_add.default: _aten.index_add_.default,
    _aten.index_copy.default: _aten.index_copy_.default,
    _aten.index_put.default: _aten.index_put_.default,
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter.value: _aten.scatter_.value,
    _aten.scatter_add.default: _aten.scatter_add_.default,
}
"""Writes at indices -> the same in place."""


@functools.cache
def _in_place_forms() -> dict[Any, Any]:
    """Map the operators that change a part of their first argument to the same in place."""
    return {
        **AT_INDICES,
        _aten.select_scatter.default: _part_writer(_aten.select_scatter.default),
        _aten.slice_scatter.default: _part_writer(_aten.slice_scatter.default),
    }


def _part_writer(scatter: Any) -> Any:
    """Define an operator of our own that writes over a part in place: PyTorch has only the one that copies the whole."""
    view, name = _PARTS[scatter], f"{scatter.name().partition('::')[2]}_"

    def write(buffer: torch.Tensor, source: torch.Tensor, *where: Any) -> torch.Tensor:
        view(buffer, *where).copy_(source)
        return buffer

    arguments = str(scatter._schema).partition("(Tensor self")[2].partition(" -> ")[0]  # noqa: SLF001 - torch has no public name for it
    _LIBRARY.define(f"{name}(Tensor(a!) self{arguments} -> Tensor(a!)")  # type: ignore[no-untyped-call]  # likewise
    _LIBRARY.impl(name, write, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]  # likewise
    return getattr(torch.ops.ortlens, name).default


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
    """Tell whether a value may replace the result of writing it: only the write reads it, and dtype and memory order are the same."""
    fresh = source.op == "call_function" and list(source.users) == [written] and base_of(source) is None
    return fresh and provenance.layout_text(source.meta["val"]) == provenance.layout_text(written.meta["val"])


def _is_whole(start: Any = None, end: Any = None, step: Any = 1) -> bool:
    given = all(value is None or isinstance(value, int) for value in (start, end, step))
    return given and (start or 0) == 0 and (end is None or end == torch.iinfo(torch.int64).max) and step == 1


def _writes_of(way: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    return [node for node in way if node.target in _in_place_forms()]


def _way_to(value: Any, buffer: torch.fx.Node) -> list[torch.fx.Node] | None:
    """Find the way from a buffer to a value that lies where the buffer does: the writes, and the views that they write through, in order.

    None where there is none.
    """
    steps: list[list[torch.fx.Node]] = []
    while value is not buffer:
        step = _last_step(value) if isinstance(value, torch.fx.Node) and value.op == "call_function" else None
        if step is None:
            return None
        steps.append(step)
        value = step[-1].args[0] if step[-1].target in _in_place_forms() else step[0].args[0]
    return [node for step in reversed(steps) for node in step]


def _last_step(value: torch.fx.Node) -> list[torch.fx.Node] | None:
    """Find a write, with those into its source if that is a part of what it writes into; or a write through views of all elements."""
    if value.target in _MOVES:
        return _way_back(value)
    if value.target not in _in_place_forms() or not _keeps_type(value):
        return None
    if value.target not in _PARTS or not isinstance(value.args[1], torch.fx.Node):
        return [value]
    return [*(_way_through(value.args[1], value.args[0], (_PARTS[value.target], *value.args[2:])) or ()), value]


def _lies_in_its_part(write: torch.fx.Node) -> bool:
    """Tell whether the source of a write was itself written through the part that it is written over."""
    target: Any = write.target
    source = write.args[1] if target in _PARTS else None
    through = isinstance(source, torch.fx.Node) and _way_through(source, write.args[0], (_PARTS[target], *write.args[2:]))
    return bool(through)


def _way_through(source: torch.fx.Node, whole: Any, part: tuple[Any, ...]) -> list[torch.fx.Node] | None:
    """Find the writes that lead from a part of a value to the source that is written over that part, the view itself first."""
    nodes: list[torch.fx.Node] = []
    while source.target in _in_place_forms() and _keeps_type(source) and isinstance(source.args[0], torch.fx.Node):
        inner = source.args[1]
        if source.target in _PARTS and isinstance(inner, torch.fx.Node):
            nested = _way_through(inner, source.args[0], (_PARTS[source.target], *source.args[2:]))
            nodes[:0] = [*(nested or ()), source]
        else:
            nodes.insert(0, source)
        source = source.args[0]
    is_part = bool(nodes) and (source.target, *source.args[1:]) == part and source.args[0] is whole
    return [source, *nodes] if is_part else None


def _way_back(value: torch.fx.Node) -> list[torch.fx.Node] | None:
    """Find a write through views of all elements that cancel each other out, such as `cache.view(-1, 64).index_copy_(...)`."""
    nodes: list[torch.fx.Node] = []
    while value.target in _MOVES | _in_place_forms().keys() - _PARTS.keys() and isinstance(value.args[0], torch.fx.Node):
        nodes.insert(0, value)
        value = value.args[0]
        if _has_fixed_sizes(value) and _returns(value, nodes):
            return nodes
    return None


def _has_fixed_sizes(node: torch.fx.Node) -> bool:
    known = node.meta.get("val")
    return isinstance(known, torch.Tensor) and all(type(size) is int for size in (*known.shape, *known.stride()))


def _returns(start: torch.fx.Node, nodes: Sequence[torch.fx.Node]) -> bool:
    """Tell whether some views, applied to where a value lies, lead back there."""
    known = start.meta["val"]
    lies = at = torch.empty_strided(known.shape, known.stride(), dtype=known.dtype, device="meta")
    for node in nodes:
        if node.target in _MOVES:
            try:
                at = node.target(at, *node.args[1:])
            except RuntimeError:  # a memory layout that has no such view
                return False
        elif not _keeps_type(node):
            return False
    return (at.shape, at.stride(), at.storage_offset()) == (lies.shape, lies.stride(), lies.storage_offset())


def _keeps_type(write: torch.fx.Node) -> bool:
    made, given = write.meta["val"], write.args[0].meta["val"]  # type: ignore[union-attr]  # a node, as its callers have checked
    return bool(made.dtype == given.dtype and made.dim() == given.dim())


def _readers(
    way: Sequence[torch.fx.Node], buffer: torch.fx.Node, returned: Sequence[Any], order: dict[torch.fx.Node, int]
) -> list[tuple[torch.fx.Node, ...]] | None:
    """Find, for each write, what reads the buffer between the write before and this one.

    None where a write would be seen by what must not see it: by a result that shares the memory, by a reader of an earlier value that comes
    later, or by the source of the write.
    """
    last, members, writes = way[-1], set(way), set(_writes_of(way))
    places = [order[node] for node in way]
    if sum(value is last for value in returned) != 1 or places != sorted(set(places)):
        return None
    strict = _has_fixed_sizes(buffer) and not buffer.meta["val"].is_contiguous()
    readers: list[tuple[torch.fx.Node, ...]] = []
    held = [buffer]  # what lies in the memory now
    for node in [*way, None]:
        if node is not None and node not in writes:
            held.append(node)
            continue
        found = tuple(dict.fromkeys(reader for value in held for reader in _reading(value) if reader not in members))
        views = [reader for reader in found if base_of(reader) is not None]
        if any(value in returned for value in (*held, *views) if value is not last):
            return None
        if strict and not all(view.target in _ANY_LAYOUT for view in views):
            return None
        if node is not None:
            if any(order[reader] >= order[node] for reader in found) or not set(node.all_input_nodes).isdisjoint(views):
                return None
            readers.append(found)
            held = [node]
    return readers


def _reading(value: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield what reads a value or a view of it, the views as well."""
    for user in value.users:
        if user.op == "call_function":
            yield user
            if base_of(user) is value:
                yield from _reading(user)
