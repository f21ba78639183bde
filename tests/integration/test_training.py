"""Training through ONNX Runtime: phases, sessions, and the order of passes. Gradients of layers are in tests/fuzz/claims.py."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ortlens import Lens
from ortlens.trace.records import Capture


def r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)), (r(4, 6),)),
    "conv_batchnorm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        (r(2, 3, 8, 8),),
    ),
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


def test_forward_and_backward_graphs_with_the_users_lines_and_weights_that_are_no_constants() -> None:
    ours, _, args = _twins("mlp")
    lens = Lens()
    compiled = torch.compile(ours, backend=lens)
    for _ in range(2):
        compiled(*args).sum().backward()
    assert _phases(lens.captured()) == ["backward", "forward"]
    assert not lens.captured().findings
    assert all(len(session.input_signature.split()) > 1 for session in lens.captured().sessions), "weights in training are never frozen"
    assert all(graph.coverage and graph.coverage > 0.8 for graph in lens.captured().graphs), lens.captured().fallbacks
    assert {session.calls for session in lens.captured().sessions} == {2}
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
    ours, theirs, (x,) = _twins("mlp")
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
    one_pass = {f"aten.{name}.default" for name in (*names, "threshold_backward")}
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
        assert codes.keys() - {"aten.detach.default"} == kept
        assert set(codes.values()) <= {"policy"}
