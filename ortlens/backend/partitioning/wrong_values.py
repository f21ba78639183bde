"""Operators whose values ONNX Runtime computes otherwise than PyTorch, for some arguments, and no exact and fast ONNX form is known."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens.backend.conversion.functions.quotients import is_short_integer_power
from ortlens.backend.conversion.int_ranges import follows_from_data, int_range
from ortlens.backend.lowering import provenance
from ortlens.backend.lowering.checks import may_raise
from ortlens.backend.lowering.type_promotion import fits, has_mixed_types, refused_booleans

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_SUMS = (_aten.add.Tensor, _aten.add.Scalar, _aten.sub.Tensor, _aten.sub.Scalar)
_COMPARISONS = tuple(getattr(_aten, name).Scalar for name in ("eq", "ge", "gt", "le", "lt", "ne"))
_RANGES = (_aten.arange.default, _aten.arange.start, _aten.arange.start_step)
_FACTORS = ("alpha", "beta")
_CHECKING_FLOATS = (_aten.logit.default,)
"""Operators that convert what their schemas call a float, with the check."""
_UNCHECKED = frozenset({"other", "self", "element", "test_element", "correction", "p", "ord"})
"""Names of numbers that operators convert to the element type of the result without a check: they wrap, or become infinite."""


def wrong_values(node: torch.fx.Node) -> str | None:
    """Describe what ONNX Runtime would compute differently, or None."""
    check = _checks().get(node.target)
    return (None if check is None else check(node)) or _refused_number(node)


def _always(reason: str) -> Callable[[torch.fx.Node], str | None]:
    return lambda _: reason


def _tensor(value: Any) -> torch.Tensor | None:
    held = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    return held if isinstance(held, torch.Tensor) else None


def _power(node: torch.fx.Node) -> str | None:
    result, base = _tensor(node), _tensor(node.args[0])
    if refused := refused_booleans(node):
        return refused
    if result is None or result.is_floating_point() or (base is not None and is_short_integer_power(base, node.args[1])):
        return None
    return "computes powers of integers through floats, and does not wrap"


def _refused_number(node: torch.fx.Node) -> str | None:
    """Describe a number beyond the range of the result's type, on which PyTorch raises, or may; None if there is none."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype is torch.bool or value.is_complex():
        return None
    for place, name in _checked_numbers(node.target):
        argument = node.args[place] if place < len(node.args) else node.kwargs.get(name)
        held = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument
        wraps = name in _FACTORS and _is_negative_beside(held, value.dtype)
        if held is not None and not wraps and (refused := _refused(held, value.dtype)):
            return refused
    return None


def _is_negative_beside(factor: object, dtype: torch.dtype) -> bool:
    """Tell whether a factor is negative beside an unsigned element type, where it wraps."""
    return isinstance(factor, int) and not dtype.is_signed and -torch.iinfo(dtype).max <= factor < 0


@functools.cache
def _checked_numbers(target: Any) -> tuple[tuple[int, str], ...]:
    """List places and names of the numbers that an operator refuses where the element type of the result cannot hold them."""
    schema = getattr(target, "_schema", None)
    arguments = () if schema is None or target in _RANGES else schema.arguments
    kinds = ("NumberType", "FloatType") if target in _CHECKING_FLOATS else ("NumberType",)
    return tuple((place, each.name) for place, each in enumerate(arguments) if each.name not in _UNCHECKED and _kind(each.type) in kinds)


def _kind(declared: Any) -> str:
    return str((declared.getElementType() if declared.kind() == "OptionalType" else declared).kind())


def _refused(number: object, dtype: torch.dtype) -> str | None:
    """Describe why PyTorch raises, or may, when it converts a number to an element type; None if it does not."""
    short = str(dtype).removeprefix("torch.")
    if isinstance(number, (int, float)):
        return None if fits(number, dtype) else f"takes {number}, which PyTorch refuses to convert to {short}"
    if dtype not in (torch.float32, torch.float64) and not _always_fits(number, dtype):
        return f"takes a number that may be beyond {short}, which PyTorch refuses to convert"
    return None


def _compared(node: torch.fx.Node) -> str | None:
    value, number = _tensor(node.args[0]), node.args[1]
    if value is None or value.dtype is torch.bool or value.is_floating_point() or value.is_complex() or not isinstance(number, int):
        return None
    return None if fits(number, value.dtype) else f"takes {number}, which is no {str(value.dtype).removeprefix('torch.')}"


def _filled(node: torch.fx.Node) -> str | None:
    """Describe a fill with a tensor of a wider element type, whose number PyTorch converts with a check; None for others."""
    value, number = _tensor(node.args[0]), _tensor(node.args[2])
    if value is None or number is None or number.dtype in (value.dtype, torch.bool) or value.dtype is torch.bool or value.is_complex():
        return None
    held = _constant(node.args[2])
    if held is not None:
        return _refused(held, value.dtype)
    holds = torch.promote_types(number.dtype, value.dtype) is value.dtype and value.dtype is not torch.float16
    return None if holds else f"takes a {str(number.dtype).removeprefix('torch.')}, which PyTorch may refuse to convert"


def _constant(node: Any) -> int | float | None:
    """Find the number in a tensor without dimensions, if it is the same in every call."""
    while node.target is _aten.lift_fresh_copy.default:
        (node,) = node.args
    if node.target in (_aten.scalar_tensor.default, _aten.full.default):
        number = node.args[-1]
    else:
        tensor = provenance.attribute_of(node)
        number = tensor.item() if type(tensor) is torch.Tensor else None
    return number if isinstance(number, (int, float)) else None


def _always_fits(number: object, dtype: torch.dtype) -> bool:
    bounds = int_range(number) if isinstance(number, torch.SymInt) else None
    return bounds is not None and all(fits(bound, dtype) for bound in bounds)


def _double(node: torch.fx.Node) -> str | None:
    value = _tensor(node.args[0])
    return "takes NaN in float64 for any value" if value is not None and value.dtype is torch.float64 and value.dim() else None


def _index(node: torch.fx.Node) -> str | None:
    read = any(user.target is not operator.getitem or user.args[1] == 1 for user in node.users)
    return "takes another of equal elements, and this graph reads its index" if read else None


def _statistics(node: torch.fx.Node) -> str | None:
    value, read = _tensor(node.args[0]), any(user.target is operator.getitem and user.args[1] for user in node.users)
    half = value is not None and value.dtype is torch.float16
    return "gives means in float32, and this graph reads them in float16" if half and read else None


def _gamma(node: torch.fx.Node) -> str | None:
    if isinstance(node.args[0], int) and node.args[0] > 1:
        return "is known for n = 0 and 1 only: the others need the zeta function"
    value = _tensor(node)
    return "has fewer digits than float64" if value is not None and value.dtype is torch.float64 else None


def _boolean(node: torch.fx.Node) -> str | None:
    tensors = [value for value in map(_tensor, node.args) if value is not None]
    return "takes booleans, which PyTorch refuses" if any(value.dtype is torch.bool for value in tensors[:1]) else None


def _multiplied(node: torch.fx.Node) -> str | None:
    result = _tensor(node)
    return "multiplies no booleans" if result is not None and result.dtype is torch.bool else None


def _between_booleans(node: torch.fx.Node) -> str | None:
    result = _tensor(node)
    return "takes booleans, which PyTorch refuses" if result is not None and result.dtype is torch.bool else None


def _whole(node: torch.fx.Node) -> str | None:
    value = _tensor(node.args[0])
    return "takes whole numbers, which PyTorch refuses" if value is not None and not value.is_floating_point() else None


def _integers(node: torch.fx.Node) -> str | None:
    value = _tensor(node.args[0])
    return None if value is None or value.dtype is torch.bool else _whole(node)


def _half(node: torch.fx.Node) -> str | None:
    value = _tensor(node.args[0])
    refused = value is not None and value.dtype is torch.float16 and value.device.type == "cpu"
    return "takes float16, which PyTorch refuses" if refused else None


def _hides_check(node: torch.fx.Node) -> str | None:
    """Find a check whose result nobody reads, so that a model would not make it."""
    unread, waiting = {node}, [node.args[0]]
    while waiting:
        source = waiting.pop()
        if isinstance(source, torch.fx.Node) and source.op == "call_function" and unread.issuperset(source.users):
            if may_raise(source):
                return "does not compute what it takes the sizes of, and so does not check it"
            unread.add(source)
            waiting += source.all_input_nodes
    return None


def _mixed(node: torch.fx.Node) -> str | None:
    value, other = map(_tensor, node.args)
    mixed = value is not None and other is not None and value.dtype is not other.dtype
    return "converts one argument, which PyTorch refuses" if mixed else None


def _parameters(node: torch.fx.Node) -> str | None:
    value, *rest = map(_tensor, node.args)
    return "converts parameters, which PyTorch refuses" if value is not None and has_mixed_types(value, *rest) else None


def _weighted(node: torch.fx.Node) -> str | None:
    value, classes, weight, *_ = map(_tensor, node.args)
    if classes is not None and classes.dtype not in (torch.int64, torch.uint8):
        return "converts classes, which PyTorch refuses"
    return (
        "converts weights, which PyTorch refuses" if value is not None and weight is not None and weight.dtype is not value.dtype else None
    )


def _rows(node: torch.fx.Node) -> str | None:
    index = _tensor(node.args[2])
    refused = index is not None and (index.dtype not in (torch.int64, torch.int32) or index.dim() > 1)
    return "takes any index, which PyTorch refuses" if refused else None


def _nothing(node: torch.fx.Node) -> str | None:
    value = _tensor(node.args[0])
    size = value.shape[node.args[1]] if value is not None and value.dim() and isinstance(node.args[1], int) else 1
    return "may take nothing, which PyTorch refuses" if follows_from_data(size) or (isinstance(size, int) and not size) else None


def _twice(node: torch.fx.Node) -> str | None:
    given: Any = node.args[1]
    value, dims = _tensor(node.args[0]), [dim for dim in given if isinstance(dim, int)]
    twice = value is not None and len({dim % max(value.dim(), 1) for dim in dims}) < len(dims)
    return "takes a dimension twice, which PyTorch refuses" if twice else None


_OF_SIZES = (
    *(_aten.copy.default, _aten.fill.Scalar, _aten.fill.Tensor, _aten.zeros_like.default, _aten.ones_like.default),
    *(_aten.full_like.default, _aten.empty_like.default, _aten.new_zeros.default, _aten.new_ones.default),
    *(_aten.new_full.default, _aten.new_empty.default),
)
"""Operators that read the sizes of their first argument, and not its values."""


def _first(*checks: Callable[[torch.fx.Node], str | None]) -> Callable[[torch.fx.Node], str | None]:
    return lambda node: next(filter(None, (check(node) for check in checks)), None)


_OF_NUMBERS = (
    *(_aten.argmax.default, _aten.argmin.default, _aten.relu.default, _aten.median.default, _aten.nanmedian.default),
    *(_aten.floor.default, _aten.ceil.default, _aten.round.default, _aten.trunc.default),
    *(_aten.reflection_pad1d.default, _aten.reflection_pad2d.default, _aten.reflection_pad3d.default),
)
"""Operators whose kernels refuse booleans."""
_OF_FLOATS = (
    *(_aten.lerp.Scalar, _aten.lerp.Tensor, _aten.var.correction, _aten.var_mean.correction),
    *(_aten.max_unpool2d.default, _aten.max_unpool3d.default, _aten.leaky_relu.default),
    *(_aten._prelu_kernel.default, _aten.embedding_renorm.default, _aten.mse_loss.default),  # noqa: SLF001 - a name
)
"""Operators whose kernels refuse whole numbers."""
_OF_WIDE = (_aten.avg_pool3d.default, _aten._upsample_bilinear2d_aa.default)  # noqa: SLF001 - a name
"""Operators whose kernels for the CPU refuse float16."""


@functools.cache
def _checks() -> dict[Any, Callable[[torch.fx.Node], str | None]]:
    return {
        **dict.fromkeys(_SUMS, refused_booleans),
        **dict.fromkeys(_COMPARISONS, _compared),
        **dict.fromkeys(_OF_NUMBERS, _boolean),
        **dict.fromkeys(_OF_FLOATS, _whole),
        **dict.fromkeys(_OF_WIDE, _half),
        **dict.fromkeys(_RANGES, _between_booleans),
        **dict.fromkeys((_aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default), _first(_whole, _weighted)),
        **dict.fromkeys((_aten.index_select.default, _aten.index_add.default), _rows),
        **dict.fromkeys((_aten.max.dim, _aten.min.dim), _nothing),
        _aten._native_batch_norm_legit_no_training.default: _parameters,  # noqa: SLF001 - a name
        _aten._native_batch_norm_legit_functional.default: _parameters,  # noqa: SLF001 - same
        _aten._native_batch_norm_legit.no_stats: _parameters,  # noqa: SLF001 - same
        _aten.native_group_norm.default: _parameters,
        **dict.fromkeys(_OF_SIZES, _hides_check),
        _aten.heaviside.default: _mixed,
        _aten.squeeze.dims: _twice,
        **dict.fromkeys((_aten.clamp.default, _aten.clamp.Tensor, _aten.clamp_min.default, _aten.clamp_max.default), _between_booleans),
        _aten.addr.default: _multiplied,
        _aten.prod.dim_int: _multiplied,
        _aten.prod.default: _multiplied,
        _aten.erfc.default: _always("is 1 - erf(x), which is 0 from 4 on"),
        _aten.special_erfc.default: _always("is 1 - erf(x), which is 0 from 4 on"),
        _aten.special_erfcx.default: _always("is exp(x * x) * (1 - erf(x)), which is 0 from 4 on"),
        _aten.pow.Tensor_Scalar: _power,
        _aten.pow.Tensor_Tensor: _power,
        _aten.pow.Scalar: _power,
        _aten.median.dim: _first(_boolean, _index),
        _aten.nanmedian.dim: _first(_boolean, _index),
        _aten.im2col.default: _integers,
        _aten.kthvalue.default: _index,
        _aten.native_layer_norm.default: _statistics,
        _aten.sort.default: _double,
        _aten.sort.stable: _double,
        _aten.topk.default: _first(_boolean, _double),
        _aten.lgamma.default: _gamma,
        _aten.digamma.default: _gamma,
        _aten.polygamma.default: _gamma,
        torch.ops.prims.lgamma.default: _gamma,
        torch.ops.prims.digamma.default: _gamma,
        _aten.masked_fill.Tensor: _filled,
        _aten.logcumsumexp.default: _always("overflows, or loses what is small beside the largest"),
    }
