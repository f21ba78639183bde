"""The face of the package: every public name resolves, and asking for a wrong one helps."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
from pathlib import Path

import pytest

import ortlens

LAZY_NAMES = sorted(ortlens._HOMES)


def test_all_is_the_lazy_names_and_the_version() -> None:
    assert sorted(ortlens.__all__) == sorted([*LAZY_NAMES, "__version__"])
    assert len(set(ortlens.__all__)) == len(ortlens.__all__)


def test_every_name_lives_where_the_table_says() -> None:
    def at_home(name: str) -> bool:
        home = importlib.import_module(ortlens._HOMES[name])
        thing = getattr(home, name)
        return getattr(ortlens, name) is thing and thing.__module__ == home.__name__

    assert [name for name in LAZY_NAMES if not at_home(name)] == []


def test_type_checkers_see_the_same_names_in_the_same_homes() -> None:
    tree = ast.parse(Path(inspect.getfile(ortlens)).read_text(encoding="utf-8"))
    guard = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in guard.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == ortlens._HOMES


def test_every_error_class_is_public() -> None:
    errors = importlib.import_module("ortlens.errors")
    classes = {name for name, thing in vars(errors).items() if inspect.isclass(thing) and thing.__module__ == errors.__name__}
    assert classes <= set(ortlens.__all__)


def test_dir_lists_the_public_names() -> None:
    assert set(ortlens.__all__) <= set(dir(ortlens))


def test_a_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(ortlens), "UsageError", raising=False)
    first = ortlens.UsageError
    assert vars(ortlens)["UsageError"] is first


def test_a_misspelt_name_is_answered_with_the_near_one() -> None:
    for wrong, near in (("explan", "explain"), ("Lenz", "Lens"), ("OrtBackendOption", "OrtBackendOptions")):
        with pytest.raises(AttributeError, match=f"no attribute '{wrong}'. Did you mean '{near}'?"):
            getattr(ortlens, wrong)


def test_a_name_like_no_other_is_answered_with_where_to_look() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'zzzzzz'\. dir\(ortlens\) lists the public names") as caught:
        ortlens.zzzzzz  # noqa: B018 - the look-up is what is tested
    assert caught.value.name == "zzzzzz"


def test_a_probe_for_a_name_is_no_error() -> None:
    assert not hasattr(ortlens, "__wrapped__")
    with pytest.raises(ImportError):
        exec("from ortlens import no_such_name")  # noqa: S102 - a statement that must fail, not a value


def test_the_metadata_tells_the_same_version() -> None:
    assert importlib.metadata.version("ortlens") == ortlens.__version__
