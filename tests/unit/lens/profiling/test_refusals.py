"""Why a kernel is on the CPU in a session of another provider, and the copies next to it."""

from __future__ import annotations

import pytest
from onnx import parser

from ortlens import _ort
from ortlens._ort import ListedKernel
from ortlens.lens.profiling.kernel_records import with_copies, with_refusals
from ortlens.lens.profiling.profiles import ProfiledKernel
from ortlens.trace.records import Kernel

CPU, GPU = "CPUExecutionProvider", "CUDAExecutionProvider"
MODEL = parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) {
  a = Relu(x)
  b = MemcpyToHost(a)
  c = TopK(b)
  d = MemcpyFromHost(c)
  e = Sin(d)
  f = Cast(e)
  y = Exp(f)
}""")
for node in MODEL.graph.node:
    node.name = node.op_type
TABLE = (
    ListedKernel("", "TopK", (10, 20), {"T": ("float", "double"), "I": ("int64",)}),
    ListedKernel("", "Sin", (7, 12), {"T": ("float",)}),
    ListedKernel("", "Cast", (13, 20), {"T": ("float",)}),
)


def rows() -> tuple[list[Kernel], list[ProfiledKernel]]:
    placed = {"Relu": GPU, "MemcpyToHost": GPU, "TopK": CPU, "MemcpyFromHost": GPU, "Sin": CPU, "Cast": CPU, "Exp": CPU}
    types = {"TopK": ("float16", "int64")}
    times = [
        ProfiledKernel(name=name, op_type=name, provider=at, calls=1, total_ns=1.0, bytes=0, types=types.get(name, ("float",)))
        for name, at in placed.items()
    ]
    return [Kernel(session_id="s0", kernel=name, op_type=name, provider=at, mean_ns=100) for name, at in placed.items()], times


@pytest.mark.parametrize(
    ("table", "causes"),
    [
        (TABLE, {"TopK": ("dtype", ("float16",)), "Sin": ("opset", ("7 to 12", "18")), "Cast": ("chosen", ()), "Exp": ("no_kernel", ())}),
        ((), dict.fromkeys(("TopK", "Sin", "Cast", "Exp"), ("compiles", ()))),
        (None, dict.fromkeys(("TopK", "Sin", "Cast", "Exp"), ("unlisted", ()))),
    ],
)
def test_kernels_on_the_cpu_have_the_cause(
    table: tuple[ListedKernel, ...] | None, causes: dict[str, tuple[str, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ort, "listed_kernels", lambda _: table)
    found = with_refusals(*rows(), GPU, MODEL)
    assert {row.kernel: (row.refusal, row.refused) for row in found if row.refusal} == causes
    assert all(row.refusal is None for row in with_refusals(*rows(), CPU, MODEL))
    without = {row.refusal for row in with_refusals(*rows(), GPU, None)}
    assert without == {None, *(() if table else (cause for cause, _ in causes.values()))}, "without the model nothing is read from a table"


def test_copies_are_charged_to_the_kernel_next_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ort, "listed_kernels", lambda _: TABLE)
    found = {row.kernel: row.copies_ns for row in with_copies(with_refusals(*rows(), GPU, MODEL), MODEL)}
    assert (found["TopK"], found["Sin"], found["Exp"], found["Relu"]) == (200, 100, 0, None)
