"""Which nodes a refusal of ONNX Runtime takes to PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ortlens.backend.partitioning.plan import GraphPartition
from ortlens.backend.planner import Exclusions
from tests.unit.backend.conversion.test_converter import as_partition

if TYPE_CHECKING:
    from collections.abc import Callable


def partition_of(function: Callable[..., Any], *args: torch.Tensor) -> GraphPartition:
    module = as_partition(function, *args)
    nodes = tuple(node for node in module.graph.nodes if node.op == "call_function")
    return GraphPartition(index=0, module=module, inputs=(), outputs=(), nodes=nodes)


def several(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(0), x.cos().sum(0), x.sum(1), y.sum(0), z.sum(0)


X, Y, Z = torch.ones(3, 3), torch.ones(3, 5), torch.ones(3, 3, dtype=torch.float64)
NO_KERNEL = "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for ReduceSum(13) node with name 'sum_1/ReduceSum'"
OTHER = "[ONNXRuntimeError] : 1 : FAIL : Node (sum_1/ReduceSum) Op (ReduceSum) [ShapeInferenceError] axis out of range"


@pytest.mark.parametrize(
    ("message", "broadly", "excluded"),
    [
        (OTHER, False, {"sum_1", "sum_2"}),  # of the same operator, attributes and sizes
        (NO_KERNEL, False, {"sum_1", "sum_2", "sum_4"}),  # of any sizes
        (OTHER, True, {"sum_1", "sum_2", "sum_3", "sum_4"}),  # of any sizes and attributes, but not of another dtype
    ],
)
def test_a_refusal_takes_the_equals_of_the_named_node(message: str, broadly: bool, excluded: set[str]) -> None:  # noqa: FBT001
    exclusions = Exclusions({})
    exclusions.session_refused(partition_of(several, X, Y, Z), {"sum_1/ReduceSum": "sum_1"}, RuntimeError(message), broadly=broadly)
    assert set(exclusions.verdicts) == excluded


def test_a_missing_kernel_is_named_with_the_element_types() -> None:
    exclusions, unnamed = Exclusions({}), Exclusions({})
    exclusions.session_refused(partition_of(several, X, Y, Z), {"sum_1/ReduceSum": "sum_1"}, RuntimeError(NO_KERNEL))
    assert exclusions.verdicts["sum_1"].reason == "ONNX Runtime has no kernel of ReduceSum for float32 on this device"
    unnamed.session_refused(partition_of(several, X, Y, Z), {}, RuntimeError(NO_KERNEL.replace("'sum_1/ReduceSum'", "''")))
    assert unnamed.verdicts["sum_1"].reason == "ONNX Runtime has no kernel of ReduceSum for float32 and float64 on this device"


def test_a_refusal_that_names_no_node_takes_the_partition() -> None:
    exclusions, partition = Exclusions({}), partition_of(several, X, Y, Z)
    exclusions.session_refused(partition, {"sum_1/ReduceSum": "sum_1"}, RuntimeError("out of memory"))
    assert set(exclusions.verdicts) == {node.name for node in partition.nodes}
