# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ortlens import _torch
from ortlens.backend.conversion.upcasting import narrow_dtypes
from ortlens.backend.partitioning.plan import NodeKind, Verdict, kind_of
from ortlens.backend.partitioning.support import Support
from tests.unit.backend.graphs import aten, node_named, traced


def support(**excluded: Verdict) -> Support:
    return Support(_torch.shared_registry(), lambda device: None if device == "cpu" else f"no provider for {device}", excluded)


def verdict(function: Callable[..., Any], target: Any, *args: Any) -> Verdict:
    return support().verdict(node_named(traced(function, *args).graph, target))


def test_no_bits_are_read_of_a_type_that_is_computed_in_float32() -> None:
    def bits(x: Any) -> Any:
        return x

    graph = traced(lambda x: x.view(torch.int16), torch.rand(4).bfloat16()).graph
    for upcast, code in ((("bfloat16",), "dtype"), (("float16",), None)):
        rules = Support(_torch.registry_with({aten.view.dtype: bits}), lambda _: None, upcast=narrow_dtypes(upcast))
        assert rules.verdict(node_named(graph, aten.view.dtype)).code == code


X, COMPLEX = torch.rand(3), torch.rand(8).to(torch.complex64)
CANNOT_GO: dict[str, tuple[Any, Any, tuple[Any, ...], str, str]] = {
    "no function": (torch.special.bessel_j0, aten.special_bessel_j0.default, (X,), "no_converter", "bessel_j0"),
    "complex": (lambda x: x * x, aten.mul.Tensor, (COMPLEX,), "dtype", "complex64"),
    "mutation": (lambda x: x.add_(1), aten.add_.Tensor, (X,), "side_effect", "writes into its arguments"),
    "rand_like": (torch.rand_like, aten.rand_like.default, (X,), "side_effect", "random"),
    "bernoulli": (torch.bernoulli, aten.bernoulli.default, (X,), "side_effect", "random"),
    "randperm": (lambda x: torch.randperm(3) + x, aten.randperm.default, (X,), "side_effect", "random"),
    "float8": (lambda x: x.to(torch.float8_e4m3fn), aten._to_copy.default, (X,), "dtype", "float8_e4m3fn"),
    "fft_r2c": (torch.fft.rfft, aten._fft_r2c.default, (torch.rand(8),), "policy", "on purpose"),
    "fft_c2c": (torch.fft.fft, aten._fft_c2c.default, (COMPLEX,), "policy", "on purpose"),
    "fft_c2r": (torch.fft.irfft, aten._fft_c2r.default, (COMPLEX,), "policy", "on purpose"),
    "nonzero of one": (torch.nonzero, aten.nonzero.default, (torch.tensor(1.0),), "no_converter", "gives one number a dimension"),
    "sums of bfloat16": (
        lambda x, i: torch.index_put(x, (i,), x[:1], accumulate=True),
        aten.index_put.default,
        (X.bfloat16(), torch.tensor([0])),
        "no_converter",
        "adds no floats of 16 bits",
    ),
}


@pytest.mark.parametrize("name", CANNOT_GO)
def test_what_cannot_go_and_why(name: str) -> None:
    function, target, args, code, reason = CANNOT_GO[name]
    answer = verdict(function, target, *args)
    assert (answer.supported, answer.code) == (False, code)
    assert reason in (answer.reason or "")


def bfloat16_verdicts(
    function: Callable[..., Any], *args: Any, without_bfloat16: bool = True, deployed: bool = False, upcast: tuple[str, ...] = ()
) -> dict[str, str | None]:
    rules = Support(
        _torch.shared_registry(), lambda _: None, without_bfloat16=without_bfloat16, deployed=deployed, upcast=narrow_dtypes(upcast)
    )
    nodes = [node for node in traced(function, *args).graph.nodes if node.op == "call_function"]
    return {str(node.target): rules.verdict(node).code for node in nodes}


def mixed(x: torch.Tensor) -> torch.Tensor:
    return (x.sin().to(torch.bfloat16).relu() * 2).float().cos()


def test_bfloat16_stays_in_pytorch_on_the_cpu_provider_except_casts_beside_float32() -> None:
    x = torch.rand(3)
    computed = {"aten.relu.default": "dtype", "aten.mul.Tensor": "dtype"}
    others = {"aten.sin.default": None, "aten._to_copy.default": None, "aten.cos.default": None}
    assert bfloat16_verdicts(mixed, x) == {**others, **computed}
    assert bfloat16_verdicts(mixed, x, without_bfloat16=False) == dict.fromkeys({**others, **computed})
    assert bfloat16_verdicts(mixed, x, deployed=True) == dict.fromkeys({**others, **computed})
    assert bfloat16_verdicts(mixed, x, upcast=("bfloat16",)) == dict.fromkeys({**others, **computed})
    alone = bfloat16_verdicts(lambda x: x.to(torch.bfloat16).t(), torch.rand(3, 3))
    assert alone == {"aten._to_copy.default": "dtype", "aten.t.default": "dtype"}


@pytest.mark.parametrize(("dropout", "code"), [(0.0, None), (0.5, "side_effect")])
def test_attention_of_an_exported_program_draws_random_numbers_with_dropout(dropout: float, code: str | None) -> None:
    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=dropout)

    exported = torch.export.export(Attention(), (torch.rand(1, 2, 4, 8),))
    assert support().verdict(node_named(exported.graph, aten.scaled_dot_product_attention.default)).code == code


@pytest.mark.parametrize(
    ("value", "code", "reason"),
    [
        (torch.empty(3), None, ""),
        (torch.empty(3, device="meta"), "device", "no provider for meta"),
        (torch.eye(2).to_sparse(), "layout", "sparse"),
    ],
    ids=["dense", "meta", "sparse"],
)
def test_devices_and_layouts(value: torch.Tensor, code: str | None, reason: str) -> None:
    node = node_named(traced(lambda x: x.sin(), torch.rand(3)).graph, aten.sin.default)
    node.meta["val"] = value
    assert support().verdict(node).code == code
    assert reason in (support().verdict(node).reason or "")


def test_an_exclusion_wins_over_every_rule_and_takes_the_items_along() -> None:
    graph = traced(lambda x: torch.topk(x, 2), torch.rand(5)).graph
    topk = node_named(graph, aten.topk.default)
    excluded = Verdict(supported=False, code="session_refused", reason="later")
    decided = support(**{topk.name: excluded})
    assert decided.verdict(topk) is excluded
    assert {decided.verdict(item) for item in topk.users if item.target is operator.getitem} == {excluded}


def test_python_floats_keep_their_64_bits() -> None:
    graph = traced(lambda x, n: x * n, torch.rand(3), 2).graph
    node = node_named(graph, aten.mul.Tensor)
    float_number = graph.create_node("call_function", operator.truediv, (node, 3))
    float_number.meta["val"] = 0.5
    answer = support().verdict(float_number)
    assert answer.code == "dtype"
    assert "64 bits" in (answer.reason or "")


def test_a_check_is_an_effect() -> None:
    check = torch.fx.Graph().call_function(aten._assert_async.default, ())
    check.meta["val"] = None
    assert kind_of(check) is NodeKind.EFFECT
    assert support().verdict(check).code == "side_effect"
