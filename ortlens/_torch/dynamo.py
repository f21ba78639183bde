"""Dynamo: whose compilation this is, what broke, and what its look-ups take."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import pathlib
import sys
import time
import types
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType, FrameType


TRACE_LOGGER = "torch.__trace"  # torch/_logging/_internal.py: trace_log; it never propagates and is always at DEBUG


_WRAPPER = ("torch", "_dynamo", "external_utils.py")

_LOOKUP, _REGION, _CLOCK = "TorchDynamo Cache Lookup", "Torch-Compiled Region: ", "ortlens clock"


def current_compile_id() -> str | None:
    """Dynamo's id of the running compilation.

    Returns:
        Text such as `0/1`, or None outside a compilation.
    """
    from torch._guards import CompileContext

    compile_id = CompileContext.current_compile_id()
    return None if compile_id is None else str(compile_id)


def dynamo_backend() -> object | None:
    """The backend object that the running Dynamo compilation was asked to use.

    Dynamo tells listeners of its trace neither who compiles nor for whom, but its own frames are on the stack:
    `ConvertFrame.__call__` in `torch/_dynamo/convert_frame.py` holds the backend, under a wrapper of `torch.compile`.

    Returns:
        The innermost backend, unwrapped, or None when no compilation is on the stack.
    """
    for owner in _callers_on_stack():
        backend = getattr(owner, "_torchdynamo_orig_backend", None)
        if backend is not None:
            return _innermost(backend)
    return None


def _callers_on_stack() -> Iterator[object]:
    """The `self` of every `__call__` on the stack, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__call__":
            yield frame.f_locals.get("self")
        frame = frame.f_back


def _innermost(backend: object) -> object:
    for attribute in ("_torchdynamo_orig_backend", "compiler_fn"):
        inner = getattr(backend, attribute, None)
        if inner is not None and inner is not backend:
            return _innermost(inner)
    return backend


def dynamo_entry() -> object | None:
    """The outermost object that Dynamo's compilation of this call came through; one per `torch.compile` call.

    Returns:
        An object whose identity tells one compiled callable from another, or None outside a compilation.
    """
    return next((owner for owner in _callers_on_stack() if type(owner).__name__ == "CatchErrorsWrapper"), None)


def compiled_callable() -> tuple[object, Callable[..., Any]] | None:
    """What the running compilation is for: the callable that the user's call of it went through.

    `compile_wrapper` in `torch/_dynamo/eval_frame.py` has the user's function and the context that compiles it as `fn` and `self`.

    Returns:
        The user's function (a bound method for a module), and a function that calls it compiled, like the one that
        `torch.compile` returned; None outside a compilation.
    """
    found: tuple[object, Callable[..., Any]] | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # the outermost is the user's own
        if frame.f_code.co_name == "compile_wrapper" and {"fn", "self"} <= frame.f_locals.keys():
            function, context = frame.f_locals["fn"], frame.f_locals["self"]
            found = function, context(function)
        frame = frame.f_back
    return found


def told_code(name: str, file: str, line: int | None) -> tuple[str, str, int | None]:
    """A code object by its name and place, as a user knows it, while it is compiled.

    What lies in a library that Dynamo does not enter, such as `torch.nn.Sequential` or a builtin, it compiles in a function of its
    own: `inner` of `wrap_inline` in `torch/_dynamo/external_utils.py`.

    Args:
        name: As Dynamo has it.
        file: Likewise.
        line: Likewise.

    Returns:
        The same; for a wrapped callable its own name, a module's class, without a place: no line of the user's is known.
    """
    found = compiled_callable()
    if name != "inner" or pathlib.Path(file).parts[-3:] != _WRAPPER or found is None or not callable(found[0]):
        return name, file, line
    wrapped = inspect.unwrap(found[0])
    return getattr(wrapped, "__name__", type(wrapped).__name__), "", None


def code_being_compiled() -> CodeType | None:
    """The user's code that Dynamo is at: the argument `code` of `_compile` in `torch/_dynamo/convert_frame.py`.

    Returns:
        The innermost one on the stack; None outside a compilation.
    """
    caller: FrameType | None = sys._getframe(1)
    while caller is not None:
        if caller.f_code.co_name == "_compile" and isinstance(code := caller.f_locals.get("code"), types.CodeType):
            return code
        caller = caller.f_back
    return None


def recompiled_scope() -> Mapping[str, Any]:
    """The names that a failed guard speaks of, while Dynamo says why it recompiles.

    `get_and_maybe_log_recompilation_reasons` in `torch/_dynamo/guards.py` has the user's frame as `frame`.

    Returns:
        The frame's locals, and its globals under `G`; empty at any other time.
    """
    caller: FrameType | None = sys._getframe(1)
    while caller is not None:
        if caller.f_code.co_name == "get_and_maybe_log_recompilation_reasons":
            frame = caller.f_locals.get("frame")
            return {**getattr(frame, "f_locals", {}), "G": getattr(frame, "f_globals", {})}
        caller = caller.f_back
    return {}


@functools.cache
def graph_break_hints() -> dict[str, tuple[str, ...]]:
    """PyTorch's hints by the id of the graph break.

    Returns:
        Id -> hints, without those that have blanks to be filled in with what happened; empty when torch has no such file.
    """
    hints: dict[str, tuple[str, ...]] = {}
    for gb_id, item in _registered_breaks():
        whole = "\n".join(str(part) for part in item.get("Hints") or ()).replace(" \n", " ")  # parts of one sentence end in a blank
        hints.setdefault(gb_id, tuple(" ".join(hint.split()) for hint in whole.split("\n") if hint.strip() and "{" not in hint))
    return hints


@functools.cache
def graph_break_registry() -> dict[str, str]:
    """PyTorch's ids of graph breaks by their type.

    Returns:
        Type of the break (the first line of its message) -> id such as `GB0025`; empty when torch has no such file.
    """
    return {str(item["Gb_type"]): gb_id for gb_id, item in _registered_breaks() if "Gb_type" in item}


def _registered_breaks() -> Iterator[tuple[str, dict[str, Any]]]:
    import torch._dynamo

    path = pathlib.Path(torch._dynamo.__file__).with_name("graph_break_registry.json")
    with contextlib.suppress(OSError, ValueError):
        for gb_id, items in json.loads(path.read_text(encoding="utf-8")).items():
            yield from ((gb_id, item) for item in items)


def untold_failures() -> dict[str, int]:
    """What Dynamo could not trace in functions that it inlined, where the log may not have told it.

    torch 2.9 gives up a frame that takes from a generator it cannot trace, and tells the reason nobody: it raises a
    `SkipFrame` of no text (`LocalGeneratorObjectVariable.next_variable` in `torch/_dynamo/variables/functions.py`, which
    2.13 does not import `SkipFrame` into). The text remains in `counters` of `torch/_dynamo/utils.py`.

    Returns:
        Dynamo's message -> how often; empty on a torch that tells.
    """
    from torch._dynamo import utils
    from torch._dynamo.variables import functions

    return dict(utils.counters.get("inline_call", {})) if hasattr(functions, "SkipFrame") else {}


@contextlib.contextmanager
def lookups_heard(heard: list[tuple[bool, int, int]]) -> Iterator[None]:
    """Listen to Dynamo looking for compiled code, its guards included, and to that code starting.

    torch marks both for its profiler (`TorchDynamo Cache Lookup` in `torch/csrc/dynamo/eval_frame_cpp.cpp`, `Torch-Compiled
    Region` in `torch/_dynamo/convert_frame.py`). The older profiler is taken: what `torch.profiler` is built on writes lines to
    stderr of its own. Rejected: `profile_guard_manager` in `torch/_C/_dynamo/guards.pyi`, which needs the locals of the frame,
    that exist during the call alone; and its figure in the compile metrics, which is taken after a flush of the CPU's caches.

    Args:
        heard: Filled in order: `(True, start, end)` for a look-up, `(False, start, end)` for compiled code; on the clock of
            `time.perf_counter_ns`, to about a microsecond. Nothing is heard by a torch without that profiler, or while another
            profiler runs.
    """
    import torch

    try:
        from torch.autograd import profiler_legacy as legacy
    except ImportError:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profiler: Any = legacy.profile(enabled=not getattr(torch.autograd, "_profiler_enabled")())  # type: ignore[no-untyped-call]  # noqa: B009 - not exported
        with profiler:
            for _ in range(2):  # the first one is cold; the profiler has a clock of its own, and this ties it to ours
                with torch.autograd.profiler.record_function(_CLOCK):
                    anchor_ns = time.perf_counter_ns()
            yield
    events = sorted(getattr(profiler, "function_events", None) or (), key=lambda event: event.time_range.start)
    anchors = [event.time_range for event in events if event.name == _CLOCK]
    for event in events:
        if event.name == _LOOKUP or event.name.startswith(_REGION):
            start, end = (anchor_ns + round((at - (anchors[-1].start + anchors[-1].end) / 2) * 1000) for at in _ends(event))
            heard.append((event.name == _LOOKUP, start, end))


def _ends(event: Any) -> tuple[float, float]:
    return event.time_range.start, event.time_range.end


@contextlib.contextmanager
def compiled_apart() -> Iterator[dict[str, Any]]:
    """Around compiling and calling a function whose other compilations must neither help nor count.

    Dynamo compiles one code object a limited number of times, whatever the backend, and then gives up without a word.
    torch 2.13 keeps the compilations of one `torch.compile` apart when asked; before, the limit is lifted meanwhile.

    Yields:
        Keyword arguments for `torch.compile`.
    """
    import inspect

    import torch

    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        yield {"isolate_recompiles": True}
        return
    import torch._dynamo

    with torch._dynamo.config.patch(recompile_limit=1 << 20, accumulated_recompile_limit=1 << 20):
        yield {}
