"""PyTorch's fused operators of attention, on the CPU and on CUDA: one form for all, and the outputs of each.

Which operator `scaled_dot_product_attention` becomes depends on device, dtype, sizes and mask. Torch's exporter has functions for some,
which leave out the log-sum-exp that the backward reads, or raise. For the backward there is neither a function nor a decomposition.
Results have the sizes, dtypes and order in memory of torch's shape functions; what only serves a dropout is zero. A call with dropout
stays in PyTorch, which draws the numbers.

The causal mask begins at the first row and key, but in the flash operator of CUDA, where it ends at the last ones.

Source: `torch/_meta_registrations.py`, and `torch/nn/attention/bias.py` for the causal masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.basis.memory_order import laid_out
from ortlens.backend.lowering import attention
from ortlens.backend.lowering.attention import laid_out_like

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Given = Mapping[str, Any]

_aten = torch.ops.aten
_STAYS: Any = NotImplemented  # a decomposition returns it to leave the operator as it is
_ROWS_PER_BLOCK, _KEYS_PER_BLOCK = 32, 16  # what memory-efficient attention pads its log-sum-exp and the gradient of its mask to


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operator:
    """A fused operator of [batch, head, row, feature] and its backward."""

    name: str
    outputs: Callable[[Given, torch.Tensor, torch.Tensor], tuple[Any, ...]]  # from its arguments, the result and the log-sum-exp
    gradients: Callable[[Given, tuple[torch.Tensor, ...]], tuple[Any, ...]]  # from its arguments and `attention.backward`
    ends_causally: bool = False  # whether its causal mask ends at the last row and key

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Decompose the operator."""
        given = by_name(getattr(_aten, self.name).default, args, kwargs)
        if given["dropout_p"] or given.get("return_debug_mask"):
            return _STAYS
        return self.outputs(given, *attention.forward(*_operands(given), self._mask(given), given["scale"]))

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        """Decompose its backward."""
        given = by_name(getattr(_aten, f"{self.name}_backward").default, args, kwargs)
        if given["dropout_p"]:
            return _STAYS
        gradient = given["grad_out_"] if "grad_out_" in given else given["grad_out"]
        return self.gradients(given, attention.backward(gradient, *_operands(given), given["out"], self._mask(given), given["scale"]))

    def _mask(self, given: Given) -> attention.Mask:
        query, key, _ = _operands(given)
        before = key.shape[2] - query.shape[2] if self.ends_causally else 0
        added = given.get("attn_mask", given.get("attn_bias"))
        return attention.Mask.of(query, key, added, is_causal=given["is_causal"], before=before)


def own() -> dict[Any, Callable[..., Any]]:
    """List the decompositions, by op overload."""
    return _decompositions(*_ON_CUDA, _ON_CPU)


def _decompositions(*operators: _Operator) -> dict[Any, Callable[..., Any]]:
    forwards = {getattr(_aten, operator.name).default: operator.forward for operator in operators}
    return forwards | {getattr(_aten, f"{operator.name}_backward").default: operator.backward for operator in operators}


def by_name(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Map the names of an operator's arguments to what it is called with, or to their defaults."""
    schema = target._schema.arguments  # noqa: SLF001 - the operator's schema
    given = dict(zip((argument.name for argument in schema), args, strict=False)) | kwargs
    return {argument.name: given.get(argument.name, argument.default_value) for argument in schema}


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


_ON_CPU = _Operator(
    name="_scaled_dot_product_flash_attention_for_cpu",
    outputs=lambda given, result, logsumexp: (laid_out_like(result, given["query"]), logsumexp),
    gradients=lambda _, gradients: tuple(map(_rows_first, gradients[:3])),
)
_ON_CUDA = (
    _Operator(name="_scaled_dot_product_flash_attention", outputs=_of_flash, gradients=_as_operands, ends_causally=True),
    _Operator(name="_scaled_dot_product_efficient_attention", outputs=_of_efficient, gradients=_gradients_of_efficient),
    _Operator(name="_scaled_dot_product_cudnn_attention", outputs=_of_cudnn, gradients=_as_operands),
)
ON_CUDA = frozenset(_decompositions(*_ON_CUDA))
"""The operators that tensors on the CPU do not reach. In PyTorch, what they are decomposed to takes longer and more memory."""
