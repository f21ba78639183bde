"""Converts a partition again without the later rewrites, so that the model still holds the values that they removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.backend.conversion import converter
from ortlens.backend.conversion.optimize import optimize_model
from ortlens.lens.shadow_sessions import variant_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ortlens.backend.context import CompileContext
    from ortlens.backend.runtime.runner import PartitionRunner


def as_converted(runner: PartitionRunner, context: CompileContext, args: Sequence[Any], *, optimized: bool = False) -> PartitionRunner:
    """Convert a partition again, and return a runner with a session that records nothing.

    `optimized` applies our own rewrites, but not the user's transforms. Exceptions of the conversion pass through.
    """
    name, upcast = f"partition_{runner.partition.index}", context.options.upcast
    converted = converter.onnx_from_partition(runner.partition.module, context.registry, name, upcast=upcast)
    model = optimize_model(converted.model) if optimized else converted.model
    made = variant_of(runner, model=converter.proto_from_model(model, converted.output_types))
    made.prepare(args)
    return made
