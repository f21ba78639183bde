"""Models of sound."""

from collections.abc import Callable
from typing import Any

import torch

from tests.zoo.architecture import BATCH, SPECIAL, Architecture, both_sides, layers, tokens, wave

_WAV2VEC2: dict[str, Any] = {
    **layers(32),
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 4, 2],
    "conv_kernel": [10, 3, 3],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 32,
}
_SEW: dict[str, Any] = _WAV2VEC2 | {"squeeze_factor": 2}
_SIDES: dict[str, Any] = both_sides(layers=2, attention_heads=4, ffn_dim=64)
_SPEECH: dict[str, Any] = {"d_model": 32, **_SIDES, **SPECIAL}


def _audio(model: str, inputs: Callable[[], dict[str, Any]], /, **config: Any) -> Architecture:  # noqa: ANN401 - a config holds anything
    return Architecture(model=model, family="audio", config=config, inputs=inputs)


def _spectrogram(*shape: int, name: str = "input_features") -> dict[str, Any]:
    return {name: torch.randn(BATCH, *shape)}


ARCHITECTURES = (
    _audio(
        "ASTModel",
        lambda: _spectrogram(64, 32, name="input_values"),
        **layers(64),
        max_length=64,
        num_mel_bins=32,
    ),
    _audio("Data2VecAudioModel", wave(), **_WAV2VEC2, num_conv_pos_embedding=2),
    _audio(
        "EncodecModel",
        lambda: {"input_values": torch.randn(BATCH, 1, 1280)},
        hidden_size=16,
        num_filters=4,
        codebook_size=32,
        codebook_dim=16,
        upsampling_ratios=[4, 2],
        num_lstm_layers=1,
    ),
    _audio(
        "MoonshineModel",
        lambda: {**wave()(), "decoder_input_ids": tokens(8)},
        hidden_size=32,
        intermediate_size=64,
        vocab_size=100,
        **both_sides(num_hidden_layers=2, num_attention_heads=4),
        use_cache=False,
    ),
    _audio("SEWModel", wave(), **_SEW),
    _audio("SEWDModel", wave(), **_SEW, position_buckets=8, max_position_embeddings=32),
    _audio(
        "Wav2Vec2BertModel",
        lambda: _spectrogram(32, 16),
        **layers(32),
        feature_projection_input_dim=16,
    ),
    _audio("Wav2Vec2ConformerModel", wave(), **_WAV2VEC2, position_embeddings_type="relative"),
    _audio("Wav2Vec2Model", wave(), **_WAV2VEC2, do_stable_layer_norm=True, feat_extract_norm="layer"),
    _audio("WavLMModel", wave(), **_WAV2VEC2),
    _audio(
        "WhisperModel",
        lambda: {**_spectrogram(16, 64), "decoder_input_ids": tokens(8)},
        **_SPEECH,
        num_mel_bins=16,
        max_source_positions=32,
        max_target_positions=32,
    ),
)
