"""Architectures of the zoo with inputs for any batch size: small, with random weights, nothing is downloaded."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tests.zoo.architecture import TOKENS
from tests.zoo.table import ARCHITECTURES


class SmallModel(NamedTuple):
    """A model builder and a maker of its inputs for a batch size."""

    build: Callable[[], torch.nn.Module]
    inputs: Callable[[int], dict[str, Any]]


def _tokens(batch: int, length: int = 16) -> torch.Tensor:
    return torch.randint(5, TOKENS, (batch, length))


_RESNET = dataclasses.replace(
    ARCHITECTURES["ResNetModel"], config={"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
)
_VIT = dataclasses.replace(ARCHITECTURES["ViTForImageClassification"], model="ViTModel")
SMALL_MODELS = {
    **{
        name: SmallModel(build=ARCHITECTURES[model].build, inputs=lambda batch: {"input_ids": _tokens(batch)})
        for name, model in (("bert", "BertModel"), ("gpt2", "GPT2LMHeadModel"), ("llama", "LlamaForCausalLM"))
    },
    "t5": SmallModel(ARCHITECTURES["T5Model"].build, lambda batch: {"input_ids": _tokens(batch), "decoder_input_ids": _tokens(batch, 8)}),
    "vit": SmallModel(_VIT.build, lambda batch: {"pixel_values": torch.randn(batch, 3, 32, 32)}),
    "resnet": SmallModel(_RESNET.build, lambda batch: {"pixel_values": torch.randn(batch, 3, 64, 64)}),
}
