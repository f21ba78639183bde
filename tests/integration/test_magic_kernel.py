"""The magics in a real kernel, as a notebook has it, and in IPython on a terminal."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

manager = pytest.importorskip("jupyter_client.manager")
pexpect = pytest.importorskip("pexpect")  # comes with IPython

PATIENCE_S = 120
WIDGET = "application/vnd.jupyter.widget-view+json"
SET_UP = """\
%load_ext ortlens
import asyncio, time, torch
x = torch.randn(2, 4)
def f(a):
    return a * 2 + 1
fast = torch.compile(f, backend="ortlens")
def wait():
    print("waiting", flush=True)
    time.sleep(60)
"""


class Kernel:
    """A kernel, and what a cell put out."""

    def __init__(self, started: Any, client: Any) -> None:  # noqa: ANN401 - jupyter_client is annotated in part
        self._started = started
        self._client = client

    def run(self, cell: str, *, interrupt: bool = False) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
        """Run a cell; its reply, and what it published. With `interrupt`, interrupt it once it has printed "waiting"."""
        published: list[Mapping[str, Any]] = []

        def heard(message: Mapping[str, Any]) -> None:
            published.append({"type": message["msg_type"], **message["content"]})
            if interrupt and "waiting" in str(message["content"].get("text", "")):
                time.sleep(0.5)
                self._started.interrupt_kernel()

        reply = self._client.execute_interactive(cell, output_hook=heard, timeout=PATIENCE_S, allow_stdin=False)
        return reply["content"], published

    def says(self, expression: str) -> str:
        """What printing an expression gives."""
        reply, published = self.run(f"print(({expression}))")
        assert reply["status"] == "ok", reply
        return text_of(published).strip()


def text_of(published: list[Mapping[str, Any]]) -> str:
    """What was printed."""
    return "".join(each["text"] for each in published if each["type"] == "stream")


def errors_of(published: list[Mapping[str, Any]]) -> list[str]:
    """Errors that were shown."""
    return [each["ename"] for each in published if each["type"] == "error"]


def widgets_of(published: list[Mapping[str, Any]]) -> int:
    """Explorers that were shown."""
    return sum(WIDGET in each["data"] for each in published if each["type"] == "display_data")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Kernel]:
    folder = tmp_path_factory.mktemp("kernel")
    env = {**os.environ, "IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": str(root)}
    started, client = manager.start_new_kernel(kernel_name="python3", env=env, cwd=str(folder), startup_timeout=PATIENCE_S)
    try:
        made = Kernel(started, client)
        reply, published = made.run(SET_UP)
        assert reply["status"] == "ok", published
        yield made
    finally:
        client.stop_channels()
        started.shutdown_kernel(now=True)


@pytest.fixture(autouse=True)
def _forget(kernel: Kernel) -> None:
    kernel.run("torch.compiler.reset()")


def test_an_expression_opens_the_explorer_and_a_wrong_option_is_one_line(kernel: Kernel) -> None:
    reply, published = kernel.run("%ortlens --calls 1 -o lens f(x)")
    assert (reply["status"], widgets_of(published), errors_of(published)) == ("ok", 1, [])
    assert kernel.says("(lens.result == f(x)).all().item(), len(lens.sessions)") == "(True, 1)"
    reply, published = kernel.run("%ortlens --nope f(x)")
    assert (reply["status"], reply["ename"]) == ("error", "UsageError")
    assert text_of(published).startswith("UsageError: there is no option --nope")


def test_a_cell_that_awaits(kernel: Kernel) -> None:
    reply, published = kernel.run("%%ortlens -o lens\nawait asyncio.sleep(0.01)\nfast(x)\nawait asyncio.sleep(0.01)\n'done'")
    assert (reply["status"], widgets_of(published), errors_of(published)) == ("ok", 1, [])
    value, _summary, explorer = (each for each in published if each["type"] in ("execute_result", "display_data"))
    assert (value["data"]["text/plain"], WIDGET in explorer["data"]) == ("'done'", True)
    kernel.run("torch.compile(lambda a: a / 7, backend='ortlens')(x)")  # after the cell: not its own
    assert kernel.says("len(lens.graphs), len(lens.sessions)") == "(1, 1)"


def test_a_cell_that_awaits_and_raises(kernel: Kernel) -> None:
    reply, published = kernel.run("%%ortlens -o lens --report raised.html\nawait asyncio.sleep(0)\nfast(x)\n1 / 0")
    assert (reply["status"], reply["ename"]) == ("error", "ZeroDivisionError")
    assert errors_of(published) == ["ZeroDivisionError"]
    assert widgets_of(published) == 1
    assert kernel.says("len(lens.sessions), __import__('os').path.exists('raised.html')") == "(1, True)"


def test_a_cell_that_awaits_and_is_interrupted(kernel: Kernel) -> None:
    # Short sleeps: ipykernel sees an interrupt only once its loop wakes.
    cell = "%%ortlens -o lens\nfast(x)\nprint('waiting', flush=True)\nfor _ in range(600):\n    await asyncio.sleep(0.1)"
    reply, published = kernel.run(cell, interrupt=True)
    assert (reply["status"], reply["ename"]) == ("error", "CancelledError")
    assert errors_of(published) == ["CancelledError"]
    assert widgets_of(published) == 1
    assert kernel.says("len(lens.sessions)") == "1"
    kernel.run("%%ortlens -o after --quiet\ntorch.compile(lambda a: a / 7, backend='ortlens')(x)")
    assert kernel.says("[*after.nodes.target]") == "['aten.div.Tensor']"


def test_an_expression_that_is_interrupted(kernel: Kernel) -> None:
    kernel.run("def slow(a):\n    a = a + 1\n    wait()\n    return a")
    reply, published = kernel.run("%ortlens -o lens slow(x)", interrupt=True)
    assert (reply["status"], errors_of(published)) == ("error", ["KeyboardInterrupt"])
    assert kernel.says("type(lens).__name__") == "Lens"


LIVE_SET_UP = """\
import ortlens
y = torch.randn(64, 8)
layer = torch.nn.Linear(8, 8)
watched = ortlens.Lens(name="net")
watched_fast = torch.compile(lambda a: torch.fft.fft(layer(a).relu()).abs(), backend=watched, dynamic=False)
watched_fast(y)
"""
LOOP = """\
with watched.live(every=0.1):
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        watched_fast(y)
    watched_fast(y[:5])
"""


def test_one_output_is_drawn_over_while_the_loop_runs(kernel: Kernel) -> None:
    kernel.run(LIVE_SET_UP)
    reply, published = kernel.run(LOOP)
    assert (reply["status"], errors_of(published)) == ("ok", [])
    shown = [each for each in published if each["type"] in ("display_data", "update_display_data")]
    assert [each["type"] for each in shown[:2]] == ["display_data", "update_display_data"]
    assert len({each["transient"]["display_id"] for each in shown}) == 1
    assert 4 <= len(shown) <= 18
    assert not [each for each in published if each["type"] == "stream"]
    runs = [runs_of(each) for each in shown]
    assert runs == sorted(runs)
    assert len(set(runs)) > 3, "the figures move while the cell runs"
    last = shown[-1]["data"]["text/html"]
    assert "running for" in shown[-2]["data"]["text/html"]
    assert "net: ended after" in last
    assert "<b>1</b><span>recompile</span>" in last
    assert ">1 recompile</text>" in last
    assert '<polyline points="' in last
    assert "<script" not in last
    assert kernel.says("[each.name for each in __import__('threading').enumerate() if each.name == 'ortlens live']") == "[]"


def runs_of(shown: Mapping[str, Any]) -> int:
    return int(shown["data"]["text/plain"].split()[0].replace(",", ""))


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no pseudo terminals")
def test_ipython_on_a_terminal(root: Path, tmp_path: Path) -> None:
    env = {**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(root), "TERM": "dumb", "COLUMNS": "120", "LINES": "60"}
    arguments = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor", "--no-confirm-exit"]
    with contextlib.closing(
        pexpect.spawn(sys.executable, arguments, env=env, encoding="utf-8", timeout=PATIENCE_S, cwd=str(tmp_path))
    ) as it:
        it.setecho(state=False)
        for line in ("%load_ext ortlens", "import torch; x = torch.ones(2, 4)", "%ortlens --calls 1 -o lens torch.relu(x) + x"):
            it.expect(re.escape("]: "))
            it.sendline(line)
        it.expect("torch.compile with backend ortlens")
        it.expect("everything: all 2 operators")
        it.expect(re.escape("]: "))
        for line in ("%%ortlens -o cell", "torch.compile(torch.sin, backend='ortlens')(x).sum().item()", "", ""):
            it.sendline(line)
        it.expect(r"Out\[\d+\]: 6\.7")
        it.expect(r"In\[4\]: torch\.compile with backend ortlens")
