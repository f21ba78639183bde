"""Exceptions in the source are explained; what is declared, pinned, installed and documented is one and the same."""

import re
import tomllib
from collections import Counter
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import ortlens
from ortlens import _versions, doctor

ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE))
SOURCES = sorted((ROOT / "ortlens").rglob("*.py"))

# An exception in the source: its code, then a dash or a comment sign, then the reason, all on the line.
BARE_EXCEPTION = re.compile(
    r"# noqa(?!: [A-Z]+[0-9]+(?:, ?[A-Z]+[0-9]+)*\s+[-#]\s*\S)"
    r"|# type: ignore(?!\[[a-z, -]+\]\s+[-#]\s*\S)"
    r"|# pragma: no cover(?!\s+-\s*\S)"
)


def test_every_exception_in_the_source_has_a_code_and_a_reason() -> None:
    numbered = ((path, number, line) for path in SOURCES for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    bare = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for path, number, line in numbered if BARE_EXCEPTION.search(line)]
    assert bare == []


def test_an_exception_without_a_reason_is_seen() -> None:
    bare = ["x = 1  # noqa", "x = 1  # noqa: E501", "x = 1  # type: ignore[union-attr]", "x = 1  # pragma: no cover"]
    explained = [
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
    # Nothing may hide behind an extra again, but what few need: a cluster, which a laptop has not, and completion in
    # shells. The other names are kept for old install lines alone.
    extras = SETTINGS["project"]["optional-dependencies"]
    needed = {name: [re.split(r"[<>=]", item, maxsplit=1)[0] for item in items] for name, items in extras.items()}
    assert needed == {"completion": ["argcomplete"], "dask": ["distributed"], "notebook": [], "report": [], "weights": [], "all": []}


def test_constraints_pin_everything_that_is_declared_and_hold_nothing_else() -> None:
    declared = [*SETTINGS["project"]["dependencies"]]
    declared += [item for group in SETTINGS["dependency-groups"].values() for item in group if isinstance(item, str)]
    names = {re.split(r"[<>=\[ ]", item, maxsplit=1)[0].lower() for item in declared} - {"ortlens"}
    assert names - {pin.lower().replace("_", "-") for pin in PINS} == set()
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    odd = [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line)]
    assert odd == []


def test_the_tests_run_with_the_pinned_runtimes() -> None:
    for name in _versions.SUPPORTED:
        assert version(name).partition("+")[0] == PINS[name]


def test_the_declared_ranges_are_the_ones_checked_at_run_time() -> None:
    declared = {item.partition(";")[0].strip() for item in requires("ortlens") or ()}
    for name, supported in _versions.SUPPORTED.items():
        specifiers = str(supported).split(",")
        assert {f"{name}{','.join(order)}" for order in (specifiers, specifiers[::-1])} & declared, name


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_reference_describes_every_public_name_in_the_order_of_the_facade() -> None:
    overview = page("reference/api.md")
    pages = re.findall(r"^\| \[.+?\]\((\w+\.md)\)", overview, flags=re.MULTILINE)
    described = [name for one in pages[:-1] for name in re.findall(r"^::: ortlens\.(\w+)$", page(f"reference/{one}"), flags=re.MULTILINE)]
    assert [*described, "__version__"] == list(ortlens.__all__)
    assert re.findall(r"\[ortlens\.(\w+)\]", overview) == described


def test_the_install_page_states_the_supported_versions() -> None:
    text = " ".join(page("index.md").split())
    torch = _versions.SUPPORTED["torch"]
    assert torch.high is not None
    low, last = ".".join(map(str, torch.low)), f"{torch.high[0]}.{torch.high[1] - 1}"
    assert f"torch from {low} to {last}" in text
    for name, word in (("onnxruntime", "ONNX Runtime"), ("onnx", "onnx"), ("onnxscript", "onnxscript")):
        assert f"{word} from {'.'.join(map(str, _versions.SUPPORTED[name].low))}" in text


def test_the_install_page_names_every_extra_that_is_left_as_an_alias() -> None:
    (line,) = re.findall(r"^The extras (.+) of earlier versions", page("index.md"), flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", line) == [name for name, items in SETTINGS["project"]["optional-dependencies"].items() if not items]


def test_no_two_classes_have_one_name() -> None:
    """But for the errors that the loader of saved folders has for where ortlens is not installed, inside of a `try`."""
    texts = (path.read_text(encoding="utf-8") for path in SOURCES)
    classes = Counter(name for text in texts for name in re.findall(r"^class (\w+)", text, flags=re.MULTILINE))
    assert {name for name, count in classes.items() if count > 1} == set()
