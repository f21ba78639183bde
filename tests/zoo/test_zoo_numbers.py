"""`verify` raises no alarm on models without faults, compares nearly all of their values, and names a converter that is made wrong."""

from typing import Any

import pytest
import torch
from onnxscript import opset18

import ortlens
from tests.zoo.programs import PROGRAMS
from tests.zoo.table import ARCHITECTURES
from tests.zoo.verified import verified

op: Any = opset18

# Models warn of themselves while they are traced: of caches that Dynamo goes past, of functions of their own for gradients.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

# One architecture of each family, and programs of what they do not show; `python -m tests.zoo.verified` goes through more.
FAMILIES = ("LevitModel", "PatchTSTModel", "Wav2Vec2Model", "DebertaModel", "GemmaForCausalLM", "MambaForCausalLM", "T5Model", "CLIPModel")
NAMES = (
    *FAMILIES,
    "MixtralForCausalLM",
    "perceptron, float16",
    "convolutions, training",
    "attention, training",
    "dropout",
    "graph break",
    "long variance",
    "perceptron, training",
    "rounding decides",
    "writes to a buffer",
    "long sum",
)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_model_without_faults_is_called_wrong(name: str) -> None:
    found = verified(name)
    assert not found.wrong
    assert found.compared > (0 if name in PROGRAMS else 9 * found.open)


def product_and_more(x: Any, y: Any) -> Any:  # noqa: ANN401 - values of ONNX Script
    return op.Mul(op.Mul(x, y), op.CastLike(op.Constant(value_float=1.001), x))


def rectified_and_more(x: Any) -> Any:  # noqa: ANN401 - as above
    return op.Mul(op.Relu(x), op.CastLike(op.Constant(value_float=1.001), x))


@pytest.mark.parametrize("name", ["MixtralForCausalLM", *FAMILIES[::2]])
@torch.no_grad()
def test_a_wrong_operator_is_the_first_divergence(name: str) -> None:
    planted = {torch.ops.aten.mul.Tensor: product_and_more, torch.ops.aten.relu.default: rectified_and_more}
    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[name].build(), ARCHITECTURES[name].inputs()
    lens = ortlens.explain(model, calls=1, options={"custom_translation_table": planted})(**inputs)
    numerics = lens.verify(**inputs)
    wrong = lens.nodes[lens.nodes.target.isin(list(map(str, planted))) & lens.nodes.partition_id.notna()]
    (first,) = numerics[numerics.first_divergence].to_dict("records")
    assert first["node"] in set(wrong.node)
    line = wrong[wrong.node == first["node"]].iloc[0]
    assert (first["file"], first["line"]) == (line.file, line.line)
