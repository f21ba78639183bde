"""Sessions: the configuration of one, and what is known about it once it has been created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnxruntime
import torch

from ortlens.backend.conversion import dtypes
from ortlens.backend.runtime import _ort
from ortlens.backend.runtime.rewrites import unwanted_rewrites

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from ortlens.backend.partitioning.extraction import Partition
    from ortlens.backend.runtime import threads
    from ortlens.backend.runtime.threads import ThreadChoice
    from ortlens.backend.runtime.weights import FrozenWeight
    from ortlens.trace.records import SessionCause

_QUIET = 4  # ONNX Runtime's severity "fatal": errors are raised with their reason anyway


class ModelRefused(Exception):  # noqa: N818 - a verdict on a model; the graph is then planned again
    """ONNX Runtime rejects a model; its own exception is the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Everything that ONNX Runtime needs to create a session."""

    model: onnx.ModelProto  # the model, with frozen weights as initializers
    options: onnxruntime.SessionOptions
    providers: list[tuple[str, dict[str, Any]]]  # names and options of the execution providers, in order
    threads: threads.ThreadChoice  # threads of the session, and why these
    weights: Sequence[Any] = ()  # values that the options refer to; the session is given them to keep alive

    def session(self, serialized: bytes, *, without: Sequence[str] = ()) -> onnxruntime.InferenceSession:
        """Create the session, with `without` disabled besides the rewrites that always are.

        Raise `ModelRefused` if ONNX Runtime rejects the model.
        """
        try:
            made = onnxruntime.InferenceSession(
                serialized,
                self.options,
                providers=self.providers,
                enable_fallback=0,
                disabled_optimizers=[*unwanted_rewrites(self.model, self.providers), *_disabled_by_user(self.options), *without],
            )
        except Exception as error:
            raise ModelRefused(str(error)) from error
        _ort.keep_with(made, self.weights)
        return made


WITHOUT_OVERFLOW = ("session.x64quantprecision", "1")
"""On a CPU with AVX2 and without VNNI, products of 8-bit integers with signed weights overflow 16 bits. This makes ONNX Runtime compute
with unsigned ones there; on other CPUs it changes nothing."""


def default_session_options(choice: threads.ThreadChoice) -> onnxruntime.SessionOptions:
    """Make the options of one session for when the user gives no `ort_session_options`."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    options.add_session_config_entry(*WITHOUT_OVERFLOW)
    choice.apply(options)
    return options


def _disabled_by_user(options: onnxruntime.SessionOptions) -> list[str]:
    """List the rewrites that the user's options disable: names passed with the session would replace these."""
    try:
        return [name for name in options.get_session_config_entry(_DISABLED_ENTRY).split(";") if name]
    except RuntimeError:  # there is no such entry
        return []


_DISABLED_ENTRY = "optimization.disable_specified_optimizers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session with its inputs and outputs. The first eight fields are those of PyTorch's removed backend."""

    input_names: tuple[str, ...]  # names of the inputs that are bound in each call
    output_names: tuple[str, ...]
    input_value_infos: tuple[onnx.ValueInfoProto, ...]  # ONNX types and shapes of the inputs
    output_value_infos: tuple[onnx.ValueInfoProto, ...]  # ONNX types and shapes of the outputs
    input_devices: tuple[torch.device, ...]  # torch devices of the partition's inputs
    output_devices: tuple[torch.device, ...]  # torch devices of the partition's outputs
    providers: tuple[str, ...]  # execution providers that ONNX Runtime registered
    session: onnxruntime.InferenceSession
    wanted_providers: tuple[str, ...]  # execution providers that were requested
    create_ns: int  # time to create the session
    frozen: tuple[FrozenWeight, ...]  # weights that the session holds as constants
    # Sizes that the session is fixed to, by the name of the symbolic dimension; empty for a session of all sizes.
    dimensions: Mapping[str, int]
    threads: ThreadChoice  # threads of the session, and why these
    held_bytes: int | None  # heap memory that creating the session took; None where the C library does not report it
    cause: SessionCause  # why the session was created, as in the column `cause` of the frame `sessions`
    copied_bytes: int  # size of the frozen weights that the session does not read in torch's memory: packed, rearranged or inside the model
    shareable_bytes: int  # size of the frozen weights that it would read there with `prepack_weights=False`


def signature_text(info: SessionInfo, partition: Partition) -> str:
    """Write the dtypes and shapes that a session accepts, such as `f32[2,8] i64[s0]`, without frozen weights."""
    frozen = {weight.name for weight in info.frozen}
    return " ".join(_value_text(node.meta["val"]) for node in partition.inputs if node.name not in frozen)


def _value_text(meta: Any) -> str:
    if not isinstance(meta, torch.Tensor):
        return type(meta).__name__.removeprefix("Sym").lower()
    sizes = ",".join(str(size) for size in meta.shape)
    return f"{dtypes.element_types()[meta.dtype].short}[{sizes}]"
