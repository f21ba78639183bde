"""Decoders of text: dense, mixture of experts, state space and recurrent."""

from typing import Any

from tests.zoo.architecture import TOKENS, Architecture, Family, layers, text

_SPECIAL: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "use_cache": False, "vocab_size": TOKENS}
_LLAMA: dict[str, Any] = _SPECIAL | {
    **layers(64),
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_GPT: dict[str, Any] = _SPECIAL | {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_ctx": 64}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LOCAL_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_DEEPSEEK: dict[str, Any] = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
_SSM: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 8}


def _decoder(model: str, family: Family = "decoder", /, **config: Any) -> Architecture:  # noqa: ANN401 - a config holds anything
    return Architecture(model=model, family=family, config=_LLAMA | config, inputs=text)


def _gpt(model: str, **config: Any) -> Architecture:  # noqa: ANN401 - same
    return Architecture(model=model, family="decoder", config=_GPT | config, inputs=text)


def _moe(model: str, **config: Any) -> Architecture:  # noqa: ANN401 - same
    return _decoder(model, "mixture of experts", **config)


def _recurrent(model: str, **config: Any) -> Architecture:  # noqa: ANN401 - same
    return _decoder(model, "recurrent", **config)


ARCHITECTURES = (
    *map(
        _decoder,
        (
            "ArceeForCausalLM",
            "BioGptForCausalLM",
            "CohereForCausalLM",
            "DiffLlamaForCausalLM",
            "GPTNeoXForCausalLM",
            "LlamaForCausalLM",
            "LlamaForSequenceClassification",
            "NemotronForCausalLM",
            "Olmo2ForCausalLM",
            "PhiForCausalLM",
            "StableLmForCausalLM",
        ),
    ),
    _decoder("BloomForCausalLM", n_layer=2, n_head=4),
    *(_decoder(model, sliding_window=8) for model in ("Exaone4ForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM")),
    _decoder("FalconForCausalLM", new_decoder_architecture=False, multi_query=True, alibi=False),
    *(_decoder(model, head_dim=16) for model in ("GemmaForCausalLM", "Glm4ForCausalLM", "Qwen3ForCausalLM")),
    *(_decoder(model, head_dim=16, sliding_window=8, query_pre_attn_scalar=16) for model in ("Gemma2ForCausalLM", "Gemma3ForCausalLM")),
    *map(_gpt, ("GPT2LMHeadModel", "GPTBigCodeForCausalLM")),
    _gpt("GPTJForCausalLM", rotary_dim=8),
    _decoder("GPTNeoForCausalLM", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8),
    _decoder("MptForCausalLM", d_model=64, n_heads=4, n_layers=2, max_seq_len=64),
    _decoder("OlmoForCausalLM", clip_qkv=8.0),
    _decoder("OPTForCausalLM", ffn_dim=128, word_embed_proj_dim=32),
    _moe(
        "DbrxForCausalLM",
        d_model=64,
        n_heads=4,
        n_layers=2,
        max_seq_len=64,
        attn_config={"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    ),
    _moe("DeepseekV3ForCausalLM", **_DEEPSEEK),
    _moe("GptOssForCausalLM", **_LOCAL_EXPERTS, head_dim=16, sliding_window=8),
    _moe("MixtralForCausalLM", **_LOCAL_EXPERTS),
    _moe("Qwen2MoeForCausalLM", **_EXPERTS, shared_expert_intermediate_size=64),
    _recurrent("BambaForCausalLM", **_SSM, attn_layer_indices=[1]),
    _recurrent(
        "JambaForCausalLM",
        **_LOCAL_EXPERTS,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=8,
        num_experts=4,
    ),
    _recurrent("Lfm2ForCausalLM", layer_types=["conv", "full_attention"]),
    _recurrent("MambaForCausalLM", state_size=8, time_step_rank=8),
    _recurrent("Mamba2ForCausalLM", num_heads=4, head_dim=32, state_size=16, n_groups=1, chunk_size=8),
    _recurrent(
        "Qwen3NextForCausalLM",
        **_EXPERTS,
        head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        shared_expert_intermediate_size=32,
    ),
    _recurrent("RecurrentGemmaForCausalLM", lru_width=64, attention_window_size=8, head_dim=16, block_types=["recurrent", "attention"]),
    _recurrent("RwkvForCausalLM", attention_hidden_size=64),
)
