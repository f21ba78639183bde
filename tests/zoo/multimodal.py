"""Models of text with images, and of time series."""

from collections.abc import Callable
from typing import Any

import torch

from tests.zoo.architecture import BATCH, TOKENS, Architecture, Family, both_sides, layers, text_and_pixels, tokens

_LAYERS = layers(64)
_TEXT: dict[str, Any] = _LAYERS | {
    "vocab_size": TOKENS,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_VISION: dict[str, Any] = _LAYERS | {"image_size": 32, "patch_size": 8}
_BOTH: dict[str, Any] = {"text_config": _TEXT, "vision_config": _VISION, "projection_dim": 32}


def _entry(model: str, family: Family, inputs: Callable[[], dict[str, Any]], /, **config: Any) -> Architecture:  # noqa: ANN401 - a config holds anything
    return Architecture(model=model, family=family, config=config, inputs=inputs)


def _past(length: int = 16, channels: int = 3) -> dict[str, Any]:
    return {"past_values": torch.randn(BATCH, length, channels)}


def _forecast() -> dict[str, Any]:
    return {
        "past_values": torch.randn(BATCH, 15),
        "past_time_features": torch.randn(BATCH, 15, 1),
        "past_observed_mask": torch.ones(BATCH, 15),
        "future_values": torch.randn(BATCH, 4),
        "future_time_features": torch.randn(BATCH, 4, 1),
    }


def _llava() -> dict[str, Any]:
    ids = tokens(24)
    ids[:, 1:17] = TOKENS - 1  # one place per patch of the image
    ids[:, 17:] = ids[:, 17:].clamp(max=TOKENS - 2)
    ids[:, 0] = 5
    return {"input_ids": ids, "pixel_values": torch.randn(BATCH, 3, 32, 32)}


def _regions() -> dict[str, Any]:
    return {"input_ids": tokens(), "visual_feats": torch.randn(BATCH, 6, 32), "visual_pos": torch.rand(BATCH, 6, 4)}


def _patches() -> dict[str, Any]:
    return {
        "input_ids": tokens(),
        "pixel_values": torch.randn(BATCH, 16, 3 * 8 * 8),
        "pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.int64),
        "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
    }


def _trajectory() -> dict[str, Any]:
    return {
        "states": torch.randn(BATCH, 8, 5),
        "actions": torch.randn(BATCH, 8, 2),
        "rewards": torch.randn(BATCH, 8, 1),
        "returns_to_go": torch.randn(BATCH, 8, 1),
        "timesteps": torch.arange(8).expand(BATCH, 8),
        "attention_mask": torch.ones(BATCH, 8, dtype=torch.int64),
    }


_PATCHES: dict[str, Any] = {"context_length": 16, "patch_length": 4, "patch_stride": 4, "num_input_channels": 3}
_FORECAST: dict[str, Any] = {
    "prediction_length": 4,
    "context_length": 12,
    "lags_sequence": [1, 2, 3],
    "num_time_features": 1,
    "d_model": 32,
    **both_sides(layers=2, attention_heads=2, ffn_dim=64),
    "use_cache": False,
}

ARCHITECTURES = (
    *(_entry(model, "multimodal", text_and_pixels(), **_BOTH) for model in ("BlipModel", "CLIPModel")),
    _entry("GitModel", "multimodal", text_and_pixels(), **_TEXT, vision_config=_VISION, use_cache=False),
    _entry(
        "GroupViTModel",
        "multimodal",
        text_and_pixels(),
        text_config=_TEXT,
        projection_dim=32,
        projection_intermediate_dim=64,
        vision_config=_VISION | {"depths": [1, 1, 1], "num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 0]},
    ),
    _entry(
        "LlavaForConditionalGeneration",
        "multimodal",
        _llava,
        vision_config=_VISION | {"model_type": "clip_vision_model"},
        text_config=_TEXT | {"model_type": "llama", "use_cache": False},
        image_token_index=TOKENS - 1,
        vision_feature_layer=-1,
    ),
    _entry("LxmertModel", "multimodal", _regions, **_LAYERS, vocab_size=TOKENS, l_layers=1, x_layers=1, r_layers=1, visual_feat_dim=32),
    _entry(
        "Siglip2Model",
        "multimodal",
        _patches,
        text_config=_TEXT | {"projection_size": 64},
        vision_config=_LAYERS | {"num_patches": 16, "patch_size": 8},
    ),
    _entry("AutoformerModel", "time series", _forecast, **_FORECAST, moving_average=3, label_length=4),
    _entry(
        "DecisionTransformerModel",
        "time series",
        _trajectory,
        state_dim=5,
        act_dim=2,
        hidden_size=64,
        n_layer=2,
        n_head=4,
        max_ep_len=32,
        use_cache=False,
    ),
    _entry("InformerModel", "time series", _forecast, **_FORECAST),
    _entry(
        "PatchTSMixerModel",
        "time series",
        _past,
        **_PATCHES,
        d_model=16,
        num_layers=2,
    ),
    _entry(
        "PatchTSTModel",
        "time series",
        _past,
        **_PATCHES,
        d_model=32,
        num_attention_heads=4,
        ffn_dim=64,
        num_hidden_layers=2,
    ),
)
