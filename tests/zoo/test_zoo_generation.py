"""`generate` of transformers through the lens: tokens are those of PyTorch, and prefill and decode are counted, whatever the cache."""

import pytest
import torch

import ortlens
from ortlens.analysis.coverage import own_recompiles
from tests.zoo.generation import generation_inputs, generator

# Each compiles three graphs at least.
pytestmark = pytest.mark.slow

NEW = 8
PROMPT = 12
CASES = (
    *(("GPT2", way) for way in ("dynamic", "static", "sampling", "beams", "padding")),
    *((name, "dynamic") for name in ("Mistral", "Qwen3Moe", "T5", "Mamba")),
    *((name, "static") for name in ("Llama", "Gemma2")),
    ("T5", "beams"),
)


@pytest.mark.parametrize(("name", "way"), CASES)
def test_tokens_and_steps(name: str, way: str) -> None:
    model, inputs = generator(name), generation_inputs(way, prompt=PROMPT, new=NEW)
    torch.manual_seed(1)
    expected = model.generate(**inputs)

    torch.manual_seed(1)
    lens = ortlens.explain(model.generate, calls=1)(**inputs)
    assert torch.equal(lens.result, expected)
    lens.measure(**inputs)

    steps = {step.role: step for step in lens.captured().steps}
    rows = 2 * inputs.get("num_beams", 1)
    start = 1 if "encode" in steps else PROMPT
    assert (steps["prefill"].calls, steps["prefill"].tokens) == (1, rows * start)
    assert (steps["decode"].calls, steps["decode"].tokens) == (NEW - 1, rows * (NEW - 1))
    assert ("encode" in steps) == (name == "T5")
    roles = {graph.graph_id: graph.role for graph in lens.captured().graphs}
    assert {role: {roles[graph_id] for graph_id in step.graph_ids} for role, step in steps.items() if role != "python"} == {
        role: {role} for role in steps if role != "python"
    }
    assert None not in roles.values()
    assert all(graph.coverage == 1.0 for graph in lens.captured().graphs)
    assert lens.breaks.empty
    found = lens.captured()
    advice = " ".join(item.advice or "" for item in own_recompiles(found))
    assert "mark_dynamic" not in advice
    assert "contiguous" not in advice
    assert all("modeling_" in str(graph.file) for graph in lens.captured().graphs)
