"""What a program does around a lens: forks, tasks, resets, exits, other lenses. And what a lens never does: open a connection."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
import torch

from ortlens import Lens, capture, explain, load
from ortlens.cli.entry import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

X = torch.linspace(-1, 1, 6)


def function(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


def test_a_reset_in_the_middle_loses_nothing() -> None:
    lens = Lens()
    compiled = torch.compile(function, backend=lens)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(X), function(X))
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
