"""Where a program's own code lets the memory layout of an argument decide what it copies and what it only views.

`x.reshape(-1)` is a view of a contiguous tensor and a copy of a transposed one. A trace has one of the two. That matters if both sides of
the operator can be told apart afterwards: something is written to one of them and the other is read, or both outlive the call. Only then
are the layouts of arguments compared with those of tracing. PyTorch decides on fake tensors what it would do with another layout.
`x.view(-1)` raises for a transposed one, which PyTorch finds out in the same way.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ortlens import _torch
from ortlens.backend.basis import provenance
from ortlens.backend.operators.facts import by_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.export import ExportedProgram

_aten = torch.ops.aten
_DECIDING = frozenset({_aten.reshape, _aten.reshape_as, _aten.flatten, _aten.ravel, _aten.contiguous, _aten.to})
"""Operators that return a view, or the tensor itself, if its layout allows it."""

_RAISING = frozenset({_aten.view, _aten.view_as, _aten.unflatten, _aten.view_as_complex})
"""Operators that raise where the layout of their operand does not allow a view."""

_WINDOWS = frozenset({_aten.as_strided, _aten.as_strided_, _aten.as_strided_scatter})
"""Operators whose result depends on the strides of what they read."""


_SILENT_VIEWS = frozenset(
    {_aten.atleast_1d, _aten.atleast_2d, _aten.atleast_3d, _aten.broadcast_tensors, _aten.cartesian_prod, _aten.conj_physical, _aten.einsum}
    | {_aten.flatten_dense_tensors, _aten.lift, _aten.meshgrid, _aten.sum_to_size, _aten.to_dense, _aten.type_as}
    | {_aten.unflatten_dense_tensors, _aten.unsafe_chunk, _aten.unsafe_split, _aten.unsafe_split_with_sizes}
    | {_aten._unsafe_view}  # noqa: SLF001 - an operator's name
)
"""Operators that may return an operand or views of it, of which schemas say nothing. In programs, a dropout in evaluation is a copy."""


@dataclass(frozen=True, slots=True)
class _MemoryLink:
    """A node that may lie in the memory of another."""

    base: torch.fx.Node
    result: torch.fx.Node
    place: int
    decides: bool


class LayoutDecisions:
    """The decisions of a program that depend on the layout of its arguments.

    Attributes:
        arguments: Places of the user's inputs among all inputs, whose layout matters.
        values: Those of them on which values depend, not only which results share memory.
        exact: Those whose strides the program reads, so that no other ones will do.
        decides: Whether something is decided, not only refused.
    """

    def __init__(self, program: ExportedProgram) -> None:
        """Look for decisions in a program as traced: in a decomposed one, the decompositions have made them."""
        nodes = list(program.graph.nodes)
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        specs = zip(self._placeholders, program.graph_signature.input_specs, strict=True)
        tensors = [node for node, spec in specs if spec.kind is InputKind.USER_INPUT and isinstance(node.meta.get("val"), torch.Tensor)]
        places = {node: place for place, node in enumerate(self._placeholders) if node in tensors}
        self._module = program.graph_module
        aliases = _Aliases(nodes)
        self._links = [(link, kinds) for link in aliases.links if link.decides and (kinds := aliases.kinds(link))]
        self._views = [node for node in nodes if _packet(node) in _RAISING and _root_of(node) in places]
        self._needed = _with_ancestors(iter([*(link.result for link, _ in self._links), *self._views]))
        windows = [node for node in nodes if _packet(node) in _WINDOWS]

        def under(found: Iterator[torch.fx.Node]) -> frozenset[int]:
            return frozenset(places[node] for node in _with_ancestors(found) if node in places)

        # What a graph within the graph decides does not show in its results.
        inner = [link.base for link, _ in self._links if any(True for _ in _inner_graphs(link.result))]
        self.exact = under(iter([*windows, *inner]))
        self.arguments = under(link.base for link, _ in self._links) | under(iter(self._views)) | self.exact
        self.decides = bool(self._links or self.exact)
        self.values = under(link.base for link, kinds in self._links if "values" in kinds) | self.exact

    def outcome(self, inputs: Sequence[Any], strides: Mapping[int, tuple[int, ...]]) -> tuple[bool, ...] | None:
        """Let PyTorch decide, with other strides than their own for the inputs at the places in `strides`.

        Tells for each decision whether the result lies in the memory of its operand; None if PyTorch raises, or it depends on values.
        """
        mode = _torch.fake_mode_of(())
        made: dict[torch.fx.Node, Any] = {}
        given = {node: (value, strides.get(place)) for place, (node, value) in enumerate(zip(self._placeholders, inputs, strict=True))}
        shared: dict[torch.fx.Node, bool] = {}
        wanted = {link.result: link.base for link, _ in self._links}
        try:
            with _torch.quiet(), _torch.real_tensors(), mode, torch.no_grad():
                for node in self._module.graph.nodes:
                    if node in self._needed:
                        made[node] = self._made(node, made, given, mode)
                    if node in wanted:
                        shared[node] = _torch.share_storage(made[wanted[node]], made[node])
        except Exception:  # noqa: BLE001 - a view that is none, or fake tensors that have no values: what cannot be decided is refused
            return None
        return tuple(shared.values())

    def _made(self, node: torch.fx.Node, made: Mapping[torch.fx.Node, Any], given: Mapping[torch.fx.Node, Any], mode: Any) -> Any:
        if node.op == "call_function":
            target: Any = node.target
            return target(*torch.fx.node.map_arg(node.args, made.__getitem__), **torch.fx.node.map_arg(node.kwargs, made.__getitem__))
        value, strides = given[node] if node.op == "placeholder" else (operator.attrgetter(str(node.target))(self._module), None)
        if strides is not None:
            return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
        return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value


def inputs_in_results(program: ExportedProgram) -> list[frozenset[str]]:
    """Find, for each result of the user's, the placeholders in whose memory it may lie; the program is as traced, not decomposed."""
    nodes = list(program.graph.nodes)
    aliases = _Aliases(nodes)
    results = zip(nodes[-1].args[0], program.graph_signature.output_specs, strict=True)
    returned = [node for node, spec in results if spec.kind is OutputKind.USER_OUTPUT]
    sides = [aliases.side(node) if isinstance(node, torch.fx.Node) else set() for node in returned]
    return [frozenset(node.name for node in side if node.op == "placeholder") for side in sides]


class _Aliases:
    """Which nodes of a graph may lie in the same memory, and what is written there."""

    def __init__(self, nodes: Sequence[torch.fx.Node]) -> None:
        self._order = {node: place for place, node in enumerate(nodes)}
        self.links = [link for place, node in enumerate(nodes) for link in _links_of(node, place)]
        self._writes = [(place, node) for place, user in enumerate(nodes) for node in _written_by(user)]
        self._near: dict[torch.fx.Node, list[_MemoryLink]] = defaultdict(list)
        for link in self.links:
            self._near[link.base].append(link)
            self._near[link.result].append(link)

    def kinds(self, link: _MemoryLink) -> frozenset[str]:
        """Name what depends on a decision: `sharing` of what outlives the call, `values`."""
        base, result = self.side(link.base, link), self.side(link.result, link)
        if link.result in base:
            return frozenset()
        found = {"sharing"} if _outlives(base) and _outlives(result) else set()
        sides = ((base, result), (result, base))
        if any(self._reads_after(other, place, link) for side, other in sides for place, node in self._writes if node in side):
            found.add("values")
        return frozenset(found)

    def _reads_after(self, side: set[torch.fx.Node], write: int, link: _MemoryLink) -> bool:
        """Tell whether a write to one side shows in the other."""
        return write >= link.place and (_outlives(side) or any(self._order[user] > write for node in side for user in node.users))

    def side(self, start: torch.fx.Node, without: _MemoryLink | None = None) -> set[torch.fx.Node]:
        """Find the nodes that may lie in the memory of one, if one link is left out."""
        found, rest = {start}, [start]
        while rest:
            for link in self._near[rest.pop()]:
                new = {link.base, link.result} - found if link is not without else set()
                found |= new
                rest += new
        return found


def _outlives(side: set[torch.fx.Node]) -> bool:
    """Tell whether the caller has some tensor of a side: an argument, state, or a result."""
    return any(node.op == "placeholder" or any(user.op == "output" for user in node.users) for node in side)


def _links_of(node: torch.fx.Node, place: int) -> Iterator[_MemoryLink]:
    inner = list(_inner_graphs(node))
    decides = _is_deciding(node) or any(_is_deciding(made) for graph in inner for made in graph.nodes)
    for base in node.all_input_nodes if inner else _aliased_by(node):
        yield _MemoryLink(base, node, place, decides)


def _packet(node: torch.fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def _root_of(node: torch.fx.Node) -> torch.fx.Node:
    """Find the first node of the chain of operators that may return views, which leads to a node."""
    while (base := next(_aliased_by(node), None)) is not None:
        node = base
    return node


def _is_deciding(node: torch.fx.Node) -> bool:
    packet = _packet(node)
    if packet is _aten.to:  # elsewhere dtype and device decide, which are those of tracing
        return by_name(node.target, node.args, node.kwargs).get("memory_format") not in (None, torch.preserve_format)
    return packet in _DECIDING


def _inner_graphs(node: torch.fx.Node) -> Iterator[torch.fx.Graph]:
    """Yield the graphs that a node calls, such as that of a block under another autocast."""
    for source in node.all_input_nodes:
        module = provenance.attribute_of(source)
        if isinstance(module, torch.fx.GraphModule):
            yield module.graph


def _aliased_by(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield the operands in whose memory the result of a node may lie."""
    if node.op != "call_function":
        return
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # `getitem` of a list of views
        yield from node.all_input_nodes[:1]
    elif any(returned.alias_info is not None for returned in schema.returns) or schema.is_mutable:
        yield from _operands(node, lambda argument: argument.alias_info is not None)
    elif _packet(node) in _SILENT_VIEWS and not _computes(node):
        yield from _operands(node, lambda _: True)


def _computes(node: torch.fx.Node) -> bool:
    """Tell whether a call of one of the silent views gives new values: a product, or another dtype."""
    operands = list(_operands(node, lambda _: True))
    made = node.meta["val"] if isinstance(node.meta["val"], (list, tuple)) else [node.meta["val"]]
    if _packet(node) is _aten.einsum:
        return len(operands) > 1
    return made[0].dtype is not operands[0].meta["val"].dtype


def _written_by(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    schema = getattr(node.target, "_schema", None)
    if any(True for graph in _inner_graphs(node) for inner in graph.nodes for _ in _written_by(inner)):
        yield from node.all_input_nodes
    elif schema is not None and schema.is_mutable:
        yield from _operands(node, lambda argument: argument.alias_info is not None and argument.alias_info.is_write)


def _operands(node: torch.fx.Node, wanted: Any) -> Iterator[torch.fx.Node]:
    given = by_name(node.target, node.args, node.kwargs)
    for argument in getattr(node.target, "_schema").arguments:  # noqa: B009 - a public name of torch's operators in spite of its underscore
        value = given.get(argument.name) if wanted(argument) else None
        yield from (item for item in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(item, torch.fx.Node))


def _with_ancestors(nodes: Iterator[torch.fx.Node]) -> set[torch.fx.Node]:
    rest = list(nodes)
    found = set(rest)
    while rest:
        new = set(rest.pop().all_input_nodes) - found
        found |= new
        rest += new
    return found
