"""The face of the package: every public name resolves, and asking for a wrong one helps."""

import ast
import importlib
import importlib.metadata
import inspect
import re
from pathlib import Path

import pytest

import ortlens

LAZY_NAMES = sorted(ortlens._HOMES)


def test_all_is_the_lazy_names_and_the_version() -> None:
    assert sorted(ortlens.__all__) == sorted([*LAZY_NAMES, "__version__"])
    assert len(set(ortlens.__all__)) == len(ortlens.__all__)
    assert set(ortlens.__all__) == {name for name in dir(ortlens) if not name.startswith("__")} | {"__version__"}
    assert importlib.metadata.version("ortlens") == ortlens.__version__


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("explan", "Did you mean explain?"),
        ("OrtBackendOption", "Did you mean OrtBackendOptions?"),
        ("zzzzzz", "lists the public names"),
    ],
)
def test_a_wrong_name_is_answered_with_the_near_one_or_where_to_look(wrong: str, message: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{wrong}'.*{re.escape(message)}") as caught:
        getattr(ortlens, wrong)
    assert caught.value.name == wrong
    assert not hasattr(ortlens, "__wrapped__")
    with pytest.raises(ImportError):
        exec("from ortlens import no_such_name")  # noqa: S102 - a statement that must fail, not a value
