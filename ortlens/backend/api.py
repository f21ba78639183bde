"""The backend that `torch.compile` calls, and the names of the removed backend."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from ortlens._versions import check_supported
from ortlens.backend.options import OrtBackendOptions
from ortlens.errors import OrtLensError
from ortlens.trace.recorder import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch.fx
    from torch.export import ExportedProgram

    from ortlens.backend.lowering.exported import CompiledProgram
    from ortlens.backend.runtime.session_info import SessionInfo
    from ortlens.trace.recorder import Recorder
    from ortlens.trace.records import Phase

_MAX_INSTANCES = 8


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
        from ortlens.backend.gc_paused import gc_paused
        from ortlens.backend.lowering.entry import DynamoGraph, needs_gradient
        from ortlens.backend.lowering.single_updates import as_recorded, updates_once

        recorder, trains = CURRENT.get(), needs_gradient(example_inputs)
        if trains and not self.options.use_aot_autograd:
            _report_skipped(graph_module, recorder, "forward", "use_aot_autograd=False leaves graphs that need gradients to PyTorch")
            return graph_module.forward
        if not trains and not self.compiler.custom_targets() and updates_once(graph_module):
            text = "the graph updates each tensor with one operator, which PyTorch does where it lies, without passing it to ONNX Runtime"
            _report_skipped(graph_module, recorder, "inference", text)
            return as_recorded(graph_module)
        key = None if dry_run or trains else self.compiler.whole_graph_key(graph_module, example_inputs)
        # A lens shows the nodes that AOTAutograd makes, so under a lens no graph skips AOTAutograd.
        if key is not None and recorder is None and (cached := self.compiler.cached_graph(key, graph_module, example_inputs)):
            return cached
        decompositions = self.compiler.tables()[1]  # built here, so that it does not count as AOTAutograd's time
        compile_graph = functools.partial(self.compiler.compile, recorder=recorder, dry_run=dry_run, whole_graph_key=key)
        graph = DynamoGraph(graph_module, compile_graph, self.compiler.lowering_failed(recorder))
        with self._seen_by(recorder, graph_module), gc_paused():
            return graph.compile(example_inputs, decompositions)

    def _seen_by(self, recorder: Recorder | None, module: torch.fx.GraphModule) -> contextlib.AbstractContextManager[object]:
        """The context in which a lens wants a graph to be compiled that Dynamo did not pass to the lens itself."""
        on_graph = None if recorder is None else recorder.on_graph
        return contextlib.nullcontext() if on_graph is None else on_graph(module, self.options)

    def __deepcopy__(self, _memo: dict[int, Any]) -> OrtBackend:
        """A copied model is compiled by the same backend: `copy.deepcopy` of what `torch.compile` returns copies its backend, too."""
        return self

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
        from ortlens.backend.lowering.exported import CompiledProgram

        return CompiledProgram(
            program,
            functools.partial(self.compiler.compile, recorder=recorder, dry_run=dry_run),
            decompositions=self.compiler.tables()[1],
            custom_targets=self.compiler.custom_targets(),
            on_failure=self.compiler.lowering_failed(recorder),
        )

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
    """Report a graph that stays in PyTorch as Dynamo recorded it."""
    if recorder is None:
        return
    from ortlens import _torch
    from ortlens.backend.lowering.entry import count_ops
    from ortlens.backend.recording.reporter import GraphReporter

    compile_id = _torch.current_compile_id()
    reporter = GraphReporter(recorder, phase=phase, compile_id=compile_id, op_count=count_ops(module), aot_ns=0)
    reporter.graph_skipped(module, reason)


def ortlens_backend(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Any = None, **_: Any
) -> Callable[..., Any]:
    """The backend under its names `ortlens` and `onnxrt`, which entry points register.

    Args:
        graph_module: Dynamo's graph.
        example_inputs: Its inputs.
        options: The argument of `torch.compile(options=...)`: `OrtBackendOptions` or a mapping.

    Returns:
        A callable of the same inputs.
    """
    return OrtBackend.get_cached_instance_for_options(options)(graph_module, example_inputs)


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
