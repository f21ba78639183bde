"""What `explain` does with an ONNX model: read it, make a session, call it, record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ortlens._os_errors import clear_os_errors
from ortlens._process import heap_bytes
from ortlens.errors import SessionError, UsageError
from ortlens.lens.onnx_model.graph_records import ask_placement
from ortlens.lens.onnx_model.onnx_lens import OnnxLens
from ortlens.lens.onnx_model.sessions import choice_from, new_session, run, runner_of
from ortlens.lens.onnx_model.signature import FALLBACK_SIZES, feed_from, generated, inputs_from_session, inputs_of
from ortlens.lens.onnx_model.source import source_of, with_names

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    import onnx
    import onnxruntime

    from ortlens.backend.options import OrtBackendOptions
    from ortlens.lens.onnx_model.sessions import SessionChoice
    from ortlens.lens.onnx_model.signature import Feed, Input
    from ortlens.lens.onnx_model.source import ModelSource
    from ortlens.trace.runlog import RunLog

_STABLE_NS = 1_000_000_000  # calls for about a second, as for other targets
_MAX_CALLS = 200


def explain_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    dry_run: bool = False,
    calls: int | None = None,
    name: str | None = None,
) -> Callable[..., OnnxLens]:
    """Explain an ONNX model; `ortlens.explain` calls this."""
    choice = choice_from(options)
    source = source_of(model)

    @clear_os_errors
    def explained(*args: Any, **kwargs: Any) -> OnnxLens:
        structure = None if source.structure is None else with_names(source.structure)
        if dry_run:
            return _dry(source, structure, choice, name, args, kwargs)
        session, create_ns, held = _timed_session(source, choice)
        inputs = inputs_of(structure) if structure is not None else inputs_from_session(session)
        lens = OnnxLens(source, inputs, choice, name=name or source.name, structure=structure)
        log = lens.began(session, create_ns=create_ns, held_bytes=held)
        started = time.perf_counter_ns()
        if args or kwargs:
            feed = feed_from(inputs, args, kwargs)
            outputs = run(session, inputs, feed, source.name)
        else:
            started, feed, outputs = _generated_call(lens, session, inputs, source)
        _logged(log, started)
        lens.called(feed, outputs)
        if calls != 1:
            lens.result = _repeated(session, inputs, feed, log, calls) or outputs
        return lens

    return explained


def _dry(  # noqa: PLR0913, PLR0917 - one call site
    source: ModelSource,
    structure: onnx.ModelProto | None,
    choice: SessionChoice,
    name: str | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> OnnxLens:
    if structure is None:
        raise UsageError(f"{source.name} is in ONNX Runtime's own format, whose structure only a session knows; leave out dry_run=True")
    inputs = inputs_of(structure)
    lens = OnnxLens(source, inputs, choice, name=name or source.name, structure=structure)
    lens.note(dry_run="1")
    if args or kwargs:
        feed = feed_from(inputs, args, kwargs)
    else:
        made = generated(inputs)
        feed = made.feed
        lens.note(onnx_inputs_made=_sizes_text(made.sizes, "sizes that were assumed"))
    lens.called(feed, {})
    lens.result = None
    return lens


def _timed_session(source: ModelSource, choice: SessionChoice) -> tuple[onnxruntime.InferenceSession, int, int | None]:
    options = choice.made_options()
    if choice.options is None:
        ask_placement(options)
    before, started = heap_bytes(), time.perf_counter_ns()
    session = new_session(source, choice, options)
    elapsed, after = time.perf_counter_ns() - started, heap_bytes()
    return session, elapsed, None if before is None or after is None else max(after - before, 0)


def _generated_call(
    lens: OnnxLens, session: onnxruntime.InferenceSession, inputs: tuple[Input, ...], source: ModelSource
) -> tuple[int, Feed, dict[str, Any]]:
    """Call with inputs made from the signature: the first sizes that ONNX Runtime accepts."""
    first: SessionError | None = None
    seen: set[str] = set()
    for size in FALLBACK_SIZES:
        for zeros in (False, True):
            try:
                made = generated(inputs, size=size, zeros=zeros)
            except UsageError:  # too large, with this size
                if first is None:
                    raise
                continue
            key = f"{sorted(made.sizes.items())} {zeros}"
            if key in seen:
                continue
            seen.add(key)
            started = time.perf_counter_ns()
            try:
                outputs = run(session, inputs, made.feed, source.name)
            except SessionError as error:
                first = first or error
                continue
            lens.note(onnx_inputs_made=_sizes_text(made.sizes) + (", integers 0" if zeros else ""))
            return started, made.feed, outputs
    names = ", ".join(f"{each.name}={each.text()}" for each in inputs)
    said = str(first).rstrip(".")
    raise SessionError(f"{said}. No inputs were given, and none that were made from its signature suit it; give them: {names}") from first


def _sizes_text(sizes: Mapping[str, int], how: str = "random numbers") -> str:
    chosen = ", ".join(f"{name}={size}" for name, size in sizes.items())
    return f"{how}{f', {chosen}' if chosen else ''}"


def _logged(log: RunLog, started: int) -> None:
    import threading

    done = time.perf_counter_ns()
    log.record(started, started, done, done, threading.get_ident())


def _repeated(
    session: onnxruntime.InferenceSession, inputs: tuple[Input, ...], feed: Feed, log: RunLog, calls: int | None
) -> dict[str, Any] | None:
    """Call again on the same inputs, for stable figures; return the outputs of the last call, None if there was none."""
    call, outputs = runner_of(session, inputs, feed), None
    deadline = time.perf_counter_ns() + _STABLE_NS
    for _ in range((calls or _MAX_CALLS) - 1):
        started = time.perf_counter_ns()
        if calls is None and started > deadline:
            break
        outputs = call()
        _logged(log, started)
    return None if outputs is None else dict(zip([value.name for value in session.get_outputs()], outputs, strict=True))
