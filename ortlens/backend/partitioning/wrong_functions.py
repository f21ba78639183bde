"""Operators that stay in PyTorch because their ONNX functions, or ONNX Runtime, give other results, always or for some arguments.

The functions are those of onnxscript 0.7, `torch_lib/ops/`, and our own.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens.backend.basis import provenance
from ortlens.backend.basis.adaptive_windows import MOST_WINDOWS
from ortlens.backend.conversion.functions import numbers
from ortlens.backend.conversion.functions.numbers import follows_from_data, int_range
from ortlens.backend.conversion.functions.pooling import rounds_down
from ortlens.backend.conversion.functions.quotients import is_short_integer_power
from ortlens.backend.conversion.functions.reductions import MOST_PRODUCTS
from ortlens.backend.lowering.checks import may_raise
from ortlens.backend.lowering.type_promotion import fits, has_mixed_types, refused_booleans
from ortlens.backend.partitioning.rules import Call, Rule, by_target, first_reason, tensor_of
from ortlens.backend.partitioning.slow_functions import BAGS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_aten = torch.ops.aten
_FACTORS = ("alpha", "beta")
_CHECKING_FLOATS = (_aten.logit.default,)  # operators that convert what their schemas call a float, with the check
_UNCHECKED = frozenset({"other", "self", "element", "test_element", "correction", "p", "ord"})
"""Names of numbers that operators convert to the element type of the result without a check: they wrap, or become infinite."""
_HALVES = (torch.float16, torch.bfloat16)


def wrong_for(node: torch.fx.Node) -> str | None:
    """Describe what the ONNX function of a node does wrong for its arguments; None if it may go to ONNX Runtime."""
    return first_reason(_table(), node) or _refused_number(node) or numbers.missing(node)


def _is_unknown(name: str, call: Call) -> bool:
    return isinstance(call[name], (torch.SymInt, torch.SymFloat))


def _is_known_nothing(size: Any) -> bool:
    return isinstance(size, int) and not size


def _is_whole(call: Call) -> bool:
    value = call.tensor(0)
    return value is not None and not value.is_floating_point()


def _is_boolean(call: Call) -> bool:
    tensors = [value for value in map(tensor_of, call.node.args) if value is not None]
    return bool(tensors) and tensors[0].dtype is torch.bool


def _makes_booleans(call: Call) -> bool:
    return call.result is not None and call.result.dtype is torch.bool


def _is_integer(call: Call) -> bool:
    return not call["self"].dtype.is_floating_point


def _is_number(call: Call) -> bool:
    return not call["self"].dim()


def _lacks_elements(*names: str) -> Callable[[Call], bool]:
    return lambda call: any(0 in call[name].shape for name in names)


def _may_lack_elements(name: str) -> Callable[[Call], bool]:
    return lambda call: not statically_known_true(call[name].numel() > 0)


def _reads_index(call: Call) -> bool:
    return any(user.target is not operator.getitem or user.args[1] == 1 for user in call.node.users)


def _reads(outputs: range, call: Call) -> str | None:
    read = {user.args[1] for user in call.node.users if user.target is operator.getitem}
    return next((f"does not compute output {place}, which this graph reads" for place in outputs if place in read), None)


def _is_double(call: Call) -> bool:
    value = call.tensor(0)
    return value is not None and value.dtype is torch.float64 and bool(value.dim())


def _scales_otherwise(call: Call) -> bool:
    sizes = zip(call["self"].shape[-2:], call["output_size"], (call["scales_h"], call["scales_w"]), strict=True)
    return not all(scale is None or _is_ratio(scale, size, wanted) for size, wanted, scale in sizes)


def _may_be_one_column(call: Call) -> bool:
    """Tell whether the result may have one column and several rows, of which PyTorch's kernel repeats the first (torch 2.13)."""
    value = call.result
    return value is None or not (statically_known_true(value.shape[-1] != 1) or statically_known_true(value.shape[-2] == 1))


def _is_ratio(scale: Any, size: Any, wanted: Any) -> bool:
    return all(isinstance(number, (int, float)) for number in (scale, size, wanted)) and scale * size == wanted


def _convolution(call: Call) -> str | None:
    if 0 in call["weight"].shape:
        return "refuses images without channels"
    if not call["weight"].dtype.is_floating_point:
        return "takes floats only"
    if not all(isinstance(number, int) for name in ("stride", "padding", "dilation", "output_padding") for number in call[name]):
        return "needs known strides, paddings and dilations"
    if not isinstance(call["groups"], int):
        return "needs a known number of groups"
    if not call["transposed"]:
        return None
    strides = [*call["stride"]] * (len(call["output_padding"]) // max(len(call["stride"]), 1) or 1)
    larger = any(isinstance(extra, int) and extra >= step for extra, step in zip(call["output_padding"], strides, strict=False))
    return "needs an output_padding smaller than the stride" if larger else None


def _pool(dims: int, call: Call) -> str | None:
    if not call["ceil_mode"]:
        return None
    shape, dilation = call["self"].shape[-dims:], call.get("dilation", 1)
    down = rounds_down(shape, call["kernel_size"], call["stride"], call["padding"], dilation)
    if down is None:
        return "counts windows that begin in the padding"
    return "ignores divisor_override in smaller windows" if not down and call.get("divisor_override") is not None else None


def _has_many_windows(call: Call) -> bool:
    sizes, wanted = call["self"].shape, call["output_size"]
    return not all(isinstance(size, int) and size for size in (*sizes, *wanted)) or sum(wanted) > MOST_WINDOWS


def _has_many_products(call: Call) -> bool:
    shape = call["self"].shape
    return bool(shape) and not (isinstance(shape[call["dim"]], int) and shape[call["dim"]] <= MOST_PRODUCTS)


def _bins(call: Call) -> str | None:
    if not call["self"].dtype.is_floating_point:
        return "counts floats only"
    for name in ("min", "max", "bins"):
        if _is_unknown(name, call):
            return _needs_known(name)
    if not (math.isfinite(call["min"]) and math.isfinite(call["max"])):
        return "takes infinite bounds, which PyTorch refuses"
    return "needs bounds, which here follow from the data" if call["min"] == call["max"] else None


def _needs_known(name: str) -> str:
    return f"needs a known number as its argument {name}"


def _broadcasts_slices(call: Call) -> bool:
    added, to = list(call["source"].shape), list(call["self"].shape)
    if not to:
        return False
    place = call["dim"] % len(to)
    sizes = zip(to, added, strict=False)
    return len(added) != len(to) or not all(statically_known_true(size == other) for dim, (size, other) in enumerate(sizes) if dim != place)


_FIRST_FACTOR: Mapping[Any, int] = {
    **dict.fromkeys((_aten.mm.default, _aten.bmm.default, _aten.matmul.default, _aten.linear.default), 0),
    **dict.fromkeys((_aten.addmm.default, _aten.baddbmm.default), 1),
}
"""Products of matrices, and where the first of them is among the arguments."""


def _may_multiply_nothing(call: Call) -> bool:
    place = _FIRST_FACTOR[call.node.target]
    first, second = call.tensor(place), call.tensor(place + 1)
    if first is None or second is None or not first.dim():
        return False
    # Both have the size that is summed over; one may be known where the other is computed.
    summed = (first.shape[-1], second.shape[-1 if second.dim() == 1 or call.node.target is _aten.linear.default else -2])
    some = any(statically_known_true(size > 0) for size in summed) and all(statically_known_true(size > 0) for size in first.shape[:-2])
    return any(map(_is_known_nothing, first.shape)) or not some


def _divides_nothing(call: Call) -> bool:
    value = call.result
    return value is not None and not value.dtype.is_floating_point and 0 in value.shape and isinstance(call["other"], torch.Tensor)


def _may_pad_nothing(call: Call) -> bool:
    sizes = call["pad"]
    nothing = not any(isinstance(size, int) and size for size in sizes) and not all(isinstance(size, int) for size in sizes)
    return nothing and not call["self"].is_contiguous()


def _ends(name: str, call: Call) -> list[tuple[Any, ...]]:
    """List the sizes of dimensions that the example pads at one end and cuts at the other, with both amounts."""
    pad = [number.meta["val"] if isinstance(number, torch.fx.Node) else number for number in call[name]]
    ends = zip(reversed(call["self"].shape), pad[::2], pad[1::2], strict=False)
    return [(size, *both) for size, *both in ends if min(hints := [_torch.size_hint(end) for end in both]) < 0 < max(hints)]


def _may_cut_off_more(call: Call) -> bool:
    return not all(statically_known_true(size + end >= 0) for size, *ends in _ends("pad", call) for end in ends)


def _repeats_what_is_cut_off(call: Call) -> bool:
    """Tell whether an amount that follows from numbers is beside a negative one, which ONNX Runtime cuts off first."""
    return not all(isinstance(number, int) for number in call["padding"]) and bool(_ends("padding", call))


def _sums_at_indices(call: Call) -> str | None:
    if any(map(_is_known_nothing, (*call["values"].shape, *call["self"].shape))):
        return "fails where there is nothing to write"
    if not call["accumulate"]:
        return None
    places = [place for place, index in enumerate(call["indices"]) if index is not None]
    if places != list(range(places[0], places[-1] + 1)):
        return "adds at indices of neighbouring dimensions only"
    return "adds no floats of 16 bits" if call["self"].dtype in _HALVES else None


def _power(call: Call) -> bool:
    base = call.tensor(0)
    wrong = call.result is not None and not call.result.is_floating_point()
    return wrong and not (base is not None and is_short_integer_power(base, call.node.args[1]))


def _compared(call: Call) -> str | None:
    value, number = call.tensor(0), call.node.args[1]
    if value is None or value.dtype is torch.bool or value.is_floating_point() or value.is_complex() or not isinstance(number, int):
        return None
    return None if fits(number, value.dtype) else f"takes {number}, which is no {str(value.dtype).removeprefix('torch.')}"


def _filled(call: Call) -> str | None:
    """Describe a fill with a tensor of a wider element type, whose number PyTorch converts with a check; None for others."""
    value, number = call.tensor(0), call.tensor(2)
    if value is None or number is None or number.dtype in (value.dtype, torch.bool) or value.dtype is torch.bool or value.is_complex():
        return None
    held = _constant(call.node.args[2])
    if held is not None:
        return _refused(held, value.dtype)
    holds = torch.promote_types(number.dtype, value.dtype) is value.dtype and value.dtype is not torch.float16
    return None if holds else f"takes a {str(number.dtype).removeprefix('torch.')}, which PyTorch may refuse to convert"


def _reads_half_statistics(call: Call) -> bool:
    value, read = call.tensor(0), any(user.target is operator.getitem and user.args[1] for user in call.node.users)
    return value is not None and value.dtype is torch.float16 and read


def _hides_check(call: Call) -> bool:
    """Find a check whose result nobody reads, so that a model would not make it."""
    unread, waiting = {call.node}, [call.node.args[0]]
    while waiting:
        source = waiting.pop()
        if isinstance(source, torch.fx.Node) and source.op == "call_function" and unread.issuperset(source.users):
            if may_raise(source):
                return True
            unread.add(source)
            waiting += source.all_input_nodes
    return False


def _converts_one(call: Call) -> bool:
    value, other = map(tensor_of, call.node.args)
    return value is not None and other is not None and value.dtype is not other.dtype


def _converts_parameters(call: Call) -> bool:
    value, *rest = map(tensor_of, call.node.args)
    return value is not None and has_mixed_types(value, *rest)


def _converts_classes(call: Call) -> bool:
    classes = call.tensor(1)
    return classes is not None and classes.dtype not in (torch.int64, torch.uint8)


def _converts_weights(call: Call) -> bool:
    value, weight = call.tensor(0), call.tensor(2)
    return value is not None and weight is not None and weight.dtype is not value.dtype


def _takes_any_index(call: Call) -> bool:
    index = call.tensor(2)
    return index is not None and (index.dtype not in (torch.int64, torch.int32) or index.dim() > 1)


def _may_take_nothing(call: Call) -> bool:
    value, dim = call.tensor(0), call.node.args[1]
    size = value.shape[dim] if value is not None and value.dim() and isinstance(dim, int) else 1
    return follows_from_data(size) or _is_known_nothing(size)


def _takes_a_dimension_twice(call: Call) -> bool:
    given: Any = call.node.args[1]
    value, dims = call.tensor(0), [dim for dim in given if isinstance(dim, int)]
    return value is not None and len({dim % max(value.dim(), 1) for dim in dims}) < len(dims)


_REFUSED = ", which PyTorch refuses"
_POWERS = (_aten.pow.Tensor_Scalar, _aten.pow.Tensor_Tensor, _aten.pow.Scalar)
_INDEX_PUTS = (_aten.index_put.default, _aten._unsafe_index_put.default)  # noqa: SLF001 - a name
_ANTIALIASED = (_aten._upsample_bicubic2d_aa.default, _aten._upsample_bilinear2d_aa.default)  # noqa: SLF001 - names
_REFLECTION_PADS = (_aten.reflection_pad1d.default, _aten.reflection_pad2d.default, _aten.reflection_pad3d.default)
_REPEATING_PADS = (*_REFLECTION_PADS, _aten.replication_pad1d.default, _aten.replication_pad2d.default, _aten.replication_pad3d.default)
_ADAPTIVE = (_aten.adaptive_max_pool2d.default, _aten.adaptive_max_pool3d.default)
_POOLS = {
    1: (_aten.avg_pool1d.default,),
    2: (_aten.avg_pool2d.default, _aten.max_pool2d.default, _aten.max_pool2d_with_indices.default),
    3: (_aten.avg_pool3d.default, _aten.max_pool3d.default, _aten.max_pool3d_with_indices.default),
}
_GROUP_NORMS = (_aten.group_norm.default, _aten.instance_norm.default, _aten.native_group_norm.default)
_UNPOOLS = (_aten.max_unpool2d.default, _aten.max_unpool3d.default)
_SPREADS = (_aten.var.correction, _aten.std.correction, _aten.var_mean.correction, _aten.std_mean.correction)
_MEDIANS = (_aten.median.dim, _aten.nanmedian.dim)
_ATTENTIONS = (_aten._scaled_dot_product_efficient_attention.default, _aten._scaled_dot_product_flash_attention.default)  # noqa: SLF001 - names
_RANGES = (_aten.arange.default, _aten.arange.start, _aten.arange.start_step)
_LOSSES = (_aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default)
_INDEX_SELECT, _INDEX_ADD, _INDEX_REDUCE = (_aten.index_select.default,), (_aten.index_add.default,), (_aten.index_reduce.default,)

WRONG = (
    # structure: pools, convolutions, resampling, indices
    Rule(_ANTIALIASED, "rounds integers otherwise", _is_integer),  # PyTorch weighs with fixed points
    Rule(_ANTIALIASED, "places the corners elsewhere when it smooths", lambda call: call["align_corners"]),
    Rule(_ANTIALIASED, "takes the ratio of the sizes for the scale factor when it smooths", _scales_otherwise),
    Rule(_ANTIALIASED, "computes every row of a single column, where PyTorch repeats the first one", _may_be_one_column),
    Rule(_ADAPTIVE, f"pools integers{_REFUSED}", _is_integer),
    Rule(_ADAPTIVE, f"needs known sizes, and at most {MOST_WINDOWS} windows", _has_many_windows),
    *(Rule(targets, "", functools.partial(_pool, dims)) for dims, targets in _POOLS.items()),
    Rule((_aten.convolution.default,), "", _convolution),
    Rule(
        (_aten.blackman_window.default, _aten.hamming_window.default, _aten.hann_window.default),
        _needs_known("window_length"),
        functools.partial(_is_unknown, "window_length"),
    ),
    Rule((_aten.linalg_vector_norm.default,), _needs_known("ord"), functools.partial(_is_unknown, "ord")),
    Rule((_aten.constant_pad_nd.default, _aten.flip.default), "fails for tensors without dimensions", _is_number),
    Rule((_aten.constant_pad_nd.default,), _needs_known("value"), functools.partial(_is_unknown, "value")),
    Rule((_aten.constant_pad_nd.default,), "may pad nothing, and then keeps the order in memory", _may_pad_nothing),
    Rule((_aten.constant_pad_nd.default,), f"may cut off more elements than there are{_REFUSED}", _may_cut_off_more),
    Rule(_REPEATING_PADS, "repeats only what negative amounts leave, where PyTorch repeats what they cut off", _repeats_what_is_cut_off),
    Rule((_aten.cumprod.default,), f"multiplies at most {MOST_PRODUCTS} elements, whose number is known", _has_many_products),
    Rule((_aten.gather.default,), "does not check an index into a number", _is_number),
    Rule(
        (_aten.gather.default,),
        "needs an index of as many dimensions",
        lambda call: call["index"].dim() and call["self"].dim() != call["index"].dim(),
    ),
    Rule((_aten.grid_sampler_2d.default,), "fails where there is nothing to sample", _lacks_elements("input", "grid")),
    Rule((_aten.pixel_unshuffle.default,), "fails where there are no elements, and PyTorch keeps their shape", _lacks_elements("self")),
    Rule(_GROUP_NORMS, "ends the process for channels without elements", _lacks_elements("input")),
    Rule(
        (_aten.remainder.Tensor, _aten.fmod.Tensor, _aten.floor_divide.default, _aten.div.Tensor_mode),
        "raises for a zero by which nothing is divided",
        _divides_nothing,
    ),
    Rule((_aten.histc.default,), "", _bins),
    Rule((_aten.im2col.default, *_UNPOOLS, _aten.take.default), "fails on tensors without elements", _lacks_elements("self")),
    Rule(_INDEX_REDUCE, f"broadcasts slices{_REFUSED}", lambda call: call["source"].dim() != call["self"].dim()),
    Rule((*_INDEX_ADD, *_INDEX_REDUCE), f"broadcasts slices{_REFUSED}", _broadcasts_slices),
    Rule((*_INDEX_REDUCE, _aten.scatter_reduce.two), "has no reductions of booleans", lambda call: call["self"].dtype is torch.bool),
    Rule(
        (*_INDEX_REDUCE, _aten.scatter_reduce.two),
        "rounds the mean of integers otherwise",
        lambda call: call["reduce"] == "mean" and _is_integer(call),
    ),
    Rule((_aten.max.default, _aten.min.default), f"gives a number for no elements{_REFUSED}", _may_lack_elements("self")),
    Rule(
        tuple(_FIRST_FACTOR),
        "may have nothing to multiply, where ONNX Runtime fails or leaves results unwritten",
        _may_multiply_nothing,
    ),
    Rule((_aten.repeat_interleave.Tensor,), "gives nothing for no repeats, whatever size is asked for", _may_lack_elements("repeats")),
    Rule(_INDEX_PUTS, "", _sums_at_indices),
    Rule((_aten.nonzero.default,), "gives one number a dimension", _is_number),
    Rule((_aten.masked_scatter.default,), f"takes masks that are not boolean{_REFUSED}", lambda call: call["mask"].dtype is not torch.bool),
    # values, and element types that PyTorch refuses
    Rule(
        (_aten.add.Tensor, _aten.add.Scalar, _aten.sub.Tensor, _aten.sub.Scalar, *_POWERS),
        "",
        lambda call: refused_booleans(call.node),
    ),
    Rule(tuple(getattr(_aten, name).Scalar for name in ("eq", "ge", "gt", "le", "lt", "ne")), "", _compared),
    Rule(
        (
            *(_aten.argmax.default, _aten.argmin.default, _aten.relu.default, _aten.median.default, _aten.nanmedian.default, *_MEDIANS),
            *(_aten.floor.default, _aten.ceil.default, _aten.round.default, _aten.trunc.default, _aten.topk.default),
            *_REFLECTION_PADS,
        ),
        f"takes booleans{_REFUSED}",
        _is_boolean,
    ),
    Rule(
        (
            *(_aten.lerp.Scalar, _aten.lerp.Tensor, *_SPREADS, *_UNPOOLS, *_LOSSES),
            *(_aten._prelu_kernel.default, _aten.embedding_renorm.default, _aten.mse_loss.default),  # noqa: SLF001 - a name
            _aten.leaky_relu.default,
        ),
        f"takes whole numbers{_REFUSED}",
        _is_whole,
    ),
    Rule((_aten.im2col.default,), f"takes whole numbers{_REFUSED}", lambda call: _is_whole(call) and call["self"].dtype is not torch.bool),
    Rule(
        (_aten.avg_pool3d.default, _aten._upsample_bilinear2d_aa.default),  # noqa: SLF001 - a name
        f"takes float16{_REFUSED}",
        lambda call: (value := call.tensor(0)) is not None and value.dtype is torch.float16 and value.device.type == "cpu",
    ),
    Rule(
        (*_RANGES, _aten.clamp.default, _aten.clamp.Tensor, _aten.clamp_min.default, _aten.clamp_max.default),
        f"takes booleans{_REFUSED}",
        _makes_booleans,
    ),
    Rule(_LOSSES, f"converts classes{_REFUSED}", _converts_classes),
    Rule(_LOSSES, f"converts weights{_REFUSED}", _converts_weights),
    Rule((*_INDEX_SELECT, *_INDEX_ADD), f"takes any index{_REFUSED}", _takes_any_index),
    Rule((_aten.max.dim, _aten.min.dim), f"may take nothing{_REFUSED}", _may_take_nothing),
    Rule(
        (
            _aten._native_batch_norm_legit_no_training.default,  # noqa: SLF001 - a name
            _aten._native_batch_norm_legit_functional.default,  # noqa: SLF001 - same
            _aten._native_batch_norm_legit.no_stats,  # noqa: SLF001 - same
            _aten.native_group_norm.default,
        ),
        f"converts parameters{_REFUSED}",
        _converts_parameters,
    ),
    Rule(  # they read the sizes of their first argument, and not its values
        (
            *(_aten.copy.default, _aten.fill.Scalar, _aten.fill.Tensor, _aten.zeros_like.default, _aten.ones_like.default),
            *(_aten.full_like.default, _aten.empty_like.default, _aten.new_zeros.default, _aten.new_ones.default),
            *(_aten.new_full.default, _aten.new_empty.default),
        ),
        "does not compute what it takes the sizes of, and so does not check it",
        _hides_check,
    ),
    Rule((_aten.heaviside.default,), f"converts one argument{_REFUSED}", _converts_one),
    Rule((_aten.squeeze.dims,), f"takes a dimension twice{_REFUSED}", _takes_a_dimension_twice),
    Rule((_aten.addr.default, _aten.prod.dim_int, _aten.prod.default), "multiplies no booleans", _makes_booleans),
    Rule((_aten.erfc.default, _aten.special_erfc.default), "is 1 - erf(x), which is 0 from 4 on"),
    Rule((_aten.special_erfcx.default,), "is exp(x * x) * (1 - erf(x)), which is 0 from 4 on"),
    Rule(_POWERS, "computes powers of integers through floats, and does not wrap", _power),
    Rule((*_MEDIANS, _aten.kthvalue.default), "takes another of equal elements, and this graph reads its index", _reads_index),
    Rule((_aten.native_layer_norm.default,), "gives means in float32, and this graph reads them in float16", _reads_half_statistics),
    Rule((_aten.sort.default, _aten.sort.stable, _aten.topk.default), "takes NaN in float64 for any value", _is_double),
    Rule((_aten.masked_fill.Tensor,), "", _filled),
    Rule((_aten.logcumsumexp.default,), "overflows, or loses what is small beside the largest"),
    # outputs that the functions fill with constants, marked as faked in torchlib; inference never reads them
    *(
        Rule(targets, "", functools.partial(_reads, range(1, outputs)))
        for outputs, targets in {
            2: (*_ADAPTIVE, _aten.nll_loss_forward.default),
            3: (_aten._linalg_det.default, _aten._native_batch_norm_legit_no_training.default),  # noqa: SLF001 - names
            4: BAGS,
            9: _ATTENTIONS,
        }.items()
    ),
)
"""In the order in which they are asked."""


@functools.cache
def _table() -> Mapping[Any, Sequence[Rule]]:
    return by_target(WRONG)


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
