"""Our own decompositions, for operators where torch has none that ONNX can use, and the operators whose ONNX functions are wrong."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens.backend.lowering import attention
from ortlens.backend.memory_order import laid_out, order_from_strides

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten
_STAYS: Any = NotImplemented  # a decomposition returns it to leave the operator as it is


@functools.cache
def own() -> dict[Any, Callable[..., Any]]:
    """Our own decompositions, including attention, both as exported programs contain it and in the CPU's fused form.

    Returns:
        Op overload -> function, for AOTAutograd's table.
    """
    return {
        _aten.as_strided.default: _as_strided,
        _aten.squeeze.dim: _squeeze_dim,
        _aten.squeeze.dims: _squeeze_dims,
        _aten.split.Tensor: _split,
        _aten.div.Tensor: _div,
        _aten.adaptive_max_pool2d.default: _adaptive_max_pool,
        _aten.adaptive_max_pool3d.default: _adaptive_max_pool,
        _aten.scaled_dot_product_attention.default: attention.whole,
        _aten._scaled_dot_product_flash_attention_for_cpu.default: attention.forward,  # noqa: SLF001 - an operator's name
        _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention.backward,  # noqa: SLF001 - same
    }


@functools.cache
def always_decompose() -> frozenset[Any]:
    """Operators that torch decomposes although they have ONNX functions, because the functions give different results.

    Returns:
        Op overloads. The function of `nll_loss_forward` does not compute its second output, by which the backward divides. The
        function of the training form of batch normalisation gives a biased running variance.
    """
    return frozenset({_aten.nll_loss_forward.default, _aten._native_batch_norm_legit_functional.default})  # noqa: SLF001 - a name


def wrong_for(node: torch.fx.Node) -> str | None:
    """Whether the ONNX function of an operator gives different results for these arguments.

    Args:
        node: A `call_function` node.

    Returns:
        What the function does wrong, or None. Source: onnxscript 0.7, `onnxscript/function_libs/torch_lib/ops/nn.py` and `core.py`.
    """
    if node.target in (_aten.avg_pool2d.default, _aten.avg_pool3d.default):
        given = node.args[_DIVISOR] if len(node.args) > _DIVISOR else node.kwargs.get("divisor_override")
        return None if given is None else "ignores divisor_override"
    if node.target is _aten.scatter_reduce.two:
        return "adds values instead of averaging them" if "mean" in (*node.args, *node.kwargs.values()) else None
    return None


_DIVISOR = 6  # position of divisor_override in the schema of avg_pool2d and avg_pool3d


@functools.cache
def invented_outputs() -> dict[Any, frozenset[int]]:
    """Outputs that the ONNX function of an operator fills with constants, because inference never reads them.

    Returns:
        Op overload -> positions. In a graph that reads one of them, the operator stays in PyTorch. Source: onnxscript 0.7,
        `onnxscript/function_libs/torch_lib/ops/`, where each is marked as faked.
    """
    bag, attention_extras = frozenset({1, 2, 3}), frozenset(range(1, 9))
    return {
        _aten.embedding_bag.default: bag,
        _aten.embedding_bag.padding_idx: bag,
        _aten._embedding_bag.default: bag,  # noqa: SLF001 - an operator's name, here and below
        _aten._embedding_bag_forward_only.default: bag,  # noqa: SLF001 - same
        _aten._linalg_det.default: frozenset({1, 2}),  # noqa: SLF001 - same
        _aten._native_batch_norm_legit_no_training.default: frozenset({1, 2}),  # noqa: SLF001 - same
        _aten._scaled_dot_product_efficient_attention.default: attention_extras,  # noqa: SLF001 - same
        _aten._scaled_dot_product_flash_attention.default: attention_extras,  # noqa: SLF001 - same
        _aten.nll_loss_forward.default: frozenset({1}),
    }


def _squeeze_dim(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """PyTorch ignores a squeeze of a dimension whose size is not 1, ONNX refuses it."""
    return _squeeze_dims(tensor, [dim])


def _squeeze_dims(tensor: torch.Tensor, dim: Sequence[int]) -> torch.Tensor:
    kept = [d for d in dim if tensor.dim() and tensor.shape[d] == 1]
    if len(kept) == len(dim):
        stays: torch.Tensor = _STAYS
        return stays
    squeezed: torch.Tensor = _aten.squeeze.dims(tensor, kept) if kept else _aten.alias.default(tensor)
    return squeezed


def _as_strided(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> torch.Tensor:
    """A view of the storage as a gather of values, because an ONNX tensor has no storage.

    It requires that the tensor's values fill the storage in some order of dimensions, from the tensor's own offset on. Otherwise
    the operator stays in PyTorch (see `support.storage_readers`).
    """
    start: Any = 0 if storage_offset is None else storage_offset - tensor.storage_offset()
    stored = tensor.permute(order_from_strides(tensor.shape, tensor.stride()))
    if not stored.is_contiguous() or start < 0:
        stays: torch.Tensor = _STAYS
        return stays
    index: torch.Tensor = torch.full((), start, dtype=torch.int64, device=tensor.device)
    for count, step in zip(size, stride, strict=True):
        index = index.unsqueeze(-1) + torch.arange(count, device=tensor.device) * step
    windows: torch.Tensor = stored.reshape(-1)[index]
    return laid_out(windows, order_from_strides(size, stride))


def _split(tensor: torch.Tensor, split_size: int, dim: int = 0) -> Sequence[torch.Tensor]:
    """A split whose size is known only at run time, as a split with one size per chunk.

    ONNX would make a sequence of unknown length. The number of chunks is known, because the graph has a node for each.
    """
    whole: Any = tensor.shape[dim]
    stays: Sequence[torch.Tensor] = _STAYS
    if isinstance(split_size, int) and isinstance(whole, int):
        return stays
    count = int((whole + split_size - 1) // split_size)  # fixes the count; the size stays symbolic
    sizes = [split_size] * (count - 1) + [whole - split_size * (count - 1)]
    chunks: Sequence[torch.Tensor] = _aten.split_with_sizes.default(tensor, sizes, dim)
    return chunks


def _div(tensor: torch.Tensor, other: Any) -> torch.Tensor:
    """True division of integers, whose result is a float, with an explicit conversion.

    torch 2.9 infers an integer result when the sizes are symbolic, and the nodes traced after it rely on that.
    Source: `make_fast_binary_impl` in `torch/_subclasses/fake_impls.py`.
    """
    if not (_is_whole(tensor) and _is_whole(other)):
        stays: torch.Tensor = _STAYS
        return stays
    wide = torch.get_default_dtype()
    quotient: torch.Tensor = _aten.div.Tensor(tensor.to(wide), other.to(wide) if isinstance(other, torch.Tensor) else other)
    return quotient


def _is_whole(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not (value.dtype.is_floating_point or value.dtype.is_complex)
    return isinstance(value, (int, torch.SymInt))


def _adaptive_max_pool(tensor: torch.Tensor, output_size: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Adaptive pooling whose windows all have the same size, as ordinary pooling. torch decomposes it itself from 2.10 or later on."""
    sizes: Sequence[Any] = tensor.shape[-len(output_size) :]
    stays: tuple[torch.Tensor, torch.Tensor] = _STAYS
    if any(wanted == 0 or size == 0 or size % wanted for size, wanted in zip(sizes, output_size, strict=True)):
        return stays
    if all(wanted == 1 for wanted in output_size):
        lowered = torch.argmax(tensor.flatten(-len(output_size)), -1)
        return tensor.amax(tuple(range(-len(output_size), 0)), keepdim=True), lowered.reshape([*lowered.shape, *output_size])
    pool = _aten.max_pool2d_with_indices if len(output_size) == 2 else _aten.max_pool3d_with_indices  # noqa: PLR2004 - dimensions
    pooled: tuple[torch.Tensor, torch.Tensor] = pool(tensor, [size // wanted for size, wanted in zip(sizes, output_size, strict=True)])
    return pooled
