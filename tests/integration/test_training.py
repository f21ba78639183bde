"""Training through ONNX Runtime: outputs, gradients, running statistics and whole runs of an optimiser follow eager."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import nn

from ortlens import Lens

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.trace.records import Capture


def r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Attention(nn.Module):
    mask: torch.Tensor | None

    def __init__(self, *, causal: bool = False, masked: bool = False, kv_heads: int = 4) -> None:
        super().__init__()
        self.causal, self.kv_heads = causal, kv_heads
        self.query, self.key_value, self.out = nn.Linear(16, 16), nn.Linear(16, 2 * 4 * kv_heads), nn.Linear(16, 16)
        mask = torch.ones(6, 6, dtype=torch.bool)
        mask[:, 4:] = False
        mask[2] = False  # a row with nothing to look at
        self.register_buffer("mask", mask if masked else None)

    def forward(self, x: torch.Tensor) -> Any:
        batch, rows, _ = x.shape
        query = self.query(x).view(batch, rows, 4, 4).transpose(1, 2)
        key, value = (part.view(batch, rows, self.kv_heads, 4).transpose(1, 2) for part in self.key_value(x).chunk(2, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask, is_causal=self.causal, enable_gqa=self.kv_heads != 4)
        return self.out(mixed.transpose(1, 2).reshape(batch, rows, 16))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.embed(tokens).tanh() @ self.embed.weight.t()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)), (r(4, 6),)),
    "conv_batchnorm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        (r(2, 3, 8, 8),),
    ),
    "causal_attention": (lambda: Attention(causal=True), (r(2, 6, 16),)),
    "masked_attention": (lambda: Attention(masked=True), (r(2, 6, 16),)),
    "grouped_causal_attention": (lambda: Attention(kv_heads=1, causal=True), (r(2, 6, 16),)),
    "tied_embedding": (Shared, (torch.tensor([[1, 2, 3], [3, 3, 10]]),)),
}


def _twins(name: str) -> tuple[Any, Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    make, args = MODELS[name]
    model = make()
    return model, copy.deepcopy(model), args


def _assert_same_state(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-4) -> None:
    """Parameters, their gradients and buffers; a mapping, so that a failure names the one that differs."""
    for mine, reference in ((dict(ours.named_parameters()), dict(theirs.named_parameters())), (_gradients(ours), _gradients(theirs))):
        torch.testing.assert_close(mine, reference, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()), atol=tolerance, rtol=tolerance)


def _gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _phases(capture: Capture) -> list[str]:
    return sorted(graph.phase for graph in capture.graphs)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_gradients_and_buffers(name: str) -> None:
    ours, theirs, args = _twins(name)
    inputs = [arg.clone().requires_grad_(arg.is_floating_point()) for arg in args]
    references = [arg.clone().requires_grad_(arg.is_floating_point()) for arg in args]
    lens = Lens()
    compiled = torch.compile(ours, backend=lens)
    for _ in range(2):  # gradients add up over calls
        mine, reference = compiled(*inputs), theirs(*references)
        torch.testing.assert_close(mine, reference, atol=1e-4, rtol=1e-4)
        assert mine.stride() == reference.stride()
        mine.square().mean().backward()
        reference.square().mean().backward()
    for own, other in zip(inputs, references, strict=True):
        torch.testing.assert_close(own.grad, other.grad, atol=1e-4, rtol=1e-4)
    _assert_same_state(ours, theirs)
    capture = lens.captured()
    assert _phases(capture) == ["backward", "forward"]
    assert not capture.findings
    signatures = {s.input_signature for s in capture.sessions}
    assert all(len(signature.split()) > 1 for signature in signatures), "weights in training are never frozen"
    assert all(graph.coverage and graph.coverage > 0.8 for graph in capture.graphs), capture.fallbacks
    assert {session.calls for session in capture.sessions} == {2}


def test_the_backward_graph_is_told_with_the_users_lines() -> None:
    ours, _, args = _twins("mlp")
    lens = Lens()
    torch.compile(ours, backend=lens)(*args).sum().backward()
    backward = next(graph for graph in lens.captured().graphs if graph.phase == "backward")
    forward = next(graph for graph in lens.captured().graphs if graph.phase == "forward")
    assert backward.compile_id == forward.compile_id
    assert backward.op_count == 0
    assert forward.op_count > 0
    modules = {node.module for node in lens.captured().nodes if node.graph_id == backward.graph_id}
    assert {"0", "3"} <= modules
    assert not backward.aot_ns
    assert not backward.dynamo_ns
    assert backward.compile_ns


def test_training_then_evaluating_then_training() -> None:
    ours, theirs, args = _twins("conv_batchnorm")
    lens = Lens()
    compiled = torch.compile(ours, backend=lens)
    steppers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    for _ in range(3):
        for model, forward, stepper in ((ours, compiled, steppers[0]), (theirs, theirs, steppers[1])):
            model.train()
            stepper.zero_grad()
            forward(*args).square().mean().backward()
            stepper.step()
            model.eval()
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), theirs(*args), atol=1e-4, rtol=1e-4)
    _assert_same_state(ours, theirs)
    assert _phases(lens.captured()) == ["backward", "forward", "inference"]
    assert not lens.captured().findings


def test_backward_twice_over_one_forward_without_gradients_of_frozen_parameters() -> None:
    ours, theirs, args = _twins("mlp")
    for model in (ours, theirs):
        model[0].weight.requires_grad_(requires_grad=False)
    for forward in (torch.compile(ours, backend=Lens()), theirs):
        loss = forward(*args).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    assert ours[0].weight.grad is None
    _assert_same_state(ours, theirs)


def test_two_forwards_then_their_backwards_in_the_other_order() -> None:
    ours, theirs, (x,) = _twins("causal_attention")
    compiled = torch.compile(ours, backend=Lens())
    for forward in (compiled, theirs):
        first, second = forward(x).sum(), forward(x * 2).square().sum()
        second.backward()
        first.backward()
    _assert_same_state(ours, theirs)


def test_what_has_no_gradient_has_none_when_pytorch_runs_its_decomposition() -> None:
    x = torch.rand(4, requires_grad=True)
    expected = torch.special.bessel_j0(x)
    made = torch.compile(torch.special.bessel_j0, backend="ortlens")(x)  # eager's kernel has no gradient, that of the decomposition raises
    assert made.requires_grad == expected.requires_grad  # from torch 2.15 on it has one
    torch.testing.assert_close(made, expected)


def test_what_pytorch_computes_in_one_pass_stays_there_where_it_is_large() -> None:
    names = ("max_pool2d_with_indices", "max_pool2d_with_indices_backward", "native_batch_norm_backward")
    one_pass = {f"aten.{name}.default" for name in names}
    for size, kept in ((128, one_pass), (8, set[str]())):
        torch.compiler.reset()
        ours, theirs, _ = _twins("conv_batchnorm")
        images, lens = r(2, 3, size, size), Lens()
        compiled = torch.compile(ours, backend=lens)
        with torch.no_grad():  # nobody reads the indices
            torch.testing.assert_close(compiled(images), theirs(images), atol=1e-4, rtol=1e-4)
        assert lens.fallbacks.empty
        for model in (compiled, theirs):
            model(images).square().mean().backward()
        _assert_same_state(ours, theirs)
        codes = dict(zip(lens.fallbacks.target, lens.fallbacks.reason_code, strict=True))
        assert codes.pop("aten.convolution_backward.default") == "no_converter"
        assert codes == dict.fromkeys(kept, "policy")
