"""Makes the runner of a partition, the same way for a graph that was just compiled and for one from the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.backend.runtime import providers
from ortlens.backend.runtime.runner import PartitionRunner
from ortlens.backend.runtime.session_factory import SessionFactory

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from ortlens.backend.partitioning.extraction import Partition
    from ortlens.backend.runtime.runner_context import RunnerContext


def runner_from_model(  # noqa: PLR0913 - what is known about a partition, each by name
    partition: Partition,
    model: onnx.ModelProto,
    facts: Mapping[str, Any],
    context: RunnerContext,
    *,
    weight_inputs: frozenset[int],
    inference: bool,
    alternates: bool,
    work: int | None,
    updates: Mapping[int, int] | None = None,
    cached: bool = False,
) -> PartitionRunner:
    """Make the runner of a partition from its model, which has weights as inputs and the user's transforms applied.

    Read from `facts`, which the cache holds: `permutations`, the memory order of each output or None, and `outputs`, their names before the
    transforms. Weights are frozen for inference only. `alternates` and `work` are as for `threads.choose`.
    """
    factory = SessionFactory(
        partition=partition,
        model=model,
        permutations=[None if order is None else tuple(order) for order in facts["permutations"]],
        options=context.options,
        alternates=alternates,
        work=work,
        output_names=facts.get("outputs", ()),
    )
    freezes = inference and context.options.freeze_weights is not False
    updates = updates if providers.runs_on_cpu_alone(context.options) else {}
    return PartitionRunner(factory, context, weight_inputs=weight_inputs, freezes=freezes, updates=updates, cached=cached)
