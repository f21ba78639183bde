"""What `torch.compile(...).aot_compile` saves of our backend, and what `torch.compiler.load_compiled_function` makes of it.

AOTAutograd keeps what surrounds a graph: copies of new values into buffers, views, the step of autograd. Of each graph it keeps a
`CompiledPhase`. Torch's loader unpickles all that, so a file decides what runs; nothing here reads one that torch was not asked to load.
"""

from __future__ import annotations

import contextvars
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ortlens._torch.ahead import (
    BundledAOTAutogradSerializableCallable,
    GraphModuleSerializableCallable,
    OutputCode,
    SerializableCallable,
)
from ortlens.backend.cache.fingerprint import surroundings
from ortlens.backend.lowering.entry import with_plain_tangents
from ortlens.backend.saved_graph import bytes_from_graph, graph_from_bytes
from ortlens.errors import SessionError, UnsupportedVersionError, UsageError
from ortlens.trace.guard import lens_guard
from ortlens.trace.recorder import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch.fx

    from ortlens.backend.api import OrtBackend
    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.backend.graph import CompiledGraph
    from ortlens.trace.recorder import Recorder

_LENGTH = 4


class CompiledPhase(OutputCode):
    """One graph of ours, as AOTAutograd calls, keeps and loads it."""

    def __init__(self, graph: CompiledGraph, backend_of: Callable[[OrtBackendOptions], OrtBackend]) -> None:
        """Take a graph that is planned, and what finds the backend for its options, in this process and in others."""
        super().__init__()
        self._boxed_call = True
        self._backend_of = backend_of
        self._options = graph.context.options
        self._saved = b""
        self._use(graph)

    def _use(self, graph: CompiledGraph) -> None:
        self._graph: CompiledGraph | None = graph
        run: Callable[[list[Any]], list[Any]] = lambda args: graph.run(args)  # noqa: E731, PLW0108 - the first call replaces `run`
        self._run: Callable[[list[Any]], Any] = with_plain_tangents(run, graph.lowered.tangents)

    def __call__(self, inputs: Any) -> Any:
        """Run the graph; the list is emptied."""
        return self._run(inputs)

    def prepare_for_serialization(self) -> None:
        """Become what can be pickled; AOTAutograd calls this on a copy."""
        if self._graph is not None:
            self._options = _portable(self._options)
            self._saved, self._graph, self._run = bytes_from_graph(self._graph), None, _not_loaded

    def post_compile(self, *_: Any) -> None:
        """Become what can be called; AOTAutograd calls this after loading."""
        recorder, backend = CURRENT.get(), self._backend_of(self._options)
        saved = graph_from_bytes(self._saved)
        seen = recorder if saved.lowered.phase != "backward" else None
        with backend.seen_by(seen, saved.lowered.module):
            self._use(backend.compiler.restored(saved, recorder=recorder))

    def set_triton_bundle(self, _: Any) -> None:
        """Do without: no kernel here is Triton's."""


def _not_loaded(_: list[Any]) -> Any:
    raise SessionError("a saved graph is called only after AOTAutograd has loaded it")


class CompiledAhead(SerializableCallable):
    """A graph of Dynamo's that was compiled ahead of time, with all that its calls need."""

    def __init__(self, compiled: Any) -> None:
        """Take what AOTAutograd made of the graph."""
        self._run = BundledAOTAutogradSerializableCallable(compiled)
        self._recorder: Recorder | None = CURRENT.get()  # what its calls are recorded by
        self._lock = threading.Lock()

    @classmethod
    def serialize_compile_artifacts(cls, fn: CompiledAhead) -> bytes:
        """Write it, after the versions that it is for."""
        versions, body = surroundings().encode(), BundledAOTAutogradSerializableCallable.serialize_compile_artifacts(fn._run)
        return len(versions).to_bytes(_LENGTH, "little") + versions + body

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> CompiledAhead:
        """Read it; raise `UnsupportedVersionError` where it was written with other versions, or on another kind of machine."""
        start = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        written = data[_LENGTH:start].decode(errors="replace")
        if written != surroundings():
            raise UnsupportedVersionError(_difference(written, surroundings()))
        made = cls(contextvars.Context().run(_loaded, data[start:]))  # without a lens, which records it where it is called
        made._recorder = None
        return made

    def __call__(self, *args: Any) -> Any:
        """Run the graph; under a lens that has not recorded it yet, through sessions that this lens records."""
        recorder = CURRENT.get()
        if recorder is not None and recorder is not self._recorder:
            self.record_into(recorder)
        return self._run(*args)

    def record_into(self, recorder: Recorder) -> None:
        """Run in sessions that a lens records, from now on, in place of those so far."""
        with self._lock, lens_guard(recorder, "recording what was compiled ahead of time"):
            if recorder is not self._recorder:
                self._recorder = recorder  # first, so that what fails is tried once
                made = _loaded(BundledAOTAutogradSerializableCallable.serialize_compile_artifacts(self._run))
                self._run = BundledAOTAutogradSerializableCallable(made)


def saved_form(compiled: Any, module: torch.fx.GraphModule) -> SerializableCallable:
    """Return what torch can save: what AOTAutograd made of a graph, or the graph itself where PyTorch runs it as Dynamo recorded it."""
    if not hasattr(compiled, "serialize"):
        return GraphModuleSerializableCallable(module)
    if compiled.serialize is None:
        raise UsageError("nothing can be compiled ahead of time while torch's caches are disabled: AOTAutograd keeps nothing then")
    return CompiledAhead(compiled)


def _loaded(data: bytes) -> Any:
    return BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts(data).compiled_fn


def _portable(options: OrtBackendOptions) -> OrtBackendOptions:
    """Return the options for another process, without those that have done their part: models are converted and transformed."""
    if options.ort_session_options is not None:
        raise UsageError("ort_session_options cannot be saved: compile ahead without it, or compile where it is called")
    return replace(options, pre_ort_model_transforms=None, custom_translation_table=None, cache_dir=None, dump_path=None)


def _difference(written: str, present: str) -> str:
    before, now = (dict(entry.partition("=")[::2] for entry in text.split()) for text in (written, present))
    differing = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    listed = ", ".join(f"{name} {before.get(name)} (here {now.get(name)})" for name in differing)
    return f"this function was compiled ahead of time with {listed}; compile it again with what is installed here"
