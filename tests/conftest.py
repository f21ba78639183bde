"""Shared by every test: nothing that one test compiles, records or sets may reach the next."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import offline

ROOT = Path(__file__).resolve().parents[1]
_KNOWN: dict[tuple[Any, ...], Any] = {}
"""What torch gave once; see `_quick_torch`."""

offline.block()

# One thread for each of several workers, before torch is imported anywhere: otherwise they fight for the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# There, commands under test would annotate the lines of this repository.
os.environ.pop("GITHUB_ACTIONS", None)

BROWSER = ROOT / "tests" / "browser"
_APART = {ROOT / "tests" / "providers": "onnxruntime_ggml", ROOT / "tests" / "language": "onnxruntime_genai"}
"""Tests in environments of their own, by the package that those have."""

# No deadline: a shared, busy machine is slow without anything being wrong. The same examples in each run: what fails is what was changed.
settings.register_profile("ortlens", deadline=None, derandomize=True)
settings.load_profile("ortlens")


def missing_for_inductor() -> list[str]:
    """What Inductor needs to compile for CPU and this machine lacks; empty when it can."""
    compiler = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
    headers = (Path(sysconfig.get_path("include")) / "Python.h").is_file()
    return [name for name, here in (("a C++ compiler", compiler), ("Python.h", headers)) if not here]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave unread what a selection by marks has no tests of: to import all takes a process a quarter of a minute."""
    chosen = set(config.option.markexpr.split(" and "))
    if collection_path == BROWSER:
        return True if "not slow" in chosen else None
    if package := _APART.get(collection_path):
        return None if find_spec(package) else True
    if collection_path.suffix != ".py" or BROWSER in collection_path.parents:
        return None
    text = collection_path.read_text(encoding="utf-8")
    return True if any(f"mark.{mark}" not in text for mark in chosen & {"serial", "slow", "soak"}) else None


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what drives a browser as slow; run it, and what is `timed`, once more on failure: other work may be in the way."""
    for item in items:
        drives_browser = BROWSER in item.path.parents
        if drives_browser:
            item.add_marker(pytest.mark.slow)
        if drives_browser or item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were run again, whether they passed then or not."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_line(f"run again: {report.nodeid}\n{report.longreprtext}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run end in time on a machine that is slow today."""
    parser.addoption(
        "--until", type=float, metavar="SECONDS", help="skip each test that would begin after this time, in seconds since 1970"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the time is not enough for, and what Inductor cannot compile here: a machine with Python alone has no compiler."""
    until = item.config.getoption("until")
    if until is not None and time.time() > until:
        pytest.skip("not run: the time of --until was over")
    if item.get_closest_marker("inductor") and (missing := missing_for_inductor()):
        pytest.skip(f"Inductor needs {' and '.join(missing)}. On Debian: apt-get install g++ python3-dev")


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the checkout."""
    return ROOT


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Run a program in a fresh interpreter, in an empty folder; a failure shows what the program wrote."""

    def run(program: str, *args: str, executable: str = sys.executable, limit_s: float = 300) -> str:
        # -X utf8: the output is read back as UTF-8 whatever the locale says.
        command = [executable, "-X", "utf8", "-c", program, *args]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=False, timeout=limit_s)
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def own_instances() -> Iterator[None]:
    """Begin and end without backends that are kept."""
    from ortlens import OrtBackend  # which loads torch

    OrtBackend.clear_cached_instances()
    yield
    OrtBackend.clear_cached_instances()


@pytest.fixture(autouse=True)
def _quick_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare tests what torch does again and again and no result depends on; not where a test measures.

    Dynamo times its guards behind a flushed cache, for a log, 20 ms per compilation. An export names all composite operators in
    `torch.ops`, 10 to 30 times per program, though they are named already. A conversion reads the schema of an ONNX operator at each node.
    """

    def once(owner: Any, name: str, key: Callable[..., tuple[Any, ...]]) -> None:  # noqa: ANN401 - a module or a class
        function = getattr(owner, name)

        def call(*args: object) -> object:
            place = (name, *key(*args))
            return _KNOWN[place] if place in _KNOWN else _KNOWN.setdefault(place, function(*args))

        monkeypatch.setattr(owner, name, call)

    if request.node.get_closest_marker("serial") is not None:
        return
    if (guards := sys.modules.get("torch._dynamo.guards")) is not None:
        monkeypatch.setattr(guards, "profile_guard_manager", lambda *_: 0.0)
    if (schemas := sys.modules.get("onnx_ir.schemas")) is not None:
        once(schemas.OpSignature, "from_op_schema", lambda schema: (schema.domain, schema.name, schema.since_version))
    if (utils := sys.modules.get("torch._export.utils")) is not None:
        registered = sys.modules["torch"]._C._dispatch_get_registrations_for_dispatch_key
        once(utils, "_materialize_cpp_cia_ops", lambda: tuple(registered("CompositeImplicitAutograd")))


@pytest.fixture(autouse=True)
def _no_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin with the same random numbers in any order, forget what Dynamo compiled, prove that no recorder is left watching."""
    monkeypatch.delenv("ONNXRT_DUMP_PATH", raising=False)
    offline.TRIED.clear()
    # A test that needs no torch must not pay for its import.
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    yield
    assert offline.TRIED == [], "the test tried to reach another machine"
    # A test that never compiled must not pay for the import of Dynamo.
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.reset()
    recorder = sys.modules.get("ortlens.trace.recorder")
    assert recorder is None or recorder.CURRENT.get() is None, "the test left a recorder watching"
