"""The documentation names what there is, and nothing that is gone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import ortlens
from ortlens import _versions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_reference_describes_every_public_name_in_the_order_of_the_facade() -> None:
    described = re.findall(r"^::: ortlens\.(\w+)$", page("reference/api.md"), flags=re.MULTILINE)
    assert [*described, "__version__"] == list(ortlens.__all__)


def test_the_install_page_states_the_supported_versions() -> None:
    text = " ".join(page("index.md").split())
    torch = _versions.SUPPORTED["torch"]
    low, last = ".".join(map(str, torch.low)), f"{torch.high[0]}.{torch.high[1] - 1}"
    assert f"torch from {low} to {last}" in text
    for name, word in (("onnxruntime", "ONNX Runtime"), ("onnx", "onnx"), ("onnxscript", "onnxscript")):
        assert f"{word} from {'.'.join(map(str, _versions.SUPPORTED[name].low))}" in text


def test_the_install_page_names_every_extra_that_is_left_as_an_alias() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (line,) = re.findall(r"^The extras (.+) of earlier versions", page("index.md"), flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", line) == [name for name, items in settings["project"]["optional-dependencies"].items() if not items]
