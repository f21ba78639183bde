"""Operators that were taken apart for ONNX, and go back to PyTorch as what they were where all of their parts stay there.

Decomposing notes the call in the nodes that it makes: the operator, the nodes of its arguments and those of its results. PyTorch's kernel
makes one pass where the parts make many, and takes types and devices that they do not. What a later pass changed is not put back together:
a node counts as the one that was noted if it has its name and its layout.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.analysis.index import grouped
from ortlens.backend.basis.provenance import layout_text
from ortlens.backend.lowering.buffer_writes import read_before, written_before
from ortlens.backend.lowering.returned_views import writes_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    Parts: TypeAlias = Mapping[torch.fx.Node, list[torch.fx.Node]]  # the call of an operator, in a graph of its own -> the nodes it became

STAYS = "ortlens_stays"
"""Key in the meta of an operator that stays in PyTorch whole: why, as a verdict."""
# The call that a node is a part of, the name of a node as it was noted, and whether it is in the place of the node of that name.
_CALL, _NAME, _IN_PLACE = "ortlens_call", "ortlens_name", "ortlens_in_place"
_DETACH = torch.ops.aten.detach.default
_LAYER_NORM_BACKWARD = torch.ops.aten.native_layer_norm_backward.default


def noting(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return decompositions that note what they take apart."""
    return {target: functools.partial(_noted, target, function) for target, function in table.items()}


def _noted(target: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    made, trace = _torch.traced_call(function, args, kwargs)
    schema = getattr(target, "_schema", None)
    if trace is None or schema is None or any(value.alias_info for value in (*schema.arguments, *schema.returns)):
        return made
    if all(node.target is target or getattr(node.target, "namespace", "") == "prims" for node in trace.nodes):
        return made  # a prim is the same kernel
    inputs: dict[torch.fx.Node, torch.fx.Node] = {}
    graph = torch.fx.Graph()

    def stand_in(node: torch.fx.Node) -> torch.fx.Node:
        while node.target is _DETACH:  # which a pass takes out
            (node,) = node.all_input_nodes
        if node not in inputs:
            inputs[node] = graph.placeholder(_note(node))
            inputs[node].meta = {"val": node.meta.get("val")}
        return inputs[node]

    given, named = torch.fx.map_arg((trace.args, trace.kwargs), stand_in)
    if target is _LAYER_NORM_BACKWARD and None not in given[5:7]:  # whether there is a bias: it is not read, so the backward graph lacks it
        given = (*given[:6], given[5], *given[7:])
    call = graph.call_function(target, given, named)
    call.meta = {"val": made, "results": [_note(node) if isinstance(node, torch.fx.Node) else None for node in trace.results]}
    for node in trace.nodes:
        node.meta[_CALL] = call
    return made


def _note(node: torch.fx.Node) -> str:
    node.meta[_NAME] = node.name
    return node.name


def parts_of(graph: torch.fx.Graph) -> Parts:
    """Find what became of each operator that was taken apart, in the order of the graph."""
    return grouped((node.meta[_CALL], node) for node in graph.nodes if _CALL in node.meta and node.op == "call_function")


def put_together(graph: torch.fx.Graph, why: Callable[[torch.fx.Node, list[torch.fx.Node]], Any]) -> bool:
    """Put operators in the place of their parts, and tell whether there were any.

    `why` gets a call and its parts; what it returns is kept under `STAYS` in the meta of the new node, and None leaves them apart.
    """
    made = False
    while _put_together_once(graph, why):  # parts may be read by those of another operator
        made = True
    return made


def _put_together_once(graph: torch.fx.Graph, why: Callable[[torch.fx.Node, list[torch.fx.Node]], Any]) -> bool:
    kept = (node for node in graph.nodes if node.meta.get(_NAME) == node.name or _IN_PLACE in node.meta or node.op == "placeholder")
    named = {node.meta.get(_NAME): node for node in kept}  # programs rename their inputs
    made, ordered = False, {other for node in graph.nodes for other in (*(read_before(node) or ()), *written_before(node))}
    for call, nodes in parts_of(graph).items():
        sources = [_same(named.get(node.name), node.meta["val"]) for node in call.all_input_nodes]
        if None in sources or any(node in ordered or writes_argument(node) or written_before(node) for node in nodes):
            continue
        values = call.meta["val"] if isinstance(call.meta["val"], (list, tuple)) else (call.meta["val"],)
        results = {name: place for place, name in enumerate(call.meta["results"]) if name is not None}
        read = [node for node in nodes if any(user not in nodes for user in node.users)]
        if any(node.name not in results or _same(node, values[results[node.name]]) is None for node in read):
            continue
        if (reason := why(call, nodes)) is None:
            continue
        known: dict[torch.fx.Node, Any] = dict(zip(call.all_input_nodes, sources, strict=True))
        order = {node: place for place, node in enumerate(graph.nodes)}
        last = max((*known.values(), nodes[0]), key=order.__getitem__)
        if any(order[user] <= order[last] for node in read for user in node.users if user not in nodes):
            continue
        with graph.inserting_before(last.next):
            one = graph.node_copy(call, known.__getitem__)
            one.meta = {key: value for key, value in nodes[0].meta.items() if key not in (_CALL, _NAME)} | {"val": call.meta["val"]}
            for node in read:
                item = one
                if isinstance(call.meta["val"], (list, tuple)):
                    item = graph.call_function(operator.getitem, (one, results[node.name]))
                item.meta = {**one.meta, "val": node.meta["val"], _NAME: node.name, _IN_PLACE: True}
                named[node.name] = item
                node.replace_all_uses_with(item)
        for node in reversed(nodes):
            graph.erase_node(node)
        one.meta[STAYS], made = reason, True
    if made:  # parts of the forward may have been computed again for those of the backward
        graph.eliminate_dead_code()
    return made


def whole(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Copy a graph with all operators put together again, for PyTorch to run it."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    put_together(graph, lambda *_: True)
    return torch.fx.GraphModule(module, graph)


def _same(node: torch.fx.Node | None, value: Any) -> torch.fx.Node | None:
    """Return a node whose value has the type and layout of another one."""
    given = None if node is None else node.meta.get("val")
    alike = (
        layout_text(given) == layout_text(value)
        if isinstance(given, torch.Tensor) and isinstance(value, torch.Tensor)
        else str(given) == str(value)
    )
    return node if alike else None
