"""The Lens: a backend that wraps a backend and records what happens, and the two ways of making one."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens import _torch
from ortlens.analysis.ledger import ledger_from_logs
from ortlens.backend.api import OrtBackend, ortlens_backend, torch_compile_backend
from ortlens.backend.lowering.entry import count_ops, needs_gradient
from ortlens.errors import UsageError
from ortlens.lens import dry_run as fakes
from ortlens.lens.dynamo.listener import DynamoWatch
from ortlens.lens.environment import chosen_options, environment
from ortlens.lens.explain_output import ExplainOutput, reason_from_break
from ortlens.lens.measuring.ledger_pass import LedgerPass
from ortlens.trace import records as r
from ortlens.trace.recorder import CURRENT, Recorder
from ortlens.views.capture_view import CaptureView

if TYPE_CHECKING:
    import os
    import pathlib
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pandas as pd
    from torch.export import ExportedProgram

    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.options import OrtBackendOptions

_OWN_NAMES = ("ortlens", "onnxrt")


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
        dry_run: bool = False,
    ) -> None:
        """Wrap a backend.

        Args:
            backend: `"ortlens"` (also `"onnxrt"`), the name of any registered backend, or a backend. With one other than
                ours, graphs, breaks, recompiles and runs are recorded; partitions and below stay empty.
            options: Options of our backend.
            name: Name of the capture.
            dry_run: With our backend: plan and convert graphs, run nothing. Calls must be with fake tensors, see `explain`.

        Raises:
            UsageError: An option is unknown or wrong, or options or a dry run are asked of a backend that is not ours.
            UnsupportedVersionError: torch, onnxruntime, onnx or onnxscript is outside the supported range.
        """
        self.name = name or ""
        self._recorder = Recorder()
        self._modules: list[torch.fx.GraphModule] = []
        self._backend_name, self._ort, self._foreign = _resolve(backend, options)
        if dry_run and self._ort is None:
            raise UsageError(f"a dry run takes the ortlens backend, not {backend!r}")
        self._dry_run = dry_run
        self.result: Any = None
        """What the target of `explain` returned on its last call."""
        self._facts: dict[str, str] = {}  # for the environment of the capture: options that were chosen, calls that were averaged
        self._aliases: tuple[frozenset[str], ...] = ()
        self._arguments: tuple[str, ...] = ()
        self._targets: list[tuple[object, Callable[..., Any]]] = []
        self.grad_modes: set[bool] = set()
        """Whether gradients were on, in the compilations so far."""
        self._watch = DynamoWatch(self._recorder, self._claims)

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        """Compile a Dynamo graph with the wrapped backend; called by `torch.compile`.

        Args:
            graph_module: As Dynamo hands it over.
            example_inputs: Its inputs.
            **kwargs: What else `torch.compile` passes on, such as `options`.

        Returns:
            A callable of the same inputs.
        """
        self._modules.append(graph_module)
        self._note_target()
        token = CURRENT.set(self._recorder)
        try:
            with self._watch.backend_at_work() as compile_id:
                if self._ort is not None:
                    backend = self._backend_for(kwargs.get("options"))
                    return backend(graph_module, example_inputs, dry_run=self._dry_run)
                compiled = self._foreign(graph_module, example_inputs, **kwargs)
                return self._observed(graph_module, compiled, compile_id, example_inputs)
        finally:
            CURRENT.reset(token)

    def _note_target(self) -> None:
        """Note what is being compiled, to be able to call it once more."""
        self.grad_modes.add(torch.is_grad_enabled())
        found = _torch.compiled_callable()
        if found is not None and all(known is not found[0] and known != found[0] for known, _ in self._targets):
            self._targets.append(found)

    def call_target(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call what was compiled through this lens: the first callable, if there were several.

        Args:
            args: Its arguments.
            kwargs: Likewise.

        Returns:
            What it returns.

        Raises:
            UsageError: Nothing was compiled through this lens yet, or only a dry run was made.
        """
        if self._dry_run:
            raise UsageError("this lens holds a dry run, which ran nothing; call explain() without dry_run=True first")
        if not self._targets:
            raise UsageError("nothing was compiled through this lens yet; call the compiled function once, then ask again")
        return self._targets[0][1](*args, **kwargs)

    def measure(self, *args: Any, **kwargs: Any) -> pd.DataFrame:
        """Call what was compiled some dozens of times, half a second at most, and write down where the wall time of a call goes.

        Every graph that a call enters gets its rows: guards, bind, run, output, eager, and what is left. What each graph break
        costs per call goes into `breaks`. The figures are means over the middle half of the calls by wall time.

        Args:
            *args: Arguments of the target.
            **kwargs: Likewise.

        Returns:
            The frame `ledger`; as it was when the call entered no graph.

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
        self.measured(lambda: self.call_target(args, kwargs))
        return self.ledger

    def measured(self, call: Callable[[], Any], **limits: Any) -> Any:
        """The same for a call that the caller makes.

        Args:
            call: Calls what was compiled through this lens.
            **limits: As for `ortlens.lens.measuring.ledger_pass.LedgerPass.measure`.

        Returns:
            What the last call returned.
        """
        ledger = LedgerPass(self._recorder, self._watch, self.live_graphs)
        result = ledger.measure(call, **limits)
        if ledger.averaged:
            self._facts["ledger_calls"] = str(ledger.averaged)
        return result

    def probe(self, *args: Any, **kwargs: Any) -> pd.DataFrame:
        """Measure what changes would bring, by making them beside the code that runs, which stays as it is.

        Threads, spinning, guards, frozen weights, dense inputs, preallocated outputs, partitions left to PyTorch, a filled cache:
        each change that makes sense here is timed in turns with what runs, for less than a second. The target is called some
        hundred times, so take care with one that has side effects. What the machine reaches at most is measured too, for the rule
        `slow_kernel`.

        Args:
            *args: Arguments of the target.
            **kwargs: Likewise.

        Returns:
            The frame `findings`; rows with `measured` come from here, and those of which nothing is to be gained say so.

        Raises:
            UsageError: Nothing was compiled through this lens yet, or only a dry run was made.
        """
        from ortlens.lens.measuring.probes import Probe

        Probe(self._recorder, self.live_graphs(), lambda: self.call_target(args, kwargs), self.captured).run()
        return self.findings

    def verify(self, *args: Any, per_op: bool = False, atol: Any = None, rtol: Any = None, **kwargs: Any) -> pd.DataFrame:
        """Compare ONNX Runtime's numbers with PyTorch's: the outputs of every partition, and every value inside it.

        Calls what was compiled once (once more when that compiled something), as a call of your own would, with its effects on
        buffers and gradients; torch's random state is put back, and the call is not recorded. Every partition gets the same inputs on
        both sides. A run in double precision is the arbiter: what is beyond the tolerance while ONNX Runtime is about as close to it as
        PyTorch is has merely been rounded and is ok. Nodes that stay in PyTorch are PyTorch itself and are not compared.
        Memory: the values inside a partition once (in groups of 1 GiB), and PyTorch's activations once and in double precision.

        Args:
            *args: What the target takes.
            per_op: Check each operator converted on its own instead, on PyTorch's inputs, so that errors do not add up.
            atol: Absolute tolerance: a number, or a mapping of torch dtypes to numbers. None: 1e-7 for float32, see the docs. With a
                tolerance of your own, nothing beyond it is excused as rounding.
            rtol: The same, relative to the larger of the element and the value's root mean square. None: 1e-5 for float32.
            **kwargs: What the target takes by name.

        Returns:
            The frame `numerics`, one row per value, in the order of the graph; empty when ONNX Runtime runs nothing. `ok` is empty
            for what was not compared, with the reason in `note`.

        Raises:
            UsageError: There is nothing to verify (another backend, a dry run, nothing compiled yet), or an option is wrong.
        """
        from ortlens.lens.verify.compare_values import Tolerances
        from ortlens.lens.verify.numerics import Verification

        given = {name: value for name, value in (("per_op", per_op or None), ("atol", atol), ("rtol", rtol)) if value is not None}
        self._refuse_doubtful(given)
        call = functools.partial(self.call_target, args, kwargs)
        Verification(self._recorder, self.live_graphs, Tolerances(atol, rtol), per_op=per_op).run(call)
        return self.numerics

    def _refuse_doubtful(self, options: Mapping[str, Any]) -> None:
        """Refuse to verify another backend's graphs, and options that the target has an argument of the same name for."""
        self._backend_for(None)
        names: Iterable[str] = ()
        with contextlib.suppress(TypeError, ValueError, IndexError):  # builtins have no signature, and nothing may be compiled yet
            names = inspect.signature(self._targets[0][0]).parameters  # type: ignore[arg-type]  # what was called is callable
        clash = next((name for name in names if name in options), None)
        if clash is not None:
            raise UsageError(f"the target takes an argument {clash!r} too; pass it by its place, and verify's own option not at all")

    def live_graphs(self) -> tuple[CompiledGraph, ...]:
        """The graphs of our backend that were compiled through this lens, oldest first; those of earlier guards are among them."""
        from ortlens.backend.graph import CompiledGraph

        return tuple(graph for graph in self._recorder.live if isinstance(graph, CompiledGraph))

    def profile(self, *args: Any, repeat: int = 20, **kwargs: Any) -> pd.DataFrame:
        """Find out where the time inside ONNX Runtime goes, kernel by kernel.

        Calls what was compiled through this lens, once, or again where that call compiled anew. Each run of a session is then repeated
        with and without ONNX Runtime's profiler, in turn, in a second session of the same model that shares the frozen weights. Times
        are those of unprofiled runs, divided as the profiler saw them; `sessions.distortion` says how much longer the profiled ones
        took. Backward partitions are profiled where the target itself calls backward. The optimised model is kept too, see `fusions`.
        Where a kernel takes long, what the machine reaches at most is measured too, once per process, for the rule `slow_kernel`.

        Args:
            *args: Arguments of the target.
            repeat: How often each run is repeated with the profiler, and as often without; fewer for models of more than 5,000 nodes,
                whose profile would grow too large. A target with a keyword of that name gets
                it by `functools.partial`, or compile a function around it.
            **kwargs: Keyword arguments of the target.

        Returns:
            The frame `kernels`; a session's earlier rows are replaced.

        Raises:
            UsageError: `repeat` is not a positive number, nothing was compiled, or no partition ran in ONNX Runtime.
        """
        from ortlens.lens.profiling.kernels import profile
        from ortlens.lens.profiling.machine_peaks import measure_peaks

        profile(self, self._recorder, args, kwargs, repeat)
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
        """Write a folder that runs a partition, or one operator, in PyTorch and in ONNX Runtime; it needs only these two.

        In it: `repro.py` compares, `test_repro.py` does so as a test, `bench_repro.py` times both by turns, `program.py` holds the
        operators as plain torch code, `model.onnx` the model, `spec.json` what the inputs are made from, `ISSUE.md` a text to paste.
        Inputs and weights are random numbers with recorded statistics. Without a call (`args`) only weights have been seen; the
        inputs then have the recorded shapes, and standard statistics.

        Args:
            id: A partition, session or graph, by its id; a node by its name or as `(graph_id, node)`; or a row of a frame with a node.
                Of a graph, all partitions are written.
            folder: A folder that does not exist yet, or is empty.
            args: Arguments for a call of the target, from which statistics are taken. A backward graph is run without adding to any
                gradient.
            kwargs: Likewise, by name.
            real_inputs: Keep the inputs of that call instead of their statistics.
            weights: Keep weights and constants instead of their statistics.
            source: Quote the user's lines.

        Returns:
            The folder, as an absolute path.

        Raises:
            UsageError: Nothing has that name, the folder is not empty, the call does not come by, or the operators cannot be written as
                plain torch code. Nothing is written then.
        """
        from ortlens.lens.repro.evidence import write_repro

        called = args if args is not None or kwargs is None else ()
        return write_repro(self, id, folder, called, kwargs or {}, real_inputs=real_inputs, weights=weights, source=source)

    def _claims(self, backend: object) -> bool:
        return backend is self

    def _backend_for(self, options: Any) -> OrtBackend:
        """Our backend, with the options that `torch.compile(options=)` passed on, if any."""
        if self._ort is None:
            raise UsageError(f"this takes the ortlens backend, and the lens wraps {self._backend_name!r}")
        backend = self._ort if options is None else OrtBackend.get_cached_instance_for_options(options)
        self._facts.update(chosen_options(backend.options))
        return backend

    def compile_exported(self, program: ExportedProgram) -> Callable[..., Any]:
        """Send a `torch.export` program down the backend's road, without Dynamo.

        Args:
            program: As `torch.export.export` or `torch.export.load` gives it.

        Returns:
            A callable like `program.module()`, without gradients.

        Raises:
            UsageError: The lens wraps another backend, or the program takes script objects.
        """
        from ortlens.backend.lowering.exported import CompiledProgram

        self._modules.append(program.graph_module)
        compiled = CompiledProgram(program, self._backend_for(None), self._recorder, dry_run=self._dry_run)
        self._targets.append((program, compiled))
        return compiled

    def _observed(
        self, module: torch.fx.GraphModule, compiled: Callable[..., Any], compile_id: str | None, inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Record a graph of a foreign backend, and time its calls."""
        graph_id = self._recorder.next_id("g")
        sizes = [size for i in inputs if isinstance(i, torch.Tensor) for size in i.shape]
        self._recorder.add(
            r.Graph(
                graph_id=graph_id,
                compile_id=compile_id,
                phase="forward" if needs_gradient(inputs) else "inference",
                op_count=count_ops(module),
                dynamic_shapes=any(_torch.is_symbolic(value) for value in (*inputs, *sizes)),
            )
        )
        return _timed(compiled, self._recorder.run_log(None, graph_id).record)

    def know_module(self, target: object) -> None:
        """Note what an exported model needs: which names of weights mean the same tensor, and the names of the arguments.

        Args:
            target: What is compiled; anything but a module has no weights to name.
        """
        groups: dict[int, set[str]] = {}
        if isinstance(target, torch.nn.Module):
            named = (*target.named_parameters(remove_duplicate=False), *target.named_buffers(remove_duplicate=False))
            for name, tensor in named:
                groups.setdefault(id(tensor), set()).add(name)
        if isinstance(target, torch.export.ExportedProgram):
            for name, tensor in target.state_dict.items():
                groups.setdefault(id(tensor), set()).add(name)
        self._aliases = tuple(frozenset(names) for names in groups.values())
        function = target.forward if isinstance(target, torch.nn.Module) else target
        with contextlib.suppress(TypeError, ValueError):  # builtins have no signature
            self._arguments = tuple(inspect.signature(function).parameters) if callable(function) else ()

    def try_with_fakes(self, target: Any, fast: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call a compiled target on fake tensors, as far as it goes without values.

        Args:
            target: What was compiled.
            fast: The compiled target.
            args: Its arguments.
            kwargs: Likewise.
        """
        try:
            self.result = fakes.call_with_fakes(target, fast, args, kwargs)
        except Exception as error:
            if not _torch.needs_data(error):
                raise
            self._recorder.add(
                r.Finding(
                    rule="dry_run_ended",
                    severity="info",
                    title="the dry run ended where the model asks a tensor for its values",
                    evidence=f"{type(error).__name__}: {error}"[:2000],
                    hazard="Graphs after this point are not in the capture.",
                    mitigation="Run without dry_run=True, or move the decision into the graph (torch.where, torch.cond).",
                )
            )

    def captured(self) -> r.Capture:
        """Take a snapshot of everything recorded so far.

        Returns:
            The capture; recording goes on.
        """
        capture = self._recorder.capture(name=self.name, backend=self._backend_name, environment={**environment(), **self._facts})
        return capture if capture.ledger else replace(capture, ledger=ledger_from_logs(capture))

    def export_onnx(self, path: str | os.PathLike[str], weights: object = None) -> pathlib.Path:
        """Write the model to deploy, when ONNX Runtime runs the whole of it as one partition.

        Inputs have the names of the function's arguments, weights are inside (above 1 GiB in a file `{name}.data` beside it).
        The model needs nothing of ortlens.

        Args:
            path: The file.
            weights: Checkpoint for a model without data (built under fake tensors or on the meta device), or to replace the
                model's: a `.safetensors` file, the `.index.json` of a sharded one, a torch checkpoint, a folder with one of
                these, a mapping of names to tensors, or a sequence of all that. Tensors are read one at a time.

        Returns:
            Where it was written, as an absolute path.

        Raises:
            UsageError: The lens has no such graph, or weights are missing, unknown or of another shape or type; the message
                names them, and nothing is written.
        """
        from ortlens.backend.deploy.export import export_graph

        return export_graph(self._exportable(), path, weights, self._aliases, self._arguments)

    def _exportable(self) -> CompiledGraph:
        """The one graph there is to export: the newest compilation of the only frame."""
        graphs = self.live_graphs()
        if not graphs:
            raise UsageError("there is nothing to export: no graph was compiled through this lens by the ortlens backend")
        recompiled = {record.compile_id for record in self._recorder.records(r.Recompile)}
        first = [record for record in self._recorder.records(r.Graph) if record.compile_id not in recompiled and record.phase != "backward"]
        if len(first) > 1:
            raise UsageError(f"the model is split into {len(first)} graphs; one model can be exported from one graph only")
        return [graph for graph in graphs if graph.job.phase != "backward"][-1]

    def output(self) -> ExplainOutput:
        """What `torch._dynamo.explain` would return, with recompiles told apart from breaks.

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


def _resolve(backend: str | Callable[..., Any], options: Any) -> tuple[str, OrtBackend | None, Callable[..., Any]]:
    """Name, our backend if it is ours, and the callable."""
    if (isinstance(backend, str) and backend in _OWN_NAMES) or backend in (ortlens_backend, torch_compile_backend):
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


def _timed(compiled: Callable[..., Any], record: Callable[[int, int, int, int, int], None]) -> Callable[..., Any]:
    clock, thread = time.perf_counter_ns, threading.get_ident

    def call(*args: Any) -> Any:
        started = clock()
        result = compiled(*args)
        done = clock()
        record(started, started, done, done, thread())
        return result

    return call
