"""What `explain` does with an ONNX model, and `watch` with a running session: read it, call it, record."""

from __future__ import annotations

import copy
import functools
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import onnxruntime

from ortlens import _ort
from ortlens._os_errors import clear_os_errors
from ortlens._process import at_cost
from ortlens.backend.basis.options import OrtBackendOptions
from ortlens.errors import SessionError, UsageError
from ortlens.lens.onnx_model.onnx_lens import OnnxLens
from ortlens.lens.onnx_model.sessions import SessionChoice, choice_from, new_session, run, runner_of
from ortlens.lens.onnx_model.signature import FALLBACK_SIZES, feeds_from, generated, inputs_from_session, inputs_of
from ortlens.lens.onnx_model.source import ModelSource, source_of, with_names
from ortlens.lens.profiling.forecast import RULED, provider_to_forecast

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import onnx

    from ortlens.lens.observing.session_memory import SessionMemory
    from ortlens.lens.onnx_model.signature import Feed, Input
    from ortlens.trace.runlog import RunLog


STABLE_NS = 1_000_000_000  # calls for about a second, as for other targets
MAX_CALLS = 200
_MOST_COPIED = 1 << 30  # bytes of a session that a second one may take once more
_Kind = TypeVar("_Kind", bound=OnnxLens)


def explain_model(  # noqa: PLR0913 - those of `explain`
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    dry_run: bool = False,
    calls: int | None = None,
    name: str | None = None,
    keep_values: bool = False,
) -> Callable[..., OnnxLens]:
    """Explain an ONNX model; `ortlens.explain` calls this."""
    planned = provider_to_forecast(OrtBackendOptions.from_any(options)) if dry_run else None
    choice = choice_from(options, also=RULED if dry_run else ())
    source = source_of(model)

    @clear_os_errors
    def explained(*args: Any, **kwargs: Any) -> OnnxLens:
        structure = None if source.structure is None else with_names(source.structure)
        if dry_run and structure is None:
            raise UsageError(f"{source.name} is in ONNX Runtime's own format, whose structure only a session knows; leave out dry_run=True")
        session, create_ns, held = (None, 0, None) if dry_run else _timed_session(source, choice)
        inputs = inputs_of(structure) if structure is not None else inputs_from_session(session)
        lens = OnnxLens(source, inputs, choice, name=name or source.name, structure=structure)
        feeds = feeds_from(inputs, args, kwargs)
        lens.note(**({"onnx_inputs_made": f"the latest of {len(feeds)} inputs, called in turn"} if len(feeds) > 1 else {}))
        if session is None:
            feed, sizes = (feeds[-1], None) if feeds else generated(inputs)
            lens.note(dry_run="1", **({} if sizes is None else {"onnx_inputs_made": _sizes_text(sizes, "sizes that were assumed")}))
            lens.called(feed, {})
            lens.result = None
            lens.forecast(planned)
            return lens
        log = lens.began(session, create_ns=create_ns, held_bytes=held)
        for given in feeds or (None,):
            started, used, outputs = _first_call(lens, session, inputs, source, given)
            _logged(log, started)
            lens.called(used, outputs)
        if calls != 1:
            lens.result = _repeated(session, inputs, feeds or [used], log, calls) or outputs
            if calls is None and (held or 0) <= _MOST_COPIED:
                lens.try_fewer_threads(used)
        if keep_values:
            lens.keep_values()
        return lens

    return explained


def _timed_session(source: ModelSource, choice: SessionChoice) -> tuple[onnxruntime.InferenceSession, int, int | None]:
    options = choice.made_options()
    if [name for name, _ in choice.providers] != [_ort.CPU]:  # nodes may run on several
        _ort.record_assignments(options)
    return at_cost(functools.partial(new_session, source, choice, options))


def _first_call(
    lens: OnnxLens, session: onnxruntime.InferenceSession, inputs: tuple[Input, ...], source: ModelSource, given: Feed | None
) -> tuple[int, Feed, dict[str, Any]]:
    """Call with given inputs, else with some made from the signature: the first sizes that ONNX Runtime accepts."""
    if given is not None:
        return time.perf_counter_ns(), given, run(session, inputs, given, source.name)
    first: SessionError | None = None
    seen: set[str] = set()
    for size in FALLBACK_SIZES:
        for zeros in (False, True):
            try:
                feed, sizes = generated(inputs, size=size, zeros=zeros)
            except UsageError:  # too large, with this size
                if first is None:
                    raise
                continue
            key = f"{sorted(sizes.items())} {zeros}"
            if key in seen:
                continue
            seen.add(key)
            started = time.perf_counter_ns()
            try:
                outputs = run(session, inputs, feed, source.name)
            except SessionError as error:
                first = first or error
                continue
            lens.note(onnx_inputs_made=_sizes_text(sizes) + (", integers 0" if zeros else ""))
            return started, feed, outputs
    names = ", ".join(f"{each.name}={each.text()}" for each in inputs)
    said = str(first).rstrip(".")
    raise SessionError(f"{said}. No inputs were given, and none that were made from its signature suit it; give them: {names}") from first


def _sizes_text(sizes: Mapping[str, int], how: str = "random numbers") -> str:
    chosen = ", ".join(f"{name}={size}" for name, size in sizes.items())
    return f"{how}{f', {chosen}' if chosen else ''}"


def _logged(log: RunLog, started: int) -> None:
    done = time.perf_counter_ns()
    log.record(started, started, done, done, threading.get_ident())


def _repeated(
    session: onnxruntime.InferenceSession, inputs: tuple[Input, ...], feeds: Sequence[Feed], log: RunLog, calls: int | None
) -> dict[str, Any] | None:
    """Call again on the same inputs, each as often, for stable figures; return the outputs of the last call, None if there was none."""
    runners, outputs = [runner_of(session, inputs, feed) for feed in feeds], None
    deadline = time.perf_counter_ns() + STABLE_NS
    for place in range(max(calls or MAX_CALLS, len(feeds)) // len(feeds) * len(feeds) - len(feeds)):
        started = time.perf_counter_ns()
        if calls is None and started > deadline and place % len(feeds) == 0:
            break
        outputs = runners[place % len(feeds)]()
        _logged(log, started)
    return None if outputs is None else dict(zip([value.name for value in session.get_outputs()], outputs, strict=True))


_METHODS = ("run", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector")
"""What is recorded. `run_async` returns before the work is done, and is not."""


def watch(
    session: onnxruntime.InferenceSession, *, name: str | None = None, journal: str | os.PathLike[str] | None = None, keep_inputs: int = 0
) -> OnnxLens:
    """Record the calls of a running session. Its answers, errors and options stay as they are.

    Every `run`, `run_with_iobinding`, `run_with_ort_values` and `run_with_ortvaluevector` is timed, in any thread, for a few
    microseconds. Watching ends with `close()`, at the end of a `with` block, or when the lens is garbage. Several lenses may watch one.

    Args:
        session: The session. Its model is read from its path or bytes once more, without the weights; if neither is at hand, nodes,
            operators and kernels stay unknown, and calls are recorded all the same.
        name: Name of the capture; by default that of the model.
        journal: A file to which everything is written as it comes, as for `Lens`.
        keep_inputs: Copy the inputs of this many of the latest calls of `run`, for `lens.verify(reference, *lens.kept_inputs)`.

    Returns:
        The lens.

    Raises:
        UsageError: `session` is no `InferenceSession`, `keep_inputs` is no whole number from 0, or the journal cannot be written.

    Example:
        >>> import numpy as np, onnx, onnxruntime, ortlens
        >>> x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
        >>> y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
        >>> graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "negated", [x], [y])
        >>> model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
        >>> session = onnxruntime.InferenceSession(model.SerializeToString())
        >>> with ortlens.watch(session, keep_inputs=1) as lens:
        ...     for value in (1, 2):
        ...         _ = session.run(None, {"x": np.full(2, value, np.float32)})
        >>> int(lens.sessions.calls.iloc[0]), [feed["x"].tolist() for feed in lens.kept_inputs]
        (2, [[2.0, 2.0]])
    """
    if not isinstance(session, onnxruntime.InferenceSession):
        raise UsageError(f"watch() takes an onnxruntime.InferenceSession, not {type(session).__name__}; explain() takes models")
    if not isinstance(keep_inputs, int) or keep_inputs < 0:
        raise UsageError(f"keep_inputs must be a whole number from 0, not {keep_inputs!r}")
    return watching(session, OnnxLens, name=name, journal=journal, keep_inputs=keep_inputs)


def watching(
    session: onnxruntime.InferenceSession, kind: type[_Kind], *, name: str | None, journal: Any = None, keep_inputs: int = 0
) -> _Kind:
    """Make a lens of some kind that records the calls of a session."""
    source, structure = _source(session)
    settings = session.get_provider_options()
    choice = SessionChoice(
        providers=tuple((provider, settings.get(provider, {})) for provider in session.get_providers()),
        options=_ort.options_of(session),
    )
    inputs = inputs_of(structure) if structure is not None else inputs_from_session(session)
    lens = kind(source, inputs, choice, name=name or source.name, structure=structure, journal=journal)
    lens.note(onnx_model="session")
    log = lens.began(session, create_ns=0, held_bytes=None)
    lens.kept_inputs = kept = deque[Any](maxlen=keep_inputs)
    log.on_room = None  # its memory is looked at by sizes
    lens.note_watching(functools.partial(_recorded, session, log, kept))
    return lens


def _source(session: onnxruntime.InferenceSession) -> tuple[ModelSource, onnx.ModelProto | None]:
    """Find the model of a session, as far as it can be read and is still the same."""
    path, data = _ort.model_of(session)
    unknown = ModelSource(name=session.get_modelmeta().graph_name or "session")
    given = data if data is not None else path
    if given is None:
        return unknown, None
    try:
        source = source_of(given)
    except (UsageError, OSError):  # the file is gone, or another one by now
        return unknown, None
    if source.structure is None:
        return source, None
    same_inputs = {each.name for each in inputs_of(source.structure)} == {value.name for value in session.get_inputs()}
    same_outputs = {value.name for value in source.structure.graph.output} == {value.name for value in session.get_outputs()}
    return (source, with_names(source.structure)) if same_inputs and same_outputs else (unknown, None)


def _recorded(session: onnxruntime.InferenceSession, log: RunLog, kept: deque[Feed], memory: SessionMemory) -> Callable[[], None]:
    """Put a clock around the methods that run a session.

    The session gets a subclass of its own class, whose methods record. An attribute of the session in place of a method would make
    it part of a cycle, so that it would not be freed with its last reference.
    """
    base, recording = type(session), [True]
    watched = type(base.__name__, (base,), {"__slots__": (), "__module__": base.__module__, "__qualname__": base.__qualname__})
    for name in _METHODS:
        if callable(method := getattr(base, name, None)):
            setattr(watched, name, _timed(method, log, memory, kept if name == "run" else deque(maxlen=0), recording))
    session.__class__ = watched
    return functools.partial(_stopped, weakref.ref(session), watched, base, recording)


def _timed(method: Callable[..., Any], log: RunLog, memory: SessionMemory, kept: deque[Feed], recording: list[bool]) -> Callable[..., Any]:
    """Wrap a method to record until `recording` is empty: times, memory by the sizes of inputs, and in `kept` the inputs."""
    clock, thread, record, unlogged = time.perf_counter_ns, threading.get_ident, log.record, log.on_failure

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recording:
            return method(self, *args, **kwargs)
        looked, feed = None, args[1] if len(args) > 1 else kwargs.get("input_feed") or kwargs.get("input_dict_ort_values")
        try:
            looked = memory.before(feed if isinstance(feed, Mapping) else {})
        except Exception as error:  # noqa: BLE001 - a failure to record a call is none of the call
            unlogged(error)
        started = clock()
        result = method(self, *args, **kwargs)
        done = clock()
        try:
            record(started, started, done, done, thread())
            if looked is not None:
                memory.after(*looked, result)
            if kept.maxlen:
                kept.append(copy.deepcopy(dict(feed or {})))  # the caller may write into its arrays
        except Exception as error:  # noqa: BLE001 - likewise
            unlogged(error)
        return result

    timed.__name__, timed.__doc__ = method.__name__, method.__doc__
    return timed


def _stopped(session: weakref.ref[Any], watched: type, base: type, recording: list[bool]) -> None:
    """Put the session's class back; if it was watched again meanwhile, that one goes on, and this one only passes calls on."""
    recording.clear()
    found = session()
    for name in _METHODS:
        if name in vars(watched):
            delattr(watched, name)
    if found is not None and type(found) is watched:
        found.__class__ = base
