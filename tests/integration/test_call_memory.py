"""What a call holds for its activations, as compiled and as it is."""

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
