"""Encoders of text."""

from collections.abc import Callable
from typing import Any

from tests.zoo.architecture import TOKENS, Architecture, layers, padded_text, text

_BERT: dict[str, Any] = {
    **layers(64),
    "vocab_size": TOKENS,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
}
_DEBERTA: dict[str, Any] = _BERT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0}
_XLM: dict[str, Any] = {"vocab_size": TOKENS, "emb_dim": 64, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64}


def _encoder(model: str, inputs: Callable[[], dict[str, Any]] = padded_text, /, **config: Any) -> Architecture:  # noqa: ANN401 - a config holds anything
    return Architecture(model=model, family="text encoder", config=_BERT | config, inputs=inputs)


ARCHITECTURES = (
    *(_encoder(model, embedding_size=32) for model in ("AlbertModel", "ConvBertModel", "RoFormerModel")),
    *map(_encoder, ("BertModel", "BertForMaskedLM", "IBertModel", "MPNetModel", "RobertaModel", "RobertaPreLayerNormModel")),
    _encoder("BigBirdModel", attention_type="original_full"),
    _encoder("CanineModel", text, downsampling_rate=4, local_transformer_stride=8, num_hash_buckets=64),
    _encoder("DebertaModel", **_DEBERTA),
    _encoder("DebertaV2Model", **_DEBERTA, position_buckets=8, share_att_key=True, norm_rel_ebd="layer_norm"),
    Architecture(
        model="DistilBertModel",
        family="text encoder",
        config={"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": TOKENS, "max_position_embeddings": 64},
        inputs=padded_text,
    ),
    _encoder("EsmModel", position_embedding_type="rotary", pad_token_id=0, mask_token_id=4),
    _encoder("FNetModel", text),
    Architecture(
        model="FunnelModel",
        family="text encoder",
        config={
            "vocab_size": TOKENS,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
            "d_model": 64,
            "n_head": 4,
            "d_head": 16,
            "d_inner": 128,
        },
        inputs=padded_text,
    ),
    _encoder("LongformerModel", attention_window=8, pad_token_id=0),
    _encoder("LukeModel", entity_vocab_size=20, entity_emb_size=32),
    _encoder("MobileBertModel", embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32, num_feedforward_networks=2),
    _encoder("ModernBertModel", pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, local_attention=8),
    _encoder("NystromformerModel", num_landmarks=16, segment_means_seq_len=16),
    _encoder("SqueezeBertModel", embedding_size=64),
    Architecture(model="XLMModel", family="text encoder", config=_XLM, inputs=padded_text),
    Architecture(
        model="XLNetModel",
        family="text encoder",
        config={"vocab_size": TOKENS, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128, "use_mems_eval": False},
        inputs=text,
    ),
)
