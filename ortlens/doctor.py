"""What is installed, whether it fits, and how to get what is missing. Returns data; the command line prints it."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens import _versions
from ortlens._process import usable_cores
from ortlens.errors import OrtLensError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Status: TypeAlias = Literal["ok", "info", "warning", "error"]

BACKENDS = ("ortlens", "onnxrt")  # names under which `torch.compile` finds the backend once ortlens is installed
_GROUP = "torch_dynamo_backends"
FEATURES = {
    "notebook packages": ("anywidget", "ipython", "ipywidgets", "traitlets"),
    "ONNX drawings": ("netron",),
    "pages": ("jinja2",),
    "report figures": ("matplotlib",),
    "safetensors files": ("safetensors",),
}
"""Features that need packages of their own. All of them are dependencies; `pip install --no-deps` leaves them out."""

_MIN_PYTHON = (3, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status  # `ok`, `info` (a fact without judgement), `warning` (a feature is missing) or `error` (the main job cannot run)
    found: str
    advice: str = ""  # what to do; empty when nothing is to be done


def examine() -> tuple[Check, ...]:
    """Check this Python and everything that ortlens depends on, in reading order."""
    return (
        _python(),
        Check(name="platform", status="info", found=f"{platform.platform()}, {os.cpu_count()} processors"),
        *_packages(),
        _distributions(),
        _backends(),
        _tried(
            "ORT providers",
            lambda: ", ".join(import_module("onnxruntime").get_available_providers()),
            "onnxruntime does not import: {error}",
            "pip install --force-reinstall onnxruntime",
        ),
        # Versions may fit, and the build still lack what the backend asks onnxruntime for when it is imported.
        _tried(
            "backend loads",
            lambda: "all parts" if import_module("ortlens.backend.compiler") else "",
            "{kind}: {error}",
            "pip install --force-reinstall onnxruntime onnx onnxscript, or another build of onnxruntime",
        ),
        *_faults(),
        _tried(
            "torch threads",
            lambda: f"{import_module('torch').get_num_threads()} of {usable_cores()} usable processors",
            "torch does not import: {error}",
            "pip install --force-reinstall torch",
            status="info",
        ),
        *_features(),
    )


def is_ready(checks: tuple[Check, ...]) -> bool:
    """Tell whether the main job can run, a PyTorch model through ONNX Runtime: no check is an error."""
    return all(check.status != "error" for check in checks)


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] >= _MIN_PYTHON:
        return Check(name="python", status="ok", found=found)
    return Check(name="python", status="error", found=found, advice="ortlens needs Python 3.10 or later")


def _packages() -> Iterator[Check]:
    here = _versions.installed()
    for name, supported in _versions.SUPPORTED.items():
        found = f"{here.get(name, 'not installed')} (supported: {supported})"
        try:
            _versions.check_supported(name)
        except OrtLensError as err:
            yield Check(name=name, status="error", found=found, advice=str(err))
        else:
            yield Check(name=name, status="ok", found=found)
    yield from (_plain_package(name) for name in ("numpy", "pandas"))


def _plain_package(name: str) -> Check:
    try:
        return Check(name=name, status="ok", found=metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(name=name, status="error", found="not installed", advice=f"pip install {name}")


def _distributions() -> Check:
    names = tuple(_versions.onnxruntime_distributions())
    if len(names) <= 1:
        return Check(name="onnxruntime builds", status="ok", found=", ".join(names) or "none")
    advice = f"they overwrite each other's files; keep only one: pip uninstall {' '.join(names)}, then pip install {names[-1]}"
    return Check(name="onnxruntime builds", status="warning", found=", ".join(names), advice=advice)


def _backends() -> Check:
    registered = {point.name for point in metadata.entry_points(group=_GROUP)}
    missing = [name for name in BACKENDS if name not in registered]
    if not missing:
        return Check(name="backends", status="ok", found=f"{', '.join(BACKENDS)}: known to torch.compile without an import")
    advice = "pip install ortlens (running from a source folder is not enough); ortlens.Lens() works anyway"
    return Check(name="backends", status="warning", found=f"not registered: {', '.join(missing)}", advice=advice)


def _tried(name: str, find: Callable[[], str], failed: str, advice: str, *, status: Status = "ok") -> Check:
    """Check what imports a package."""
    try:
        return Check(name=name, status=status, found=find())
    except Exception as err:  # noqa: BLE001 - a broken shared library raises whatever it likes; that is what we are here to find out
        return Check(name=name, status="error", found=failed.format(kind=type(err).__name__, error=err), advice=advice)


def _faults() -> Iterator[Check]:
    try:
        import onnxruntime

        from ortlens.backend.faults import register
    except Exception:  # noqa: BLE001 - as above, where it is reported
        return
    version = onnxruntime.__version__
    known = register.faults_of(version)
    unavoided = [fault for fault in known if not fault.avoided]
    found = f"{len(known)} known wrong results of onnxruntime {version}, {len(known) - len(unavoided)} avoided"
    if not register.is_measured(version):
        found += f"; they were looked for in {register.MEASURED[0]} to {register.MEASURED[-1]}"
    if not unavoided:
        yield Check(name="ORT faults", status="info", found=found)
        return
    named = "; ".join(f"{fault.culprit}: {fault.form}" for fault in unavoided)
    advice = "use a version of onnxruntime without them (Faults of ONNX Runtime in the documentation), or check your model with lens.verify"
    yield Check(name="ORT faults", status="warning", found=f"{found}. Not avoided: {named}", advice=advice)


def _features() -> Iterator[Check]:
    for feature, packages in FEATURES.items():
        missing = [name for name in packages if not _is_installed(name)]
        if missing:
            advice = f"pip install {' '.join(missing)}"
            yield Check(name=feature, status="warning", found=f"missing: {', '.join(missing)}", advice=advice)
        else:
            yield Check(name=feature, status="ok", found=", ".join(packages))


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    except OSError:  # it is there, and cannot be read
        return True
    return True
