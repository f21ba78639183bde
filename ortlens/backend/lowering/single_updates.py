"""Graphs that update each tensor with one operator, as a step of plain SGD does: they stay in PyTorch as Dynamo recorded them.

PyTorch makes one pass over each tensor, where it lies. ONNX Runtime can do no better, and has to be passed every tensor first, which takes
as long as the update of one with a few thousand elements. Two operators per tensor and more are faster in ONNX Runtime: it makes one
call of all of them.
"""

from __future__ import annotations

import functools
import operator
import types
from typing import TYPE_CHECKING, Any

import torch.fx

if TYPE_CHECKING:
    from collections.abc import Callable

_METHODS = frozenset(
    {"add_", "sub_", "mul_", "div_", "neg_", "lerp_", "addcmul_", "addcdiv_", "copy_", "zero_", "fill_", "clamp_", "sqrt_", "reciprocal_"}
)
_FUNCTIONS = frozenset({operator.iadd, operator.isub, operator.imul, operator.itruediv})


def updates_once(module: torch.fx.GraphModule) -> bool:
    """Tell whether a graph consists of elementwise updates of inputs in place, at least one, and updates none twice."""
    updated: list[Any] = []
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if not _updates(node):
            return False
        updated.extend(node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]])
    given = all(isinstance(value, torch.fx.Node) and value.op in ("placeholder", "get_attr") for value in updated)
    return bool(updated) and given and len(set(updated)) == len(updated)


def _updates(node: torch.fx.Node) -> bool:
    if not node.args:
        return False
    if node.op == "call_method":
        return node.target in _METHODS
    name = getattr(node.target, "__name__", "")
    return node.op == "call_function" and (node.target in _FUNCTIONS or (name.startswith("_foreach_") and name.endswith("_")))


def as_recorded(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """Make a function of a graph whose tensors are plain attributes: a module takes as long to find one as an update."""
    names = [str(node.target) for node in module.graph.find_nodes(op="get_attr")]
    if any("." in name for name in names):
        return module.forward
    written = type(torch.fx.GraphModule(module, module.graph))  # Dynamo's own writes its code at the first call
    return functools.partial(written.forward, types.SimpleNamespace(**{name: getattr(module, name) for name in names}))
