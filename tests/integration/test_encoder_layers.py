"""`nn.TransformerEncoder` and `nn.MultiheadAttention` in inference, where PyTorch runs one operator per layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens

X = torch.randn(2, 5, 16)
PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])
PADDING = torch.zeros(2, 5).masked_fill(PADDED, -torch.inf)  # of the same type as the other mask, else PyTorch warns
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)


def encoder(layers: int = 1, *, norm_first: bool = False, activation: str = "relu") -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first, activation=activation)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


BOTH = ("mask", "src_key_padding_mask")


@pytest.mark.parametrize(
    ("changes", "given"),
    [({}, ()), ({}, BOTH[:1]), ({}, BOTH[1:]), ({"norm_first": True}, BOTH), ({"activation": "gelu"}, BOTH)],
    ids=str,
)
def test_an_encoder_runs_whole_in_onnx_runtime(changes: dict[str, Any], given: tuple[str, ...]) -> None:
    model, lens = encoder(**changes), Lens()
    masks: dict[str, Any] = {name: {"mask": CAUSAL, "src_key_padding_mask": PADDING}[name] for name in given}
    if "mask" in given:
        masks["is_causal"] = True
    with torch.inference_mode():
        torch.testing.assert_close(torch.compile(model, backend=lens)(X, **masks), model(X, **masks), atol=1e-5, rtol=1e-4)
    assert not lens.captured().fallbacks
    (graph,) = lens.captured().graphs
    assert graph.coverage == 1.0


@pytest.mark.parametrize(
    ("mask", "needed", "averaged"),
    [(None, True, True), (None, False, True), (CAUSAL, True, False), (torch.ones(5, 5).tril().logical_not(), False, True)],
)
def test_attention_and_its_weights(mask: torch.Tensor | None, needed: bool, averaged: bool) -> None:  # noqa: FBT001 - cases
    model, lens = nn.MultiheadAttention(16, 4, batch_first=True).eval(), Lens()
    given = {"attn_mask": mask, "need_weights": needed, "average_attn_weights": averaged}
    with torch.inference_mode():
        got, want = torch.compile(model, backend=lens)(X, X, X, **given), model(X, X, X, **given)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
    assert not lens.captured().fallbacks


def test_a_row_without_anything_to_attend_to_is_nan_as_in_pytorch() -> None:
    model = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    mask = torch.zeros(5, 5, dtype=torch.bool)
    mask[2] = True
    with torch.inference_mode():
        got, want = torch.compile(model, backend="ortlens")(X, X, X, attn_mask=mask), model(X, X, X, attn_mask=mask)
    assert want[0].isnan().any()
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4, equal_nan=True)


def test_sizes_may_change() -> None:
    model, lens = encoder(2), Lens()
    compiled = torch.compile(model, backend=lens, dynamic=True)
    with torch.inference_mode():
        for rows in (5, 7, 11):
            x = torch.randn(3, rows, 16)
            torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-4)
    assert not lens.captured().recompiles
    assert not lens.captured().fallbacks


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(x.relu(), mask=mask)  # type: ignore[no-any-return]  # a module's call


def test_a_mask_that_pytorch_looks_into_breaks_the_graph_and_the_advice_says_how_to_avoid_that() -> None:
    lens = Lens()
    with torch.inference_mode():
        torch.compile(Reader().eval(), backend=lens)(X, CAUSAL)
    broken = lens.captured().breaks[0]
    assert broken.file == __file__
    assert broken.function == "forward"
    assert "is_causal=True" in (broken.advice or "")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_keep_the_fused_operator() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval()
    with torch.inference_mode():
        got = torch.compile(model, backend="ortlens")(X, src_key_padding_mask=PADDED)
        want = torch.compile(model, backend="aot_eager")(X, src_key_padding_mask=PADDED)  # compiled, what is padded is not zero
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
