"""The shared fixtures do what the other tests count on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import conftest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_program_that_fails_shows_what_it_wrote(run_python: Callable[..., str]) -> None:
    with pytest.raises(AssertionError, match=r"(?s)exit status 1.*said before.*ZeroDivisionError"):
        run_python("print('said before'); 1 / 0")


def test_a_program_gets_its_arguments_and_an_empty_folder(run_python: Callable[..., str]) -> None:
    assert run_python("import os, sys; print(sys.argv[1:], os.listdir())", "a", "é").strip() == "['a', 'é'] []"


def test_what_inductor_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/no/such/folder")
    assert conftest.missing_for_inductor() == ["a C++ compiler", "Python.h"]


def test_nothing_is_lacking_where_all_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("shutil.which", lambda name: name if name == "g++" else None)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert conftest.missing_for_inductor() == []
