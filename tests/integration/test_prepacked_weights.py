"""Weights in torch's memory: `prepack_weights`, what it saves, and that no answer is wrong or stale."""

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ortlens
from ortlens import _process
from ortlens.backend.runtime.session import SessionInfo

SIDE = 512
SIZE = 2 * SIDE * SIDE * 4
BOTH = pytest.mark.parametrize("prepack", [True, False], ids=["packed", "shared"])


def two_layers() -> torch.nn.Sequential:
    model = torch.nn.Sequential(torch.nn.Linear(SIDE, SIDE, bias=False), torch.nn.ReLU(), torch.nn.Linear(SIDE, SIDE, bias=False))
    return model.eval()


def compiled(model: Callable[..., Any], *, prepack: bool) -> tuple[Callable[..., Any], ortlens.OrtBackend]:
    backend = ortlens.OrtBackend({"prepack_weights": prepack, "on_error": "raise"})
    return torch.compile(model, backend=backend), backend


def only_session(backend: ortlens.OrtBackend) -> SessionInfo:
    ((info,),) = backend.sessions_by_graph.values()
    return info


def test_the_memory_of_shared_weights_lives_as_long_as_the_session() -> None:
    model, x = two_layers(), torch.randn(3, SIDE)
    with torch.no_grad():
        expected = model(x)
        fast, backend = compiled(model, prepack=False)
        fast(x)
        session = only_session(backend).session
        del fast, backend, model
        torch.compiler.reset()
        gc.collect()
        noise = [torch.full((SIDE, SIDE), float("nan")) for _ in range(8)]  # would take the memory, were it free
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), expected)
    assert len(noise) == 8


@BOTH
def test_a_frozen_callable_and_a_lens_take_the_option(prepack: bool) -> None:  # noqa: FBT001 - a parameter
    model, x, options = two_layers(), torch.randn(3, SIDE), {"prepack_weights": prepack}
    with torch.no_grad():
        torch.testing.assert_close(ortlens.freeze(model, x, options=options)(x), model(x))
        lens = ortlens.explain(model, calls=1, options=options)(x)
        lens.profile(x)
        lens.verify(x)
    assert lens.numerics.ok.all()
    assert list(lens.sessions.shareable_bytes) == [SIZE]
    assert list(lens.sessions.copied_bytes) == [SIZE if prepack else 0]
    if _process.heap_bytes() is not None:
        (held,) = lens.sessions.held_bytes
        assert (held > 0.9 * SIZE) if prepack else (held < 0.2 * SIZE)


PEAK = """
import pathlib, torch, ortlens
def memory(which):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(which)) * 1024
with torch.no_grad():
    torch.compile(torch.nn.Linear(4, 4).eval(), backend="ortlens")(torch.randn(1, 4))
    model, x = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(6))).eval(), torch.randn(1, 2048)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    torch.compile(model, backend="ortlens")(x)
    print(memory("VmHWM") - memory("VmRSS"))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone reports a peak that can be reset")
def test_creating_a_session_takes_no_memory_beyond_what_it_keeps() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8 << 20, "less than the copy of one weight of 16 MiB"


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
        lambda layer: setattr(layer.weight, "data", layer.weight.data.double()),
        lambda layer: setattr(layer.weight, "data", layer.weight.data[:, :-1].clone()),
        lambda layer: setattr(layer, "weight", torch.nn.Parameter(layer.weight * 3)),
        lambda layer: setattr(layer.bias, "data", torch.ones(1)),
    ],
    ids=["values", "dtype", "shape", "parameter", "broadcast"],
)
def test_without_guards_of_modules_changed_weights_are_noticed_nevertheless(change: Callable[[torch.nn.Linear], None]) -> None:
    layer, x = torch.nn.Linear(32, 32), torch.randn(2, 32)
    unguarded: Any = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
    with torch.no_grad():
        fast = torch.compile(torch.nn.Sequential(layer, torch.nn.ReLU()).eval(), backend="ortlens", options=unguarded)
        fast(x)
        change(layer)
        try:
            expected = layer(x).relu()
        except RuntimeError:
            with pytest.raises(RuntimeError):
                fast(x)
        else:
            torch.testing.assert_close(fast(x), expected)


def test_a_c_library_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_process, "_mallinfo2", lambda: None)
    lens = ortlens.Lens()
    torch.compile(torch.relu, backend=lens)(torch.rand(3))
    assert lens.sessions.held_bytes.isna().all()
