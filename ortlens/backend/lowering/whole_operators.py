"""Operators that torch takes apart while it traces, before it asks for decompositions: here they stay whole where that is faster.

Interpolation is one operator in ONNX, too; taken apart it reads every pixel by its place, in 3 to 10 times the time.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens.backend.basis import provenance
from ortlens.backend.basis.memory_order import laid_out, order_from_strides
from ortlens.backend.lowering import attention, fused_attention
from ortlens.backend.lowering.kernel_strides import suggested_format

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Collection, Mapping, Sequence

_aten = torch.ops.aten
_STAYS: Any = NotImplemented  # a decomposition returns it to leave the operator as it is

_NEAREST = (_aten.upsample_nearest1d, _aten.upsample_nearest2d, _aten.upsample_nearest3d)
_LINEAR = (_aten.upsample_linear1d, _aten.upsample_bilinear2d, _aten.upsample_trilinear3d)
_CENTRED = (_aten._upsample_nearest_exact1d, _aten._upsample_nearest_exact2d, _aten._upsample_nearest_exact3d)  # noqa: SLF001 - names
_INTERPOLATIONS = (*_NEAREST, *_CENTRED, *_LINEAR, _aten.upsample_bicubic2d)
_REPEATING = frozenset(overload for packet in _NEAREST for overload in (packet.default, packet.vec))
_SLOW_IN_ORT = (_aten.upsample_nearest1d.default, _aten.upsample_nearest3d.default, _aten.upsample_linear1d.default)
_LINEAR_OVERLOADS = frozenset(packet.default for packet in _LINEAR)
INTERPOLATIONS = tuple(packet.default for packet in _INTERPOLATIONS)
_SMOOTHING = (_aten._upsample_bilinear2d_aa, _aten._upsample_bicubic2d_aa)  # noqa: SLF001 - names
ATTENTION = (
    _aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001 - same
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default,  # noqa: SLF001 - same
)
CIRCULAR = _aten._pad_circular.default  # noqa: SLF001 - an operator's name
ONE_HOT = _aten.one_hot.default
_UNFUSED = _aten._scaled_dot_product_attention_math.default  # noqa: SLF001 - same
_WHOLE_ATTENTION = _aten.scaled_dot_product_attention.default
_SOME_ROWS = 64
"""From here on, attention of 16 bits on CUDA is faster as one operator of ONNX Runtime's own, which uses PyTorch's kernels."""
_MANY_SCORES = 1024 * 1024
"""From here on, this is so for float32, too."""
_MANY_ROWS = 1024
"""From here on, causal attention on the CPU gains more in PyTorch, which leaves out the masked half, than two partitions cost."""
_SHRINKING = (_aten.hardshrink.default, _aten.softshrink.default)
_APART = (*_SHRINKING, _aten.log_sigmoid_forward.default, _aten.nan_to_num.default)
"""Operators of several passes over their numbers, which PyTorch makes in one."""
LSTM = _aten.lstm.input
RECURRENT = (_aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)


def _interpolated_from(
    grad_output: torch.Tensor,
    output_size: Sequence[Any],  # noqa: ARG001 - the schema
    input_size: Sequence[Any],
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    """Make the gradient of what was interpolated, without data: where it was `input_size`."""
    return torch.empty(tuple(input_size), dtype=grad_output.dtype, device=grad_output.device, memory_format=suggested_format(grad_output))


_GRADIENTS: Mapping[Any, Callable[..., Any]] = {
    **{getattr(_aten, f"{packet.__name__}_backward").default: _interpolated_from for packet in (*_INTERPOLATIONS, *_SMOOTHING)},
    **dict.fromkeys((_aten.hardshrink_backward.default, _aten.softshrink_backward.default), lambda grad, value, _: grad + value),
}
"""Gradients of operators that stay whole -> their results without data: torch's own shape functions fail for sizes that vary."""


def kept(*, with_gradient: bool, on_cuda: bool) -> Mapping[Any, Callable[..., Any] | None]:
    """List what tracing is to meet whole: operator -> the function that is traced instead, or None for the operator itself.

    Of operators that PyTorch implements by others, autograd knows those alone. `on_cuda`: tensors on CUDA go to ONNX Runtime.
    """
    _torch.know_shape(ONE_HOT, _one_hot_rows)  # each time: `run_decompositions` of torch.export makes torch forget it
    for target, made in _GRADIENTS.items() if with_gradient else ():
        _torch.know_shape(target, made)
    found: dict[Any, Callable[..., Any] | None] = dict.fromkeys(INTERPOLATIONS)
    found |= {packet.vec: functools.partial(_of_sizes, packet.default) for packet in _INTERPOLATIONS}
    found |= {**dict.fromkeys(_SHRINKING), ONE_HOT: None, CIRCULAR: _pad_circular if with_gradient else None}
    found |= {_UNFUSED: _unfused_attention} if on_cuda else {}
    if not with_gradient:
        found |= dict.fromkeys((_aten.max_pool1d.default, *RECURRENT))
        found |= dict.fromkeys((_WHOLE_ATTENTION,) if on_cuda else ())
    return found


def own() -> dict[Any, Callable[..., Any]]:
    """List the decompositions of those that have an ONNX function for some calls."""
    repeating = {target: functools.partial(_interpolated, target) for target in _REPEATING}
    recurrent = {target: functools.partial(_recurrent, target) for target in RECURRENT}
    pools = {_aten.max_pool1d.default: _max_pool1d}
    return {**repeating, **recurrent, **pools, ONE_HOT: _one_hot, CIRCULAR: _pad_circular, _WHOLE_ATTENTION: _attention}


def with_calls_left_to_torch(table: Mapping[Any, Callable[..., Any]], users: Collection[Any]) -> dict[Any, Callable[..., Any]]:
    """Return decompositions that leave more calls whole, which PyTorch computes faster than ONNX Runtime; not those of `users`."""

    def unless(target: Any, stays: Callable[..., bool]) -> Callable[..., Any]:
        apart = table.get(target) or _TAKEN_APART.get(target) or _torch.decomposition_of(target)

        def decomposed(*args: Any, **kwargs: Any) -> Any:
            return _STAYS if stays(target, *args, **kwargs) else apart(*args, **kwargs)

        return decomposed

    return {**table, **{target: unless(target, stays) for target, stays in _LEFT.items() if target not in users}}


def _of_sizes(
    target: Any, tensor: torch.Tensor, output_size: Sequence[Any] | None, *rest: Any, scale_factors: Sequence[float] | None = None
) -> Any:
    """Interpolate to the size that factors give, as overloads `vec` do."""
    *corners, factors = rest if scale_factors is None and rest else (*rest, scale_factors)
    if output_size is None:
        output_size = [
            size * int(factor) if int(factor) == factor else torch.sym_int(size * factor)  # type: ignore[no-untyped-call]  # torch has no annotations here
            for size, factor in zip(tensor.shape[2:], factors, strict=True)
        ]
    return target(tensor, output_size, *corners, *(factors or [None] * len(output_size)))


def _pad_circular(tensor: torch.Tensor, pad: Sequence[Any]) -> Any:
    """Join the last numbers of each dimension, all of it, and the first, where PyTorch writes them into parts of an empty tensor."""
    joins = _repeats_what_is_left(tensor.shape, pad)
    for place in range(len(pad) // 2):
        before, after, dim = pad[2 * place], pad[2 * place + 1], -1 - place
        size = tensor.shape[dim]
        if not joins:
            cut, end = (torch.sym_max(-number, 0) for number in (before, after))  # type: ignore[no-untyped-call]  # in torch itself
            left = size - cut - end
            places = torch.arange(-before - cut, left + after + end, device=tensor.device) % torch.sym_max(left, 1)  # type: ignore[no-untyped-call]  # same
            tensor = tensor.index_select(dim, (places + cut) % size)
        elif before or after:
            left = tensor.narrow(dim, max(-before, 0), size + min(before, 0) + min(after, 0))
            last = [left.narrow(dim, left.shape[dim] - before, before)] if before > 0 else []
            tensor = torch.cat([*last, left, *([left.narrow(dim, 0, after)] if after > 0 else [])], dim)
    return tensor if joins and any(pad) else tensor.clone()


def _repeats_what_is_left(sizes: Sequence[Any], pad: Sequence[Any]) -> bool:
    """Tell whether circular padding is by known numbers, and repeats only what its negative numbers leave."""
    pairs = list(zip(pad[::2], pad[1::2], reversed(sizes), strict=False))
    return all(isinstance(number, int) for number in pad) and all(
        max(before, after, 0) <= size + min(before, 0) + min(after, 0) for before, after, size in pairs
    )


def _one_hot_rows(index: torch.Tensor, num_classes: Any) -> torch.Tensor:
    return index.new_empty((*index.shape, num_classes))


def _one_hot(index: torch.Tensor, num_classes: Any = -1) -> Any:
    """Leave what eager checks, and then writes the ones into zeros, to the operator: PyTorch's decomposition compares, without a check."""
    is_checked = index.device.type == "cpu" and index.dtype is torch.int64 and not (isinstance(num_classes, int) and num_classes < 0)
    return _STAYS if is_checked else _torch.decomposition_of(ONE_HOT)(index.contiguous(), num_classes)


def _attention(query: torch.Tensor, *args: Any, **named: Any) -> Any:
    """Leave attention to the operator of ONNX Runtime's own where that is faster; decompose other attention."""
    if _is_one_attention(fused_attention.by_name(_WHOLE_ATTENTION, (query, *args), named)):
        return _STAYS
    output, _ = attention.plain(query, *args, **named)
    if query.device.type != "cuda":
        return attention.laid_out_like(output, query) if query.dim() == 4 else output  # noqa: PLR2004 - what the fused operator takes
    shown = _torch.untraced(functools.partial(_torch.taken_apart, _WHOLE_ATTENTION), query, *args, **named)
    strides = [_torch.size_hint(stride) for stride in shown.stride()]  # each of PyTorch's fused operators has an order in memory of its own
    return laid_out(output, order_from_strides(query.shape, strides))


def _is_one_attention(given: Mapping[str, Any]) -> bool:
    query, key, value = (given[name] for name in ("query", "key", "value"))
    dims = query.dim() == key.dim() == value.dim() == 4  # noqa: PLR2004 - batch, head, row, feature
    if query.device.type != "cuda" or given["dropout_p"] or not dims:
        return False
    rows, keys = query.shape[2], key.shape[2]
    if given["is_causal"] and not statically_known_true(rows == keys):  # the masks begin at different ends
        return False
    if any(not isinstance(tensor.shape[dim], int) for tensor in (query, key, value) for dim in (1, 3)):
        return False
    many = _torch.size_hint(rows) * _torch.size_hint(keys) >= _MANY_SCORES
    return many if query.dtype is torch.float32 else query.dtype in {torch.float16, torch.bfloat16} and _torch.size_hint(rows) >= _SOME_ROWS


def _unfused_attention(*args: Any, **named: Any) -> Any:
    """Compute attention on CUDA in the dtype of the query, where PyTorch, without a fused operator for a call, takes float32."""
    given = fused_attention.by_name(_UNFUSED, args, named)
    if given["query"].device.type != "cuda" or given["dropout_p"] or given.pop("dropout_mask") is not None:
        return _torch.taken_apart(_UNFUSED, *args, **named)
    return attention.plain(**given)


def _interpolated(target: Any, tensor: torch.Tensor, output_size: Sequence[Any] | None, *rest: Any) -> Any:
    """Decompose as torch does what ONNX Runtime computes otherwise or far more slowly."""
    if is_one_in_ort(target, tensor, output_size, *rest):
        return _STAYS
    return _torch.decomposition_of(target)(tensor, output_size, *rest)


def is_one_in_ort(target: Any, tensor: torch.Tensor, output_size: Sequence[Any] | None, *rest: Any) -> bool:
    """Tell whether ONNX Runtime interpolates at the same places as PyTorch, and as fast.

    Of nearest elements it rounds some places wrongly, unless each is repeated. Between elements it divides where PyTorch multiplies,
    which is the same for powers of two.
    """
    given = [scale for item in rest for scale in (item if isinstance(item, (list, tuple)) else [item]) if isinstance(scale, float)]
    pairs = list(zip(output_size or (), tensor.shape[2:], strict=False))
    if target in _SLOW_IN_ORT:
        return False
    if target in _REPEATING:
        return all(scale.is_integer() for scale in given) and (
            bool(given) or all(statically_known_true(n % size == 0) for n, size in pairs)
        )
    if target not in _LINEAR_OVERLOADS or rest[0] or tensor.dtype is not torch.float32:
        return False
    if given and all(scale >= 1 and math.frexp(scale)[0] == 0.5 for scale in given):  # noqa: PLR2004 - so it is of powers of two
        return True
    if not all(isinstance(size, int) and size for pair in pairs for size in pair):
        return False
    factors = [many / size for many, size in pairs]
    return given in ([], factors) and all(math.frexp(factor)[0] == 0.5 for factor in factors)  # noqa: PLR2004 - same


def _is_long(target: Any, *args: Any, **kwargs: Any) -> bool:
    """Tell whether attention is causal, without another mask, and long."""
    given = fused_attention.by_name(target, args, kwargs)
    is_causal = given["is_causal"] and given["attn_mask"] is None and given["query"].dtype is torch.float32
    return is_causal and _torch.size_hint(given["query"].shape[2]) >= _MANY_ROWS


def _is_large(_: Any, tensor: torch.Tensor, *__: Any, **___: Any) -> bool:
    return tensor.dtype is torch.float32 and tensor.device.type == "cpu" and provenance.is_large(tensor)


def _is_large_loss(_: Any, tensor: torch.Tensor, target: torch.Tensor, *__: Any, **___: Any) -> bool:
    same = tensor.dim() == target.dim() and all(statically_known_true(a == b) for a, b in zip(tensor.shape, target.shape, strict=True))
    return same and tensor.dtype is target.dtype and _is_large(_, tensor)


def _is_large_norm(_: Any, tensor: torch.Tensor, order: Any = 2, dim: Any = None, *__: Any, **named: Any) -> bool:
    return order == 2 and dim is None and not named.get("dtype") and _is_large(_, tensor)  # noqa: PLR2004 - the usual norm


def _recurrent(target: Any, tensor: torch.Tensor, *arguments: Any) -> Any:
    """Leave recurrent layers to their ONNX functions; others are unrolled, step by step."""
    return _STAYS if is_recurrent_in_ort(target, tensor) else _torch.decomposition_of(target)(tensor, *arguments)


def recurrent_results_known() -> contextlib.AbstractContextManager[None]:
    """Spare a trace the steps of recurrent layers, of which it needs the shapes of the results alone."""
    return _torch.results_known(dict.fromkeys((LSTM, *RECURRENT), _recurrent_results))


def _recurrent_results(tensor: torch.Tensor, states: Any, *given: Any) -> tuple[torch.Tensor, ...]:
    *_, bidirectional, batch_first = given
    states = (states,) if isinstance(states, torch.Tensor) else states
    steps, batch = reversed(tensor.shape[:2]) if batch_first else tensor.shape[:2]
    made = tensor.new_empty((steps, batch, states[0].shape[2] * (1 + bidirectional)))
    return made.transpose(0, 1) if batch_first else made, *(state.new_empty(state.shape) for state in states)


def is_recurrent_in_ort(target: Any, tensor: torch.Tensor) -> bool:
    """Tell whether a recurrent layer has an ONNX function: those of float32, but for ReLU on CUDA, and on the CPU `nn.RNN` of float64."""
    if target is _aten.gru.input or tensor.device.type == "cuda":
        return target in (_aten.gru.input, _aten.rnn_tanh.input) and tensor.dtype is torch.float32
    return target in RECURRENT and tensor.dtype in (torch.float32, torch.float64)


def _max_pool1d(  # noqa: PLR0913, PLR0917 - the operator's schema
    tensor: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,  # noqa: FBT001, FBT002 - same
) -> Any:
    """Make a pool in two dimensions of it, as PyTorch does where it needs gradients."""
    sizes = ([1, *kernel_size], [1, *stride] if stride else [], [0, *padding], [1, *dilation])
    return _aten.max_pool2d_with_indices(tensor.unsqueeze(-2), *sizes, ceil_mode)[0].squeeze(-2)


_TAKEN_APART: Mapping[Any, Callable[..., Any]] = {target: functools.partial(_interpolated, target) for target in INTERPOLATIONS}
_LEFT: Mapping[Any, Callable[..., bool]] = {
    **dict.fromkeys((*INTERPOLATIONS, *_APART, _aten.max_pool1d.default, _aten.bucketize.Tensor), _is_large),
    **dict.fromkeys((_aten.huber_loss.default, _aten.smooth_l1_loss.default), _is_large_loss),
    **dict.fromkeys(ATTENTION, _is_long),
    CIRCULAR: lambda _, tensor, pad: _is_large(_, tensor) and _repeats_what_is_left(tensor.shape, pad),
    _aten.diag_embed.default: _is_large,
    _aten.linalg_vector_norm.default: _is_large_norm,
}
"""Operator -> which of its calls, with the operator before the arguments, are left whole for PyTorch."""
