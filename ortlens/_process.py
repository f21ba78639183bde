"""A process: whether it runs, its memory, the cores that it and others use, what all of its threads share, and settings for a block."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib.util
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from contextvars import ContextVar
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    _Made = TypeVar("_Made")


def usable_cores() -> int:
    """Count the cores that this process may use; a container or an affinity mask may allow fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def is_running(pid: int) -> bool:
    """Tell whether a process of this machine is running."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # it is another user's
    return True


def resident_bytes(pid: int) -> int | None:
    """Return the memory that a process holds, shared libraries included; None without `/proc`, or once the process has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):  # Windows has no sysconf
        return None


_GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def usable_bytes() -> int | None:
    """Look up how much memory this process may use, the machine's or its container's; None where the system does not tell."""
    limits = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for group in _GROUPS:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(group.read_text(encoding="ascii")))
    return min((limit for limit in limits if limit > 0), default=None)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc's `malloc.h`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


@functools.cache
def _mallinfo2() -> Callable[[], Any] | None:
    """Return the C function; None where there is none: glibc has it from 2.33 on, other C libraries lack it."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    function.restype = _Mallinfo
    return function


def heap_bytes() -> int | None:
    """Count the bytes that `malloc` holds in all threads, with large blocks; None where the C library does not report it."""
    figures = None if (function := _mallinfo2()) is None else function()
    return None if figures is None else int(figures.uordblks) + int(figures.hblkhd)


def at_cost(make: Callable[[], _Made]) -> tuple[_Made, int, int | None]:
    """Make something; return it, the time in ns, and the heap memory that it took, None where the C library does not report that."""
    before, started = heap_bytes(), time.perf_counter_ns()
    made = make()
    elapsed, after = time.perf_counter_ns() - started, heap_bytes()
    held = None if before is None or after is None else max(after - before, 0)
    return made, elapsed, held


def at_cores(run: Callable[[], _Made]) -> tuple[_Made, float, int]:
    """Run something; return what it returns, how many cores this process used, and the CPU time of its threads until they rest.

    Threads of pools spin for some time after their work. They rest when they use less than a tenth of a core, or after 0.1 s of CPU time.
    """
    used, began = time.process_time_ns(), time.perf_counter_ns()
    made = run()
    ended = last = time.process_time_ns()
    cores = (ended - used) / max(time.perf_counter_ns() - began, 1)
    time.sleep(_NAP_NS / 1e9)
    while (now := time.process_time_ns()) - last > _NAP_NS / 10 and now - ended < 25 * _NAP_NS:
        last = now
        time.sleep(_NAP_NS / 1e9)
    return made, cores, last - ended


_NAP_NS = 4_000_000

_STAT = Path("/proc/stat")
_WATCHED_S = 0.1


class CoreWatch:
    """What has the cores of this machine while something is measured; no clock tells why a pool waits for one of its threads."""

    def __init__(self) -> None:
        """Begin to watch."""
        self._began = _reading()

    def shares(self) -> tuple[float, float] | None:
        """Return how many cores others had, and how many were idle, on average; None where not counted, or within 0.1 s of the start."""
        began, now = self._began, _reading()
        if began is None or now is None or now.at - began.at < _WATCHED_S:
            return None
        passed = now.at - began.at
        others = (now.used - began.used) - (now.own - began.own)
        return max(0.0, others / passed), max(0.0, (now.idle - began.idle) / passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Clocks in seconds: wall time, time that the cores of the machine were used and idle, and the part of it that this process used."""

    at: float
    used: float
    idle: float
    own: float


def _reading() -> _Reading | None:
    try:
        name, *figures = _STAT.read_bytes().split(b"\n", 1)[0].split()
        user, nice, system, idle, waiting, *rest = (int(figure) / os.sysconf("SC_CLK_TCK") for figure in figures[:8])
    except (OSError, ValueError, AttributeError):
        return None
    used = user + nice + system + sum(rest)  # interrupts, and what the host took for another guest
    return _Reading(at=time.perf_counter(), used=used, idle=idle + waiting, own=time.process_time()) if name == b"cpu" else None


def process_wide(context: Callable[[], AbstractContextManager[None]]) -> Callable[[], AbstractContextManager[None]]:
    """Let threads share a context that changes the whole process: the first of them enters it, and the last one leaves it."""
    lock, entered = threading.Lock(), contextlib.ExitStack()
    inside = 0

    @contextlib.contextmanager
    def shared() -> Iterator[None]:
        nonlocal inside
        with lock:
            if not inside:
                entered.enter_context(context())
            inside += 1
        try:
            yield
        finally:
            with lock:
                inside -= 1
                if not inside:
                    entered.close()

    return functools.update_wrapper(shared, context)


@contextlib.contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Give an attribute another value for as long as the block lasts."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def with_value(variable: ContextVar[_Made], value: _Made) -> Iterator[None]:
    """Give a variable of the context another value for as long as the block lasts."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@process_wide
@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection while something compiles, unless it is disabled; whatever is left in cycles is collected later.

    CPython's cyclic garbage collector visits every object of the process, 580,000 once torch and transformers are imported, each time
    that a compilation has made enough new ones. Nearly all of these live until the compilation ends. Compiling a LLaMA of four layers
    runs it 500 times and spends 0.5 s in it, 7 % of the total.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_ENTRY = "torch._dynamo.eval_frame"  # `_optimize(rebuild_ctx, backend="inductor", *, ...)`: torch.compile passes its backend on to it


def replace_backends(replace: Callable[[object], object]) -> None:
    """Have every later `torch.compile` of this process use the backend that `replace` returns for the one passed, or its name.

    `torch._dynamo.optimize` in `torch/_dynamo/eval_frame.py` is where all of them meet, after modes and options were put into the backend.
    Tracing for `torch.export` takes another way. Here and not in `_torch`, since this comes before the program imports torch.
    """

    def patch(module: Any) -> None:
        original = module._optimize

        def _optimize(rebuild_ctx: object, backend: object = "inductor", **options: Any) -> Any:
            return original(rebuild_ctx, replace(backend), **options)

        module._optimize = _optimize

    when_imported(_ENTRY, patch)


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Act on a module as soon as it has been executed, or at once if it is already there."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder:
    """Finds one module as the others would, and acts on it once."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._act(module)

        loader.exec_module = exec_module
