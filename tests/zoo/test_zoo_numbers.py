"""`verify` raises no alarm on clean architectures, compares nearly all of their values, and names a converter that is made wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from onnxscript import opset18

import ortlens
from tests.zoo.table import ARCHITECTURES

if TYPE_CHECKING:
    import pandas as pd

op: Any = opset18

# Models warn of themselves while they are traced: of caches that Dynamo goes past, of functions of their own for gradients.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# One of each family. The first one runs in every test run, the others carry the marker `slow`.
ALWAYS = ("MixtralForCausalLM",)
OTHERS = ("LevitModel", "PatchTSTModel", "Wav2Vec2Model", "DebertaModel", "GemmaForCausalLM", "MambaForCausalLM", "T5Model", "CLIPModel")
NAMES = [*ALWAYS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


def verified(name: str, **options: object) -> tuple[ortlens.Lens, pd.DataFrame]:
    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[name].build(), ARCHITECTURES[name].inputs()
    lens = ortlens.explain(model, calls=1, options=options)(**inputs)
    return lens, lens.verify(**inputs)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_no_alarm_on_a_clean_architecture(name: str) -> None:
    lens, numerics = verified(name)
    wrong = numerics[numerics.ok.notna() & ~numerics.ok.fillna(value=True).astype(bool)]
    assert wrong.empty, wrong[["node", "max_abs", "note"]].to_dict("records")
    assert not numerics.first_divergence.any()
    assert {"call_differs", "numbers_differ", "loses_accuracy", "fusion_changes_numbers", "nonfinite_origin", "lens_failed"}.isdisjoint(
        lens.findings.rule
    )
    assert (numerics.note[numerics.ok.isna()] != "").all()
    assert numerics.ok.notna().mean() > 0.9


def product_and_more(x: Any, y: Any) -> Any:  # noqa: ANN401 - values of ONNX Script
    return op.Mul(op.Mul(x, y), op.CastLike(op.Constant(value_float=1.001), x))


def rectified_and_more(x: Any) -> Any:  # noqa: ANN401 - as above
    return op.Mul(op.Relu(x), op.CastLike(op.Constant(value_float=1.001), x))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ALWAYS, *OTHERS[::2]])
@torch.no_grad()
def test_a_wrong_operator_is_the_first_divergence(name: str) -> None:
    planted = {torch.ops.aten.mul.Tensor: product_and_more, torch.ops.aten.relu.default: rectified_and_more}
    lens, numerics = verified(name, custom_translation_table=planted)
    wrong = lens.nodes[lens.nodes.target.isin(list(map(str, planted))) & lens.nodes.partition_id.notna()]
    (first,) = numerics[numerics.first_divergence].to_dict("records")
    assert first["node"] in set(wrong.node)
    line = wrong[wrong.node == first["node"]].iloc[0]
    assert (first["file"], first["line"]) == (line.file, line.line)
