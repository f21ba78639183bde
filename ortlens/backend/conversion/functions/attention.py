"""Attention on CUDA as one operator of ONNX Runtime's own, which keeps no scores: docs/adr/0012-attention-on-cuda.md.

`lowering.attention` takes all other attention apart. PyTorch's operator has [batch, head, row, feature], ONNX Runtime's result has
[batch, row, head * feature]: most models compute the query from rows and read rows, so that ONNX Runtime drops the Transposes.
"""

from __future__ import annotations

import math
from typing import Any

import onnx
import onnxscript
import torch

from ortlens.backend.conversion.functions import basics
from ortlens.backend.conversion.functions.basics import op, torch_op

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
_LEAST = {basics.FLOAT16: -(2.0**15)}  # as in `lowering.attention`
_LEAST_WIDE = -1e30  # instead of minus infinity, of which kernels make NaN where a whole block of keys is left out


@torch_op(torch.ops.aten.scaled_dot_product_attention.default)
def attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """`aten.scaled_dot_product_attention` where `lowering.whole_operators` has left it whole."""
    heads, size, width = query.shape[1], query.shape[3], value.shape[3]
    if basics.device_type.get() != "cuda" or dropout_p or not isinstance(heads, int) or not isinstance(width, int):
        raise basics.NotConvertibleError("is one operator on CUDA only, without dropout")
    settings: dict[str, Any] = {"num_heads": heads, "unidirectional": int(is_causal)}
    if scale is not None:
        settings["scale"] = float(scale)
    shared = [_repeated(tensor, heads) if enable_gqa and tensor.shape[1] != heads else tensor for tensor in (key, value)]
    given = [op.Reshape(_turned(query), op.Constant(value_ints=[0, 0, heads * size])), *shared]
    given += [] if mask is None else [None, None, _added(mask, query, key)]
    attended = op.Reshape(_multi_head(*given, **settings), op.Constant(value_ints=[0, 0, heads, width]))
    if mask is not None:
        attended = op.Where(_turned(_of_four(_sees(mask), len(mask.shape))), attended, basics.number(query, 0.0))
    return _turned(attended)


def _turned(value: Any) -> Any:
    return op.Transpose(value, perm=[0, 2, 1, 3])


def _repeated(tensor: Any, heads: int) -> Any:
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
    least = basics.number(query, _LEAST.get(kind, _LEAST_WIDE))
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
