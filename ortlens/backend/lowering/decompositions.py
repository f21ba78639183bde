"""Our own decompositions, for operators where torch has none that ONNX can use."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true

from ortlens import _torch
from ortlens.backend.basis import provenance
from ortlens.backend.lowering import attention, fused_attention, reductions, whole_operators
from ortlens.backend.lowering.kernel_strides import suggested_format
from ortlens.backend.lowering.type_promotion import fits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten
_STAYS: Any = NotImplemented  # a decomposition returns it to leave the operator as it is


_HALVES = (torch.float16, torch.bfloat16)
_OF_FLOATS = (
    *(_aten.log_sigmoid_forward.default, _aten.soft_margin_loss.default),
    *(_aten._softmax_backward_data.default, _aten._log_softmax_backward_data.default),  # noqa: SLF001 - names
)
_REFUSED: dict[Any, Callable[..., bool]] = {
    **dict.fromkeys(_OF_FLOATS, lambda tensor, *_: not tensor.is_floating_point()),
    **dict.fromkeys((_aten.special_bessel_j0.default, _aten.special_bessel_j1.default), lambda tensor: tensor.dtype in _HALVES),
    _aten.trace.default: lambda tensor: tensor.dtype is torch.bool,
    **dict.fromkeys((_aten.nan_to_num.default, _aten.nansum.default, _aten.aminmax.default), lambda tensor, *_, **__: tensor.is_complex()),
}
"""Operator -> whether arguments are left to PyTorch's kernel: it refuses them where torch's decomposition takes them, or the reverse."""

_BEYOND_FLOATS = 400  # a power of two that makes infinity or 0 of every float32, and none of what float64 computes on the way

_LOSSES = (_aten.huber_loss.default, _aten.mse_loss.default, _aten.smooth_l1_loss.default)
"""Losses of differences, whose decompositions in torch round 16-bit floats otherwise than their kernels."""

WHOLE_GRADIENTS = (_aten.max_pool2d_with_indices_backward.default, _aten.native_batch_norm_backward.default)
"""Gradients that PyTorch computes in one pass; those of small tensors are decomposed. One thread, 16 images of 32 channels of 64 x 64 and
two smaller layers: the backward of a convolutional net takes 40 ms instead of 48, 38 in eager mode."""

_FOREACH_OF_ONE = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log", "log10"),
    *("log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
_FOREACH_OF_TWO = ("add", "sub", "mul", "div", "pow", "lerp")
_FOREACH_BOUNDS = {"maximum": "clamp_min", "minimum": "clamp_max", "clamp_min": "clamp_min", "clamp_max": "clamp_max"}
_FOREACH_OVERLOADS = ("List", "Scalar", "ScalarList", "Tensor", "ScalarAndTensor")
_BEYOND_INT64 = 2.0**63  # from here on, a conversion to int64 returns the smallest integer


@functools.cache
def own() -> dict[Any, Callable[..., Any]]:
    """List our own decompositions, by op overload, with attention both as in exported programs and in its fused forms."""
    return {
        **_per_tensor(),
        _aten.squeeze.dim: _squeeze_dim,
        _aten.squeeze.dims: _squeeze_dims,
        _aten.split.Tensor: _split,
        _aten.copy.default: _copy,
        _aten.affine_grid_generator.default: _affine_grid,
        _aten.binary_cross_entropy.default: _binary_cross_entropy,
        _aten.block_diag.default: _block_diag,
        _aten.bucketize.Tensor: _bucketize,
        _aten.glu.default: _glu,
        _aten.index_copy.default: _index_copy,
        _aten.index_fill.int_Scalar: functools.partial(_index_fill, _aten.index_fill.int_Scalar),
        _aten.index_fill.int_Tensor: functools.partial(_index_fill, _aten.index_fill.int_Tensor),
        _aten.masked_scatter.default: _masked_scatter,
        _aten.slice_scatter.default: _slice_scatter,
        _aten.channel_shuffle.default: _channel_shuffle,
        _aten._convolution.default: _convolution,  # noqa: SLF001 - an operator's name
        _aten.convolution.default: _whole_convolution,
        _aten._trilinear.default: _trilinear,  # noqa: SLF001 - same
        _aten._native_multi_head_attention.default: attention.multi_head,  # noqa: SLF001 - same
        _aten._transformer_encoder_layer_fwd.default: attention.encoder_layer,  # noqa: SLF001 - same
        _aten.adaptive_max_pool2d.default: _adaptive_max_pool,
        _aten.adaptive_max_pool3d.default: _adaptive_max_pool,
        _aten.adaptive_max_pool2d_backward.default: reductions.maximum_backward_of(2),
        _aten.adaptive_max_pool3d_backward.default: reductions.maximum_backward_of(3),
        _aten.max_pool3d_with_indices_backward.default: reductions.maximum_backward_of(3),
        _aten._adaptive_avg_pool2d.default: reductions.adaptive_average_2d,  # noqa: SLF001 - same
        _aten._adaptive_avg_pool3d.default: reductions.adaptive_average_3d,  # noqa: SLF001 - same
        _aten._adaptive_avg_pool2d_backward.default: reductions.adaptive_average_backward,  # noqa: SLF001 - same
        _aten._adaptive_avg_pool3d_backward.default: reductions.adaptive_average_backward,  # noqa: SLF001 - same
        _aten.avg_pool2d_backward.default: reductions.average_backward_of(2),
        _aten.avg_pool3d_backward.default: reductions.average_backward_of(3),
        _aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantize,
        _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _fake_quantize_by_tensors,  # noqa: SLF001 - same
        _aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantize_channels,
        **{target: functools.partial(_unless_large, target) for target in WHOLE_GRADIENTS},
        **{target: functools.partial(_unless_refused, target) for target in _REFUSED},
        **{target: functools.partial(_loss, target) for target in _LOSSES},
        _aten.ldexp.Tensor: _ldexp,
        _aten.pow.Tensor_Scalar: _power,
        _aten.native_dropout.default: _native_dropout,
        _aten.nll_loss_forward.default: functools.partial(_nll_loss, _aten.nll_loss_forward.default),
        _aten.nll_loss2d_forward.default: functools.partial(_nll_loss, _aten.nll_loss2d_forward.default),
        **dict.fromkeys((_aten.nll_loss_backward.default, _aten.nll_loss2d_backward.default), _nll_loss_backward),
        _aten.rrelu_with_noise_functional.default: _rrelu,
        _aten.smooth_l1_loss_backward.default: _smooth_l1_loss_backward,
        **whole_operators.own(),
        **fused_attention.own(),
    }


@functools.cache
def always_decompose() -> frozenset[Any]:
    """List what torch decomposes despite an ONNX function: that of batch norm's training form gives a biased running variance."""
    return frozenset({_aten._native_batch_norm_legit_functional.default})  # noqa: SLF001 - a name


def _unless_large(target: Any, grad: torch.Tensor, tensor: torch.Tensor, *arguments: Any) -> Any:
    """Decompose few numbers as torch does: one more partition would take longer than it saves. PyTorch refuses integers."""
    if provenance.is_large(tensor) or not tensor.is_floating_point():
        return _STAYS
    return _torch.decomposition_of(target)(grad, tensor, *arguments)


def _unless_refused(target: Any, *arguments: Any, **named: Any) -> Any:
    """Decompose as torch does what the kernel takes; the rest stays, so that PyTorch refuses it."""
    return _STAYS if _REFUSED[target](*arguments, **named) else _torch.decomposition_of(target)(*arguments, **named)


def is_known_at_run_time(size: Any) -> bool:
    """Tell whether data decides if a size is 1, so that PyTorch drops the dimension or not."""
    return _torch.depends_on_data(size) and not statically_known_true(size == 1) and not statically_known_true(size != 1)


def _squeeze_dim(tensor: torch.Tensor, dim: int) -> Any:
    """Drop a dimension only if its size is 1: PyTorch ignores a squeeze of another one, ONNX refuses it."""
    return _squeeze_dims(tensor, [dim])


def _squeeze_dims(tensor: torch.Tensor, dim: Sequence[int]) -> Any:
    if any(map(is_known_at_run_time, tensor.shape)):
        return _STAYS
    kept = [d for d in dim if tensor.dim() and guard_or_false(tensor.shape[d] == 1)]
    if len(kept) == len(dim) or len({d % max(tensor.dim(), 1) for d in dim}) < len(dim):  # PyTorch refuses the same dimension twice
        return _STAYS
    return _aten.squeeze.dims(tensor, kept) if kept else _aten.alias.default(tensor)


def _split(tensor: torch.Tensor, split_size: int, dim: int = 0) -> Any:
    """Split with one size per chunk where the size is known only at run time: ONNX would make a sequence of unknown length.

    The number of chunks is known, because the graph has a node for each. Where there is nothing to split, PyTorch makes one chunk, ONNX
    Runtime none; it also ends the process where the chunks have no elements.
    """
    whole: Any = tensor.shape[dim]
    if isinstance(whole, int) and not whole:
        return _aten.split_with_sizes.default(tensor, [0], dim)
    if isinstance(split_size, int) and isinstance(whole, int):
        return _STAYS
    count = int((whole + split_size - 1) // split_size)  # fixes the count; the size stays symbolic
    sizes = [split_size] * (count - 1) + [whole - split_size * (count - 1)]
    return _aten.split_with_sizes.default(tensor, sizes, dim)


def _copy(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:  # noqa: FBT001, FBT002 - the schema's
    """Write out the broadcast of a copy's source: torchlib's function returns the source in its own shape."""
    sizes = zip(tensor.shape, source.shape, strict=False)
    if tensor.dim() == source.dim() and all(statically_known_true(wanted == given) for wanted, given in sizes):
        return _STAYS
    return _aten.copy.default(tensor, source.expand(tensor.shape), non_blocking)


def _affine_grid(theta: torch.Tensor, size: Sequence[Any], align_corners: bool) -> Any:  # noqa: FBT001 - the schema's
    """Compute places by the steps of the kernel: torch's decomposition differs in the last bit, which decides between neighbours."""
    batch, images = size[0], [*size[2:]]
    if not theta.is_floating_point() or theta.dim() != 3 or len(images) not in (2, 3):  # noqa: PLR2004 - PyTorch refuses others
        return _STAYS
    lines = []
    for place, steps in enumerate(images):
        line = torch.linspace(-1, 1, steps, dtype=theta.dtype, device=theta.device) if steps > 1 else theta.new_zeros([steps])
        line = line if align_corners else line * (steps - 1) / steps
        lines.append(line.view([-1 if dim == place else 1 for dim in range(len(images))]).expand(images))
    base = torch.stack([*reversed(lines), theta.new_ones(images)], -1).view(1, -1, len(images) + 1)
    return base.expand(batch, -1, -1).bmm(theta.transpose(1, 2)).view([batch, *images, len(images)])


def _binary_cross_entropy(tensor: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1) -> Any:
    """Compute the losses by the operator, which checks that they are probabilities; then apply the weights and the reduction."""
    if weight is None and not reduction:
        return _STAYS
    losses: torch.Tensor = _aten.binary_cross_entropy.default(tensor, target, None, 0)
    return _reduced(losses if weight is None else losses * weight, reduction)


def _loss(target: Any, tensor: torch.Tensor, other: torch.Tensor, reduction: int = 1, *number: float) -> Any:
    """Compute one loss per element by the operator itself, then the reduction; what PyTorch refuses stays."""
    if not tensor.is_floating_point() or any(each < 0 for each in number) or (not reduction and tensor.dtype is other.dtype):
        return _STAYS
    dtype = torch.result_type(tensor, other)
    return _reduced(target(tensor.to(dtype), other.to(dtype), 0, *number), reduction)


def _smooth_l1_loss_backward(grad: torch.Tensor, tensor: torch.Tensor, target: torch.Tensor, reduction: int, beta: float) -> torch.Tensor:
    """Decompose as torch does, but keep NaN, of which its decomposition makes 0 by the sign."""
    dtype = torch.float32 if tensor.dtype in _HALVES else tensor.dtype
    apart, grads = tensor.to(dtype) - target.to(dtype), grad.to(dtype)
    grads = grads / tensor.numel() if reduction == 1 else grads
    return torch.where(apart.abs() >= beta, grads * apart.sign(), grads * apart / beta).to(tensor.dtype)


def _reduced(losses: torch.Tensor, reduction: int) -> torch.Tensor:
    return losses.mean() if reduction == 1 else losses.sum() if reduction else losses


def _nll_loss(  # noqa: PLR0913, PLR0917 - the operator's schema, and the operator
    target: Any, tensor: torch.Tensor, classes: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore_index: Any
) -> Any:
    """Compute one loss per row of classes by the operator itself, which checks that the classes exist; then reduce as torch does."""
    if tensor.dim() == 1:
        return target(tensor.unsqueeze(0), classes.reshape(1), weight, reduction or 2, ignore_index)
    if not reduction:
        return _STAYS
    losses = target(tensor, classes, weight, 0, ignore_index)[0].sum()
    kept = classes != ignore_index
    weights = kept if weight is None else torch.where(kept, weight[torch.where(kept, classes, 0).long()], 0)
    total = weights.sum().to(tensor.dtype)
    return (losses / total if reduction == 1 else losses), total


def _nll_loss_backward(  # noqa: PLR0913, PLR0917 - the operators' schema
    grad: torch.Tensor,
    tensor: torch.Tensor,
    classes: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: Any,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """Scatter the gradients of the classes; torch's decomposition multiplies all by it, and an infinite one makes NaN of the others."""
    dim = min(tensor.dim() - 1, 1)
    places = (classes.reshape(()) if tensor.dim() == 1 else classes).unsqueeze(dim)
    kept = places != ignore_index
    known = torch.where(kept, places, 0).long()
    grads = grad / total_weight if reduction == 1 else grad
    grads = -(grads.unsqueeze(dim) if grads.dim() else grads)
    if weight is not None:
        grads = grads * weight[known]
    return torch.scatter(torch.zeros_like(tensor), dim, known, torch.where(kept, grads, 0).expand(known.shape))


def _block_diag(tensors: Sequence[torch.Tensor]) -> Any:
    """Decompose as torch does, in the dtype of the kernel: the decomposition makes no difference between a number and a row of one."""
    kinds = ([tensor.dtype for tensor in tensors if tensor.dim()], [tensor.dtype for tensor in tensors if not tensor.dim()])
    whole, single = (functools.reduce(torch.promote_types, kind) if kind else None for kind in kinds)
    dtype = whole or single
    if whole is not None and single is not None:
        dtype = torch.result_type(torch.empty((1,), dtype=whole), torch.empty((), dtype=single))
    return _torch.decomposition_of(_aten.block_diag.default)([tensor.to(dtype) for tensor in tensors])


def _bucketize(tensor: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """Decompose as torch does, which knows no numbers without dimensions and gives the wrong dtype without boundaries."""
    if any(value.dtype is torch.bool or value.is_complex() for value in (tensor, boundaries)):  # PyTorch refuses it
        return _STAYS
    if not tensor.dim():
        return _aten.bucketize.Tensor(tensor.unsqueeze(0), boundaries, out_int32=out_int32, right=right).squeeze(0)
    if isinstance(boundaries.shape[0], int) and not boundaries.shape[0]:
        return torch.zeros_like(tensor, dtype=torch.int32 if out_int32 else torch.int64)
    return _torch.decomposition_of(_aten.bucketize.Tensor)(tensor, boundaries, out_int32=out_int32, right=right)


def _glu(tensor: torch.Tensor, dim: int = -1) -> Any:
    """Return, for a tensor without elements, the half that is the result: ONNX's Split cannot halve nothing."""
    return _aten.clone.default(tensor.narrow(dim, 0, tensor.shape[dim] // 2)) if _is_empty(tensor) else _STAYS


def _index_copy(tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    """Decompose as torch does, but with no index that counts from the end: `index_put` takes it, this operator refuses it."""
    if index.dtype is not torch.int64:  # PyTorch refuses it
        return _STAYS
    places = torch.where(index < 0, torch.iinfo(index.dtype).max, index)
    return _torch.decomposition_of(_aten.index_copy.default)(tensor, dim, places, source)


def _index_fill(target: Any, tensor: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    """Fill a copy: torch's decomposition keeps strides of dense memory only, checks unused indices, and refuses ones from the end."""
    checked = tensor.dtype is torch.float16 and not (
        isinstance(value, (int, float)) and fits(value, torch.float16)
    )  # `scalar_tensor` is infinite
    if index.dtype is not torch.int64 or checked:  # PyTorch refuses it
        return _STAYS
    filled: torch.Tensor = _aten.clone.default(tensor)
    if not _is_empty(tensor):
        size = tensor.shape[dim] if tensor.dim() else 1
        filled = _torch.decomposition_of(target)(filled, dim, torch.where(index < 0, index + size, index), value)
    return filled


def _masked_scatter(tensor: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    """Give a number a dimension: ONNX's ScatterND takes none without."""
    if tensor.dim() or mask.dim() or mask.dtype is not torch.bool:
        return _STAYS
    return _aten.masked_scatter.default(tensor.unsqueeze(0), mask.unsqueeze(0), source).squeeze(0)


def _slice_scatter(tensor: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any) -> Any:
    """Copy the tensor where there is nothing to write: ONNX Runtime then refuses to scatter."""
    return _aten.clone.default(tensor) if _is_empty(source) else _STAYS


def _ldexp(tensor: torch.Tensor, exponent: torch.Tensor) -> Any:
    """Scale floats by whole exponents in float64, which rounds once, and what PyTorch multiplies by powers; PyTorch keeps the rest."""
    if exponent.dtype is torch.bool or tensor.is_complex():
        return _STAYS
    dtype = torch.get_default_dtype() if _is_whole(tensor) else tensor.dtype
    if exponent.dtype is dtype or (_is_whole(tensor) and _is_whole(exponent)):
        return _aten.mul.Tensor(tensor, _aten.pow.Scalar(2.0, exponent.to(dtype)))
    if not _is_whole(exponent) or dtype is torch.float64:
        return _STAYS
    reach = _aten.clamp.default(exponent.to(torch.int32), -_BEYOND_FLOATS, _BEYOND_FLOATS)
    wide, power = (torch.ops.prims.convert_element_type(value, torch.float64) for value in (tensor, reach))
    return (wide * _aten.pow.Scalar(2.0, power)).to(dtype)


def _power(tensor: torch.Tensor, exponent: Any) -> Any:
    """Keep powers of booleans by booleans boolean, as PyTorch's kernel does; torch's shape function says whole numbers."""
    is_boolean = tensor.dtype is torch.bool and isinstance(exponent, bool)
    return torch.logical_or(tensor, torch.full_like(tensor, not exponent)) if is_boolean else _STAYS


def _channel_shuffle(tensor: torch.Tensor, groups: int) -> Any:
    """Copy the result of torch's decomposition, which is a view of the tensor where there is nothing to shuffle."""
    shuffled: torch.Tensor = _torch.decomposition_of(_aten.channel_shuffle.default)(tensor, groups)
    return _aten.clone.default(shuffled, memory_format=suggested_format(tensor))


def _is_empty(tensor: torch.Tensor) -> bool:
    return any(isinstance(size, int) and not size for size in tensor.shape)


def _is_whole(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not (value.dtype.is_floating_point or value.dtype.is_complex)
    return isinstance(value, (int, torch.SymInt))


def _adaptive_max_pool(tensor: torch.Tensor, output_size: Sequence[int]) -> Any:
    """Make an ordinary pool of an adaptive one whose windows all have the same size; the others have an ONNX function."""
    sizes: Sequence[Any] = tensor.shape[-len(output_size) :]
    pairs = list(zip(sizes, output_size, strict=True))
    if not tensor.is_floating_point():  # PyTorch refuses it
        return _STAYS
    if any(not isinstance(size, int) and wanted != 1 for size, wanted in pairs) or any(size == 0 or wanted == 0 for size, wanted in pairs):
        return _STAYS
    if any(size % wanted for size, wanted in pairs):
        return _STAYS
    if all(wanted == 1 for wanted in output_size):
        lowered = torch.argmax(tensor.flatten(-len(output_size)), -1)
        return tensor.amax(tuple(range(-len(output_size), 0)), keepdim=True), lowered.reshape([*lowered.shape, *output_size])
    pool = _aten.max_pool2d_with_indices if len(output_size) == 2 else _aten.max_pool3d_with_indices  # noqa: PLR2004 - dimensions
    return pool(tensor, [size // wanted for size, wanted in zip(sizes, output_size, strict=True)])


def _native_dropout(tensor: torch.Tensor, p: float, train: bool | None) -> Any:  # noqa: FBT001 - the schema
    """Drop nothing outside training."""
    if train is not False:
        return _STAYS
    del p
    return tensor.clone(), torch.ones_like(tensor, dtype=torch.bool)


def _rrelu(  # noqa: PLR0913, PLR0917 - the operator's schema
    tensor: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,  # noqa: FBT001, FBT002 - same
    generator: Any = None,
) -> Any:
    """Replace `rrelu` in eval mode by a leaky ReLU with the mean of both slopes."""
    if training:
        return _STAYS
    del generator
    return _aten.leaky_relu.default(tensor, (lower + upper) / 2), noise.clone()


def _convolution(tensor: torch.Tensor, *arguments: Any) -> Any:
    """Drop the flags of cuDNN, which the CPU ignores."""
    return _aten.convolution.default(tensor, *arguments[:8])


def _whole_convolution(  # noqa: PLR0913, PLR0917 - the operator's schema
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001 - same
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """Give a convolution one number per dimension, as ONNX wants them, where its lists have one for all dimensions.

    One of each channel by itself, in one dimension, becomes one in two: ONNX Runtime has a kernel for those alone, which takes a third of
    the time.
    """
    dims = weight.dim() - 2
    lists = (stride, padding, dilation, output_padding)
    by_channel = dims == 1 and not transposed and groups > 1 and statically_known_true(weight.shape[1] == 1)
    flat = by_channel and tensor.device.type == "cpu" and tensor.dtype is torch.float32
    if all(len(numbers) == dims for numbers in lists) and not flat:
        return _STAYS
    steps, pads, distances, ends = ([*numbers] * dims if len(numbers) == 1 else [*numbers] for numbers in lists)
    if not flat:
        return _aten.convolution.default(tensor, weight, bias, steps, pads, distances, transposed, ends, groups)
    # In two dimensions, the strides of these decide those of the result.
    given, kernels = tensor.contiguous().unsqueeze(2), weight.contiguous().unsqueeze(2)
    made = _aten.convolution.default(given, kernels, bias, [1, *steps], [0, *pads], [1, *distances], transposed, [0, *ends], groups)
    return made.squeeze(2)


def _trilinear(  # noqa: PLR0913, PLR0917 - the operator's schema
    first: torch.Tensor,
    weight: torch.Tensor,
    second: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """Decompose into two products [row, in1] x [out, in1, in2] x [row, in2] -> [row, out], the form in which `nn.Bilinear` calls it."""
    del unroll_dim  # the order in which PyTorch adds
    if [list(dims) for dims in (expand1, expand2, expand3, sumdim)] != [[1, 3], [0], [1, 2], [2, 3]]:
        return _summed_product((first, weight, second), (expand1, expand2, expand3), sumdim)
    out, in1, in2 = weight.shape
    product = torch.matmul(first, weight.permute(1, 0, 2).reshape(in1, out * in2)).reshape(-1, out, in2)
    return torch.matmul(product, second.unsqueeze(-1)).squeeze(-1)


def _summed_product(tensors: Sequence[torch.Tensor], expanded: Sequence[Sequence[int]], summed: Sequence[int]) -> torch.Tensor:
    """Contract two tensors at a time, for gradients: `expanded` has the dimensions that each lacks, `summed` those to add up."""
    rank = tensors[0].dim() + len(expanded[0])
    letters = "abcdefghijklmnop"[:rank]
    names = ["".join(letter for place, letter in enumerate(letters) if place not in lacking) for lacking in expanded]
    kept = "".join(letter for place, letter in enumerate(letters) if place not in summed)
    return torch.einsum(f"{','.join(names)}->{kept}", *tensors)


def _per_tensor() -> dict[Any, Callable[..., Any]]:
    """Decompose operators of lists of tensors, `_foreach_*`, to one per tensor: optimisers and the clipping of gradients use them."""
    functions: dict[str, Callable[..., Any]] = {
        **{name: getattr(torch, name) for name in (*_FOREACH_OF_ONE, *_FOREACH_OF_TWO)},
        **{name: getattr(torch, bound) for name, bound in _FOREACH_BOUNDS.items()},
        "addcmul": functools.partial(_scaled, torch.addcmul),
        "addcdiv": functools.partial(_scaled, torch.addcdiv),
        "norm": torch.linalg.vector_norm,
        "zero": torch.zeros_like,
        "copy": _aten.copy.default,
    }
    found: dict[Any, Callable[..., Any]] = {}
    for name, function in functions.items():
        packet = getattr(_aten, f"_foreach_{name}", None)
        for overload in packet.overloads() if packet is not None else ():
            of_values = name in {"addcmul", "addcdiv"} and overload == "Tensor"  # its numbers lie in one tensor
            if overload in ("default", *_FOREACH_OVERLOADS) and not of_values:
                found[getattr(packet, overload)] = functools.partial(_each, function)
    return found


def _each(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Call a function once per item of its lists; all other arguments are the same for all."""
    count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    return [function(*(arg[place] if isinstance(arg, (list, tuple)) else arg for arg in args), **kwargs) for place in range(count)]


def _scaled(function: Callable[..., Any], *args: Any) -> Any:
    *tensors, value = args if len(args) == 4 else (*args, 1)  # noqa: PLR2004 - three tensors and a factor
    return function(*tensors, value=value)


def _fake_quantize(tensor: torch.Tensor, scale: float, zero_point: int, low: int, high: int) -> Any:
    """Decompose `aten.fake_quantize_per_tensor_affine_cachemask`: the rounded tensor, and where nothing was clipped."""
    if tensor.dtype is not torch.float32 or not isinstance(scale, float) or not isinstance(zero_point, int):
        return _STAYS
    return _quantized(tensor, torch.full((), scale, dtype=torch.float32, device=tensor.device), zero_point, low, high)


def _fake_quantize_by_tensors(  # noqa: PLR0913, PLR0917 - the operator's schema
    tensor: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, enabled: torch.Tensor, low: int, high: int
) -> Any:
    """Do the same with a scale, a zero point and a switch that are tensors."""
    if tensor.dtype is not torch.float32 or scale.dtype is not torch.float32 or zero_point.dtype.is_floating_point:
        return _STAYS
    rounded, inside = _quantized(tensor, scale.reshape(()), zero_point.reshape(()), low, high)
    on = enabled.reshape(()) != 0
    return torch.where(on, rounded, tensor), inside | ~on


def _fake_quantize_channels(  # noqa: PLR0913, PLR0917 - the operator's schema
    tensor: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, low: int, high: int
) -> Any:
    """Decompose `aten.fake_quantize_per_channel_affine_cachemask`, whose kernel takes all beyond int64 for the smallest integer."""
    if tensor.dtype is not torch.float32 or scale.dtype is not torch.float32 or zero_point.dtype.is_floating_point:
        return _STAYS
    shape = [-1 if place == axis % tensor.dim() else 1 for place in range(tensor.dim())]
    factor, zero = scale.reshape(shape), zero_point.reshape(shape)
    level = torch.round(tensor * factor.reciprocal()) + zero
    return _clipped(torch.where(level.abs() < _BEYOND_INT64, level, low - 1.0), factor, zero, low, high)


def _quantized(tensor: torch.Tensor, scale: torch.Tensor, zero: Any, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    level = torch.round(tensor * scale.reciprocal()) + zero
    return _clipped(torch.where(level.isnan(), low - 1.0, level), scale, zero, low, high)


def _clipped(level: torch.Tensor, scale: torch.Tensor, zero: Any, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (level.clamp(low, high) - zero) * scale, (level >= low) & (level <= high)
