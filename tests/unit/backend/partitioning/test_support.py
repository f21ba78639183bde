# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ortlens import _torch
from ortlens.backend.conversion.functions import own_functions
from ortlens.backend.conversion.upcasting import narrow_dtypes
from ortlens.backend.partitioning.support import NodeKind, Support, Verdict, kind_of
from tests.unit.backend.graphs import aten, node_named, traced

if TYPE_CHECKING:
    from collections.abc import Callable


def support(**excluded: Verdict) -> Support:
    return Support(_torch.shared_registry(), lambda device: None if device == "cpu" else f"no provider for {device}", excluded)


def verdict(function: Callable[..., Any], target: Any, *args: Any) -> Verdict:
    return support().verdict(node_named(traced(function, *args).graph, target))


def test_our_functions_are_listed_once_for_a_graph_not_for_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[int] = []

    def counted() -> dict[Any, Callable[..., Any]]:
        listed.append(1)
        return own_functions()

    monkeypatch.setattr("ortlens.backend.partitioning.support.own_functions", counted)
    rules = support()
    graph = traced(lambda x: x.relu().sigmoid().tanh() + 1, torch.rand(3)).graph
    verdicts = [rules.verdict(node) for node in graph.nodes if node.op == "call_function"]
    assert len(verdicts) == 4
    assert all(found.supported for found in verdicts)
    assert listed == [1]


def test_no_bits_are_read_of_a_type_that_is_computed_in_float32() -> None:
    def bits(x: Any) -> Any:
        return x

    graph = traced(lambda x: x.view(torch.int16), torch.rand(4).bfloat16()).graph
    for upcast, code in ((("bfloat16",), "dtype"), (("float16",), None)):
        rules = Support(_torch.registry_with({aten.view.dtype: bits}), lambda _: None, upcast=narrow_dtypes(upcast))
        assert rules.verdict(node_named(graph, aten.view.dtype)).code == code


@pytest.mark.parametrize(
    ("function", "target", "args", "code", "said"),
    [
        (torch.special.bessel_j0, aten.special_bessel_j0.default, (torch.rand(3),), "no_converter", "bessel_j0"),
        (lambda x: x * x, aten.mul.Tensor, (torch.rand(3).to(torch.complex64),), "dtype", "complex64"),
        (lambda x: x.add_(1), aten.add_.Tensor, (torch.rand(3),), "side_effect", "writes into its arguments"),
        (torch.rand_like, aten.rand_like.default, (torch.rand(3),), "side_effect", "random"),
        (torch.bernoulli, aten.bernoulli.default, (torch.rand(3),), "side_effect", "random"),
        (lambda x: torch.randperm(5) + x, aten.randperm.default, (torch.rand(5),), "side_effect", "random"),
        (lambda x: x.to(torch.float8_e4m3fn), aten._to_copy.default, (torch.rand(3),), "dtype", "float8_e4m3fn"),
        (torch.fft.rfft, aten._fft_r2c.default, (torch.rand(8),), "policy", "on purpose"),
        (torch.fft.fft, aten._fft_c2c.default, (torch.rand(8).to(torch.complex64),), "policy", "on purpose"),
        (torch.nonzero, aten.nonzero.default, (torch.tensor(1.0),), "no_converter", "gives one number a dimension"),
        (
            lambda x, i: torch.index_put(x, (i,), x[:1], accumulate=True),
            aten.index_put.default,
            (torch.rand(3).bfloat16(), torch.tensor([0])),
            "no_converter",
            "adds no floats of 16 bits",
        ),
        (torch.fft.irfft, aten._fft_c2r.default, (torch.rand(8).to(torch.complex64),), "policy", "on purpose"),
    ],
    ids=[
        "no_function",
        "complex",
        "mutation",
        "rand_like",
        "bernoulli",
        "randperm",
        "float8",
        "fft_r2c",
        "fft_c2c",
        "nonzero_of_one",
        "bf16_sums",
        "fft_c2r",
    ],
)
def test_what_cannot_go_and_why(function: Any, target: Any, args: tuple[Any, ...], code: str, said: str) -> None:
    answer = verdict(function, target, *args)
    assert (answer.supported, answer.code) == (False, code)
    assert said in (answer.reason or "")


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


def test_what_can_go_gives_no_reason() -> None:
    assert verdict(lambda x: x.sin() + 1, aten.sin.default, torch.rand(3)) == Verdict(supported=True, code=None, reason=None)


@pytest.mark.parametrize(("dropout", "code"), [(0.0, None), (0.5, "side_effect")])
def test_attention_of_an_exported_program_draws_random_numbers_with_dropout(dropout: float, code: str | None) -> None:
    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=dropout)

    exported = torch.export.export(Attention(), (torch.rand(1, 2, 4, 8),))
    assert support().verdict(node_named(exported.graph, aten.scaled_dot_product_attention.default)).code == code


def test_a_device_without_a_provider() -> None:
    node = node_named(traced(lambda x: x.sin(), torch.rand(3)).graph, aten.sin.default)
    node.meta["val"] = torch.empty(3, device="meta")
    answer = support().verdict(node)
    assert (answer.code, answer.reason) == ("device", "no provider for meta")


def test_a_sparse_layout() -> None:
    node = node_named(traced(lambda x: x.sin(), torch.rand(3)).graph, aten.sin.default)
    node.meta["val"] = torch.empty(2, 2).to_sparse()
    answer = support().verdict(node)
    assert answer.code == "layout"
    assert "sparse" in (answer.reason or "")


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


def test_kinds() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.topk(x.new_zeros(x.shape[0] + 1), 1)[0]

    graph = traced(function, torch.rand(4), symbolic=True).graph
    kinds = [(node.op, kind_of(node)) for node in graph.nodes]
    assert {kind for op, kind in kinds if op in ("placeholder", "output")} == {NodeKind.OTHER}
    by_target = {node.target: kind_of(node) for node in graph.nodes if node.op == "call_function"}
    assert by_target[operator.add] is by_target[aten.sym_size.int] is NodeKind.SIZE
    assert by_target[aten.topk.default] is by_target[aten.new_zeros.default] is NodeKind.COMPUTE
    assert by_target[operator.getitem] is NodeKind.TUPLE
    check = graph.call_function(aten._assert_async.default, ())
    check.meta["val"] = None
    assert kind_of(check) is NodeKind.EFFECT
    answer = support().verdict(check)
    assert answer.code == "side_effect"
    assert "check" in (answer.reason or "")
