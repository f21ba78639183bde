"""Puts a function around the calls of a graph or the runs of a partition, and creates sessions beside the one that runs a partition.

The compiled code stays as it is: only the attribute `run`, which every call looks up, is replaced and put back.
"""

from __future__ import annotations

import contextlib
import functools
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ortlens.backend.runtime.call import CallSpec, make_call
from ortlens.backend.runtime.runner import PartitionRunner, RunnerCallbacks
from ortlens.backend.runtime.session import Extras

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import onnx
    import onnxruntime

    from ortlens.backend.basis.options import Provider
    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.runtime.binding import Output
    from ortlens.backend.runtime.session import SessionInfo
    from ortlens.backend.runtime.threads import ThreadChoice
    from ortlens.trace.recorder import Recorder
    from ortlens.trace.runlog import RunLog


PartitionRun: TypeAlias = Callable[..., tuple[Any, ...]]
GraphCall: TypeAlias = Callable[[list[Any]], list[Any]]


@contextlib.contextmanager
def wrapped(subject: PartitionRunner | CompiledGraph, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace the function that a graph or partition runs while the context lasts, or until the subject replaces it for a right result."""
    inner = subject.run
    outer = wrap(inner)
    subject.run = outer
    try:
        yield
    finally:
        if subject.run is outer:
            subject.run = inner


def around_runs(
    runner: PartitionRunner, around: Callable[[PartitionRun, tuple[Any, ...]], tuple[Any, ...]]
) -> contextlib.AbstractContextManager[None]:
    """Pass every run of a partition through `around`, which takes the function that runs it, and its inputs."""
    return wrapped(runner, lambda inner: lambda *args: around(inner, args))


def around_calls(graph: CompiledGraph, around: Callable[[GraphCall, list[Any]], list[Any]]) -> contextlib.AbstractContextManager[None]:
    """Pass each call of a prepared graph through `around`, which takes its function and the list of inputs, which that empties."""
    return wrapped(graph, lambda inner: lambda args: around(inner, args))


@contextlib.contextmanager
def unlogged(graphs: Iterable[CompiledGraph]) -> Iterator[None]:
    """Run graphs as where no lens watches: no clock and no log in them."""
    with contextlib.ExitStack() as stack:
        subjects: list[PartitionRunner | CompiledGraph] = []
        for graph in (graph for graph in graphs if graph.is_prepared):
            subjects += [graph, *graph.runners]
        for subject in subjects:
            stack.enter_context(wrapped(subject, functools.partial(_instead_of, subject.unlogged())))
        yield


def _instead_of(other: Callable[..., Any], _run: Callable[..., Any]) -> Callable[..., Any]:
    return other


class WeightChanged(Exception):  # noqa: N818 - reports a state, not a mistake
    """A frozen weight is not what it was when the session was created; the text is for users, after "not compared"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSession:
    """A second session of a partition."""

    session: onnxruntime.InferenceSession  # of the same model and settings, with the same weights: shared, not copied
    model: onnx.ModelProto
    session_id: str | None  # recorded id of the session that runs the partition; None when it is not recorded
    info: SessionInfo


def shadow_session_of(
    runner: PartitionRunner,
    args: Sequence[Any],
    arranged: Callable[[onnxruntime.SessionOptions], AbstractContextManager[object]],
    *,
    model: onnx.ModelProto | None = None,
    without: Sequence[str] = (),
) -> ShadowSession | None:
    """Create a second session like the one that runs some arguments; None while PyTorch runs the partition.

    Inside the context that `arranged` returns, the options of the session are changed as wanted. `model` has weights as inputs; `without`
    adds to the rewrites of ONNX Runtime that the session in use disables.
    """
    prepared = runner.prepared_for(args)
    if prepared is None:
        return None
    info = prepared.info
    config = runner.factory.config(info.frozen, info.dimensions, model, extras=min(info.extras, Extras.STREAM))
    with arranged(config.options):
        session = config.session(config.model.SerializeToString(), without=without)
    return ShadowSession(session=session, model=config.model, session_id=prepared.session_id, info=info)


def uncounted(
    runner: PartitionRunner,
    session: onnxruntime.InferenceSession,
    *,
    log: RunLog | None = None,
    outputs: Sequence[Output] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """Return a function that runs a partition in a session of it, uncounted; raises `WeightChanged`."""
    spec = CallSpec(
        inputs=runner.factory.inputs(runner.weights.frozen),
        outputs=runner.factory.outputs(session) if outputs is None else outputs,
        on_stale=_changed,
        on_failure=_raised,
        count=lambda: None,
        log=log,
        preallocate=runner.factory.options.preallocate_output,
    )
    return make_call(session, spec)


def variant_of(
    runner: PartitionRunner,
    *,
    choice: ThreadChoice | None = None,
    freezes: bool | None = None,
    model: onnx.ModelProto | None = None,
    provider: Provider | None = None,
) -> PartitionRunner:
    """Make an unprepared, unrecorded runner of the same partition with other settings, to measure what they bring; None keeps one."""
    given = runner.factory.options
    options = replace(
        given,
        on_error="raise",
        ort_session_options=None if choice is not None else given.ort_session_options,
        preferred_execution_providers=given.preferred_execution_providers if provider is None else [provider],
    )
    factory = runner.factory
    changes: dict[str, Any] = {"options": options, "model": model or runner.model, "threads": choice, "updates": {}}
    return PartitionRunner(replace(factory, **changes, freezes=factory.freezes if freezes is None else freezes), UNRECORDED)


def _changed(_args: tuple[Any, ...]) -> tuple[Any, ...]:
    raise WeightChanged("its session holds other weights now: they changed meanwhile, or several modules share this code")


UNRECORDED = RunnerCallbacks()
"""Those of a runner that is measured: neither it nor what it is compared with logs its calls, which would be charged to ONNX Runtime."""


def _raised(*args: Any) -> NoReturn:
    raise args[-1]


@contextlib.contextmanager
def uncounted_eager(recorder: Recorder) -> Iterator[None]:
    """Restore counts and times of nodes that PyTorch runs, 0 for new graphs: calls of the lens's own do not count."""
    before = {log: (log.calls[:], log.total_ns[:]) for log in recorder.logs()[1].values()}
    try:
        yield
    finally:
        for log in recorder.logs()[1].values():
            nothing = array("q", bytes(8 * len(log.nodes)))
            log.calls[:], log.total_ns[:] = before.get(log, (nothing, nothing))
