"""The fused layers of `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` in inference, decomposed into what ONNX has operators for.

In `eval()` without gradients these modules call one operator for the whole layer, which has neither a decomposition nor an ONNX function.

Source: torch's `aten/src/ATen/native/transformers/attention.cpp` and `transformer.cpp`. A mask of any type is read as booleans there:
what is not zero is left out.
"""

from __future__ import annotations

from typing import Any

import torch

_STAYS: Any = NotImplemented  # a decomposition returns it to leave the operator as it is


def attention(  # noqa: PLR0913, PLR0917 - the operator's schema
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002 - the operator's schema
    average_attn_weights: bool = True,  # noqa: FBT001, FBT002 - same
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Decompose `aten._native_multi_head_attention` of a [batch, row, feature] query; returns the result and, if needed, the weights."""
    if query.is_nested:
        stays: tuple[torch.Tensor, torch.Tensor | None] = _STAYS
        return stays
    batch, rows = query.shape[:2]
    size = embed_dim // num_head
    projected = [
        torch.nn.functional.linear(given, weight, bias).view(batch, -1, num_head, size).transpose(1, 2)
        for given, weight, bias in zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    ]
    scores = torch.matmul(projected[0] * size**-0.5, projected[1].transpose(-2, -1))
    if mask is not None:
        scores = scores.masked_fill(_broadcast(mask, mask_type), -torch.inf)
    weights = torch.softmax(scores, -1)
    attended = torch.matmul(weights, projected[2]).transpose(1, 2).reshape(batch, rows, embed_dim)
    result = torch.nn.functional.linear(attended, proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, weights.mean(1) if average_attn_weights else weights


def encoder_layer(  # noqa: PLR0913, PLR0917 - the operator's schema
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,  # noqa: FBT001 - the operator's schema
    norm_first: bool,  # noqa: FBT001 - same
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Decompose `aten._transformer_encoder_layer_fwd` of [batch, row, feature]: attention and feed-forward, each added to its input."""
    if src.is_nested:
        stays: torch.Tensor = _STAYS
        return stays

    def attend(x: torch.Tensor) -> torch.Tensor:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return attention(x, x, x, embed_dim, num_heads, *projections, mask, need_weights=False, mask_type=mask_type)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.linear(x, ffn_weight_1, ffn_bias_1)
        return torch.nn.functional.linear(torch.nn.functional.gelu(inner) if use_gelu else inner.relu(), ffn_weight_2, ffn_bias_2)

    def first_norm(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(first_norm(src))
        return x + feed(second_norm(x))
    x = first_norm(src + attend(src))
    return second_norm(x + feed(x))


def _broadcast(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """Reshape a mask to [batch, head, row, column]: type 0 is [row, column], 1 is [batch, column], 2 has all four dimensions."""
    left_out = mask.to(torch.bool)
    if mask_type == 0:
        return left_out[None, None]
    return left_out[:, None, None, :] if mask_type == 1 else left_out
