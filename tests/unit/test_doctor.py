import importlib
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from ortlens import _ort, _versions, doctor


def _check(name: str) -> doctor.Check:
    return next(check for check in doctor.examine() if check.name == name)


def test_the_test_environment_can_do_the_main_job() -> None:
    checks = doctor.examine()
    assert doctor.is_ready(checks)
    assert len({check.name for check in checks}) == len(checks)
    assert {"python", "platform", *_versions.SUPPORTED, "numpy", "pandas", "backends", "ORT providers", "torch threads", "ORT threads"} <= {
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


def test_a_version_in_which_nobody_looked_for_wrong_results_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (_check("ORT faults").status, _check("ORT faults").advice) == ("info", "")
    monkeypatch.setattr(_versions, "installed", lambda: {"onnxruntime": "1.99.0"})
    check = _check("ORT faults")
    assert "1.99.0" in check.found
    assert "--verify" in check.advice


def test_a_backend_that_does_not_import_is_an_error(run_python: Callable[..., str]) -> None:
    told = run_python("import sys\nsys.modules['onnx'] = None\nfrom ortlens.cli.entry import main\nprint(main(['doctor']), 'halted')\n")
    assert told.splitlines()[-1] == "1 halted"
    assert told.count("halted") == 2


def test_two_builds_of_onnxruntime_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_versions, "onnxruntime_distributions", lambda: {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.1"})
    monkeypatch.setattr(_versions, "onnxruntime_build", lambda: {"package_name": "onnxruntime", "__version__": "1.32.0"})
    check = doctor._distributions()
    assert check.status == "warning"
    assert check.found == "onnxruntime 1.32.0, onnxruntime-gpu 1.31.1; the files are those of onnxruntime 1.32.0"
    assert "pip uninstall --yes onnxruntime onnxruntime-gpu && pip install 'onnxruntime-gpu>=1.30'" in check.advice
    monkeypatch.setattr(_versions, "onnxruntime_build", dict)
    assert doctor._distributions().found.endswith("of no whole one")


def test_a_library_with_a_provider_is_listed_with_the_line_that_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = _versions.ProviderLibrary("onnxruntime-qnn", "2.7.0", tmp_path / "libqnn.so")
    monkeypatch.setattr(_versions, "provider_libraries", lambda: [library])
    (check,) = doctor._plug_ins()
    assert (check.status, check.found) == ("info", "onnxruntime-qnn 2.7.0 brings libqnn.so, a provider that is not registered")
    assert f"register_execution_provider_library('qnn', '{tmp_path / 'libqnn.so'}')" in check.advice
    device = SimpleNamespace(ep_name="QNN", ep_vendor="Qualcomm", device=SimpleNamespace(type=SimpleNamespace(name="NPU")))
    device.ep_metadata = {"library_path": str(tmp_path / "libqnn.so")}
    monkeypatch.setattr(importlib.import_module("onnxruntime"), "get_ep_devices", lambda: [device])
    assert [(check.status, check.found) for check in doctor._plug_ins()] == [
        ("ok", "onnxruntime-qnn 2.7.0 brings libqnn.so, which is registered"),
        ("info", "QNN of Qualcomm (NPU)"),
    ]


CUDA_13 = {"package_name": "onnxruntime-gpu", "__version__": "1.31.1", "cuda_version": "13.0"}


@pytest.fixture
def cuda_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA build of ONNX Runtime, as far as its files tell; returns the folder of NVIDIA's packages."""
    assert "libcudnn.so.9" in _ort.cuda_libraries()
    monkeypatch.setattr(_ort, "cuda_libraries", lambda: ["libcublasLt.so.13", "libcublas.so.13", "libcudnn.so.9", "libfound.so"])
    monkeypatch.setattr(_versions, "onnxruntime_build", lambda: CUDA_13)
    monkeypatch.setattr(doctor, "_folders_of", lambda package: [tmp_path / package])
    monkeypatch.setattr(doctor, "_loads", lambda name: name == "libfound.so")
    return tmp_path / "nvidia"


def test_missing_libraries_of_cuda_are_named_with_what_brings_them(cuda_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = doctor._cuda_libraries("13.0")
    assert (check.status, check.found) == ("warning", "missing: libcublasLt.so.13, libcublas.so.13, libcudnn.so.9, libcuda.so.1")
    assert "pip install nvidia-cublas nvidia-cudnn-cu13;" in check.advice
    assert "driver" in check.advice
    for path in ("cu13/lib/libcublas.so.13", "cu13/lib/libcublasLt.so.13", "cudnn/lib/libcudnn.so.9"):
        (cuda_build / path).parent.mkdir(parents=True, exist_ok=True)
        (cuda_build / path).touch()
    (check,) = doctor._cuda_libraries("13.0")
    assert "pip" not in check.advice
    assert "preload_dlls" in check.advice
    monkeypatch.setattr(doctor, "_loads", lambda _: True)
    (check,) = doctor._cuda_libraries("13.0")
    assert (check.status, check.advice) == ("ok", "")


@pytest.mark.parametrize(
    ("torch_has", "status", "advice"),
    [("13.2", "ok", ""), *((torch_has, "warning", "install torch for CUDA 13 ") for torch_has in ("", "12.8"))],
)
def test_builds_for_different_versions_of_cuda_are_a_warning(torch_has: str, status: str, advice: str) -> None:
    check = doctor._cuda_versions("onnxruntime-gpu 1.31.1", "13.0", torch_has)
    assert check.status == status
    assert check.advice.startswith(advice)


@pytest.mark.usefixtures("cuda_build")
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_cuda_build_without_a_device_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    """Its session is tried, with the installed ONNX Runtime, and nothing but the checks says that it fails."""
    checks = {check.name: check for check in doctor._cuda()}
    assert list(checks) == ["CUDA versions", "CUDA libraries", "CUDA devices", "CUDA session"]
    assert doctor.is_ready(tuple(checks.values()))
    if "CUDAExecutionProvider" not in importlib.import_module("onnxruntime").get_available_providers():
        assert checks["CUDA session"].status == "warning"
        assert "CUDA provider" in checks["CUDA session"].found
    assert capfd.readouterr().err == ""


def test_a_gpu_beside_a_build_without_cuda_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(_versions, "onnxruntime_build", lambda: {"package_name": "onnxruntime", "__version__": "1.31.1"})
    monkeypatch.setattr(torch.version, "cuda", None)
    assert list(doctor._cuda()) == []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    (check,) = doctor._cuda()
    assert (check.status, check.found) == ("warning", "torch sees NVIDIA H100, and onnxruntime is a build without CUDA")
    assert check.advice.endswith("pip install 'onnxruntime-gpu>=1.30'")


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
    advice = _versions.install_onnxruntime() if module == "onnxruntime" else f"pip install --force-reinstall {module}"
    assert (check.status, check.advice) == ("error", advice)
    assert "libsomething" in check.found


def test_features_say_what_is_missing_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FEATURES", {"drawings": ("numpy", "no-such-package", "nor-this-one"), "figures": ("numpy",)})
    drawings, figures = doctor._features()
    assert (drawings.name, drawings.status, drawings.found) == ("drawings", "warning", "missing: no-such-package, nor-this-one")
    assert drawings.advice == "pip install no-such-package nor-this-one"
    assert (figures.name, figures.status, figures.found) == ("figures", "ok", "numpy")


def test_more_threads_than_usable_cores_are_a_warning() -> None:
    assert [doctor._threads("t", lambda count=count: count, "set n", "", "").status for count in (1, 9999)] == ["info", "warning"]  # type: ignore[misc]
