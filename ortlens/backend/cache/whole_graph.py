"""Graphs that an earlier process compiled: from Dynamo's graph straight to the session, without AOTAutograd.

What AOTAutograd finds out about a graph is half of the time that compiling takes. For a graph of inference that one partition
covers, that neither writes to its inputs nor returns views of them, its answer is short: which inputs are weights, which inputs
the partition takes in which order, and what comes out. That is kept beside the model, and the model itself is not kept twice.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens import _torch
from ortlens.backend.cache import fingerprint
from ortlens.backend.cache.keys import key_of
from ortlens.backend.cache.store import CachedModel, ModelCache
from ortlens.backend.gc_paused import gc_paused
from ortlens.backend.partitioning.extraction import Partition
from ortlens.backend.runtime.runner import PartitionRunner, runner_for
from ortlens.backend.runtime.threads import work_of
from ortlens.errors import SessionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx

    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.options import OrtBackendOptions
    from ortlens.backend.runtime.session_info import SessionInfo


def key_for(module: torch.fx.GraphModule, inputs: Sequence[Any], options: OrtBackendOptions) -> str | None:
    """The name of a whole graph in the cache.

    Args:
        module: As Dynamo hands it over.
        inputs: Its inputs.
        options: The user's.

    Returns:
        64 hexadecimal digits; None for graphs that this road is not for: with symbolic sizes, subclasses of tensors, a dump asked
        for, or something that has no lasting name.
    """
    plain = all(isinstance(value, torch.Tensor) and not _torch.is_wrapper(value) and not _is_dynamic(value) for value in inputs)
    if not plain or not inputs or options.dump_path or options.on_error == "raise":
        return None
    settings = (options.export_options, options.min_partition_nodes, options.freeze_weights, fingerprint.state_text())
    return key_of("whole graph", module, *settings, inputs=inputs)


def _is_dynamic(value: torch.Tensor) -> bool:
    return any(_torch.is_symbolic(size) for size in (*value.shape, *value.stride()))


def keep(cache: ModelCache, key: str, compiled: CompiledGraph) -> None:
    """Keep what was found out about a graph.

    Args:
        cache: Where.
        key: See `key_for`.
        compiled: A graph with its sessions, whose outputs need nothing done to them.
    """
    import onnx

    runner = compiled.whole()
    if runner is None:
        return
    model = compiled.model_key(runner.part)
    made = list(runner.part.outputs)
    values = [_described(node.meta["val"]) for node in made]
    facts = {
        "model": model,
        "names": [node.name for node in compiled.placeholders()],
        "weights": sorted(compiled.job.static_inputs),
        "values": values,
        "outputs": [made.index(node) for node in compiled.output_nodes()],
        "work": work_of(runner.part.nodes),
    }
    if model is not None and None not in values:
        cache.store(key, CachedModel(model=onnx.ModelProto(), facts=facts))


def _described(value: Any) -> list[Any] | None:
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return None
    return [str(value.dtype).removeprefix("torch."), list(value.shape), list(value.stride())]


class CachedGraph:
    """A graph of an earlier process, with a session of this one.

    Attributes:
        runners: The one partition.
    """

    def __init__(self, runner: PartitionRunner, outputs: list[int]) -> None:
        """Put together what was kept.

        Args:
            runner: Runs its partition.
            outputs: For each output of the graph, its place among those of the partition.
        """
        self.runners = [runner]
        self._outputs = outputs
        self._lock = threading.Lock()
        self._ready = False

    def __call__(self, *args: Any) -> list[Any]:
        """Run the graph.

        Args:
            *args: Values of its inputs.

        Returns:
            Its outputs.
        """
        if not self._ready:
            self._prepare(args)
        made = self.runners[0].run(*args)
        return [made[place] for place in self._outputs]

    def session_calls(self) -> int:
        """How often its session ran."""
        return self.runners[0].calls()

    def _prepare(self, args: Sequence[Any]) -> None:
        with self._lock:
            if self._ready:
                return
            try:
                gc_paused(self.runners[0].prepare, args)
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the reason, PyTorch has the right answer
                warnings.warn(f"ortlens: a model of cache_dir could not be loaded; PyTorch runs it: {error}", RuntimeWarning, stacklevel=4)
            self._ready = True


def load(  # noqa: PLR0913 - one call site; each by name
    cache: ModelCache,
    key: str,
    *,
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    options: OrtBackendOptions,
    transforms: Callable[[onnx.ModelProto], onnx.ModelProto],
) -> CachedGraph | None:
    """Find a graph of an earlier process.

    Args:
        cache: Where to look.
        key: See `key_for`.
        module: As Dynamo hands it over.
        inputs: Its inputs.
        options: The user's.
        transforms: The user's, for the model.

    Returns:
        The graph; None when it, or its model, is not there.
    """
    found = cache.load(key)
    entry = None if found is None else cache.load(str(found.facts.get("model")))
    if found is None or entry is None:
        return None
    facts = found.facts
    runner = runner_for(
        _part(module, inputs, facts),
        transforms(entry.model),
        entry.facts,
        _Context(options),
        weight_inputs=frozenset(facts["weights"]),
        inference=True,
        alternates=False,
        work=facts["work"],
        cached=True,
    )
    return CachedGraph(runner, facts["outputs"])


@dataclass(frozen=True, slots=True)
class _Context:
    """What the runner of a cached graph needs; see `RunnerContext`. Nothing is recorded."""

    options: OrtBackendOptions

    def session_made(self, runner: PartitionRunner, info: SessionInfo) -> None:
        """No log: nothing is recorded."""

    def run_failed(self, runner: PartitionRunner, error: Exception) -> None:
        del runner
        warnings.warn(
            f"ortlens: a graph went back to PyTorch, since ONNX Runtime failed while running it: {error}", RuntimeWarning, stacklevel=2
        )


def _part(module: torch.fx.GraphModule, inputs: Sequence[Any], facts: dict[str, Any]) -> Partition:
    """A partition that PyTorch would run as Dynamo's graph; it takes all inputs of that, also those that the model does without."""
    graph = torch.fx.Graph()
    sources = []
    for name, value in zip(facts["names"], inputs, strict=True):
        sources.append(graph.placeholder(name))
        sources[-1].meta["val"] = value
    whole = graph.call_module("whole", tuple(sources))
    outputs = []
    for number, value in enumerate(facts["values"]):
        outputs.append(graph.call_function(_taken, (whole, facts["outputs"].index(number))))
        outputs[-1].meta["val"] = _torch.fake_tensor(*_layout(value))
    graph.output(tuple(outputs))
    made = torch.fx.GraphModule({"whole": module}, graph, class_name="Ready")
    return Partition(index=0, module=made, inputs=tuple(sources), outputs=tuple(outputs), nodes=tuple(outputs))


def _taken(values: Sequence[Any], place: int) -> Any:
    return values[place]


def _layout(value: list[Any]) -> tuple[torch.dtype, list[int], list[int]]:
    name, shape, strides = value
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise SessionError(f"{name} is no dtype")
    return dtype, shape, strides
