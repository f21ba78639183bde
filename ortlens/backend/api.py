"""The backend that `torch.compile` calls, and the names of the removed backend."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from ortlens._process import gc_paused
from ortlens._versions import check_supported
from ortlens.backend.basis.error_text import LEFT_TO_TORCH
from ortlens.backend.basis.options import OrtBackendOptions
from ortlens.errors import OrtLensError
from ortlens.trace.guard import lens_context, lens_guard
from ortlens.trace.recorder import CURRENT
from ortlens.trace.records import Graph

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch.fx
    from torch.export import ExportedProgram

    from ortlens.backend.lowering.entry import LoweredGraph
    from ortlens.backend.lowering.exported import CompiledProgram
    from ortlens.backend.runtime.session import SessionInfo
    from ortlens.trace.recorder import Recorder
    from ortlens.trace.records import Phase

_MAX_INSTANCES = 8
_MAX_TEXT = 300


class OrtBackend:
    """A `torch.compile` backend over ONNX Runtime.

    Attributes:
        options: The user's options.
        compiler: Compiles the graphs.
    """

    _instances: ClassVar[list[OrtBackend]] = []
    _instances_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, options: OrtBackendOptions | Mapping[str, Any] | None = None) -> None:
        """Make a backend.

        Args:
            options: Options, a mapping of option names to values, or None.

        Raises:
            UsageError: An option is unknown or has an invalid value.
            UnsupportedVersionError: torch, onnxruntime, onnx or onnxscript is outside the supported range.
            OptionalDependencyError: One of them is missing.
        """
        check_supported("torch", "onnxruntime", "onnx", "onnxscript")
        from ortlens.backend.compiler import GraphCompiler

        self.options = OrtBackendOptions.from_any(options)
        self.compiler = GraphCompiler(self.options)

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, dry_run: bool = False) -> Callable[..., Any]:
        """Compile a Dynamo graph.

        Args:
            graph_module: Dynamo's graph.
            example_inputs: Its inputs.
            dry_run: Partition and convert only; calls with fake tensors return fake tensors.

        Returns:
            A callable of the same inputs.
        """
        from ortlens import _torch

        recorder = CURRENT.get()
        before: set[str] = set()
        ahead = False
        try:
            ahead = not dry_run and _torch.compiles_ahead()
            before = _graph_ids(recorder)
            _torch.inline_regions(graph_module)
            with gc_paused(), self.seen_by(recorder, graph_module):
                compiled = self._compiled(graph_module, example_inputs, recorder, dry_run=dry_run, ahead=ahead)
        except Exception as error:
            from ortlens.backend.lowering.entry import is_for_the_user

            if self.options.on_error == "raise" or is_for_the_user(error):
                raise
            self._left_to_torch(graph_module, recorder, before, error)
            compiled = graph_module.forward
        if not ahead:
            return compiled
        from ortlens.backend.ahead import saved_form

        return saved_form(compiled, graph_module)

    def _compiled(
        self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], recorder: Recorder | None, *, dry_run: bool, ahead: bool
    ) -> Callable[..., Any]:
        started = time.perf_counter_ns()
        from ortlens import _torch
        from ortlens.backend.basis.provenance import needs_gradient
        from ortlens.backend.lowering.entry import DynamoGraph, as_recorded, only_updates, unrolled

        loading_ns = time.perf_counter_ns() - started
        trains = needs_gradient(example_inputs)
        if trains and not self.options.use_aot_autograd:
            _report_skipped(graph_module, recorder, "forward", "use_aot_autograd=False leaves graphs that need gradients to PyTorch")
            return graph_module.forward
        if not trains and not self.compiler.custom_targets() and only_updates(graph_module):
            text = (
                "the graph updates tensors in place and computes nothing else, which PyTorch does where they lie, without passing them on"
            )
            _report_skipped(graph_module, recorder, "inference", text)
            return as_recorded(graph_module)
        if (loop := unrolled(graph_module)) is not None:
            _report_skipped(graph_module, recorder, "forward" if trains else "inference", f"{loop}; call the loop's body compiled instead")
            return graph_module.forward
        key = None if dry_run or trains or ahead else self.compiler.whole_graph_key(graph_module, example_inputs)
        # A lens shows the nodes that AOTAutograd makes, so under a lens no graph skips AOTAutograd.
        if key is not None and recorder is None and (cached := self.compiler.cached_graph(key, graph_module, example_inputs)):
            return cached
        started = time.perf_counter_ns()
        decompositions = self.compiler.decompositions(planned=dry_run, deployed=False)  # only now: graphs that end above need none
        loading_ns += time.perf_counter_ns() - started
        compile_graph = functools.partial(
            self.compiler.compile, recorder=recorder, dry_run=dry_run, whole_graph_key=key, loading_ns=loading_ns
        )
        if ahead:
            compile_graph = functools.partial(self._kept, recorder)
        graph = DynamoGraph(graph_module, compile_graph, self.compiler.failure_reporter(recorder), stays=self._stays_whole, ahead=ahead)
        with _torch.kept_by_itself() if ahead else contextlib.nullcontext():
            return graph.compile(example_inputs, decompositions)

    def _stays_whole(self, call: torch.fx.Node, parts: Sequence[torch.fx.Node]) -> Any:
        """Tell why an operator of a graph with gradients stays in PyTorch; None where it is taken apart."""
        from ortlens.backend.partitioning.support import slower_in_parts
        from ortlens.backend.runtime.devices import runs_on_cpu_alone

        return slower_in_parts(call, parts) if runs_on_cpu_alone(self.options) else None

    def _kept(self, recorder: Recorder | None, lowered: LoweredGraph) -> Callable[..., Any]:
        """Compile one ATen graph to what AOTAutograd can keep for another process."""
        from ortlens.backend.ahead import CompiledPhase

        return CompiledPhase(self.compiler.graph_of(lowered, recorder=recorder), self.get_cached_instance_for_options)

    @staticmethod
    def _left_to_torch(module: torch.fx.GraphModule, recorder: Recorder | None, before: set[str], error: Exception) -> None:
        """Report a graph that PyTorch runs as Dynamo recorded it, because preparing it failed."""
        said = f"{type(error).__name__}: {error}"
        if recorder is not None:
            with lens_guard(recorder, "recording a failure"):
                from ortlens.backend.recording.records import failure_finding

                for graph_id in _graph_ids(recorder) - before:  # the compilation came to nothing
                    recorder.forget_graph(graph_id)
                    recorder.drop(Graph, graph_id)
                recorder.add(failure_finding("backend_failed", LEFT_TO_TORCH, error))
            _report_skipped(module, recorder, "inference", f"preparing the graph raised {said}")
        warnings.warn(f"ortlens: {LEFT_TO_TORCH}: {said[:_MAX_TEXT]}", RuntimeWarning, stacklevel=3)

    def seen_by(self, recorder: Recorder | None, module: torch.fx.GraphModule) -> contextlib.AbstractContextManager[object]:
        """Return the context in which to compile a graph for a lens to which Dynamo did not pass it."""
        if recorder is None or recorder.on_graph is None:
            return contextlib.nullcontext()
        on_graph = recorder.on_graph
        return lens_context(recorder, "noting a compilation", lambda: on_graph(module, self.options))

    def __deepcopy__(self, _memo: dict[int, Any]) -> OrtBackend:
        """Return this backend: `copy.deepcopy` of what `torch.compile` returns copies its backend, too."""
        return self

    def __reduce__(self) -> tuple[Callable[..., OrtBackend], tuple[OrtBackendOptions]]:
        """Pickle the options only: of what the backend compiled nothing can be kept."""
        return OrtBackend.get_cached_instance_for_options, (self.options,)

    def compile_program(self, program: ExportedProgram, recorder: Recorder | None = None, *, dry_run: bool = False) -> CompiledProgram:
        """Compile an exported program.

        Args:
            program: As `torch.export.export` or `torch.export.load` returns it.
            recorder: Receives the records of a lens; None without a lens.
            dry_run: Partition and convert only; calls with fake tensors return fake tensors.

        Returns:
            A callable like `program.module()`, without gradients.

        Raises:
            UsageError: The program takes something that is neither a tensor nor a plain value.
        """
        from ortlens import _torch
        from ortlens.backend.lowering.exported import CompiledProgram
        from ortlens.backend.runtime.memory_assumptions import MemoryAssumptions

        program = _torch.plain_program(program)
        decomposed, lowered = self.compiler.lowered_from(program, recorder=recorder)
        run = self.compiler.compile(lowered, recorder=recorder, dry_run=dry_run, loading_ns=lowered.loading_ns)
        return CompiledProgram(program, decomposed, run, None if dry_run else MemoryAssumptions)

    @property
    def execution_count(self) -> int:
        """How many times sessions of this backend have run; `torch.compiler.reset` does not lower it."""
        return self.compiler.session_calls()

    @property
    def sessions_by_graph(self) -> dict[torch.fx.GraphModule, list[SessionInfo]]:
        """The sessions of each partition, by the partition's GraphModule."""
        return {runner.partition.module: list(runner.sessions) for graph in self.compiler.graphs for runner in graph.runners}

    @classmethod
    def get_cached_instance_for_options(cls, options: OrtBackendOptions | Mapping[str, Any] | None = None) -> OrtBackend:
        """The backend for these options; equal options share one.

        Args:
            options: Options, a mapping, or None. Options that hold a `SessionOptions` object equal no others.

        Returns:
            A backend; at most 8 are kept, the oldest is dropped first.
        """
        wanted = OrtBackendOptions.from_any(options)
        with cls._instances_lock:
            if wanted.ort_session_options is None:
                for instance in cls._instances:
                    if instance.options == wanted:
                        return instance
            made = cls(wanted)
            cls._instances.append(made)
            del cls._instances[:-_MAX_INSTANCES]
            return made

    @classmethod
    def get_cached_instances(cls) -> tuple[OrtBackend, ...]:
        """The backends that are kept, oldest first."""
        with cls._instances_lock:
            return tuple(cls._instances)

    @classmethod
    def clear_cached_instances(cls) -> None:
        """Forget all kept backends; graphs that they compiled keep working."""
        with cls._instances_lock:
            cls._instances.clear()


def _report_skipped(module: torch.fx.GraphModule, recorder: Recorder | None, phase: Phase, reason: str) -> None:
    if recorder is None:
        return
    from ortlens import _torch
    from ortlens.backend.basis.provenance import count_ops
    from ortlens.backend.recording.reporter import GraphReporter

    with lens_guard(recorder, "recording a graph"):
        compile_id = _torch.current_compile_id()
        reporter = GraphReporter(recorder, phase=phase, compile_id=compile_id, op_count=count_ops(module), aot_ns=0)
        reporter.graph_skipped(module, reason)


def _graph_ids(recorder: Recorder | None) -> set[str]:
    if recorder is not None:
        with lens_guard(recorder, "recording a graph"):
            return {graph.graph_id for graph in recorder.records(Graph)}
    return set()


def ortlens_backend(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Any = None, **_: Any
) -> Callable[..., Any]:
    """Compile a graph under the names `ortlens` and `onnxrt`, which entry points register.

    `options` is the argument of `torch.compile(options=...)`: `OrtBackendOptions` or a mapping.
    """
    with gc_paused():  # one collection after the first graph, not one amid its imports as well
        try:
            backend = OrtBackend.get_cached_instance_for_options(options)
        except (OrtLensError, ImportError):  # a wrong option, a missing or broken package
            raise
        except Exception as error:  # noqa: BLE001 - a defect of ours must not cost the user's answer
            said = f"ortlens: the backend could not be made and PyTorch runs the graph: {type(error).__name__}: {error}"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
            return graph_module.forward
        return backend(graph_module, example_inputs)


def torch_compile_backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Any = None) -> Callable[..., Any]:
    """The same function under the name that it had in the removed backend.

    Args:
        graph_module: Dynamo's graph.
        example_inputs: Its inputs.
        options: `OrtBackendOptions` or a mapping.

    Returns:
        A callable of the same inputs.
    """
    return ortlens_backend(graph_module, example_inputs, options=options)


def is_onnxrt_backend_supported() -> bool:
    """Whether everything that the backend needs is installed in a supported version.

    Returns:
        True when `torch.compile(backend="onnxrt")` can work.
    """
    try:
        check_supported("torch", "onnxruntime", "onnx", "onnxscript")
    except OrtLensError:
        return False
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "onnxruntime", "onnx", "onnxscript"))


if "torch" in sys.modules:  # as where torch loads the entry point, before `torch.compiler.load_cache_artifacts` may be called
    from ortlens import _torch

    _torch.register_artifacts()
