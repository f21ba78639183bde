"""Normalisations; ONNX Runtime's raise for nothing."""

from __future__ import annotations

import contextvars
import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._process import with_value
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import count_of, is_long, op, reduced_dims
from ortlens.backend.operators.facts import STAYS, Call, decomposes, torch_op

if TYPE_CHECKING:
    from collections.abc import Sequence

_aten = torch.ops.aten

_BATCH_NORM = _aten._native_batch_norm_legit.no_stats
_BATCH_NORM_OF_INFERENCE = _aten._native_batch_norm_legit_no_training.default
_BATCH_NORM_OF_TRAINING = _aten._native_batch_norm_legit_functional.default
_normalises: contextvars.ContextVar[bool] = contextvars.ContextVar("normalises", default=False)
"""Whether a normalisation is being decomposed."""


@torch_op(_aten.native_layer_norm.default)
def native_layer_norm(x: Any, normalized_shape: Sequence[Any], weight: Any, bias: Any, eps: float) -> Any:
    """`aten.native_layer_norm`; the mean of nothing is 0, its reciprocal deviation NaN."""
    if 0 not in list(normalized_shape):
        return basics.registered(_aten.native_layer_norm.default)(x, normalized_shape, weight, bias, eps)
    lead = len(x.shape) - len(normalized_shape)
    sizes = op.Concat(op.Shape(x, start=0, end=lead), op.Constant(value_ints=[1] * len(normalized_shape)), axis=0)
    return op.Identity(x), *(op.Expand(op.CastLike(op.Constant(value_float=number), x), sizes) for number in (0.0, math.nan))


@torch_op(_aten.layer_norm.default)
def layer_norm(x: Any, normalized_shape: Sequence[Any], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    """`aten.layer_norm`, as exported programs contain it."""
    if 0 not in list(normalized_shape):
        return basics.registered(_aten.layer_norm.default)(x, normalized_shape, weight, bias, eps)
    return op.Identity(x)


@decomposes(_aten.var_mean.correction)
def _var_mean(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Compute the statistics of a long normalisation in float32, in which their epsilon hides the last digits; others are in float64."""
    axes = reduced_dims(x, dim)
    if not _normalises.get() or correction != 0 or not is_long(x, axes):
        return STAYS
    wide = x.to(torch.float32)
    center = wide.mean(axes, keepdim=True)
    away = wide - center
    spread = (away * away).sum(axes, keepdim=keepdim) / count_of(x, axes)
    center = center if keepdim else center.squeeze(tuple(axes))
    return spread.to(x.dtype), center.to(x.dtype)


@decomposes(_aten.native_group_norm.default)
def _group_norm(x: torch.Tensor, *given: Any) -> Any:
    _, _, n, c, hxw, group, eps = given
    if not is_long(x.reshape(n, group, c // group, hxw), [2, 3]) and not _is_clamped(x, eps):
        return STAYS
    return _written_out(_aten.native_group_norm.default, x, *given)


@decomposes(_aten.native_layer_norm.default)
def _layer_norm(x: torch.Tensor, normalized_shape: Sequence[Any], *given: Any) -> Any:
    if not is_long(x, range(x.dim() - len(normalized_shape), x.dim())):
        return STAYS
    return _written_out(_aten.native_layer_norm.default, x, normalized_shape, *given)


@decomposes(_BATCH_NORM)
def _instance_norm(x: torch.Tensor, *given: Any) -> Any:
    if not is_long(x, [0, *range(2, x.dim())]) and not _is_clamped(x, given[-1]):
        return STAYS
    return _written_out(_BATCH_NORM, x, *given)


@decomposes(_BATCH_NORM_OF_INFERENCE)
def _norm_by_statistics(x: torch.Tensor, *given: Any) -> Any:
    *parameters, momentum, eps = given
    if not _is_clamped(x, eps):
        return STAYS
    return _written_out(_aten._native_batch_norm_legit.default, x, *parameters, False, momentum, eps)  # noqa: FBT003 - a name; not in training


def _is_clamped(x: torch.Tensor, eps: float) -> bool:
    """Tell whether ONNX Runtime normalises with another epsilon: on CUDA at least `CUDNN_BN_MIN_EPSILON`, 0 since cuDNN 7.5.

    Source: `ClampCudnnBatchNormEpsilon` in `onnxruntime/core/providers/cuda/cudnn_common.h`, which InstanceNormalization and
    BatchNormalization call; LayerNormalization does not.
    """
    return x.device.type == "cuda" and eps < 0


def _written_out(target: Any, *args: Any) -> Any:
    """Decompose a normalisation as PyTorch does, which takes the variance and the mean with `var_mean`."""
    if _has_mixed_types(*args):
        return STAYS
    with with_value(_normalises, value=True):
        return _torch.decomposition_of(target)(*args)


@decomposes(_BATCH_NORM_OF_TRAINING)
def _norm_of_training(x: torch.Tensor, *given: Any) -> Any:
    """Decompose it in spite of torchlib's ONNX function, which gives a biased running variance."""
    return STAYS if x.is_complex() else _written_out(_BATCH_NORM_OF_TRAINING, x, *given)


def _has_mixed_types(tensor: torch.Tensor, *parameters: Any) -> bool:
    """Tell whether PyTorch refuses the dtypes of a normalisation's parameters: it takes the input's, and float32 beside 16 bits."""
    known = {tensor.dtype, torch.float32} if tensor.dtype in (torch.float16, torch.bfloat16) else {tensor.dtype}
    return any(isinstance(value, torch.Tensor) and value.dtype not in known for value in parameters)


def _converts_parameters(call: Call) -> bool:
    value, *rest = map(facts.tensor_of, call.node.args)
    return value is not None and _has_mixed_types(value, *rest)


def _reads_half_statistics(call: Call) -> bool:
    value, read = call.tensor(0), any(user.target is operator.getitem and user.args[1] for user in call.node.users)
    return value is not None and value.dtype is torch.float16 and read


facts.computes_in_one_pass(_aten.native_batch_norm_backward.default)
facts.wrong(
    *(_aten.group_norm.default, _aten.instance_norm.default, _aten.native_group_norm.default),
    reason="ends the process for channels without elements",
    when=facts.lacks_elements("input"),
)
facts.wrong(
    *(_BATCH_NORM, _BATCH_NORM_OF_INFERENCE, _BATCH_NORM_OF_TRAINING, _aten.native_group_norm.default),
    reason=f"converts parameters{facts.REFUSED}",
    when=_converts_parameters,
)
facts.wrong(
    _aten.native_layer_norm.default, reason="gives means in float32, and this graph reads them in float16", when=_reads_half_statistics
)
facts.lacks_outputs(_BATCH_NORM_OF_INFERENCE, count=3)
