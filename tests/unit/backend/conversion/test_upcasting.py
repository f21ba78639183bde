# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ortlens.backend.conversion import upcasting
from tests.unit.backend.graphs import aten, node_named, traced

if TYPE_CHECKING:
    from collections.abc import Callable

NARROW = upcasting.narrow_dtypes(("bfloat16",))


def mixed(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).sin() + torch.full((3,), 0.5, dtype=torch.bfloat16)


def test_the_graph_for_the_converter_has_float32_and_remembers_what_pytorch_has() -> None:
    module = traced(mixed, torch.rand(3))
    wide = upcasting.in_float32(module, NARROW)
    assert [node.name for node in wide.graph.nodes] == [node.name for node in module.graph.nodes]
    cast, full, total = (node_named(wide.graph, target) for target in (aten._to_copy.default, aten.full.default, aten.add.Tensor))
    assert cast.kwargs["dtype"] is full.kwargs["dtype"] is torch.float32
    assert total.meta["val"].dtype is torch.float32
    assert total.meta[upcasting.GIVEN].dtype is torch.bfloat16


def test_the_partitions_own_graph_stays_as_it_is() -> None:
    module = traced(mixed, torch.rand(3))
    upcasting.in_float32(module, NARROW)
    cast = node_named(module.graph, aten._to_copy.default)
    assert (cast.kwargs["dtype"], cast.meta["val"].dtype, upcasting.GIVEN in cast.meta) == (torch.bfloat16, torch.bfloat16, False)


def test_a_graph_without_narrow_types_is_not_copied() -> None:
    module = traced(torch.sin, torch.rand(3).half())
    assert upcasting.in_float32(module, NARROW) is module
    assert upcasting.in_float32(module, upcasting.narrow_dtypes(("float16",))) is not module


@pytest.mark.parametrize(
    ("function", "target", "decides"),
    [
        (lambda x: x.to(torch.int64), aten._to_copy.default, True),
        (lambda x: x.to(torch.float32), aten._to_copy.default, False),
        (lambda x: x > 1, aten.gt.Scalar, True),
        (lambda x: x.argmax(), aten.argmax.default, True),
        (torch.floor, aten.floor.default, True),
        (lambda x: torch.div(x, 3, rounding_mode="floor"), aten.div.Tensor_mode, True),
        (lambda x: x / 3, aten.div.Tensor, False),
        (lambda x: torch.ops.aten.max.dim(x, 0)[1], aten.max.dim, True),
        (lambda x: torch.ops.aten.max.dim(x, 0)[0], aten.max.dim, False),
        (torch.relu, aten.relu.default, False),
    ],
    ids=["to_integer", "to_float", "compare", "argmax", "floor", "floor_division", "division", "read_place", "unread_place", "relu"],
)
def test_which_operators_decide_by_a_value(function: Callable[..., Any], target: Any, *, decides: bool) -> None:
    graph = traced(function, torch.rand(3).bfloat16()).graph
    graph.eliminate_dead_code()
    assert upcasting.decides(node_named(graph, target)) is decides
