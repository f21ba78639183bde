"""Whole graphs that an earlier process compiled: from Dynamo's graph straight to the session, without AOTAutograd.

AOTAutograd takes half of the compile time. For an inference graph that one partition covers, and that neither writes to its inputs
nor returns views of them, its result is short: which inputs are weights, in which order the partition takes its inputs, and what the
outputs are. That is kept under the key of the whole graph; the model stays under the key of its partition.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._process import gc_paused
from ortlens.backend.basis.options import dump_prefix
from ortlens.backend.basis.saved_graph import SavedGraph
from ortlens.backend.cache import key_of, state_text
from ortlens.backend.partitioning.plan import GraphPartition
from ortlens.backend.runtime.runner import PartitionRunner
from ortlens.backend.runtime.session import SessionFactory
from ortlens.backend.runtime.threads import work_of
from ortlens.errors import SessionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.backend.cache import ModelCache
    from ortlens.backend.compile_context import CompileContext
    from ortlens.backend.graph import PlannedGraph


def key_for(module: torch.fx.GraphModule, inputs: Sequence[Any], options: OrtBackendOptions) -> str | None:
    """Compute the key of a whole graph; None with symbolic sizes, subclasses, dumps, errors to be raised, or without a fingerprint."""
    plain = all(isinstance(value, torch.Tensor) and not _torch.is_wrapper(value) and not _torch.has_symbols(value) for value in inputs)
    if not plain or not inputs or dump_prefix(options) or options.on_error == "raise":
        return None
    settings = (options.export_options, options.min_partition_nodes, options.freeze_weights, options.upcast, state_text())
    return key_of("whole graph", module, *settings, inputs=inputs)


def store(graph: PlannedGraph) -> None:
    """Cache a graph that has sessions, if it may be and one partition computes every output."""
    cache, key, views = graph.context.cache, graph.context.whole_graph_key, graph.lowered.views
    if cache is None or key is None or len(graph.runners) != 1 or graph.left_in_torch() or graph.numbers_from_torch():
        return
    from ortlens.backend.planner import model_key  # a process that finds its graph imports nothing that plans

    partition, outputs = graph.runners[0].partition, graph.output_nodes()
    made = list(partition.outputs)
    values = [_described(node.meta["val"]) for node in made]
    windows = [(place, None) for place in range(len(outputs))] if views is None else views.windows()
    model = model_key(partition, graph.context)
    if windows is None or model is None or None in values or any(outputs[place] not in made for place, _ in windows):
        return
    facts = {
        "model": model,
        "names": [node.name for node in graph.placeholders()],
        "weights": sorted(graph.lowered.static_inputs),
        "values": values,
        "outputs": [made.index(outputs[place]) for place, _ in windows],
        "windows": [window for _, window in windows],
        "work": work_of(partition.nodes),
    }
    with contextlib.suppress(OSError):  # reported already, when the model itself could not be stored
        cache.store(key, SavedGraph(manifest=facts, files={}))


def _described(value: Any) -> list[Any] | None:
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return None
    return [str(value.dtype).removeprefix("torch."), list(value.shape), list(value.stride())]


class CachedGraph:
    """A graph that an earlier process compiled, with a session of this process."""

    def __init__(self, runner: PartitionRunner, outputs: list[int], windows: list[list[Any] | None]) -> None:
        """Use the runner of the only partition; a window is the shape, strides and offset of an output that is a view."""
        self.runners = [runner]  # the runner of the only partition
        self._outputs = outputs
        self._views = [(place, window) for place, window in enumerate(windows) if window is not None]
        self._lock = threading.Lock()
        self._is_prepared = False

    def __call__(self, *args: Any) -> list[Any]:
        """Run the graph."""
        if not self._is_prepared:
            self._prepare(args)
        runner = self.runners[0]
        made = runner.partition.module(*args) if _torch.is_unguarded() else runner.run(*args)
        found = [made[place] for place in self._outputs]
        for place, window in self._views:
            found[place] = found[place].as_strided(*window)
        return found

    def _prepare(self, args: Sequence[Any]) -> None:
        with self._lock:
            if self._is_prepared:
                return
            try:
                with gc_paused():
                    self.runners[0].prepare(args)
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever fails, PyTorch can run the graph
                warnings.warn(f"ortlens: a model of cache_dir could not be loaded; PyTorch runs it: {error}", RuntimeWarning, stacklevel=4)
            self._is_prepared = True


def load(
    cache: ModelCache, key: str, *, module: torch.fx.GraphModule, inputs: Sequence[Any], context: CompileContext
) -> CachedGraph | None:
    """Look up a whole graph; None if the graph or its model is not in the cache."""
    found = cache.load(key)
    cached = None if found is None else cache.model(str(found.manifest.get("model")))
    if found is None or cached is None:
        return None
    facts = found.manifest
    factory = SessionFactory(
        partition=_partition(module, inputs, facts),
        model=context.transformed(cached.model),
        permutations=cached.permutations,
        output_names=cached.output_names,
        options=context.options,
        weight_inputs=frozenset(facts["weights"]),
        freezes=context.options.freeze_weights is not False,
        replays=True,
        alternates=False,
        work=facts["work"],
        cached=True,
    )
    return CachedGraph(PartitionRunner(factory, context), facts["outputs"], facts["windows"])


def _partition(module: torch.fx.GraphModule, inputs: Sequence[Any], facts: dict[str, Any]) -> GraphPartition:
    """Make a partition that calls Dynamo's graph when PyTorch runs it; it takes all inputs, also those that the model does not need."""
    graph = torch.fx.Graph()
    sources = []
    for name, value in zip(facts["names"], inputs, strict=True):
        sources.append(graph.placeholder(name))
        sources[-1].meta["val"] = value
    whole = graph.call_module("whole", tuple(sources))
    outputs = []
    for number, value in enumerate(facts["values"]):
        place = facts["outputs"].index(number)
        name, shape, strides = value
        if not isinstance(dtype := getattr(torch, name), torch.dtype):
            raise SessionError(f"{name} is not a dtype")
        offset = None if facts["windows"][place] is None else facts["windows"][place][2]
        outputs.append(graph.call_function(_item, (whole, place, offset, shape, strides)))
        outputs[-1].meta["val"] = _torch.fake_tensor(dtype, shape, strides)
    graph.output(tuple(outputs))
    made = torch.fx.GraphModule({"whole": module}, graph, class_name="Cached")
    return GraphPartition(index=0, module=made, inputs=tuple(sources), outputs=tuple(outputs), nodes=tuple(outputs))


def _item(values: Sequence[Any], place: int, offset: int | None, shape: list[int], strides: list[int]) -> Any:
    """Return an output of the graph; of a view, which begins at an offset, the whole value."""
    value = values[place]
    return value if offset is None else value.as_strided(shape, strides, value.storage_offset() - offset)
