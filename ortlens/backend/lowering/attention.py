"""Attention decomposed into matrix products and a softmax, which ONNX Runtime fuses again.

On the CPU, attention is one fused operator. The function that torch's exporter has for it does not compute the second output
(`logsumexp`). That is harmless in inference and wrong in training, where the backward reads it. For the backward there is neither a
function nor a decomposition.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` in `eval()` without gradients call one operator for the whole layer, which has
neither a decomposition nor an ONNX function. A mask of any type is read as booleans there: what is not zero is left out.

Grouped-query attention multiplies each key head with the queries of a group. Programs repeat the heads, as `repeat_kv` of transformers
and `scaled_dot_product_attention(enable_gqa=True)` do, and then make one product per query head. The repeated keys and values of a
cache are several times as large as the cache, and are copied at every token. `multiply_by_group` puts the rows of a group's queries below
each other in one matrix, and one product per head that is not repeated makes the same numbers. Batch, rows and features may vary, heads
may not.

Source: the definitions in torch's `aten/src/ATen/native/transformers/attention.cpp` and `transformer.cpp`, and the gradients of softmax
attention, Dao et al., "FlashAttention", 2022, appendix B.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.fx

from ortlens import _torch
from ortlens.backend.memory_order import laid_out, order_from_strides

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


_STAYS: Any = NotImplemented  # a decomposition returns it to leave the operator as it is


def whole(  # noqa: PLR0913, PLR0917 - the operator's schema
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
    """Compute softmax attention as in exported programs. The query is [..., head, row, feature]; a mask may be boolean."""
    groups = query.shape[-3] // key.shape[-3] if enable_gqa else 1
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.where(attn_mask, _number(0.0, query), _number(-torch.inf, query))
    scores = _scores(query, _repeated(key, groups), attn_mask, scale, is_causal=is_causal)
    weights = torch.softmax(scores, -1)
    if dropout_p > 0.0:
        weights = torch.dropout(weights, dropout_p, train=True)
    output = _attended(weights, _repeated(value, groups), attn_mask).to(query.dtype)
    return _laid_out_like(output, query) if query.dim() == 4 else output  # noqa: PLR2004 - what the fused operator takes


def forward(  # noqa: PLR0913 - the operator's schema
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - the operator's schema
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute softmax attention and the log-sum-exp of each row of scores. The query is [batch, head, row, feature]."""
    if dropout_p != 0.0:
        raise NotImplementedError(f"the fused attention of the CPU has no dropout, but dropout_p is {dropout_p}")
    groups = query.shape[1] // key.shape[1]
    scores = _scores(query, _repeated(key, groups), attn_mask, scale, is_causal=is_causal)
    output = _attended(torch.softmax(scores, -1), _repeated(value, groups), attn_mask).to(query.dtype)
    return _laid_out_like(output, query), torch.logsumexp(scores, -1)


def _attended(weights: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Multiply weights by values. A fully masked row gives zeros, as in PyTorch's operators, where softmax gives NaN.

    The mask shows such rows, and all heads and mostly all layers share it; searching the scores would cost as much as the softmax.
    """
    output = torch.matmul(weights, value.to(weights.dtype))
    if mask is None:
        return output
    return torch.where((mask == -torch.inf).all(-1, keepdim=True), _number(0.0, output), output)


def backward(  # noqa: PLR0913, PLR0917 - the operator's schema
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
    """Compute the gradients of query, key and value; the probabilities are recomputed from `logsumexp`."""
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
    """Give the output the memory order of the query, as the fused operator does: later code may view it without a copy."""
    strides = [_torch.size_hint(stride) for stride in torch.empty_like(query).stride()]  # nothing reads it; the query may be expanded
    order = order_from_strides(query.shape, strides)
    return output.contiguous() if order == list(range(query.dim())) else laid_out(output, order)


def _like_operator(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Lay out the gradient in memory as the fused operator does: [batch, row, head, feature]."""
    return gradient.to(like.dtype).transpose(1, 2).contiguous().transpose(1, 2)


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return float(query.shape[-1]) ** -0.5 if scale is None else scale


def _scores(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, scale: float | None, *, is_causal: bool) -> torch.Tensor:
    """Compute scaled, masked scores, in float32 for 16-bit types, as in the fused operator."""
    wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    scores = torch.matmul(query.to(wide), key.to(wide).transpose(-2, -1)) * _scale(query, scale)
    if is_causal:
        rows, columns = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1), torch.arange(key.shape[-2], device=query.device)
        scores = torch.where(columns <= rows, scores, _number(-torch.inf, scores))
    return scores if mask is None else scores + mask.to(wide)


def _number(value: float, like: torch.Tensor) -> torch.Tensor:
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _repeated(tensor: torch.Tensor, groups: int) -> torch.Tensor:
    """Repeat the heads of key or value for each query head that shares them."""
    return tensor if groups == 1 else tensor.repeat_interleave(groups, -3)


def _summed(gradient: torch.Tensor, groups: int) -> torch.Tensor:
    if groups == 1:
        return gradient
    batch, heads, rows, features = gradient.shape
    return gradient.reshape(batch, heads // groups, groups, rows, features).sum(2)


def multi_head(  # noqa: PLR0913, PLR0917 - the operator's schema
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
) -> Any:
    """Decompose `aten._native_multi_head_attention` of a [batch, row, feature] query; returns the result and, if needed, the weights."""
    if query.is_nested:
        return _STAYS
    batch, rows = query.shape[:2]
    size = embed_dim // num_head
    projected = [
        torch.nn.functional.linear(given, weight, bias).view(batch, -1, num_head, size).transpose(1, 2)
        for given, weight, bias in zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    ]
    scores = torch.matmul(projected[0] * size**-0.5, projected[1].transpose(-2, -1))
    if mask is not None:
        scores = scores.masked_fill(_over_heads(mask, mask_type), -torch.inf)
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
) -> Any:
    """Decompose `aten._transformer_encoder_layer_fwd` of [batch, row, feature]: attention and feed-forward, each added to its input."""
    if src.is_nested:
        return _STAYS

    def attend(x: torch.Tensor) -> Any:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return multi_head(x, x, x, embed_dim, num_heads, *projections, mask, need_weights=False, mask_type=mask_type)[0]

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


def _over_heads(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """Reshape a mask to [batch, head, row, column]: type 0 is [row, column], 1 is [batch, column], 2 has all four dimensions."""
    left_out = mask.to(torch.bool)
    if mask_type == 0:
        return left_out[None, None]
    return left_out[:, None, None, :] if mask_type == 1 else left_out


_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)  # noqa: SLF001 - an operator's name
_Size: TypeAlias = tuple[torch.fx.Node, int, int]  # a multiple of a size: a node, one of its dimensions, and the factor
_HEADS = 2  # the dimension in which repeated heads lie before they are one dimension with the others: (batch, head, copy, row, feature)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repeated:
    """Matrices that are repeated for each query head of a group."""

    source: torch.fx.Node  # (batch, head, row, feature), each head once
    count: int  # how many query heads share a head
    transposed: bool  # whether the product reads (feature, row)


def multiply_by_group(graph: torch.fx.Graph) -> None:
    """Let batched products with repeated matrices read each of them once; the copies that nothing reads any more stay."""
    for product in graph.find_nodes(op="call_function", target=_aten.bmm.default):
        repeated = _repeated_matrices(product.args[1])
        if repeated is not None:
            _regroup(graph, product, repeated)


def _repeated_matrices(node: Any) -> _Repeated | None:
    """Find the matrices that the second operand of a product repeats; None if it does not."""
    flat: Any = _before(node, _RESHAPES)
    if flat is None or flat.meta["val"].dim() != 4 or _shape(node) != _one_by_one(flat):  # noqa: PLR2004 - batch, head, row, feature
        return None
    while flat.target is _aten.expand.default and _shape(flat.args[0]) == _shape(flat):
        flat = flat.args[0]
    transposed = _is_transposed(flat)
    wide: Any = _before(flat.args[0] if transposed else flat, _RESHAPES)
    if wide is not None and wide.target is _aten.clone.default:
        wide = wide.args[0]
    single: Any = None if wide is None else _before(wide, (_aten.expand.default,))
    source = None if single is None else _before(single, (_aten.unsqueeze.default,))
    if source is None or source.meta["val"].dim() != 4 or single.args[1] not in (_HEADS, _HEADS - 5):  # noqa: PLR2004 - as above
        return None
    head, count = wide.meta["val"].shape[1:3]
    if type(head) is not int or type(count) is not int or count == 1:
        return None
    batch, _, _, *matrix = _shape(wide)
    if _shape(flat.args[0] if transposed else flat) != [batch, str(head * count), *matrix] or _shape(source) != [batch, str(head), *matrix]:
        return None
    return _Repeated(source=source, count=count, transposed=transposed)


def _regroup(graph: torch.fx.Graph, product: torch.fx.Node, repeated: _Repeated) -> None:
    """Change a product so that it multiplies the rows of whole groups, and give its readers the shape that they know."""
    left: Any = product.args[0]
    source, was = repeated.source, product.meta["val"]
    with graph.inserting_before(product):
        matrices = (source, 0, source.meta["val"].shape[1])
        grouped = _reshaped(product, left, [matrices, (left, 1, repeated.count), (left, 2, 1)])
        single = _reshaped(product, source, [matrices, (source, 2, 1), (source, 3, 1)])
        if repeated.transposed:
            plain = single.meta["val"]
            single = graph.call_function(_aten.transpose.int, (single, 1, 2))
            single.meta = {**product.meta, "val": plain.transpose(1, 2)}
    product.args = (grouped, single)
    product.meta = {**product.meta, "val": was.new_empty([*grouped.meta["val"].shape[:2], was.shape[2]])}
    with graph.inserting_before(product.next):
        made = _reshaped(product, product, [(left, 0, 1), (left, 1, 1), (source, 2 if repeated.transposed else 3, 1)])
    made.meta["val"] = was
    product.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def _reshaped(like: torch.fx.Node, node: Any, sizes: Sequence[_Size]) -> torch.fx.Node:
    """Give a value other sizes, before the product that it is for."""
    known = [of.meta["val"].shape[dim] * factor for of, dim, factor in sizes]
    varying = [place for place, size in enumerate(known) if type(size) is not int]
    if len(varying) == 1 and all(size for size in known if type(size) is int):  # with a size of 0, -1 could be any number
        given = [-1 if place in varying else size for place, size in enumerate(known)]
    else:
        given = [_size(*size) if place in varying else known[place] for place, size in enumerate(sizes)]
    made = like.graph.call_function(_aten.reshape.default, (node, given))
    made.meta = {**like.meta, "val": node.meta["val"].new_empty(known)}
    return made


def _size(of: torch.fx.Node, dim: int, factor: int) -> torch.fx.Node:
    size = of.graph.call_function(_aten.sym_size.int, (of, dim))
    size.meta = {"val": of.meta["val"].shape[dim]}
    if factor == 1:
        return size
    made = of.graph.call_function(operator.mul, (size, factor))
    made.meta = {"val": size.meta["val"] * factor}
    return made


def _before(node: Any, targets: Collection[Any]) -> torch.fx.Node | None:
    """Return what a node of some operators reads, if that is a tensor."""
    source = node.args[0] if isinstance(node, torch.fx.Node) and node.target in targets else None
    return source if isinstance(source, torch.fx.Node) and isinstance(source.meta.get("val"), torch.Tensor) else None


def _is_transposed(node: torch.fx.Node) -> bool:
    if node.target is _aten.transpose.int:
        return {int(dim) % 4 for dim in node.args[1:]} == {2, 3}  # type: ignore[arg-type]  # numbers, by the schema
    return node.target is _aten.permute.default and list(node.args[1]) == [0, 1, 3, 2]  # type: ignore[arg-type]  # likewise


def _one_by_one(node: Any) -> list[str]:
    """Compute the sizes of the matrices of (batch, head, row, feature) when batch and head are one dimension."""
    batch, head, *matrix = node.meta["val"].shape
    return [str(size) for size in (batch * head, *matrix)]


def _shape(node: Any) -> list[str]:
    """Return the sizes of a node as texts: comparing symbols would add guards."""
    return [str(size) for size in node.meta["val"].shape]
