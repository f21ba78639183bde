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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from contextvars import ContextVar
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    _Made = TypeVar("_Made")


_ROOT = Path("/")
_HALF = 0.5


def usable_cores() -> int:
    """Count the cores that this process may use: an affinity mask or the quota of a container may allow fewer than the machine has.

    Half a core and more of a quota count as one, so that 1.5 cores are two threads and 1.25 are one: with 1.5, two took 0.7 to 0.85 of the
    time of one on average, with pauses of 25 ms, in which the kernel stops all threads; with 1.25, as much as one.
    """
    quota = cpu_quota()
    return affinity_cores() if quota is None else max(1, min(affinity_cores(), int(quota + _HALF)))


def fewer_cores() -> int:
    """Return the usable cores where they are fewer than the machine's, which ONNX Runtime counts; else 0, which leaves the number to it."""
    cores = usable_cores()
    return cores if cores < (os.cpu_count() or 1) else 0


def affinity_cores() -> int:
    """Count the cores that this process may run on, of which a quota may leave it a part of the time."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def cpu_quota() -> float | None:
    """Return how many cores' time the control groups of this process allow it, with what else is in them; None without a quota."""
    quotas = []
    for group in _groups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # of version 2 and 1; `max` and -1 are no quota
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                quota, period = (int(word) for name in names for word in (group / name).read_text(encoding="ascii").split())
                quotas.append(quota / period)
    return min((quota for quota in quotas if quota > 0), default=None)


def throttling() -> tuple[int, int]:
    """Return how often the kernel stopped a control group of this process whose quota was used up, and the ns that cores lost by that."""
    found = {"nr_throttled": 0, "throttled_time": 0, "throttled_usec": 0}
    for group in _groups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            for line in (group / "cpu.stat").read_text(encoding="ascii").splitlines():
                name, figure = line.split()
                found[name] = found.get(name, 0) + int(figure)
    return found["nr_throttled"], found["throttled_time"] + 1000 * found["throttled_usec"]


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups with a controller, from its own up to the root of what is mounted.

    In a container, the path of its group may begin outside of what is mounted there: then only the root exists.
    """
    mounts, lines = _ROOT / "sys/fs/cgroup", list[str]()
    with contextlib.suppress(OSError):
        lines += (_ROOT / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        mount = next((each for each in (mounts / names, mounts / controller) if each.is_dir()), mounts) if names else mounts
        parts = [part for part in path.split("/") if part]
        for depth in range(0 if ".." in parts else len(parts), -1, -1):
            yield mount.joinpath(*parts[:depth])


def is_running(pid: int) -> bool:
    """Tell whether a process of this machine is running; one that only waits to be reaped is not."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, ValueError) as error:
        return isinstance(error, psutil.AccessDenied)  # it is another user's


def resident_bytes(pid: int) -> int | None:
    """Return the memory that a process holds, shared libraries included; None once it has ended, and where psutil is not installed."""
    with contextlib.suppress(ImportError, ValueError):  # an interpreter that the user names may lack it
        import psutil

        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).memory_info().rss)
    return None


def usable_bytes() -> int | None:
    """Look up how much memory this process may use, the machine's or its container's; None where the system does not tell."""
    limits = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for group in _groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((group / name).read_text(encoding="ascii")))
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
    except (AttributeError, OSError, TypeError):  # the last on Windows, where a library has to have a name
        return None
    function.restype = _Mallinfo
    return function


def heap_bytes() -> int | None:
    """Count the bytes that `malloc` holds in all threads, with large blocks; None where the C library does not report it."""
    figures = None if (function := _mallinfo2()) is None else function()
    return None if figures is None else int(figures.uordblks) + int(figures.hblkhd)


class ProcessMemory(NamedTuple):
    """Memory of this process, in bytes; `heap` and `free` are 0 where the C library does not report them."""

    resident: int
    heap: int  # in use
    free: int  # between blocks in use, which `malloc` keeps: what lies behind the last block is given back


def process_memory() -> ProcessMemory | None:
    """Read the memory of this process, in less than 0.1 ms; None where the system does not tell."""
    resident, figures = resident_bytes(os.getpid()), (_mallinfo2() or _Mallinfo)()
    heap, free = figures.uordblks + figures.hblkhd, figures.fordblks - figures.keepcost
    return None if resident is None else ProcessMemory(resident, heap, free)


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


_USED = ("user", "nice", "system", "irq", "softirq", "steal")  # the last is what the host took for another guest
_IDLE = ("idle", "iowait")


def _reading() -> _Reading | None:
    with contextlib.suppress(ImportError, OSError, TypeError, ValueError):  # the last two for counters in another form
        import psutil

        counted = psutil.cpu_times()  # which of them there are depends on the system
        used, idle = (sum(getattr(counted, name, 0.0) for name in names) for names in (_USED, _IDLE))
        return _Reading(at=time.perf_counter(), used=used, idle=idle, own=time.process_time())
    return None


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
