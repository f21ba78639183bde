"""Regions of `torch.compiler.nested_compile_region`: PyTorch traces each once, and calls it as a graph inside others.

torch's own pass, `torch/_higher_order_ops/passes/inline_invoke_subgraph.py`, gives the lines and modules of the first call to all calls.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import re
from typing import TYPE_CHECKING, Any

import torch

from ortlens._process import process_wide, replaced
from ortlens._torch.aot import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    _Call = tuple[Mapping[str, Any], Sequence[Any]]  # what Dynamo noted of a call, and its operands

_CHILD, _WEIGHT = re.compile(r"\._modules\['([^']*)'\]"), re.compile(r"\._(parameters|buffers)\['[^']*'\]$")


@process_wide
@contextlib.contextmanager
def regions_ignored() -> Iterator[None]:
    """Have traces see regions as plain functions, as they are where nothing is compiled."""
    from torch._higher_order_ops import invoke_subgraph

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # Dynamo cannot trace `operator.call`
        return function(*args, **kwargs)

    with replaced(invoke_subgraph, "invoke_subgraph_placeholder", call):
        yield


def calls_regions(module: torch.fx.GraphModule) -> bool:
    """Tell whether a graph, or one inside it, calls a region."""
    return any(isinstance(each, torch.fx.GraphModule) and _calls_in(each) for each in module.modules())


def inline_regions(module: torch.fx.GraphModule) -> None:
    """Put the nodes of each region in place of its calls, in a graph and in those inside it, with the lines and modules of each call."""
    traced: dict[object, _Call] = {}  # the first calls
    for each in module.modules():  # outer graphs first, so that a region in a region is called with their values
        regions = set()
        while isinstance(each, torch.fx.GraphModule) and (calls := _calls_in(each)):
            for call in calls:
                regions.add(call.args[0].target)
                _inline(each, call, traced)
        for name in regions - {node.target for node in each.graph.find_nodes(op="get_attr")} if regions else ():
            each.delete_submodule(name)
        if regions:
            each.recompile()


def _calls_in(module: torch.fx.GraphModule) -> list[Any]:
    return list(module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph))


def _inline(module: torch.fx.GraphModule, node: Any, traced: dict[object, _Call]) -> None:
    reader, _, *operands = node.args
    region = operator.attrgetter(reader.target)(module)
    calls = traced.setdefault(region, (node.meta, operands)), (node.meta, operands)
    moves, (before, now) = _moves(*calls), [meta.get("stack_trace") or "" for meta, _ in calls]
    copies: dict[torch.fx.Node, Any] = dict(zip(region.graph.find_nodes(op="placeholder"), operands, strict=True))
    with module.graph.inserting_before(node):
        results: Any = module.graph.graph_copy(region.graph, copies)
    for copy in itertools.islice(copies.values(), len(operands), None):
        if (stack := copy.meta.get("stack_trace") or "").startswith(before):
            copy.meta["stack_trace"] = now + stack.removeprefix(before)
        modules = copy.meta.get("nn_module_stack") or {}
        copy.meta["nn_module_stack"] = {key: (_moved(path, moves), kind) for key, (path, kind) in modules.items()}
        if copy.op in ("get_attr", "call_module"):
            copy.target = _name_in(module, copy.target.replace(".", "_"), operator.attrgetter(copy.target)(region))
    for part in list(node.users):
        part.replace_all_uses_with(results[part.args[1]])
        module.graph.erase_node(part)
    module.graph.erase_node(node)
    if not reader.users:
        module.graph.erase_node(reader)


def _moves(traced: _Call, call: _Call) -> dict[str, str]:
    """Map modules of the call that was traced to those of another call, by the weights that both get, and by what calls the region."""
    moves = {}
    for old, new in zip(*([_owner(operand) for operand in operands] for _, operands in (traced, call)), strict=True):
        while old and new and old[-1] == new[-1]:
            del old[-1], new[-1]
        if old and new:
            moves[".".join(old)] = ".".join(new)
    stacks = [[path for path, _ in (meta.get("nn_module_stack") or {}).values()] for meta, _ in (traced, call)]
    return moves | dict(zip(*(stack[-1:] for stack in stacks), strict=False))


def _owner(operand: Any) -> list[str]:
    """Return the path of the module that has a weight, in parts of those of `nn_module_stack`; an empty list for other values."""
    source = source_of(operand) if isinstance(operand, torch.fx.Node) else None
    return _CHILD.sub(r".\1", _WEIGHT.sub("", source)).split(".") if source and _WEIGHT.search(source) else []


def _moved(path: str, moves: Mapping[str, str]) -> str:
    """Rename a module, or one inside it."""
    old = max((each for each in moves if f"{path}.".startswith(f"{each}.")), key=len, default="")
    return moves.get(old, "") + path.removeprefix(old)


def _name_in(module: torch.fx.GraphModule, name: str, value: Any) -> str:
    """Find the name under which a graph has what a region has; where it has it not yet, it gets it."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
    found = next(each for each in names if getattr(module, each, value) is value)
    if type(value) is torch.Tensor and not hasattr(module, found):
        module.register_buffer(found, value)
    else:
        setattr(module, found, value)
    return found
