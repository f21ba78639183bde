"""Two captures, value by value: what `explain(keep_values=True)` keeps, and the first value that `compare` names."""

# ruff: noqa: ANN401 - models, inputs and lenses of both kinds

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import ortlens
from ortlens.errors import UsageError
from ortlens.lens.observing.digests import Digests
from tests.onnx_models import onnx_model

X = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))


class Net(torch.nn.Module):
    """In training mode: it draws random numbers, writes to buffers in each call, breaks into two graphs, and PyTorch runs a part."""

    def __init__(self, last: type[torch.nn.Module] = torch.nn.ReLU, scale: float = 1.0, end: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = torch.nn.ModuleList((torch.nn.Linear(32, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 32), last()))
        self.get_parameter("parts.2.weight").data[3] *= scale
        self.norm, self.end = torch.nn.BatchNorm1d(32), end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, drop, second, last = self.parts
        y = drop(first(x))
        torch._dynamo.graph_break()
        return torch.erfinv(self.norm(last(second(y))) * 0.1) * self.end


@torch.no_grad()
def kept(model: Any, x: Any = X, *, calls: int = 1, keep_values: bool = True, **options: Any) -> Any:
    return ortlens.explain(model, calls=calls, keep_values=keep_values, name="net", **options)(x)


def named(before: Any, after: Any) -> list[str]:
    rows = before.compare(after).changes
    return [f"{row.effect}: {row.subject}: {row.after}" for row in rows[rows.kind == "value"].itertuples()]


def test_the_first_value_of_a_module_that_differs_is_named() -> None:
    model = Net()
    base, again = kept(model), kept(Net(), calls=4)
    # the call of the digests is put back, and not counted
    assert (int(model.norm.num_batches_tracked or 0), again.sessions.calls.max()) == (1, 4)
    assert named(base, again) == []
    others = {
        "neutral: digests: not kept; explain it again": kept(Net(), keep_values=False),
        "neutral: input x: .* the inputs differ": kept(Net(), X * 1.01),
        "neutral: addmm .* rounding only": kept(Net(scale=1 + 1e-6)),
        "worse: addmm .* beyond rounding": kept(Net(scale=1.1)),
        "worse: tanh .* beyond rounding": kept(Net(torch.nn.Tanh)),
        "worse: mul_tensor .* beyond rounding": kept(Net(end=1.1)),
    }
    assert [words for words, after in others.items() if not re.match(words, "|".join(named(base, after)))] == []


def layers(planted: float = 0.0, third: str = "Relu") -> onnx.ModelProto:
    weights = {f"w{n}": np.random.default_rng(n).standard_normal((32, 32)).astype("float32") / 5 + planted * (n == 2) for n in range(4)}
    makers: Any = [(["MatMul", [f"h{n}", f"w{n}"], [f"m{n}"]], [third if n == 2 else "Relu", [f"m{n}"], [f"h{n + 1}"]]) for n in range(4)]
    nodes = [helper.make_node(*each) for pair in makers for each in pair]
    return onnx_model(nodes, [("h0", TensorProto.FLOAT, ["n", 32])], [("h4", TensorProto.FLOAT, ["n", 32])], weights)


def test_the_first_value_of_an_onnx_model_that_differs_is_named(tmp_path: Path) -> None:
    x = X.numpy()
    onnx.save(layers(), tmp_path / "net.onnx", save_as_external_data=True, size_threshold=64)
    base = kept(tmp_path / "net.onnx", x, calls=2)
    assert base.values.node.tolist() == ["h0", *(f"{op}_{2 * n + k}" for n in range(4) for k, op in enumerate(("MatMul", "Relu")))]
    assert (base.sessions.calls.tolist(), base.findings.rule.tolist()) == ([2], [])
    base.save(tmp_path / "net.ortlens")
    assert named(ortlens.load(tmp_path / "net.ortlens"), kept(layers(), x)) == []
    hostile = tuple(replace(row, checksum=0, sketch=row.sketch[1:]) for row in base.captured().values)
    assert named(base, replace(base.captured(), values=hostile))[0].startswith("neutral: input h0: ")
    assert [words[:16] for words in named(base, kept(layers(planted=1e-2), x))] == ["worse: MatMul_4 "]
    assert [words[:14] for words in named(base, kept(layers(third="Tanh"), x))] == ["worse: Tanh_5 "]


def test_a_digest_is_the_same_everywhere_and_tells_how_far_values_are_apart() -> None:
    digests, values = Digests(), np.arange(40_000.0)
    far = values + np.random.default_rng(0).standard_normal(40_000)
    special = np.array([np.nan, 1, -2, np.inf, 0], "float16")
    for place, value in enumerate((values, far, special, np.zeros(0), np.array("text"), torch.tensor([1, 2], dtype=torch.bfloat16))):
        digests.keep("g0", "x", place, value)
    one, other, third, empty, narrow = digests.values()
    assert (one.high, one.sketch[:2], one.checksum) == (39_999, (-1_173_768, -2_968_978), 1_661_198_084)
    assert np.linalg.norm(np.subtract(one.sketch, other.sketch)) / 4 == pytest.approx(200, rel=0.5)
    assert (third.nonfinite, third.low, third.high, third.norm) == (2, -2, 1, 5**0.5)
    assert (empty.low, empty.norm, narrow.dtype, narrow.high) == (None, 0, "bfloat16", 2)


@pytest.mark.parametrize("how", [{"dry_run": True}, {"backend": "inductor"}])
def test_keep_values_needs_a_run_in_onnx_runtime(how: Any) -> None:
    with pytest.raises(UsageError, match="keep_values=True needs a run in ONNX Runtime"):
        kept(Net(), **how)
