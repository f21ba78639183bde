"""How long kernels take in PyTorch and in ONNX Runtime, on the CPU: which operators, and which partitions, are faster in PyTorch.

The times are ns per number on one thread, of 1024 x 1024 numbers, by `benchmarks/bench_operators.py` (AMD EPYC, torch 2.13.0, onnxruntime
1.31.1); those of `_ACROSS` and `_IN_PARTS` by single calls on a Xeon, these divided by how much longer it takes to add. They decide alone,
so that the same program is partitioned in the same way everywhere; what they do not know goes to ONNX Runtime.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ortlens import _torch
from ortlens._versions import SupportedRange, installed
from ortlens.backend.basis import provenance
from ortlens.backend.lowering.wholes import STAYS
from ortlens.backend.operators.facts import Call
from ortlens.backend.partitioning.plan import NodeKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import TypeAlias

    Row: TypeAlias = "Ns | Callable[[Call], Ns | None]"  # the times of one number; None where they are not known

_aten, _prims = torch.ops.aten, torch.ops.prims


class Ns(NamedTuple):
    """Times in ns, of one number or of a whole call."""

    torch: float
    ort: float


_LEAST_LOSS_NS = 100_000
"""A loss from which on two partitions, with PyTorch between them, are faster than one."""
_LEAST_PARTITION_LOSS_NS = 10_000
"""A loss from which on a whole partition stays in PyTorch: below it, the times are not known well enough."""
_ENTRY_NS = 15_000
"""What a session takes that computes nothing."""
_COPIED_NS = 0.125  # of a number that is copied
_CALL = Ns(1_500, 700)  # of any operator, in a call
_FEW_BYTES = 1 << 14
"""An operator that reads and writes so little takes about as long in both, whatever it is."""


def _sizes(tensor: torch.Tensor) -> list[int]:
    """List the sizes of a tensor, with hints for those that vary: to compare symbols would add guards."""
    return list(map(_torch.size_hint, tensor.shape))


def _has_gaps(tensor: torch.Tensor) -> bool:
    """Tell whether numbers of the last dimension do not lie one after the other."""
    return tensor.dim() > 0 and _torch.size_hint(tensor.stride(-1)) != 1


def _is_innermost(call: Call) -> bool:
    """Tell whether an operator works along the last dimensions, all of them counting as such."""
    dim, x = call.get("dim", call.get("dims")), call.result if call.tensor(0) is None else call.tensor(0)
    if x is None or dim is None or dim == []:
        return x is not None
    dims = sorted(d % x.dim() for d in (dim if isinstance(dim, (list, tuple)) else [dim])) if x.dim() else []
    return dims == list(range(x.dim() - len(dims), x.dim()))


def _along(innermost: Ns, others: Ns | None = None) -> Callable[[Call], Ns | None]:
    """Make a row of which the times depend on the dimension that an operator works along."""
    return lambda call: innermost if _is_innermost(call) else others


def _place(call: Call) -> Ns:
    if call["dim"] is None:
        return Ns(0.83, 1.2)
    return Ns(0.91, 2.1) if _is_innermost(call) else Ns(3.1, 8.7)


def _power(call: Call) -> Ns | None:
    exponent = call["exponent"]
    return _POWERS.get(float(exponent), Ns(2.55, 4.7)) if isinstance(exponent, (int, float)) else None


_POWERS = {
    -1.0: Ns(0.12, 0.23),
    -0.5: Ns(0.28, 0.6),
    0.5: Ns(0.43, 0.39),
    1.0: Ns(0.09, 0.12),
    2.0: Ns(0.1, 0.35),
    3.0: Ns(0.1, 0.44),
    4.0: Ns(2.6, 0.3),
}
"""Exponent -> times."""


def _euclidean(call: Call) -> Ns | None:
    order = call["ord"]
    if not isinstance(order, (int, float)):  # a number that varies
        return None
    if order == 2 and _is_innermost(call):  # noqa: PLR2004 - the usual norm
        return Ns(0.1, 0.45 if call["dim"] is None else 0.81)
    return {1: Ns(0.92, 0.84), 2: Ns(3.5, 3.6), math.inf: Ns(2.7, 0.69)}.get(order)


def _of_two(together: Ns, spread: Ns, scalar: Ns) -> Callable[[Call], Ns]:
    """Make a row of arithmetic: on two tensors of one size, on one that is spread over the other, and on a number."""

    def row(call: Call) -> Ns:
        result, sizes = call.result, [_sizes(tensor) for tensor in map(call.tensor, (0, 1)) if tensor is not None]
        if len(sizes) < 2 or any(not size for size in sizes):  # noqa: PLR2004 - both operands
            return scalar
        return together if result is not None and all(size == _sizes(result) for size in sizes) else spread

    return row


def _copy(call: Call) -> Ns:
    """Give the time of a copy. ONNX Runtime makes it where it makes a view in another order, and else for results alone."""
    value, source, users = call.tensor(0), call.node.args[0], call.node.users
    strides = value is not None and _has_gaps(value)
    is_result = isinstance(source, torch.fx.Node) and source.op == "placeholder" and all(user.op == "output" for user in users)
    return Ns(0.5 if strides else 0.09, 0.125 if is_result else 0.0)


def _part(call: Call) -> Ns:
    return Ns(0.0, 0.13 if _torch.size_hint(call["step"]) == 1 else 1.0)


def _reordered(call: Call) -> Ns:
    """Give the time of a view in another order, which PyTorch makes at once and ONNX Runtime by a copy."""
    value = call.result
    return Ns(0.0, 0.8) if value is not None and _has_gaps(value) else Ns(0.0, 0.17)


@functools.cache
def _choice() -> Ns:
    """Give the time of a choice. PyTorch takes 0.6 to 3.5 ns, the less it is random; ONNX Runtime 0.4, and from 1.32 on 1.1 to 7.6."""
    return Ns(1.0, 2.0 if SupportedRange(low=(1, 32)).holds(installed()["onnxruntime"]) else 1.0)


def _conversion(call: Call) -> Ns:
    given, made = call.tensor(0), call.result
    return _CONVERSIONS.get((given.dtype, made.dtype), Ns(0.15, 0.18)) if given is not None and made is not None else Ns(0.15, 0.18)


_CONVERSIONS = {
    (torch.bool, torch.float32): Ns(0.55, 0.16),
    (torch.bool, torch.int64): Ns(0.13, 0.36),
    (torch.float32, torch.bool): Ns(0.056, 0.073),
    (torch.float32, torch.float16): Ns(0.073, 0.084),
    (torch.float32, torch.float64): Ns(0.2, 0.28),
    (torch.float32, torch.int32): Ns(0.092, 0.129),
    (torch.float32, torch.int64): Ns(0.5, 0.57),
    (torch.float64, torch.float32): Ns(0.16, 0.2),
    (torch.int64, torch.float32): Ns(0.29, 0.32),
}


_ARITHMETIC = _of_two(Ns(0.16, 0.2), Ns(0.1, 0.165), Ns(0.105, 0.127))
_DIVISION = _of_two(Ns(0.163, 0.245), Ns(0.11, 0.245), Ns(0.112, 0.236))
_COMPARISONS = tuple(
    overload for packet in (_aten.eq, _aten.ge, _aten.gt, _aten.le, _aten.lt, _aten.ne) for overload in (packet.Scalar, packet.Tensor)
)

_ACROSS = Ns(1.1, 5.0)
"""A softmax, or its logarithm, over another dimension than the last; of images ONNX Runtime takes 3.8 to 12 ns."""

_APART: Mapping[Any, Row] = {
    **dict.fromkeys((_aten.amax.default, _aten.amin.default), _along(Ns(0.05, 0.42), Ns(0.11, 1.5))),
    **dict.fromkeys((_aten.argmax.default, _aten.argmin.default), _place),
    _aten.atan2.default: Ns(1.4, 13.3),
    _aten.atanh.default: Ns(1.3, 19.5),
    _aten.bucketize.Tensor: Ns(19.0, 67.0),
    _aten.celu.default: Ns(1.4, 2.8),
    _aten.ceil.default: Ns(0.1, 0.34),
    _aten.cos.default: Ns(1.3, 2.1),
    _aten.cosh.default: Ns(1.3, 7.7),
    _aten.cumsum.default: _along(Ns(0.95, 3.5), Ns(4.8, 0.6)),
    _aten.dot.default: Ns(0.09, 2.4),
    _aten.elu.default: Ns(1.4, 2.9),
    _aten.exp2.default: Ns(0.28, 4.4),
    _aten.flip.default: _along(Ns(0.1, 1.1), Ns(0.1, 0.13)),
    _aten.floor.default: Ns(0.09, 0.3),
    _aten.floor_divide.default: Ns(1.9, 10.2),
    _aten.fmod.Scalar: Ns(1.2, 5.9),
    _aten.fmod.Tensor: Ns(1.2, 5.9),
    _aten.frac.default: Ns(0.1, 2.0),
    _aten.gather.default: Ns(0.8, 1.7),
    _aten.huber_loss.default: Ns(0.19, 1.4),
    _aten.hypot.default: Ns(1.1, 5.3),
    _aten.im2col.default: Ns(1.4, 8.5),
    _aten.index_select.default: lambda call: Ns(0.055, 0.075) if call["dim"] == 0 else Ns(0.23, 4.3),
    _aten.lerp.Scalar: Ns(0.17, 0.68),
    _aten.linalg_vector_norm.default: _euclidean,
    _aten.log.default: Ns(1.03, 1.6),
    _aten.log10.default: Ns(1.1, 7.6),
    _aten.log1p.default: Ns(0.8, 5.4),
    _aten.log2.default: Ns(1.0, 10.4),
    _aten.logaddexp.default: Ns(1.6, 7.5),
    **dict.fromkeys((_aten.max.default, _aten.min.default), Ns(0.1, 0.45)),
    **dict.fromkeys((_aten.max.dim, _aten.min.dim), _along(Ns(0.89, 2.2), Ns(3.4, 9.0))),
    _aten.log_sigmoid_forward.default: Ns(1.5, 6.0),
    _aten.nan_to_num.default: Ns(0.11, 2.3),
    _aten.median.dim: Ns(13.0, 20.0),
    _aten.mish.default: Ns(3.9, 11.9),
    _aten.pixel_unshuffle.default: Ns(1.7, 3.8),
    _aten.prelu.default: Ns(0.2, 4.8),
    _aten._prelu_kernel.default: Ns(0.2, 4.8),  # noqa: SLF001 - an operator's name
    _aten.prod.dim_int: _along(Ns(0.05, 0.84)),
    _aten.remainder.Scalar: Ns(1.35, 7.5),
    _aten.remainder.Tensor: Ns(1.35, 7.5),
    _aten.roll.default: Ns(0.11, 0.33),
    _aten.sign.default: Ns(0.11, 2.0),
    _aten.sin.default: Ns(1.25, 2.1),
    _aten.sinh.default: Ns(1.4, 18.0),
    _aten.smooth_l1_loss.default: Ns(0.2, 1.4),
    _aten.softplus.default: Ns(1.5, 12.7),
    _aten.softshrink.default: Ns(0.11, 2.9),
    _aten.hardshrink.default: Ns(0.09, 0.6),
    _aten.sort.default: _along(Ns(48.0, 64.0)),
    _aten.sort.stable: _along(Ns(48.0, 64.0)),
    _aten._softmax.default: lambda call: None if _is_innermost(call) else _ACROSS,  # noqa: SLF001 - an operator's name
    _aten._log_softmax.default: lambda call: None if _is_innermost(call) else _ACROSS,  # noqa: SLF001 - same
    _aten.tan.default: Ns(1.8, 12.9),
    _aten.threshold.default: Ns(0.12, 0.73),
    _aten.topk.default: _along(Ns(1.9, 3.9)),
}
"""Operators that leave a partition, wherever they are in it, if that loses `_LEAST_LOSS_NS`; float32. None of them is part of what ONNX
Runtime fuses."""

_TOGETHER: Mapping[Any, Row] = {
    _aten.abs.default: Ns(0.1, 0.128),
    _aten.acos.default: Ns(1.9, 0.68),
    _aten.acosh.default: Ns(15.5, 15.9),
    **dict.fromkeys(_COMPARISONS, Ns(0.42, 0.18)),
    **dict.fromkeys((_aten.add.Scalar, _aten.sub.Scalar, _aten.mul.Scalar), Ns(0.107, 0.127)),
    **dict.fromkeys((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor), _ARITHMETIC),
    _aten.addcdiv.default: Ns(0.17, 0.48),
    _aten.addcmul.default: Ns(0.17, 0.48),
    _aten.asin.default: Ns(1.8, 1.2),
    _aten.asinh.default: Ns(22.7, 23.4),
    _aten.atan.default: Ns(2.4, 1.0),
    _aten.cat.default: _along(Ns(0.12, 0.176), Ns(0.158, 0.197)),
    _aten.clamp.default: Ns(0.096, 0.134),
    _aten.clamp_max.default: Ns(0.096, 0.17),
    _aten.clamp_min.default: Ns(0.096, 0.17),
    _aten.constant_pad_nd.default: Ns(0.16, 0.27),
    _aten.reflection_pad2d.default: Ns(0.16, 0.29),
    _aten.replication_pad2d.default: Ns(0.16, 0.27),
    _aten.div.Tensor: _DIVISION,
    _aten.div.Scalar: Ns(0.112, 0.236),
    _aten.embedding.default: Ns(0.11, 0.19),
    _aten.erf.default: Ns(1.3, 1.42),
    _aten.exp.default: Ns(0.82, 0.21),
    _aten.expm1.default: Ns(1.2, 1.15),
    # ONNX Runtime has one kernel for the approximation, of 0.7 ns, but does not fuse what the model returns.
    _aten.gelu.default: lambda call: Ns(1.7, 1.9) if call["approximate"] == "tanh" else Ns(0.47, 0.68),
    _aten.glu.default: Ns(0.235, 0.4),
    _aten.hardsigmoid.default: Ns(0.12, 0.16),
    _aten.hardswish.default: Ns(0.13, 0.33),
    _aten.hardtanh.default: Ns(0.095, 0.12),
    _aten.index.Tensor: Ns(0.55, 0.17),
    _aten.isinf.default: Ns(0.73, 0.18),
    _aten.isnan.default: Ns(0.6, 0.15),
    _aten.leaky_relu.default: Ns(0.1, 0.176),
    _aten.logit.default: Ns(3.4, 2.3),
    _aten.logsumexp.default: Ns(1.13, 0.96),
    _aten._log_softmax.default: _along(Ns(0.59, 0.33), _ACROSS),  # noqa: SLF001 - an operator's name
    _aten.masked_fill.Scalar: Ns(1.2, 0.46),
    _aten.maximum.default: Ns(0.16, 0.2),
    _aten.minimum.default: Ns(0.16, 0.2),
    _aten.mean.dim: _along(Ns(0.048, 0.094), Ns(0.1, 0.09)),
    _aten.mse_loss.default: Ns(0.19, 0.41),
    _aten.native_group_norm.default: Ns(0.27, 0.67),
    _aten.native_layer_norm.default: lambda call: Ns(0.53, 0.6) if call["weight"] is None else Ns(0.3, 0.51),
    _aten._native_batch_norm_legit_no_training.default: Ns(0.17, 0.16),  # noqa: SLF001 - same
    _aten.neg.default: Ns(0.09, 0.117),
    _aten.pow.Tensor_Scalar: _power,
    _aten.pow.Tensor_Tensor: Ns(2.55, 4.7),
    _aten.reciprocal.default: Ns(0.105, 0.23),
    _aten.relu.default: Ns(0.09, 0.118),
    _aten.repeat.default: Ns(0.09, 0.13),
    _aten.round.default: Ns(0.09, 0.22),
    _aten.rsqrt.default: Ns(0.28, 0.6),
    _aten.sigmoid.default: Ns(0.41, 0.66),
    _aten.silu.default: Ns(0.41, 0.31),
    _aten.sinc.default: Ns(9.2, 3.9),
    _aten._softmax.default: _along(Ns(0.59, 0.34), _ACROSS),  # noqa: SLF001 - same
    _aten.sqrt.default: Ns(0.42, 0.38),
    _aten.stack.default: _along(Ns(1.6, 0.49), Ns(0.156, 0.18)),
    _aten.sum.default: Ns(0.045, 0.095),
    _aten.sum.dim_IntList: _along(Ns(0.045, 0.095), Ns(0.14, 0.1)),
    _aten.tanh.default: Ns(2.5, 0.58),
    _aten.tril.default: Ns(0.36, 0.17),
    _aten.triu.default: Ns(0.36, 0.17),
    _aten.trunc.default: Ns(3.65, 1.8),
    **dict.fromkeys((_aten.var.correction, _aten.std.correction, _aten.var_mean.correction), Ns(5.6, 1.1)),
    _aten.where.self: lambda _: _choice(),
    _aten.xlogy.Tensor: Ns(3.1, 3.7),
}
"""Others of float32, which count where all of a partition stays in PyTorch."""

_IN_PARTS: Mapping[Any, Row] = {
    target: Ns(torch_ns, math.inf)
    for target, torch_ns in {
        _aten.gelu_backward.default: 0.45,
        _aten.huber_loss_backward.default: 0.22,
        _aten.leaky_relu_backward.default: 0.16,
        _aten._log_softmax_backward_data.default: 0.25,  # noqa: SLF001 - an operator's name
        _aten.mish_backward.default: 2.5,
        _aten.mse_loss_backward.default: 0.2,
        _aten._native_batch_norm_legit_functional.default: 0.78,  # noqa: SLF001 - same
        _aten.native_batch_norm_backward.default: 0.9,
        _aten.native_group_norm_backward.default: 0.45,
        _aten.native_layer_norm_backward.default: 0.3,
        _aten.sigmoid_backward.default: 0.16,
        _aten.silu_backward.default: 0.25,
        _aten.smooth_l1_loss_backward.default: 0.22,
        _aten._softmax_backward_data.default: 0.25,  # noqa: SLF001 - same
        _aten.softplus_backward.default: 0.25,
        _aten.tanh_backward.default: 0.16,
        _aten.threshold_backward.default: 0.16,
    }.items()
}
"""Operators that ONNX Runtime computes in parts alone, whose times count."""

_VIEWS = (
    *(_aten.view.default, _aten._unsafe_view.default, _aten.alias.default, _aten.detach.default, _aten.unsqueeze.default),  # noqa: SLF001 - a name
    *(_aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims),
)
_CONSTANTS = (
    _aten.full.default,
    _aten.zeros.default,
    _aten.ones.default,
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.arange.default,
)
_OF_ANY: Mapping[Any, Row] = {
    _aten.clone.default: _copy,
    **dict.fromkeys((_aten._to_copy.default, _prims.convert_element_type.default), _conversion),  # noqa: SLF001 - an operator's name
    _aten.permute.default: _reordered,
    _aten.transpose.int: _reordered,
    _aten.t.default: _reordered,
    _aten.slice.Tensor: _part,
    _aten.split.Tensor: Ns(0.0, 0.13),
    **dict.fromkeys((_aten.select.int, _aten.expand.default, _aten.diagonal.default), Ns(0.0, 0.1)),
    **dict.fromkeys(_VIEWS, Ns(0.0, 0.0)),
    _aten.scalar_tensor.default: Ns(0.0, 0.0),
    **dict.fromkeys(_CONSTANTS, Ns(0.05, 0.0)),
}
"""Conversions, copies and views of any type."""

_WIDE_APART: Mapping[Any, Row] = {
    _aten._softmax.default: Ns(1.6, 6.0),  # noqa: SLF001 - an operator's name
    _aten._log_softmax.default: Ns(1.9, 6.3),  # noqa: SLF001 - same
    _aten.amax.default: Ns(0.09, 0.57),
    _aten.amin.default: Ns(0.09, 0.57),
    _aten.cos.default: Ns(3.1, 7.8),
    _aten.exp.default: Ns(1.7, 4.2),
    _aten.log.default: Ns(2.3, 5.2),
    _aten.native_layer_norm.default: Ns(0.74, 6.3),
    _aten.sigmoid.default: Ns(1.2, 5.8),
    _aten.sin.default: Ns(3.1, 7.8),
}
_WIDE_TOGETHER: Mapping[Any, Row] = {
    **dict.fromkeys((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor), Ns(0.4, 0.6)),
    _aten.abs.default: Ns(0.25, 0.38),
    _aten.clamp.default: Ns(0.27, 0.33),
    _aten.div.Tensor: Ns(0.36, 0.73),
    _aten.erf.default: Ns(3.2, 3.3),
    _aten.mean.dim: Ns(0.09, 0.2),
    _aten.relu.default: Ns(0.38, 0.5),
    _aten.sqrt.default: Ns(1.9, 1.2),
    _aten.sum.dim_IntList: Ns(0.09, 0.2),
    _aten.tanh.default: Ns(5.2, 3.4),
}
_WHOLE_APART: Mapping[Any, Row] = {
    _aten.__lshift__.Scalar: Ns(0.28, 1.4),
    _aten.amax.default: Ns(0.09, 0.65),
    _aten.amin.default: Ns(0.09, 0.65),
    _aten.clamp.default: Ns(0.22, 5.0),
    _aten.clamp_max.default: Ns(0.33, 2.6),
    _aten.clamp_min.default: Ns(0.33, 2.6),
    _aten.cumsum.default: Ns(0.33, 0.93),
    _aten.maximum.default: Ns(0.19, 2.5),
    _aten.minimum.default: Ns(0.19, 2.5),
    _aten.remainder.Scalar: Ns(3.1, 6.5),
    _aten.sign.default: Ns(0.31, 2.7),
    _aten.sum.default: Ns(0.1, 10.0),
    _aten.sum.dim_IntList: Ns(0.1, 10.0),
}
_WHOLE_TOGETHER: Mapping[Any, Row] = {
    _aten.abs.default: Ns(0.29, 0.38),
    _aten.add.Tensor: Ns(0.55, 0.55),
    _aten.bitwise_and.Scalar: Ns(0.35, 0.55),
    **dict.fromkeys((_aten.eq.Scalar, _aten.ne.Scalar), Ns(0.57, 0.29)),
    _aten.floor_divide.default: Ns(3.8, 5.0),
    **dict.fromkeys((_aten.ge.Scalar, _aten.gt.Scalar, _aten.le.Scalar, _aten.lt.Scalar), Ns(0.47, 0.36)),
    _aten.mul.Tensor: Ns(0.47, 0.42),
    _aten.neg.default: Ns(0.3, 0.41),
}
_BOOLEAN: Mapping[Any, Row] = {
    **dict.fromkeys((_aten.bitwise_and.Tensor, _aten.bitwise_or.Tensor, _aten.bitwise_not.default), Ns(0.022, 0.043)),
    _aten.all.dim: Ns(1.5, 0.28),
    _aten.any.dim: Ns(1.6, 0.25),
    _aten.any.default: Ns(0.7, 0.26),
}
_APART_BY_TYPE: Mapping[torch.dtype | None, Mapping[Any, Row]] = {
    torch.float32: _APART,
    torch.float64: _WIDE_APART,
    torch.int64: _WHOLE_APART,
}
_ALL_BY_TYPE: Mapping[torch.dtype | None, Mapping[Any, Row]] = {
    torch.float32: {**_APART, **_TOGETHER, **_IN_PARTS, **_OF_ANY},
    torch.float64: {**_WIDE_APART, **_WIDE_TOGETHER, **_OF_ANY},
    torch.int64: {**_WHOLE_APART, **_WHOLE_TOGETHER, **_OF_ANY},
    torch.bool: {**_BOOLEAN, **_OF_ANY},
}
APART = frozenset(target for rows in _APART_BY_TYPE.values() for target in rows)
"""The operators that may leave a partition, wherever they are in it."""

_OF_RESULTS = frozenset({_aten.index_select.default, _aten.embedding.default, _aten.gather.default, _aten.index.Tensor, _aten.slice.Tensor})
_OF_RESULTS |= {_aten.select.int, _aten.diagonal.default}
"""Operators that read as many numbers as they write, however many they are given."""


def _numbers(call: Call) -> int:
    written = [math.prod(_sizes(tensor)) for tensor in provenance.tensors_in(call.node.meta.get("val"))]
    read = call.tensor(0)
    if read is None or call.node.target in _OF_RESULTS:
        return max(written, default=0)
    return max(*written, math.prod(_sizes(read))) if written else 0


def _dtype(call: Call) -> torch.dtype | None:
    """Return the element type that an operator computes in."""
    given = [tensor for tensor in (*map(call.tensor, range(len(call.node.args))), call.result) if tensor is not None]
    if any(tensor.device.type != "cpu" for tensor in given):
        return None
    return next((tensor.dtype for tensor in given if tensor.is_floating_point()), given[0].dtype if given else None)


def _scaled(call: Call, row: Row | None) -> Ns | None:
    per_number = row(call) if callable(row) else row
    if per_number is None:
        return None
    numbers = _numbers(call)
    return Ns(numbers * per_number.torch, numbers * per_number.ort)


def times_of(call: Call) -> Ns | None:
    """Return how many ns an operator takes in each on one thread; None if that is not known."""
    return _scaled(call, _ALL_BY_TYPE.get(_dtype(call), {}).get(call.node.target))


def lost_by_one(call: Call) -> float:
    """Return by how many ns ONNX Runtime takes longer for one of `APART` than PyTorch; 0 if that is not worth two partitions."""
    times = _scaled(call, _APART_BY_TYPE.get(_dtype(call), {}).get(call.node.target))
    lost = times.ort - times.torch if times is not None else 0.0
    return lost if lost >= _LEAST_LOSS_NS else 0.0


def lost_by_parts(call: torch.fx.Node, parts: Iterable[torch.fx.Node]) -> float:
    """Return by how many ns ONNX Runtime takes longer for what a call became than PyTorch for the call; 0 if it is not worth partitions."""
    whole = times_of(Call(call))
    if whole is None:
        return 0.0
    of_parts = [times_of(Call(node)) for node in parts if kind_of(node) is NodeKind.COMPUTE]
    lost = min(whole.ort, sum(times.ort + _CALL.ort for times in of_parts if times is not None)) - whole.torch
    return lost if lost >= _LEAST_LOSS_NS else 0.0


def _is_left(node: torch.fx.Node) -> bool:
    """Tell whether an operator is left to PyTorch for its time, so that sessions before and after it are two to enter."""
    from ortlens.backend.operators.registry import slow_for  # here: a process that plans nothing has the times without the operators

    made = node.all_input_nodes[0] if kind_of(node) is NodeKind.TUPLE else node
    if made.op != "call_function":
        return False
    large = provenance.node_bytes(made) > _FEW_BYTES
    slow = lost_by_one(Call(made)) > 0 if made.target in APART else large and slow_for(made, deployed=False) is not None
    return slow or getattr(made.meta.get(STAYS), "code", None) == "policy"


def if_slower(
    nodes: Iterable[torch.fx.Node], folded: Collection[torch.fx.Node], parts: Mapping[torch.fx.Node, Collection[torch.fx.Node]]
) -> Ns | None:
    """Return the times of a partition, of which these are the operators, if all of many numbers are known and ONNX Runtime takes longer.

    What is `folded` a session computes once. Where all `parts` of a call are in it, PyTorch makes that call.
    """
    inside = dict.fromkeys(nodes)
    beside = {other for node in inside for other in (*node.all_input_nodes, *node.users)} - inside.keys()
    torch_ns, ort_ns = 0.0, _ENTRY_NS if any(map(_is_left, beside)) or all(node.target is _aten.detach.default for node in inside) else 0.0
    together = set[torch.fx.Node]()
    for whole, made in parts.items():
        known = times_of(Call(whole)) if all(node in inside or kind_of(node) is not NodeKind.COMPUTE for node in made) else None
        if known is not None:
            torch_ns += known.torch + _CALL.torch
            together.update(made)
    for node in inside:
        call = Call(node)
        times = times_of(call)
        if times is None:
            if provenance.node_bytes(node) > _FEW_BYTES:
                return None
            times = Ns(0.0, 0.0)
        torch_ns += 0.0 if node in together else times.torch + _CALL.torch
        ort_ns += 0.0 if node in folded else times.ort + _CALL.ort
        leaves = not inside.keys() >= node.users.keys()
        if leaves and (node.target in _VIEWS or node.target in _CONSTANTS):  # of a result, ONNX Runtime makes a copy
            ort_ns += _numbers(call) * _COPIED_NS
    return Ns(torch_ns, ort_ns) if ort_ns - torch_ns >= _LEAST_PARTITION_LOSS_NS else None
