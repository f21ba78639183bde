"""The ONNX model of one partition: read from the cache, or converted and optimised."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ortlens.backend.cache.keys import key_of
from ortlens.backend.cache.store import CachedModel
from ortlens.backend.conversion import converter
from ortlens.backend.conversion.optimize import optimize_model

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

    from ortlens.backend.context import CompileContext
    from ortlens.backend.partitioning.extraction import Partition
    from ortlens.backend.recording.reporter import Phases


def model_key(partition: Partition, context: CompileContext) -> str | None:
    """Return the cache key of a partition's model; None if the partition has none."""
    return key_of("partition", partition.module, partition.index, context.options.export_options, context.options.upcast)


def model_of(partition: Partition, context: CompileContext, phases: Phases, step: Callable[[int], None]) -> tuple[CachedModel, bool]:
    """Load a partition's model from the cache or make it, before the user's transforms; tells whether it comes from the cache.

    Updates `phases`; `step` reports progress, in nodes. Raises `converter.NodeFailures`.
    """
    cache = context.cache
    if cache is None:
        return _converted(partition, context, phases, step), False
    key = model_key(partition, context)
    cached = cache.load(key)
    if cached is not None:
        return cached, True
    made = _converted(partition, context, phases, step)
    if key is not None and made.facts["optimized"]:
        try:
            cache.store(key, made)
        except OSError as error:
            context.report_failure("cache_failed", "a converted model could not be kept in cache_dir; it runs nevertheless", error)
    return made, False


def _converted(partition: Partition, context: CompileContext, phases: Phases, step: Callable[[int], None]) -> CachedModel:
    started = time.perf_counter_ns()
    try:
        name, upcast = f"partition_{partition.index}", context.options.upcast
        converted = converter.onnx_from_partition(partition.module, context.registry, name, step, upcast=upcast)
    finally:
        phases.convert_ns += time.perf_counter_ns() - started
    started = time.perf_counter_ns()
    model, optimized = _optimized(partition, converted.model, context)
    wanted = context.options.export_options and context.options.export_options.opset_version
    if wanted:
        model = converter.to_opset(model, wanted)
    proto = converter.proto_from_model(model, converted.output_types)
    phases.optimize_ns += time.perf_counter_ns() - started
    names = [value.name for value in proto.graph.output]
    return CachedModel(model=proto, facts={"permutations": converted.output_permutations, "optimized": optimized, "outputs": names})


def _optimized(partition: Partition, model: ir.Model, context: CompileContext) -> tuple[ir.Model, bool]:
    """Optimise a model; tells whether that succeeded."""
    if context.dry_run:
        return model, False
    try:
        return optimize_model(model), True
    except Exception as error:  # noqa: BLE001 - optimisation is optional, and a failed pass leaves the model unchanged
        if context.reporter is not None:
            title = f"the ONNX optimiser failed on partition_{partition.index}; the model runs unoptimised"
            context.reporter.failure("optimiser_failed", title, error)
        return model, False
