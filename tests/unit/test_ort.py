"""Values of ONNX Runtime over torch's memory, by both ways in which versions of onnxruntime make them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from ortlens import _ort
from tests.onnx_models import onnx_model

TENSORS = (torch.tensor([True, False]), torch.arange(4.0), torch.ones(2, dtype=torch.bfloat16), torch.tensor(3), torch.zeros(0, 3))


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: str(tensor.dtype))
def test_a_value_shares_memory_and_keeps_its_type(tensor: torch.Tensor) -> None:
    value = _ort.value_over(tensor)
    assert value.element_type() == {torch.bool: 9, torch.float32: 1, torch.bfloat16: 16, torch.int64: 7}[tensor.dtype]
    back = _ort.tensor_over(value._ortvalue, tensor.dtype)
    assert back.dtype is tensor.dtype
    assert (back.data_ptr(), back.shape) == (tensor.data_ptr(), tensor.shape)


def test_a_version_that_takes_one_argument_gets_the_tensor_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As onnxruntime 1.32 does, which reads the element type of bools from the capsule."""
    given: list[object] = []
    made = onnxruntime.OrtValue.ortvalue_from_numpy(np.array([True]))._ortvalue

    def from_dlpack(capsule: object) -> object:
        given.append(capsule)
        return made

    monkeypatch.setattr(_ort._native.OrtValue, "from_dlpack", from_dlpack)
    assert _ort.value_over(torch.tensor([True]))._ortvalue is made
    assert torch.from_dlpack(given[0]).dtype is torch.bool  # type: ignore[attr-defined]  # exported, but not in torch's annotations


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "BFLOAT16", "INT32", "UINT8"])
@pytest.mark.parametrize("operator", ["Add", "MatMul", "Relu", "Sin", "Erf", "Sqrt", "Transpose", "Identity", "Floor"])
def test_listed_kernels_are_those_of_which_sessions_can_be_made(operator: str, kind: str) -> None:
    dtype = getattr(onnx.TensorProto, kind)
    x, y = ([(name, dtype, [2, 2])] for name in "xy")
    node = onnx.helper.make_node(operator, ["x", "x"] if operator in ("Add", "MatMul") else ["x"], ["y"])
    model = onnx_model([node], x, y)
    listed = _ort.kernel_types("CPUExecutionProvider", operator, 18)
    failed = ""
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - classes of ONNX Runtime's own
        failed = str(error)
    assert not failed or "NOT_IMPLEMENTED" in failed or "INVALID_GRAPH" in failed
    names = {"FLOAT": "float", "DOUBLE": "double", "BFLOAT16": "bfloat16", "INT32": "int32", "UINT8": "uint8"}
    assert (names[kind] in next(iter(listed.values()))) is (not failed)


@pytest.mark.parametrize(("script", "expected"), [("import os; os.abort()", None), ("print('[]')", ()), ("import sys; sys.exit(3)", None)])
def test_another_provider_is_asked_in_a_process_of_its_own(
    script: str, expected: tuple[()] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ort, "_LIST_IN_CHILD", script)
    assert _ort.listed_kernels.__wrapped__("CUDAExecutionProvider") == expected


@pytest.mark.parametrize(
    ("operator", "domain", "opset", "types", "cause", "about"),
    [
        ("Erf", "", 18, ("float",), "chosen", ()),
        ("Erf", "ai.onnx", 18, ("complex64",), "dtype", ("complex64",)),
        ("NoSuchOperator", "", 18, (), "no_kernel", ()),
        ("Gelu", "", 18, ("float",), "opset", ("20 to 2147483647", "18")),
    ],
)
def test_a_refusal_is_read_from_the_table_of_the_provider(  # noqa: PLR0913, PLR0917 - a row of the table
    operator: str, domain: str, opset: int, types: tuple[str, ...], cause: str, about: tuple[str, ...]
) -> None:
    assert _ort.refusal("CPUExecutionProvider", domain, operator, opset, types) == (cause, about)


def test_an_operator_without_kernels_has_no_types() -> None:
    assert _ort.kernel_types("CPUExecutionProvider", "NoSuchOperator", 18) == {}
    assert _ort.kernel_types("NoSuchProvider", "Add", 18) == {}


KEPT = """
import os, torch, ortlens
from ortlens._process import resident_bytes
def step(x):
    return ((x * 2 + 1).tanh() * x.sigmoid() + x.exp()).sum(-1)
with torch.no_grad():
    compiled = torch.compile(step, backend="ortlens")
    compiled(torch.randn(4, 4))
    torch._dynamo.reset()
    x = torch.randn(2048, 2048)
    before = resident_bytes(os.getpid())
    for _ in range(3):
        compiled(x)
    print((resident_bytes(os.getpid()) - before) / x.nbytes)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux alone reports what is resident")
def test_what_the_first_run_took_one_by_one_is_not_kept_beside_the_block_of_the_later_ones(run_python: Callable[..., str]) -> None:
    assert float(run_python(KEPT)) < 7, "five tensors; with what the first run took, nine"


def test_a_session_has_one_first_run_and_none_without_an_arena() -> None:
    x, y = ([(name, onnx.TensorProto.FLOAT, [2])] for name in "xy")
    model = onnx_model([onnx.helper.make_node("Relu", ["x"], ["y"])], x, y).SerializeToString()
    options = onnxruntime.SessionOptions()
    for has_arena in (True, False):
        options.enable_cpu_mem_arena = has_arena
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        assert (_ort.first_run_of(session) is not None) is has_arena
        assert _ort.first_run_of(session) is None
