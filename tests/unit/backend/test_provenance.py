# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import copy
import math
import operator
from pathlib import Path
from typing import Any

import pytest
import torch

import ortlens
from ortlens import _torch
from ortlens.backend.basis import provenance
from ortlens.backend.basis.provenance import StackFrame, innermost
from tests.unit.backend.graphs import aten, node_named, traced

OWN = StackFrame("/home/ada/model.py", 3, "forward")
PYTHON = StackFrame(str(copy.__file__), 153, "deepcopy")
TORCH = StackFrame(f"{_torch.torch_folder()}nn/modules/linear.py", 130, "forward")
ORTLENS = StackFrame(str(Path(ortlens.__file__).parent / "lens" / "lens.py"), 1, "__call__")
MODEL = StackFrame("/opt/lib/python3.11/site-packages/transformers/models/bert/modeling_bert.py", 300, "forward")
BESIDE_TORCH = StackFrame(f"{Path(_torch.torch_folder()).parent}/torchvision/models/resnet.py", 90, "forward")
WRAPPER = StackFrame("/opt/lib/python3.11/site-packages/transformers/utils/generic.py", 912, "wrapper")
HOOK = StackFrame("/opt/lib/python3.11/site-packages/accelerate/hooks.py", 175, "new_forward")
INSTALLED = StackFrame(f"{Path(copy.__file__).parent}/site-packages/einops/einops.py", 5, "rearrange")


@pytest.mark.parametrize(
    ("stack", "chosen"),
    [
        ([OWN, PYTHON], OWN),
        ([OWN, TORCH], OWN),
        ([OWN, MODEL, WRAPPER, TORCH], MODEL),
        ([OWN, BESIDE_TORCH, TORCH], BESIDE_TORCH),
        ([OWN, WRAPPER, HOOK], OWN),
        ([MODEL, HOOK, MODEL._replace(line=301), PYTHON], MODEL._replace(line=301)),
        ([MODEL, OWN._replace(function="wrapper")], OWN._replace(function="wrapper")),
        ([INSTALLED, PYTHON], INSTALLED),
        ([OWN, ORTLENS], OWN),
        ([WRAPPER, TORCH], WRAPPER),
        ([TORCH], TORCH),
        ([PYTHON, TORCH], PYTHON),
        ([], None),
    ],
)
def test_the_innermost_frame_of_the_user_or_of_a_model(stack: list[StackFrame], chosen: StackFrame | None) -> None:
    assert innermost(stack) == chosen


def node_with(**meta: Any) -> torch.fx.Node:
    node = torch.fx.Graph().call_function(aten.sin.default, ())
    node.meta.update(meta)
    return node


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        ((("/home/a b/model.py", 3), (__file__, 3), (TORCH.file, 130)), (__file__, 3, "import copy")),
        ((("/nowhere/model.py", 7),), ("/nowhere/model.py", 7, None)),
        ((("x", ""),), (None, None, None)),
        ((), (None, None, None)),
    ],
    ids=["outside torch", "no file", "damaged", "nothing"],
)
def test_the_line_of_the_user(frames: tuple[tuple[str, int | str], ...], line: tuple[str | None, int | None, str | None]) -> None:
    trace = "\n".join(f'  File "{file}", line {number}, in forward\n    some code' for file, number in frames)
    assert provenance.user_line(node_with(stack_trace=trace)) == line
    assert provenance.user_line(node_with()) == (None, None, None)


def test_names_of_operators() -> None:
    calls: tuple[Any, ...] = (aten.sin.default, operator.add, math.floor, torch.sym_max)
    names = [provenance.target_name(torch.fx.Graph().call_function(call)) for call in calls]
    assert names == ["aten.sin.default", "operator.add", "math.floor", "sym_max"]


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
    assert provenance.node_flops(torch.fx.Graph().call_function(aten.mm.default, (3,))) == 0, "a formula that does not fit"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['x']", "x"),
        ('L["x"]', "x"),
        ("L['self']._modules['layers']._modules['0']._parameters['weight']", "layers.0.weight"),
        ("L['fn']._modules['up']._parameters['bias']", "up.bias"),
        ("L['mod']._buffers['running_mean']", "running_mean"),
        ("L['self']._parameters['scale']", "scale"),
        ("G['model']._modules['head']._parameters['weight']", "head.weight"),
        ("L['model']._modules['head']._buffers['mask']", "head.mask"),
        ("L['kwargs']['input_ids']", "input_ids"),
        ("L['kwargs']", "kwargs"),
        ("L['pair'][1]", "pair.1"),
        ("L['given']['x']", "given.x"),
        (None, "input_4"),
        ("", "input_4"),
        ("L", "input_4"),
    ],
)
def test_names_read_as_in_the_users_code(source: str | None, name: str) -> None:
    assert provenance.input_name(source, 4) == name
