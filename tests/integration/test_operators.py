"""Every classic operator and shape either runs in ONNX Runtime or stays in PyTorch for a stated reason; the numbers agree."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import nn

import ortlens
from ortlens.backend.runtime.session_config import SessionConfig
from tests.integration.against_eager import same_as_eager

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.trace.records import Capture


class Case(NamedTuple):
    """A function, the arguments of its calls, and what must stay in PyTorch: operator -> reason code."""

    function: Callable[..., Any]
    calls: tuple[tuple[Any, ...], ...]
    stays: dict[str, str]


def case(function: Callable[..., Any], *args: Any, stays: dict[str, str] | None = None, more: tuple[tuple[Any, ...], ...] = ()) -> Case:
    return Case(function, (args, *more), stays or {})


def r(*shape: int) -> torch.Tensor:
    """Numbers that do not depend on what other tests drew."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + 7))


def whole(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def fully_masked_row() -> torch.Tensor:
    mask = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
    mask[..., :3] = True
    mask[..., 0, :] = False
    return mask


def eager_module(module: nn.Module) -> nn.Module:
    """Weights that do not depend on what other tests drew."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module.eval()


def thrice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y, y, y + 0


RANDOM = "side_effect"

CASES = {
    # results: several, none, numbers, aliases, the same one twice
    "elementwise": case(lambda x: (x.sin() + 1) * 2, r(3, 4)),
    "no_inputs": case(lambda: torch.ones(3) * 2),
    "mixed_results": case(lambda x: (None, x + 1, 3, {"a": [x * 2, ()]}), r(3)),
    "input_and_its_view": case(lambda x: (x, x.view(-1), x + 1), r(3, 4)),
    "one_value_twice": case(thrice, r(3)),
    "constant": case(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), r(3)),
    "boolean_scalar": case(lambda x: (x > 0).any(), r(6)),
    # numbers as arguments
    "int_argument": case(lambda x, n: x * n + n, r(3), 3, more=((r(3), 4), (r(3), -5))),
    "float_argument": case(lambda x, n: x * n + n, r(3), 3.5, more=((r(3), 4.25), (r(3), 1e-3))),
    "bool_argument": case(lambda x, flag: x * 2 if flag else x + 1, r(3), bool(1), more=((r(3), bool(0)),)),
    "keyword_none": case(lambda x, y: x if y is None else x + y, r(3), None, more=((r(3), r(3)),)),
    # layouts
    "transposed_result": case(lambda x: x.relu().transpose(0, 1), r(3, 4)),
    "permuted_result": case(lambda x: (x * 2).permute(2, 0, 1), r(3, 4, 5)),
    "expanded_result": case(lambda x: (x * 2).expand(4, 3), r(3)),
    "as_strided_result": case(lambda x: (x * 2).as_strided((2, 2), (1, 2)), r(6)),
    "strided_input": case(lambda x: x.sin() + 1, r(4, 6)[:, ::2]),
    "transposed_input": case(lambda x: x.sin() + 1, r(4, 6).t()),
    "expanded_input": case(lambda x: x.sin() + 1, r(1, 6).expand(4, 6)),
    "offset_input": case(lambda x: x.sin() + 1, r(4, 6)[1:]),
    "channels_last": case(F.conv2d, r(2, 3, 8, 8).to(memory_format=torch.channels_last), r(4, 3, 3, 3)),
    "channels_last_chain": case(lambda x: x.relu() * 2, r(2, 3, 4, 5).to(memory_format=torch.channels_last)),
    # sizes
    "no_elements": case(lambda x: x.sin() + 1, torch.empty(0, 4)),
    "sum_of_nothing": case(lambda x: x.sum(0), torch.empty(0, 4)),
    "no_dimensions": case(lambda x: x.sin() + 1, torch.tensor(0.5)),
    "size_one": case(lambda x: x.squeeze() + x.unsqueeze(0), r(1, 3, 1)),
    # in place
    "writes_its_argument": case(lambda x: x.add_(1).mul(2), r(3, 4)),
    "writes_parts": case(lambda x, y: (x.copy_(y), x[0].zero_(), x * 2), r(3, 4), r(3, 4) + 1),
    # dtypes
    "float16": case(lambda x, y: (x @ y).relu(), r(4, 6).half(), r(6, 5).half()),
    "float64": case(lambda x: x.softmax(-1) * 3, r(4, 6).double()),
    "bfloat16": case(
        lambda x, y: (x @ y).relu(),
        r(4, 6).bfloat16(),
        r(6, 5).bfloat16(),
        stays={"aten.mm.default": "dtype", "aten.relu.default": "dtype"},
    ),
    "int8": case(lambda x, y: (x + y) * 2, whole(-9, 9, 4, dtype=torch.int8), whole(-9, 9, 4, dtype=torch.int8) + 1),
    "int8_wraps": case(lambda x: x + 100, whole(60, 90, 5, dtype=torch.int8)),
    "uint8": case(lambda x, y: (x // 3) + y, whole(0, 9, 4, dtype=torch.uint8), whole(0, 9, 4, dtype=torch.uint8)),
    "int32": case(lambda x: x * x - 7, whole(-99, 99, 5, dtype=torch.int32)),
    "bool": case(lambda x, y: (x & ~y) | (x ^ y), r(4) > 0, r(4) > 0.5),
    "promotion": case(lambda x, y: x + y, whole(-9, 9, 3), r(3)),
    "comparison_then_sum": case(lambda x: (x > 0).sum(), r(9)),
    "complex": case(lambda x: (x * x).abs(), torch.complex(r(4), r(4)), stays={"aten.mul.Tensor": "dtype", "aten.abs.default": "dtype"}),
    "fft": case(
        lambda x: torch.view_as_real(torch.fft.fft(x)).sum() + x,
        r(8),
        stays={"aten._fft_r2c.default": "policy", "aten.view_as_real.default": "dtype"},
    ),
    # random numbers come from PyTorch's generator, or the seed would not hold
    "dropout": case(lambda x: F.dropout(x.sin(), 0.5).cos(), r(30), stays={"aten.native_dropout.default": RANDOM}),
    "rand": case(
        lambda x: x + torch.rand(3) + torch.randn_like(x), r(3), stays={"aten.rand.default": RANDOM, "aten.randn_like.default": RANDOM}
    ),
    # data-dependent
    "nonzero": case(lambda x: x.nonzero(), r(6), more=((r(6),),)),
    "item": case(lambda x: x * x.sum().item(), r(6)),
    "boolean_index": case(lambda x: x[x > 0] * 2, r(6)),
    # arithmetic where sides differ easily
    "integer_power": case(lambda x: x**3 + x // 2 - x % 3, whole(1, 9, 5)),
    "signed_division": case(lambda x: (x // 2, x % 3, torch.remainder(x, -3), torch.fmod(x, 3)), whole(-9, 9, 15)),
    "float_remainder": case(lambda x: (x % 0.7, torch.remainder(x, -0.3), torch.fmod(x, 0.3), x // 0.3), r(15)),
    "rounding": case(
        lambda x: (x.round(), torch.trunc(x), x.floor(), x.ceil(), x.sign()), torch.tensor([-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5])
    ),
    "not_a_number": case(
        lambda x: (x.relu(), x.clamp(-1, 1), torch.maximum(x, x.new_zeros(())), x.isnan()), torch.tensor([float("nan"), 1.0, -1.0])
    ),
    "infinities": case(lambda x: (x.exp(), x.sigmoid(), x.softmax(0), x.isinf()), torch.tensor([float("inf"), -1.0, float("-inf")])),
    "statistics": case(lambda x: (x.std(), x.var(1), x.mean((0, 1)), x.norm(), x.var(0, correction=0)), r(4, 5)),
    "saturating": case(lambda x: F.logsigmoid(x) + F.softplus(x) + F.mish(x) + F.silu(x) + F.elu(x), r(6) * 20),
    "cumulative": case(lambda x: (x.cumsum(0), x.logcumsumexp(0)), r(5), stays={"aten.logcumsumexp.default": "no_converter"}),
    "cummax": case(lambda x: x.cummax(0), r(5), stays={"aten.cummax.default": "no_converter"}),
    "sort": case(lambda x: torch.sort(x, 1), r(3, 6)),
    "argmax": case(lambda x: (x.argmax(), x.argmin(1, keepdim=True), x.max(0), x.amax(1)), r(3, 6)),
    "topk": case(lambda x: torch.topk(x, 2), r(3, 6)),
    "index_put": case(lambda x, i: x.index_put((i,), torch.ones(2)), r(6), torch.tensor([1, 3])),
    "negative_index": case(lambda x: x[-1] + x[..., -2:].sum(), r(3, 6)),
    "gather": case(lambda x, i: x.gather(1, i) + x.index_select(0, i[:, 0]), r(3, 3), whole(0, 3, 3, 3)),
    "scatter_add": case(lambda x, i, s: x.scatter_add(0, i, s), r(6), torch.tensor([1, 3]), r(2)),
    "split": case(lambda x: torch.split(x * 2, [1, 2, 3]), r(6)),
    "unbind": case(lambda x: [t + 1 for t in x.unbind(0)], r(3, 2)),
    "concatenate": case(lambda x, y: (torch.cat([x, y], 1), torch.stack([x, x], 2)), r(2, 3), r(2, 2)),
    "triangular": case(lambda x: (x.tril(-1), x.triu(1)), r(4, 5)),
    "einsum": case(lambda x, y: torch.einsum("bij,bjk->bki", x, y), r(2, 3, 4), r(2, 4, 5)),
    # layers
    "conv_transpose": case(eager_module(nn.ConvTranspose2d(3, 4, 3, stride=2)), r(1, 3, 5, 5)),
    "grouped_conv": case(eager_module(nn.Conv1d(4, 8, 3, groups=2, dilation=2, padding=1)), r(2, 4, 9)),
    "pooling": case(
        lambda x: (F.max_pool2d(x, 2, return_indices=True), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, (3, 2))), r(1, 3, 9, 8)
    ),
    "interpolate": case(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), r(1, 3, 5, 5)),
    "grid_sample": case(lambda x, g: F.grid_sample(x, g, align_corners=False), r(1, 3, 5, 5), r(1, 4, 4, 2).clamp(-1, 1)),
    "padding": case(lambda x: (F.pad(x, (1, 2), value=3.0), F.pad(x, (2, 1), mode="reflect")), r(2, 3, 6)),
    "embedding": case(eager_module(nn.Embedding(10, 3)), whole(0, 10, 2, 4)),
    "embedding_bag": case(
        eager_module(nn.EmbeddingBag(10, 3)),
        torch.tensor([1, 2, 4]),
        torch.tensor([0, 2]),
        stays={"aten._embedding_bag.default": "policy"},
    ),
    "norms": case(eager_module(nn.Sequential(nn.LayerNorm(6), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4))), r(2, 4, 6)),
    "multihead_attention": case(eager_module(nn.MultiheadAttention(8, 2, batch_first=True)), r(2, 3, 8), r(2, 3, 8), r(2, 3, 8)),
    "causal_attention": case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), r(2, 4, 6, 8), r(2, 4, 6, 8), r(2, 4, 6, 8)
    ),
    "masked_attention": case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=fully_masked_row()), r(2, 4, 6, 8), r(2, 4, 6, 8), r(2, 4, 6, 8)
    ),
    "grouped_attention": case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), r(2, 4, 6, 8), r(2, 2, 6, 8), r(2, 2, 6, 8)
    ),
}


def _stays(capture: Capture) -> dict[str, str]:
    return {fallback.target: fallback.reason_code for fallback in capture.fallbacks}


@pytest.mark.parametrize("name", CASES)
def test_same_as_eager_and_only_the_stated_operators_stay_in_pytorch(name: str) -> None:
    function, calls, stays = CASES[name]
    capture = same_as_eager(function, *calls)
    assert _stays(capture) == stays
    assert all(fallback.reason for fallback in capture.fallbacks)
    assert not capture.findings
    fallbacks = {graph.graph_id: [f for f in capture.fallbacks if f.graph_id == graph.graph_id] for graph in capture.graphs}
    for graph in capture.graphs:
        assert graph.fallback_count == len(fallbacks[graph.graph_id])
        assert graph.node_count
        assert graph.coverage == pytest.approx(1 - len(fallbacks[graph.graph_id]) / graph.node_count)


@pytest.mark.parametrize("name", ["nonzero"])
def test_what_dynamo_does_not_trace_reaches_no_backend(name: str) -> None:
    function, calls, _ = CASES[name]
    capture = same_as_eager(function, *calls)
    assert not capture.graphs
    (broken,) = capture.breaks
    assert "output shape" in broken.reason.lower() or "dynamic" in broken.reason.lower()


@pytest.mark.parametrize("train", [False, True])
def test_no_session_is_tried_for_bfloat16(monkeypatch: pytest.MonkeyPatch, *, train: bool) -> None:
    tried: list[SessionConfig] = []
    original = SessionConfig.session

    def counted(config: SessionConfig, *given: Any) -> Any:
        tried.append(config)
        return original(config, *given)

    monkeypatch.setattr(SessionConfig, "session", counted)
    model, lens = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), ortlens.Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(train):
        got, want = compiled(r(3, 8)), model(r(3, 8))
    torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
    if train:
        got.float().sum().backward()
    capture = lens.captured()
    assert len(tried) == len(capture.sessions)
    assert {fallback.reason_code for fallback in capture.fallbacks} == {"dtype"}
    assert "no arithmetic in bfloat16" in capture.fallbacks[0].reason


def test_float64_gelu_is_refused_by_the_runtime_and_the_neighbours_stay() -> None:
    capture = same_as_eager(lambda x, y: F.gelu(x @ y).erf().softmax(-1), (r(4, 6).double(), r(6, 5).double()))
    assert _stays(capture) == {"aten.gelu.default": "session_refused", "aten.erf.default": "session_refused"}
    assert all("has no kernel of" in fallback.reason for fallback in capture.fallbacks)
    assert [graph.coverage for graph in capture.graphs] == [0.5]


def test_data_dependent_values_inside_one_graph() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        capture = same_as_eager(lambda x: (x[x > 0] * 2, x.nonzero() + 1, x * x.sum().item()), (r(9),), (r(9) * -1,))
    assert len(capture.graphs) == 1
    assert all(fallback.reason for fallback in capture.fallbacks)


def test_number_results_of_a_graph_keep_their_python_type() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        capture = same_as_eager(lambda x, i: (x.sum().item() * 2, i.sum().item() + 1, x + 1), (r(5), whole(0, 9, 4)))
    assert len(capture.graphs) == 1
