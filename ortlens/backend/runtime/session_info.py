"""What is known about a session once it has been created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion import dtypes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx
    import onnxruntime

    from ortlens.backend.partitioning.extraction import Partition
    from ortlens.backend.runtime.threads import ThreadChoice
    from ortlens.backend.runtime.weights import FrozenWeight
    from ortlens.trace.records import SessionCause


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session with its inputs and outputs. The first eight fields are those of PyTorch's removed backend.

    Attributes:
        input_names: Names of the inputs that are bound in each call.
        output_names: Names of the outputs.
        input_value_infos: ONNX types and shapes of the inputs.
        output_value_infos: ONNX types and shapes of the outputs.
        input_devices: torch devices of the partition's inputs.
        output_devices: torch devices of the partition's outputs.
        providers: Execution providers that ONNX Runtime registered.
        session: The session.
        wanted_providers: Execution providers that were requested.
        create_ns: Time to create the session.
        frozen: Weights that the session holds as constants.
        dimensions: Sizes that the session is fixed to, by the name of the symbolic dimension; empty for a session of all sizes.
        threads: Threads of the session, and why these.
        held_bytes: Heap memory that creating the session took; None where the C library does not report it.
        cause: Why the session was created, as in the column `cause` of the frame `sessions`.
        copied_bytes: Size of the frozen weights that the session does not read in torch's memory: packed, rearranged or inside the model.
        shareable_bytes: Size of the frozen weights that it would read there with `prepack_weights=False`.
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    input_value_infos: tuple[onnx.ValueInfoProto, ...]
    output_value_infos: tuple[onnx.ValueInfoProto, ...]
    input_devices: tuple[torch.device, ...]
    output_devices: tuple[torch.device, ...]
    providers: tuple[str, ...]
    session: onnxruntime.InferenceSession
    wanted_providers: tuple[str, ...]
    create_ns: int
    frozen: tuple[FrozenWeight, ...]
    dimensions: Mapping[str, int]
    threads: ThreadChoice
    held_bytes: int | None
    cause: SessionCause
    copied_bytes: int
    shareable_bytes: int


def signature_text(info: SessionInfo, partition: Partition) -> str:
    """Write the dtypes and shapes that a session accepts, such as `f32[2,8] i64[s0]`, without frozen weights."""
    frozen = {weight.name for weight in info.frozen}
    return " ".join(_value_text(node.meta["val"]) for node in partition.inputs if node.name not in frozen)


def _value_text(meta: Any) -> str:
    if not isinstance(meta, torch.Tensor):
        return type(meta).__name__.removeprefix("Sym").lower()
    sizes = ",".join(str(size) for size in meta.shape)
    return f"{dtypes.element_types()[meta.dtype].short}[{sizes}]"
