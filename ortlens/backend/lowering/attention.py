"""Attention decomposed into matrix products and a softmax, which ONNX Runtime fuses again.

PyTorch computes attention by one fused operator, whose outputs and gradients are those of `fused_attention`. Tensors on CUDA are
multiplied in their own dtype, others in float32 at least: docs/adr/0012-attention-on-cuda.md.

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
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens.backend.basis.memory_order import laid_out, order_from_strides

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


_aten = torch.ops.aten
_STAYS: Any = NotImplemented  # a decomposition returns it to leave the operator as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """What is left out of scores of [..., head, row, key]."""

    added: torch.Tensor | None = None  # added to the scores
    seen: torch.Tensor | None = None  # of [row, key]: whether the causal mask lets a row see a key; None: every row sees all
    sees: torch.Tensor | None = None  # of [..., row, 1]: whether a row sees any key; None: each does

    @classmethod
    def of(cls, query: torch.Tensor, key: torch.Tensor, added: torch.Tensor | None, *, is_causal: bool, before: Any = 0) -> Mask:
        """Combine a mask with the causal one, in which the first row sees the first key and the `before` next ones."""
        seen = sees = None
        if is_causal:
            rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1) + before
            seen = torch.arange(key.shape[-2], device=query.device) <= rows
            sees = None if statically_known_true(before >= 0) else rows >= 0
        if added is None:
            return cls(seen=seen, sees=sees)
        added = _unexpanded(added)
        if seen is not None:
            added = torch.where(seen, added, _number(-torch.inf, added))
        compared = added.float() if added.dtype is torch.bfloat16 else added  # ONNX Runtime 1.31 compares no bfloat16 on CUDA
        return cls(added=added, sees=(compared != -torch.inf).any(-1, keepdim=True))


def _unexpanded(mask: torch.Tensor) -> torch.Tensor:
    """Take the values of a mask once that are expanded, as PyTorch does for every head; see `read_unexpanded`."""
    for dim, (size, stride) in enumerate(zip(mask.shape, mask.stride(), strict=True)):
        if isinstance(stride, int) and not stride and not statically_known_true(size == 1):
            mask = _aten.slice.Tensor(mask, dim, 0, 1)
    return mask


def plain(  # noqa: PLR0913, PLR0917 - the operator's schema
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - the operator's schema
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute softmax attention and its weights, in the order in memory that products have.

    The query is [..., head, row, feature]; a mask may be boolean.
    """
    groups = query.shape[-3] // key.shape[-3] if enable_gqa else 1
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.where(attn_mask, _number(0.0, query), _number(-torch.inf, query))
    mask = Mask.of(query, key, attn_mask, is_causal=is_causal)
    weights = torch.softmax(_scores(query, _repeated(key, groups), mask, scale), -1)
    if dropout_p > 0.0:
        weights = torch.dropout(weights, dropout_p, train=True)
    return _attended(weights, _repeated(value, groups), mask).to(query.dtype), weights


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Mask, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute softmax attention and the log-sum-exp of each row of scores. All are [batch, head, row, feature]; heads may share keys."""
    scores = _scores(query, _repeated_for(key, query), mask, scale)
    output = _attended(torch.softmax(scores, -1), _repeated_for(value, query), mask).to(query.dtype)
    return output, torch.logsumexp(scores.to(_wide(query)), -1)


def _attended(weights: torch.Tensor, value: torch.Tensor, mask: Mask) -> torch.Tensor:
    """Multiply weights by values. A fully masked row gives zeros, as in PyTorch's operators, where softmax gives NaN.

    The mask shows such rows, and all heads and mostly all layers share it; searching the scores would cost as much as the softmax.
    """
    output = torch.matmul(weights, value.to(weights.dtype))
    return output if mask.sees is None else torch.where(mask.sees, output, _number(0.0, output))


def backward(  # noqa: PLR0913, PLR0917 - what the gradients are made of
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, mask: Mask, scale: float | None
) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of query, key, value and scores.

    The weights are computed as in the forward, so that AOTAutograd, which partitions both as one graph, finds them once. They could be
    made of the log-sum-exp that the operators return for it, but a softmax is one kernel in ONNX Runtime, and that would be two.
    """
    keys, values = _repeated_for(key, query), _repeated_for(value, query)
    weights = torch.softmax(_scores(query, keys, mask, scale), -1)
    if mask.sees is not None:
        weights = torch.where(mask.sees, weights, _number(0.0, weights))
    kind, wide = weights.dtype, _wide(query)
    gradient = grad_out.to(kind)
    grad_value = torch.matmul(weights.transpose(-2, -1), gradient)
    grad_weights = torch.matmul(gradient, values.to(kind).transpose(-2, -1))
    row_sum = (grad_out.to(wide) * out.to(wide)).sum(-1, keepdim=True)
    grad_scores = weights.to(wide) * (grad_weights.to(wide) - row_sum)
    grad_query = _scaled(torch.matmul(grad_scores.to(kind), keys.to(kind)), query, scale)
    grad_key = torch.matmul(grad_scores.to(kind).transpose(-2, -1), _scaled(query.to(kind), query, scale))
    shared = _summed_for(grad_key, key), _summed_for(grad_value, value)
    return grad_query.to(query.dtype), shared[0].to(key.dtype), shared[1].to(value.dtype), grad_scores


def laid_out_like(value: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Give a value the memory order of the query, as fused operators do: later code may view it without a copy."""
    strides = [_torch.size_hint(stride) for stride in torch.empty_like(query).stride()]  # nothing reads it; the query may be expanded
    return laid_out(value, order_from_strides(query.shape, strides))


def _wide(query: torch.Tensor) -> torch.dtype:
    return torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype


def product_dtype(query: torch.Tensor) -> torch.dtype:
    """Return the dtype in which matrices are multiplied, and scores are masked and rounded.

    GPUs multiply 16-bit floats with accumulators of float32, many times as fast as float32. Few CPUs multiply them at all.
    """
    return query.dtype if query.device.type == "cuda" else _wide(query)


def _scaled(value: torch.Tensor, query: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Multiply by the scale, in the dtype of the value: ONNX Runtime takes such a constant into the product, and no conversion."""
    return value * _number(float(query.shape[-1]) ** -0.5 if scale is None else scale, value)


_LEAST_HALF = -(2.0**15)
"""Added to a score in float16, the least that a mask has to hold: the exponential is 0 beside any other score, and nothing overflows."""


def _scores(query: torch.Tensor, key: torch.Tensor, mask: Mask, scale: float | None) -> torch.Tensor:
    """Compute scaled, masked scores. The query is scaled, which has fewer numbers, and the product overflows later in float16."""
    dtype = product_dtype(query)
    scores = torch.matmul(_scaled(query.to(dtype), query, scale), key.to(dtype).transpose(-2, -1))
    if mask.added is not None:
        added = mask.added.to(dtype)
        return scores + (added.clamp(min=_LEAST_HALF) if dtype is torch.float16 else added)
    return scores if mask.seen is None else torch.where(mask.seen, scores, _number(-torch.inf, scores))


def _number(value: float, like: torch.Tensor) -> torch.Tensor:
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _repeated(tensor: torch.Tensor, groups: int) -> torch.Tensor:
    """Repeat the heads of key or value for each query head that shares them."""
    return tensor if groups == 1 else tensor.repeat_interleave(groups, -3)


def _repeated_for(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    return _repeated(tensor, query.shape[1] // tensor.shape[1])


def _summed_for(gradient: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """Add up the gradients of the query heads that share one of key or value."""
    batch, heads, rows, features = gradient.shape
    groups = heads // shared.shape[1]
    return gradient if groups == 1 else gradient.reshape(batch, heads // groups, groups, rows, features).sum(2)


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


def read_unexpanded(graph: torch.fx.Graph) -> None:
    """Let what reads the first of expanded values read the value before it was expanded: masks, whose copies nothing reads then."""
    sources: dict[torch.fx.Node, torch.fx.Node] = {}  # a slice of an expanded value -> the value
    for node in graph.find_nodes(op="call_function", target=_aten.slice.Tensor):
        base: Any = node.args[0]
        source = sources.get(base, _before(base, (_aten.expand.default,)))
        if source is None or list(node.args[2:]) != [0, 1]:
            continue
        sources[node] = source
        added = node.meta["val"].dim() - source.meta["val"].dim()
        if _shape(node) != ["1"] * added + _shape(source):
            continue
        with graph.inserting_before(node):
            for _ in range(added):
                plain = source.meta["val"]
                source = graph.call_function(_aten.unsqueeze.default, (source, 0))
                source.meta = {**node.meta, "val": plain.unsqueeze(0)}
        node.replace_all_uses_with(source)


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
