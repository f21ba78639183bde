"""A feature whose package is missing names the line that installs it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from ortlens._optional import require
from ortlens.errors import OptionalDependencyError, OrtLensError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_missing_package_is_named_with_the_install_line() -> None:
    assert require("json.decoder", feature="The report") is json.decoder
    with pytest.raises(OptionalDependencyError) as caught:
        require("no_such_package_of_ours.inner", feature="lens.netron()")
    assert str(caught.value) == "lens.netron() needs no_such_package_of_ours, which is not installed: pip install no_such_package_of_ours"
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, OrtLensError)
    assert caught.value.name == "no_such_package_of_ours"


@pytest.mark.parametrize("missing", ["from json import a_name_that_left", "import a_name_that_left"])
def test_a_package_that_fails_to_import_is_not_called_missing(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_upgraded_xyz.py").write_text(missing, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionalDependencyError, match=r"does not import here: .*a_name_that_left.*--force-reinstall half_upgraded_xyz"):
        require("half_upgraded_xyz", feature="The report")
    sys.modules.pop("half_upgraded_xyz", None)
