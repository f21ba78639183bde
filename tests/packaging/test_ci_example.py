"""The workflow in docs/ci.md: its commands exist, and it does what the page says, both where limits hold and where one does not."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import ortlens
from ortlens.cli import entry
from tests.packaging.test_doc_examples import blocks_of

ROOT = Path(__file__).resolve().parents[2]
BROKEN = """
import torch
def net(x):
    x = torch.relu(x)
    torch._dynamo.graph_break()
    return x + 1
"""


def steps() -> list[dict[str, Any]]:
    (workflow,) = (block.body for block in blocks_of((ROOT / "docs" / "ci.md").read_text(encoding="utf-8")) if block.language == "yaml")
    (job,) = yaml.safe_load(workflow)["jobs"].values()
    found: list[dict[str, Any]] = job["steps"]
    return found


def script(name: str) -> str:
    (found,) = (step["run"] for step in steps() if step.get("name") == name)
    text: str = found
    return text


def test_every_command_of_the_workflow_parses() -> None:
    lines = [line.strip("()") for step in steps() for line in step.get("run", "").splitlines() if "ortlens " in line]
    commands = [line[line.index("ortlens ") :].partition(" || ")[0].rstrip(")") for line in lines if "pip install" not in line]
    assert len(commands) == 3
    for command in commands:
        entry.parser().parse_args(shlex.split(command)[1:])


def test_the_artifact_and_the_summary_hold_what_the_steps_write() -> None:
    (artifact,) = (step["with"]["path"].split() for step in steps() if "upload-artifact" in step.get("uses", ""))
    written = script("Record") + script("Check")
    assert [name for name in artifact if name not in written] == []
    assert "--markdown check.md" in script("Check")
    (upload,) = (step["with"]["sarif_file"] for step in steps() if "upload-sarif" in step.get("uses", ""))
    assert f"--sarif {upload}" in script("Check")
    assert script("Job summary") == 'cat check.md >> "$GITHUB_STEP_SUMMARY"'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with its base branch inside, and `ortlens` on the path."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "mymodels.py").write_text(BROKEN.replace("    torch._dynamo.graph_break()\n", ""))
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "ortlens"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ortlens "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run(name: str, checkout: Path) -> tuple[int, list[str]]:
    """The exit code of a step, and its annotations."""
    environment = {
        **os.environ,
        "PATH": f"{checkout / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(checkout / "summary.md"),
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(checkout),
    }
    # As GitHub runs a step.
    command = ["/bin/bash", "-e", "-c", script(name)]
    done = subprocess.run(command, cwd=checkout, env=environment, check=False, timeout=300, stderr=subprocess.PIPE, text=True)
    return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("::")]


@pytest.mark.slow
def test_a_graph_break_fails_the_job_and_is_in_the_summary_and_on_its_line(checkout: Path) -> None:
    (checkout / "mymodels.py").write_text(BROKEN)
    assert run("Record", checkout) == (0, [])
    assert (checkout / "report.html").stat().st_size > 10_000
    code, annotations = run("Check", checkout)
    assert code == 1
    (shown,) = (line for line in annotations if line.startswith("::error file=mymodels.py,line=5,title=ortlens%3A graph break::"))
    assert "max_breaks: 1 graph break, 0 allowed" in shown
    (found,) = json.loads((checkout / "check.sarif").read_text())["runs"]
    assert [item["level"] for item in found["results"] if item["ruleId"] == "break"] == ["error"]
    assert run("Job summary", checkout) == (0, [])
    summary = (checkout / "summary.md").read_text(encoding="utf-8")
    assert "| ❌ | `max_breaks` | 1 graph break, 0 allowed: " in summary
    assert "| ❌ | `baseline: breaks` | 1 worse than in the baseline" in summary
    assert len(ortlens.load(checkout / "run.ortlens").breaks) == 1
