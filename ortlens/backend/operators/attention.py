"""Attention: on CUDA one operator of ONNX Runtime's own, which keeps no scores; else products and a softmax, which it fuses again.

PyTorch computes attention by one fused operator, which depends on device, dtype, sizes and mask. Torch's exporter has functions for some,
which leave out the log-sum-exp that the backward reads, or raise. For the backward there is neither a function nor a decomposition. Here
all have one form. Results have the sizes, dtypes and order in memory of torch's shape functions; what only serves a dropout is zero. A
call with dropout stays in PyTorch, which draws the numbers. The causal mask begins at the first row and key, but in the flash operator of
CUDA, where it ends at the last ones. Tensors on CUDA are multiplied in their own dtype, others in float32 at least:
docs/adr/0012-attention-on-cuda.md.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` in `eval()` without gradients call one operator for the whole layer, which has
neither a decomposition nor an ONNX function. A mask of any type is read as booleans there: what is not zero is left out.

Source: the definitions in torch's `aten/src/ATen/native/transformers/attention.cpp` and `transformer.cpp`, the shapes in
`torch/_meta_registrations.py`, the causal masks in `torch/nn/attention/bias.py`, and the gradients of softmax attention, Dao et al.,
"FlashAttention", 2022, appendix B.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
import onnxscript
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortlens import _torch
from ortlens.backend.basis.memory_order import laid_out, order_from_strides
from ortlens.backend.operators import basics, facts
from ortlens.backend.operators.basics import op
from ortlens.backend.operators.facts import STAYS, decomposes, torch_op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Given = Mapping[str, Any]

_aten = torch.ops.aten
_WHOLE = _aten.scaled_dot_product_attention.default

_Schema = onnx.defs.OpSchema


def _in_one() -> Any:
    """Make the operator of ONNX Runtime's own, whose schema is not in `onnx`; with the inputs and settings that are used here."""

    def given(name: str, *, optional: bool) -> Any:
        option = onnx.defs.OpSchema.FormalParameterOption
        return _Schema.FormalParameter(name, "T", param_option=option.Optional if optional else option.Single)

    names = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias")
    kinds = (("num_heads", _Schema.AttrType.INT), ("scale", _Schema.AttrType.FLOAT), ("unidirectional", _Schema.AttrType.INT))
    schema = _Schema(
        "MultiHeadAttention",
        "com.microsoft",
        1,
        inputs=[given(name, optional=place > 2) for place, name in enumerate(names)],  # noqa: PLR2004 - the last three
        outputs=[given("output", optional=False)],
        type_constraints=[("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], "")],
        attributes=[_Schema.Attribute(name, kind, required=name == "num_heads") for name, kind in kinds],
    )
    return onnxscript.values.Op(onnxscript.values.Opset(schema.domain, 1), schema.name, schema)


_multi_head: Any = _in_one()
_LEAST_WIDE = -1e30  # instead of minus infinity, of which kernels make NaN where a whole block of keys is left out


@torch_op(_WHOLE)
@facts.named(_WHOLE)
def attention(given: Any) -> Any:
    """`aten.scaled_dot_product_attention` where `_attention` has left it whole."""
    query, mask = given.query, given.attn_mask
    heads, size, width = query.shape[1], query.shape[3], given.value.shape[3]
    if basics.device_type.get() != "cuda" or given.dropout_p or not isinstance(heads, int) or not isinstance(width, int):
        raise basics.NotConvertibleError("is one operator on CUDA only, without dropout")
    settings: dict[str, Any] = {"num_heads": heads, "unidirectional": int(given.is_causal)}
    if given.scale is not None:
        settings["scale"] = float(given.scale)
    is_shared = given.enable_gqa
    shared = [_repeated_heads(value, heads) if is_shared and value.shape[1] != heads else value for value in (given.key, given.value)]
    inputs = [op.Reshape(_turned(query), op.Constant(value_ints=[0, 0, heads * size])), *shared]
    inputs += [] if mask is None else [None, None, _added(mask, query, given.key)]
    attended = op.Reshape(_multi_head(*inputs, **settings), op.Constant(value_ints=[0, 0, heads, width]))
    if mask is not None:
        attended = op.Where(_turned(_of_four(_sees(mask), len(mask.shape))), attended, basics.number(query, 0.0))
    return _turned(attended)


def _turned(value: Any) -> Any:
    return op.Transpose(value, perm=[0, 2, 1, 3])


def _repeated_heads(tensor: Any, heads: int) -> Any:
    """Repeat each head of key or value for the query heads that share it."""
    count, size = tensor.shape[1], tensor.shape[3]
    each = op.Unsqueeze(tensor, op.Constant(value_ints=[2]))
    return op.Reshape(op.Expand(each, op.Constant(value_ints=[1, 1, heads // count, 1, 1])), op.Constant(value_ints=[0, heads, -1, size]))


def _of_four(made: Any, rank: int) -> Any:
    """Give what has the dimensions of a mask, or is made of it, those of scores."""
    return made if rank == 4 else op.Unsqueeze(made, op.Constant(value_ints=list(range(4 - rank))))  # noqa: PLR2004 - same


def _added(mask: Any, query: Any, key: Any) -> Any:
    """Make numbers to add to the scores of [batch or 1, head or 1, row, key] of a mask."""
    kind = int(query.dtype)
    least = basics.number(query, _LEAST_HALF if kind == basics.FLOAT16 else _LEAST_WIDE)
    if int(mask.dtype) == basics.BOOL:
        added = op.Where(mask, basics.number(query, 0.0), least)
    else:
        added = op.Max(mask if int(mask.dtype) == kind else op.Cast(mask, to=kind), least)
    sizes = list(mask.shape)[-2:]
    if len(sizes) == 2 and all(size == of.shape[2] for size, of in zip(sizes, (query, key), strict=True)):  # noqa: PLR2004 - row, key
        return _of_four(added, len(mask.shape))
    rows, keys = (op.Shape(of, start=2, end=3) for of in (query, key))
    return op.Expand(_of_four(added, len(mask.shape)), op.Concat(op.Constant(value_ints=[1, 1]), rows, keys, axis=0))


def _sees(mask: Any) -> Any:
    """Tell which rows see any key: the others get zeros in PyTorch."""
    seen = mask if int(mask.dtype) == basics.BOOL else op.Not(op.Equal(op.Cast(mask, to=basics.FLOAT), op.Constant(value_float=-math.inf)))
    return op.Cast(op.ReduceMax(op.Cast(seen, to=basics.FLOAT), op.Constant(value_ints=[-1]), keepdims=1), to=basics.BOOL)


_SOME_ROWS = 64
"""From here on, attention of 16 bits on CUDA is faster as one operator of ONNX Runtime's own, which uses PyTorch's kernels."""
_MANY_SCORES = 1024 * 1024
"""From here on, this is so for float32, too."""
facts.keeps_whole(_WHOLE, when=lambda tracing: tracing.on_cuda and not tracing.with_gradient)


@decomposes(_WHOLE)
def _attention(query: torch.Tensor, *args: Any, **named: Any) -> Any:
    """Leave attention to the operator of ONNX Runtime's own where that is faster; decompose other attention."""
    given = facts.by_name(_WHOLE, (query, *args), named)
    if _is_one_attention(given):
        return STAYS
    output, _ = plain(given)
    if query.device.type != "cuda":
        return laid_out_like(output, query) if query.dim() == 4 else output  # noqa: PLR2004 - what the fused operator takes
    shown = _torch.untraced(functools.partial(_torch.taken_apart, _WHOLE), query, *args, **named)
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


_FUSED_DIMS = 4


def _laid_out_as_traced(torchs: Callable[..., Any] | None, own: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Decompose attention so that its result has the memory layout of tracing: the program may view it without a copy.

    On the CPU PyTorch chooses: the fused operator's result lies as the query does, that of plain products is contiguous. Our own form
    serves what is not fused because of its dimensions, and other devices, whose fused operators have no decomposition.
    """
    if torchs is None or own is None:
        return own or torchs

    def decomposed(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        written_out = query.device.type != "cpu" or query.dim() != _FUSED_DIMS
        return (own if written_out else torchs)(query, *args, **kwargs)

    return decomposed


facts.FACTS[_WHOLE].in_program = _laid_out_as_traced
_UNFUSED = _aten._scaled_dot_product_attention_math.default


def _unfused_attention(*args: Any, **named: Any) -> Any:
    """Compute attention on CUDA in the dtype of the query, where PyTorch, without a fused operator for a call, takes float32."""
    given = facts.by_name(_UNFUSED, args, named)
    if given["query"].device.type != "cuda" or given["dropout_p"] or given["dropout_mask"] is not None:
        return _torch.taken_apart(_UNFUSED, *args, **named)
    return plain(given)


facts.keeps_whole(_UNFUSED, traced=_unfused_attention, when=lambda tracing: tracing.on_cuda)


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


def plain(given: Given) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute softmax attention and its weights, in the order in memory that products have.

    The query is [..., head, row, feature]; a mask may be boolean.
    """
    query, key, value = _operands(given)
    added = given["attn_mask"]
    groups = query.shape[-3] // key.shape[-3] if given["enable_gqa"] else 1
    if added is not None and added.dtype is torch.bool:
        added = torch.where(added, _number(0.0, query), _number(-torch.inf, query))
    mask = Mask.of(query, key, added, is_causal=given["is_causal"])
    weights = torch.softmax(_scores(query, _repeated(key, groups), mask, given["scale"]), -1)
    if given["dropout_p"] > 0.0:
        weights = torch.dropout(weights, given["dropout_p"], train=True)
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


def backward(
    grad_out: torch.Tensor, operands: tuple[torch.Tensor, ...], out: torch.Tensor, mask: Mask, scale: float | None
) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of query, key, value and scores.

    The weights are computed as in the forward, so that AOTAutograd, which partitions both as one graph, finds them once. They could be
    made of the log-sum-exp that the operators return for it, but a softmax is one kernel in ONNX Runtime, and that would be two.
    """
    query, key, value = operands
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


@decomposes(_aten._native_multi_head_attention.default)
@facts.named(_aten._native_multi_head_attention.default)
def multi_head(given: Any) -> Any:
    """Decompose `aten._native_multi_head_attention` of a [batch, row, feature] query; returns the result and, if needed, the weights."""
    if given.query.is_nested:
        return STAYS
    result, weights = _multiplied_by_heads((given.query, given.key, given.value), given.num_head, given)
    if not given.need_weights:
        return result, None
    return result, weights.mean(1) if given.average_attn_weights else weights


def _multiplied_by_heads(operands: Sequence[torch.Tensor], heads: int, layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the attention of a layer, and its weights of [batch, head, row, key]."""
    batch, rows = operands[0].shape[:2]
    size = layer.embed_dim // heads
    projected = [
        torch.nn.functional.linear(given, weight, bias).view(batch, -1, heads, size).transpose(1, 2)
        for given, weight, bias in zip(operands, layer.qkv_weight.chunk(3), layer.qkv_bias.chunk(3), strict=True)
    ]
    scores = torch.matmul(projected[0] * size**-0.5, projected[1].transpose(-2, -1))
    if layer.mask is not None:
        scores = scores.masked_fill(_over_heads(layer.mask, layer.mask_type), -torch.inf)
    weights = torch.softmax(scores, -1)
    attended = torch.matmul(weights, projected[2]).transpose(1, 2).reshape(batch, rows, layer.embed_dim)
    return torch.nn.functional.linear(attended, layer.proj_weight, layer.proj_bias), weights


@decomposes(_aten._transformer_encoder_layer_fwd.default)
@facts.named(_aten._transformer_encoder_layer_fwd.default)
def encoder_layer(layer: Any) -> Any:
    """Decompose `aten._transformer_encoder_layer_fwd` of [batch, row, feature]: attention and feed-forward, each added to its input."""
    src = layer.src
    if src.is_nested:
        return STAYS

    def attend(x: torch.Tensor) -> torch.Tensor:
        return _multiplied_by_heads((x, x, x), layer.num_heads, layer)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.linear(x, layer.ffn_weight_1, layer.ffn_bias_1)
        inner = torch.nn.functional.gelu(inner) if layer.use_gelu else inner.relu()
        return torch.nn.functional.linear(inner, layer.ffn_weight_2, layer.ffn_bias_2)

    def first_norm(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (layer.embed_dim,), layer.norm_weight_1, layer.norm_bias_1, layer.eps)

    def second_norm(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (layer.embed_dim,), layer.norm_weight_2, layer.norm_bias_2, layer.eps)

    if layer.norm_first:
        x: torch.Tensor = src + attend(first_norm(src))
        return x + feed(second_norm(x))
    x = first_norm(src + attend(src))
    return second_norm(x + feed(x))


def _over_heads(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """Reshape a mask to [batch, head, row, column]: type 0 is [row, column], 1 is [batch, column], 2 has all four dimensions."""
    left_out = mask.to(torch.bool)
    if mask_type == 0:
        return left_out[None, None]
    return left_out[:, None, None, :] if mask_type == 1 else left_out


_ROWS_PER_BLOCK, _KEYS_PER_BLOCK = 32, 16  # what memory-efficient attention pads its log-sum-exp and the gradient of its mask to


@dataclass(frozen=True, slots=True, kw_only=True)
class _FusedOperator:
    """A fused operator of [batch, head, row, feature] and its backward."""

    name: str
    outputs: Callable[[Given, torch.Tensor, torch.Tensor], tuple[Any, ...]]  # from its arguments, the result and the log-sum-exp
    gradients: Callable[[Given, tuple[torch.Tensor, ...]], tuple[Any, ...]]  # from its arguments and `backward`
    ends_causally: bool = False  # whether its causal mask ends at the last row and key

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Decompose the operator."""
        given = facts.by_name(getattr(_aten, self.name).default, args, kwargs)
        if given["dropout_p"] or given.get("return_debug_mask"):
            return STAYS
        return self.outputs(given, *forward(*_operands(given), self._mask(given), given["scale"]))

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        """Decompose its backward."""
        given = facts.by_name(getattr(_aten, f"{self.name}_backward").default, args, kwargs)
        if given["dropout_p"]:
            return STAYS
        gradient = given["grad_out_"] if "grad_out_" in given else given["grad_out"]
        return self.gradients(given, backward(gradient, _operands(given), given["out"], self._mask(given), given["scale"]))

    def _mask(self, given: Given) -> Mask:
        query, key, _ = _operands(given)
        before = key.shape[2] - query.shape[2] if self.ends_causally else 0
        added = given.get("attn_mask", given.get("attn_bias"))
        return Mask.of(query, key, added, is_causal=given["is_causal"], before=before)


def _operands(given: Given) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return given["query"], given["key"], given["value"]


def _as_operands(given: Given, gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(map(laid_out_like, gradients[:3], _operands(given)))


def _rows_first(value: torch.Tensor) -> torch.Tensor:
    """Lay out a value in memory as [batch, row, head, feature]."""
    return laid_out(value, [0, 2, 1, 3])


def _zero(given: Given, dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    return torch.zeros(sizes, dtype=dtype, device=given["query"].device)


def _of_flash(given: Given, result: torch.Tensor, logsumexp: torch.Tensor) -> tuple[Any, ...]:
    query, key, _ = _operands(given)
    state = _zero(given, torch.uint64, 2), _zero(given, torch.uint64)
    return laid_out_like(result, query), logsumexp.float(), None, None, query.shape[2], key.shape[2], *state, query.new_empty(0)


def _of_efficient(given: Given, result: torch.Tensor, logsumexp: torch.Tensor) -> tuple[Any, ...]:
    batch, heads, rows = logsumexp.shape
    if given["compute_log_sumexp"]:
        padding = logsumexp.new_full((batch, heads, -rows % _ROWS_PER_BLOCK), torch.inf)
        logsumexp = torch.cat([logsumexp, padding], -1).float()
    else:
        logsumexp = _zero(given, torch.float32, batch, heads, 0)
    return _rows_first(result), logsumexp, _zero(given, torch.int64), _zero(given, torch.int64)


def _gradients_of_efficient(given: Given, gradients: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    bias, gradient = given["attn_bias"], None
    if bias is not None and given["grad_input_mask"][3]:
        keys = bias.shape[-1]
        gradient = gradients[3].sum_to_size(bias.shape).to(bias.dtype)
        gradient = _aten.slice.Tensor(torch.nn.functional.pad(gradient, (0, -keys % _KEYS_PER_BLOCK)), -1, 0, keys)
    return *map(_rows_first, gradients[:3]), gradient


def _of_cudnn(given: Given, result: torch.Tensor, logsumexp: torch.Tensor) -> tuple[Any, ...]:
    query, key, _ = _operands(given)
    state = _zero(given, torch.int64), _zero(given, torch.int64)
    return laid_out_like(result, query), logsumexp.unsqueeze(-1).float(), None, None, query.shape[2], key.shape[2], *state, None


_ON_CPU = _FusedOperator(
    name="_scaled_dot_product_flash_attention_for_cpu",
    outputs=lambda given, result, logsumexp: (laid_out_like(result, given["query"]), logsumexp),
    gradients=lambda _, gradients: tuple(map(_rows_first, gradients[:3])),
)
_ON_CUDA = (
    _FusedOperator(name="_scaled_dot_product_flash_attention", outputs=_of_flash, gradients=_as_operands, ends_causally=True),
    _FusedOperator(name="_scaled_dot_product_efficient_attention", outputs=_of_efficient, gradients=_gradients_of_efficient),
    _FusedOperator(name="_scaled_dot_product_cudnn_attention", outputs=_of_cudnn, gradients=_as_operands),
)

for _operator in (_ON_CPU, *_ON_CUDA):
    for _target, _function in (
        (getattr(_aten, _operator.name).default, _operator.forward),
        (getattr(_aten, f"{_operator.name}_backward").default, _operator.backward),
    ):
        decomposes(_target)(_function)
        facts.FACTS[_target].is_for_cuda = _operator is not _ON_CPU

_MANY_ROWS = 1024
"""From here on, causal attention on the CPU gains more in PyTorch, which leaves out the masked half, than two partitions cost."""
_ON_CPU_TARGETS = (getattr(_aten, _ON_CPU.name).default, getattr(_aten, f"{_ON_CPU.name}_backward").default)


def _is_long(target: Any, *args: Any, **kwargs: Any) -> bool:
    """Tell whether attention is causal, without another mask, and long."""
    given = facts.by_name(target, args, kwargs)
    is_causal = given["is_causal"] and given["attn_mask"] is None and given["query"].dtype is torch.float32
    return is_causal and _torch.size_hint(given["query"].shape[2]) >= _MANY_ROWS


facts.leaves(*_ON_CPU_TARGETS, when=_is_long)
# One thread, 8 heads of 64, causal: 512 rows 7.3 and 8.5 ms, 1024 rows 20 and 33 ms, 2048 rows 65 and 135 ms.
facts.slow(
    *_ON_CPU_TARGETS,
    reason="of so many rows it leaves out the half that is masked, ONNX Runtime computes all in 1.6 to 2 times the time",
)
facts.lacks_outputs(_aten._scaled_dot_product_efficient_attention.default, _aten._scaled_dot_product_flash_attention.default, count=9)
