"""The rules that CI claims to check are switched on, and their exceptions stay few and explained."""

from __future__ import annotations

import re
import sys
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

from ortlens import _versions, doctor

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
SETTINGS: dict[str, Any] = tomllib.loads(PYPROJECT)
TOOL: dict[str, Any] = SETTINGS["tool"]
PINS = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE))
SOURCES = sorted((ROOT / "ortlens").rglob("*.py"))

# A rule that is switched off in pyproject.toml stands alone on its line, with the reason behind it.
SWITCHED_OFF = re.compile(r'^  "(?P<rule>[A-Z]+[0-9]*)", +# (?P<reason>\S.+)$', flags=re.MULTILINE)

# An exception in the source: its code, then a dash or a comment sign, then the reason, all on the line.
BARE_EXCEPTION = re.compile(
    r"# noqa(?!: [A-Z]+[0-9]+(?:, ?[A-Z]+[0-9]+)*\s+[-#]\s*\S)"
    r"|# type: ignore(?!\[[a-z, -]+\]\s+[-#]\s*\S)"
    r"|# pragma: no cover(?!\s+-\s*\S)"
)


def test_ruff_checks_everything_with_few_exceptions() -> None:
    lint = TOOL["ruff"]["lint"]
    assert lint["select"] == ["ALL"]
    assert len(lint["ignore"]) <= 15
    assert "extend-ignore" not in lint


def test_every_rule_that_is_off_has_its_reason() -> None:
    lint = TOOL["ruff"]["lint"]
    off = [*lint["ignore"], *(rule for rules in lint["per-file-ignores"].values() for rule in rules)]
    explained = [match["rule"] for match in SWITCHED_OFF.finditer(PYPROJECT)]
    assert explained == off


def test_no_rule_is_off_for_the_whole_package() -> None:
    patterns = TOOL["ruff"]["lint"]["per-file-ignores"]
    elsewhere = ("{tests,", "tests/", "benchmarks/", "notebooks/")
    folders = [pattern for pattern in patterns if "*" in pattern and not pattern.startswith(elsewhere)]
    # Two rooms, one rule: the ones that handle untyped values of torch and of the user's functions.
    # And the one package that is there to touch private names of torch.
    assert {pattern: patterns[pattern] for pattern in folders} == {
        "ortlens/backend/**/*.py": ["ANN401"],
        "ortlens/lens/**/*.py": ["ANN401"],
        "ortlens/_torch/*.py": ["ANN401", "SLF001"],
    }


def test_the_limits_of_the_linter_are_the_agreed_ones() -> None:
    assert TOOL["ruff"]["line-length"] == 140
    assert TOOL["ruff"]["lint"]["mccabe"]["max-complexity"] == 10
    assert TOOL["ruff"]["lint"]["pydocstyle"]["convention"] == "google"


def test_types_are_checked_strictly() -> None:
    assert TOOL["mypy"]["strict"] is True
    assert "ortlens" in TOOL["mypy"]["files"]
    assert "ignore-without-code" in TOOL["mypy"]["enable_error_code"]
    relaxed = [module for override in TOOL["mypy"]["overrides"] for module in override["module"]]
    assert not [module for module in relaxed if module.startswith("ortlens")]


def test_tests_are_run_strictly() -> None:
    options = TOOL["pytest"]["ini_options"]
    assert options["filterwarnings"][0] == "error"
    assert options["xfail_strict"] is True
    assert {"--strict-markers", "--strict-config"} <= set(options["addopts"])
    assert TOOL["coverage"]["run"]["branch"] is True


def test_a_warning_that_is_let_through_names_its_message_or_its_module() -> None:
    for entry in TOOL["pytest"]["ini_options"]["filterwarnings"][1:]:
        _, message, category, module = (*entry.split(":"), "", "", "")[:4]
        assert message or module, entry
        assert category, entry


def test_the_coverage_gates_are_the_agreed_ones() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--include='ortlens/trace/*,ortlens/analysis/*' --fail-under=95" in makefile
    assert "--omit='ortlens/trace/*,ortlens/analysis/*' --fail-under=85" in makefile


def test_every_exception_in_the_source_has_a_code_and_a_reason() -> None:
    numbered = ((path, number, line) for path in SOURCES for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    bare = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for path, number, line in numbered if BARE_EXCEPTION.search(line)]
    assert bare == []


def test_an_exception_without_a_reason_is_seen() -> None:
    bare = [
        "x = 1  # noqa",
        "x = 1  # noqa: E501",
        "x = 1  # type: ignore",
        "x = 1  # type: ignore[union-attr]",
        "x = 1  # pragma: no cover",
    ]
    explained = [
        "x = 1  # noqa: E501 - a table reads best in one line",
        "x = 1  # noqa: E501, ANN401 - two of them",
        "x = 1  # type: ignore[union-attr]  # the line above rules None out",
        "x = 1  # pragma: no cover - needs a GPU",
    ]
    assert [line for line in [*bare, *explained] if BARE_EXCEPTION.search(line)] == bare


def test_no_file_is_named_for_want_of_a_name() -> None:
    vague = {"utils", "util", "helpers", "helper", "manager", "handler", "common", "misc"}
    assert [path for path in SOURCES if path.stem in vague] == []


def test_one_install_brings_every_feature() -> None:
    declared = {re.split(r"[<>=]", item, maxsplit=1)[0] for item in SETTINGS["project"]["dependencies"]}
    assert {name for names in doctor.FEATURES.values() for name in names} - declared == set()
    # Nothing may hide behind an extra again, but what few need: a cluster, which a laptop has not, and the 50 MB behind one format of
    # `ortlens export`. The other names are kept for old install lines alone.
    extras = SETTINGS["project"]["optional-dependencies"]
    needed = {name: [re.split(r"[<>=]", item, maxsplit=1)[0] for item in items] for name, items in extras.items()}
    assert needed == {"dask": ["distributed"], "parquet": ["pyarrow"], "notebook": [], "report": [], "weights": [], "all": []}


def test_constraints_pin_everything_that_is_declared() -> None:
    declared = [*SETTINGS["project"]["dependencies"]]
    declared += [item for group in SETTINGS["dependency-groups"].values() for item in group if isinstance(item, str)]
    names = {re.split(r"[<>=\[ ]", item, maxsplit=1)[0].lower() for item in declared} - {"ortlens"}
    assert names - {pin.lower().replace("_", "-") for pin in PINS} == set()


def test_constraints_hold_versions_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    odd = [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line)]
    assert odd == []
    assert PINS["torch"] == "2.13.0"


def test_the_tests_run_with_the_pinned_runtimes() -> None:
    for name in _versions.SUPPORTED:
        assert version(name).partition("+")[0] == PINS[name]


def test_the_declared_ranges_are_the_ones_checked_at_run_time() -> None:
    declared = {item.partition(";")[0].strip() for item in requires("ortlens") or ()}
    for name, supported in _versions.SUPPORTED.items():
        specifiers = str(supported).split(",")
        assert {f"{name}{','.join(order)}" for order in (specifiers, specifiers[::-1])} & declared, name
