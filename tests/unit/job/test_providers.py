"""Execution providers and their libraries as the command line takes them, with a stand-in for ONNX Runtime."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from ortlens import cli
from ortlens._versions import ProviderLibrary
from ortlens.job import providers
from ortlens.job.request import backend_options


@pytest.fixture(autouse=True)
def _runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Install a stand-in, and packages: two have a library, one has both, one none."""
    found: dict[str, str] = {}

    def register(name: str, path: str) -> None:
        if name in found or "bad" in path:
            raise RuntimeError("FAIL:\nit is no library, or it is registered")
        found[name] = path

    good, bad = held = [ProviderLibrary("onnxruntime-one", "1", tmp_path / name) for name in ("good.so", "bad.so")]
    monkeypatch.setattr(providers, "libraries_of", {"onnxruntime-one": [good], "bad": [bad], "two": held, "none": []}.get)
    monkeypatch.setattr(providers, "provider_libraries", lambda: [good])
    runtime = Namespace(__version__="1.99", register_execution_provider_library=register)
    runtime.get_ep_devices = lambda: [Namespace(ep_name=name, ep_metadata={"library_path": path}) for name, path in found.items()]
    runtime.get_available_providers = lambda: ["CUDAExecutionProvider", *found]
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)


def test_a_provider_has_its_whole_name_and_its_options_as_text(tmp_path: Path) -> None:
    (path := tmp_path / "good.so").touch()
    named = map(providers.provider_from_text, ("One:path=C:/a=b,threads=2", "cuda"))
    found = backend_options(Namespace(provider=named, provider_library=["one=onnxruntime-one", f"one={path}"]))  # once more is no error
    assert found == {"preferred_execution_providers": [("one", {"path": "C:/a=b", "threads": "2"}), ("CUDAExecutionProvider", {})]}


WRONG = {
    "--provider no": "has CUDAExecutionProvider. To register the library of an installed package, add --provider-library one=onnx",
    "--provider no --provider-library one=onnxruntime-one": "has CUDAExecutionProvider, one\n",
    "--provider cuda:threads": "is not NAME or NAME:KEY=VALUE,...",
    "--provider cuda --option preferred_execution_providers=['CPU']": "leave one out",
    "--provider-library one": "write NAME=PATH or NAME=PACKAGE",
    "--provider-library one=none": "none has no library with an execution provider",
    "--provider-library one=two": "two has several libraries",
    "--provider-library one=nothing": "no file and no package nothing",
    "--provider-library one=lib/no.so": "there is no file ",
    "--provider-library one=bad": "onnxruntime 1.99 refuses it: FAIL: it is no library",
}


@pytest.mark.parametrize(("words", "said"), WRONG.items())
def test_what_is_wrong_is_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "torch:sin", *words.split()]) == 2
    found = capsys.readouterr().err
    assert (said in found, found.count("\n")) == (True, 1)
