"""Models of images and videos."""

from collections.abc import Callable
from typing import Any

from tests.zoo.architecture import Architecture, both_sides, frames, layers, pixels

_VIT: dict[str, Any] = {
    **layers(64),
    "image_size": 32,
    "patch_size": 8,
}
_SWIN: dict[str, Any] = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
_DETR: dict[str, Any] = {
    "d_model": 64,
    **both_sides(layers=2, attention_heads=4, ffn_dim=128),
    "num_queries": 10,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 16,
        "hidden_sizes": [16, 16, 32, 32],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_features": ["stage4"],
    },
}
_STAGES: dict[str, Any] = {"hidden_sizes": [16, 32], "depths": [1, 1]}
_FOUR: dict[str, Any] = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 2, 2, 4]}


def _vision(model: str, inputs: Callable[[], dict[str, Any]], /, **config: Any) -> Architecture:  # noqa: ANN401 - a config holds anything
    return Architecture(model=model, family="vision", config=config, inputs=inputs)


ARCHITECTURES = (
    _vision("BeitModel", pixels(), **_VIT, use_relative_position_bias=True),
    _vision("BitModel", pixels(64), embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_groups=4),
    *(_vision(model, pixels(), hidden_sizes=[16, 32], depths=[2, 2], num_stages=2) for model in ("ConvNextModel", "ConvNextV2Model")),
    _vision(
        "CvtModel",
        pixels(),
        embed_dim=[16, 32],
        num_heads=[1, 2],
        depth=[1, 2],
        patch_sizes=[7, 3],
        patch_stride=[4, 2],
        patch_padding=[2, 1],
        mlp_ratio=[2.0, 2.0],
        attention_drop_rate=[0.0, 0.0],
        drop_rate=[0.0, 0.0],
        drop_path_rate=[0.0, 0.0],
        qkv_bias=[True, True],
        cls_token=[False, True],
        qkv_projection_method=["dw_bn", "dw_bn"],
        kernel_qkv=[3, 3],
        padding_kv=[1, 1],
        stride_kv=[2, 2],
        padding_q=[1, 1],
        stride_q=[1, 1],
    ),
    _vision("DetrModel", pixels(64), **_DETR),
    _vision("Dinov2Model", pixels(), **_VIT | {"image_size": 48}),
    _vision(
        "DPTForSemanticSegmentation",
        pixels(),
        **_VIT | {"num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 16, 32, 32],
        fusion_hidden_size=16,
        reassemble_factors=[4, 2, 1, 0.5],
        is_hybrid=False,
        use_auxiliary_head=False,
    ),
    _vision("EfficientNetModel", pixels(64), width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320, image_size=64),
    _vision(
        "FocalNetModel",
        pixels(),
        image_size=32,
        patch_size=4,
        embed_dim=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
    ),
    _vision("HieraModel", pixels(64), image_size=[64, 64], embed_dim=16, depths=[1, 1, 1], num_heads=[1, 2, 4], num_query_pool=2),
    _vision(
        "LevitModel",
        pixels(64),
        image_size=64,
        hidden_sizes=[32, 48, 64],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
    ),
    _vision("MobileNetV2Model", pixels(64), depth_multiplier=0.35, image_size=64),
    _vision("MobileViTModel", pixels(64), image_size=64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 8, 16, 16, 16, 32]),
    _vision("MobileViTV2Model", pixels(64), image_size=64, width_multiplier=0.25),
    _vision("PoolFormerModel", pixels(64), num_encoder_blocks=4, depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 16, 32]),
    _vision("PvtV2Model", pixels(), image_size=32, **_FOUR),
    _vision("RegNetModel", pixels(64), embedding_size=16, **_STAGES, groups_width=8),
    _vision("ResNetModel", pixels(64), embedding_size=16, **_STAGES, layer_type="bottleneck"),
    _vision("SegformerForSemanticSegmentation", pixels(64), **_FOUR, decoder_hidden_size=32),
    _vision("SwiftFormerModel", pixels(64), image_size=64, depths=[1, 1, 1, 1], embed_dims=[8, 16, 16, 32]),
    *(_vision(model, pixels(), **_SWIN) for model in ("SwinModel", "Swinv2Model")),
    _vision("Swin2SRModel", pixels(), image_size=32, embed_dim=16, depths=[2], num_heads=[2], window_size=4),
    _vision("TimesformerModel", frames(4, 32), **_VIT, num_frames=4),
    _vision("ViTForImageClassification", pixels(), **_VIT),
    _vision("VivitModel", frames(4, 32), **_VIT, num_frames=4, tubelet_size=[2, 8, 8]),
    _vision("YolosModel", pixels(), **_VIT | {"image_size": [32, 32]}, num_detection_tokens=5),
)
