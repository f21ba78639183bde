"""Compiles the graphs of one backend, from ATen graphs or from the cache.

What lowers, partitions and converts is imported when a graph needs it: a process that finds its graphs in the cache does not.
"""

from __future__ import annotations

import time
import warnings
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens._process import gc_paused
from ortlens.backend import whole_graph
from ortlens.backend.basis.error_text import short_text
from ortlens.backend.basis.options import registered_ops
from ortlens.backend.cache import ModelCache
from ortlens.backend.compile_context import CompileContext, RunCounts
from ortlens.trace.guard import lens_failed, lens_guard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch.fx
    from torch.export import ExportedProgram

    from ortlens.backend.ahead import RestoredPlan
    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.lowering.entry import LoweredGraph
    from ortlens.backend.recording.reporter import GraphReporter
    from ortlens.backend.whole_graph import CachedGraph
    from ortlens.trace.recorder import Recorder


class GraphCompiler:
    """Compiles graphs with one set of options."""

    def __init__(self, options: OrtBackendOptions) -> None:
        """Compile with these options."""
        self.options = options
        self.graphs: weakref.WeakSet[CompiledGraph | CachedGraph] = weakref.WeakSet()  # the graphs that were compiled and are still in use
        self._counts = RunCounts()
        self._custom: dict[Any, Callable[..., Any]] = {}
        self._tables: tuple[Any, dict[Any, Callable[..., Any]]] | None = None
        self._left: dict[Any, Callable[..., Any]] = {}  # the decompositions of what may leave operators to PyTorch

    def session_calls(self) -> int:
        """Count the runs of all sessions, those of graphs that are no longer in use included."""
        return self._counts.total()

    def tables(self) -> tuple[Any, dict[Any, Callable[..., Any]]]:
        """Return the registry of ONNX functions and the decompositions that lead to it; rebuilt after `register_op`."""
        from ortlens.backend.lowering.kernel_strides import with_kernel_strides
        from ortlens.backend.operators import registry as operators

        users = self.custom_targets()
        custom = {**operators.own_functions(), **registered_ops(), **(self.options.custom_translation_table or {})}
        if self._tables is None or self._custom != custom:
            registry = _torch.registry_with(custom)
            own = {target: function for target, function in operators.decompositions().items() if target not in users}
            plain, converted = {**_torch.decomposition_table(registry), **own}, _torch.converted_operators(registry)
            self._custom, self._tables = custom, (registry, with_kernel_strides(plain, users, converted))
            self._left = with_kernel_strides(operators.with_calls_left_to_torch(plain, users), users, converted)
        return self._tables

    def decompositions(self, *, planned: bool = False, deployed: bool = True) -> dict[Any, Callable[..., Any]]:
        """Return the decompositions, without those for PyTorch's fused operators on CUDA if ONNX Runtime cannot run what they lead to.

        What is only `planned` may go to a provider that another installation has. What is not `deployed` may leave operators to PyTorch.
        """
        from ortlens.backend.operators.registry import fused_on_cuda
        from ortlens.backend.runtime.devices import reason_against

        table = self.tables()[1]
        if not deployed:
            table = self._left
        if reason_against("cuda", planned=planned) is None:
            return table
        fused = fused_on_cuda()
        return {target: function for target, function in table.items() if target not in fused}

    def custom_targets(self) -> frozenset[Any]:
        """Return the operators that have functions of the user's, for this backend or for the whole process."""
        return frozenset({**registered_ops(), **(self.options.custom_translation_table or {})})

    def lowered_from(
        self, program: ExportedProgram, *, recorder: Recorder | None = None, updates_in_place: bool = False
    ) -> tuple[ExportedProgram, LoweredGraph]:
        """Decompose an exported program with the tables of this backend; `updates_in_place` is as for `lower_program`."""
        with gc_paused():
            started = time.perf_counter_ns()
            from ortlens.backend.lowering.exported import lower_program

            table, users, report = self.decompositions(), self.custom_targets(), self.failure_reporter(recorder)
            loading_ns = time.perf_counter_ns() - started
            decomposed, lowered = lower_program(
                program, decompositions=table, custom_targets=users, on_failure=report, updates_in_place=updates_in_place
            )
        return decomposed, replace(lowered, loading_ns=loading_ns)

    def compile(
        self,
        lowered: LoweredGraph,
        *,
        recorder: Recorder | None,
        dry_run: bool = False,
        whole_graph_key: str | None = None,
        loading_ns: int = 0,
    ) -> Callable[[list[Any]], list[Any]]:
        """Compile one ATen graph to a boxed function, which takes a list, empties it, and returns a list; `loading_ns` is recorded."""
        lowered = replace(lowered, loading_ns=loading_ns if lowered.phase != "backward" else 0)
        compiled = self.graph_of(lowered, recorder=recorder, dry_run=dry_run, whole_graph_key=whole_graph_key)
        return _torch.boxed(lambda args: compiled.run(args))  # noqa: PLW0108 - the first call replaces `run`

    def graph_of(
        self,
        lowered: LoweredGraph,
        *,
        recorder: Recorder | None,
        dry_run: bool = False,
        whole_graph_key: str | None = None,
        planner_of: Callable[[CompileContext], RestoredPlan] | None = None,
    ) -> CompiledGraph:
        """Compile one ATen graph; cache it as a whole under `whole_graph_key`, if it has the inputs and outputs of Dynamo's.

        With `planner_of`, which makes its plan, another process planned and converted it.
        """
        from ortlens.backend.graph import CompiledGraph

        context = CompileContext(
            options=self.options,
            registry=None if planner_of else self.tables()[0],
            cache=None if dry_run or planner_of else self._cache(),
            whole_graph_key=whole_graph_key if lowered.is_plain else None,
            reporter=_reporter(recorder, lowered),
            dry_run=dry_run,
            counts=self._counts,
        )
        compiled = CompiledGraph(lowered, context, planner_of and planner_of(context))
        failure = None
        if planner_of is None and _torch.is_traced():
            from ortlens.backend.recording.reporter import trace_partitions

            failure = trace_partitions(lowered, lambda: compiled.plan)
        self.graphs.add(compiled)
        if recorder is not None:
            if failure is not None:
                lens_failed(recorder, "writing torch's structured trace", failure)
            recorder.live.append(compiled)
        return compiled

    def deployed(self, lowered: LoweredGraph, values: Sequence[Any]) -> CompiledGraph:
        """Compile a graph for a model that runs without PyTorch; of `values`, its inputs, weights are kept, and need no data."""
        from ortlens.backend.graph import CompiledGraph

        options = replace(self.options, freeze_weights=False)  # its session only shows what ONNX Runtime takes
        graph = CompiledGraph(replace(lowered, views=None), CompileContext(options=options, registry=self.tables()[0], deployed=True))
        graph.prepare(list(values))
        return graph

    def failure_reporter(self, recorder: Recorder | None) -> Callable[[str, str, Exception], None] | None:
        """Return what reports, by rule and title, a failure that is survived and no graph reports; None if it is to be raised."""
        if self.options.on_error == "raise":
            return None

        def report(rule: str, title: str, error: Exception) -> None:
            if recorder is not None:
                from ortlens.backend.recording.records import failure_finding

                with lens_guard(recorder, "recording a failure"):
                    recorder.add(failure_finding(rule, title, error))
            warnings.warn(f"ortlens: {title}: {short_text(error)}", RuntimeWarning, stacklevel=2)

        return report

    def whole_graph_key(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> str | None:
        """Return the cache key of a Dynamo graph; None without a cache, or if it cannot be cached as a whole."""
        return None if self._cache() is None else whole_graph.key_for(module, inputs, self.options)

    def cached_graph(self, key: str, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> CachedGraph | None:
        """Look up a graph that an earlier process compiled; None if it is not in the cache."""
        cache = self._cache()
        if cache is None:
            return None
        context = CompileContext(options=self.options, counts=self._counts)
        with _torch.real_tensors(), gc_paused():
            found = whole_graph.load(cache, key, module=module, inputs=inputs, context=context)
        if found is not None:
            self.graphs.add(found)
        return found

    def _cache(self) -> ModelCache | None:
        """Return the folder of converted models; None with the user's conversion functions, whose names do not identify their code."""
        folder = self.options.cache_dir
        return None if folder is None or self.custom_targets() else ModelCache(folder)


def _reporter(recorder: Recorder | None, lowered: LoweredGraph) -> GraphReporter | None:
    if recorder is None:
        return None
    from ortlens.backend.recording.reporter import GraphReporter
    from ortlens.trace.records import same

    with lens_guard(recorder, "recording a graph"):
        return GraphReporter(recorder, **same(lowered, "phase", "compile_id", "op_count", "aot_ns", "loading_ns"))
    return None
