"""The half of a lens that records: a `torch.compile` backend that wraps another one, and what it notes of compilations."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens.analysis.generation import with_roles
from ortlens.analysis.ledger import ledger_from_logs
from ortlens.backend.api import OrtBackend
from ortlens.errors import UsageError
from ortlens.lens import dry_run as fakes
from ortlens.lens.dynamo.listener import DynamoWatch
from ortlens.lens.environment import boot_fact, chosen_options, machine_facts, machine_figures, rank_figures, torch_figures
from ortlens.lens.export_names import TargetNames, names_of
from ortlens.lens.generating import bypassed
from ortlens.lens.other_backends import recorded, resolve_backend
from ortlens.lens.sources import KeptSources
from ortlens.lens.targets import CompiledTargets
from ortlens.trace import records as r
from ortlens.trace.guard import lens_context, lens_guard
from ortlens.trace.journal import Journal
from ortlens.trace.recorder import CURRENT, Recorder
from ortlens.views.capture_view import CaptureView

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch.fx
    from torch.export import ExportedProgram

    from ortlens.analysis.ledger import StepReading
    from ortlens.backend.freeze.frozen import Frozen
    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.options import OrtBackendOptions
    from ortlens.lens.generating import Generating

_NOTING = "noting a compilation"


class RecordingLens(CaptureView):
    """A `torch.compile` backend that wraps another one and records what happens; `Lens` adds the questions that can be asked of it."""

    def __init__(
        self,
        backend: str | Callable[..., Any] = "ortlens",
        *,
        options: OrtBackendOptions | Mapping[str, Any] | None = None,
        name: str | None = None,
        journal: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
    ) -> None:
        """Wrap a backend.

        Args:
            backend: `"ortlens"` (also `"onnxrt"`), the name of any registered backend, or a backend. For another backend than ours
                the lens records graphs, breaks, recompiles and runs; the frames from `partitions` on stay empty.
            options: Options of our backend.
            name: Name of the capture.
            journal: A file to which everything is written as it comes, so that it survives the end of the process; `ortlens.load` reads it.
            dry_run: With our backend: plan and convert graphs, run nothing. Calls must be with fake tensors, see `explain`.

        Raises:
            UsageError: An option is unknown or wrong, or options or a dry run are requested of a backend that is not ours; the journal
                cannot be written.
            UnsupportedVersionError: torch, onnxruntime, onnx or onnxscript is outside the supported range.
        """
        self.name = name or ""
        self._recorder = Recorder()
        self._modules: list[torch.fx.GraphModule] = []
        self._originals: dict[str | None, torch.fx.GraphModule] = {}  # the same by compile id
        self._given = backend
        self._backend_name, self._ort, self._foreign = resolve_backend(backend, options)
        if dry_run and self._ort is None:
            raise UsageError(f"a dry run needs the ortlens backend, not {backend!r}")
        self._facts: dict[str, str] = {}  # for the environment of the capture: chosen options
        self._dry_run = dry_run
        self._recorder.note(dry_run=dry_run)
        self.result: Any = None
        """What the target of `explain` returned on its last call."""
        self._example: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._steps: list[StepReading] | None = None  # calls of the model inside the `generate` that is explained
        self._names = TargetNames()
        self._targets = CompiledTargets(self._recorder, dry_run=dry_run)
        self._watch = DynamoWatch(self._recorder, self._claims)
        self._sources = KeptSources(self._recorder)
        if journal is not None:
            self._begin_journal(journal)

    def _begin_journal(self, path: str | os.PathLike[str]) -> None:
        head = weakref.WeakMethod(self._head)
        self._recorder.journal = Journal(path, lambda: found() if (found := head()) else {}, self._recorder)
        weakref.finalize(self, self._recorder.journal.close)  # also when the interpreter exits

    def _head(self) -> dict[str, Any]:
        facts: dict[str, str] = {}
        with lens_guard(self._recorder, "reading the environment"):
            facts = machine_facts()
            self._recorder.note(**machine_figures(), **torch_figures())
        return {"name": self.name, "backend": self._backend_name, "environment": {**facts, **self._facts}}

    @property
    def __name__(self) -> str:
        """Name of the backend, for `torch.compile`, which else takes the object's text: a whole capture."""
        return self._backend_name

    def __deepcopy__(self, _memo: dict[int, Any]) -> RecordingLens:
        """Return this lens: `copy.deepcopy` of what `torch.compile` returns copies its backend too, and records in the same lens."""
        return self

    def __copy__(self) -> RecordingLens:
        """Return this lens, for the same reason."""
        return self

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        """Compile a Dynamo graph with the wrapped backend; called by `torch.compile`.

        Args:
            graph_module: Dynamo's graph.
            example_inputs: Its inputs.
            **kwargs: Anything else that `torch.compile` passes, such as `options`.

        Returns:
            A callable of the same inputs.
        """
        if self._ort is None:
            return self.compile_elsewhere(self._foreign, graph_module, example_inputs, kwargs)
        with CURRENT.recording_into(self._recorder), lens_context(self._recorder, _NOTING, lambda: self._compiling(graph_module)):
            return self._backend_for(kwargs.get("options"))(graph_module, example_inputs, dry_run=self._dry_run)

    def compile_elsewhere(
        self, backend: Callable[..., Any], graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """Compile a Dynamo graph with another backend than ours, and record it.

        Args:
            backend: The backend.
            graph_module: Dynamo's graph.
            example_inputs: Its inputs.
            kwargs: What else the backend is to be passed.

        Returns:
            A callable of the same inputs.
        """
        with (
            CURRENT.recording_into(self._recorder),
            lens_context(self._recorder, _NOTING, lambda: self._compiling(graph_module)) as compile_id,
        ):
            compiled = backend(graph_module, example_inputs, **kwargs)
            with lens_guard(self._recorder, _NOTING):
                return recorded(self._recorder, graph_module, compiled, compile_id, example_inputs)
            return compiled

    @contextlib.contextmanager
    def _compiling(self, graph_module: torch.fx.GraphModule) -> Iterator[str | None]:
        """Note what is being compiled, while it is; yield Dynamo's id of the compilation."""
        self._modules.append(graph_module)
        if place := rank_figures():  # now: the process group may be gone when the capture is taken
            self._recorder.note(**place)
            self._facts.update(boot_fact())
        target = self._targets.note_compilation()
        with self._watch.backend_at_work() as compile_id:
            self._originals[compile_id] = graph_module
            known = {graph.graph_id for graph in self._recorder.records(r.Graph)}
            nodes = self._recorder.count(r.Node)
            yield compile_id
        self._sources.note((*self._recorder.records(r.Node)[nodes:], *self._recorder.records(r.Break)))
        for graph in self._recorder.records(r.Graph):
            if graph.graph_id not in known:
                self._recorder.amend(r.Graph, graph.graph_id, target=target)

    def call_target(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the first callable that was compiled through this lens.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.

        Returns:
            Its result.

        Raises:
            UsageError: Nothing was compiled through this lens yet, or only a dry run was made.
        """
        return self._targets.call(args, kwargs)

    def live_graphs(self) -> tuple[CompiledGraph, ...]:
        """The graphs of our backend that were compiled through this lens, oldest first, including those that a recompile replaced."""
        return self._targets.graphs()

    def _claims(self, backend: object) -> bool:
        return backend is self

    def _backend_for(self, options: Any) -> OrtBackend:
        """Return our backend, with the options that `torch.compile(options=)` passed on, if any."""
        if self._ort is None:
            raise UsageError(f"this needs the ortlens backend, and the lens wraps {self._backend_name!r}")
        backend = self._ort if options is None else OrtBackend.get_cached_instance_for_options(options)
        with lens_guard(self._recorder, "reading the options"):
            self._note_options(backend.options)
        return backend

    def _note_options(self, options: OrtBackendOptions) -> None:
        self._facts.update(chosen_options(options))
        self._recorder.note(option_upcast=tuple(options.upcast))

    def compile_exported(self, program: ExportedProgram) -> Callable[..., Any]:
        """Compile a `torch.export` program, without Dynamo.

        Args:
            program: As returned by `torch.export.export` or `torch.export.load`.

        Returns:
            A callable like `program.module()`, without gradients.

        Raises:
            UsageError: The lens wraps another backend, or the program takes script objects.
        """
        self._modules.append(program.graph_module)
        compiled = self._backend_for(None).compile_program(program, self._recorder, dry_run=self._dry_run)
        self._targets.add(program, compiled)
        return compiled

    def compile_frozen(self, frozen: Frozen) -> Callable[..., Any]:
        """Compile the program of a frozen callable once more, so that this lens sees its calls.

        Args:
            frozen: As `ortlens.freeze` returns it; it stays as it is.

        Returns:
            A function that does the same. What calls change are the buffers of the source.

        Raises:
            UsageError: The lens wraps another backend.
        """
        from ortlens.backend.freeze.frozen import watched

        self._modules.append(frozen.program.graph_module)
        compiled = watched(frozen, self._backend_for(None), self._recorder)
        self._targets.add(frozen.source, compiled)
        return compiled

    def set_example(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note the arguments that the target is explained with, for `freeze`.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.
        """
        self._example = args, dict(kwargs)

    def know_calls(self, compiled: int, uncompiled: int) -> None:
        """Note how often `explain` called the target.

        Args:
            compiled: Calls of what was compiled, the first included.
            uncompiled: Calls of the target as it is.
        """
        self._recorder.note(explain_calls=compiled, explain_uncompiled_calls=uncompiled)

    def know_module(self, target: object) -> None:
        """Note the names of weights and arguments, for `export_onnx`.

        Args:
            target: What is compiled.
        """
        with lens_guard(self._recorder, "reading the names of weights"):
            self._names = names_of(target)

    def trace_again(self, target: object) -> None:
        """Let Dynamo trace what it gave up on earlier; where that fails, the texts say that it is not traced again.

        Args:
            target: What is compiled.
        """
        with lens_guard(self._recorder, "letting Dynamo trace again what it gave up on"):
            _torch.trace_again(target)

    def know_generating(self, target: Callable[..., Any], generating: Generating) -> None:
        """Note that a call is one of `generate`, which compiles the model.

        Args:
            target: The method.
            generating: Calls it.
        """
        self._steps = generating.readings
        self._targets.add(target, generating.compiled, parts=generating.parts)

    def try_with_fakes(self, target: Any, fast: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call a compiled target on fake tensors, up to where it needs the values of one.

        Args:
            target: What was compiled.
            fast: The compiled target.
            args: Positional arguments.
            kwargs: Keyword arguments.
        """
        self.result = fakes.try_with_fakes(self._recorder, target, fast, args, kwargs)

    def captured(self) -> r.Capture:
        """Take a snapshot of everything recorded so far.

        Returns:
            The capture; recording goes on.
        """
        self._note_bypassed()
        self._sources.note(self._recorder.records(r.Break))  # also of what could not be compiled
        capture = self._recorder.capture(**self._head())
        return with_roles(capture if capture.ledger else replace(capture, ledger=ledger_from_logs(capture)))

    def _note_bypassed(self) -> None:
        """Report a compiled module that was not called, though its methods may have been: they call the module itself."""
        if self._modules or self._recorder.records(r.Break):
            return
        if self._recorder.records(r.Finding):
            return
        for module in _torch.modules_compiled_by(self):
            if callable(getattr(module, "generate", None)):
                self._recorder.add(bypassed(module))
