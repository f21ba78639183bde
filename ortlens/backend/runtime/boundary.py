"""Checks that a model still has the inputs and outputs of its partition, whatever the user's transforms did to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.conversion import dtypes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx


def mismatch(model: onnx.ModelProto, inputs: Mapping[str, Any], outputs: Sequence[Any], names: Sequence[str]) -> str | None:
    """Describe how a model's inputs and outputs differ from its partition's, and what to do; None if they do not.

    A transform may rename an output that it computes in another way, and drop an input. It may not reorder outputs, because they are
    returned by position, nor change element types or numbers of dimensions.
    """
    unknown = [value.name for value in model.graph.input if value.name not in inputs]
    if unknown:
        return f"the model has inputs {sorted(unknown)} that the partition has not{_ADVICE}"
    if len(model.graph.output) != len(outputs):
        return f"the model has {len(model.graph.output)} outputs, the partition {len(outputs)}{_ADVICE}"
    found = [value.name for value in model.graph.output]
    for place, name in enumerate(found):
        if name in names and names[place] != name:
            return f"the outputs are reordered: {name} was output {names.index(name)} and is output {place}{_ADVICE}"
    boundary = [("input", value, inputs[value.name]) for value in model.graph.input]
    boundary += [("output", value, meta) for value, meta in zip(model.graph.output, outputs, strict=True)]
    return next((said for kind, value, meta in boundary if (said := _difference(kind, value, meta))), None)


_ADVICE = "; pre_ort_model_transforms must keep the inputs by name, and the order and types of the outputs"


def _difference(kind: str, value: onnx.ValueInfoProto, meta: Any) -> str | None:
    if not isinstance(meta, torch.Tensor):
        return None
    tensor = value.type.tensor_type
    wanted, rank = dtypes.element_types()[meta.dtype].onnx, meta.dim()
    if tensor.elem_type not in (0, wanted):
        return f"{kind} {value.name} has element type {tensor.elem_type} of ONNX, PyTorch expects {wanted} ({meta.dtype}){_ADVICE}"
    if tensor.HasField("shape") and len(tensor.shape.dim) != rank:
        return f"{kind} {value.name} has {len(tensor.shape.dim)} dimensions, PyTorch expects {rank}{_ADVICE}"
    return None
