"""What an entry of the zoo is: a class of `transformers`, a small config for it, and inputs that fit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
import transformers

BATCH = 2
TOKENS = 100
SPECIAL: dict[str, Any] = {
    "vocab_size": TOKENS,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
"""What an encoder-decoder of tokens is told of them."""

Family: TypeAlias = Literal[
    "text encoder", "decoder", "mixture of experts", "recurrent", "encoder-decoder", "vision", "audio", "multimodal", "time series"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model class of `transformers` with a small random config.

    Attributes:
        model: Name of the class in `transformers`; the id of the entry.
        family: What kind of model it is.
        config: Arguments of its config class.
        inputs: Makes the keyword arguments of a call.
    """

    model: str
    family: Family
    config: Mapping[str, Any]
    inputs: Callable[[], dict[str, Any]]

    def build(self) -> torch.nn.Module:
        """Make the model with random weights, in eval mode.

        Every weight is moved a little, since many start as zeros or ones (biases, norms, relative positions, layer scales), and a converter
        that drops such a term would otherwise go unseen.
        """
        model_class = getattr(transformers, self.model)
        model: torch.nn.Module = model_class(model_class.config_class(**self.config)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
        return model


def layers(width: int) -> dict[str, Any]:
    """Sizes of a stack of layers, by the names that most configs give them."""
    return {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 2 * width}


def both_sides(**sizes: int) -> dict[str, int]:
    """The same sizes for an encoder and a decoder."""
    return {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}


def tokens(length: int = 16) -> torch.Tensor:
    """Token ids without the special ones, [batch, length], int64."""
    return torch.randint(5, TOKENS, (BATCH, length))


def text() -> dict[str, Any]:
    """What an encoder or a decoder of text takes."""
    return {"input_ids": tokens()}


def padded_text() -> dict[str, Any]:
    """The same, with the second row padded: the mask then decides."""
    mask = torch.ones(BATCH, 16, dtype=torch.int64)
    mask[1, 12:] = 0
    return {"input_ids": tokens(), "attention_mask": mask}


def pair() -> dict[str, Any]:
    """What an encoder-decoder of text takes."""
    return {"input_ids": tokens(), "decoder_input_ids": tokens(8)}


def pixels(size: int = 32) -> Callable[[], dict[str, Any]]:
    """What a model of images takes, [batch, 3, size, size]."""
    return lambda: {"pixel_values": torch.randn(BATCH, 3, size, size)}


def frames(count: int, size: int) -> Callable[[], dict[str, Any]]:
    """What a model of videos takes, [batch, count, 3, size, size]."""
    return lambda: {"pixel_values": torch.randn(BATCH, count, 3, size, size)}


def wave(length: int = 1600) -> Callable[[], dict[str, Any]]:
    """What a model of raw sound takes, [batch, length]."""
    return lambda: {"input_values": torch.randn(BATCH, length)}


def text_and_pixels(size: int = 32) -> Callable[[], dict[str, Any]]:
    """What a model of captions and images takes."""
    return lambda: {**text(), **pixels(size)()}
