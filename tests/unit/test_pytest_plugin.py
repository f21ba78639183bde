"""The pytest plugin, in a pytest of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ortlens
from tests.packaging.test_doc_examples import python_blocks

ROOT = Path(__file__).parents[2]

SUITE = """
import pytest
import torch


def net(x):
    return torch.relu(x) + 1


def broken(x):
    x = torch.relu(x)
    torch._dynamo.graph_break()
    return x + 1


@pytest.mark.ortlens(max_breaks=0, max_recompiles=0, min_coverage=0.9)
def test_holds():
    torch.compile(net, backend="ortlens")(torch.ones(2))


@pytest.mark.ortlens(max_breaks=0)
def test_holds_again_although_it_was_compiled_before():
    torch.compile(net, backend="ortlens")(torch.ones(2))


@pytest.mark.ortlens(max_breaks=0)
def test_breaks():
    torch.compile(broken, backend="ortlens")(torch.ones(2))


@pytest.mark.ortlens(max_breaks=0)
class TestOfAClass:
    @pytest.mark.ortlens(max_breaks=1)
    def test_the_closest_marker_decides(self):
        torch.compile(broken, backend="ortlens")(torch.ones(2))

    def test_nothing_was_compiled(self):
        pass


@pytest.mark.ortlens(max_abs_err=1e-3)
def test_not_verified():
    torch.compile(net, backend="ortlens")(torch.ones(2))


@pytest.mark.ortlens(max_break=0)
def test_unknown_limit():
    pass


@pytest.mark.ortlens
def test_no_limit():
    pass


@pytest.mark.ortlens(baseline="missing.ortlens")
def test_missing_baseline():
    torch.compile(net, backend="ortlens")(torch.ones(2))


@pytest.mark.ortlens(max_breaks=0)
def test_own_failure_comes_first():
    raise ValueError("its own")


def test_fixture(ortlens_lens):
    torch.compile(net, backend="ortlens")(torch.ones(2))
    assert len(ortlens_lens.graphs) == 1


@pytest.mark.ortlens(max_breaks=0)
def test_fixture_and_marker(ortlens_lens):
    torch.compile(broken, backend="ortlens")(torch.ones(2))


def test_unmarked():
    torch.compile(broken, backend="ortlens")(torch.ones(2))
"""


def run_pytest(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", *arguments]
    # By its module: whether the entry point is installed is the wheel's matter.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "ortlens.pytest_plugin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_marker_and_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    out = run_pytest(tmp_path, "-rA", "--ortlens-dir", "captures")
    outcome = {
        line.split("::")[-1].split(" ")[0]: line.split(" ")[0]
        for line in out.splitlines()
        if line.startswith(("PASSED", "FAILED", "ERROR"))
    }
    assert outcome == {
        "test_holds": "PASSED",
        "test_holds_again_although_it_was_compiled_before": "PASSED",
        "test_breaks": "FAILED",
        "test_the_closest_marker_decides": "PASSED",
        "test_nothing_was_compiled": "FAILED",
        "test_not_verified": "FAILED",
        "test_unknown_limit": "FAILED",
        "test_no_limit": "FAILED",
        "test_missing_baseline": "FAILED",
        "test_own_failure_comes_first": "FAILED",
        "test_fixture": "PASSED",
        "test_fixture_and_marker": "FAILED",
        "test_unmarked": "PASSED",
    }
    for said in (
        "max_breaks: 1 graph break, 0 allowed: ",
        "test_suite.py:12",
        "max_breaks: not measured: nothing was compiled. To do: record a call of the compiled function to its end.",
        "max_abs_err: not measured: the results were not verified. To do: call lens.verify",
        "the marker ortlens does not take max_break; limits are given by name: max_breaks, max_recompiles, max_skipped, min_coverage",
        "the marker ortlens needs a limit",
        "ortlens cannot check: cannot load the capture",
        "ValueError: its own",
    ):
        assert said in out, said
    kept = sorted(path.name for path in (tmp_path / "captures").iterdir())
    assert "test_suite.py_test_breaks.html" in kept
    assert len(ortlens.load(tmp_path / "captures" / "test_suite.py_test_breaks.ortlens").breaks) == 1
    assert not any("unmarked" in name for name in kept)


def test_the_marker_is_registered_and_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text("import sys\ndef test_none():\n    assert not {'torch', 'pandas', 'numpy'} & set(sys.modules)\n")
    assert "1 passed" in run_pytest(tmp_path)
    assert "@pytest.mark.ortlens(max_breaks, max_recompiles" in run_pytest(tmp_path, "--markers")


@pytest.mark.slow
def test_the_example_of_the_docs(tmp_path: Path) -> None:
    (example,) = python_blocks((ROOT / "docs" / "ci.md").read_text(encoding="utf-8"))
    (tmp_path / "test_example.py").write_text(example.body)
    assert "2 passed" in run_pytest(tmp_path)
