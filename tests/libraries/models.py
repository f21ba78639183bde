"""Models of timm, diffusers, PyTorch Geometric and sentence-transformers, small and with random weights."""

import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

Build: TypeAlias = Callable[[], tuple[torch.nn.Module, dict[str, Any]]]
"""Imports the library, and returns the model and the keyword arguments of a call."""

PACKAGES = ("timm", "diffusers", "torch_geometric", "sentence-transformers", "transformers")
_OPERATORS: list[torch.library.Library] = []


def declare_torchvision() -> None:
    """Declare the operators that torchvision looks for when it is imported.

    Its wheels are made for builds of torch with CUDA, and do not load beside another. timm imports it for its images only.
    """
    if not _OPERATORS:
        _OPERATORS.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _OPERATORS[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _timm(name: str, size: int, **options: Any) -> Build:  # noqa: ANN401 - of the model
    def build() -> tuple[torch.nn.Module, dict[str, Any]]:
        return import_module("timm").create_model(name, **options), {"x": torch.randn(1, 3, size, size)}

    return build


def _diffusers(name: str, inputs: Callable[[], dict[str, Any]], /, **config: Any) -> tuple[str, Build]:  # noqa: ANN401 - a config holds anything
    def build() -> tuple[torch.nn.Module, dict[str, Any]]:
        return getattr(import_module("diffusers"), name)(**config), inputs()

    return f"diffusers: {name}", build


def _graph_model(name: str, **options: Any) -> Build:  # noqa: ANN401 - of the model
    def build() -> tuple[torch.nn.Module, dict[str, Any]]:
        made = getattr(import_module("torch_geometric.nn"), name)(32, 64, num_layers=3, out_channels=8, **options)
        return made, {"x": torch.randn(500, 32), "edge_index": torch.randint(0, 500, (2, 3000))}

    return build


def _sentence_encoder() -> tuple[torch.nn.Module, dict[str, Any]]:
    """BERT and a mean over tokens, on a padded batch."""
    from transformers import BertConfig, BertModel, BertTokenizer

    parts = import_module("sentence_transformers.models")
    with tempfile.TemporaryDirectory() as folder:
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(95))]
        Path(folder, "vocab.txt").write_text("\n".join(words), encoding="utf-8")
        BertTokenizer(f"{folder}/vocab.txt").save_pretrained(folder)
        sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
        BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
        encoder = parts.Transformer(folder)
    model = import_module("sentence_transformers").SentenceTransformer(modules=[encoder, parts.Pooling(128)], device="cpu")
    mask = torch.ones(8, 32, dtype=torch.int64)
    mask[1::2, 20:] = 0
    return model, {"input": {"input_ids": torch.randint(5, 100, (8, 32)), "attention_mask": mask}}


def _noisy(channels: int = 3, size: int = 32, **more: Callable[[], torch.Tensor]) -> Callable[[], dict[str, Any]]:
    """A noisy image and its step, and what is made beside them."""
    return lambda: {
        "sample": torch.randn(1, channels, size, size),
        "timestep": torch.tensor(3),
        **{key: make() for key, make in more.items()},
    }


def _latent(**more: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    """What a transformer of latents takes."""
    made = {"hidden_states": partial(torch.randn, 1, 4, 16, 16), "timestep": partial(torch.tensor, [3])} | more
    return lambda: {key: make() for key, make in made.items()}


_STAGES: dict[str, Any] = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
_CONDITIONED: dict[str, Any] = _STAGES | {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "cross_attention_dim": 32,
    "attention_head_dim": 8,
}
_CODER: dict[str, Any] = _STAGES | {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
_TRANSFORMER: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "sample_size": 16, "patch_size": 2}

_text = partial(torch.randn, 1, 7, 32)


def _picture() -> dict[str, Any]:
    return {"sample": torch.randn(1, 3, 32, 32)}


_DIFFUSERS = (
    _diffusers(
        "UNet2DModel",
        _noisy(),
        sample_size=32,
        **_STAGES,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    _diffusers(
        "UNet2DConditionModel",
        _noisy(4, encoder_hidden_states=_text),
        sample_size=32,
        **_CONDITIONED,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ),
    _diffusers(
        "ControlNetModel",
        _noisy(4, encoder_hidden_states=_text, controlnet_cond=partial(torch.randn, 1, 3, 256, 256)),
        **_CONDITIONED,
        conditioning_embedding_out_channels=(16, 32, 64, 64),
    ),
    _diffusers("AutoencoderKL", _picture, **_CODER, sample_size=32),
    _diffusers(
        "AutoencoderTiny",
        _picture,
        encoder_block_out_channels=(32, 32),
        decoder_block_out_channels=(32, 32),
        num_encoder_blocks=(1, 2),
        num_decoder_blocks=(2, 1),
    ),
    _diffusers("VQModel", _picture, **_CODER, latent_channels=4, num_vq_embeddings=64),
    _diffusers(
        "DiTTransformer2DModel",
        _latent(class_labels=partial(torch.tensor, [1])),
        **_TRANSFORMER,
        in_channels=4,
        out_channels=8,
        num_embeds_ada_norm=100,
    ),
    _diffusers(
        "PixArtTransformer2DModel",
        _latent(encoder_hidden_states=_text, added_cond_kwargs=lambda: {"resolution": None, "aspect_ratio": None}),
        **_TRANSFORMER,
        in_channels=4,
        out_channels=8,
        cross_attention_dim=64,
        caption_channels=32,
    ),
    _diffusers(
        "SD3Transformer2DModel",
        _latent(encoder_hidden_states=_text, pooled_projections=partial(torch.randn, 1, 64)),
        **_TRANSFORMER,
        in_channels=4,
        out_channels=4,
        joint_attention_dim=32,
        caption_projection_dim=64,
        pooled_projection_dim=64,
    ),
    _diffusers(
        "FluxTransformer2DModel",
        _latent(
            hidden_states=partial(torch.randn, 1, 64, 16),
            encoder_hidden_states=_text,
            pooled_projections=partial(torch.randn, 1, 32),
            timestep=partial(torch.tensor, [0.5]),
            guidance=partial(torch.tensor, [3.5]),
            txt_ids=partial(torch.zeros, 7, 3),
            img_ids=partial(torch.randn, 64, 3),
        ),
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
    ),
)

_TIMM = {
    64: """
        resnet18 resnext26ts regnety_002 efficientnet_b0 mobilenetv3_small_050 convnext_atto densenet121 dla46_c dpn48b
        edgenext_xx_small ghostnet_050 hrnet_w18_small inception_next_atto nfnet_l0 poolformer_s12 rexnet_100 mobilevit_xxs
        res2net50_14w_8s resnest14d skresnet18 ese_vovnet19b_slim xception41 repvgg_a0 fastvit_t8 mambaout_femto starnet_s050
        focalnet_tiny_srf lambda_resnet26t efficientvit_b0 davit_tiny twins_pcpvt_small pvt_v2_b0
    """,
    96: "inception_v3",
    224: """
        swin_tiny_patch4_window7_224 mixer_s32_224 coat_lite_tiny efficientformer_l1 levit_128s pit_ti_224 xcit_nano_12_p16_224
        gcvit_xxtiny mvitv2_tiny nest_tiny hiera_tiny_224 convit_tiny sequencer2d_s tiny_vit_5m_224 volo_d1_224 tnt_s_patch16_224
        efficientvim_m1
    """,
    240: "crossvit_tiny_240",
    256: "maxvit_pico_rw_256 swinv2_tiny_window8_256 botnet26t_256 halonet26t",
}
"""Size of the image -> models."""

_TIMM_SIZED = "vit_tiny_patch16_224 deit_tiny_patch16_224 beit_base_patch16_224 cait_xxs24_224 eva02_tiny_patch14_224"
"""Transformers whose images can have any size."""

MODELS: dict[str, Build] = {
    **{f"timm: {name}": _timm(name, size) for size, names in _TIMM.items() for name in names.split()},
    **{f"timm: {name}": _timm(name, 112, img_size=112) for name in _TIMM_SIZED.split()},
    **dict(_DIFFUSERS),
    **{f"PyTorch Geometric: {name}": _graph_model(name) for name in ("GCN", "GraphSAGE")},
    "PyTorch Geometric: GAT": _graph_model("GAT", add_self_loops=False),
    "sentence-transformers: SentenceTransformer": _sentence_encoder,
}
RANKS: dict[str, Literal["ddp", "fsdp2"]] = {"PyTorch: DistributedDataParallel": "ddp", "PyTorch: fully_shard": "fsdp2"}
"""What is trained on two ranks."""
