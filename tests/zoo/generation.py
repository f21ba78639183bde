"""Models of transformers that generate, with random weights, and ways of generating: for tests and benchmarks."""

from typing import Any

import torch
import transformers

_SPECIAL: dict[str, Any] = {"vocab_size": 200, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
_KINDS = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel")
_POSITIONS = 4096

WAYS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "static, 64": {"cache_implementation": "static", "max_cache_len": 64},
    "static, 2048": {"cache_implementation": "static", "max_cache_len": 2048},
    "sampling": {"do_sample": True, "top_k": 20},
    "beams": {"num_beams": 3},
    "padding": {},
    "padding, sampling": {"do_sample": True, "top_k": 20},
}
"""What `generate` is given besides the tokens; with padding, the first row begins with four pads."""


def configurations(width: int, layers: int, window: int) -> dict[str, dict[str, Any]]:
    """What the configuration of each model is made from."""
    llama = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": _POSITIONS,
    }
    head = {"head_dim": width // 4}
    return {
        "GPT2": {"n_layer": layers, "n_head": 4, "n_embd": width, "n_positions": _POSITIONS},
        "OPT": {**llama, "ffn_dim": 2 * width, "word_embed_proj_dim": width},
        "Bloom": {"hidden_size": width, "n_layer": layers, "n_head": 4},
        "Phi": llama,
        "Llama": llama,
        "Mistral": {**llama, "sliding_window": window},
        "Qwen2": llama,
        "Qwen3Moe": {**llama, **head, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": width // 2},
        "Gemma2": {**llama, **head, "sliding_window": window, "query_pre_attn_scalar": width // 4},
        "T5": {"d_model": width, "d_kv": width // 4, "d_ff": 2 * width, "num_layers": layers, "num_heads": 4, "decoder_start_token_id": 0},
        "Bart": {
            "d_model": width,
            "encoder_layers": layers,
            "decoder_layers": layers,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 2 * width,
            "decoder_ffn_dim": 2 * width,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": None,
            "max_position_embeddings": _POSITIONS,
        },
        "Mamba": {"hidden_size": width, "state_size": 8, "num_hidden_layers": layers},
    }


def generator(name: str, *, width: int = 64, layers: int = 2, window: int = 8) -> Any:  # noqa: ANN401 - a model of any class
    """A model in eval mode, whose weights are the same each time."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**_SPECIAL, **configurations(width, layers, window)[name])
    model = next(getattr(transformers, name + kind) for kind in _KINDS if hasattr(transformers, name + kind))
    return model(config).eval()


def generation_inputs(way: str, *, prompt: int = 12, new: int = 8) -> dict[str, Any]:
    """What `generate` is given: two rows of random tokens, to be continued without end tokens."""
    ids = torch.randint(3, 200, (2, prompt), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if way.startswith("padding"):
        ids[0, :4], mask[0, :4] = 0, 0
    return {"input_ids": ids, "attention_mask": mask, "max_new_tokens": new, "do_sample": False} | WAYS[way]
