"""The Lens: a `torch.compile` backend that wraps another one and records what happens, and the questions that it answers."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._os_errors import with_clear_os_errors
from ortlens._shell import display_name
from ortlens.analysis.coverage import own_graphs, own_recompiles
from ortlens.analysis.generation import with_roles
from ortlens.analysis.ledger import ledger_from_logs
from ortlens.analysis.problems.advice import advised
from ortlens.backend.api import OrtBackend
from ortlens.backend.basis.ab_timing import compare_calls, waiting_for
from ortlens.backend.basis.provenance import count_ops
from ortlens.backend.observed import graphs_of, unlogged
from ortlens.errors import UsageError
from ortlens.lens.live import Live
from ortlens.lens.measuring.measurement import Measurement
from ortlens.lens.observing.compilations import SHOWN, BreakReason, Compilations, ExplainOutput, entry_of
from ortlens.lens.observing.environment import LensRecorder, machine_figures
from ortlens.lens.observing.session_messages import SessionMessages
from ortlens.lens.other_backends import WatchedBackend, is_ours, resolve_backend
from ortlens.trace import records as r
from ortlens.trace.guard import lens_guard
from ortlens.trace.recorder import CURRENT
from ortlens.views.capture_view import CaptureView
from ortlens.views.comparison import Comparison

if TYPE_CHECKING:
    import os
    import pathlib
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pandas as pd
    from torch.export import ExportedProgram

    from ortlens._ort import SessionRequest
    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.backend.deploy.export import ExportedModel
    from ortlens.backend.freeze.frozen import Frozen
    from ortlens.trace.recorder import Recorder

_CHANGES_OBJECTS = "a call changes Python objects, and a frozen call does not"
_CREATING_NS = 1_000_000_000  # sessions that took longer are not created once more, to find out what a frozen call saves
_TRACING_NS = 2_000_000_000  # a function that took longer to trace is not traced once more, to find out whether it can be frozen


@with_clear_os_errors
class Lens(CaptureView):
    """A `torch.compile` backend that wraps another one and records what happens.

    Pass it as `backend=`: `torch.compile(model, backend=Lens())`. It may serve several `torch.compile` calls.

    Example:
        >>> import torch, ortlens
        >>> lens = ortlens.Lens("eager")
        >>> fast = torch.compile(torch.sin, backend=lens)
        >>> _ = fast(torch.ones(2))
        >>> len(lens.graphs)
        1
    """

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
        self.result: Any = None
        """What the target of `explain` returned on its last call."""
        self.explained: Callable[..., Lens] | None = None
        """Explains with the arguments of a call, as for this lens; None where `explain` did not make it."""
        self._given = backend
        backend_name, self._ort, self._foreign = resolve_backend(backend, options)
        if dry_run and self._ort is None:
            raise UsageError(f"a dry run needs the ortlens backend, not {backend!r}")
        self._dry_run = dry_run
        self._recorder = LensRecorder(self, backend_name, _figures, journal)
        self._recorder.note(dry_run=dry_run)
        self._messages = SessionMessages(self._recorder)
        self.compilations = Compilations(self._recorder, self._claims, dry_run=dry_run)
        self._targets, self._watch = self.compilations.targets, self.compilations.watch

    @property
    def __name__(self) -> str:
        """Name of the backend, for `torch.compile`, which else takes the object's text: a whole capture."""
        return self._recorder.backend

    def __deepcopy__(self, _memo: dict[int, Any] | None = None) -> Lens:
        """Return this lens: `copy.deepcopy` of what `torch.compile` returns copies its backend too, and records in the same lens."""
        return self

    __copy__ = __deepcopy__  # for the same reason

    def __reduce__(self) -> tuple[Callable[[], Lens], tuple[()]]:
        """Pickle as a new lens over the same backend, for a compiled module that is pickled; `save` keeps the capture."""
        return partial(Lens, self._ort or self._given, name=self.name, dry_run=self._dry_run), ()

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
            return self.compilations.elsewhere(self._foreign, graph_module, example_inputs, kwargs)
        with self.compilations.recording(graph_module):
            return self._backend_for(kwargs.get("options"))(graph_module, example_inputs, dry_run=self._dry_run)

    def _claims(self, backend: object) -> bool:
        """Tell whether Dynamo compiles for this lens: with it, with a stand-in that has it, or with our backend inside `capture()`."""
        if backend is self or (isinstance(backend, WatchedBackend) and backend.lens is self):
            return True
        return self._recorder.on_graph is not None and is_ours(backend) and CURRENT.get() is self._recorder

    def _backend_for(self, options: Any) -> OrtBackend:
        """Return our backend, with the options that `torch.compile(options=)` passed on, if any."""
        if self._ort is None:
            raise UsageError(f"this needs the ortlens backend, and the lens wraps {self._recorder.backend!r}")
        backend = self._ort if options is None else OrtBackend.get_cached_instance_for_options(options)
        with lens_guard(self._recorder, "reading the options"):
            self.compilations.note_options(backend.options)
        return backend

    def compile_exported(self, program: ExportedProgram) -> Callable[..., Any]:
        """Compile a `torch.export` program, without Dynamo.

        Args:
            program: As returned by `torch.export.export` or `torch.export.load`.

        Returns:
            A callable like `program.module()`, without gradients.

        Raises:
            UsageError: The lens wraps another backend, or the program takes script objects.
        """
        self.compilations.modules.append(program.graph_module)
        self._targets.program = program
        compiled = self._backend_for(None).compile_program(program, self._recorder, dry_run=self._dry_run)
        self._targets.add(program, compiled)
        return compiled

    def compile_frozen(self, frozen: Frozen) -> Callable[..., Any]:
        """Compile the program of a frozen callable once more, so that this lens sees its calls; they change the buffers of the source."""
        from ortlens.backend.freeze.frozen import watched

        self._targets.program = frozen.program
        self.compilations.modules.append(frozen.program.graph_module)
        compiled = watched(frozen, self._backend_for(None), self._recorder)
        self._targets.add(frozen.source, compiled)
        return compiled

    def compile_ahead(self, loaded: Callable[..., Any]) -> Callable[..., Any]:
        """Have a function that was compiled ahead of time call sessions that this lens sees; raise `UsageError` for another backend's."""
        from ortlens.backend.ahead import CompiledAhead

        if self._dry_run:
            raise UsageError("this function is compiled already: a dry run plans the model itself")
        ahead = _torch.compiled_ahead(loaded)
        if not isinstance(ahead, CompiledAhead):
            raise UsageError("no graph of this function was compiled ahead of time for ONNX Runtime; call it as it is")
        with self.compilations.by_our_backend():
            ahead.record_into(self._recorder)
        self._targets.add(loaded, loaded)
        return loaded

    def planned(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a Dynamo graph as far as can be done without a session; for another backend than ours, as far as its gradients."""
        if self._ort is not None:
            return self._ort(graph_module, example_inputs, dry_run=True)
        compiled: Callable[..., Any] = _torch.lookup_backend("aot_eager")(graph_module, example_inputs)
        return compiled

    def apart(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a Dynamo graph as the lens does, into whatever records at the time."""
        return (self._ort or self._foreign)(graph_module, example_inputs)

    def call_target(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the first callable that was compiled through this lens; raises UsageError if there is none, or only a dry run was made."""
        return self._targets.call(args, kwargs)

    def _requests(self) -> Iterator[SessionRequest | None]:
        return (part.request() for graph in graphs_of(self._recorder) for part in graph.partitions())

    def captured(self) -> r.Capture:
        """Take a snapshot of everything recorded so far.

        Returns:
            The capture; recording goes on.
        """
        self.compilations.note_uncompiled(self)
        self._messages.note(self._requests())
        capture = self._recorder.captured()
        capture = replace(capture, recompiles=own_recompiles(capture), ledger=capture.ledger or ledger_from_logs(capture))
        return advised(with_roles(capture))

    def measure(self, *args: Any, **kwargs: Any) -> pd.DataFrame:
        """Call what was compiled up to 161 times, for half a second at most, and record where the wall time of a call goes.

        In turns with some of these calls, up to 101 run the same target without compiled code, to compare with. Where entering compiled
        code takes much of a call, more follow, as `explain` says.

        Every graph that a call enters gets rows for guards, bind, run, output, eager, and the rest. The cost of each graph break per
        call goes into `breaks`. The rows add up to the median time of a call.

        Args:
            *args: Positional arguments of the target. Without any arguments, those of the last call, if their tensors still exist.
            **kwargs: Keyword arguments of the target.

        Returns:
            The frame `ledger`; unchanged if the call entered no graph.

        Raises:
            UsageError: Nothing was compiled through this lens yet, or only a dry run was made.

        Example:
            >>> import torch, ortlens
            >>> lens = ortlens.Lens()
            >>> fast = torch.compile(torch.sin, backend=lens)
            >>> _ = fast(torch.ones(2))
            >>> round(float(lens.measure(torch.ones(2)).share.sum()), 6)
            1.0
        """
        args, kwargs = self._targets.arguments("measure", args, kwargs)
        with self._recorder.undone_if_raised(self._watch.mark()), self._targets.refusals_told(args, kwargs):
            self.measured(lambda: self.call_target(args, kwargs), uncompiled=self._targets.uncompiled(args, kwargs), example=(args, kwargs))
        return self.ledger

    def measured(
        self, call: Callable[[], Any], *, made: int = 0, example: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None, **limits: Any
    ) -> Any:
        """Measure like `measure`, and return the last result.

        `made` calls prepared it, `example` are its arguments if `explain` did not note them, `limits` are those of `LedgerPass.measure`.
        """
        measurement = Measurement(
            recorder=self._recorder,
            watch=self._watch,
            graphs=self._targets.graphs,
            originals=self.compilations.originals if self._ort is not None else None,
            steps=self._targets.steps,
            captured=self.captured,
            try_freezing=lambda call, *, counted: self._try_freezing(call, example or self._targets.example, counted=counted),
            time_guards=lambda call: self._time_guards(call, example or self._targets.example),
        )
        return measurement.run(call, made=made, **limits)

    def _time_guards(self, call: Callable[[], Any], example: tuple[tuple[Any, ...], Mapping[str, Any]] | None) -> None:
        """Note what the guards of the target take."""
        entry = None if example is None else entry_of(self._targets.first(), *example)
        if entry is not None:
            code, variables = entry
            timed = _torch.guard_times(code, variables, call)
            named = (replace(row, file=display_name(row.file)) if row.file else row for row in timed)
            self._recorder.note(guards=tuple(r.GuardCost(**asdict(row)) for row in named))

    def _try_freezing(self, call: Callable[[], Any], example: tuple[Any, Mapping[str, Any]] | None, *, counted: bool) -> None:
        """Note whether the target can be frozen, and what that saves, unless it is known; or why it is not tried: calls are `counted`."""
        from ortlens.backend.freeze.frozen import Frozen
        from ortlens.lens.freezing import call_text, tried
        from ortlens.lens.verify.call_state import module_behind

        target, figures = module_behind(self._targets.first()), self._recorder.captured().figures
        spent = sum((graph.dynamo_ns or 0) + (graph.aot_ns or 0) for graph in self._recorder.records(r.Graph))
        is_known = figures.freeze_call is not None or figures.freeze_refused is not None
        is_ready = isinstance(target, Frozen) or _torch.compiled_ahead(target) is not None
        if self._ort is None or example is None or is_known or not callable(target) or is_ready:
            return
        if (spent > _TRACING_NS or counted) and not self._targets.changes_objects:
            self._recorder.note(freeze_untried="calls" if counted else "tracing")
            return
        created = sum(session.create_ns for session in self._recorder.records(r.Session))
        made = _CHANGES_OBJECTS if self._targets.changes_objects else tried(target, *example, self._ort, converts=created < _CREATING_NS)
        if isinstance(made, Frozen):
            with unlogged(self._targets.graphs()):
                turns = compare_calls(call, partial(made, *example[0], **example[1]), waiting_for(target, example), contextlib.nullcontext)
            made = "a frozen call takes longer" if turns.is_slower else None
            self._recorder.note(freeze_gain_ns=max(turns.gain_ns, 0))
        self._recorder.note(**({"freeze_refused": made} if made else {"freeze_call": call_text(target, *example)}))

    def live(self, *, every: float | None = None) -> Live:
        """Show what is recorded while a loop runs: time from call to call, recompiles, sessions, operators in PyTorch, memory.

        In a notebook one output is drawn over, and keeps its last picture when the block ends; elsewhere a line is printed to standard
        error when the figures changed. A thread looks, and takes at most half a per cent of the time: less often where a look takes
        long. For a process of its own, `journal=` and `ortlens watch` show the same.

        Args:
            every: Seconds from look to look at least; by default 0.5 in a notebook, and 5 elsewhere.

        Returns:
            A context manager, already running; `close()` ends it as well.

        Example:
            >>> import torch, ortlens
            >>> lens = ortlens.Lens()
            >>> step = torch.compile(torch.sin, backend=lens)
            >>> with lens.live() as live:
            ...     for _ in range(3):
            ...         _ = step(torch.ones(2))
            >>> repr(live).startswith("<Live: 3 runs; ")
            True
        """
        lens = weakref.ref(self)

        def recorder() -> Recorder | None:
            held = lens()
            return None if held is None else held._recorder  # noqa: SLF001 - a lens's own

        return Live(recorder, self.name, every)

    def tune(
        self, *args: Any, settings: Sequence[str] | None = None, budget_s: float | None = None, **kwargs: Any
    ) -> tuple[OrtBackendOptions, pd.DataFrame]:
        """Try what may make the target faster with `ortlens.tune`, in turns with the target as it is. Nothing stays changed.

        The target is compiled anew for each trial, and called some hundred times, with gradients as they were recorded.

        Args:
            *args: Positional arguments of the target. Without any arguments, those of the last call, if their tensors still exist.
            settings: Lines of Python to try, as in the column `settings` of `actions`. None: the options that may help.
            budget_s: Time limit in seconds, compilation included. None: 60.
            **kwargs: Keyword arguments of the target.

        Returns:
            The options, and the frame of all trials, as those of `ortlens.tune`.

        Raises:
            UsageError: Nothing was compiled through this lens yet, no arguments are known, the target changes Python objects, or a line
                sets nothing that can be tried.
        """
        from ortlens import tune  # a study: by its public name, since the layers of the lens are below

        limits: dict[str, Any] = {name: value for name, value in (("settings", settings), ("budget_s", budget_s)) if value is not None}
        self._targets.refuse_ambiguous(limits)
        if self._targets.changes_objects:
            raise UsageError("a call changes Python objects, and would be made some hundred times; ortlens.tune(model)(*args) does so")
        args, kwargs = self._targets.arguments("tune", args, kwargs)
        with_gradients = any(graph.phase != "inference" for graph in self._recorder.records(r.Graph))
        with torch.set_grad_enabled(with_gradients):
            return tune(self._targets.first(), options=self._backend_for(None).options, **limits)(*args, **kwargs)

    def verify(
        self, *args: Any, per_op: bool = False, atol: Any = None, rtol: Any = None, budget_s: float | None = None, **kwargs: Any
    ) -> pd.DataFrame:
        """Compare ONNX Runtime's results with PyTorch's: the call as a whole, the outputs of every partition, and every value inside it.

        Calls the compiled target, and the target itself, from the same inputs, state and random seed, each twice; what the target itself
        gives otherwise in its second call has no verdict. Results, errors, written tensors, shared memory, the random state and, if
        gradients are enabled, gradients are compared. Inputs, weights, buffers, gradients and random generators are put back afterwards,
        other Python state is not, and nothing is recorded as a call. Inside, each partition gets the same inputs on both sides. A run in
        double precision decides: a value beyond the tolerance is still ok if ONNX Runtime is about as close to it as PyTorch is.
        Memory: a copy of inputs, weights and buffers, the values inside a partition once (in groups of 1 GiB), and PyTorch's activations
        once more and in double precision.

        Args:
            *args: Positional arguments of the target. Without any arguments, those of the last call, if their tensors still exist.
            per_op: Check each operator by itself instead of the values, on PyTorch's inputs, so that errors do not add up.
            atol: Absolute tolerance: a number, or a mapping from torch dtypes to numbers. None: 1e-7 for float32, see the docs. If you set
                a tolerance, a difference beyond it is never accepted as rounding.
            rtol: Likewise, relative to the larger of the element and the value's root mean square. None: 1e-5 for float32.
            budget_s: Time limit in seconds. None: 60. The call as a whole is always compared; when the time is over, the values that are
                left get rows with an empty `ok` that say so, and no cause is looked for.
            **kwargs: Keyword arguments of the target.

        Returns:
            The frame `numerics`, one row per value, in the order of the graph, then the parts of the call, with scope `call`. `ok` is
            empty for what was not compared; `note` says why. If several functions were compiled, each that takes these arguments is
            called, and the name of the function precedes `node`.

        Raises:
            UsageError: There is nothing to verify (another backend, a dry run, nothing compiled yet), or an option is wrong.
            Exception: What the target raises, compiled and by itself alike. If only one of them raises, or what is written differs, that is
                a row instead.
        """
        from ortlens.lens.observing.time_budget import TimeBudget
        from ortlens.lens.verify.compare_values import Tolerances
        from ortlens.lens.verify.numerics import Verification

        given = {"per_op": per_op or None, "atol": atol, "rtol": rtol, "budget_s": budget_s}
        self._backend_for(None)
        self._targets.refuse_ambiguous([name for name, value in given.items() if value is not None])
        args, kwargs = self._targets.arguments("verify", args, kwargs)
        tolerances, budget = Tolerances(atol, rtol), TimeBudget(budget_s)
        with self._recorder.undone_if_raised(self._watch.mark()), self._targets.refusals_told(args, kwargs):
            Verification(self._recorder, self._targets, tolerances, budget, per_op=per_op).run(args, kwargs)
        return self.numerics

    def profile(self, *args: Any, repeat: int | None = None, budget_s: float | None = None, **kwargs: Any) -> pd.DataFrame:
        """Measure where the time inside ONNX Runtime goes, kernel by kernel.

        Calls the compiled target once, and again if that call compiled something. Each run of a session is repeated in turns with and
        without ONNX Runtime's profiler, in a second session of the same model that shares the frozen weights. Times are those of the
        unprofiled runs, divided as the profiler reports. Backward partitions are profiled only if the target itself calls backward. The
        optimised model is kept, see `fusions`. If a kernel takes long, the peak speed of the machine is measured too, once per process,
        for `roofline`.

        Args:
            *args: Positional arguments of the target. Without any arguments, those of the last call, if their tensors still exist.
            repeat: How often each run is repeated with the profiler, and as often without. None: 20 times, but only 5 times once all of
                them have taken 3 s. Less for models of more than 5,000 nodes, whose profile would grow too large. If the target has a
                keyword of that name, pass it with `functools.partial`.
            budget_s: Time limit in seconds. None: 60, and none if `repeat` is given. When it is over, one repeat is enough, and partitions
                that are left become the finding `profile_cut_short`.
            **kwargs: Keyword arguments of the target.

        Returns:
            The frame `kernels`; earlier rows of the same sessions are replaced. On CUDA, times are the device's, by torch's profiler, and
            what no node launched has rows of its own; the finding `launch_times` says where they are those of the launches.

        Raises:
            UsageError: `repeat` or `budget_s` is not a positive number, nothing was compiled, or no partition ran in ONNX Runtime.
        """
        from ortlens.lens.observing.environment import measure_peaks
        from ortlens.lens.observing.time_budget import Repeats
        from ortlens.lens.profiling.kernels import profile

        repeats = Repeats(repeat, budget_s)
        args, kwargs = self._targets.arguments("profile", args, kwargs)
        with self._recorder.undone_if_raised(self._watch.mark()), self._targets.refusals_told(args, kwargs):
            profile(self._targets, self._recorder, args, kwargs, repeats)
        if not repeats.budget.is_over():
            measure_peaks(self._recorder)
            self._messages.time_starts(self._requests())
        return self.kernels

    def repro(  # noqa: PLR0913 - the contract's own signature
        self,
        id: object,  # noqa: A002 - likewise
        folder: str | os.PathLike[str],
        *,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        real_inputs: bool = False,
        weights: bool = False,
        source: bool = False,
    ) -> pathlib.Path:
        """Write a folder that runs a partition, or one operator, in PyTorch and in ONNX Runtime, without ortlens.

        Its files: `repro.py` compares, `test_repro.py` does so as a test, `bench_repro.py` times both in turns, `program.py` holds the
        operators as plain torch code, `model.onnx` the model, `spec.json` a description of the inputs, `ISSUE.md` a text to paste.
        Inputs and weights are random numbers with recorded statistics. Without `args` only the weights have been seen; the inputs then
        have the recorded shapes and standard statistics.

        Args:
            id: A partition, session or graph, by its id; a node by its name or as `(graph_id, node)`; or a row of a frame with a node.
                For a graph, all its partitions are written.
            folder: A folder that does not exist yet, or is empty.
            args: Positional arguments for a call of the target, which the statistics are taken from. A backward graph is run without
                adding to any gradient.
            kwargs: Keyword arguments for that call.
            real_inputs: Keep the inputs of that call instead of their statistics.
            weights: Keep weights and constants instead of their statistics.
            source: Quote the user's lines.

        Returns:
            The folder, as an absolute path.

        Raises:
            UsageError: Nothing has that name, the folder is not empty, the call does not reach it, or the operators cannot be written as
                plain torch code. Nothing is written then.
        """
        from ortlens.lens.repro.evidence import write_repro

        called = args if args is not None or kwargs is None else ()
        return write_repro(self._targets, id, folder, called, kwargs or {}, real_inputs=real_inputs, weights=weights, source=source)

    def again(self, *args: Any, **kwargs: Any) -> Comparison:
        """Explain the target anew, after a change of its code or of a setting, and compare it with this lens.

        Args:
            *args: Positional arguments of the target; those of the last call if none are given, here and by name.
            **kwargs: Keyword arguments of the target.

        Returns:
            The comparison, which shows before and after; its attribute `lens` is the new lens.

        Raises:
            UsageError: This lens was not made by `explain`, or no arguments are known.

        Example:
            >>> import torch, ortlens
            >>> lens = ortlens.explain(torch.sin, calls=1)(torch.ones(2))
            >>> comparison = lens.again()
            >>> comparison.is_worse, len(comparison.lens.graphs)
            (False, 1)
        """
        if self.explained is None:
            raise UsageError("this lens was not made by explain(), so that it cannot explain again; call `ortlens.explain(model)(x)`")
        if not args and not kwargs:
            args, kwargs = self._targets.example or self._targets.arguments("again", args, kwargs)
        lens = self.explained(*args, **kwargs)
        comparison = Comparison(self.captured(), lens.captured())
        comparison.lens = lens
        return comparison

    def freeze(
        self,
        *args: Any,
        dynamic: bool | None = None,
        dynamic_shapes: Any = None,
        fallback: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Frozen:
        """Freeze what this lens explained: see `ortlens.freeze`.

        Args:
            *args: Arguments of the target; those of the last call if none are given, here and by name.
            dynamic: As for `ortlens.freeze`.
            dynamic_shapes: Likewise.
            fallback: Likewise.
            **kwargs: Keyword arguments of the target.

        Returns:
            The frozen callable, with the options of this lens.

        Raises:
            UsageError: Nothing was compiled through this lens yet, no arguments are known, or the target is no single graph.
        """
        from ortlens.lens.freezing import freeze_with, refuse_reserved
        from ortlens.lens.verify.call_state import module_behind

        target = module_behind(self._targets.first())
        given: dict[str, Any] = {"dynamic": dynamic, "dynamic_shapes": dynamic_shapes, "fallback": fallback}
        refuse_reserved(target, given)
        if not isinstance(target, torch.export.ExportedProgram):
            args, kwargs = self._targets.arguments("freeze", args, kwargs)
        return freeze_with(target, args, kwargs, given, backend=self._backend_for(None), breaks=lambda: self.captured().breaks)

    def export_onnx(self, path: str | os.PathLike[str], weights: object = None) -> ExportedModel:
        """Write the ONNX model for deployment, if ONNX Runtime runs the whole model as one partition.

        The function is traced again, once and without gradients, with arguments like those of the call. Inputs are its tensor arguments,
        outputs all its results. Sizes that varied in the calls so far may vary, all with `dynamic=True`; a run of the model with sizes
        that the trace does not hold for fails, and ONNX Runtime's message names the condition. The weights are in the file, above 1 GiB in
        a file `{name}.data` beside it. Running the model does not need ortlens.

        Args:
            path: The file.
            weights: Checkpoint for a model without data (built under fake tensors or on the meta device), or to replace the
                model's: a `.safetensors` file, the `.index.json` of a sharded one, a torch checkpoint, a folder with one of
                these, a mapping of names to tensors, or a sequence of these. Tensors are read one at a time.

        Returns:
            The file, as an absolute path, with its signature.

        Raises:
            UsageError: The lens has no such graph, `torch.export` cannot trace the function, nodes stay in PyTorch, a condition on sizes
                has no form in ONNX, or weights are missing, unknown or of another shape or type; the message names them, and nothing is
                written.
        """
        from ortlens.lens.exporting import export_target

        return export_target(self._targets, self._ort, path, weights)

    def output(self) -> ExplainOutput:
        """What `torch._dynamo.explain` would return, with recompiles counted separately from breaks.

        Returns:
            Counts, graphs and distinct break reasons; prints like PyTorch's.
        """
        capture, compiled = self.captured(), self.compilations.originals
        breaks, own = capture.breaks, {graph.compile_id for graph in own_graphs(capture)}
        verified = {compiled.get(graph.compile_id) for graph in self._recorder.records(r.Graph) if graph.compile_id not in own}
        modules = [module for module in self.compilations.modules if module not in verified]
        return ExplainOutput(
            graphs=tuple(modules),
            graph_count=len(modules),
            graph_break_count=sum(record.occurrences for record in breaks),
            recompile_count=len(capture.recompiles),
            break_reasons=tuple(BreakReason(**r.same(record, *SHOWN)) for record in breaks),
            op_count=sum(count_ops(module) for module in modules),
        )


@contextlib.contextmanager
def capture(*, name: str | None = None, journal: str | os.PathLike[str] | None = None) -> Iterator[Lens]:
    """Record every graph that the ONNX Runtime backend compiles inside the `with` block.

    Calls of these graphs are recorded for as long as the lens lives, also after the block.

    Args:
        name: Name of the capture.
        journal: As for `Lens`.

    Yields:
        The lens.
    """
    lens = Lens(name=name, journal=journal)
    with lens.compilations.by_our_backend():
        yield lens


def _figures() -> dict[str, Any]:
    return {**machine_figures(), "torch_threads": torch.get_num_threads(), "cpu_bfloat16": _torch.computes_bfloat16()}
