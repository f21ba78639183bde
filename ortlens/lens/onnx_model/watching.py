"""`watch()`: records the calls of a running `onnxruntime.InferenceSession`, until it is closed."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnxruntime

from ortlens.backend.runtime import _ort
from ortlens.errors import UsageError
from ortlens.lens.onnx_model.onnx_lens import OnnxLens
from ortlens.lens.onnx_model.sessions import SessionChoice
from ortlens.lens.onnx_model.signature import inputs_from_session, inputs_of
from ortlens.lens.onnx_model.source import ModelSource, source_of, with_names

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import onnx

    from ortlens.trace.runlog import RunLog

_METHODS = ("run", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector")
"""What is recorded. `run_async` returns before the work is done, and is not."""


def watch(session: onnxruntime.InferenceSession, *, name: str | None = None, journal: str | os.PathLike[str] | None = None) -> OnnxLens:
    """Record the calls of a running session. Its answers, errors and options stay as they are.

    Every `run`, `run_with_iobinding`, `run_with_ort_values` and `run_with_ortvaluevector` is timed, in any thread, for a few
    microseconds. Watching ends with `close()`, at the end of a `with` block, or when the lens is garbage. Several lenses may watch one.

    Args:
        session: The session. Its model is read from its path or bytes once more, without the weights; if neither is at hand, nodes,
            operators and kernels stay unknown, and calls are recorded all the same.
        name: Name of the capture; by default that of the model.
        journal: A file to which everything is written as it comes, as for `Lens`.

    Returns:
        The lens.

    Raises:
        UsageError: `session` is no `InferenceSession`, or the journal cannot be written.

    Example:
        >>> import numpy as np, onnx, onnxruntime, ortlens
        >>> x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
        >>> y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
        >>> graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "negated", [x], [y])
        >>> model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
        >>> session = onnxruntime.InferenceSession(model.SerializeToString())
        >>> with ortlens.watch(session) as lens:
        ...     _ = session.run(None, {"x": np.ones(2, np.float32)})
        >>> int(lens.sessions.calls.iloc[0])
        1
    """
    if not isinstance(session, onnxruntime.InferenceSession):
        raise UsageError(f"watch() takes an onnxruntime.InferenceSession, not {type(session).__name__}; explain() takes models")
    source, structure = _source(session)
    settings = session.get_provider_options()
    choice = SessionChoice(
        providers=tuple((provider, settings.get(provider, {})) for provider in session.get_providers()),
        options=_ort.options_of(session),
    )
    inputs = inputs_of(structure) if structure is not None else inputs_from_session(session)
    lens = OnnxLens(source, inputs, choice, name=name or source.name, structure=structure, journal=journal)
    lens.note(onnx_model="session")
    log, shapes = lens.began(session, create_ns=0, held_bytes=None), dict[str, tuple[int, ...]]()
    lens.note_watching(_recorded(session, log, shapes), shapes)
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


def _recorded(session: onnxruntime.InferenceSession, log: RunLog, shapes: dict[str, tuple[int, ...]]) -> Callable[[], None]:
    """Put a clock around the methods that run a session.

    The session gets a subclass of its own class, whose methods record. An attribute of the session in place of a method would make
    it part of a cycle, so that it would not be freed with its last reference.
    """
    base, recording = type(session), [True]
    watched = type(base.__name__, (base,), {"__slots__": (), "__module__": base.__module__, "__qualname__": base.__qualname__})
    for name in _METHODS:
        if callable(method := getattr(base, name, None)):
            setattr(watched, name, _timed(method, log, shapes if name == "run" else {"": ()}, recording))
    session.__class__ = watched
    return functools.partial(_stopped, weakref.ref(session), watched, base, recording)


def _timed(method: Callable[..., Any], log: RunLog, shapes: dict[str, tuple[int, ...]], recording: list[bool]) -> Callable[..., Any]:
    """Wrap a method to record until `recording` is empty; empty `shapes` get those of the inputs of the first call."""
    clock, thread, record, unlogged = time.perf_counter_ns, threading.get_ident, log.record, log.on_failure

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recording:
            return method(self, *args, **kwargs)
        started = clock()
        result = method(self, *args, **kwargs)
        done = clock()
        try:
            record(started, started, done, done, thread())
            if not shapes:
                _note_shapes(kwargs.get("input_feed", args[1] if len(args) > 1 else {}), shapes)
        except Exception as error:  # noqa: BLE001 - a failure to record a call is none of the call
            unlogged(error)
        return result

    timed.__name__, timed.__doc__ = method.__name__, method.__doc__
    return timed


def _note_shapes(feed: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    found = feed.items() if isinstance(feed, Mapping) else ()
    shapes.update({name: tuple(value.shape) for name, value in found if isinstance(getattr(value, "shape", None), tuple)})


def _stopped(session: weakref.ref[Any], watched: type, base: type, recording: list[bool]) -> None:
    """Put the session's class back; if it was watched again meanwhile, that one goes on, and this one only passes calls on."""
    recording.clear()
    found = session()
    for name in _METHODS:
        if name in vars(watched):
            delattr(watched, name)
    if found is not None and type(found) is watched:
        found.__class__ = base
