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
    """Make the runner of a partition from its model.

    Args:
        partition: The partition.
        model: Its ONNX model, with weights as inputs and the user's transforms applied.
        facts: What the cache holds beside a model; read are `permutations`, the memory order of each output or None,
            and `outputs`, their names before the user's transforms.
        context: The options, and who to notify of new sessions and failures.
        weight_inputs: Positions of the inputs that are parameters or buffers.
        inference: Whether the graph is for inference: only then are weights frozen, if the options allow it.
        alternates: Whether PyTorch computes something before or after the partition in every call.
        work: Amount of computation, as counted by `threads.work_of`.
        updates: The inputs that the graph updates, see `in_place.updates_of`.
        cached: Whether an earlier process converted the model.

    Returns:
        The runner; its sessions are created by `prepare`.
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
