"""The models of the benchmarks: small random ones of `transformers`, each of one tensor and to one tensor, and the bare session.

A model of several outputs is cut to its first one, so that every way computes and hands over the same.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnxruntime

VOCABULARY = 1000


class FirstOutput(torch.nn.Module):
    """A model that takes one tensor and returns one."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Wrap a model of `transformers`."""
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The model's first output."""
        first: torch.Tensor = self.model(x, return_dict=False)[0]
        return first


def bert(layers: int, hidden: int, heads: int = 4) -> torch.nn.Module:
    """An encoder; its last hidden state."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * hidden
    )
    model: torch.nn.Module = transformers.BertModel(config)
    return model


def gpt2(layers: int, hidden: int, heads: int = 4) -> torch.nn.Module:
    """A decoder with its head, no dropout; its logits."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        use_cache=False,
        bos_token_id=1,
        eos_token_id=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model: torch.nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def llama(layers: int, hidden: int, heads: int = 4) -> torch.nn.Module:
    """A decoder with rotary positions and its head; its logits."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        intermediate_size=4 * hidden,
        use_cache=False,
    )
    model: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return model


def resnet(layers: int, hidden: int) -> torch.nn.Module:
    """A convolutional net with batch normalisation."""
    stages = [hidden // 4 * 2**stage for stage in range(layers)]
    config = transformers.ResNetConfig(embedding_size=hidden // 4, hidden_sizes=stages, depths=[2] * layers, layer_type="basic")
    return with_statistics(transformers.ResNetModel(config))


def with_statistics(model: torch.nn.Module) -> torch.nn.Module:
    """The same, with statistics of batch normalisation that are not the trivial ones."""
    for norm in (module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)):
        norm.running_mean = torch.randn_like(norm.weight) * 0.1
        norm.running_var = torch.rand_like(norm.weight) + 0.5
    return model


_BUILDERS: dict[str, Callable[[int, int], torch.nn.Module]] = {"BERT": bert, "GPT-2": gpt2, "LLaMA": llama, "ResNet": resnet}
MODELS = tuple(_BUILDERS)
_REAL: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "BERT-base": (lambda: bert(12, 768, 12), (1, 128)),
    "GPT-2 small": (lambda: gpt2(12, 768, 12), (1, 128)),
    "LLaMA, 8 layers of 768": (lambda: llama(8, 768, 12), (1, 128)),
    "ResNet-50": (lambda: with_statistics(transformers.ResNetModel(transformers.ResNetConfig())), (1, 3, 224, 224)),
    "ViT-base": (lambda: transformers.ViTModel(transformers.ViTConfig()), (1, 3, 224, 224)),
    "Whisper-tiny, encoder": (lambda: transformers.WhisperModel(transformers.WhisperConfig()).encoder, (1, 80, 3000)),
}
"""Models in the sizes that people deploy, and the shapes of their inputs: tokens, images, a log-mel spectrogram of 30 s."""
REAL = tuple(_REAL)


def build(name: str, *, quick: bool) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model for inference and its input, batch 1."""
    torch.manual_seed(0)
    if name in _REAL:
        make, shape = _REAL[name]
        return FirstOutput(make()).eval(), torch.randint(0, VOCABULARY, shape) if len(shape) == 2 else torch.randn(shape)
    layers, hidden = (1, 32) if quick else (4, 256)
    model = FirstOutput(_BUILDERS[name](layers, hidden)).eval()
    side = 32 if quick else 128
    image = name == "ResNet"
    return model, torch.randn(1, 3, side, side) if image else torch.randint(0, VOCABULARY, (1, side // 2))


def exported_session(model: torch.nn.Module, x: torch.Tensor, threads: int) -> onnxruntime.InferenceSession:
    """What one writes without ortlens: `torch.onnx.export` and a session, its optimisations left at their defaults."""
    import onnxruntime  # here, because the second process of bench_compile.py times its import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that nothing here needs
        program: Any = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def bare_call(session: onnxruntime.InferenceSession, x: torch.Tensor, like: torch.Tensor) -> tuple[Callable[[], None], torch.Tensor]:
    """The session through IOBinding, with input and output bound once: nothing but the run remains per call."""
    taken, made = x.contiguous(), torch.empty_like(like).contiguous()
    binding = session.io_binding()
    for bind, (value,), tensor in (
        (binding.bind_input, session.get_inputs(), taken),
        (binding.bind_output, session.get_outputs(), made),
    ):
        bind(value.name, "cpu", 0, str(tensor.numpy().dtype), tuple(tensor.shape), tensor.data_ptr())
    kept = (taken, session)

    def call(_: object = kept) -> None:
        session.run_with_iobinding(binding)

    return call, made


def dynamo_alone(module: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
    """A backend that returns Dynamo's graph as it is: below its time no backend can come."""
    forward: Callable[..., Any] = module.forward
    return forward
