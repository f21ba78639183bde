"""The files around the code (workflows, issue forms, hooks) parse, and name commands, files and versions that exist."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from ortlens import _versions
from ortlens.cli.entry import commands_of, parser

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
PUBLISHED = "pypa/gh-action-pypi-publish"


def loaded(path: Path) -> dict[Any, Any]:
    parsed = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(parsed, dict), path
    return parsed


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in loaded(path)["jobs"].values():
        yield from job["steps"]


def missing(text: str) -> list[str]:
    """Commands of ours that a text calls and that are not there."""
    commands = commands_of(parser())
    made = [f"make {name}" for name in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, flags=re.MULTILINE) if name not in TARGETS]
    asked = [f"ortlens {name}" for name in re.findall(r"(?:`|: |of )ortlens ([a-z]+)", text) if name not in commands]
    named = re.findall(r"(?<![\w/.])((?:\.ci|tests|docs|ortlens|benchmarks|notebooks)(?:/[\w.-]+)+|frontend/?)(?![\w*])", text)
    return [*made, *asked, *(name for name in named if not (ROOT / name.rstrip(".")).exists())]


def test_there_are_workflows_and_forms() -> None:
    assert {path.name for path in WORKFLOWS} >= {"ci.yml", "release.yml"}
    assert len(FORMS) >= 2


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_what_exists_and_may_only_read(path: Path) -> None:
    assert loaded(path)["permissions"] == {"contents": "read"}
    assert [found for step in steps(path) for found in missing(step.get("run", ""))] == []
    assert all(("run" in step) != ("uses" in step) for step in steps(path))
    assert all(re.fullmatch(r"[\w.-]+/[\w./-]+@[\w./-]+", step["uses"]) for step in steps(path) if "uses" in step)
    assert all("timeout-minutes" in job for job in loaded(path)["jobs"].values())


def test_ci_runs_the_same_command_as_everywhere_else() -> None:
    runs = [step.get("run") for step in steps(ROOT / ".github" / "workflows" / "ci.yml")]
    assert ".ci/run" in runs
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_ci_covers_both_ends_of_the_supported_versions_of_torch() -> None:
    matrix = loaded(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["versions"]["strategy"]["matrix"]
    supported = _versions.SUPPORTED["torch"]
    assert matrix["torch"][0] == ".".join(map(str, supported.low))
    assert matrix["torch"][-1] == f"{supported.high[0]}.{supported.high[1] - 1}"


def test_a_release_is_checked_attested_and_published_without_a_secret() -> None:
    path = ROOT / ".github" / "workflows" / "release.yml"
    text = path.read_text(encoding="utf-8")
    assert "secrets." not in text
    uses = [step.get("uses", "").partition("@")[0] for step in steps(path)]
    assert uses.index("actions/attest-build-provenance") < uses.index(PUBLISHED)
    assert any("twine check --strict" in step.get("run", "") for step in steps(path))
    (publish,) = (job for job in loaded(path)["jobs"].values() if any(PUBLISHED in step.get("uses", "") for step in job["steps"]))
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_is_whole_and_names_what_exists(path: Path) -> None:
    form = loaded(path)
    assert {"name", "description", "body"} <= set(form)
    fields = [item for item in form["body"] if item["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert missing(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", ["bug.yml", "performance.yml"])
def test_a_problem_is_reported_with_doctor_and_a_capture(name: str) -> None:
    fields = {item.get("id"): item for item in loaded(ROOT / ".github" / "ISSUE_TEMPLATE" / name)["body"]}
    assert "ortlens doctor" in fields["doctor"]["attributes"]["label"]
    assert fields["doctor"]["validations"]["required"] is True
    assert "lens.save(" in fields["capture"]["attributes"]["description"]


def test_the_hooks_call_tools_of_the_development_environment() -> None:
    hooks = [hook for repo in loaded(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    tools = {hook["id"]: re.match(r"\.venv/bin/([\w-]+)", hook["entry"]) for hook in hooks}
    assert {"ruff", "ruff-format", "mypy", "lint-imports"} <= set(tools)
    owners = {"ruff": "ruff", "mypy": "mypy", "lint-imports": "import-linter"}
    for tool in tools.values():
        assert tool is not None
        scripts = {Path(file).name for file in distribution(owners[tool[1]]).files or ()}
        assert tool[1] in scripts


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", ".github/pull_request_template.md"])
def test_the_page_for_a_first_change_names_what_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert missing(text) == []
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("text", ["make no-such-target", "run tests/no_such_file.py", "the output of ortlens dokter"])
def test_a_command_that_is_gone_is_seen(text: str) -> None:
    assert missing(text)
