"""Several threads, one compiled model: every answer is the caller's own, every call is counted once."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens, _ort
from tests.threads import in_threads

# Measures calls from threads that must interleave.
pytestmark = pytest.mark.serial

THREADS, CALLS = 4, 60


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).eval()


def test_every_thread_gets_its_own_answers() -> None:
    net, lens = model(), Lens()
    compiled = torch.compile(net, backend=lens)
    with torch.no_grad():
        compiled(torch.zeros(3, 8))

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(CALLS):
            x = torch.randn(3, 8, generator=generator)
            torch.testing.assert_close(compiled(x), net(x))

    in_threads(torch.no_grad()(work), THREADS)
    assert lens.sessions.calls.tolist() == [THREADS * CALLS + 1]
    assert len(lens.runs) == THREADS * CALLS + 1
    assert lens.runs.groupby("thread").size().tolist().count(CALLS) == THREADS
    assert sorted(lens.runs.call) == list(range(THREADS * CALLS + 1))


def test_the_first_call_may_come_from_all_threads_at_once() -> None:
    net, lens = model(), Lens()
    compiled = torch.compile(net, backend=lens)

    def work(seed: int) -> None:
        x = torch.full((3, 8), float(seed))
        torch.testing.assert_close(compiled(x), net(x))

    in_threads(torch.no_grad()(work), THREADS)
    assert lens.fallbacks.empty
    assert not lens.captured().findings
    assert lens.sessions.calls.sum() == THREADS


@pytest.mark.parametrize(("dynamic_shapes", "sizes"), [(True, (3,)), (False, (2, 3, 4, 5))])
def test_threads_ask_for_new_sizes_at_once_and_weights_change(*, dynamic_shapes: bool, sizes: tuple[int, ...]) -> None:
    net = model()
    lens = Lens(options={"export_options": {"dynamic_shapes": dynamic_shapes}})
    compiled = torch.compile(net, backend=lens, dynamic=not dynamic_shapes)
    with torch.no_grad():
        compiled(torch.ones(3, 8))
    for step in range(3):
        with torch.no_grad():
            net[0].weight.add_(0.1 * (step + 1))

        def work(_: int) -> None:
            for rows in sizes:
                torch.testing.assert_close(compiled(torch.ones(rows, 8)), net(torch.ones(rows, 8)))

        in_threads(torch.no_grad()(work), THREADS)
    assert lens.fallbacks.empty
    assert not lens.captured().findings
    if dynamic_shapes:
        assert len(lens.sessions) <= 4, "threads that notice the same change make one session, not one each"
        assert lens.sessions.calls.sum() == 3 * THREADS + 1


def test_captures_can_be_taken_while_threads_call() -> None:
    net, lens = model(), Lens()
    compiled = torch.compile(net, backend=lens)
    with torch.no_grad():
        compiled(torch.zeros(3, 8))
    seen: list[int] = []

    def work(number: int) -> None:
        for _ in range(CALLS):
            if number:
                compiled(torch.ones(3, 8))
            else:
                capture = lens.captured()
                seen.append(capture.sessions[0].calls)
                assert all(run.total_ns == run.bind_ns + run.run_ns + run.output_ns >= 0 for run in capture.runs)

    in_threads(torch.no_grad()(work), THREADS)
    assert seen == sorted(seen)
    assert lens.sessions.calls.tolist() == [(THREADS - 1) * CALLS + 1]


HALF_A_CORE = """
import json, sys, onnxruntime, torch, ortlens; open(sys.argv[1] + "/cgroup.procs", "w").write("0")
model, x, path = torch.nn.Linear(2048, 2048).requires_grad_(False), torch.rand(64, 2048), sys.argv[2]
compiled, _ = ortlens.explain(model)(x).captured(), torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
watched = ortlens.watch(onnxruntime.InferenceSession(path)); watched.profile(x.numpy(), repeat=1)
found = [[*each.settings, each.measured] for lens in (ortlens.explain(path)(), watched) for each in lens.captured().findings]
print(json.dumps([[one.threads for one in compiled.sessions], compiled.figures.cpu_quota, found]))
"""


@pytest.mark.slow
def test_in_half_a_core_our_sessions_have_a_thread_and_the_default_pool_is_named(tmp_path: Path) -> None:
    v1, name = Path("/sys/fs/cgroup/cpu"), f"ortlens-test-{os.getpid()}"
    group, limit, text = (v1 / name, "cpu.cfs_quota_us", "50000") if v1.is_dir() else (v1.parent / name, "cpu.max", "50000 100000")
    try:
        group.mkdir()
        (group / limit).write_text(text)
        ran = subprocess.run([sys.executable, "-c", HALF_A_CORE, group, tmp_path / "m.onnx"], capture_output=True, text=True, check=True)
    except OSError:
        pytest.skip("no control group can be made here")
    finally:
        if group.is_dir():
            group.rmdir()
    ours, quota, rows = json.loads(ran.stdout.splitlines()[-1])
    assert (set(ours), quota, rows) == ({1}, 0.5, [["options.intra_op_num_threads = 1", True]] * 2 * ((_ort.default_threads() or 0) > 1))
