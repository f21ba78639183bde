"""The version ranges: what is inside, what the refusals say, and that nothing is imported to find out."""

import json
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortlens import _versions
from ortlens._versions import require
from ortlens.errors import OptionalDependencyError, OrtLensError, UnsupportedVersionError, UsageError

BUILDS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-cann", "ort-nightly")


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed distributions, as this test wants them; empty to begin with."""
    distributions: dict[str, str] = {}

    def version(name: str) -> str:
        try:
            return distributions[name]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(_versions, "version", version)
    monkeypatch.setattr(_versions, "packages_distributions", lambda: {"onnxruntime": [name for name in distributions if name in BUILDS]})
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)  # whose version would be the answer
    monkeypatch.setattr(_versions, "onnxruntime_build", dict)
    return distributions


INSIDE = ("2.13", "2.13.0.0.0", "2.13.0a0+50eac811a6.nv26.05", "2.13.0+cpu", "2.14.0.dev20260101", "2.15.99", "2.15.1.post2", "0!2.14")
OUTSIDE = ("2.12.1", "2", "1.13.1+cu117", "2.16", "2.16.0a0", "2.16.0.dev20270101+cpu", "3.0", "", "unknown")


def test_versions_inside_and_outside_of_the_range() -> None:
    assert [text for text in INSIDE if not _versions.SUPPORTED["torch"].holds(text)] == []
    assert [text for text in OUTSIDE if _versions.SUPPORTED["torch"].holds(text)] == []


@given(st.integers(min_value=0, max_value=40), st.integers(min_value=0, max_value=40))
def test_the_range_is_what_its_text_says(major: int, minor: int) -> None:
    supported = _versions.SUPPORTED["torch"]
    assert str(supported) == ">=2.13,<2.16"
    assert supported.holds(f"{major}.{minor}") == (major == 2 and 13 <= minor < 16)


def test_installed_leaves_out_what_is_missing(metadata: dict[str, str]) -> None:
    assert _versions.installed() == {}
    assert _versions.onnxruntime_distributions() == {}
    metadata["onnx"] = "1.22.0"
    assert _versions.installed() == {"onnx": "1.22.0"}
    two = {"onnxruntime": "1.31.0", "onnxruntime-gpu": "1.30.0"}
    metadata.update(two)
    assert _versions.onnxruntime_distributions() == two


@pytest.mark.parametrize("distribution", BUILDS)
def test_every_distribution_of_onnxruntime_serves(metadata: dict[str, str], distribution: str) -> None:
    metadata[distribution] = "1.31.0"
    assert _versions.installed() == {"onnxruntime": "1.31.0"}
    assert _versions.onnxruntime_distributions() == {distribution: "1.31.0"}
    _versions.check_supported("onnxruntime")


def test_a_refusal_holds_the_version_the_range_and_the_pip_line(metadata: dict[str, str]) -> None:
    metadata["torch"] = "2.6.0+cu124"
    with pytest.raises(UnsupportedVersionError) as caught:
        _versions.check_supported("torch")
    assert str(caught.value) == (
        "torch 2.6.0+cu124 is installed, but ortlens supports torch>=2.13,<2.16. "
        "To install a supported version: pip install 'torch>=2.13,<2.16'"
    )
    metadata["onnxruntime-gpu"] = "1.17.0"
    with pytest.raises(UnsupportedVersionError, match=r"pip uninstall --yes onnxruntime-gpu && pip install 'onnxruntime-gpu>=1\.30'"):
        _versions.check_supported("onnxruntime")


_TWO_BUILDS = """
import sys
sys.path.insert(0, {folder!r})
import ortlens._versions as v
print(v.installed()["onnxruntime"], v.onnxruntime_build()["package_name"], v.onnxruntime_distributions())
assert "onnxruntime" not in sys.modules
import onnxruntime
onnxruntime.__version__ = "1.33.0"
print(v.installed()["onnxruntime"])
"""


def test_the_version_of_onnxruntime_is_that_of_the_module(tmp_path: Path, run_python: Callable[..., str]) -> None:
    """Of two distributions, the last one has written the files, and the metadata of either may be what is found first."""
    module = tmp_path / "onnxruntime"
    (module / "capi").mkdir(parents=True)
    (module / "__init__.py").write_text('__version__ = "1.31.0"\n', encoding="utf-8")
    facts = "package_name = 'onnxruntime-gpu'\n__version__ = '1.31.1'\ncuda_version = '13.0'\n"
    (module / "capi" / "build_and_package_info.py").write_text(facts, encoding="utf-8")
    for name, text in (("onnxruntime", "1.30.0"), ("onnxruntime-gpu", "1.31.1")):
        folder = tmp_path / f"{name.replace('-', '_')}-{text}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {text}\n", encoding="utf-8")
        (folder / "top_level.txt").write_text("onnxruntime\n", encoding="utf-8")
    first, second = run_python(_TWO_BUILDS.format(folder=str(tmp_path))).splitlines()
    assert first == "1.31.1 onnxruntime-gpu {'onnxruntime': '1.30.0', 'onnxruntime-gpu': '1.31.1'}"
    assert second == "1.33.0"


def test_what_uninstalling_one_of_two_builds_leaves_is_not_installed(metadata: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    metadata["onnxruntime-gpu"] = "1.31.1"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: SimpleNamespace(origin=None))
    with pytest.raises(
        OptionalDependencyError, match=r"not installed.*pip uninstall --yes onnxruntime-gpu && pip install 'onnxruntime-gpu"
    ):
        _versions.check_supported("onnxruntime")


def test_the_command_for_a_build_leaves_no_other(metadata: dict[str, str]) -> None:
    assert _versions.install_onnxruntime() == "pip install 'onnxruntime>=1.30'"
    metadata["onnxruntime"] = "1.31.1"
    assert _versions.install_onnxruntime() == "pip uninstall --yes onnxruntime && pip install 'onnxruntime>=1.30'"
    assert _versions.install_onnxruntime("onnxruntime-gpu") == "pip uninstall --yes onnxruntime && pip install 'onnxruntime-gpu>=1.30'"


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages as pip leaves them: a build of ONNX Runtime, two plug-ins, one of them under the name of an old build, and a tool."""
    files: dict[str, dict[str, bytes]] = {
        "windowsml": {"onnxruntime/__init__.py": b"", "onnxruntime/capi/host.so": b"calls CreateEpFactories"},
        "onnxruntime-qnn": {"onnxruntime_qnn/libonnxruntime_providers_qnn.so": b"CreateEpFactories", "onnxruntime_qnn/libQnnHtp.so": b"no"},
        "onnxruntime-ep-webgpu": {"onnxruntime_ep_webgpu/webgpu.dll": b"CreateEpFactories"},
        "some-tool": {"some_tool.so": b"CreateEpFactories"},
    }
    for name, held in files.items():
        info = f"{name.replace('-', '_')}-2.7.0.dist-info"
        texts = {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.7.0\n".encode(), f"{info}/RECORD": b""}
        texts[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*held, *texts)).encode()
        for path, content in {**held, **texts}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(content)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_distributions_are_known_by_their_files(beside: Path) -> None:
    assert _versions.onnxruntime_distributions() == {"windowsml": "2.7.0"}
    found = {library.name: library.path for library in _versions.provider_libraries()}
    assert found == {
        "webgpu": beside / "onnxruntime_ep_webgpu" / "webgpu.dll",
        "qnn": beside / "onnxruntime_qnn" / "libonnxruntime_providers_qnn.so",
    }
    of = [_versions.libraries_of(name) for name in ("onnxruntime_qnn", "Some.Tool", "windowsml", "numpy")]
    assert [found and found[0].path.name for found in of] == ["libonnxruntime_providers_qnn.so", "some_tool.so", [], None]
    assert _versions.install_onnxruntime() == "pip uninstall --yes windowsml && pip install 'windowsml'"


def test_a_missing_package_is_told_with_its_pip_line(metadata: dict[str, str]) -> None:
    metadata["torch"] = "2.13.0"
    with pytest.raises(OptionalDependencyError, match=r"onnxscript is not installed.*pip install 'onnxscript>=0\.7'") as caught:
        _versions.check_supported("torch", "onnxscript")
    assert caught.value.name == "onnxscript"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'tensorflow'.*torch, onnxruntime, onnx, onnxscript"):
        _versions.check_supported("tensorflow")


def test_looking_up_versions_imports_none_of_the_packages(run_python: Callable[..., str]) -> None:
    code = (
        "import sys, ortlens._versions as v; v.check_supported(); found = v.installed();"
        "assert found, found; print([n for n in (*found, 'numpy', 'packaging') if n in sys.modules])"
    )
    assert run_python(code).strip() == "[]"


def test_a_missing_package_of_a_feature_is_named_with_the_install_line() -> None:
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
