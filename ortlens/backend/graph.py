"""A compiled graph: planned and converted when it is made, with sessions from its first call on.

Sessions are created at the first call because they need the weights. Planning and session creation may both find that ONNX
Runtime cannot run a node. The node is then excluded, with the reason, and the graph is planned again without it. When anything
else fails, PyTorch runs the whole graph.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens._process import gc_paused
from ortlens._shell import progress
from ortlens.backend import whole_graph
from ortlens.backend.basis.error_text import LEFT_TO_TORCH, full_text, short_text
from ortlens.backend.basis.node_provenance import node_names
from ortlens.backend.compile_context import MAX_PLANS
from ortlens.backend.lowering.entry import Phases, is_for_the_user
from ortlens.backend.lowering.returned_views import inputs_of, outputs_of, resolving
from ortlens.backend.lowering.wholes import whole
from ortlens.backend.partitioning.plan import NodeKind, kind_of
from ortlens.backend.runtime import devices, program
from ortlens.backend.runtime.runner import count_of
from ortlens.backend.runtime.session import ModelRefused, ProviderNotLoaded
from ortlens.errors import SessionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch.fx

    from ortlens.backend.ahead import RestoredPlan
    from ortlens.backend.compile_context import CompileContext
    from ortlens.backend.lowering.entry import LoweredGraph
    from ortlens.backend.partitioning.plan import Plan
    from ortlens.backend.planner import Planner
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.trace.runlog import EagerLog


class PlannedGraph:
    """A graph whose partitions have models: its inputs and outputs, and what runs where."""

    def __init__(self, lowered: LoweredGraph, context: CompileContext, planner: Planner | RestoredPlan | None = None) -> None:
        """Plan and convert the graph; a `planner` has what another process planned and converted."""
        self.lowered = lowered  # the ATen graph
        self.context = context  # how it is compiled
        self.runners: list[PartitionRunner] = []  # one per partition, in the order of execution; none when PyTorch runs the whole graph
        self.phases = Phases()  # time spent in each phase of compilation
        self.failure: Exception | None = None  # why PyTorch runs the whole graph
        self._weights: dict[str, Any] = {}
        self._begin(planner)

    def _begin(self, planner: Planner | RestoredPlan | None) -> None:
        """Plan and convert the graph."""
        if planner is None:
            from ortlens.backend.planner import Planner  # here, since what another process planned needs nothing that converts

            planner = Planner(self.lowered, self.context, self.phases)
        self._planner = planner
        self._plan()

    @property
    def plan(self) -> Plan:
        """Where each node runs."""
        return self._planner.plan

    @property
    def promoted(self) -> torch.fx.GraphModule:
        """The graph that was partitioned."""
        return self._planner.promoted

    def placeholders(self) -> list[torch.fx.Node]:
        """List the inputs of the graph, in order."""
        return inputs_of(self.promoted.graph)

    def output_nodes(self) -> list[Any]:
        """List the outputs of the graph: nodes, and constants as they are."""
        return outputs_of(self.promoted.graph)

    def outer_input_names(self) -> list[str]:
        """Name the inputs of a deployed model: as the user does if that is known and distinct, else as the nodes."""
        own = [node.name for node in self.placeholders()]
        given = list(self.lowered.input_names)
        if len(given) != len(own):
            return own
        static = self.lowered.static_inputs
        weights, others = ([name for place, name in enumerate(given) if (place in static) is kind] for kind in (True, False))
        return given if all(len(names) == len(set(names)) for names in (weights, others)) else own

    def weight_inputs(self) -> dict[str, tuple[str, Any]]:
        """Map FX names of parameters and buffers to their names in a deployed model and the tensors of the first call (fake before it)."""
        names, weights = self.outer_input_names(), self._weight_nodes()
        return {node.name: (names[place], self._weights.get(node.name, node.meta.get("val"))) for place, node in weights.items()}

    def _weight_nodes(self) -> dict[int, torch.fx.Node]:
        return {place: node for place, node in enumerate(self.placeholders()) if place in self.lowered.static_inputs}

    def left_in_torch(self) -> dict[str, str]:
        """Map FX names of the nodes that PyTorch runs to the reasons."""
        return {node.name: self.plan.verdicts[node].reason or "" for node in program.eager_nodes(self.plan)}

    def numbers_from_torch(self) -> dict[str, str]:
        """Map FX names of the numbers that partitions take and PyTorch computes to the reasons."""
        taken = {node for runner in self.runners for node in runner.partition.inputs if kind_of(node) is NodeKind.SIZE}
        return {node.name: self.plan.verdicts[node].reason or "" for node in taken}

    def for_deployment(self) -> PlannedGraph:
        """Return the graph for a model without PyTorch: itself, or one converted with the views and operators that PyTorch makes."""
        if self.context.deployed:
            return self
        if self.lowered.views is None and not any(verdict.code in ("policy", "dtype") for verdict in self.plan.verdicts.values()):
            return self
        if self.context.registry is None:
            raise UsageError("a graph that was compiled ahead of time is not converted again; export the model where it is compiled")
        context = replace(self.context, reporter=None, cache=None, whole_graph_key=None, dry_run=True, deployed=True)
        made = PlannedGraph(replace(self.lowered, views=None), context)
        made._weights = self._weights
        return made

    def _plan(self) -> None:
        self.runners = self._planner.runners()
        if self.context.reporter is not None:
            least = self.context.options.min_partition_nodes
            names = self.lowered.input_names if len(self.lowered.input_names) == len(self.placeholders()) else ()
            inputs = {
                node: names[place] if names and names[place] != f"input_{place}" else node.name
                for place, node in enumerate(self.placeholders())
            }
            weights = frozenset(self._weight_nodes().values())
            self.context.reporter.planned(self.plan, self.runners, self.phases, inputs=inputs, weights=weights, min_nodes=least)


class CompiledGraph(PlannedGraph):
    """A graph that can be called."""

    def __init__(self, lowered: LoweredGraph, context: CompileContext, planner: Planner | RestoredPlan | None = None) -> None:
        """Plan and convert the graph; if that fails, PyTorch runs it."""
        self._is_guarded = lowered.compile_id is not None and planner is None  # by Dynamo, against most interpreters
        # The function to call now: takes a list of inputs, empties it, and returns a list of outputs. It is replaced by the first call.
        self.run: Callable[[list[Any]], list[Any]] = self._first_run
        self._runs_program = False  # whether `run` is generated code, and not PyTorch's graph
        self._lock = threading.RLock()
        super().__init__(lowered, context, planner)

    def _begin(self, planner: Planner | RestoredPlan | None) -> None:
        try:
            super()._begin(planner)
            if self.context.dry_run:
                self.run = self._with_views(eager_graph(self.lowered.partitioned))
        except Exception as error:  # noqa: BLE001 - whatever fails, PyTorch can run the graph
            self._fall_back(error)

    @property
    def is_prepared(self) -> bool:
        """Whether the graph has been called; the first call replaces `run`."""
        return self.run != self._first_run

    def session_calls(self) -> int:
        """Count the runs of the sessions of this graph."""
        return sum(count_of(runner.counter) for runner in self.runners)

    def _first_run(self, args: list[Any]) -> list[Any]:
        if self._is_captured(args):  # a session could not be created
            return self._with_views(eager_graph(self.lowered.partitioned))(args)
        self.prepare(args)
        return self.run(args)

    def _is_captured(self, args: list[Any]) -> bool:
        try:
            return devices.capturing(args)
        except Exception as error:  # noqa: BLE001 - whatever fails, PyTorch can run the graph
            self._fall_back(error)
            return True

    def prepare(self, args: list[Any]) -> None:
        """Create the sessions, once, of the weights in `args` (of all if each size has one); if that fails, PyTorch runs the graph."""
        with self._lock:
            if self.run == self._first_run:
                try:
                    with gc_paused():
                        self._prepare(args)
                except Exception as error:  # noqa: BLE001 - whatever fails, PyTorch can run the graph
                    self._fall_back(error)

    def _prepare(self, args: list[Any]) -> None:
        """Create all sessions, planning again without what ONNX Runtime refuses, then generate the program."""
        for attempt in range(MAX_PLANS):
            with progress("making ONNX Runtime sessions", len(self.runners), "session") as step:
                broadly = attempt >= MAX_PLANS // 2
                refused = [runner for runner in self.runners if not self._prepare_runner(runner, args, step, broadly=broadly)]
            if not refused:
                break
            self._plan()
        log, reporter = None, self.context.reporter
        if reporter is not None:
            log = reporter.eager_log(program.eager_nodes(self.plan))
            reporter.amend_phases(self.phases)
        self._weights = {node.name: args[place] for place, node in self._weight_nodes().items()}  # for a deployed model
        self.run, self._runs_program = self._program(log), True
        whole_graph.store(self)

    def unlogged(self) -> Callable[[list[Any]], list[Any]]:
        """Return what `run` is where no lens times the nodes that PyTorch runs."""
        return self._program(None) if self._runs_program and program.eager_nodes(self.plan) else self.run

    def _program(self, log: EagerLog | None) -> Callable[[list[Any]], list[Any]]:
        if log is None and not self.runners and self.lowered.recorded is not None:  # its operators are fewer calls of Python
            recorded = self.lowered.recorded
            return lambda args: list(recorded(*args))
        condition = _torch.UNGUARDED if self._is_guarded else _torch.IS_INTERPRETED
        elsewhere = (condition, eager_graph(self.lowered.partitioned))
        return self._with_views(program.make_program(self.plan, self.promoted, self.runners, log, elsewhere=elsewhere))

    def _with_views(self, run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        """Add to what computes the graph the outputs that are views."""
        run = resolving(run) if self.lowered.checks_signs else run
        return run if self.lowered.views is None else self.lowered.views.around(run)

    def _prepare_runner(self, runner: PartitionRunner, args: list[Any], step: Callable[[int], None], *, broadly: bool) -> bool:
        """Create the session of a partition; False when ONNX Runtime refuses the model, after which nodes are excluded."""
        placeholders = dict(zip(self.placeholders(), args, strict=True))
        values = [placeholders.get(node) for node in runner.partition.inputs]
        started = time.perf_counter_ns()
        try:
            with _torch.real_tensors():
                runner.prepare(values)
        except UsageError as error:
            if self.context.reporter is not None:
                self.context.reporter.failure("provider_unavailable", str(error), error)
            raise
        except ProviderNotLoaded as error:
            if self.context.options.on_error == "raise":
                raise SessionError(str(error)) from error
            raise
        except ModelRefused as error:
            from ortlens.backend.planner import lacks_kernel

            if self.context.options.on_error == "raise" and not lacks_kernel(node_names(runner.model), error):
                raise SessionError(f"ONNX Runtime refused partition {runner.partition.index}: {error}") from error
            self._planner.refused(runner, error, broadly=broadly)
            return False
        finally:
            self.phases.session_ns += time.perf_counter_ns() - started
            step(1)
        return True

    def _fall_back(self, error: Exception) -> None:
        """Let PyTorch run the whole graph, unless the user asked for errors or for something impossible."""
        if self.context.options.on_error == "raise" or self.context.deployed or is_for_the_user(error):
            raise error from error.__cause__
        self.failure = error
        self.runners = []
        self._runs_program = False
        self.run = self._with_views(eager_graph(self.lowered.partitioned))
        if self.context.reporter is not None:
            self.context.reporter.graph_lost(self.lowered.module, f"preparing the graph raised {short_text(error)}", full_text(error))
        self.context.report_failure("backend_failed", LEFT_TO_TORCH, error)


def eager_graph(module: torch.fx.GraphModule, *, apart: bool = False) -> Callable[[list[Any]], list[Any]]:
    """Make a boxed function that runs a graph in PyTorch alone: its operators whole, or `apart` as they were lowered."""

    @functools.cache
    def made() -> torch.fx.GraphModule:
        with contextlib.suppress(Exception):  # it runs in parts as well
            return module if apart else whole(module)
        return module

    def run(args: list[Any]) -> list[Any]:
        inputs = list(args)
        args.clear()
        return list(made()(*inputs))

    return run
