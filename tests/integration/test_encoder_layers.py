"""`nn.TransformerEncoder` and `nn.MultiheadAttention` in inference, where PyTorch runs one operator per layer."""

from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens

X = torch.randn(2, 5, 16)
PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])
PADDING = torch.zeros(2, 5).masked_fill(PADDED, -torch.inf)  # of the same type as the other mask, else PyTorch warns
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)


def encoder(*, norm_first: bool = False, activation: str = "relu") -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first, activation=activation)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()


class All(nn.Module):
    """An encoder or an attention per case."""

    def __init__(self) -> None:
        super().__init__()
        both = {"mask": CAUSAL, "is_causal": True, "src_key_padding_mask": PADDING}
        empty = torch.zeros(5, 5, dtype=torch.bool)
        empty[2] = True  # nothing to attend to
        self.encoders = nn.ModuleList((encoder(), encoder(), encoder(), encoder(norm_first=True), encoder(activation="gelu")))
        self.masks: list[dict[str, Any]] = [{}, {"mask": CAUSAL, "is_causal": True}, {"src_key_padding_mask": PADDING}, both, both]
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.ways: list[dict[str, Any]] = [
            {},
            {"need_weights": False},
            {"attn_mask": CAUSAL, "average_attn_weights": False},
            {"attn_mask": torch.ones(5, 5).tril().logical_not(), "need_weights": False},
            {"attn_mask": empty},
        ]

    def forward(self, x: torch.Tensor) -> Any:  # noqa: ANN401 - lists of results
        encoded = [layers(x, **masks) for layers, masks in zip(self.encoders, self.masks, strict=True)]
        return encoded, [self.attention(x, x, x, **way) for way in self.ways]


def test_encoders_and_attention_run_whole_in_onnx_runtime() -> None:
    model, lens = All().eval(), Lens()
    with torch.inference_mode():
        got, want = torch.compile(model, backend=lens)(X), model(X)
    assert want[1][-1][0].isnan().any()
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4, equal_nan=True)
    assert not lens.captured().fallbacks
    assert not lens.captured().breaks
    (graph,) = lens.captured().graphs
    assert graph.coverage == 1.0


def test_sizes_may_change() -> None:
    model, lens = encoder(), Lens()
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
