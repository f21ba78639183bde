"""Attention on CUDA as one operator of ONNX Runtime's own: the operator that is planned for a GPU computes PyTorch's numbers on the CPU."""

# ruff: noqa: ANN401 - functions and settings of attention

import functools
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch.nn import functional

import ortlens
from ortlens import _torch
from ortlens.backend.operators import attention

with _torch.tracing_cuda() as _is_possible:
    pass
pytestmark = pytest.mark.skipif(not _is_possible, reason="this torch cannot trace CUDA tensors without a GPU")

BATCH, HEADS, ROWS, SIZE = 2, 4, 6, 8
SEEN = torch.tensor([[1, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0], *[[1, 1, 0, 1, 0, 1]] * 4], dtype=torch.bool)  # the second row sees no key


def operands(heads: int = HEADS, rows: int = ROWS) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    shapes = ((HEADS, ROWS), (heads, rows), (heads, rows))
    return tuple(torch.randn(BATCH, some, length, SIZE) for some, length in shapes)


def planned(function: Any, *args: torch.Tensor) -> tuple[list[str], list[torch.Tensor]]:
    """Plan a function for CUDA, and run the model on the CPU; returns its operators and its results."""
    with torch.no_grad():
        lens = ortlens.explain(function, dry_run=True, device="cuda")(*args)
    model = onnx.load_from_string(lens.captured().attachments["models/m0.onnx"])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {value.name: tensor.numpy() for value, tensor in zip(session.get_inputs(), args, strict=True)}
    return [node.op_type for node in model.graph.node], [torch.from_numpy(made) for made in session.run(None, given)]


@pytest.mark.parametrize(
    ("mask", "settings"),
    [
        (None, {}),
        (None, {"scale": 0.3}),
        (None, {"is_causal": True}),
        (SEEN, {}),
        (torch.where(SEEN, torch.randn(BATCH, 1, ROWS, ROWS), -torch.inf), {}),
        (SEEN[:, :1].expand(ROWS, 1) | SEEN[:, 3:4], {}),
        (SEEN[0].view(1, 1, 1, ROWS).expand(BATCH, 1, 1, ROWS).contiguous(), {}),
        (torch.randn(HEADS, ROWS, ROWS), {}),
    ],
    ids=["plain", "scaled", "causal", "boolean", "infinities", "of one key", "of one row", "of each head"],
)
def test_numbers_are_pytorchs(mask: torch.Tensor | None, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_MANY_SCORES", 1)
    attend: Any = functools.partial(functional.scaled_dot_product_attention, **settings)
    given = operands() if mask is None else (*operands(), mask)
    kinds, (made,) = planned(attend, *given)
    assert kinds.count("MultiHeadAttention") == 1
    assert "Softmax" not in kinds
    torch.testing.assert_close(made, attend(*given), atol=2e-6, rtol=2e-6)


def test_grouped_heads_and_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_MANY_SCORES", 1)
    attend: Any = functools.partial(functional.scaled_dot_product_attention, enable_gqa=True)
    given = (*operands(heads=2, rows=9), torch.rand(ROWS, 9) < 0.5)
    kinds, (made,) = planned(attend, *given)
    assert "MultiHeadAttention" in kinds
    torch.testing.assert_close(made, attend(*given), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_short_and_uneven_attention_is_written_out(dtype: torch.dtype) -> None:
    short = torch.randn(1, 2, 63, 8, dtype=dtype)
    long = torch.randn(1, 2, 64, 8, dtype=dtype)

    def is_one(*args: torch.Tensor, **settings: Any) -> bool:
        with torch.no_grad():
            attend = functools.partial(functional.scaled_dot_product_attention, **settings)
            lens = ortlens.explain(attend, dry_run=True, device="cuda")(*args)
        assert not len(lens.fallbacks)
        return "com.microsoft::MultiHeadAttention:1" in lens.models.ops[0]

    assert not is_one(short, short, short)
    assert is_one(long, long, long) is (dtype is torch.float16)
    assert not is_one(long, torch.cat([long] * 2, 2), torch.cat([long] * 2, 2), is_causal=True)
