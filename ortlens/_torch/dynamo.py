"""Dynamo: the running compilation, graph breaks, and the time of cache look-ups."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import os
import pathlib
import sys
import tempfile
import time
import types
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd import profiler_legacy as legacy

from ortlens._process import replaced
from ortlens._torch.process import torch_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import CodeType, FrameType


TRACE_LOGGER = "torch.__trace"  # torch/_logging/_internal.py: trace_log; it never propagates and is always at DEBUG


_WRAPPER = ("torch", "_dynamo", "external_utils.py")

_LOOKUP, _REGION, _CLOCK = "TorchDynamo Cache Lookup", "Torch-Compiled Region: ", "ortlens clock"


def current_compile_id() -> str | None:
    """Return Dynamo's id of the running compilation, such as `0/1`; None outside a compilation."""
    from torch._guards import CompileContext

    compile_id = CompileContext.current_compile_id()
    return None if compile_id is None else str(compile_id)


def is_of_dynamo(error: object) -> bool:
    """Tell whether an exception is one that Dynamo raises while it compiles, such as those of `torch/_dynamo/exc.py`."""
    return type(error).__module__.startswith("torch._dynamo")


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Let PyTorch run what `torch.compile` compiled, and compile the bodies of `cond`, `scan` and the like all the same.

    PyTorch compiles these bodies itself when they are called uncompiled, with its backend `eager`; without that their gradients raise, and
    `map` returns another structure (torch 2.13). Each enters `disable_cache_limit` of `torch/_dynamo/utils.py` to do so, and nothing else.
    """
    from torch._dynamo import utils

    plain = utils.disable_cache_limit

    @contextlib.contextmanager
    def compiling() -> Iterator[None]:
        with torch.compiler.set_stance("default"), plain():
            yield

    with torch.compiler.set_stance("force_eager"), replaced(utils, "disable_cache_limit", compiling):
        yield


def is_traced() -> bool:
    """Tell whether torch writes its structured trace now, as with `TORCH_TRACE`; a lens that listens to it does not count."""
    return not all(map(writes_no_trace, logging.getLogger(TRACE_LOGGER).handlers))


def writes_no_trace(handler: logging.Handler) -> bool:
    """Tell whether a handler is that of a lens, which listens and writes nothing."""
    return bool(getattr(handler, "writes_no_trace", False))


def trace_artifact(name: str, value: object) -> None:
    """Write plain data as a JSON artifact into torch's structured trace; tlparse lists it under the running compilation."""
    from torch._logging._internal import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "json"},
        payload_fn=lambda: json.dumps(value, indent=1),
        expect_trace_id=False,
    )


def dynamo_backend() -> object | None:
    """Return the innermost backend, unwrapped, that the running Dynamo compilation uses; None when no compilation is on the stack.

    Dynamo's trace names neither the backend nor the compiled callable, but its frames are on the stack: `ConvertFrame.__call__` in
    `torch/_dynamo/convert_frame.py` holds the backend, in a wrapper of `torch.compile`.
    """
    for frame in _frames("__call__"):
        backend = getattr(frame.f_locals.get("self"), "_torchdynamo_orig_backend", None)
        if backend is not None:
            return innermost_backend(backend)
    return None


def _frames(name: str) -> Iterator[FrameType]:
    """Yield the frames on the stack of functions of a name, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == name:
            yield frame
        frame = frame.f_back


def innermost_backend(backend: object) -> object:
    """Unwrap a backend from those that Dynamo and `torch.compile` put around it."""
    for attribute in ("_torchdynamo_orig_backend", "compiler_fn"):
        inner = getattr(backend, attribute, None)
        if inner is not None and inner is not backend:
            return innermost_backend(inner)
    # `DDPOptimizer.compile_fn` of torch/_dynamo/backends/distributed.py, which Dynamo puts before the backend inside DDP.
    inner = getattr(getattr(backend, "__self__", None), "backend_compile_fn", None)
    return backend if inner is None else innermost_backend(inner)


def dynamo_entry() -> object | None:
    """Identify the `torch.compile` call whose compilation runs, by an object to compare by identity; None outside a compilation."""
    owners = (frame.f_locals.get("self") for frame in _frames("__call__"))
    return next((owner for owner in owners if type(owner).__name__ == "CatchErrorsWrapper"), None)


class CompiledCallable(NamedTuple):
    """A callable that is being compiled."""

    function: object  # the user's function; a bound method for a module
    compiled: Callable[..., Any]  # calls it compiled, as the function of `torch.compile` does
    args: tuple[Any, ...]  # positional arguments of the call that compiles it
    kwargs: dict[str, Any]  # keyword arguments of this call


def compiled_callable() -> CompiledCallable | None:
    """Return the outermost callable whose compilation runs; None outside a compilation.

    `compile_wrapper` in `torch/_dynamo/eval_frame.py` holds the user's function as `fn`, its arguments as `args` and `kwargs`, and the
    context that compiles it as `self`. What was compiled ahead of time is compiled, for a lens, while it is called.
    """
    found: CompiledCallable | None = None
    for frame in _frames("__call__"):
        if compiled_ahead(loaded := frame.f_locals.get("self")) is not None and callable(loaded):
            found = CompiledCallable(loaded, loaded, frame.f_locals.get("args", ()), frame.f_locals.get("kwargs", {}))
    for frame in _frames("compile_wrapper"):  # the outermost is the user's own
        if all(name in frame.f_locals for name in ("fn", "self", "args", "kwargs")):
            function, context, args, kwargs = (frame.f_locals[name] for name in ("fn", "self", "args", "kwargs"))
            found = CompiledCallable(_unwrapped(function), context(function), args, kwargs)
    return found


def traced_scope() -> Mapping[str, Any]:
    """Return the variables of the frame that Dynamo traces, by the roots of its names: `L['self']`; empty at any other time."""
    from torch._dynamo import symbolic_convert

    frame = getattr(symbolic_convert.tls, "current_tx", None)
    return {} if frame is None else {"L": frame.f_locals, "G": frame.f_globals}


def wrapper_of(module: torch.nn.Module) -> Callable[..., Any] | None:
    """Return what Dynamo compiles for a module of a library, as `OptimizedModule` does; None for others, whose `forward` it compiles."""
    from torch._dynamo import external_utils, trace_rules

    is_of_library = inspect.ismethod(module.forward) and trace_rules.check(module.forward)
    return external_utils.wrap_inline(module) if is_of_library else None


def _unwrapped(function: Any) -> Any:
    code = getattr(function, "__code__", None)
    return function.__wrapped__ if code is not None and _is_wrapper(code.co_name, code.co_filename) else function


def _is_wrapper(name: str, file: str) -> bool:
    return name == "inner" and pathlib.Path(file).parts[-3:] == _WRAPPER


def compiled_ahead(target: object) -> object | None:
    """Return what a backend made of a function that `aot_compile` returned or `load_compiled_function` loaded; None for any other."""
    module = sys.modules.get("torch._dynamo.aot_compile")
    return target._artifacts.compiled_fn if module is not None and isinstance(target, module.AOTCompiledFunction) else None


def name_compiled_ahead(target: object) -> str | None:
    """Return the name of the function that was compiled ahead of time, `Module` for a module; None if it is no such function."""
    if compiled_ahead(target) is None:
        return None
    name: str = target._artifacts.original_code.co_qualname  # type: ignore[attr-defined]  # it has
    return name.removesuffix("._wrapped_call_impl")


def modules_compiled_by(backend: object) -> tuple[object, ...]:
    """Find the modules, if still referenced, for which `torch.compile` was called with a backend, whether they ran since or not.

    `OptimizedModule` in `torch/_dynamo/eval_frame.py` holds the module as `_orig_mod`, and the backend in its `dynamo_ctx`.
    """
    import gc

    from torch._dynamo.eval_frame import OptimizedModule

    wrappers = [value for value in gc.get_objects() if type(value) is OptimizedModule]
    return tuple(value._orig_mod for value in wrappers if innermost_backend(getattr(value.dynamo_ctx, "callback", None)) is backend)


def display_code(name: str, file: str, line: int | None) -> tuple[str, str, int | None]:
    """Return name, file and line of the code being compiled as a user knows them.

    Dynamo wraps callables of libraries that it does not trace into, such as `torch.nn.Sequential` or a builtin, in `inner` of `wrap_inline`
    (`torch/_dynamo/external_utils.py`). They get their own name or their module's class, without file and line.
    """
    found = compiled_callable()
    if not _is_wrapper(name, file) or found is None or not callable(found.function):
        return name, file, line
    wrapped = inspect.unwrap(found.function)
    return getattr(wrapped, "__name__", type(wrapped).__name__), "", None


def unlogged_reports() -> contextlib.AbstractContextManager[None]:
    """Keep out of the log what a lens reports, breaks and the limit of recompiles, and refused shapes, which raise as well."""
    names = ("_subclasses.fake_tensor", "_dynamo.variables.tensor", "_dynamo.convert_frame")
    return filtered([logging.getLogger(f"torch.{name}") for name in names], _is_news)


@contextlib.contextmanager
def filtered(those: Sequence[logging.Filterer], passes: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Let loggers or handlers pass on only some records while the block lasts."""
    for each in those:
        each.addFilter(passes)
    try:
        yield
    finally:
        for each in those:
            each.removeFilter(passes)


def _is_news(record: logging.LogRecord) -> bool:
    is_break = record.getMessage().startswith(("Graph break from", "torch._dynamo hit config."))
    return record.name != "torch._subclasses.fake_tensor" and not is_break


def is_signal(error: BaseException) -> bool:
    """Tell whether an exception makes Dynamo start again, break the graph or leave the frame to Python, and is no failure."""
    from torch._dynamo.exc import TorchDynamoException, exceptions_allowed_to_be_fallback

    return isinstance(error, (TorchDynamoException, *exceptions_allowed_to_be_fallback))


def code_being_compiled() -> CodeType | None:
    """Return the user's code that Dynamo compiles, the innermost on the stack; None outside a compilation."""
    return _compilation()[0]


def callers_of_compiled() -> tuple[tuple[str, int, str], ...]:
    """List file, line and function of the frames that call what Dynamo compiles, outermost first; none for the compiled callable itself.

    The frame being compiled is not on the stack yet: outside of torch's own, the next frame is its caller, or `compile_wrapper` of
    `torch/_dynamo/eval_frame.py` for the compiled callable.
    """
    found, caller = list[tuple[str, int, str]](), _frame_of_compile()
    while caller is not None and caller.f_code.co_name != "compile_wrapper":
        if not caller.f_code.co_filename.startswith(torch_folder()):
            found.insert(0, (caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name))
        caller = caller.f_back
    return tuple(found)


def is_compiled_by_itself() -> bool:
    """Tell whether Dynamo compiles a function that code outside torch calls; what follows a graph break in a function does not count."""
    code, _ = _compilation()
    return code is not None and not code.co_name.startswith(_RESUMED) and bool(callers_of_compiled())


_RESUMED = "torch_dynamo_resume_in_"


def line_being_traced(code: CodeType) -> int | None:
    """Find the line of a frame that Dynamo has reached where it reports a graph break; None where no translator is on the stack.

    PyTorch leaves the compiled frame out of the stack where its line calls a function of a frozen module such as `os.path`.
    `log_graph_break` in `torch/_dynamo/symbolic_convert.py` is a method of the translator of a frame, whose `parent` inlines it.
    """
    for caller in _frames("log_graph_break"):
        translator = caller.f_locals.get("self")
        while translator is not None:
            if getattr(translator, "f_code", None) is code:
                line = getattr(translator, "lineno", None)
                return line if isinstance(line, int) and line > 0 else None
            translator = getattr(translator, "parent", None)
    return None


def code_wrapped_by_compiled() -> CodeType | None:
    """Return the code of the function that the compiled function wraps: what its closure holds, as that of a decorator does.

    Of nested decorators it is the innermost function; None outside a compilation, or when the closure holds no function.
    """
    for cell in _compilation()[1]:
        try:
            held = inspect.unwrap(cell.cell_contents)
        except ValueError:  # an empty cell, or functions that wrap each other
            continue
        if isinstance(held, types.FunctionType):
            return held.__code__
    return None


def _compilation() -> tuple[CodeType | None, tuple[types.CellType, ...]]:
    """Return the code that Dynamo compiles, and its closure."""
    frame = _frame_of_compile()
    return (None, ()) if frame is None else (frame.f_locals["code"], frame.f_locals.get("closure") or ())


def _frame_of_compile() -> FrameType | None:
    """Find the innermost frame of `_compile` in `torch/_dynamo/convert_frame.py`, which has the code and its closure as arguments."""
    return next((frame for frame in _frames("_compile") if isinstance(frame.f_locals.get("code"), types.CodeType)), None)


def recompiled_scope() -> Mapping[str, Any]:
    """Return the variables of the user's frame while Dynamo determines why it recompiles, to evaluate a failed guard.

    `get_and_maybe_log_recompilation_reasons` in `torch/_dynamo/guards.py` holds the user's frame as `frame`. The globals are under `G`;
    empty at any other time.
    """
    for caller in _frames("get_and_maybe_log_recompilation_reasons"):
        frame = caller.f_locals.get("frame")
        return {**getattr(frame, "f_locals", {}), "G": getattr(frame, "f_globals", {})}
    return {}


@functools.cache
def graph_break_hints() -> dict[str, tuple[str, ...]]:
    """Map ids of graph breaks to PyTorch's hints, without those that contain placeholders; empty if torch has no such file."""
    hints: dict[str, tuple[str, ...]] = {}
    for gb_id, item in _registered_breaks():
        whole = "\n".join(str(part) for part in item.get("Hints") or ()).replace(" \n", " ")  # the parts of one sentence end in a space
        hints.setdefault(gb_id, tuple(" ".join(hint.split()) for hint in whole.split("\n") if hint.strip() and "{" not in hint))
    return hints


@functools.cache
def graph_break_registry() -> dict[str, str]:
    """Map types of graph breaks, the first lines of their messages, to PyTorch's ids (`GB0025`); empty if torch has no such file."""
    return {str(item["Gb_type"]): gb_id for gb_id, item in _registered_breaks() if "Gb_type" in item}


def _registered_breaks() -> Iterator[tuple[str, dict[str, Any]]]:
    path = pathlib.Path(torch._dynamo.__file__).with_name("graph_break_registry.json")
    with contextlib.suppress(OSError, ValueError):
        for gb_id, items in json.loads(path.read_text(encoding="utf-8")).items():
            yield from ((gb_id, item) for item in items)


@contextlib.contextmanager
def record_lookups(heard: list[tuple[bool, int, int]]) -> Iterator[None]:
    """Record when Dynamo looks up compiled code, including its guards, and when that code runs.

    Fills `heard` at the end, in order, with `(is_lookup, start, end)` on the clock of `time.perf_counter_ns`, accurate to about a
    microsecond. It stays empty while another profiler runs.

    The legacy profiler is used because that of `torch.profiler` writes lines to stderr. Rejected: `profile_guard_manager` in
    `torch/_C/_dynamo/guards.pyi`, which needs the frame's locals, and those exist only during the call; and the figure in the compile
    metrics, which is measured with the CPU's caches flushed. torch marks both events in `torch/csrc/dynamo/eval_frame_cpp.cpp` and
    `torch/_dynamo/convert_frame.py`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profiler: Any = legacy.profile(enabled=not profiler_is_enabled())  # type: ignore[no-untyped-call]  # it has no annotations
        with profiler:
            for _ in range(2):  # aligns the profiler's clock with ours; the first marker is cold
                with torch.autograd.profiler.record_function(_CLOCK):
                    anchor_ns = time.perf_counter_ns()
            yield
    events = sorted(getattr(profiler, "function_events", None) or (), key=lambda event: event.time_range.start)
    anchors = [event.time_range for event in events if event.name == _CLOCK]
    for event in events:
        if event.name == _LOOKUP or event.name.startswith(_REGION):
            start, end = (anchor_ns + round((at - (anchors[-1].start + anchors[-1].end) / 2) * 1000) for at in _ends(event))
            heard.append((event.name == _LOOKUP, start, end))


@contextlib.contextmanager
def record_allocations(sizes: list[int]) -> Iterator[None]:
    """Fill `sizes`, at the end and in order, with the bytes that PyTorch's allocator on the CPU hands out, negative where it takes back.

    It stays empty while another profiler runs; see `record_lookups`.
    """
    if profiler_is_enabled():
        yield
        return
    profiler: Any = legacy  # its names have no annotations
    with _without_warning_of_unknown_blocks():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            profiler._enable_profiler_legacy(profiler.profile(profile_memory=True).config())
        try:
            yield
        finally:
            events = [event for of_thread in profiler._disable_profiler_legacy() for event in of_thread]
            sizes += [event.cpu_memory_usage() for event in events if event.kind() == "memory_alloc"]


@contextlib.contextmanager
def _without_warning_of_unknown_blocks() -> Iterator[None]:
    """Leave out of stderr what c10/core/CPUAllocator.cpp says of memory that is freed and was allocated before, as of the last call."""
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            for line in written:
                if b"Memory block of unknown size" not in line:
                    os.write(2, line)


def profiler_is_enabled() -> bool:
    """Tell whether a profiler of torch runs: starting a second one raises."""
    return bool(getattr(torch.autograd, "_profiler_enabled")())  # noqa: B009 - not exported


def _ends(event: Any) -> tuple[float, float]:
    return event.time_range.start, event.time_range.end


def compiled_apart(target: Any, backend: Any, *, dynamic: bool | None = None) -> Any:
    """Call `torch.compile`; Dynamo's limit of compilations, after which it runs code uncompiled, does not count those of other calls."""
    return torch.compile(target, backend=backend, dynamic=dynamic, isolate_recompiles=True)  # type: ignore[call-overload]  # torch's lack it
