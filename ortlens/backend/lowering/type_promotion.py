"""Makes PyTorch's implicit type promotion explicit, because ONNX operators do not convert their inputs.

PyTorch computes numbers that follow from symbolic sizes with 64 bits, such as the `n / (n - 1)` of a batch norm of any batch; ONNX models
would do so with 32. The operator that takes one rounds it to the element type of the tensor beside it. Here it becomes a tensor of that
type: one tiny operator of PyTorch before everything else, instead of the operator itself amid the graph.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.basis.provenance import call_like
from ortlens.backend.operators.facts import is_boolean_value, refused_booleans

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


_aten = torch.ops.aten
_CONVERTING = (_aten.pow.Tensor_Tensor, _aten.pow.Tensor_Scalar, _aten.pow.Scalar, _aten.stack.default)
"""Operators that convert to the dtype of the result, and for which torch's table has no rule."""

_COMPARISONS = tuple(getattr(_aten, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge"))
_EXACT = (_aten.mul.Tensor, _aten.div.Tensor, _aten.div.Tensor_mode, _aten.floor_divide.default)
"""Operators that compute 16-bit floats in float32, and do not round a second operand without dimensions before."""
_BOUNDS = (_aten.clamp.default, _aten.clamp_min.default, _aten.clamp_max.default)
_NARROW = (torch.float16, torch.uint8, torch.int8, torch.int16, torch.int32)
_UNCONVERTED = (_aten.heaviside.default, _aten.lerp.Scalar, _aten.std_mean.correction)


def promote(module: torch.fx.GraphModule, is_converted: Callable[[Any], bool] = lambda _: True) -> dict[str, Exception]:
    """Insert the conversions that PyTorch makes inside its operators, in place; returns what was raised where they are not known.

    `is_converted` tells whether an operator has an ONNX function: PyTorch's own kernel converts, and refuses, by itself.
    """
    for node in list(module.graph.nodes):
        if node.op == "call_function" and refused_booleans(node) is None:
            if _starts_with_number(node):
                _make_tensor_of_number(node)
            if node.target in _EXACT and _is_half(node):
                _keep_number(node)
            if node.target in _CONVERTING and not all(
                map(is_boolean_value, node.args)
            ):  # torch's shape function says int64 of a power of these
                _convert_operands(node, node.meta["val"].dtype)
            if node.target in _COMPARISONS and all(map(_is_tensor, node.args)):
                _compare_rounded(node)
    asked = set(module.graph.find_nodes(op="call_function", target=_aten.scalar_tensor.default))
    failures = _torch.insert_type_promotion(module, lambda node: is_converted(node.target) and may_promote(node))
    for node in module.graph.find_nodes(op="call_function", target=_aten.scalar_tensor.default):
        if node not in asked:
            _convert_unchecked(node)
    return failures


def may_promote(node: torch.fx.Node) -> bool:
    """Tell whether PyTorch may convert something inside an elementwise operator or reduction.

    False when all tensors have the dtype of the result (or the result is boolean), and no number is of a wider kind; and for what PyTorch
    refuses to convert.
    """
    if _keeps_second_operand(node) or refused_booleans(node) is not None or node.target in _UNCONVERTED:
        return False
    dtypes = {source.meta["val"].dtype for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)}
    result = node.meta["val"]
    if len(dtypes) != 1 or not isinstance(result, torch.Tensor) or result.dtype not in (*dtypes, torch.bool):
        return True
    (dtype,) = dtypes
    if node.target in _BOUNDS and dtype in _NARROW:
        return False  # a tensor of the number would hold another, where PyTorch raises
    return any(_widens(arg, dtype) for arg in (*node.args, *node.kwargs.values()))


def _keeps_second_operand(node: torch.fx.Node) -> bool:
    """Tell whether 16-bit floats meet a float32 without dimensions that neither operator nor ONNX function rounds to 16 bits."""
    operands: list[Any] = list(node.args[:2])
    if node.target not in _EXACT or not all(map(_is_tensor, operands)):
        return False
    x, y, result = (value.meta["val"] for value in (*operands, node))
    return _is_half(node) and result.dtype is x.dtype and y.dtype is torch.float32


def _widens(arg: Any, dtype: torch.dtype) -> bool:
    """Tell whether an argument is a number that may be of a wider kind than a tensor; the kind of a symbolic number is unknown."""
    if isinstance(arg, torch.fx.Node):
        return not _is_tensor(arg)
    if dtype.is_floating_point:
        return isinstance(arg, complex)
    return isinstance(arg, (float, complex)) or (dtype is torch.bool and isinstance(arg, (bool, int)))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _starts_with_number(node: torch.fx.Node) -> bool:
    """Tell whether an operator has a number where its schema has a tensor: `1.5 - x` is `aten.sub.Tensor(1.5, x)`."""
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
        first = torch.tensor(first, device="cpu").to(dtype).item()  # it wraps, where `scalar_tensor` raises
    with node.graph.inserting_before(node):
        made = call_like(node, _aten.scalar_tensor.default, (first,), value.new_empty((), dtype=dtype), dtype=dtype)
    node.args = (made, *node.args[1:])


def _is_half(node: Any) -> bool:
    return _is_tensor(node) and node.meta["val"].dtype in (torch.float16, torch.bfloat16)


def _keep_number(node: torch.fx.Node) -> None:
    """Convert a symbolic number, or a tensor without dimensions, to float32, which PyTorch rounds it to beside 16-bit floats."""
    operands: list[Any] = list(node.args[:2])
    x, number = operands
    if not _is_half(x) or not isinstance(number, torch.fx.Node):
        return
    value = number.meta["val"]
    with node.graph.inserting_before(node):
        if not isinstance(value, torch.Tensor):
            single = node.meta["val"].new_empty((), dtype=torch.float32)
            made = call_like(node, _aten.scalar_tensor.default, (number,), single, dtype=torch.float32)
        elif value.dtype is not x.meta["val"].dtype and not value.dim() and value.device.type == "cpu":
            made = number if value.dtype is torch.float32 else _converted(number, torch.float32)
        else:
            return
    node.args = (x, made, *node.args[2:])
    if not x.meta["val"].dim():
        _compute_in_float32(node)


def _convert_unchecked(node: torch.fx.Node) -> None:
    """Let a symbolic number beyond a narrow type wrap, or be infinite, as beside a tensor; `scalar_tensor` raises."""
    number: Any = node.args[0]
    dtype = node.meta["val"].dtype
    held = number.meta.get("val") if isinstance(number, torch.fx.Node) else None
    if dtype not in _NARROW or not isinstance(held, (torch.SymInt, torch.SymFloat)):
        return
    wide = torch.int64 if isinstance(held, torch.SymInt) else torch.float64
    node.kwargs = {**node.kwargs, "dtype": wide}
    node.meta["val"] = node.meta["val"].to(wide)
    with node.graph.inserting_after(node):
        converted = _converted(node, dtype)
    node.replace_all_uses_with(converted, delete_user_cb=lambda user: user is not converted)


def _compute_in_float32(node: torch.fx.Node) -> None:
    """Convert the first operand too, and the result back: of two tensors without dimensions, neither decides about the type alone."""
    result = node.meta["val"]
    with node.graph.inserting_before(node):
        node.args = (_converted(node.args[0], torch.float32), *node.args[1:])
    node.meta["val"] = result.to(torch.float32)
    with node.graph.inserting_after(node):
        rounded = _converted(node, result.dtype)
    node.replace_all_uses_with(rounded, delete_user_cb=lambda user: user is not rounded)


def _compare_rounded(node: torch.fx.Node) -> None:
    """Round a float without dimensions to the 16-bit type of what it is compared with, as PyTorch does."""
    operands: list[Any] = list(node.args)
    if (dtype := torch.result_type(*(operand.meta["val"] for operand in operands))) in (torch.float16, torch.bfloat16):
        _convert_operands(node, dtype)


def _convert_operands(node: torch.fx.Node, dtype: torch.dtype) -> None:
    with node.graph.inserting_before(node):
        for source in node.all_input_nodes:
            if _is_tensor(source) and source.meta["val"].dtype is not dtype:
                node.replace_input_with(source, _converted(source, dtype))


def _converted(source: Any, dtype: torch.dtype) -> torch.fx.Node:
    return call_like(source, _aten._to_copy.default, (source,), source.meta["val"].to(dtype), dtype=dtype)  # noqa: SLF001 - an operator's name


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
        return call_like(number, _aten.scalar_tensor.default, (number,), example, dtype=example.dtype)


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
