"""Makes PyTorch's implicit type promotion explicit, because ONNX operators do not convert their inputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ortlens import _torch

_aten = torch.ops.aten
_CONVERTING = (_aten.pow.Tensor_Tensor, _aten.pow.Tensor_Scalar, _aten.pow.Scalar, _aten.stack.default)
"""Operators that convert to the dtype of the result, and for which torch's table has no rule."""

_SUMS = (_aten.add.Tensor, _aten.add.Scalar, _aten.sub.Tensor, _aten.sub.Scalar, _aten.rsub.Scalar)


def promote(module: torch.fx.GraphModule) -> dict[str, Exception]:
    """Insert the conversions that PyTorch makes inside its operators, in place.

    Args:
        module: A copy of an ATen graph, its nodes with `meta["val"]`.

    Returns:
        Node name -> what was raised, for nodes whose conversions are not known.
    """
    for node in list(module.graph.nodes):
        if node.op == "call_function":
            if _starts_with_number(node):
                _make_tensor_of_number(node)
            if _outgrows_half(node):
                _compute_wide(node)
            if node.target in _CONVERTING:
                _convert_operands(node)
    return _torch.insert_type_promotion(module, may_promote)


def may_promote(node: torch.fx.Node) -> bool:
    """Whether PyTorch may convert something inside an operator.

    Args:
        node: A call of an elementwise operator or reduction.

    Returns:
        False when all tensors have the dtype of the result (or the result is boolean), and no number is of a wider kind.
    """
    dtypes = {source.meta["val"].dtype for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)}
    result = node.meta["val"]
    if len(dtypes) != 1 or not isinstance(result, torch.Tensor) or result.dtype not in (*dtypes, torch.bool):
        return True
    (dtype,) = dtypes
    return any(_widens(arg, dtype) for arg in (*node.args, *node.kwargs.values()))


def _widens(arg: Any, dtype: torch.dtype) -> bool:
    """Whether an argument is a number that may be of a wider kind than a tensor; the kind of a symbolic number is unknown."""
    if isinstance(arg, torch.fx.Node):
        return not _is_tensor(arg)
    if dtype.is_floating_point:
        return isinstance(arg, complex)
    return isinstance(arg, (float, complex)) or (dtype is torch.bool and isinstance(arg, (bool, int)))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _starts_with_number(node: torch.fx.Node) -> bool:
    """Whether an operator has a number where its schema has a tensor: `1.5 - x` is `aten.sub.Tensor(1.5, x)`."""
    arguments: list[Any] = list(getattr(getattr(node.target, "_schema", None), "arguments", ()))
    wanted = bool(arguments) and isinstance(arguments[0].type, torch.TensorType)
    given: list[Any] = list(node.args[:2])
    return wanted and len(given) > 1 and isinstance(given[0], (bool, int, float)) and _is_tensor(given[1])


def _make_tensor_of_number(node: torch.fx.Node) -> None:
    """Put the number into a tensor of the element type to which PyTorch would convert it."""
    first: Any = node.args[0]
    second: Any = node.args[1]
    value = second.meta["val"]
    dtype = torch.result_type(value, first)
    if not (dtype.is_floating_point or dtype.is_complex):
        first = torch.tensor(first).to(dtype).item()  # it wraps, where `scalar_tensor` raises
    with node.graph.inserting_before(node):
        made = node.graph.call_function(_aten.scalar_tensor.default, (first,), {"dtype": dtype})
    made.meta = {**node.meta, "val": value.new_empty((), dtype=dtype)}
    node.args = (made, *node.args[1:])


def _outgrows_half(node: torch.fx.Node) -> bool:
    """Whether a float16 tensor meets a Python number beyond its range: PyTorch then computes in float32, but sums, where it is infinite."""
    if node.target in _SUMS:
        return False
    limit = torch.finfo(torch.float16).max
    numbers = [arg for arg in _operands(node) if isinstance(arg, (int, float)) and not isinstance(arg, bool)]
    return any(_is_half(source) for source in node.all_input_nodes) and any(limit < abs(n) < float("inf") for n in numbers)


def _operands(node: torch.fx.Node) -> list[Any]:
    """The positional arguments that take part in the computation: no sizes and places, such as the end of a slice."""
    schema: list[Any] = list(getattr(getattr(node.target, "_schema", None), "arguments", ()))
    kinds = (torch.TensorType, torch.NumberType, torch.FloatType)
    return [arg for arg, argument in zip(node.args, schema, strict=False) if isinstance(_plain_type(argument.type), kinds)]


def _plain_type(kind: Any) -> Any:
    return kind.getElementType() if isinstance(kind, torch.OptionalType) else kind


def _is_half(value: Any) -> bool:
    meta = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    return isinstance(meta, torch.Tensor) and meta.dtype is torch.float16


def _compute_wide(node: torch.fx.Node) -> None:
    """Convert the inputs of a node to float32 and its result back."""
    graph = node.graph
    with graph.inserting_before(node):
        node.args = tuple(_converted(graph, arg, torch.float32) if _is_half(arg) else arg for arg in node.args)
    if not _is_half(node):
        return
    node.meta["val"] = node.meta["val"].to(torch.float32)
    users = list(node.users)
    with graph.inserting_after(node):
        back = _converted(graph, node, torch.float16)
    for user in users:
        user.replace_input_with(node, back)


def _convert_operands(node: torch.fx.Node) -> None:
    """Convert the tensors that a node reads to the element type of its result."""
    dtype = node.meta["val"].dtype
    with node.graph.inserting_before(node):
        for source in node.all_input_nodes:
            if _is_tensor(source) and source.meta["val"].dtype is not dtype:
                node.replace_input_with(source, _converted(node.graph, source, dtype))


def _converted(graph: torch.fx.Graph, source: Any, dtype: torch.dtype) -> torch.fx.Node:
    made = graph.call_function(_aten._to_copy.default, (source,), {"dtype": dtype})  # noqa: SLF001 - an operator's name
    made.meta = {**source.meta, "val": source.meta["val"].to(dtype)}
    return made
