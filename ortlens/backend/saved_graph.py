"""Compiled graphs as bytes: what was planned and converted, for a process that then lowers, plans and converts nothing.

The models are in the form of the cache, the graphs in that of torch's own pickler for them. Reading graphs executes what they say, as
reading any compiled function of torch does: only what `torch.compiler.load_compiled_function` was asked to load comes here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch.fx

from ortlens._torch.ahead import bytes_from_graphs, graphs_from_bytes
from ortlens.backend.basis.provenance import module_path
from ortlens.backend.cache.store import CachedModel
from ortlens.backend.lowering.buffer_writes import order_of_writes, set_order_of_writes
from ortlens.backend.partitioning import extraction
from ortlens.backend.partitioning.kinds import Verdict
from ortlens.backend.partitioning.plan import Plan
from ortlens.errors import ConversionError

if TYPE_CHECKING:
    from ortlens.backend.compile_context import CompileContext
    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.lowering.entry import LoweredGraph
    from ortlens.backend.lowering.returned_views import ReturnedViews
    from ortlens.backend.runtime.runner import PartitionRunner

_KEPT = ("val", "stack_trace")  # of what torch notes of a node: the value decides how calls run, the line is for the lens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedGraph:
    """A graph that another process planned and converted."""

    lowered: LoweredGraph
    promoted: torch.fx.GraphModule  # the graph that was partitioned
    plan: Plan
    models: list[CachedModel]  # one per partition, with the user's transforms applied


class SavedPlan:
    """The plan of a saved graph, in place of a `Planner`."""

    def __init__(self, saved: SavedGraph, context: CompileContext) -> None:
        """Take the context of the graph that is made of it."""
        self.plan, self.promoted = saved.plan, saved.promoted
        self._saved, self._context = saved, context

    def runners(self) -> list[PartitionRunner]:
        """Make one runner per partition, without sessions."""
        partitions = zip(extraction.split(self.plan, self.promoted), self._saved.models, strict=True)
        return [self._context.runner(self._saved.lowered, self.plan, partition, made, cached=True) for partition, made in partitions]

    def refused(self, runner: PartitionRunner, error: Exception, *, broadly: bool) -> None:  # noqa: ARG002 - as `Planner.refused`
        """Raise `ConversionError`: without what converts there is no other plan, and PyTorch runs the graph."""
        where = f"partition {runner.partition.index} of a graph that was compiled ahead of time"
        raise ConversionError(f"ONNX Runtime refused {where}: {error}") from error


def bytes_from_graph(graph: CompiledGraph) -> bytes:
    """Write a graph that is planned, with or without sessions; raise `ConversionError` if preparing it failed."""
    lowered, plan = graph.lowered, graph.plan
    if len(graph.runners) != plan.partition_count:
        raise ConversionError("PyTorch runs the whole graph, which has no plan to save")
    views = lowered.views
    state = {
        "lowered": replace(lowered, module=_portable(lowered.module), views=views and _portable_views(views), aot_ns=0, loading_ns=0),
        "promoted": _portable(graph.promoted),
        "verdicts": [(node.name, tuple(verdict)) for node, verdict in plan.verdicts.items()],
        "level": [(node.name, level) for node, level in plan.level.items()],
        "partition_count": plan.partition_count,
        "hoisted_sizes": [node.name for node in plan.hoisted_sizes],
        "order_of_writes": order_of_writes(graph.promoted.graph),
        "models": [_model_of(runner).to_bytes() for runner in graph.runners],
    }
    return bytes_from_graphs(state)


def graph_from_bytes(data: bytes) -> SavedGraph:
    """Read what `bytes_from_graph` wrote."""
    state = graphs_from_bytes(data)
    lowered, promoted = state["lowered"], state["promoted"]
    for module in (lowered.module, *((lowered.views.module, lowered.views.views) if lowered.views else ())):
        module.recompile()  # torch leaves that to the reader; of the promoted graph, only parts are called
    nodes = {node.name: node for node in promoted.graph.nodes}
    set_order_of_writes(nodes, state["order_of_writes"])
    plan = Plan(
        graph=promoted.graph,
        verdicts={nodes[name]: Verdict(*verdict) for name, verdict in state["verdicts"]},
        level={nodes[name]: level for name, level in state["level"]},
        partition_count=state["partition_count"],
        hoisted_sizes=frozenset(nodes[name] for name in state["hoisted_sizes"]),
    )
    models = [CachedModel.from_bytes(model) for model in state["models"]]
    return SavedGraph(lowered=lowered, promoted=promoted, plan=plan, models=models)


def _model_of(runner: PartitionRunner) -> CachedModel:
    factory = runner.factory
    facts = {"permutations": [order and list(order) for order in factory.permutations], "outputs": list(factory.output_names)}
    return CachedModel(model=runner.model, facts=facts)


def _portable_views(views: ReturnedViews) -> ReturnedViews:
    return replace(views, module=_portable(views.module), views=_portable(views.views))


def _portable(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Copy a graph with what this package reads of it: other notes refer to Dynamo's, to modules and to nodes."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    for source, copied in copies.items():
        copied.meta = {key: source.meta[key] for key in _KEPT if key in source.meta}
        if (owner := module_path(source)).path is not None:
            copied.meta["nn_module_stack"] = {"": owner}
    made = torch.fx.GraphModule(module, graph)
    made.meta = {}
    return made
