"""Makes any function of the package raise, and finds out which functions a program reaches."""

import contextlib
import importlib
import pkgutil
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ortlens

PACKAGE = Path(ortlens.__file__).parent
SAID = "planted fault"
DOORS: dict[str, tuple[str, ...]] = {
    "trace/guard.py": ("",),
    "trace/recorder.py": ("Current.", "_Scope."),
    "trace/journal.py": ("Journal._look_again",),
    "lens/observing/listener.py": ("_TraceListener.emit",),
    "lens/observing/compilations.py": ("Compilations.recording", "Compilations.elsewhere", "recorded.<locals>.call"),
    "lens/lens.py": ("Lens.__call__", "Lens._backend_for"),
    "backend/api.py": ("OrtBackend.__call__", "ortlens_backend"),
    "backend/graph.py": (
        "CompiledGraph._first_run",
        "CompiledGraph._is_captured",
        "CompiledGraph.prepare",
        "CompiledGraph._with_views",
        "eager_graph",
    ),
    "backend/lowering/entry.py": ("is_for_the_user", "with_plain_tangents.<locals>.run_plainly"),
    "_torch/exporter.py": ("_Silence.match",),
    "_torch/interpreters.py": ("_or_in_doubt.<locals>.asked",),
    "_torch/dynamo.py": ("is_signal",),
}
"""The guard itself, what torch and Python call, which opens it, and what falling back needs too: a fault in there cannot be survived.

File -> how qualified names begin."""


class Planted(Exception):  # noqa: N818 - what is raised; nothing may catch it by a narrower class
    """The fault."""

    hits = 0

    def __init__(self) -> None:
        """Count it."""
        super().__init__(SAID)
        Planted.hits += 1


@dataclass(frozen=True, slots=True)
class Seam:
    """A function that can be made to fail."""

    name: str  # module and qualified name
    function: types.FunctionType  # holds the code
    code: types.CodeType  # replaced: that of the function, or of a function that is made inside it


def seams() -> dict[types.CodeType, Seam]:
    """Every function of the package, those inside functions included, but for the guard itself."""
    found: dict[types.CodeType, Seam] = {}
    for info in pkgutil.walk_packages([str(PACKAGE)], "ortlens."):
        if info.name.startswith(("ortlens.cli", "ortlens.magic", "ortlens.__main__", "ortlens.pytest_plugin")):
            continue
        module = importlib.import_module(info.name)
        for function in _functions_of(module):
            for code, name in _codes_in(function.__code__, function.__qualname__):
                if code not in found and not _is_door(code, name):
                    found[code] = Seam(f"{module.__name__}.{name}", function, code)
    return found


def _functions_of(module: types.ModuleType) -> Iterator[types.FunctionType]:
    for value in list(vars(module).values()):
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        for member in members:
            yield from _plain(member, module.__name__)


def _plain(member: Any, module: str) -> Iterator[types.FunctionType]:  # noqa: ANN401 - whatever a module holds
    """The functions behind a member: those of a property, and what decorators wrap."""
    inner = [getattr(member, name, None) for name in ("fget", "fset", "func", "__func__", "__wrapped__")]
    if isinstance(member, types.FunctionType) and member.__module__ == module and Path(member.__code__.co_filename).is_relative_to(PACKAGE):
        yield member
    for held in inner:
        if held is not None and held is not member and (callable(held)):
            yield from _plain(held, module)


def _codes_in(code: types.CodeType, name: str) -> Iterator[tuple[types.CodeType, str]]:
    yield code, name
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and not constant.co_name.startswith("<"):  # a comprehension is no function of its own
            yield from _codes_in(constant, f"{name}.<locals>.{constant.co_name}")


def _is_door(code: types.CodeType, name: str) -> bool:
    return name.startswith(DOORS.get(Path(code.co_filename).relative_to(PACKAGE).as_posix(), ("//",)))


@contextlib.contextmanager
def reached() -> Iterator[set[types.CodeType]]:
    """Note the code of the package that runs."""
    codes: set[types.CodeType] = set()
    inside = str(PACKAGE)

    def note(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(inside):
            codes.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield codes
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@contextlib.contextmanager
def raising(seam: Seam) -> Iterator[None]:
    """Have a function raise at every call."""
    before = seam.function.__code__
    for clear in _caches_of(seam):
        clear()
    seam.function.__code__ = _replaced(before, seam.code, _raiser(seam.code))
    try:
        yield
    finally:
        seam.function.__code__ = before
        for clear in _caches_of(seam):
            clear()


def _caches_of(seam: Seam) -> list[Callable[[], None]]:
    """Where a function remembers its results, the fault would not be seen, or stay."""
    held = getattr(sys.modules[seam.function.__module__], seam.function.__name__, None)
    clear = getattr(held, "cache_clear", None)
    return [clear] if clear is not None else []


def _replaced(within: types.CodeType, old: types.CodeType, new: types.CodeType) -> types.CodeType:
    if within is old:
        return new
    constants = tuple(_replaced(item, old, new) if isinstance(item, types.CodeType) else item for item in within.co_consts)
    return within.replace(co_consts=constants)


def _raiser(like: types.CodeType) -> types.CodeType:
    """Code that raises, with the free variables of other code, so that it can take its place."""
    names = like.co_freevars
    lines = [
        "def outer():",
        *(f"    {name} = None" for name in names),
        "    def raiser(*args, **kwargs):",
        *(f"        {name}" for name in names),
        f"        raise __import__({__name__!r}, None, None, ['Planted']).Planted()",
        "    return raiser",
    ]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)  # noqa: S102 - made of names of variables
    made: types.CodeType = scope["outer"]().__code__
    return made.replace(co_name=like.co_name)
