"""The only file of ortlens that uses private names of onnxruntime.

The public `IOBinding` of ONNX Runtime 1.31 (`onnxruntime/capi/onnxruntime_inference_collection.py`) wraps every call in
Python checks and needs numpy dtypes. The native classes below it take element types as numbers (so bfloat16 works) and take
a third of the time. Only the native `OrtValue` supports DLPack.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import onnxruntime

from ortlens._process import fewer_cores
from ortlens._versions import provider_libraries, registered_libraries
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import EllipsisType

    import torch

    from ortlens.trace.records import Refusal

_native = onnxruntime.capi._pybind_state


def keep_with(session: onnxruntime.InferenceSession, values: Sequence[Any], calls: object) -> None:
    """Keep with a session, whoever has it, how it is called, and values: ONNX Runtime does not own what `add_initializer` gives it."""
    vars(session).update(_ortlens_values=values, _ortlens_calls=calls)


def calls_of(session: onnxruntime.InferenceSession) -> Any:
    """Return what `keep_with` was given for the calls of a session; None for one that is called without more ado."""
    return vars(session).get("_ortlens_calls")


_WARNING, _FATAL = 2, 4  # severities; the first is that of the default logger when a process starts


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep messages of the default logger from stderr, which the options of a session do not reach.

    On CUDA, ScatterND warns there, and each convolution for which cuDNN refuses one of several forms prints an error. What fails raises
    anyway. It is the only logger of the process, and its severity cannot be read: afterwards it is that of the start.
    """
    onnxruntime.set_default_logger_severity(_FATAL)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(_WARNING)


def run_options(entries: Mapping[str, str]) -> Any:
    """Make run options with some entries; None without any, which costs a run less."""
    if not entries:
        return None
    made = _native.RunOptions()
    for key, value in entries.items():
        made.add_run_config_entry(key, value)
    return made


def device(kind: int, index: int) -> Any:
    """Make an `OrtDevice` with default memory."""
    return _native.OrtDevice(kind, 0, index)


def new_binding(session: onnxruntime.InferenceSession) -> Any:
    """Return a native `SessionIOBinding`; it does not keep its session alive, and using it without the session crashes."""
    return _native.SessionIOBinding(session._sess)


def runner_of(session: onnxruntime.InferenceSession) -> Any:
    """Return the native call that runs a session, as a function of a binding and run options (or None)."""
    return session._sess.run_with_iobinding


def first_run_of(session: onnxruntime.InferenceSession) -> Any:
    """Return `shrinking_run_of` for one first run; None if the session has run.

    From a second run of the same sizes on, ONNX Runtime keeps all activations of a call in one block, and never again uses what the
    first run took for them one by one.
    """
    if vars(session).get("_ortlens_has_run"):
        return None
    vars(session)["_ortlens_has_run"] = True
    if (allocate := getattr(session._sess, "create_ortvalue_from_shape_and_type", None)) is not None:  # not in OpenVINO's build
        allocate([1], np.float32, device(0, 0))  # the first block of an arena is never given back: let it not be one of activations
    return shrinking_run_of(session)


def shrinking_run_of(session: onnxruntime.InferenceSession) -> Any:
    """Return what `runner_of` returns, for runs that give back the memory of the session's arena; None if it has none."""
    if not session.get_session_options().enable_cpu_mem_arena:
        return None
    options, run = run_options({"memory.enable_memory_arena_shrinkage": "cpu:0"}), runner_of(session)
    return lambda native, _: run(native, options)


def value_over(tensor: torch.Tensor) -> onnxruntime.OrtValue:
    """Wrap the memory of a contiguous, detached tensor in an ONNX Runtime value, without copying; the value keeps the tensor alive."""
    import torch

    to_dlpack = torch.to_dlpack  # type: ignore[attr-defined]  # exported, but not in torch's annotations
    is_bool = tensor.dtype is torch.bool  # DLPack of either side passes bools as bytes unless asked otherwise
    try:
        value = _native.OrtValue.from_dlpack(to_dlpack(tensor.view(torch.uint8) if is_bool else tensor), is_bool)
    except TypeError:  # from version 1.32 on, it takes one argument, and reads bools as such
        value = _native.OrtValue.from_dlpack(to_dlpack(tensor))
    return onnxruntime.OrtValue(value)


def tensor_over(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """Wrap an element of `binding.get_outputs()` in a tensor that keeps its memory alive, without copying; bools arrive as bytes."""
    import torch

    tensor: torch.Tensor = torch.from_dlpack(value.to_dlpack())  # type: ignore[attr-defined]  # same
    return tensor.view(torch.bool) if dtype is torch.bool and tensor.dtype is not torch.bool else tensor


def bytes_of(value: onnxruntime.OrtValue, itemsize: int) -> bytes:
    """Copy the memory of a CPU value, without gaps, of a type that numpy does not know, such as bfloat16 or float8."""
    native: Any = value._ortvalue  # DLPack passes bfloat16 alone
    return ctypes.string_at(native.data_ptr(), math.prod(value.shape()) * itemsize)


def cuda_libraries() -> list[str]:
    """Name the shared libraries that a build for CUDA loads on Linux, without the driver's."""
    return [path[-1] for path in onnxruntime._get_nvidia_dll_paths(is_windows=False)]


CPU = "CPUExecutionProvider"
_MOST_BYTES = 1 << 24  # of what another process writes


def _in_child(code: str, given: str, timeout_s: float) -> tuple[int | None, str]:
    """Run Python code in a process of its own; return its exit status, None where it was ended after a time, and what it wrote.

    It writes to a file: a process that a provider starts may hold a pipe open for ever.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.run(  # noqa: S603 - our own text
                [sys.executable, "-c", code],
                env=variables,
                input=given.encode(),  # options may hold secrets, and arguments are for all to see
                stdout=output,
                stderr=output,
                check=False,
                timeout=timeout_s,
            )
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            status = None
        output.seek(0)
        return status, output.read(_MOST_BYTES).decode(errors="replace")


_ANSWER = "ortlens: "
_LIST_IN_CHILD = f"""
import json, sys
import onnxruntime.capi._pybind_state as native
try:
    kernels = native.get_registered_ep_kernel_defs(sys.stdin.read())
except RuntimeError:
    sys.exit(3)
rows = [[k.domain, k.op_name, k.version_range, {{n: list(t) for n, t in k.type_constraints.items()}}] for k in kernels]
print("\\n{_ANSWER}" + json.dumps(rows))
"""
_UNKNOWN_THERE = 3  # exit status of the child: a library that only this process has registered
_LIST_S = 120


class ListedKernel(NamedTuple):
    """One kernel of a provider's own table."""

    domain: str
    operator: str
    versions: tuple[int, int]  # first and last operator set
    types: Mapping[str, tuple[str, ...]]  # element types by type constraint such as `T`


@functools.cache
def listed_kernels(provider: str) -> tuple[ListedKernel, ...] | None:
    """List the installed kernels of a provider; none of one that compiles graphs, None where it cannot be asked.

    Another than the CPU's is asked in a process of its own: it loads its libraries and its device for that, and may end the process.
    """
    if provider != CPU and (asked := _listed_in_child(provider)) is not ...:
        return asked
    try:
        kernels = _native.get_registered_ep_kernel_defs(provider)
        return tuple(_plain(each.domain, each.op_name, each.version_range, each.type_constraints) for each in kernels)
    except (RuntimeError, AttributeError):  # no such provider, no device of it, or OpenVINO's build, which cannot list it
        return None


def _listed_in_child(provider: str) -> tuple[ListedKernel, ...] | EllipsisType | None:
    """Ask another process; `...` for a provider that only this one knows, which is asked here."""
    try:
        status, said = _in_child(_LIST_IN_CHILD, provider, _LIST_S)
        if status == _UNKNOWN_THERE and provider in onnxruntime.get_available_providers():
            return ...
        rows = json.loads(said.rpartition(f"\n{_ANSWER}")[2].partition("\n")[0]) if status == 0 else None
    except (OSError, ValueError):
        return None
    return None if rows is None else tuple(_plain(*row) for row in rows)


_MAKE_IN_CHILD = f"""
import json, sys, time, onnxruntime
import onnxruntime.capi._pybind_state as native
from ortlens._ort import session_from
constructed, clock = native.InferenceSession, []
native.InferenceSession = lambda *arguments: (constructed(*arguments), clock.append(time.time_ns()))[0]
given = json.loads(sys.stdin.read())
for name in given["libraries"].keys() - set(onnxruntime.get_available_providers()):
    onnxruntime.register_execution_provider_library(name, given["libraries"][name])
for each in given["sessions"]:
    print("\\n{_ANSWER}", file=sys.stderr, flush=True)
    try:
        clock[:] = [time.time_ns()]
        session = session_from(each)
        clock.append(time.time_ns())
        del session
    except Exception:
        clock.clear()
    print("{_ANSWER}" + json.dumps(clock), file=sys.stderr, flush=True)
"""
_SETTINGS = ("enable_cpu_mem_arena", "execution_mode", "graph_optimization_level", "intra_op_num_threads", "use_deterministic_compute")
_ENTRIES = ("session.disable_cpu_ep_fallback", "session.disable_prepacking", "optimization.disable_specified_optimizers")
"""Entries of session options that may change what a provider takes, or how long that is; they cannot be listed."""


class SessionRequest(NamedTuple):
    """A session that is in use, so that one like it can be made."""

    model_id: str  # its model in the records
    providers: Sequence[tuple[str, Mapping[str, Any]]]  # that were asked for
    options: onnxruntime.SessionOptions | None  # those that it was made with, None for the defaults
    written: Callable[[Path], tuple[str, list[str]]]  # writes its model into a folder; returns the path, and the rewrites to disable
    sizes: Mapping[str, int] = MappingProxyType({})  # of dimensions, by name


class SessionLog(NamedTuple):
    """What was said when a session was made in a process of its own."""

    lines: Sequence[str]
    outcome: Literal["made", "refused", "ended"]  # `ended`: the process, by a crash or after a time
    clock: Sequence[int] = ()  # ns at the start, when the model was read, and at the end; empty unless it was made


def requested_of(session: onnxruntime.InferenceSession) -> list[tuple[str, Mapping[str, Any]]]:
    """List the providers of a session with their options, as `InferenceSession` takes them."""
    return [(name, session.get_provider_options().get(name, {})) for name in session.get_providers()]


def session_logs(requests: Sequence[SessionRequest], *, severity: int = _WARNING) -> list[SessionLog]:
    """Make sessions once more, in a process of its own that may crash, and return what ONNX Runtime and the providers said of each.

    Another process goes on after a session at which one ended by itself. Sessions that are left after half a minute have no log.
    """
    with tempfile.TemporaryDirectory(prefix="ortlens-sessions-", ignore_cleanup_errors=True) as folder:
        return _logs_of([_as_data(request, Path(folder), severity) for request in requests])


def _logs_of(sessions: Sequence[Mapping[str, Any]], timeout_s: float = 30) -> list[SessionLog]:
    if not sessions:
        return []
    known = registered_libraries()
    libraries = {name: known[name][0] for each in sessions for name, _ in each["providers"] if name in known}
    status, output = _in_child(_MAKE_IN_CHILD, json.dumps({"libraries": libraries, "sessions": sessions}), timeout_s)
    parts = [part.partition(_ANSWER) for part in output.split(f"\n{_ANSWER}\n")[1:]]
    clocks = [json.loads(rest.partition("\n")[0] or "[]") for _, _, rest in parts]
    logs = [SessionLog(text.splitlines(), "made" if clock else "refused", clock) for (text, _, _), clock in zip(parts, clocks, strict=True)]
    if status == 0 or not logs:
        return logs
    end = f"took longer than {timeout_s:.0f} s" if status is None else f"ended its process, with status {status}"
    logs[-1] = SessionLog([*logs[-1].lines, f"making the session {end}"], "ended")
    return logs + _logs_of([] if status is None else sessions[len(logs) :], timeout_s)


def start_trials(request: SessionRequest, timeout_s: float) -> dict[str, int]:
    """Make a session as it is, `first` and `again`, from a `saved` optimised model, and from its provider's `compiled` one; return the ns.

    All in one process, as long as none ends it. What does not work, or is left after the time, is left out.
    """
    with tempfile.TemporaryDirectory(prefix="ortlens-starts-", ignore_cleanup_errors=True) as folder:
        plain = _as_data(request, Path(folder), _FATAL)
        settings, saved, compiled = plain["settings"], f"{folder}/saved.onnx", f"{folder}/compiled.onnx"
        ways = {"first": plain, "again": plain, "save": plain | {"settings": settings | {"optimized_model_filepath": saved}}}
        ways["saved"] = plain | {"model": saved, "settings": settings | {"graph_optimization_level": 0}}
        if {name for name, _ in request.providers} != {CPU}:
            entries = plain["entries"] | {"ep.context_enable": "1", "ep.context_file_path": compiled}
            ways |= {"compile": plain | {"entries": entries}, "compiled": plain | {"model": compiled}}
        return {
            way: log.clock[-1] - log.clock[0] for way, log in zip(ways, _logs_of([*ways.values()], timeout_s), strict=False) if log.clock
        }


def tried_in_child(module: str, request: SessionRequest, given: Mapping[str, Any], timeout_s: float) -> Any:
    """Call a module's `answer` in a process of its own, on what a session is made of; return its JSON, None where it failed."""
    with tempfile.TemporaryDirectory(prefix="ortlens-trials-", ignore_cleanup_errors=True) as folder:
        data = _as_data(request, Path(folder), _FATAL) | dict(given)
        status, output = _in_child(f"from {module} import answer; answer()", json.dumps(data), max(timeout_s, 0))
    return json.loads(output.rpartition("\n")[2]) if status == 0 else None


def session_from(data: Mapping[str, Any]) -> onnxruntime.InferenceSession:
    """Make a session in a child, from what its parent gave it."""
    options = onnxruntime.SessionOptions()
    for name, value in data["settings"].items():
        setattr(options, name, type(getattr(options, name))(value))
    for entry in data["entries"].items():
        options.add_session_config_entry(*entry)
    for size in data["sizes"].items():
        options.add_free_dimension_override_by_name(*size)
    arguments = {"providers": [*map(tuple, data["providers"])], "disabled_optimizers": data["without"] or None}
    return onnxruntime.InferenceSession(data["model"], options, enable_fallback=0, **arguments)


def _as_data(request: SessionRequest, folder: Path, severity: int) -> dict[str, Any]:
    options = request.options or onnxruntime.SessionOptions()
    model, without = request.written(folder)
    return {
        "model": model,
        "without": without,
        "sizes": dict(request.sizes),
        "providers": [(name, {key: str(value) for key, value in settings.items()}) for name, settings in request.providers],
        "settings": {name: int(getattr(options, name)) for name in _SETTINGS} | {"log_severity_level": severity},
        "entries": {key: value for key in _ENTRIES if (value := config_entry(options, key))},
    }


def _plain(domain: str, operator: str, versions: Any, constraints: Mapping[str, Sequence[str]]) -> ListedKernel:
    types = {name: tuple(kind.removeprefix("tensor(").removesuffix(")") for kind in kinds) for name, kinds in constraints.items()}
    return ListedKernel(domain, operator, tuple(versions), types)


@functools.cache
def kernel_types(provider: str, operator: str, opset: int) -> dict[str, frozenset[str]]:
    """Find the element types of a provider's kernels of an operator, by type constraint such as `T`; empty if none are listed.

    A missing type does not always mean that a session fails: ONNX Runtime casts float16 on the CPU, and expands operators that are defined
    as functions, such as Gelu.
    """
    found: dict[str, frozenset[str]] = {}
    for kernel in listed_kernels(provider) or ():
        first, last = kernel.versions
        if (kernel.domain, kernel.operator) == ("", operator) and first <= opset <= last:
            for name, types in kernel.types.items():
                found[name] = found.get(name, frozenset()).union(types)
    return found


def refusal(provider: str, domain: str, operator: str, opset: int, types: Iterable[str]) -> tuple[Refusal, tuple[str, ...]]:
    """Find in a provider's own table why it does not run a node: the cause, and the operator sets or types that it is about.

    `types` are those that the node reads, in ONNX Runtime's words.
    """
    kernels = listed_kernels(provider)
    if not kernels:
        return ("unlisted" if kernels is None else "compiles"), ()
    named = [kernel for kernel in kernels if (kernel.domain, kernel.operator) == ("" if domain == "ai.onnx" else domain, operator)]
    if not named:
        return "no_kernel", ()
    fitting = [kernel for kernel in named if kernel.versions[0] <= opset <= kernel.versions[1]]
    if not fitting:
        return "opset", (f"{min(kernel.versions[0] for kernel in named)} to {max(kernel.versions[1] for kernel in named)}", str(opset))
    known = {kind for kernel in fitting for names in kernel.types.values() for kind in names}
    strange = tuple(sorted(set(types) - known)) if all(kernel.types for kernel in fitting) else ()
    return ("dtype", strange) if strange else ("chosen", ())


def require_provider(name: str, option: str, available: Sequence[str]) -> None:
    """Refuse a provider that an option names if it is not available; the `UsageError` says which libraries could be registered."""
    if name not in available:
        lines = [each.registering for each in provider_libraries()]
        register = f". Before, register the library of a package: {' or '.join(lines)}" if lines else ""
        said = f"which is not available; the installed ONNX Runtime has {', '.join(available)}"
        raise UsageError(f"{option} names {name!r}, {said}{register}")


def model_of(session: onnxruntime.InferenceSession) -> tuple[str | None, bytes | None]:
    """Return the path and the bytes of a session's model, one of them None; both where ONNX Runtime does not keep them."""
    return getattr(session, "_model_path", None), getattr(session, "_model_bytes", None)


def config_entry(options: onnxruntime.SessionOptions, key: str) -> str:
    """Return an entry of session options; empty where there is none, for which ONNX Runtime raises."""
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return ""


def options_of(session: onnxruntime.InferenceSession) -> onnxruntime.SessionOptions | None:
    """Return the user's own options of a session, None if none are known; those that it returns itself have lost its custom operators."""
    return getattr(session, "_sess_options_initial", None)


_EMPTY = bytes.fromhex("08083a251201675a0f0a0178120a0a08080112040a020801620f0a0178120a0a08080112040a02080142040a001012")
"""A model without nodes, which returns its input."""
_COUNT_IN_CHILD = f"""
import os, onnxruntime
before = len(os.listdir("/proc/self/task"))
session = onnxruntime.InferenceSession({_EMPTY!r}, providers=["{CPU}"])
print("\\n{_ANSWER}", 1 + len(os.listdir("/proc/self/task")) - before)
"""


@functools.cache
def default_threads() -> int | None:
    """Count the threads that ONNX Runtime gives an operator by itself, in another process; None where the system lists no threads.

    In 1.31, it is one per physical core of the machine, whatever affinity and quota of the process are.
    """
    with contextlib.suppress(OSError, ValueError):
        return int(_in_child(_COUNT_IN_CHILD, "", 30)[1].rpartition(f"\n{_ANSWER}")[2])
    return None


def threads_of(options: onnxruntime.SessionOptions) -> int:
    """Return the threads of an operator: as set, else as ONNX Runtime chooses if that may be more than the usable cores, else 0."""
    return options.intra_op_num_threads or (fewer_cores() and default_threads()) or 0


class Assignment(NamedTuple):
    """A subgraph that ONNX Runtime gave to a provider: one that it compiles, or a single node for one of its kernels."""

    provider: str
    nodes: tuple[str, ...]  # names


_RECORD = "session.record_ep_graph_assignment_info"


def record_assignments(options: onnxruntime.SessionOptions) -> None:
    """Have sessions with these options record which provider gets which node. The entry stays; by itself it changes nothing."""
    if not config_entry(options, _RECORD):
        options.add_session_config_entry(_RECORD, "1")


def assignments(session: onnxruntime.InferenceSession) -> tuple[Assignment, ...]:
    """Return what a session recorded of its providers; nothing if it was not asked to, or is of an ONNX Runtime that cannot."""
    try:
        subgraphs = session.get_provider_graph_assignment_info()
    except Exception:  # noqa: BLE001 - an exception class of its own
        return ()
    return tuple(Assignment(each.ep_name, tuple(node.name for node in each.get_nodes())) for each in subgraphs)


_WEIGHTS_FILE = "weights.bin"
_WATCHED = {
    "session.optimized_model_external_initializers_file_name": _WEIGHTS_FILE,
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
}


@contextlib.contextmanager
def watched(options: onnxruntime.SessionOptions, folder: Path, *, ours: bool, with_model: bool) -> Iterator[None]:
    """Have a session made inside with these options write `profile*.json` and `optimized.onnx`; then restore the user's options.

    Weights of the optimised model go to a file beside it. Where there is a null device, that file is a link to it, so that they are never
    written. The entries for this cannot be removed again, so the user's own options do not get them: there the weights stay inside the
    model. Providers that compile graphs cannot write a model.
    """
    kept = options.enable_profiling, options.profile_file_prefix, options.optimized_model_filepath, options.log_severity_level
    if ours:
        record_assignments(options)
        for key, value in _WATCHED.items():
            options.add_session_config_entry(key, value)
        if with_model and os.name == "posix":
            (folder / _WEIGHTS_FILE).symlink_to(os.devnull)
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    options.log_severity_level = _FATAL  # it would warn that the optimised model is written
    options.optimized_model_filepath = str(folder / "optimized.onnx") if with_model else ""
    try:
        yield
    finally:
        options.enable_profiling, options.profile_file_prefix, options.optimized_model_filepath, options.log_severity_level = kept
