"""`ortlens run`: scripts behave as under `python`, and leave a capture."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import ortlens
from tests.answers import answered

_COMPILES = """
import torch
fast = torch.compile(lambda x: x * 2 + 1, backend="eager")
print(fast(torch.ones(2)).tolist())
"""

_ENDED = "import os, signal, time; os.kill(os.getpid(), signal.{}); time.sleep(9)"

_POOL = """
import multiprocessing, torch
def work(n): return torch.compile(lambda x: x * n, backend="eager")(torch.ones(2)).tolist()
if __name__ == "__main__":
    with multiprocessing.get_context("{}").Pool(1) as pool:
        print(pool.map(work, [2, 3]))
        pool.close(), pool.join()
"""


class Script(NamedTuple):
    """A program, and what it leaves."""

    text: str
    prints: str = "[3.0, 3.0]\n"
    status: int = 0  # negative for a signal
    captures: int = 1  # those of its children included
    flags: tuple[str, ...] = ()  # of `ortlens run`
    arguments: tuple[str, ...] = ()


COMPILING = {
    "an error": Script(_COMPILES + "def deep(): raise ValueError('no luck')\ndeep()", status=1),
    "a request to end": Script(_COMPILES + "import sys; sys.stdout.flush()\n" + _ENDED.format("SIGTERM"), status=-signal.SIGTERM),
    "an exit without exit functions": Script(_COMPILES + "import os, sys\nsys.stdout.flush()\nos._exit(5)", status=5),
    "a thread that compiles at the end": Script(
        _COMPILES
        + """
import atexit, threading, time
atexit.register(print, "bye")
def later():
    time.sleep(0.3)
    print(fast(torch.ones(3)).tolist())
threading.Thread(target=later).start()
""",
        prints="[3.0, 3.0]\n[3.0, 3.0, 3.0]\nbye\n",
    ),
    "a process of its own": Script(
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', sys.argv[1]], capture_output=True, text=True).stdout, end='')",
        arguments=(_COMPILES,),
    ),
    "workers by fork": Script(_POOL.format("fork"), prints="[[2.0, 2.0], [3.0, 3.0]]\n"),
    "workers by spawn": Script(_POOL.format("spawn"), prints="[[2.0, 2.0], [3.0, 3.0]]\n"),
    "a model that it only calls": Script(
        """
import torch
class Small(torch.nn.Module):
    def __init__(self): super().__init__(); self.inner = torch.nn.Linear(2, 2)
    def forward(self, x): return self.inner(x).relu()
torch.manual_seed(0)
model = Small().eval()
with torch.no_grad(): print(*model(torch.ones(3, 2)).shape)
""",
        prints="3 2\n",
        flags=("--explain", "Small"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILING)
def test_a_script_that_compiles_leaves_a_capture(name: str, tmp_path: Path) -> None:
    script = COMPILING[name]
    (tmp_path / "script.py").write_text(script.text, encoding="utf-8")
    command = [sys.executable, "-m", "ortlens", "run", "-o", str(tmp_path / "run.ortlens"), *script.flags, "script.py", *script.arguments]
    watched = _run(command, tmp_path)
    assert (watched.returncode, watched.stdout) == (script.status, script.prints), watched.stderr
    captures = [ortlens.load(path) for path in tmp_path.glob("*.ortlens")]
    assert len(captures) == script.captures, watched.stderr
    assert all(len(capture.graphs) for capture in captures)


def test_a_script_has_its_arguments_name_path_and_folder_and_leaves_a_capture(tmp_path: Path) -> None:
    text = """
import argparse, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("-o"), parser.add_argument("--html"), parser.add_argument("rest", nargs="*")
if __name__ == "__main__":
    print(parser.parse_args(), sys.argv, __file__, sys.path[0], os.getcwd(), __spec__, __package__, __builtins__.__name__)
    import pickle
    class Local: pass
    print(type(pickle.loads(pickle.dumps(Local()))).__module__)
"""
    given = ["script.py", "-o", "own", "--html=own", "--", "-m", "x"]
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    plain = _run([sys.executable, *given], tmp_path)
    (tmp_path / "script.py").write_text(text + _COMPILES, encoding="utf-8")
    ours = ["-o", str(tmp_path / "run.ortlens"), "--json", "run.json", "--quiet"]
    watched = _run([sys.executable, "-m", "ortlens", "run", *ours, *given], tmp_path)
    assert (watched.returncode, watched.stdout) == (0, plain.stdout + "[3.0, 3.0]\n"), watched.stderr
    assert len(ortlens.load(tmp_path / "run.ortlens").graphs) == 1
    assert "Saved to" not in watched.stderr
    assert answered((tmp_path / "run.json").read_text(encoding="utf-8"))["graph_count"] == 1


@pytest.mark.slow
def test_a_module_a_backend_for_all_and_a_report(tmp_path: Path) -> None:
    package = tmp_path / "program"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys; print(sys.argv[1:], __package__, __spec__.name)\n" + _COMPILES, encoding="utf-8")
    ours = ["--html", "run.html", "--backend", "ortlens", "--option", "min_partition_nodes=2"]
    watched = _run([sys.executable, "-m", "ortlens", "run", *ours, "-m", "program", "--flag"], tmp_path)
    assert (watched.returncode, watched.stdout) == (0, "['--flag'] program program.__main__\n[3.0, 3.0]\n"), watched.stderr
    capture = ortlens.load(tmp_path / "program.ortlens")
    assert capture.captured().backend == "ortlens"
    assert capture.graphs.coverage.tolist() == [1.0]
    assert "everything: all 2 operators" in watched.stderr
    assert (tmp_path / "run.html").stat().st_size > 10_000


@pytest.mark.slow
def test_an_interrupt_from_outside_keeps_what_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_COMPILES + "import sys, time\nprint('ready', flush=True)\ntime.sleep(60)", encoding="utf-8")
    command = [sys.executable, "-m", "ortlens", "run", "script.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "ready" in [running.stdout.readline().strip() for _ in range(2)]
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=60) == -signal.SIGINT
    assert len(ortlens.load(tmp_path / "script.ortlens").graphs) == 1


@pytest.mark.parametrize(
    ("text", "typed", "flags"),
    [
        ("import sys\nsys.stdout = None", "", ()),
        ("import sys\nsys.stdout.close(), sys.stderr.close()", "", ()),
        ("import os\nos.close(1)", "", ()),
        ("print(sorted(name for name in dir() if name.startswith('__')), __cached__, __annotations__)", "", ()),
        ("print('x')\nraise BrokenPipeError('of the script')", "", ()),
        ("raise SystemExit(3)", "", ()),
        ("import sys; sys.exit('no luck')", "", ()),
        ("x = = 1", "", ()),
        (_ENDED.format("SIGINT"), "", ()),
        ("import sys\ndef hook(*error): raise RuntimeError(sys.exc_info())\nsys.excepthook = hook\n1 / 0", "", ()),
        ("import sys\nsys.excepthook = lambda *error: sys.exit(7)\n1 / 0", "", ()),
        ("import faulthandler, os, signal\nprint(faulthandler.is_enabled(), flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)", "", ()),
        ("here = 41\nbreakpoint()\nprint('after', here)", "p here + 1\nhere = 7\nc\n", ()),
        ("here = 41\nhere += 1\nprint(here)", "b 2\nc\np 'there'\nc\nq\n", ("-m", "pdb")),
        ("import cProfile\nwith cProfile.Profile() as found: print(sorted([2, 1]))\nprint(any(found.getstats()))", "", ()),
        ("print(1)", "", ("-m", "cProfile", "-o", "profile.out")),
    ],
)
def test_odd_scripts_end_as_under_python(text: str, typed: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    plain = _run([sys.executable, *flags, "script.py"], tmp_path, typed)
    watched = _run([sys.executable, "-m", "ortlens", "run", *flags, "script.py"], tmp_path, typed)
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout)
    assert watched.stderr.startswith(plain.stderr.partition("Current thread")[0])  # a crash names its address
    assert "unexpected" not in watched.stderr
    assert not list(tmp_path.glob("*.ortlens")), "nothing was compiled"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "which script?"),
        (["none.py"], "none.py does not exist"),
        (["a.b"], "a module is run with -m"),
        (["-m", "no_such_module"], "no module no_such_module"),
        (["--option", "x=1", "script.py"], "add --backend ortlens"),
        (["--backend", "ortlens", "--option", "min_partition_node=1", "script.py"], "min_partition_nodes"),
        (["--backend", "eager", "--option", "x=1", "script.py"], "leave one of them out"),
        (["-o", "nowhere/run.ortlens", "script.py"], "there is no folder"),
    ],
)
def test_a_slip_is_reported_before_the_script_runs(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ortlens.cli.entry import main

    (tmp_path / "script.py").write_text("raise SystemExit('ran')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert main(["run", *arguments]) == 2
    assert says in capsys.readouterr().err


def _run(command: list[str], folder: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    return subprocess.run(command, cwd=folder, input=typed, capture_output=True, text=True, check=False, timeout=300, env=environment)
