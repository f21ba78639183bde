"""What is installed, whether it fits, and how to get what is missing. Returns data; the command line prints it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import platform
import sys
from dataclasses import dataclass, replace
from importlib import import_module, metadata, util
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ortlens import _versions
from ortlens._process import affinity_cores, cpu_quota, usable_bytes, usable_cores
from ortlens.errors import OrtLensError
from ortlens.units import counted, size_from_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Status: TypeAlias = Literal["ok", "info", "warning", "error"]

BACKENDS = ("ortlens", "onnxrt")  # names under which `torch.compile` finds the backend once ortlens is installed
_GROUP = "torch_dynamo_backends"
FEATURES = {
    "notebook packages": ("anywidget", "ipython", "ipywidgets", "traitlets"),
    "ONNX drawings": ("netron",),
    "pages": ("jinja2",),
    "processes": ("psutil",),
    "safetensors files": ("safetensors",),
}
"""Features that need packages of their own. All of them are dependencies; `pip install --no-deps` leaves them out."""

LOOKED_FOR = _versions.SupportedRange(low=(1, 30), high=(1, 33))
"""The versions of onnxruntime in which the faults of `tests/faults/faults.toml` were looked for; each of them is avoided."""

_MIN_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status  # `ok`, `info` (a fact without judgement), `warning` (a feature is missing) or `error` (the main job cannot run)
    found: str
    advice: str = ""  # what to do; empty when nothing is to be done


def examine() -> tuple[Check, ...]:
    """Check this Python and everything that ortlens depends on, in reading order."""
    install = _versions.install_onnxruntime()
    return (
        _python(),
        Check(name="platform", status="info", found=f"{platform.platform()}, {os.cpu_count()} processors"),
        *_limits(),
        *_packages(),
        _distributions(),
        _backends(),
        _tried(
            "ORT providers",
            lambda: ", ".join(import_module("onnxruntime").get_available_providers()),
            "onnxruntime does not import: {error}",
            install,
        ),
        *_plug_ins(),
        # Versions may fit, and the build still lack what the backend asks onnxruntime for when it is imported.
        _tried(
            "backend loads",
            lambda: "all parts" if import_module("ortlens.backend.compiler") else "",
            "{kind}: {error}",
            f"pip install --force-reinstall onnx onnxscript; {install}",
        ),
        *_cuda(),
        *_faults(),
        _threads(
            "torch threads",
            lambda: import_module("torch").get_num_threads(),
            "set OMP_NUM_THREADS",
            "torch does not import: {error}",
            "pip install --force-reinstall torch",
        ),
        _threads(
            "ORT threads",
            lambda: import_module("ortlens._ort").default_threads(),
            "set intra_op_num_threads of SessionOptions",
            "onnxruntime does not import: {error}",
            install,
        ),
        *_features(),
    )


def is_ready(checks: tuple[Check, ...]) -> bool:
    """Tell whether the main job can run, a PyTorch model through ONNX Runtime: no check is an error."""
    return all(check.status != "error" for check in checks)


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    advice = "ortlens needs Python 3.11 or later" * (sys.version_info[:2] < _MIN_PYTHON)
    return Check(name="python", status="error" if advice else "ok", found=found, advice=advice)


def _limits() -> Iterator[Check]:
    quota, memory = cpu_quota(), usable_bytes()
    by_quota = "no quota" if quota is None else f"a quota of {quota:.3g}"
    found = f"{usable_cores()} usable: affinity to {affinity_cores()}, {by_quota}"
    yield Check(name="processors", status="info", found=found)
    yield Check(name="memory", status="info", found="unknown" if memory is None else f"{size_from_bytes(memory)} usable")


def _threads(name: str, count: Callable[[], int | None], fewer: str, failed: str, advice: str) -> Check:
    """Check how many threads a library takes by itself: neither knows a quota."""
    cores = usable_cores()
    check = _tried(name, lambda: f"{count() or 'unknown'} for {counted(cores, 'usable processor')}", failed, advice, status="info")
    number = check.found.partition(" ")[0]
    if not number.isdecimal() or int(number) <= cores:
        return check
    return replace(check, status="warning", advice=f"{fewer} to {cores}; sessions that ortlens makes for PyTorch models have no more")


def _packages() -> Iterator[Check]:
    here = _versions.installed()
    for name, supported in _versions.SUPPORTED.items():
        found, advice = f"{here.get(name, 'not installed')} (supported: {supported})", ""
        try:
            _versions.check_supported(name)
        except OrtLensError as err:
            advice = str(err)
        yield Check(name=name, status="error" if advice else "ok", found=found, advice=advice)
    for name in ("numpy", "pandas"):
        version = _versions.version_of(name)
        advice = "" if version else f"pip install {name}"
        yield Check(name=name, status="error" if advice else "ok", found=version or "not installed", advice=advice)


def _distributions() -> Check:
    found = ", ".join(f"{name} {text}" for name, text in _versions.onnxruntime_distributions().items()) or "none"
    if found.count(",") == 0:
        return Check(name="onnxruntime builds", status="ok", found=found)
    module = _versions.onnxruntime_build()
    loaded = f"{module.get('package_name', 'onnxruntime')} {module.get('__version__', '')}".rstrip() if module else "no whole one"
    advice = f"they overwrite each other's files; keep only one: {_versions.install_onnxruntime()}"
    return Check(name="onnxruntime builds", status="warning", found=f"{found}; the files are those of {loaded}", advice=advice)


def _plug_ins() -> Iterator[Check]:
    """List libraries with execution providers, and the devices of those that are registered; nothing without either."""
    devices: list[Any] = []
    with contextlib.suppress(Exception):  # reported where it is checked whether onnxruntime imports; older builds have no such devices
        devices += [each for each in import_module("onnxruntime").get_ep_devices() if "library_path" in each.ep_metadata]
    loaded = {each.ep_metadata["library_path"] for each in devices}
    for library in _versions.provider_libraries():
        found = f"{library.distribution} {library.version} brings {library.path.name}"
        if str(library.path) in loaded:
            yield Check(name="ORT plug-ins", status="ok", found=f"{found}, which is registered")
            continue
        advice = (
            f"to use it: {library.registering}, or what the package has for that; then its devices or its name are options of a session"
        )
        yield Check(name="ORT plug-ins", status="info", found=f"{found}, a provider that is not registered", advice=advice)
    if devices:
        names = (f"{each.ep_name} of {each.ep_vendor} ({each.device.type.name})" for each in devices)
        yield Check(name="ORT devices", status="info", found=", ".join(names))


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


def _cuda() -> Iterator[Check]:
    """Check what a CUDA build of ONNX Runtime needs, or whether one is missing; yield nothing where neither it nor torch has CUDA."""
    build = _versions.onnxruntime_build()
    name, made_for = build.get("package_name", "onnxruntime"), build.get("cuda_version", "")
    torch_has, devices = "", []
    with contextlib.suppress(Exception):  # reported where it is checked whether torch imports; a broken driver raises whatever it likes
        import torch

        torch_has = torch.version.cuda or ""
        devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count() if torch_has else 0)]
    if made_for:
        yield _cuda_versions(f"{name} {build['__version__']}", made_for, torch_has)
        yield from _cuda_libraries(made_for)
        found = ", ".join(devices) or ("torch sees none" if torch_has else "torch is a build without CUDA, and sees none")
        yield Check(name="CUDA devices", status="info", found=found)
        reason = _reason_against_cuda()
        found = f"does not run: {reason}" if reason else "a product and a convolution ran on the device, and are right"
        yield Check(name="CUDA session", status="warning" if reason else "ok", found=found)
    elif devices:
        found = f"torch sees {', '.join(devices)}, and {name} is a build without CUDA"
        yield Check(name="CUDA", status="warning", found=found, advice=_versions.install_onnxruntime("onnxruntime-gpu"))


def _cuda_versions(build: str, made_for: str, torch_has: str) -> Check:
    found = f"{build} is built for CUDA {made_for}, torch {f'for CUDA {torch_has}' if torch_has else 'without CUDA'}"
    wanted = _major(made_for)
    if _major(torch_has) == wanted:
        return Check(name="CUDA versions", status="ok", found=found)
    advice = f"install torch for CUDA {wanted} (https://pytorch.org/get-started/locally), which brings the libraries as well"
    return Check(name="CUDA versions", status="warning", found=found, advice=advice)


def _major(cuda: str) -> str:
    return cuda.partition(".")[0]


_NVIDIA_PACKAGES = {
    "cublas": "cublas",
    "cublasLt": "cublas",
    "cudart": "cuda-runtime",
    "cudnn": "cudnn",
    "cufft": "cufft",
    "curand": "curand",
    "nvrtc": "cuda-nvrtc",
}


def _cuda_libraries(made_for: str) -> Iterator[Check]:
    """Check the shared libraries that the provider loads on Linux, as they are found once torch is imported."""
    needed: list[str] = []
    with contextlib.suppress(Exception):  # reported where it is checked whether onnxruntime imports
        needed += [*import_module("ortlens._ort").cuda_libraries(), "libcuda.so.1"]
    if not needed or sys.platform != "linux":
        return
    missing = [name for name in needed if not _loads(name)]
    if not missing:
        yield Check(name="CUDA libraries", status="ok", found=f"all {len(needed)}, cuDNN included")
        return
    packaged = {name for name in missing for folder in _folders_of("nvidia") for _ in folder.glob(f"*/lib/{name}")}
    parts = {_NVIDIA_PACKAGES.get(name.removeprefix("lib").partition(".")[0]) for name in missing if name not in packaged}
    packages = sorted(f"nvidia-{part}{f'-cu{_major(made_for)}' * (part == 'cudnn')}" for part in parts if part)
    advice = [
        "install NVIDIA's driver" * ("libcuda.so.1" in missing),
        f"pip install {' '.join(packages)}" * bool(packages),
        "call onnxruntime.preload_dlls() before the first session, unless torch brings these libraries" * bool(packages or packaged),
    ]
    yield Check(name="CUDA libraries", status="warning", found=f"missing: {', '.join(missing)}", advice="; ".join(filter(None, advice)))


def _folders_of(package: str) -> list[pathlib.Path]:
    spec = util.find_spec(package)
    return [pathlib.Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _reason_against_cuda() -> str:
    """Run a product and a convolution in a session on CUDA; return why that fails, or nothing."""
    try:
        import numpy as np
        import onnxruntime

        with import_module("ortlens._ort").quiet():  # what it writes to stderr is in the other checks
            strict = onnxruntime.SessionOptions()
            strict.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            for options in (onnxruntime.SessionOptions(), strict):  # the strict one raises something else where the provider does not start
                options.log_severity_level = 4
                session = onnxruntime.InferenceSession(_probe(), options, providers=["CUDAExecutionProvider"])
                if "CUDAExecutionProvider" not in session.get_providers():
                    return "ONNX Runtime could not start its CUDA provider"
                (result,) = session.run(None, {"x": np.ones([1, 1, 8, 8], np.float32)})
    except Exception as err:  # noqa: BLE001 - whatever it is, it is the answer
        return f"{type(err).__name__}: {err}"
    return (
        "" if np.array_equal(result, np.full([1, 1, 8, 8], 16.0)) else f"16 expected, and the results are {result.min()} to {result.max()}"
    )


def _probe() -> bytes:
    """Return a model that multiplies a matrix of [1, 1, 8, 8] by ones, and convolves it with a 2: ones become 16, also in TF32."""
    from onnx import TensorProto, helper

    nodes = [helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Conv", ["product", "k"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 8, 8]) for name in "xy"]
    ones = helper.make_tensor("w", TensorProto.FLOAT, [8, 8], [1.0] * 64)
    two = helper.make_tensor("k", TensorProto.FLOAT, [1, 1, 1, 1], [2.0])
    graph = helper.make_graph(nodes, "probe", ends[:1], ends[1:], [ones, two])
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString())


def _faults() -> Iterator[Check]:
    if version := _versions.installed().get("onnxruntime"):
        found, advice = f"those known of onnxruntime{LOOKED_FOR} are avoided", ""
        if not LOOKED_FOR.holds(version):
            found += f"; in {version}, nobody looked for them"
            advice = "compare results with `ortlens explain --verify`; the known ones are in the documentation, Faults of ONNX Runtime"
        yield Check(name="ORT faults", status="info", found=found, advice=advice)


def _features() -> Iterator[Check]:
    for feature, packages in FEATURES.items():
        missing = [name for name in packages if not _is_installed(name)]
        found, advice = ("missing: ", f"pip install {' '.join(missing)}") if missing else ("", "")
        yield Check(name=feature, status="warning" if missing else "ok", found=found + ", ".join(missing or packages), advice=advice)


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except (metadata.PackageNotFoundError, OSError) as error:
        return isinstance(error, OSError)  # it is there, and cannot be read
    return True
