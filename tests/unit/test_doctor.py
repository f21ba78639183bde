from __future__ import annotations

import dataclasses
import importlib
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from ortlens import _versions, doctor
from ortlens.backend.faults import register

if TYPE_CHECKING:
    from collections.abc import Callable


def _check(name: str) -> doctor.Check:
    return next(check for check in doctor.examine() if check.name == name)


def test_the_test_environment_can_do_the_main_job() -> None:
    checks = doctor.examine()
    assert doctor.is_ready(checks)
    assert len({check.name for check in checks}) == len(checks)
    assert {"python", "platform", *_versions.SUPPORTED, "numpy", "pandas", "backends", "ORT providers", "torch threads"} <= {
        c.name for c in checks
    }
    assert "CPUExecutionProvider" in _check("ORT providers").found


@pytest.mark.parametrize("name", ["torch", "pandas"])
def test_a_missing_package_is_an_error_with_the_pip_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(distribution: str, real: Callable[[str], str] = metadata.version) -> str:
        return real("not-" * (distribution == name) + distribution)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(_versions, "version", version)
    check = _check(name)
    assert check.status == "error"
    assert check.found.startswith("not installed")
    assert f"pip install {name}" in check.advice.replace("'", "")


def test_a_package_or_a_python_out_of_range_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_versions, "version", lambda name: "1.0" if name == "torch" else metadata.version(name))
    check = _check("torch")
    assert (check.status, check.found) == ("error", f"1.0 (supported: {_versions.SUPPORTED['torch']})")
    assert not doctor.is_ready(doctor.examine())
    monkeypatch.setattr(sys, "version_info", (3, 9, 0))
    assert doctor._python().status == "error"


def test_the_faults_of_the_installed_onnxruntime_are_counted() -> None:
    import onnxruntime

    check = _check("ORT faults")
    assert (check.status, check.advice) == ("info", "")
    known = len(register.faults_of(onnxruntime.__version__))
    assert check.found.startswith(f"{known} known wrong results of onnxruntime {onnxruntime.__version__}, {known} avoided")


def test_a_fault_that_nothing_avoids_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = dataclasses.replace(register.FAULTS[0], first="1.0.0", last=None, avoided=(), form="it adds wrongly")
    monkeypatch.setattr(register, "FAULTS", (fault, register.FAULTS[0]))
    check = _check("ORT faults")
    assert check.status == "warning"
    assert f"Not avoided: {fault.culprit}: it adds wrongly" in check.found
    assert "lens.verify" in check.advice
    monkeypatch.setattr("onnxruntime.__version__", "1.99.0")
    assert f"looked for in {register.MEASURED[0]} to {register.MEASURED[-1]}" in _check("ORT faults").found


def test_a_build_of_onnxruntime_that_the_backend_refuses_is_an_error(run_python: Callable[..., str]) -> None:
    told = run_python(
        "import sys, onnxruntime\n"
        "del onnxruntime.capi._pybind_state.OrtValue.from_dlpack\n"
        "from ortlens.cli.entry import main\n"
        "print(main(['doctor']), 'has no DLPack')\n"
    )
    assert told.splitlines()[-1] == "1 has no DLPack"
    assert told.count("has no DLPack") == 2


def test_two_builds_of_onnxruntime_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_versions, "onnxruntime_distributions", lambda: {"onnxruntime": "1.23", "onnxruntime-gpu": "1.23"})
    check = doctor._distributions()
    assert check.status == "warning"
    assert "pip uninstall onnxruntime onnxruntime-gpu" in check.advice


@pytest.mark.parametrize("names", [(), ("onnxrt",), ("onnxrt", "ortlens", "other")])
def test_backends_that_torch_does_not_find_are_a_warning(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [SimpleNamespace(name=name, group=group) for name in names])
    check = doctor._backends()
    assert check.status == ("ok" if "ortlens" in names else "warning")
    assert bool(check.advice) is ("ortlens" not in names)


@pytest.mark.parametrize(("module", "name"), [("onnxruntime", "ORT providers"), ("torch", "torch threads")])
def test_a_package_that_does_not_import_is_an_error(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(asked: str) -> object:
        if asked == module:
            raise OSError("libsomething.so.1: no such file")
        return importlib.import_module(asked)

    monkeypatch.setattr(doctor, "import_module", refuse)
    (check,) = (check for check in doctor.examine() if check.name == name)
    assert (check.status, check.advice) == ("error", f"pip install --force-reinstall {module}")
    assert "libsomething" in check.found


def test_features_say_what_is_missing_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FEATURES", {"drawings": ("numpy", "no-such-package", "nor-this-one"), "figures": ("numpy",)})
    drawings, figures = doctor._features()
    assert (drawings.name, drawings.status, drawings.found) == ("drawings", "warning", "missing: no-such-package, nor-this-one")
    assert drawings.advice == "pip install no-such-package nor-this-one"
    assert (figures.name, figures.status, figures.found) == ("figures", "ok", "numpy")
