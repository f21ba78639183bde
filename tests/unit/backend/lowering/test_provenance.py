# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx

from ortlens import _torch
from ortlens.backend.lowering import provenance
from tests.unit.backend.graphs import aten, node_named, traced


def node_with(**meta: Any) -> torch.fx.Node:
    node = torch.fx.Graph().call_function(aten.sin.default, ())
    node.meta.update(meta)
    return node


def frames(*places: tuple[str, int]) -> str:
    return "\n".join(f'  File "{file}", line {line}, in forward\n    some code' for file, line in places)


def test_the_innermost_line_outside_torch() -> None:
    inside = f"{_torch.torch_folder()}/nn/modules/linear.py"
    trace = frames(("/home/a b/model.py", 3), (__file__, 1), (inside, 130))
    assert provenance.user_line(node_with(stack_trace=trace)) == (__file__, 1, Path(__file__).read_text().splitlines()[0])


def test_torchs_own_line_when_there_is_no_other_and_nothing_when_there_is_none() -> None:
    inside = f"{_torch.torch_folder()}/nn/modules/linear.py"
    assert provenance.user_line(node_with(stack_trace=frames((inside, 1))))[:2] == (inside, 1)
    for nothing in (node_with(), node_with(stack_trace=""), node_with(stack_trace="damaged"), node_with(stack_trace='File "x", line , in')):
        assert provenance.user_line(nothing) == (None, None, None)


def test_a_file_that_cannot_be_read_has_no_source() -> None:
    assert provenance.user_line(node_with(stack_trace=frames(("/nowhere/model.py", 7)))) == ("/nowhere/model.py", 7, None)


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("L['self'].layers[0].attn", "layers.0.attn"),
        ("L['self']._modules['layers']._modules['0']", "layers.0"),
        ("L['self'].blocks['down'][2].norm", "blocks.down.2.norm"),
        ("L['fn'].head", "head"),
        ("L['self']", ""),
        ("G['model'].proj", "model.proj"),
        ('L["self"].a', "a"),
    ],
)
def test_paths_read_as_in_named_modules(path: str, plain: str) -> None:
    assert provenance.module_path(node_with(nn_module_stack={"k": (path, "torch.nn.modules.linear.Linear")})) == (plain, "Linear")


def test_the_innermost_module_and_the_one_of_the_forward() -> None:
    stack = {"a": ("L['self']", "pkg.Model"), "b": ("L['self'].head", torch.nn.Linear)}
    assert provenance.module_path(node_with(nn_module_stack=stack)) == ("head", "Linear")
    assert provenance.module_path(node_with(fwd_nn_module_stack=stack)) == ("head", "Linear")
    assert provenance.module_path(node_with()) == (None, None)


def test_operators_read_as_people_write_them() -> None:
    import math
    import operator

    graph = torch.fx.Graph()
    names = [provenance.target_name(graph.call_function(target, ())) for target in (aten.add.Tensor, operator.add, math.floor, _named)]
    assert names == ["aten.add.Tensor", "operator.add", "math.floor", "_named"]


def _named() -> None: ...


def test_bytes_of_nests_and_symbolic_sizes() -> None:
    assert provenance.tensor_bytes((torch.empty(2, 3), [torch.empty(4, dtype=torch.int64), None, 3])) == 24 + 32
    assert provenance.tensor_bytes(None) == provenance.tensor_bytes(torch.empty(0, 3)) == 0
    graph = traced(lambda x: torch.cat([x, x]), torch.rand(5, 3), symbolic=True).graph
    node = node_named(graph, aten.cat.default)
    assert provenance.tensor_bytes(node.meta["val"]) == 2 * 5 * 3 * 4
    assert provenance.node_bytes(node) == (2 + 1) * 5 * 3 * 4


@pytest.mark.parametrize("symbolic", [False, True])
def test_flops_of_products_convolutions_and_nothing_else(symbolic: bool) -> None:  # noqa: FBT001 - a parameter of the test
    def function(x: torch.Tensor, w: torch.Tensor, image: torch.Tensor, kernel: torch.Tensor) -> Any:
        return (x @ w).sin(), torch.nn.functional.conv2d(image, kernel)

    graph = traced(function, torch.rand(4, 6), torch.rand(6, 5), torch.rand(1, 2, 8, 8), torch.rand(3, 2, 3, 3), symbolic=symbolic).graph
    flops = {
        node.target: provenance.node_flops(node) for node in graph.nodes if node.op == "call_function" and hasattr(node.target, "_schema")
    }
    assert flops[aten.mm.default] == 2 * 4 * 6 * 5
    assert flops[aten.convolution.default] == 2 * 3 * 6 * 6 * 2 * 3 * 3
    assert flops[aten.sin.default] == 0


def test_a_formula_that_does_not_fit_costs_a_figure_and_no_more() -> None:
    graph = torch.fx.Graph()
    node = graph.call_function(aten.mm.default, (3,))
    assert provenance.node_flops(node) == 0


def test_texts_of_shapes_and_dtypes() -> None:
    graph = traced(lambda x: torch.cat([x, x]), torch.rand(5, 3), symbolic=True).graph
    shape = provenance.shape_text(node_named(graph, aten.cat.default).meta["val"])
    assert shape is not None
    assert [type(size) for size in shape] == [str, str]
    assert str(shape[0]).startswith("2*")
    assert provenance.shape_text((torch.empty(2), torch.empty(3, 4))) == (2,)
    assert provenance.shape_text(3) is None
    number = next(node.meta["val"] for node in graph.nodes if node.op == "placeholder").shape[0]
    values = (torch.empty(1, dtype=torch.bfloat16), [torch.empty(1, dtype=torch.bool)], number, 3, 0.5, True, None)
    assert [provenance.dtype_text(value) for value in values] == ["bfloat16", "bool", "int", "int", "float", "bool", None]
