"""Computes narrow floating-point types in float32: the graph that is converted in place of the partition's own.

The partition keeps its element types at its border, as PyTorch has them, and in the graph that PyTorch runs if ONNX Runtime fails. The
graph for the converter has float32 wherever that one has the narrow type. A value is not rounded to it between two operators, which
is more exact than PyTorch, except where an operator decides by its value: a comparison, the position of a maximum, a conversion to
integers, `floor`. There rounding makes the difference between 2 and 3, and PyTorch decides by the rounded value.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.fx.node import map_aggregate

from ortlens import _torch
from ortlens.backend.basis import dtypes
from ortlens.backend.basis.node_provenance import FX_NODE_KEY

if TYPE_CHECKING:
    from collections.abc import Collection

_aten = torch.ops.aten

GIVEN = "ortlens.given"
"""Key in `meta` of a node of the converter's graph: its value in the partition's own graph, where that has a narrow type."""


def narrow_dtypes(names: Collection[str]) -> frozenset[torch.dtype]:
    """Translate the values of the option `upcast`, such as `bfloat16`."""
    return frozenset(getattr(torch, name) for name in names)


def in_float32(module: torch.fx.GraphModule, narrow: Collection[torch.dtype]) -> torch.fx.GraphModule:
    """Copy a partition, if it has narrow types, to compute them in float32; `meta[GIVEN]` holds the narrow value of a node."""
    if not any(_is_narrow(node.meta.get("val"), narrow) for node in module.graph.nodes):
        return module
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in module.graph.nodes:
        copy = copies[node] = graph.node_copy(node, copies.__getitem__)
        copy.name = node.name
        widen = functools.partial(_wide_argument, narrow=narrow)
        if (dtype := _rounds_numbers_to(node, narrow)) is not None:
            widen = functools.partial(_rounded_argument, dtype=dtype)
        copy.args, copy.kwargs = map_aggregate(copy.args, widen), map_aggregate(copy.kwargs, widen)
        if _is_narrow(value := node.meta.get("val"), narrow):
            copy.meta.update({GIVEN: value, "val": wide_value(value, narrow)})
    return torch.fx.GraphModule(module, graph)


def wide_value(value: Any, narrow: Collection[torch.dtype]) -> Any:
    """Convert narrow types to float32 in a tensor, also a fake one, or a tuple of them; anything else stays as it is."""
    return _torch.map_tensors(lambda tensor: tensor.to(torch.float32) if tensor.dtype in narrow else tensor, value)


def _is_narrow(value: Any, narrow: Collection[torch.dtype]) -> bool:
    return any(tensor.dtype in narrow for tensor in _torch.tensors_of(value))


def _wide_argument(argument: Any, *, narrow: Collection[torch.dtype]) -> Any:
    return torch.float32 if isinstance(argument, torch.dtype) and argument in narrow else argument


def _rounds_numbers_to(node: torch.fx.Node, narrow: Collection[torch.dtype]) -> torch.dtype | None:
    """Find the narrow type to which an operator rounds the numbers that it takes; None where it computes in float32 with them."""
    if getattr(node.target, "overloadpacket", None) not in _ROUNDING_NUMBERS:
        return None
    tensors = _torch.tensors_of([source.meta.get("val") for source in (*node.all_input_nodes, node)])
    return next((tensor.dtype for tensor in tensors if tensor.dtype in narrow), None)


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_OTHERS = ("add", "addr", "sub", "rsub", "pow", "remainder", "fmod", "full", "full_like", "logit", "xlogy", "special_xlog1py")
_ROUNDING_NUMBERS = frozenset(getattr(_aten, name) for name in (*_COMPARISONS, *_OTHERS))


def _rounded_argument(argument: Any, *, dtype: torch.dtype) -> Any:
    if isinstance(argument, torch.dtype):
        return torch.float32 if argument is dtype else argument
    is_number = isinstance(argument, (int, float)) and not isinstance(argument, bool)
    return dtypes.nearest(argument, dtypes.ELEMENT_TYPES[dtype].onnx) if is_number else argument


def is_rounded_number(node: torch.fx.Node) -> bool:
    """Tell whether a node converts one number to a narrow type: those that read it take the rounded one, as PyTorch's kernels do."""
    given, converts = node.meta.get(GIVEN), getattr(node.target, "overloadpacket", None) in _CONVERSIONS
    return converts and isinstance(given, torch.Tensor) and not given.dim()


_CONVERSIONS = frozenset({_aten._to_copy, _aten.scalar_tensor, torch.ops.prims.convert_element_type})  # noqa: SLF001 - an operator's name


def decides(node: torch.fx.Node) -> bool:
    """Tell whether an operator turns floats into decisions: it returns integers or booleans that are read, or rounds to whole numbers."""
    if getattr(node.target, "overloadpacket", None) in _STEPS or node.kwargs.get("rounding_mode") is not None:
        return True
    value = node.meta.get("val")
    items = [user for user in node.users if user.target is operator.getitem]
    read = _torch.tensors_of([item.meta.get("val") for item in items] if isinstance(value, (tuple, list)) and items else value)
    return any(not (tensor.is_floating_point() or tensor.is_complex()) for tensor in read)


_STEPS = frozenset({_aten.floor, _aten.ceil, _aten.round, _aten.trunc, _aten.frac, _aten.fmod, _aten.remainder, _aten.floor_divide})


def cast(value: ir.Value, to: torch.dtype, output: ir.Value, label: str) -> ir.Node:
    """Make a Cast, named by the FX node that it belongs to, a slash and what is unique, to an `output` that gets type and shape."""
    wanted = ir.DataType(dtypes.ELEMENT_TYPES[to].onnx)
    output.dtype, output.shape = wanted, value.shape
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", wanted)], outputs=[output], name=label)
    node.metadata_props[FX_NODE_KEY] = label.partition("/")[0]
    return node
