"""Architectures and layers of PyTorch's own through the backend: right numbers, whole coverage, full frames. tests/zoo has many."""

from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens
from ortlens.trace.schema import TABLES
from tests.integration.small_models import SMALL_MODELS

COMPUTE_NODES = 21
"""What the architecture is made of after decomposition: a change of torch or of the tables shows here first."""


def test_runs_whole_in_one_partition_matches_eager_and_fills_the_frames() -> None:
    torch.manual_seed(0)
    model, kwargs = SMALL_MODELS["resnet"].build().eval(), SMALL_MODELS["resnet"].inputs(2)
    lens = Lens()
    fast = torch.compile(model, backend=lens)
    with torch.no_grad():
        expected = model(**kwargs)
        for _ in range(3):
            torch.testing.assert_close(dict(fast(**kwargs)), dict(expected), atol=1e-4, rtol=1e-4)

    graphs = lens.graphs
    assert graphs.phase.tolist() == ["inference"]
    assert graphs.coverage.tolist() == [1.0]
    assert graphs.partition_count.tolist() == [1]
    if torch.__version__.startswith("2.13."):  # other versions decompose otherwise, or record other nodes
        assert graphs.node_count.tolist() == [COMPUTE_NODES]
    assert lens.fallbacks.empty, lens.fallbacks[["target", "reason_code", "reason"]].to_string()
    assert lens.breaks.empty
    assert not lens.captured().findings
    assert lens.sessions.calls.tolist() == [3]

    graph = lens.graphs.iloc[0]
    phases = ["loading_ns", "dynamo_ns", "aot_ns", "partition_ns", "convert_ns", "optimize_ns", "session_ns"]
    assert (graph[phases] > 0).all()
    assert graph.compile_ns == graph[phases].sum()
    assert graph.file.endswith(".py")

    nodes = lens.nodes
    assert nodes.supported.all()
    assert nodes.partition_id.eq("p0").all()
    from_user = nodes[nodes.file.notna()]
    assert len(from_user) >= 0.95 * len(nodes)  # type promotion and decompositions of constants have no line of their own
    assert from_user.source.notna().all()
    assert nodes.module.notna().mean() > 0.9
    assert nodes.flops.sum() > 0
    assert (nodes.onnx_nodes.map(len) > 0).mean() > 0.4  # views and constants fold away

    partition, model_row, session = lens.partitions.iloc[0], lens.models.iloc[0], lens.sessions.iloc[0]
    weights = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    assert 0 < partition.weight_bytes <= weights
    frozen = partition.weight_bytes - (session.table_bytes or 0)  # embedding tables stay inputs
    assert model_row.initializer_bytes >= frozen > 0.9 * partition.weight_bytes
    assert model_row.size_bytes < partition.weight_bytes  # frozen weights stay outside the model
    assert session.providers == ("CPUExecutionProvider",)

    runs = lens.runs
    assert (runs.total_ns == runs.bind_ns + runs.run_ns + runs.output_ns).all()
    assert runs.total_ns.sum() == session.total_ns
    for table in TABLES:
        assert list(getattr(lens, table).columns)


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
