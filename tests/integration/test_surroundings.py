"""What a program does around a lens: forks, tasks, resets, exits, other lenses. And what a lens never does: open a connection."""

import asyncio
import copy
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._python_dispatch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import ortlens
from ortlens import Lens, OrtBackend, capture, explain, load
from ortlens.cli.entry import main
from tests.integration.test_lens import broken

Run = Callable[..., Any]

X = torch.linspace(-1, 1, 6)


def test_a_reset_in_the_middle_loses_nothing() -> None:
    lens = Lens()
    compiled = torch.compile(broken, backend=lens)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(X), broken(X))
            torch._dynamo.reset()
    assert len(lens.graphs) == 6
    assert lens.breaks.occurrences.sum() == 3


def test_tasks_each_have_their_own_capture() -> None:
    async def one(operator: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
        with capture() as lens:
            await asyncio.sleep(0)
            torch.compile(operator, backend="ortlens")(X)
            await asyncio.sleep(0)
        names: list[str] = lens.graphs.name.tolist()
        return names

    async def both() -> list[list[str]]:
        return list(await asyncio.gather(one(torch.sin), one(torch.cos), one(torch.tan)))

    with torch.no_grad():  # out here: overlapping blocks inside of tasks would leave the thread without gradients
        assert asyncio.run(both()) == [["sin"], ["cos"], ["tan"]]
    assert torch.is_grad_enabled()


def cubes(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum()


def tangent(x: torch.Tensor) -> torch.Tensor:
    along: torch.Tensor = torch.func.jvp(cubes, (x,), (x,))[1]
    return along


@pytest.mark.parametrize(
    "derived",
    [torch.func.hessian(cubes), torch.func.jacrev(torch.sin), tangent],
    ids=["hessian", "jacrev", "jvp"],
)
def test_transforms_leave_no_level_open(derived: Callable[[torch.Tensor], torch.Tensor]) -> None:
    expected = derived(X)
    lens = explain(derived)(X)
    torch.testing.assert_close(lens.result, expected)
    torch.testing.assert_close(derived(X), expected)  # a level that was left open fails every later one of the process
    assert "lens_failed" not in set(lens.findings.rule)


EXITING = """
import sys, threading, torch, ortlens
lens = ortlens.Lens(journal="journal")
run = torch.compile(torch.nn.Linear(3, 3).eval(), backend=lens)
with torch.no_grad():
    run(torch.ones(2, 3))
    held = ortlens.capture()
    other = held.__enter__()
    torch.compile(torch.cos, backend="ortlens")(torch.ones(3))
print("done", flush=True)
"""


@pytest.mark.soak
def test_the_interpreter_exits_with_live_lenses(run_python: Callable[..., str]) -> None:
    """Once, test_os_refusals.py does it."""
    for _ in range(15):
        assert run_python(EXITING).splitlines() == ["done"]


def test_no_connection_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[object] = []

    def refused(*args: object, **_: object) -> None:
        opened.append(args)
        raise OSError("no connection here")

    for name in ("connect", "connect_ex", "sendto", "bind", "listen"):
        monkeypatch.setattr(socket.socket, name, refused)
    for name in ("create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refused)
    model, x = torch.nn.Linear(3, 3).eval(), torch.ones(2, 3)
    with torch.no_grad():
        lens = explain(model, calls=2)(x)
        lens.profile(x)
        lens.verify(x)
        lens.export_onnx(tmp_path / "m.onnx")
        lens.repro("p0", tmp_path / "repro", args=(x,))
    lens.report(tmp_path / "r.html")
    lens.netron("p0").save(tmp_path / "n.html")
    load(lens.save(tmp_path / "c.ortlens")).compare(lens)
    assert lens.summary()
    assert main(["doctor"]) == 0
    assert "torch" in capsys.readouterr().out
    assert opened == []


class Scaled(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's signature
        made = func(*args, **(kwargs or {}))
        return made * 3 if func is torch.ops.aten.sin.default else made


class Waves(torch.nn.Module):
    """A weight, and a count that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, 6))
        self.calls = torch.nn.Buffer(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return (x * self.weight).sin().relu() * self.calls


def along(run: Run) -> list[torch.Tensor | None]:
    with forward_ad.dual_level():
        return list(forward_ad.unpack_dual(run(forward_ad.make_dual(X, X + 1))))


def scaled(run: Run) -> Any:  # noqa: ANN401 - likewise
    with Scaled():
        return run(X)


def faked(run: Run) -> list[int]:
    with FakeTensorMode() as mode:
        made = run(mode.from_tensor(X))
        assert isinstance(made, FakeTensor)
        return list(made.shape)


SURROUNDINGS: dict[str, Callable[[Run], Any]] = {
    "forward_ad": along,
    "forward_ad without gradients": torch.no_grad()(along),
    "make_fx": lambda run: make_fx(run)(X)(X + 1),
    "make_fx of fake tensors": lambda run: make_fx(run, tracing_mode="fake")(X)(X + 1),
    "make_fx before dispatch": lambda run: make_fx(run, pre_dispatch=True)(X)(X + 1),
    "jit.trace": lambda run: torch.jit.trace(lambda x: run(x), (X,), check_trace=False)(X + 1),  # noqa: PLW0108 - takes no object
    "grad": lambda run: torch.func.grad(lambda x: run(x).sum())(X),
    "jvp": lambda run: torch.func.jvp(run, (X,), (X + 1,)),
    "vjp": lambda run: torch.func.vjp(run, X)[1](X + 1),
    "vmap": lambda run: torch.func.vmap(run)(torch.stack([X, X + 1])),
    "hessian": lambda run: torch.func.hessian(lambda x: run(x).sum())(X),
    "a mode": scaled,
    "FakeTensorMode": faked,
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_interprets_operators_sees_those_of_a_call(name: str) -> None:
    """A call under a tracer, a transform or a mode gives what the model gives; Dynamo itself refuses tracers of compiled functions."""
    call, model, function = SURROUNDINGS[name], Waves().requires_grad_(requires_grad=False), lambda x: (x * 2).sin().relu()
    program = torch.export.export(Waves(), (X,))
    backend = OrtBackend()
    runs: list[tuple[Run, Run]] = [(ortlens.freeze(function, X), function)]
    if "make_fx" not in name and name != "jit.trace":
        runs.append((torch.compile(function, backend=backend), function))
    writes = name in {"forward_ad", "forward_ad without gradients", "a mode"}  # others refuse writes to what they do not see
    runs += [(ortlens.freeze(Waves(), X), model), (Lens().compile_exported(program), copy.deepcopy(model))] if writes else []
    for run, eager in runs:
        for _ in range(2):
            torch.testing.assert_close(call(run), call(eager))
        with torch.no_grad():
            torch.testing.assert_close(run(X), eager(X))  # in a session again, with the same state


def test_dynamo_does_not_trace_a_frozen_callable() -> None:
    frozen, lens = ortlens.freeze(cubes, X), Lens("eager")
    compiled = torch.compile(lambda x: frozen(x + 1) + 1, backend=lens)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), cubes(X + 1) + 1)
    assert len(lens.graphs) == 2
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(frozen, backend="eager", fullgraph=True)(X)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_defaults_for_new_tensors_are_not_those_of_a_session(dtype: torch.dtype) -> None:
    """The device and dtype that the user sets are for the user's tensors, whether they are set before compilation or between calls."""
    x = torch.randn(3, 4)
    function = lambda x: ((x * 2) @ x.T, x.t().contiguous() + x.shape[0])  # noqa: E731 - compiled several times
    expected, frozen, backend = function(x), ortlens.freeze(function, x), OrtBackend()
    earlier = torch.compile(function, backend=backend)
    with torch.no_grad():
        earlier(x)
        try:
            torch.set_default_device("meta")
            torch.set_default_dtype(dtype)
            for run in (earlier, earlier, torch.compile(function, backend=backend, dynamic=True), frozen, ortlens.freeze(function, x)):
                torch.testing.assert_close(run(x), expected)
        finally:
            torch.set_default_device(None)
            torch.set_default_dtype(torch.float32)
    assert backend.execution_count == 4
