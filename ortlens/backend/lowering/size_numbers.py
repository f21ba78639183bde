"""Numbers that follow from symbolic sizes, and that a tensor is multiplied by, such as `n / (n - 1)` in a batch norm of any batch.

PyTorch computes them with 64 bits, ONNX models would do so with 32. The operator that takes one rounds it to the element type of the tensor
beside it. Here it becomes a tensor of that type: one tiny operator of PyTorch before everything else, instead of the operator itself amid
the graph.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens import _torch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_aten = torch.ops.aten
_PRODUCTS = (_aten.mul.Tensor, _aten.div.Tensor)
_ROUNDING = (*_PRODUCTS, _aten.add.Tensor, _aten.sub.Tensor)
"""Operators that round a number to the element type of the tensor beside it, if that has 32 or 64 bits; products of 16 bits, to float32."""
_SIZES = (_aten.sym_numel.default, _aten.sym_size.int)


def make_tensors_of_numbers(graph: torch.fx.Graph) -> None:
    """Give operators a tensor where they take a symbolic number that is known before anything is computed."""
    inputs = {term: node for node in graph.find_nodes(op="placeholder") if (term := _symbol(node.meta.get("val"))) is not None}
    made: dict[tuple[torch.fx.Node, torch.dtype], torch.fx.Node | None] = {}
    for node in list(graph.nodes) if inputs else []:
        key = _rounded_number(node)
        if key is None:
            continue
        if key not in made:
            number, dtype = key
            made[key] = _tensor_of(number, node.meta["val"].new_empty((), dtype=dtype), inputs)
        if (tensor := made[key]) is not None:
            node.args = (node.args[0], tensor)


def _symbol(value: object) -> object | None:
    """Return the symbol that a size is, without an offset or factor."""
    term = _torch.scaled_term(value)
    return term[0] if term is not None and term[1:] == (0, 1) else None


def _rounded_number(node: torch.fx.Node) -> tuple[torch.fx.Node, torch.dtype] | None:
    """Find the symbolic number that an operator rounds, and to which element type; None for any other node."""
    if node.op != "call_function" or node.target not in _ROUNDING or len(node.args) != 2 or node.kwargs:  # noqa: PLR2004 - operands
        return None
    tensor, number = node.args
    if not (isinstance(tensor, torch.fx.Node) and isinstance(number, torch.fx.Node) and number.op == "call_function"):
        return None
    given, result = tensor.meta.get("val"), node.meta.get("val")
    if not (isinstance(given, torch.Tensor) and isinstance(result, torch.Tensor) and isinstance(number.meta.get("val"), torch.SymFloat)):
        return None
    if given.dtype is not result.dtype or given.device.type != "cpu":
        return None
    halves = (torch.float16, torch.bfloat16) if node.target in _PRODUCTS else ()
    dtype = torch.float32 if given.dtype in halves else given.dtype
    return (number, dtype) if dtype in (torch.float32, torch.float64) else None


def _tensor_of(number: torch.fx.Node, example: torch.Tensor, inputs: Mapping[object, torch.fx.Node]) -> torch.fx.Node | None:
    """Make a tensor of a number, computed from the sizes of the graph's inputs; None where these do not tell it."""
    chain = _computing(number)
    if any(node.target not in _SIZES and any(map(_is_tensor, node.all_input_nodes)) for node in chain):
        return None
    factors = {node: _factors(node, inputs) for node in chain if node.target in _SIZES and node.all_input_nodes[0].op != "placeholder"}
    if not all(factors.values()):
        return None
    for node, parts in factors.items():
        with node.graph.inserting_before(node):
            known = functools.reduce(lambda one, other: _computed(operator.mul, one, other, 1), map(_size, parts or []))
        for user in list(node.users):
            if user in chain:
                user.replace_input_with(node, known)
    with number.graph.inserting_after(number):
        made = number.graph.call_function(_aten.scalar_tensor.default, (number,), {"dtype": example.dtype})
    made.meta = {**number.meta, "val": example}
    return made


def _computing(number: torch.fx.Node) -> Collection[torch.fx.Node]:
    """Find the nodes that compute a number, itself among them, up to the sizes of tensors; each once, whatever ways lead to it."""
    found: dict[torch.fx.Node, None] = {}
    waiting = [number]
    while waiting:
        node = waiting.pop()
        if node.op == "call_function" and node not in found:
            found[node] = None
            waiting += [] if node.target in _SIZES else node.all_input_nodes
    return found


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _factors(node: torch.fx.Node, inputs: Mapping[object, torch.fx.Node]) -> list[tuple[torch.fx.Node, int, int]] | None:
    """Find the symbolic sizes whose product a node of `_SIZES` is, each a size of the graph's inputs, an offset and a factor.

    The product of the other sizes is in the first factor, with which an offset is multiplied, too. None where inputs do not tell a size.
    """
    shape = node.all_input_nodes[0].meta["val"].shape
    sizes = list(shape) if node.target is _aten.sym_numel.default else [shape[node.args[1]]]
    known = math.prod(size for size in sizes if isinstance(size, int))
    factors = []
    for size in sizes:
        term = None if isinstance(size, int) else _torch.scaled_term(size)
        if term is not None and term[0] in inputs:
            factors.append((inputs[term[0]], term[1] * known, term[2] * known))
            known = 1
        elif not isinstance(size, int):
            return None
    return factors


def _size(part: tuple[torch.fx.Node, int, int]) -> torch.fx.Node:
    """Make a node for `offset + factor * size`."""
    size, offset, factor = part
    return _computed(operator.add, _computed(operator.mul, size, factor, 1), offset, 0)


def _computed(operation: Callable[[Any, Any], Any], first: torch.fx.Node, second: Any, neutral: int) -> torch.fx.Node:
    """Make a node for an operation on a size and another, or an int; the size itself where the int changes nothing."""
    if isinstance(second, int) and second == neutral:
        return first
    made = first.graph.call_function(operation, (first, second))
    made.meta = {"val": operation(first.meta["val"], second.meta["val"] if isinstance(second, torch.fx.Node) else second)}
    return made
