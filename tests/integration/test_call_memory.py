"""What a call holds for its activations, as compiled and as it is, and that it gives back what a large call took."""

import sys
from collections.abc import Callable

import pytest
import torch

import ortlens
from ortlens.analysis.memory import call_memory
from ortlens.lens.measuring.measurement import note_fresh_memory
from ortlens.trace import records as r
from ortlens.trace.recorder import Recorder
from tests.integration.marked_lines import line_of

VALUE = 1024 * 1024 * 16 * 4  # bytes of the differences below


def near(x: torch.Tensor) -> torch.Tensor:
    apart = (x.unsqueeze(2) - x.unsqueeze(1)).square().sum(-1)  # the largest
    return torch.softmax(-apart, -1) @ x


def test_a_call_that_holds_much_is_measured_with_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(1, 1024, 16)
    with torch.no_grad():
        capture = ortlens.explain(near, dynamic=True)(x).captured()
    assert not capfd.readouterr().err
    memory = call_memory(capture)
    assert memory is not None
    assert memory.uncompiled_bytes == 2 * VALUE
    assert 2 * VALUE < memory.bytes < 8 * VALUE
    assert memory.allocations < (memory.uncompiled_allocations or 0)
    assert memory.node is not None
    assert memory.node.line == line_of("the largest", __file__)


def test_a_small_call_is_not_measured() -> None:
    with torch.no_grad():
        assert call_memory(ortlens.explain(near)(torch.randn(1, 64, 16)).captured()) is None


def test_fresh_memory_is_timed_where_a_result_is_large() -> None:
    with torch.no_grad():
        small, large = (ortlens.explain(torch.nn.Linear(8, 1 << 12))(torch.ones(size << 8, 8)).captured() for size in (1, 8))
    assert small.figures.fresh_mib_ns is None
    assert large.figures.fresh_mib_ns is not None
    assert large.figures.fresh_mib_ns > 0


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "CUDAExecutionProvider"])
def test_fresh_memory_is_that_of_the_host(provider: str) -> None:
    recorder = Recorder()
    recorder.add(r.Session(session_id="s0", partition_id="p0", providers=(provider,)))
    recorder.add(
        r.Node(graph_id="g0", node="mm", target="aten.mm.default", supported=True, partition_id="p0", output_bytes=1 << 26, is_output=True)
    )
    note_fresh_memory(recorder)
    assert (recorder.capture().figures.fresh_mib_ns is None) == (provider == "CUDAExecutionProvider")


PROGRAM = """
import ctypes, gc, sys, tempfile, torch, ortlens
from torch.export import Dim

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(512))
    def forward(self, x):
        scaled = x * self.w
        return (scaled.tanh() + scaled.softmax(-1))[:, :{columns}]

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4 // 1024

net, few, many = Net().eval(), torch.randn(8, 512), torch.randn(32768, 512)
rows = ({{0: Dim("rows", min=2)}},)
with torch.no_grad():
    if sys.argv[1] == "compiled":
        torch._dynamo.mark_dynamic(few, 0)
        call = torch.compile(net, backend="ortlens")
    else:
        call = ortlens.freeze(net, few, dynamic_shapes=rows)
    if sys.argv[1] == "loaded":
        with tempfile.TemporaryDirectory() as folder:
            call.save(folder + "/net")
            call = ortlens.load_frozen(folder + "/net")
        few, many = few.numpy(), many.numpy()
    call(few)
    before = resident()
    for x in {calls}:
        call(x)
        print(resident() - before)
"""
LARGE = 48  # MiB; an activation has 64


def kept(said: str) -> list[bool]:
    """Tell after which calls much memory is kept."""
    return [int(line) > LARGE for line in said.split()]


reads_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@reads_proc
@pytest.mark.parametrize(("way", "columns"), [("compiled", 512), ("frozen", 512), ("loaded", 4)])
def test_the_memory_of_a_large_call_is_given_back(way: str, columns: int, run_python: Callable[..., str]) -> None:
    first, second = kept(run_python(PROGRAM.format(columns=columns, calls="(many, many)"), way))
    assert not second
    assert way == "loaded" or not first  # a result that is alive while a loaded model runs may keep its region until the next run


@reads_proc
def test_that_of_a_size_that_comes_again_and_again_is_kept_until_a_small_call(run_python: Callable[..., str]) -> None:
    assert kept(run_python(PROGRAM.format(columns=4, calls="(*(many,) * 6, few)"), "compiled")) == [False] * 4 + [True, True, False]
