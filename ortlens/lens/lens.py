"""The Lens: a `torch.compile` backend that wraps another backend and records what happens."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens.analysis.generation import with_roles
from ortlens.analysis.ledger import ledger_from_logs
from ortlens.backend.api import OrtBackend
from ortlens.backend.lowering.entry import count_ops
from ortlens.errors import UsageError
from ortlens.lens import dry_run as fakes
from ortlens.lens.dynamo.listener import DynamoWatch
from ortlens.lens.environment import chosen_options, environment
from ortlens.lens.explain_output import ExplainOutput, reason_from_break
from ortlens.lens.export_names import TargetNames, graph_to_export, names_of
from ortlens.lens.generating import bypassed
from ortlens.lens.measuring.against_torch import AgainstTorch
from ortlens.lens.measuring.ledger_pass import MAX_CALLS, MEASURE_NS, LedgerPass
from ortlens.lens.other_backends import recorded, resolve_backend
from ortlens.lens.targets import CompiledTargets
from ortlens.trace import records as r
from ortlens.trace.journal import Journal
from ortlens.trace.recorder import CURRENT, Recorder
from ortlens.views.capture_view import CaptureView

if TYPE_CHECKING:
    import os
    import pathlib
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pandas as pd
    import torch.fx
    from torch.export import ExportedProgram

    from ortlens.analysis.ledger import StepReading
    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.options import OrtBackendOptions
    from ortlens.lens.generating import Generating


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
        self._recorder = Recorder()
        self._modules: list[torch.fx.GraphModule] = []
        self._originals: dict[str | None, torch.fx.GraphModule] = {}  # the same by compile id
        self._backend_name, self._ort, self._foreign = resolve_backend(backend, options)
        if dry_run and self._ort is None:
            raise UsageError(f"a dry run needs the ortlens backend, not {backend!r}")
        self._facts: dict[str, str] = {}  # for the environment of the capture: chosen options, and how many calls were averaged
        self._dry_run = dry_run
        if dry_run:
            self._facts["dry_run"] = "1"
        self.result: Any = None
        """What the target of `explain` returned on its last call."""
        self._steps: list[StepReading] | None = None  # calls of the model inside the `generate` that is explained
        self._names = TargetNames()
        self._targets = CompiledTargets(self._recorder, dry_run=dry_run)
        self._watch = DynamoWatch(self._recorder, self._claims)
        if journal is not None:
            self._begin_journal(journal)

    def _begin_journal(self, path: str | os.PathLike[str]) -> None:
        head = weakref.WeakMethod(self._head)
        self._recorder.journal = Journal(path, lambda: found() if (found := head()) else {}, self._recorder)
        weakref.finalize(self, self._recorder.journal.close)  # also when the interpreter exits

    def _head(self) -> dict[str, Any]:
        return {"name": self.name, "backend": self._backend_name, "environment": {**environment(), **self._facts}}

    @property
    def __name__(self) -> str:
        """Name of the backend, for `torch.compile`, which else takes the object's text: a whole capture."""
        return self._backend_name

    def __deepcopy__(self, _memo: dict[int, Any]) -> Lens:
        """A copied model is recorded by the same lens: `copy.deepcopy` of what `torch.compile` returns copies its backend, too."""
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
        token = CURRENT.set(self._recorder)
        try:
            with self._compiling(graph_module):
                return self._backend_for(kwargs.get("options"))(graph_module, example_inputs, dry_run=self._dry_run)
        finally:
            CURRENT.reset(token)

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
        token = CURRENT.set(self._recorder)
        try:
            with self._compiling(graph_module) as compile_id:
                compiled = backend(graph_module, example_inputs, **kwargs)
                return recorded(self._recorder, graph_module, compiled, compile_id, example_inputs)
        finally:
            CURRENT.reset(token)

    @contextlib.contextmanager
    def _compiling(self, graph_module: torch.fx.GraphModule) -> Iterator[str | None]:
        """Note what is being compiled, while it is; gives Dynamo's id of the compilation."""
        self._modules.append(graph_module)
        target = self._targets.note_compilation()
        with self._watch.backend_at_work() as compile_id:
            self._originals[compile_id] = graph_module
            known = {graph.graph_id for graph in self._recorder.records(r.Graph)}
            yield compile_id
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

    def measure(self, *args: Any, **kwargs: Any) -> pd.DataFrame:
        """Call what was compiled a few dozen times, for half a second at most, and record where the wall time of a call goes.

        In turns with these calls, others run the same target without compiled code, to compare with.

        Every graph that a call enters gets rows for guards, bind, run, output, eager, and the rest. The cost of each graph break per
        call goes into `breaks`. The figures are means over the middle half of the calls by wall time.

        Args:
            *args: Positional arguments of the target.
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

        def call() -> Any:
            return self.call_target(args, kwargs)

        self.measured(call, uncompiled=call)  # which makes these calls without compiled code
        return self.ledger

    def measured(self, call: Callable[[], Any], **limits: Any) -> Any:
        """Measure a call like `measure`, and return its result.

        Args:
            call: Calls what was compiled through this lens.
            **limits: As for `ortlens.lens.measuring.ledger_pass.LedgerPass.measure`.

        Returns:
            What the last call returned.
        """
        ledger = LedgerPass(self._recorder, self._watch, self.live_graphs, self._steps)
        most = limits.pop("max_calls", MAX_CALLS)
        if self._ort is not None and most > 1:  # the call that is observed counts as one of them
            AgainstTorch(self._recorder, self.live_graphs(), self._originals).run(call)
            most -= 1
        result = ledger.measure(call, max_calls=most, **limits)
        if ledger.averaged:
            self._facts["ledger_calls"] = str(ledger.averaged)
            if ledger.spread:
                self._facts["ledger_spread"] = f"{ledger.spread:.2f}"
            if ledger.uncompiled_ns:
                self._facts["uncompiled_ns"] = str(ledger.uncompiled_ns)
        if limits.get("budget_ns", MEASURE_NS) is not None:  # else the caller counts the calls
            self._try_without_guards(call)
            self._try_fewer_threads(call)
        return result

    def _try_fewer_threads(self, call: Callable[[], Any]) -> None:
        """Where sessions have more threads than there are cores, measure what that costs."""
        from ortlens.backend.runtime.threads import usable_cores
        from ortlens.lens.measuring.probes import Probe

        if any((session.threads or 0) > usable_cores() for session in self._recorder.records(r.Session)):
            Probe(self._recorder, self.live_graphs(), call, self.captured).threads_alone(MEASURE_NS)

    def _try_without_guards(self, call: Callable[[], Any]) -> None:
        """Where entering graphs takes much of a call, measure how much of that is guards."""
        from ortlens.lens.measuring.call_trials import GUARDS_NS, GUARDS_SHARE, ONE_GRAPH_SHARE
        from ortlens.lens.measuring.probes import guards_trial

        by_dynamo = {graph.graph_id for graph in self._recorder.records(r.Graph) if graph.compile_id}  # an exported program has no guards
        parts = self._recorder.records(r.LedgerPart)
        entering = [part.ns for part in parts if part.part == "guards" and part.graph_id in by_dynamo]
        several = len(entering) > 1
        share = GUARDS_SHARE if several else ONE_GRAPH_SHARE
        if sum(entering) >= max(GUARDS_NS, share * sum(part.ns for part in parts)):
            guards_trial(self._recorder, call, MEASURE_NS, several=several)

    def probe(self, *args: Any, **kwargs: Any) -> pd.DataFrame:
        """Measure what changes would bring. Each is made beside the compiled code, which stays as it is.

        Threads, spinning, guards, frozen weights, dense inputs, preallocated outputs, partitions left to PyTorch, a filled cache:
        each change that applies is timed in turns with the present setting, for less than a second. The target is called some hundred
        times, so take care with one that has side effects. For the rule `slow_kernel`, the peak speed of the machine is measured too.

        Args:
            *args: Positional arguments of the target.
            **kwargs: Keyword arguments of the target.

        Returns:
            The frame `findings`; the rows with `measured` come from here, including changes that gain nothing.

        Raises:
            UsageError: Nothing was compiled through this lens yet, or only a dry run was made.
        """
        from ortlens.lens.measuring.probes import Probe

        Probe(self._recorder, self.live_graphs(), lambda: self.call_target(args, kwargs), self.captured).run()
        return self.findings

    def verify(self, *args: Any, per_op: bool = False, atol: Any = None, rtol: Any = None, **kwargs: Any) -> pd.DataFrame:
        """Compare ONNX Runtime's results with PyTorch's: the call as a whole, the outputs of every partition, and every value inside it.

        Calls the compiled target, and the target itself, from the same inputs, state and random seed: results, written tensors, shared
        memory, the random state and, if gradients are enabled, gradients are compared. Inputs, weights, buffers, gradients and Python
        attributes are put back afterwards, and nothing is recorded as a call. Inside, each partition gets the same inputs on both sides.
        A run in double precision decides: a value beyond the tolerance is still ok if ONNX Runtime is about as close to it as PyTorch is.
        Memory: a copy of inputs, weights and buffers, the values inside a partition once (in groups of 1 GiB), and PyTorch's activations
        once more and in double precision.

        Args:
            *args: Positional arguments of the target.
            per_op: Check each operator by itself instead of the values, on PyTorch's inputs, so that errors do not add up.
            atol: Absolute tolerance: a number, or a mapping from torch dtypes to numbers. None: 1e-7 for float32, see the docs. If you set
                a tolerance, a difference beyond it is never accepted as rounding.
            rtol: Likewise, relative to the larger of the element and the value's root mean square. None: 1e-5 for float32.
            **kwargs: Keyword arguments of the target.

        Returns:
            The frame `numerics`, one row per value, in the order of the graph, then the parts of the call, with scope `call`. `ok` is
            empty for what was not compared; `note` says why. If several functions were compiled, each that takes these arguments is
            called, and the name of the function precedes `node`.

        Raises:
            UsageError: There is nothing to verify (another backend, a dry run, nothing compiled yet), or an option is wrong.
        """
        from ortlens.lens.verify.compare_values import Tolerances
        from ortlens.lens.verify.numerics import Verification

        given = {name: value for name, value in (("per_op", per_op or None), ("atol", atol), ("rtol", rtol)) if value is not None}
        self._backend_for(None)
        self._targets.refuse_ambiguous(given)
        Verification(self._recorder, self._targets, Tolerances(atol, rtol), per_op=per_op).run(args, kwargs)
        return self.numerics

    def live_graphs(self) -> tuple[CompiledGraph, ...]:
        """The graphs of our backend that were compiled through this lens, oldest first, including those that a recompile replaced."""
        return self._targets.graphs()

    def profile(self, *args: Any, repeat: int = 20, **kwargs: Any) -> pd.DataFrame:
        """Measure where the time inside ONNX Runtime goes, kernel by kernel.

        Calls the compiled target once, and again if that call compiled something. Each run of a session is repeated in turns with and
        without ONNX Runtime's profiler, in a second session of the same model that shares the frozen weights. Times are those of the
        unprofiled runs, divided as the profiler reports; `sessions.distortion` is how many times longer the profiled runs took. Backward
        partitions are profiled only if the target itself calls backward. The optimised model is kept, see `fusions`. If a kernel takes
        long, the peak speed of the machine is measured too, once per process, for the rule `slow_kernel`.

        Args:
            *args: Positional arguments of the target.
            repeat: How often each run is repeated with the profiler, and as often without; less for models of more than 5,000 nodes, whose
                profile would grow too large. If the target has a keyword of that name, pass it with `functools.partial`.
            **kwargs: Keyword arguments of the target.

        Returns:
            The frame `kernels`; earlier rows of the same sessions are replaced.

        Raises:
            UsageError: `repeat` is not a positive number, nothing was compiled, or no partition ran in ONNX Runtime.
        """
        from ortlens.lens.profiling.kernels import profile
        from ortlens.lens.profiling.machine_peaks import measure_peaks

        profile(self._targets, self._recorder, args, kwargs, repeat)
        measure_peaks(self._recorder)
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

    def _claims(self, backend: object) -> bool:
        return backend is self

    def _backend_for(self, options: Any) -> OrtBackend:
        """Our backend, with the options that `torch.compile(options=)` passed on, if any."""
        if self._ort is None:
            raise UsageError(f"this needs the ortlens backend, and the lens wraps {self._backend_name!r}")
        backend = self._ort if options is None else OrtBackend.get_cached_instance_for_options(options)
        self._facts.update(chosen_options(backend.options))
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
        self._modules.append(program.graph_module)
        compiled = self._backend_for(None).compile_program(program, self._recorder, dry_run=self._dry_run)
        self._targets.add(program, compiled)
        return compiled

    def know_module(self, target: object) -> None:
        """Note the names of weights and arguments, for `export_onnx`.

        Args:
            target: What is compiled.
        """
        self._names = names_of(target)

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

    def export_onnx(self, path: str | os.PathLike[str], weights: object = None) -> pathlib.Path:
        """Write the ONNX model for deployment, if ONNX Runtime runs the whole model as one partition.

        Inputs have the names of the function's arguments. The weights are in the file, above 1 GiB in a file `{name}.data` beside it.
        Running the model does not need ortlens.

        Args:
            path: The file.
            weights: Checkpoint for a model without data (built under fake tensors or on the meta device), or to replace the
                model's: a `.safetensors` file, the `.index.json` of a sharded one, a torch checkpoint, a folder with one of
                these, a mapping of names to tensors, or a sequence of these. Tensors are read one at a time.

        Returns:
            The file, as an absolute path.

        Raises:
            UsageError: The lens has no such graph, or weights are missing, unknown or of another shape or type; the message
                names them, and nothing is written.
        """
        from ortlens.backend.deploy.export import export_graph

        return export_graph(graph_to_export(self._recorder, self.live_graphs()), path, weights, self._names.aliases, self._names.arguments)

    def output(self) -> ExplainOutput:
        """What `torch._dynamo.explain` would return, with recompiles counted separately from breaks.

        Returns:
            Counts, graphs and distinct break reasons; prints like PyTorch's.
        """
        breaks = self._recorder.records(r.Break)
        return ExplainOutput(
            graphs=tuple(self._modules),
            graph_count=len(self._modules),
            graph_break_count=sum(record.occurrences for record in breaks),
            recompile_count=len(self._recorder.records(r.Recompile)),
            break_reasons=tuple(reason_from_break(record) for record in breaks),
            op_count=sum(count_ops(module) for module in self._modules),
        )
