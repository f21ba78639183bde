"""`generate` of transformers through the lens: tokens are those of PyTorch, and prefill and decode are counted, whatever the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import ortlens
from ortlens.analysis.overview import overview_of

# Each compiles three graphs at least.
pytestmark = pytest.mark.slow

NEW = 8
PROMPT = 12
_SPECIAL: dict[str, Any] = {"vocab_size": 200, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
_LLAMA: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_BART: dict[str, Any] = {
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_T5: dict[str, Any] = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
MODELS: dict[str, dict[str, Any]] = {
    "GPT2": {"n_layer": 2, "n_head": 4, "n_embd": 64},
    "Llama": _LLAMA,
    "Qwen2": _LLAMA,
    "T5": _T5,
    "Bart": _BART,
    "Mamba": {"hidden_size": 64, "state_size": 8, "num_hidden_layers": 2},
}
CASES = (
    *((name, how) for name in ("GPT2", "Llama") for how in ("dynamic", "static", "sampling", "beams", "padding")),
    *((name, "dynamic") for name in ("Qwen2", "T5", "Bart", "Mamba")),
    ("Qwen2", "static"),
    ("T5", "beams"),
)
HOW: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "sampling": {"do_sample": True, "top_k": 20},
    "beams": {"num_beams": 3},
    "padding": {},
}


def _model(name: str) -> Any:  # noqa: ANN401 - a model of any class
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**_SPECIAL, **MODELS[name])
    kinds = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel")
    model = next(getattr(transformers, name + kind) for kind in kinds if hasattr(transformers, name + kind))
    return model(config).eval()


def _inputs(how: str) -> dict[str, Any]:
    ids = torch.randint(3, 200, (2, PROMPT), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if how == "padding":
        ids[0, :4], mask[0, :4] = 0, 0
    return {"input_ids": ids, "attention_mask": mask, "max_new_tokens": NEW, "do_sample": False} | HOW[how]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_tokens_and_steps(name: str, how: str) -> None:
    torch.compiler.reset()
    model, inputs = _model(name), _inputs(how)
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
    assert ("encode" in steps) == (name in ("T5", "Bart"))
    roles = {graph.graph_id: graph.role for graph in lens.captured().graphs}
    assert {role: {roles[graph_id] for graph_id in step.graph_ids} for role, step in steps.items() if role != "python"} == {
        role: {role} for role in steps if role != "python"
    }
    assert lens.breaks.empty
    overview = overview_of(lens.captured())
    assert all("mark_dynamic" not in (item.advice or "") for item in overview.recompiles)
    assert all("modeling_" in str(graph.file) for graph in lens.captured().graphs)
