"""Encoder-decoders of text."""

from typing import Any

from tests.zoo.architecture import SPECIAL, TOKENS, Architecture, both_sides, pair

_SIDES: dict[str, Any] = both_sides(layers=2, attention_heads=4, ffn_dim=128)
_BART: dict[str, Any] = SPECIAL | _SIDES | {"d_model": 64, "max_position_embeddings": 64}
_T5: dict[str, Any] = SPECIAL | {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}


def _seq2seq(model: str, config: dict[str, Any], /, **more: Any) -> Architecture:  # noqa: ANN401 - a config holds anything
    return Architecture(model=model, family="encoder-decoder", config=config | more, inputs=pair)


ARCHITECTURES = (
    *(_seq2seq(model, _BART) for model in ("BartModel", "MBartModel")),
    _seq2seq("FSMTModel", _BART, langs=["en", "de"], src_vocab_size=TOKENS, tgt_vocab_size=TOKENS),
    _seq2seq("LEDModel", _BART, attention_window=8),
    _seq2seq("LongT5Model", _T5, local_radius=4),
    *(_seq2seq(model, _T5) for model in ("MT5Model", "T5Model")),
    _seq2seq("NllbMoeModel", _BART, num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2, expert_capacity=16),
    _seq2seq("PegasusXModel", _BART, num_global_tokens=4, block_size=8),
    _seq2seq(
        "ProphetNetModel",
        SPECIAL | both_sides(ffn_dim=128),
        **{f"num_{name}": size for name, size in both_sides(layers=2, attention_heads=4).items()},
        hidden_size=64,
        max_position_embeddings=64,
    ),
    _seq2seq("SwitchTransformersModel", _T5, num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1),
)
