"""Frozen weights: constants of a session that share torch's memory, and the check that they still are what they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend import _ort, _torch

if TYPE_CHECKING:
    import onnx

LOCATION = "weights"
"""Where the model says that frozen weights are; they are handed to the session in memory under that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenWeight:
    """One weight as it was when the session was made.

    Attributes:
        name: Name of the input it replaces.
        tensor: The parameter or buffer itself, for its identity.
        version: torch's count of in-place writes.
        pointer: Address of its data; `param.data = other` changes it and leaves the version alone.
        contiguous: The tensor whose bytes the session uses; the same memory unless the weight is not contiguous.
    """

    name: str
    tensor: torch.Tensor
    version: int
    pointer: int
    contiguous: torch.Tensor

    def is_still(self, tensor: Any) -> bool:
        """Whether a value is this weight, unchanged.

        Args:
            tensor: What is passed for the weight now.

        Returns:
            True when it is the same tensor, with the same count of writes, at the same address. Writes past torch's count
            (`param.data.add_(...)`, a numpy view) cannot be seen this way.
        """
        return tensor is self.tensor and _torch.version_of(tensor) == self.version and tensor.data_ptr() == self.pointer


def freeze(name: str, tensor: Any) -> FrozenWeight | None:
    """Note a weight.

    Args:
        name: Name of the input it replaces.
        tensor: The value passed for it.

    Returns:
        The note, or None when changes of this tensor could not be noticed: one made in inference mode has no version.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.is_inference() or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    detached = tensor.detach()
    plain = detached if detached.is_contiguous() else detached.contiguous()
    return FrozenWeight(name=name, tensor=tensor, version=_torch.version_of(tensor), pointer=tensor.data_ptr(), contiguous=plain)


def ort_values(weights: list[FrozenWeight]) -> tuple[list[str], list[Any]]:
    """Wrap frozen weights for a session, without copying.

    Args:
        weights: As returned by `freeze`.

    Returns:
        Names and `onnxruntime.OrtValue`s over the same memory.
    """
    return [weight.name for weight in weights], [_ort.value_over(weight.contiguous) for weight in weights]


def with_frozen(model: onnx.ModelProto, weights: list[FrozenWeight], *, inline: bool = False) -> onnx.ModelProto:
    """A model in which some inputs are constants.

    Args:
        model: Left as it is.
        weights: The inputs to turn into constants.
        inline: Copy the bytes into the model, which protobuf limits to 2 GiB; otherwise they stay outside, under `LOCATION`.

    Returns:
        A copy with one initializer per weight.
    """
    import onnx

    frozen = {weight.name: weight for weight in weights}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kept = [value for value in made.graph.input if value.name not in frozen]
    for value in made.graph.input:
        if value.name in frozen:
            made.graph.initializer.append(_initializer(value, frozen[value.name], inline=inline))
    del made.graph.input[:]
    made.graph.input.extend(kept)
    return made


def _initializer(value: onnx.ValueInfoProto, weight: FrozenWeight, *, inline: bool) -> onnx.TensorProto:
    import onnx

    tensor = onnx.TensorProto(name=value.name, data_type=value.type.tensor_type.elem_type, dims=list(weight.contiguous.shape))
    if inline:
        tensor.raw_data = weight.contiguous.view(-1).view(torch.uint8).numpy().tobytes() if weight.contiguous.numel() else b""
        return tensor
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, text in (("location", LOCATION), ("offset", "0"), ("length", str(weight.contiguous.nbytes))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    return tensor
