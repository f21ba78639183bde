"""Real architectures from `transformers`, small, with random weights: nothing is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKENS = 100


class SmallModel(NamedTuple):
    """A model builder and a maker of its inputs for a batch size."""

    build: Callable[[], torch.nn.Module]
    inputs: Callable[[int], dict[str, Any]]


def _tokens(batch: int, length: int = 16) -> torch.Tensor:
    return torch.randint(0, _TOKENS, (batch, length))


def bert() -> torch.nn.Module:
    config = transformers.BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=_TOKENS)
    model: torch.nn.Module = transformers.BertModel(config)
    return model


def gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=_TOKENS, n_positions=64, use_cache=False, bos_token_id=1, eos_token_id=2
    )
    model: torch.nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        vocab_size=_TOKENS,
        use_cache=False,
    )
    model: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return model


def t5() -> torch.nn.Module:
    config = transformers.T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=_TOKENS, use_cache=False, decoder_start_token_id=0
    )
    model: torch.nn.Module = transformers.T5Model(config)
    return model


def vit() -> torch.nn.Module:
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8
    )
    model: torch.nn.Module = transformers.ViTModel(config)
    return model


def resnet() -> torch.nn.Module:
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic")
    model: torch.nn.Module = transformers.ResNetModel(config)
    return model


SMALL_MODELS = {
    "bert": SmallModel(build=bert, inputs=lambda batch: {"input_ids": _tokens(batch)}),
    "gpt2": SmallModel(build=gpt2, inputs=lambda batch: {"input_ids": _tokens(batch)}),
    "llama": SmallModel(build=llama, inputs=lambda batch: {"input_ids": _tokens(batch)}),
    "t5": SmallModel(build=t5, inputs=lambda batch: {"input_ids": _tokens(batch), "decoder_input_ids": _tokens(batch, 8)}),
    "vit": SmallModel(build=vit, inputs=lambda batch: {"pixel_values": torch.randn(batch, 3, 32, 32)}),
    "resnet": SmallModel(build=resnet, inputs=lambda batch: {"pixel_values": torch.randn(batch, 3, 64, 64)}),
}
