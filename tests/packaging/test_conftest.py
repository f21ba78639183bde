"""The shared fixtures do what the other tests count on."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests import conftest, offline

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


def test_other_machines_cannot_be_reached() -> None:
    for place in (("192.0.2.1", 80), ("2001:db8::1", 80)):
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        with socket.socket(family) as made:
            for connect in (made.connect, made.connect_ex):
                with pytest.raises(offline.OfflineError, match="offline"):
                    connect(place)
    with pytest.raises(offline.OfflineError, match=r"example\.invalid"):
        socket.create_connection(("example.invalid", 80))
    assert len(offline.TRIED) == 5
    offline.TRIED.clear()


def test_this_machine_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(("localhost", server.getsockname()[1])):
        pass
    assert offline.TRIED == []
