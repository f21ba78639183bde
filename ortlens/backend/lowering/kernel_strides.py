"""Strides of results, as PyTorch's kernels choose them: they decide whether a `reshape` is a view.

PyTorch's own backends run the kernels and return what the kernels made. ONNX Runtime's results are laid out as the trace says, so the
trace has to be right. Decompositions lay out their results in their own ways, and torch's shape functions differ from its kernels for some
operators: those that go through an iterator where dimensions are permuted, broadcast or of size 1; those that always return contiguous
memory; and those that follow the memory format that their input suggests. Batch normalisation returns contiguous or channels-last memory
whatever its input's order is, `roll` keeps channels-last memory, and windows (`im2col`) are contiguous.

Source: torch 2.13: `batch_norm_cpu` in `aten/src/ATen/native/Normalization.cpp`, `TensorIteratorBase::reorder_dimensions`,
`roll_common` in `aten/src/ATen/native/TensorTransformations.h`. `python -m tests.opinfo --layouts` compares all operators.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens._process import with_value
from ortlens.backend.basis.memory_order import (
    FORMATS,
    are_alike,
    inverse_order,
    is_contiguous,
    is_dense,
    memory_order,
    order_from_strides,
    strides_in,
    suggested_format,
)
from ortlens.backend.operators.facts import by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

_aten = torch.ops.aten
_CHANNELS_LAST = ((0, 2, 3, 1), (0, 2, 3, 4, 1))
_BATCH_NORMS = tuple(
    getattr(getattr(_aten, name), overload)
    for name in (
        *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
        *("_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_with_update_functional", "_batch_norm_no_update"),
    )
    for overload in getattr(_aten, name).overloads()
    if not overload.endswith("out")
)
_UNKNOWN_SIZES = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
_WRONG_AS_WHOLE = frozenset(
    {
        *(_aten._chunk_cat.default, _aten.channel_shuffle.default, _aten.index_fill.int_Scalar, _aten.index_fill.int_Tensor),  # noqa: SLF001 - a name
        *(_aten.ldexp.Tensor, _aten.rot90.default, _aten.rsub.Tensor),
    }
)
"""Operators whose decompositions lie as their results, and whose shape functions do not."""
_NO_ITERATORS = frozenset({_aten.ldexp.Tensor, _aten.clone.default, _aten.equal.default, _aten.frexp.Tensor, _aten.masked_fill.Scalar})
"""Operators of numbers one by one whose results no iterator lays out."""


def with_kernel_strides(
    table: Mapping[Any, Callable[..., Any]], users: Collection[Any] = (), converted: Collection[Any] = ()
) -> dict[Any, Callable[..., Any]]:
    """Give the results of operators of a table and of `converted` ones, but not of `users`, the strides that their kernels give them.

    What a decomposition makes lies as the operator's own result, if no rule says otherwise.
    """
    iterated = [target for target in {*converted, *table} if _is_iterated(target)]
    made = dict(table)
    for targets, strides_of in ((table, _as_whole), (iterated, _as_iterated), *_RULES):
        made.update({target: _relaid(strides_of, target, table.get(target)) for target in targets if target not in users})
    for targets, laid in (
        (_BATCH_NORMS, _batch_norm),
        ((_aten.native_group_norm.default,), _group_norm),
        ((_aten.roll.default,), _roll),
        ((_aten.im2col.default,), _windows),
        ((_aten.index.Tensor,), _index),
        ((_aten.view.default,), _view),
    ):
        made.update({target: _laid_out(laid, target, table.get(target)) for target in targets if target not in users})
    return made


def _is_iterated(target: Any) -> bool:
    return torch.Tag.pointwise in getattr(target, "tags", ()) and target.namespace == "aten" and target not in _NO_ITERATORS


def _laid_out(laid: Callable[..., Any], target: Any, further: Callable[..., Any] | None) -> Callable[..., Any]:
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        made = laid(target, *args, **kwargs)
        if made is not NotImplemented:
            return made
        return NotImplemented if further is None else further(*args, **kwargs)

    return decomposed


_WHOLE: contextvars.ContextVar[Any] = contextvars.ContextVar("operator that is called as it is", default=None)


def _relaid(strides_of: Callable[..., Any], target: Any, further: Callable[..., Any] | None) -> Callable[..., Any]:
    """Lay out what an operator or its decomposition makes of arguments that are not contiguous; `strides_of` gives the strides."""
    schema = getattr(target, "_schema", None)
    if schema is None or schema.is_mutable or any(returned.alias_info is not None for returned in schema.returns):
        return further or _stays

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        if _WHOLE.get() is target:
            return NotImplemented
        made = NotImplemented if further is None else further(*args, **kwargs)
        tensors = _torch.tensors_of((args, kwargs))
        if all(map(_is_plain, tensors)) or any(map(_torch.depends_on_data, tensors)):
            return made
        if made is NotImplemented and strides_of is _as_whole:
            return made
        if made is NotImplemented:
            made = _as_it_is(target, *args, **kwargs)
        results = _torch.tensors_of(made)
        wanted = dict(zip(map(id, results), strides_of(results, target, args, kwargs), strict=False))
        return _torch.map_tensors(lambda tensor: _with_strides(tensor, wanted.get(id(tensor))), made)

    return decomposed


def _as_it_is(target: Any, *args: Any, **kwargs: Any) -> Any:
    with with_value(_WHOLE, target):
        return target(*args, **kwargs)


def _stays(*_: Any, **__: Any) -> Any:
    return NotImplemented


def _as_whole(_: Sequence[torch.Tensor], target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Sequence[Any]]:
    """Read the strides of the results of the operator that is decomposed."""
    if target in _WRONG_AS_WHOLE or not _UNKNOWN_SIZES.isdisjoint(target.tags):
        return []
    try:
        # An operator made of others decomposes even untraced while an exported program is lowered: without end, if not kept as it is.
        whole = _torch.untraced(_as_it_is, target, *args, **kwargs)
    except Exception:  # noqa: BLE001 - some shape functions take less than the decompositions that replace them
        return []
    return [tensor.stride() for tensor in _torch.tensors_of(whole)]


def _as_iterated(made: Sequence[torch.Tensor], target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Sequence[int]]:
    """Find the strides that an iterator gives to its result. Source: `TensorIteratorBase::build`, `compute_fast_setup_type`."""
    (result,) = made
    schema = target._schema.arguments  # noqa: SLF001 - public in spite of its underscore
    given = by_name(target, args, kwargs)
    operands = [given[wanted.name] for wanted in schema if "Tensor" in str(wanted.type) or wanted.name == "other"]
    tensors = [arg for arg in operands if isinstance(arg, torch.Tensor)]
    sizes = _hints(result.shape)
    shapes, steps = [_hints(tensor.shape) for tensor in tensors], [_hints(tensor.stride()) for tensor in tensors]
    if len(tensors) == len([arg for arg in operands if arg is not None]) and all(shape == sizes for shape in shapes):
        usual = [range(len(sizes)), *([_CHANNELS_LAST[0]] if len(sizes) == len(_CHANNELS_LAST[0]) else [])]
        for strides in (strides_in(order, sizes) for order in usual):
            if all(are_alike(found, strides, sizes) for found in steps):
                return [strides]
        if all(found == steps[0] for found in steps) and is_dense(tensors[0]):
            return [steps[0]]
    return [strides_in(iterator_order(sizes, [_expanded(*given, sizes) for given in zip(shapes, steps, strict=True) if given[0]]), sizes)]


def _as_contiguous(made: Sequence[torch.Tensor], *_: Any) -> list[Sequence[int]]:
    return [strides_in(range(tensor.dim()), _hints(tensor.shape)) for tensor in made]


def _as_suggested(made: Sequence[torch.Tensor], _: Any, args: Sequence[Any], __: Any) -> list[Sequence[int]]:
    """Find the strides in the memory format that the first argument suggests, all of a list alike; else contiguous ones."""
    tensors = _torch.tensors_of(args[0])
    formats = {suggested_format(tensor) for tensor in tensors}
    dims = made[0].dim()
    if len(formats) > 1 or FORMATS[0] in formats or any(tensor.dim() != dims for tensor in tensors):
        return _as_contiguous(made)
    return [strides_in(_CHANNELS_LAST[dims - 4], _hints(tensor.shape)) for tensor in made]


def _as_volume(made: Sequence[torch.Tensor], _: Any, args: Sequence[Any], __: Any) -> list[Sequence[int]]:
    """Find the strides of pools of one volume [C, D, H, W]: channels-last ones if it lies so; the shape function is right about batches."""
    volume = args[0]
    sizes, strides, last = _hints(volume.shape), _hints(volume.stride()), (1, 2, 3, 0)
    if volume.dim() != len(last):
        return []
    lies_so = are_alike(strides, strides_in(last, sizes), sizes) and not are_alike(strides, strides_in(range(4), sizes), sizes)
    return [strides_in(last, _hints(tensor.shape)) for tensor in made] if lies_so else _as_contiguous(made)


_POLYNOMIALS = (
    *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
)
_RULES = (
    (
        (
            *(_aten.complex.default, _aten.floor_divide.default, _aten.polar.default, _aten._prelu_kernel.default),  # noqa: SLF001 - a name
            *(_aten.binary_cross_entropy_backward.default, _aten.elu_backward.default, _aten.hardsigmoid_backward.default),
            *(_aten.hardswish_backward.default, _aten.hardtanh_backward.default, _aten.leaky_relu_backward.default),
            *(_aten.log_sigmoid_backward.default, _aten.mish_backward.default, _aten.softplus_backward.default),
            *(getattr(_aten, f"special_{name}").default for name in _POLYNOMIALS),
        ),
        _as_iterated,
    ),
    (
        (
            *(_aten._log_softmax.default, _aten._log_softmax_backward_data.default, _aten._softmax.default),  # noqa: SLF001 - names
            *(_aten._softmax_backward_data.default, _aten.bucketize.Tensor, _aten.cumprod.default, _aten.cumsum.default),  # noqa: SLF001 - same
            *(_aten.diag_embed.default, _aten.glu_backward.default, _aten.huber_loss_backward.default, _aten.index_add.default),
            *(
                _aten.index_copy.default,
                _aten.isin.Tensor_Scalar,
                _aten.isin.Tensor_Tensor,
                _aten.log_sigmoid_forward.default,
                _aten.masked_fill.Scalar,
            ),
            *(_aten.masked_fill.Tensor, _aten.masked_scatter.default, _aten.mse_loss_backward.default, _aten.native_layer_norm.default),
            *(_aten.normal.Tensor_Tensor, _aten.pow.Scalar, _aten.renorm.default),
            *(_aten.rrelu_with_noise_functional.default, _aten.smooth_l1_loss_backward.default, _aten.take.default),
        ),
        _as_contiguous,
    ),
    (
        (
            *(_aten.cat.default, _aten.max_unpool2d.default, _aten.reflection_pad3d.default, _aten.replication_pad3d.default),
            *(_aten.upsample_nearest2d.default, _aten.upsample_nearest3d.default, _aten.upsample_bilinear2d.default),
            *(_aten.upsample_trilinear3d.default, _aten.upsample_bicubic2d.default, _aten._upsample_bilinear2d_aa.default),  # noqa: SLF001 - names
            *(_aten._upsample_bicubic2d_aa.default, _aten._upsample_nearest_exact2d.default, _aten._upsample_nearest_exact3d.default),  # noqa: SLF001 - same
        ),
        _as_suggested,
    ),
    (
        (
            *(_aten.reflection_pad2d_backward.default, _aten.reflection_pad3d_backward.default),
            *(_aten.replication_pad2d_backward.default, _aten.replication_pad3d_backward.default),
        ),
        lambda made, target, args, _: _as_suggested(made, target, args[1:], _),
    ),
    ((_aten.max_pool3d_with_indices.default,), _as_volume),
    ((_aten.flip.default,), lambda _, __, args, ___: [args[0].stride()] if is_dense(args[0]) else []),
    (
        (_aten.native_batch_norm_backward.default, _aten.batch_norm_backward.default),
        lambda made, target, args, _: _as_suggested(made[:1], target, args[1:], _),
    ),
)
"""Operators whose shape functions do not say how their kernels lay out a result, and what says so."""


def _expanded(shape: Sequence[int], strides: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the strides of an operand that an iterator expands to some sizes."""
    lacking = len(sizes) - len(shape)
    return [0] * lacking + [0 if size == 1 != whole else step for size, whole, step in zip(shape, sizes[lacking:], strides, strict=True)]


def _hints(numbers: Sequence[Any]) -> list[int]:
    return [_torch.size_hint(number) for number in numbers]


def _with_strides(tensor: torch.Tensor, strides: Sequence[Any] | None) -> torch.Tensor:
    """Copy a tensor into memory that lies in the order of some strides, if it does not and a permutation gives them."""
    if strides is None:
        return tensor
    sizes, wanted, found = _hints(tensor.shape), _hints(strides), _hints(tensor.stride())
    order = order_from_strides(sizes, wanted)
    given = strides_in(order, sizes)
    if found in (wanted, given) or 0 in sizes or not are_alike(wanted, given, sizes):
        return tensor
    if tuple(order) in _CHANNELS_LAST:
        copy: torch.Tensor = _aten.clone.default(tensor, memory_format=FORMATS[len(order)])
        return copy
    return _contiguous(tensor.permute(order)).permute(inverse_order(order))


def _batch_norm(target: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Normalise a copy that lies as the result does; leave it alone if the trace is right about it."""
    if is_contiguous(tensor) or memory_order(tensor) in _CHANNELS_LAST:
        return NotImplemented
    return target(_aten.clone.default(tensor, memory_format=suggested_format(tensor)), *args, **kwargs)


def _group_norm(target: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Normalise one channels-last image through contiguous memory: the kernel may refuse the stride of a dimension of size 1."""
    if memory_order(tensor) not in _CHANNELS_LAST or _torch.size_hint(tensor.shape[0]) != 1 or is_contiguous(tensor):
        return NotImplemented
    normal, *rest = target(_contiguous(tensor), *args, **kwargs)
    return (_aten.clone.default(normal, memory_format=suggested_format(tensor)), *rest)


def _roll(target: Any, tensor: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """Roll dimension by dimension; each roll concatenates two pieces, which keeps channels-last memory if none is empty."""
    if _is_plain(tensor) or not dims:
        return NotImplemented
    if len(dims) > 1:
        for shift, dim in zip(shifts, dims, strict=True):
            tensor = target(tensor, [shift], [dim])
        return tensor
    size = tensor.shape[dims[0]]
    if (
        suggested_format(tensor) is torch.contiguous_format
        or statically_known_true(size == 0)
        or statically_known_true(shifts[0] % size == 0)
    ):
        return NotImplemented
    order = _CHANNELS_LAST[tensor.dim() - 4]
    return target(tensor.permute(order), shifts, [order.index(dims[0] % tensor.dim())]).permute(inverse_order(order))


def _windows(target: Any, *args: Any) -> Any:
    """Copy the windows to contiguous memory where the shape function, torch's decomposition, makes a permuted view of them."""
    made: torch.Tensor = _torch.decomposition_of(target)(*args)  # nothing reads it where it is contiguous
    return NotImplemented if _is_plain(made) else _contiguous(made)


def _view(target: Any, tensor: torch.Tensor, sizes: Sequence[Any]) -> Any:
    """Give dimensions of size 1 the strides of `computeStride` in `aten/src/ATen/TensorUtils.cpp`: convolutions heed that of the batch."""
    if len(sizes) not in FORMATS or _is_plain(tensor) or _WHOLE.get() is target:
        return NotImplemented
    made: torch.Tensor = _as_it_is(target, tensor, sizes)
    for dim in reversed(range(made.dim() - 1)):
        if statically_known_true(made.shape[dim] == 1):
            stride, following = _hints((made.stride(dim), made.shape[dim + 1] * made.stride(dim + 1)))
            made = made if stride == following else made.squeeze(dim).unsqueeze(dim)
    return made


def _index(target: Any, tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
    """Lay out values at indices in the order of the kernel's iterator over values and indices; the shape function omits indices."""
    given = [index for index in indices if index is not None]
    if any(index.dtype not in (torch.int32, torch.int64) for index in given) or all(map(_is_plain, (tensor, *given))):
        return NotImplemented
    given = list(_aten.broadcast_tensors.default(given))
    places = [place for place, index in enumerate(indices) if index is not None]
    first = places[0] if places == list(range(places[0], places[0] + len(places))) else 0
    rest = [place for place in range(tensor.dim()) if place not in places]
    shape, strides = [tensor.shape[place] for place in rest], [tensor.stride(place) for place in rest]
    shape[first:first], strides[first:first] = given[0].shape, [0] * given[0].dim()
    around = [index.reshape([1] * first + [*index.shape] + [1] * (len(rest) - first)) for index in given]  # only its strides are read
    order = iterator_order(shape, [strides, *(index.expand(shape).stride() for index in around)])
    if order == iterator_order(shape, [strides]):
        return NotImplemented
    made = target(_contiguous(tensor), [None if index is None else _contiguous(index) for index in indices])
    return _contiguous(made.permute(order)).permute(inverse_order(order))


def iterator_order(shape: Sequence[Any], operands: Sequence[Sequence[Any]]) -> tuple[int, ...]:
    """Order dimensions as an iterator of PyTorch's kernels lays out a result, from the outermost to the innermost one in memory.

    A stride is 0 where an operand lacks a dimension or is expanded. Source: `TensorIteratorBase::reorder_dimensions`.
    """
    sizes, hints = _hints(shape), [_hints(steps) for steps in operands]
    order = list(reversed(range(len(sizes))))
    for place in range(1, len(order)):
        outer = place
        for inner in reversed(range(place)):
            compared = _compared(order[inner], order[outer], sizes, hints)
            if compared < 0:
                break
            if compared > 0:
                order[inner], order[outer], outer = order[outer], order[inner], inner
    return tuple(reversed(order))


def _compared(inner: int, outer: int, sizes: list[int], operands: list[list[int]]) -> int:
    """Decide by the first operand that can whether two dimensions stay (-1) or swap (1); 0 where none can."""
    for steps in operands:
        if not steps[inner] or not steps[outer]:
            continue
        if steps[inner] != steps[outer]:
            return -1 if steps[inner] < steps[outer] else 1
        if sizes[inner] > sizes[outer]:
            return 1
    return 0


def _is_plain(value: Any) -> bool:
    """Tell whether a value is contiguous, or no tensor; the strides of dimensions of size 1 count, as the shape functions heed them."""
    return not isinstance(value, torch.Tensor) or _hints(value.stride()) == strides_in(range(value.dim()), _hints(value.shape))


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    copy: torch.Tensor = _aten.clone.default(tensor, memory_format=torch.contiguous_format)
    return copy
