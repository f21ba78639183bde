"""Partition -> ONNX: the numbers, the names, and the way back from every ONNX node."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch._subclasses import FakeTensorMode

import ortlens
from ortlens import _torch
from ortlens.backend.basis.node_provenance import FX_NODE_KEY
from ortlens.backend.conversion import converter
from ortlens.backend.conversion.optimize import optimize_model
from ortlens.backend.lowering import type_promotion
from tests.unit.backend.graphs import aten, traced


def as_partition(function: Callable[..., Any], *args: Any, symbolic: bool = False) -> torch.fx.GraphModule:
    """A graph as `split` leaves it: decomposed, types promoted, a tuple of nodes as output."""
    table = _torch.decomposition_table(_torch.shared_registry())
    module = traced(function, *args, symbolic=symbolic, decomposition_table=table)
    type_promotion.promote(module)
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    if not isinstance(output.args[0], (tuple, list)):
        output.args = ((output.args[0],),)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def converted(module: torch.fx.GraphModule, *, optimize: bool = True) -> tuple[onnx.ModelProto, converter.Converted]:
    made = converter.onnx_from_partition(module, _torch.shared_registry(), "part")
    proto = converter.proto_from_model(optimize_model(made.model) if optimize else made.model, made.output_types)
    onnx.checker.check_model(proto, full_check=True)
    return proto, made


def run(proto: onnx.ModelProto, *args: torch.Tensor) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    results: list[np.ndarray[Any, Any]] = session.run(
        None, dict(zip([i.name for i in session.get_inputs()], [a.numpy() for a in args], strict=True))
    )
    return results


def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + 1
    return y, y


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "several_outputs": (lambda x: torch.topk(x, 2), (torch.rand(3, 4),)),
    "split": (lambda x: x.split([1, 3], 1), (torch.rand(3, 4),)),
    "promotion": (lambda x, i: x + i, (torch.rand(3), torch.arange(3))),
    "input_handed_through": (lambda x: (x, x + 1), (torch.rand(3),)),
    "same_value_twice": (twice, (torch.rand(3),)),
    "constant": (lambda x: x + torch.arange(3), (torch.rand(3),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_numbers_of_pytorch_and_a_way_back_from_every_node(name: str) -> None:
    function, args = FUNCTIONS[name]
    module = as_partition(function, *args)
    known = {node.name for node in module.graph.nodes}
    for optimize in (False, True):
        proto, made = converted(module, optimize=optimize)
        names = [node.name for node in proto.graph.node]
        values = [output for node in proto.graph.node for output in node.output]
        assert (len(set(names)), len(set(values)), all(names)) == (len(names), len(values), True)
        for node in proto.graph.node:
            (origin,) = (prop.value for prop in node.metadata_props if prop.key == FX_NODE_KEY)
            assert origin in known
    wanted = function(*args)
    wanted = wanted if isinstance(wanted, (tuple, list)) else [wanted]
    assert made.output_permutations == (None,) * len(wanted)
    got = [torch.from_numpy(value) for value in run(proto, *args)]
    torch.testing.assert_close(got, list(wanted), atol=1e-5, rtol=1e-4)


def test_inputs_are_named_after_placeholders_and_outputs_after_nodes() -> None:
    module = as_partition(lambda x, y: (x.sin() @ y, x.cos()), torch.rand(2, 3), torch.rand(3, 4))
    proto, _ = converted(module)
    placeholders = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    assert [value.name for value in proto.graph.input] == placeholders
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    assert [value.name for value in proto.graph.output] == [node.name for node in output.args[0]]
    assert [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in proto.graph.output] == [[2, 4], [2, 3]]


def test_symbolic_sizes_become_named_dimensions() -> None:
    proto, _ = converted(as_partition(lambda x: torch.cat([x, x]), torch.rand(5, 3), symbolic=True))
    (rows, columns) = proto.graph.input[0].type.tensor_type.shape.dim
    assert rows.dim_param
    assert columns.dim_param
    assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == f"2*{rows.dim_param}"
    for size in (1, 4, 9):
        x = torch.rand(size, 2)
        np.testing.assert_allclose(run(proto, x)[0], torch.cat([x, x]).numpy())


def test_permuted_results_are_written_in_pytorchs_order() -> None:
    proto, made = converted(as_partition(lambda x: (x * 2).permute(2, 0, 1), torch.rand(2, 3, 4)))
    assert made.output_permutations == ((1, 2, 0),)
    x = torch.rand(2, 3, 4)
    np.testing.assert_allclose(run(proto, x)[0], (x * 2).numpy(), rtol=1e-6)


def test_all_failures_of_a_partition_are_found_at_once() -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("planted")

    registry = _torch.registry_with({aten.sin.default: fail, aten.cos.default: fail})
    module = as_partition(lambda x: x.sin() + x.cos() + x.tan() + torch.special.bessel_j0(x), torch.rand(3))
    with pytest.raises(converter.NodeFailures) as raised:
        converter.onnx_from_partition(module, registry, "part")
    failures = {name: str(error) for name, error in raised.value.failures.items()}
    assert (failures.pop("sin"), failures.pop("cos")) == ("planted", "planted")
    (lacking,) = failures.values()
    assert "no ONNX function" in lacking


def test_a_newer_operator_set_or_a_clear_refusal() -> None:
    made = converter.onnx_from_partition(as_partition(lambda x: x.sin() + 1, torch.rand(3)), _torch.shared_registry(), "part")
    model = converter.to_opset(optimize_model(made.model), 21)
    proto = converter.proto_from_model(model, made.output_types)
    assert {entry.version for entry in proto.opset_import if entry.domain == ""} == {21}
    onnx.checker.check_model(proto)
    with pytest.raises(ValueError, match="999"):
        converter.to_opset(model, 999)


def test_an_index_on_cuda_costs_no_operator_that_cuda_has_no_kernel_of() -> None:
    module = as_partition(lambda table, index: torch.nn.functional.embedding(index, table), torch.rand(5, 3), torch.tensor([1, 2]))
    registry, found = ortlens.OrtBackend().compiler.tables()[0], {}
    for device in ("cpu", "cuda"):
        with FakeTensorMode():
            for node in module.graph.nodes:
                if isinstance(value := node.meta.get("val"), torch.Tensor):
                    node.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device=device)
        model = converter.onnx_from_partition(module, registry, "part").model
        found[device] = {node.op_type for node in model.graph} - {"Constant", "Cast"}
    assert found == {"cpu": {"BitwiseAnd", "Gather"}, "cuda": {"Gather"}}
