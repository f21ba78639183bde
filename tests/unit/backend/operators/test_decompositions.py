"""Decompositions of our own: what they leave alone, the checks that must outlive tracing, and norms with a negative epsilon."""

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import ortlens
from ortlens.backend.operators import norms, registry
from ortlens.backend.runtime import devices
from tests.unit.backend.operators.one_graph import as_pytorch

Norm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


class Solved(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        solved: torch.Tensor = torch.linalg.solve(x, y)
        return solved


SINGULAR = (torch.zeros(3, 3), torch.ones(3))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_singular_matrix_raises_and_gives_no_nan(*, dynamic: bool) -> None:
    compiled = torch.compile(lambda x: torch.linalg.inv(x).sum(), backend="ortlens", dynamic=dynamic)
    assert compiled(torch.eye(3) * 2) == 1.5
    with pytest.raises(RuntimeError, match="could not be completed"):
        compiled(SINGULAR[0])


def test_a_singular_matrix_raises_in_an_exported_program() -> None:
    program = torch.export.export(Solved(), (torch.eye(3), torch.ones(3)))
    with pytest.raises(RuntimeError, match="singular"):
        ortlens.explain(program, calls=1)(*SINGULAR)


def test_dropout_and_rrelu_in_eval_mode_draw_no_numbers() -> None:
    cases: dict[str, Any] = {
        "native_dropout": lambda x: torch.native_dropout(x, 0.5, train=False),
        "rrelu": lambda x: torch.nn.functional.rrelu(x, 0.1, 0.3),
        "rrelu of a module": nn.RReLU().eval(),
    }
    for grad in (False, True):
        as_pytorch(cases, torch.tensor([1.0, -1.0, 0.0, -0.0, torch.inf, -torch.inf, torch.nan]), grad=grad, stays=())


def test_attention_lies_in_memory_as_the_fused_operator_leaves_it() -> None:
    query = torch.randn(5, 2, 2, 4).permute(1, 2, 0, 3)
    with torch.no_grad():
        expected = torch.nn.functional.scaled_dot_product_attention(query, query, query)
        made = registry.decompositions()[torch.ops.aten.scaled_dot_product_attention.default](query, query, query)
    torch.testing.assert_close(made, expected, check_stride=True)


class Squeezed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.nonzero() * 2).squeeze(0) + 1


def test_a_squeeze_of_a_size_known_at_run_time_only_adds_no_guard() -> None:
    program = torch.export.export(Squeezed(), (torch.tensor([1.0, 0.0, 2.0]),))
    for x in (torch.tensor([1.0, 0.0, 2.0]), torch.tensor([1.0, 1.0, 1.0])):
        explained = ortlens.explain(program, calls=1)(x)
        torch.testing.assert_close(explained.result, Squeezed()(x))
        assert not [finding for finding in explained.captured().findings if finding.rule == "lowering_failed"]


ENLARGED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"size": (5, 2)}, "GatherND"),
    ({"scale_factor": 0.3}, "GatherND"),
    ({"scale_factor": 2.5}, "GatherND"),
    ({"scale_factor": 2}, "Resize"),
    ({"size": (600, 20)}, "Resize"),
)


class Enlarged(nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [nn.functional.interpolate(x, **how) for how, _ in ENLARGED]


def test_the_nearest_elements_of_an_exported_program_are_pytorchs() -> None:
    x = torch.arange(3000.0).reshape(1, 1, 300, 10)
    explained = ortlens.explain(torch.export.export(Enlarged(), (x,)), calls=1)(x)
    torch.testing.assert_close(explained.result, Enlarged()(x), rtol=0, atol=0)
    made = collections.Counter(kind for row in explained.captured().nodes for kind in row.onnx_ops)
    wanted = collections.Counter(operator for _, operator in ENLARGED)
    assert {operator: made[operator] for operator in wanted} == wanted


NORMS: dict[str, Norm] = {
    "group": lambda x, w, eps: functional.group_norm(x, 2, w, w, eps),
    "group, plain": lambda x, _, eps: functional.group_norm(x, 2, None, None, eps),
    "instance": lambda x, w, eps: functional.instance_norm(x, None, None, w, w, eps=eps),
    "instance, by statistics": lambda x, w, eps: functional.instance_norm(x, w + 0, w + 0, w, w, use_input_stats=False, eps=eps),
}
CLAMPING = {"InstanceNormalization", "BatchNormalization"}


def kinds(norm: Norm, device: str, eps: float) -> set[str]:
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        x, w = torch.empty(3, 4, 5, 5, device=device), torch.empty(4, device=device)
        capture = ortlens.explain(lambda x, w: norm(x, w, eps) * 2, dry_run=True, calls=1)(x, w).captured()
    assert not capture.fallbacks
    return {kind for row in capture.nodes for kind in row.onnx_ops}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_only_on_cuda_a_negative_epsilon_is_added_by_plain_operators(norm: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: ("CUDAExecutionProvider", devices.CPU))
    assert not kinds(norm, "cuda", -1e-5) & CLAMPING
    for device, eps in (("cuda", 0.0), ("cuda", 1e-6), ("cpu", -1e-5)):
        assert kinds(norm, device, eps) & CLAMPING


def test_plain_operators_normalise_as_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def is_clamped(_: torch.Tensor, eps: float) -> bool:
        asked.append(eps)
        return True

    monkeypatch.setattr(norms, "_is_clamped", is_clamped)
    w = torch.rand(4) + 1.0
    as_pytorch({name: lambda x, norm=norm: norm(x, w, -0.1) for name, norm in NORMS.items()}, torch.randn(3, 4, 5, 5))
    assert len(asked) == len(NORMS)
