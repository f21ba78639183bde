"""Trials of one partition, run on the inputs of an observed call: frozen weights, contiguous inputs, preallocated outputs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ortlens.lens.measuring.trials import ObservedPartition, Pair, Trial, prepared, present, timed
from ortlens.lens.shadow_sessions import variant_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

_WORTH_FREEZING = 1 << 16
"""Bytes of weights below which freezing them is not tried."""


def frozen(seen: ObservedPartition) -> Iterator[Trial]:
    """Yield a trial of weights as constants, if the graph is for inference and most of its weights are inputs now."""
    weights = [seen.values[place] for place, node in enumerate(seen.runner.partition.inputs) if node in seen.runner.weight_nodes()]
    size = sum(weight.nbytes for weight in weights if isinstance(weight, torch.Tensor))
    held = sum(weight.contiguous.nbytes for weight in seen.runner.sessions[-1].frozen)
    if seen.graph.lowered.phase != "inference" or size < _WORTH_FREEZING or 2 * held >= size:
        return

    def pair() -> Pair | None:
        variant = variant_of(seen.runner, freezes=True)
        run = prepared(variant, seen)
        return (timed(present(seen), seen.values), timed(run, seen.values)) if variant.sessions[-1].frozen else None

    yield Trial(
        rule="unfrozen_weights",
        subject=seen.identity.partition_id,
        change=f"freezing the weights of {seen.identity.partition_id}",
        mitigation='freeze_weights="auto", and weights that stay as they are between calls.',
        pair=pair,
        per_call=seen.runs,
    )


def dense(seen: ObservedPartition, copied: Container[str | None]) -> Iterator[Trial]:
    """Yield a trial per copied input that passes it contiguous; `copied` has the subjects of the findings `layout_copy`."""
    for place, node in enumerate(seen.runner.partition.inputs):
        value, subject = seen.values[place], f"{seen.identity.partition_id}:{node.name}"
        if subject in copied and isinstance(value, torch.Tensor):
            others = (*seen.values[:place], value.contiguous(), *seen.values[place + 1 :])
            yield Trial(
                rule="layout_copy",
                subject=subject,
                change=f"passing {node.name} contiguous",
                mitigation="Make it contiguous once where it is made; in the call itself .contiguous() costs the same copy.",
                pair=partial(_two_inputs, seen, others),
                per_call=seen.runs,
            )


def preallocated(seen: ObservedPartition, fired: Container[tuple[str, str | None]]) -> Iterator[Trial]:
    """Yield a trial of outputs that PyTorch allocates, if the rule `output_allocations` names the session in `fired`."""
    session_id = seen.identity.session_id
    if session_id is not None and ("output_allocations", session_id) in fired:
        yield Trial(
            rule="output_allocations",
            subject=session_id,
            change=f"letting PyTorch allocate the outputs of {session_id}",
            mitigation="preallocate_output=True.",
            pair=lambda: (
                timed(present(seen), seen.values),
                timed(prepared(variant_of(seen.runner, preallocate=True), seen), seen.values),
            ),
            per_call=seen.runs,
        )


def _two_inputs(seen: ObservedPartition, others: tuple[Any, ...]) -> Pair:
    return timed(present(seen), seen.values), timed(present(seen), others)
