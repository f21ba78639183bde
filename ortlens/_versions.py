"""The versions that ortlens supports, the installed ones, and packages that only some features need.

Nothing is imported to look up versions, so the answer costs milliseconds and works even when the package itself does not import.

ONNX Runtime comes as one of several distributions that all install the module `onnxruntime`: the plain one for CPU,
`onnxruntime-gpu` and others per execution provider. Any of them serves. Where several are installed, the files are those of the last one,
and the metadata of the others is wrong: the module's own files say what it is. Other distributions bring a library with one execution
provider, a plug-in for any of these; some bear names that builds had before. So their files tell what they are, and not their names.
"""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import pathlib
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distributions, packages_distributions, version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ortlens.errors import OptionalDependencyError, UnsupportedVersionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import Distribution
    from types import ModuleType


_PLAIN = "onnxruntime"
"""The distribution to name when none is installed."""
LIBRARY_SUFFIXES = (".so", ".dll", ".dylib")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedRange:
    """Versions from `low` (included) to `high` (excluded), as release numbers."""

    low: tuple[int, ...]
    high: tuple[int, ...] | None = None  # None where nothing speaks against later ones

    def __str__(self) -> str:
        """Return the range as pip spells it."""
        ends = ((">=", self.low), ("<", self.high))
        return ",".join(f"{sign}{'.'.join(map(str, end))}" for sign, end in ends if end is not None)

    def holds(self, installed_version: str) -> bool:
        """Tell whether a version lies in the range; False for a text that starts with no number.

        Pre-releases count as the release that they lead to and local suffixes are dropped: `2.14.0.dev20260101+cu128` is taken as 2.14.0.
        Vendors ship such builds as the real thing, and one that leads to `high` already has its changes.
        """
        # Not `packaging.version`: it is no dependency of ours, and the release number is all that counts here.
        match = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", installed_version)
        release = tuple(map(int, match.group(1).split("."))) if match else ()
        return match is not None and _padded(self.low) <= _padded(release) and (self.high is None or _padded(release) < _padded(self.high))


SUPPORTED: Mapping[str, SupportedRange] = MappingProxyType(
    {
        # Each release may change the private names that ortlens/_torch reads; tests/packaging/test_private_names.py lists them.
        "torch": SupportedRange(low=(2, 13), high=(2, 16)),
        "onnxruntime": SupportedRange(low=(1, 30)),
        "onnx": SupportedRange(low=(1, 22)),
        "onnxscript": SupportedRange(low=(0, 7)),
    }
)


_OLDER_BUILDS = {"onnxruntime-openvino": SupportedRange(low=(1, 24))}
"""Builds of ONNX Runtime whose newest release is older; what only their kernels for the CPU compute wrongly is not avoided."""


def installed() -> dict[str, str]:
    """Look up the versions of the packages in `SUPPORTED` that are here; `onnxruntime` stands for whichever distribution of it is."""
    found = {name: _installed_version(name) for name in SUPPORTED}
    return {name: text for name, text in found.items() if text is not None}


def onnxruntime_distributions() -> dict[str, str]:
    """Look up all distributions that install the module `onnxruntime`, the plain one first: more than one overwrite each other's files."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names += packages_distributions().get("onnxruntime", ())
    found = {name: version_of(name) for name in sorted(set(names), key=lambda name: (name != _PLAIN, name))}
    return {name: text for name, text in found.items() if text is not None}


class ProviderLibrary(NamedTuple):
    """A library with an execution provider, which `onnxruntime.register_execution_provider_library` loads."""

    distribution: str  # that brings it
    version: str
    path: pathlib.Path

    @property
    def name(self) -> str:
        """A name to register it under, as distributions have it: `ggml` for `onnxruntime-ggml` and `onnxruntime-ep-ggml`."""
        return re.sub(r"^onnxruntime[-_](ep[-_])?", "", self.distribution)

    @property
    def registering(self) -> str:
        """The line of Python that registers it."""
        return f"onnxruntime.register_execution_provider_library({self.name!r}, {str(self.path)!r})"


def provider_libraries() -> list[ProviderLibrary]:
    """Find the libraries of execution providers in installed distributions that have to do with ONNX Runtime, by what they export."""
    named = (each for each in distributions() if any("onnxruntime" in text for text in (each.name, *(each.requires or ()))))
    return sorted(library for each in named for library in _libraries_in(each))


def registered_libraries() -> dict[str, tuple[str, str]]:
    """List the libraries whose providers have devices here, whoever registered them: name of the provider -> path and version."""
    onnxruntime: Any = sys.modules.get("onnxruntime")  # without it, none is
    listed = ((each.ep_name, each.ep_metadata) for each in onnxruntime.get_ep_devices()) if onnxruntime is not None else ()
    return {name: (facts["library_path"], facts.get("version", "")) for name, facts in listed if "library_path" in facts}


def libraries_of(package: str) -> list[ProviderLibrary] | None:
    """Find the libraries of execution providers in one package, named as its distribution or as its module; None if it is not installed."""
    names = {_normal(name) for name in (package, *packages_distributions().get(package, ()))}
    found = {_normal(each.name): each for each in distributions() if _normal(each.name) in names}
    return sorted(library for each in found.values() for library in _libraries_in(each)) if found else None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _libraries_in(distribution: Distribution) -> list[ProviderLibrary]:
    # The host's own libraries know the function, too.
    files = [file for file in distribution.files or () if file.suffix in LIBRARY_SUFFIXES and file.parts[0] != "onnxruntime"]
    paths = [pathlib.Path(str(file.locate())) for file in files]
    return [ProviderLibrary(distribution.name, distribution.version, path) for path in paths if _makes_providers(path)]


def _makes_providers(path: pathlib.Path) -> bool:
    """Tell whether a library has the function by which ONNX Runtime asks for providers (`onnxruntime_ep_c_api.h`)."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b"CreateEpFactories") >= 0
    except (OSError, ValueError):  # the second for an empty file
        return False


def onnxruntime_build() -> dict[str, str]:
    """Read which build the files of the module `onnxruntime` are of: `package_name`, `__version__`, and `cuda_version` of a CUDA build.

    Empty if the module is not there, or if its files do not say.
    """
    facts: dict[str, str] = {}
    folder = _folder_of_onnxruntime()
    paths = [folder / "__init__.py", folder / "capi" / "build_and_package_info.py"] if folder is not None else []
    for path in paths:  # the second, which not every build has, has the last word, as in the module
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = path.read_text(encoding="utf-8")
            facts.update(re.findall(r"""^(\w+) = ["'](.+)["']$""", text, re.MULTILINE))
    return facts


def _folder_of_onnxruntime() -> pathlib.Path | None:
    """Find the module; None also for a folder without `__init__.py`, which is what uninstalling one of two builds leaves."""
    try:
        spec = importlib.util.find_spec("onnxruntime")
    except ValueError:  # what is loaded under this name is no module from a file
        return None
    return pathlib.Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def install_onnxruntime(distribution: str = "") -> str:
    """Return the command that makes a build of ONNX Runtime the only one.

    Removing comes first: what removes one build also removes the files that another has written over, and `pip install` writes none if a
    build of that name is there.

    Args:
        distribution: Such as `onnxruntime-gpu`; by default the build that is installed, the last of several in `onnxruntime_distributions`.
    """
    here = tuple(onnxruntime_distributions())
    wanted = distribution or (here[-1] if here else _PLAIN)
    numbered = SUPPORTED["onnxruntime"] if wanted.startswith((_PLAIN, "ort-")) else ""  # others have versions of their own
    install = f"pip install '{wanted}{_OLDER_BUILDS.get(wanted, numbered)}'"
    return f"pip uninstall --yes {' '.join(here)} && {install}" if here else install


def check_supported(*names: str) -> None:
    """Refuse packages (keys of `SUPPORTED`, by default all) that are missing or out of range, with the pip command that fixes it."""
    for name in names or tuple(SUPPORTED):
        supported = SUPPORTED.get(name)
        if supported is None:
            raise UsageError(f"ortlens has no version range for {name!r}, only for {', '.join(SUPPORTED)}.")
        here = _installed_version(name)
        if here is None:
            raise OptionalDependencyError(f"{name} is not installed. ortlens needs {name}{supported}: {_install(name)}", name=name)
        distribution = onnxruntime_build().get("package_name", name) if name == "onnxruntime" else name
        supported = _OLDER_BUILDS.get(distribution, supported)
        if not supported.holds(here):
            raise UnsupportedVersionError(
                f"{distribution} {here} is installed, but ortlens supports {distribution}{supported}. "
                f"To install a supported version: {_install(name)}"
            )


def _install(name: str) -> str:
    return install_onnxruntime() if name == "onnxruntime" else f"pip install '{name}{SUPPORTED[name]}'"


def _installed_version(name: str) -> str | None:
    if name != "onnxruntime":
        return version_of(name)
    loaded = getattr(sys.modules.get(name), "__version__", None)
    if loaded is not None or _folder_of_onnxruntime() is None:
        return loaded
    return onnxruntime_build().get("__version__") or next(iter(onnxruntime_distributions().values()), None)


def version_of(distribution: str) -> str | None:
    """Return a package's version, that of the loaded module in a process that can open no file; None where it is not known."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
    except OSError:  # no file can be opened: a process out of descriptors still has what it loaded
        return getattr(sys.modules.get(distribution), "__version__", None)


def _padded(release: tuple[int, ...]) -> tuple[int, ...]:
    return (*release, 0, 0, 0)[: max(3, len(release))]


def require(module: str, feature: str) -> ModuleType:
    """Import a module that one feature needs, or raise an `OptionalDependencyError` with the line that installs it.

    `feature` is the subject of the message: `lens.netron()`. A package can be missing or broken, as after `pip install --no-deps ortlens`.

    Example:
        >>> require("json", feature="This example").__name__
        'json'
    """
    try:
        return import_module(module)
    except ImportError as err:
        raise OptionalDependencyError(_advice(module, feature, err), name=err.name, path=err.path) from err


def _advice(module: str, feature: str, err: ImportError) -> str:
    package = module.partition(".")[0]
    if isinstance(err, ModuleNotFoundError) and err.name in {package, module}:
        return f"{feature} needs {package}, which is not installed: pip install {package}"
    # An installed package that does not import is usually half upgraded; a plain install would change nothing.
    return f"{feature} needs {package}, which does not import here: {err}. To repair it: pip install --force-reinstall {package}"
