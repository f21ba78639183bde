"""Regions of `torch.compiler.nested_compile_region`: PyTorch traces each once, and calls it as a graph inside others.

torch's own pass, `torch/_higher_order_ops/passes/inline_invoke_subgraph.py`, gives the lines and modules of the first call to all calls.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import operator
import re
from typing import TYPE_CHECKING, Any

import torch

from ortlens._process import process_wide, replaced
from ortlens._torch.aot import input_sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CHILD, _WEIGHT = re.compile(r"\._modules\['([^']*)'\]"), re.compile(r"(.+)\._(?:parameters|buffers)\['[^']*'\]")
_MOVE = re.compile(r"(\S+?)((?:\.[^.\s]+)*)\n(\S+)\2")  # two paths, without the parts at the end that both have


@process_wide
@contextlib.contextmanager
def regions_ignored() -> Iterator[None]:
    """Have traces see regions as plain functions, as they are where nothing is compiled."""
    home = importlib.import_module("torch._higher_order_ops.invoke_subgraph")  # its package has the operator under this name
    # Not `operator.call`, which Dynamo cannot trace.
    with replaced(home, "invoke_subgraph_placeholder", lambda function, *args, **kwargs: function(*args, **kwargs)):
        yield


def region_calls(module: torch.fx.GraphModule) -> list[tuple[torch.fx.GraphModule, Any]]:
    """List the calls of regions in a graph, and then in those inside it, with the graphs."""
    owners, target = (each for each in module.modules() if isinstance(each, torch.fx.GraphModule)), torch.ops.higher_order.invoke_subgraph
    return [(owner, call) for owner in owners for call in owner.graph.find_nodes(op="call_function", target=target)]


def inline_regions(module: torch.fx.GraphModule) -> None:
    """Put the nodes of each region in place of its calls, in a graph and in those inside it, with the lines and modules of each call."""
    traced: dict[object, tuple[str, list[str]]] = {}  # the stack and the modules of each region's first call
    sources, owners = dict(zip(module.graph.find_nodes(op="placeholder"), input_sources(module), strict=True)), set()
    while calls := region_calls(module):
        _inline(*calls[0], sources, traced)  # of the outermost graph, so that a region in a region is called with its values
        owners.add(calls[0][0])
    for owner in owners:  # Dynamo drops unread sizes from its own graphs, and not from regions
        owner.graph.eliminate_dead_code(lambda node: node.op != "get_attr" and node.target not in ("size", "item", operator.getitem))
        owner.recompile()


def _inline(
    module: torch.fx.GraphModule, node: Any, sources: Mapping[Any, str | None], traced: dict[object, tuple[str, list[str]]]
) -> None:
    graph, (reader, _, *operands) = module.graph, node.args
    region = operator.attrgetter(reader.target)(module)
    call = node.meta.get("stack_trace") or "", _modules_of(node, sources)
    (before, old), (now, new) = traced.setdefault(region, call), call
    moves = {match[1]: match[3] for pair in zip(old, new, strict=True) if (match := _MOVE.fullmatch("\n".join(pair)))}
    copies: dict[torch.fx.Node, Any] = dict(zip(region.graph.find_nodes(op="placeholder"), operands, strict=True))
    for given, value in list(copies.items()):  # a region may have taken a float as a tensor: later calls pass the float (torch 2.13)
        if getattr(value, "target", "item") == "item" and isinstance(given.meta.get("example_value"), torch.Tensor):
            copies.update(dict.fromkeys(given.users, value))  # which all are `item`
    known = len(copies)
    with graph.inserting_before(node):
        results: Any = graph.graph_copy(region.graph, copies)
    for copy in itertools.islice(copies.values(), known, None):
        if (stack := copy.meta.get("stack_trace") or "").startswith(before):
            copy.meta["stack_trace"] = now + stack.removeprefix(before)
        stack_of_modules = copy.meta.get("nn_module_stack") or {}
        copy.meta["nn_module_stack"] = {key: (_moved(path, moves), kind) for key, (path, kind) in stack_of_modules.items()}
        if copy.op in ("get_attr", "call_module"):
            copy.target = _name_in(module, copy.target.replace(".", "_"), operator.attrgetter(copy.target)(region))
    for part in list(node.users):
        part.replace_all_uses_with(results[part.args[1]])
        graph.erase_node(part)
    graph.erase_node(node)


def _modules_of(call: torch.fx.Node, sources: Mapping[Any, str | None]) -> list[str]:
    """List the modules that have the weights that a call gets, and the one that makes it, as in `nn_module_stack`; "" for none."""
    weights = [_WEIGHT.fullmatch(sources.get(operand) or "") for operand in call.args[2:]]
    callers = [path for path, _ in (call.meta.get("nn_module_stack") or {}).values()]
    return [*(_CHILD.sub(r".\1", match[1]) if match else "" for match in weights), "".join(callers[-1:])]


def _moved(path: str, moves: Mapping[str, str]) -> str:
    """Rename a module, or one inside it."""
    old = max((each for each in moves if f"{path}.".startswith(f"{each}.")), key=len, default="")
    return moves.get(old, "") + path.removeprefix(old)


def _name_in(module: torch.fx.GraphModule, name: str, value: Any) -> str:
    """Find the name under which a graph has what a region has; where it has it not yet, it gets it."""
    found = next(each for number in itertools.count() if getattr(module, each := f"{name}_{number}", value) is value)
    torch.fx.graph_module._assign_attr(value, module, found)
    return found
