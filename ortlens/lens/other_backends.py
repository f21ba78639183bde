"""Lenses over other backends: finding the backend, and recording its graphs and calls."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens import _torch
from ortlens.backend.api import OrtBackend, ortlens_backend, torch_compile_backend
from ortlens.backend.lowering.entry import count_ops, needs_gradient
from ortlens.errors import UsageError
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortlens.trace.recorder import Recorder
    from ortlens.trace.runlog import RunLog

_OWN_NAMES = ("ortlens", "onnxrt")
_OWN_FUNCTIONS = (ortlens_backend, torch_compile_backend)


def is_ours(backend: object) -> bool:
    """Tell whether a backend is one of our functions or any `OrtBackend`."""
    return backend in _OWN_FUNCTIONS or isinstance(backend, OrtBackend)


def resolve_backend(backend: str | Callable[..., Any], options: Any) -> tuple[str, OrtBackend | None, Callable[..., Any]]:
    """Find the backend to wrap: its name, the backend itself if it is ours (else None), and its callable.

    Raises UsageError for an unknown name, and for options of a backend that is not ours.
    """
    if (isinstance(backend, str) and backend in _OWN_NAMES) or backend in _OWN_FUNCTIONS:
        ours = OrtBackend.get_cached_instance_for_options(options)
        return "ortlens", ours, ours
    if options is not None:
        raise UsageError(f"options are for the ortlens backend by name; {backend!r} takes none through a Lens")
    if isinstance(backend, OrtBackend):
        return "ortlens", backend, backend
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    try:
        return name, None, _torch.lookup_backend(backend)
    except Exception as error:
        raise UsageError(f"unknown backend {backend!r}: {error}") from error


def recorded(
    recorder: Recorder, module: torch.fx.GraphModule, compiled: Callable[..., Any], compile_id: str | None, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Record a graph that another backend compiled, and return a function that does the same and logs the time of each call."""
    graph_id = recorder.next_id("g")
    sizes = [size for i in inputs if isinstance(i, torch.Tensor) for size in i.shape]
    recorder.add(
        r.Graph(
            graph_id=graph_id,
            compile_id=compile_id,
            phase="forward" if needs_gradient(inputs) else "inference",
            op_count=count_ops(module),
            dynamic_shapes=any(_torch.is_symbolic(value) for value in (*inputs, *sizes)),
        )
    )
    return _timed(compiled, recorder.run_log(None, graph_id))


def _timed(compiled: Callable[..., Any], log: RunLog) -> Callable[..., Any]:
    clock, thread, record, unlogged = time.perf_counter_ns, threading.get_ident, log.record, log.on_failure

    def call(*args: Any) -> Any:
        started = clock()
        result = compiled(*args)
        done = clock()
        try:
            record(started, started, done, done, thread())
        except Exception as error:  # noqa: BLE001 - a failure to record a call is none of the call
            unlogged(error)
        return result

    return call
