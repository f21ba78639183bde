"""Decompositions of our own, where torch has none or one that ONNX cannot use, and functions that are not to be trusted.

Attention on the CPU reaches the backend as one fused operator. torch's exporter has a function for it, which makes up its
second output (`logsumexp`): harmless in inference, wrong in training, where the backward reads it. And for the backward
there is neither a function nor a decomposition. Both are written out here with matrix products and a softmax, which ONNX
Runtime fuses again.

Source: the definitions in torch's `aten/src/ATen/native/transformers/attention.cpp` and the gradients of softmax
attention, Dao et al., "FlashAttention", 2022, appendix B.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_aten = torch.ops.aten
_STAYS: Any = NotImplemented  # what a decomposition answers to leave the operator as it is


@functools.cache
def own() -> dict[Any, Callable[..., Any]]:
    """Decompositions of our own: attention, as exported programs hold it and in the CPU's fused form, and `as_strided`.

    Returns:
        Op overload -> function, for AOTAutograd's table.
    """
    return {
        _aten.as_strided.default: _as_strided,
        _aten.squeeze.dim: _squeeze_dim,
        _aten.squeeze.dims: _squeeze_dims,
        _aten.scaled_dot_product_attention.default: _attention,
        _aten._scaled_dot_product_flash_attention_for_cpu.default: _attention_forward,  # noqa: SLF001 - an operator's name
        _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,  # noqa: SLF001 - same
    }


@functools.cache
def distrusted() -> frozenset[Any]:
    """Ops that torch's own decompositions are used for, because their ONNX functions give other numbers.

    Returns:
        Op overloads. `nll_loss_forward` makes up its second output, by which the backward divides; the training form of
        batch normalisation gives a biased running variance.
    """
    return frozenset({_aten.nll_loss_forward.default, _aten._native_batch_norm_legit_functional.default})  # noqa: SLF001 - a name


def wrong_for(node: torch.fx.Node) -> str | None:
    """Whether an op's ONNX function gives other numbers for these arguments.

    Args:
        node: A `call_function` node.

    Returns:
        What is wrong, or None. Source: onnxscript 0.7, `onnxscript/function_libs/torch_lib/ops/nn.py` and `core.py`.
    """
    if node.target in (_aten.avg_pool2d.default, _aten.avg_pool3d.default):
        given = node.args[_DIVISOR] if len(node.args) > _DIVISOR else node.kwargs.get("divisor_override")
        return None if given is None else "ignores divisor_override"
    if node.target is _aten.scatter_reduce.two:
        return "adds up where it should average" if "mean" in (*node.args, *node.kwargs.values()) else None
    return None


_DIVISOR = 6  # place of divisor_override in the schema of avg_pool2d and avg_pool3d


@functools.cache
def made_up_outputs() -> dict[Any, frozenset[int]]:
    """Outputs that an op's ONNX function fills with something else, because inference never reads them.

    Returns:
        Op overload -> positions; a graph that reads one of them keeps the op in PyTorch. Source: onnxscript 0.7,
        `onnxscript/function_libs/torch_lib/ops/`, where each is marked as faked.
    """
    bag, attention_extras = frozenset({1, 2, 3}), frozenset(range(1, 9))
    return {
        _aten.embedding_bag.default: bag,
        _aten.embedding_bag.padding_idx: bag,
        _aten._embedding_bag.default: bag,  # noqa: SLF001 - operators' names, here and below
        _aten._embedding_bag_forward_only.default: bag,  # noqa: SLF001 - same
        _aten._linalg_det.default: frozenset({1, 2}),  # noqa: SLF001 - same
        _aten._native_batch_norm_legit_no_training.default: frozenset({1, 2}),  # noqa: SLF001 - same
        _aten._scaled_dot_product_efficient_attention.default: attention_extras,  # noqa: SLF001 - same
        _aten._scaled_dot_product_flash_attention.default: attention_extras,  # noqa: SLF001 - same
        _aten.nll_loss_forward.default: frozenset({1}),
    }


def _squeeze_dim(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Squeezing a dimension that has more than one index does nothing; ONNX refuses it."""
    return _squeeze_dims(tensor, [dim])


def _squeeze_dims(tensor: torch.Tensor, dim: Sequence[int]) -> torch.Tensor:
    kept = [d for d in dim if tensor.dim() and tensor.shape[d] == 1]
    if len(kept) == len(dim):
        stays: torch.Tensor = _STAYS
        return stays
    squeezed: torch.Tensor = _aten.squeeze.dims(tensor, kept) if kept else _aten.alias.default(tensor)
    return squeezed


def _as_strided(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> torch.Tensor:
    """A window on storage, as a gather from the values: an ONNX tensor has values and no storage.

    Works where the values are the whole storage in some order of dimensions, from the tensor's own offset on. Elsewhere
    the operator stays, and PyTorch runs it (see `support.storage_readers`).
    """
    start: Any = 0 if storage_offset is None else storage_offset - tensor.storage_offset()
    strides: Sequence[Any] = tensor.stride()
    laid_out = tensor.permute(sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], tensor.shape[dim] == 1)))
    if not laid_out.is_contiguous() or start < 0:
        stays: torch.Tensor = _STAYS
        return stays
    index: torch.Tensor = torch.full((), start, dtype=torch.int64, device=tensor.device)
    for count, step in zip(size, stride, strict=True):
        index = index.unsqueeze(-1) + torch.arange(count, device=tensor.device) * step
    windows: torch.Tensor = laid_out.reshape(-1)[index]
    order = sorted(range(len(size)), key=lambda dim: (-stride[dim], size[dim] == 1))
    return windows.permute(order).contiguous().permute([order.index(dim) for dim in range(len(size))])


def _attention(  # noqa: PLR0913, PLR0917 - the operator's schema
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - the operator's schema
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Softmax attention as exported programs hold it; query is [..., head, row, feature], a mask may be boolean."""
    groups = query.shape[-3] // key.shape[-3] if enable_gqa else 1
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.where(attn_mask, _number(0.0, query), _number(-torch.inf, query))
    scores = _scores(query, _repeated(key, groups), attn_mask, scale, is_causal=is_causal)
    weights = _weights(scores, masked=attn_mask is not None)
    if dropout_p > 0.0:
        weights = torch.dropout(weights, dropout_p, train=True)
    return torch.matmul(weights, _repeated(value, groups).to(weights.dtype)).to(query.dtype)


def _attention_forward(  # noqa: PLR0913 - the operator's schema
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - the operator's schema
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention and the logarithm of each row's sum of exponentials; query is [batch, head, row, feature]."""
    if dropout_p != 0.0:
        raise NotImplementedError(f"the fused attention of the CPU has no dropout, but dropout_p is {dropout_p}")
    groups = query.shape[1] // key.shape[1]
    scores = _scores(query, _repeated(key, groups), attn_mask, scale, is_causal=is_causal)
    weights = _weights(scores, masked=attn_mask is not None)
    output = torch.matmul(weights, _repeated(value, groups).to(weights.dtype)).to(query.dtype)
    return _laid_out_like(output, query), torch.logsumexp(scores, -1)


def _weights(scores: torch.Tensor, *, masked: bool) -> torch.Tensor:
    """Softmax over the last dimension; a row with nothing to look at gives zeros, as PyTorch's operators do, not NaN."""
    weights = torch.softmax(scores, -1)
    if not masked:
        return weights
    return torch.where((scores == -torch.inf).all(-1, keepdim=True), _number(0.0, weights), weights)


def _attention_backward(  # noqa: PLR0913, PLR0917 - the operator's schema
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,  # noqa: FBT001 - the operator's schema
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value; probabilities are computed anew from `logsumexp`."""
    del dropout_p
    groups = query.shape[1] // key.shape[1]
    keys, values = _repeated(key, groups), _repeated(value, groups)
    scores = _scores(query, keys, attn_mask, scale, is_causal=is_causal)
    weights = torch.exp(scores - logsumexp.unsqueeze(-1))
    if attn_mask is not None:
        weights = torch.where((logsumexp == -torch.inf).unsqueeze(-1), _number(0.0, weights), weights)
    gradient = grad_out.to(weights.dtype)
    grad_value = torch.matmul(weights.transpose(-2, -1), gradient)
    grad_weights = torch.matmul(gradient, values.to(weights.dtype).transpose(-2, -1))
    row_sum = (gradient * out.to(weights.dtype)).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - row_sum) * _scale(query, scale)
    grad_query = torch.matmul(grad_scores, keys.to(weights.dtype))
    grad_key = torch.matmul(grad_scores.transpose(-2, -1), query.to(weights.dtype))
    return (
        _like_operator(grad_query, query),
        _like_operator(_summed(grad_key, groups), key),
        _like_operator(_summed(grad_value, groups), value),
    )


def _laid_out_like(output: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """In the layout of the query, as the fused operator gives it: code after it may view it without a copy."""
    if query.transpose(1, 2).is_contiguous() and not query.is_contiguous():
        return output.transpose(1, 2).contiguous().transpose(1, 2)
    return output.contiguous()


def _like_operator(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """In the layout that the fused operator gives its gradients: [batch, row, head, feature] in memory."""
    return gradient.to(like.dtype).transpose(1, 2).contiguous().transpose(1, 2)


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return float(query.shape[-1]) ** -0.5 if scale is None else scale


def _scores(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, scale: float | None, *, is_causal: bool) -> torch.Tensor:
    """Scaled, masked scores, in float32 for the 16-bit types, as the fused operator accumulates."""
    wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    scores = torch.matmul(query.to(wide), key.to(wide).transpose(-2, -1)) * _scale(query, scale)
    if is_causal:
        rows, columns = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1), torch.arange(key.shape[-2], device=query.device)
        scores = torch.where(columns <= rows, scores, _number(-torch.inf, scores))
    return scores if mask is None else scores + mask.to(wide)


def _number(value: float, like: torch.Tensor) -> torch.Tensor:
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _repeated(tensor: torch.Tensor, groups: int) -> torch.Tensor:
    """Heads of key or value once per query head that shares them."""
    return tensor if groups == 1 else tensor.repeat_interleave(groups, -3)


def _summed(gradient: torch.Tensor, groups: int) -> torch.Tensor:
    if groups == 1:
        return gradient
    batch, heads, rows, features = gradient.shape
    return gradient.reshape(batch, heads // groups, groups, rows, features).sum(2)
