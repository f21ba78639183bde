"""Refuses tensors that a frozen callable does not take: sparse ones, and others whose values are not where their strides say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind

from ortlens import _torch
from ortlens.backend.lowering.exported import state_value
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.export import ExportedProgram


def form_text(value: object) -> str | None:
    """Describe a tensor that is not dense, as `a sparse tensor (torch.sparse_coo)`; None for anything else."""
    form = _form(value)
    return None if form is None else form[0]


def _form(value: object) -> tuple[str, str] | None:
    """Return what a tensor that is not dense is, and what to do about it."""
    if not isinstance(value, torch.Tensor):
        return None
    if value.is_nested:
        return "a nested tensor", "pad it with torch.nested.to_padded_tensor()"
    if value.layout is not torch.strided:
        kind = "an oneDNN tensor" if value.is_mkldnn else "a sparse tensor"
        return f"{kind} ({value.layout})", "convert it with .to_dense()"
    if value.is_quantized:
        return f"a quantized tensor ({value.dtype})", "convert it with .dequantize()"
    if _torch.has_own_operators(value):
        return f"a tensor of the class {type(value).__name__}, which has its own operators", "pass the plain tensors that it holds"
    return None


def refuse_arguments(source: object, named: Iterable[tuple[str, object]]) -> None:
    """Raise `UsageError` for named arguments that are not dense tensors, before tracing."""
    _refuse(source, [(name, *form) for name, value in named if (form := _form(value)) is not None])


def refuse_weights(source: object) -> None:
    """Raise `UsageError` for weights whose memory a trace would take for that of a dense tensor.

    Sparse weights stay in PyTorch, and those of traceable subclasses are taken apart.
    """
    opaque = [(name, value) for name, value in _weights_of(source) if value.is_nested or value.is_quantized or value.is_mkldnn]
    _refuse(source, [(name, *form) for name, value in opaque if (form := _form(value)) is not None])


def refuse_constants(source: object, program: ExportedProgram) -> None:
    """Raise `UsageError` for a sparse tensor that a function holds outside parameters and buffers: PyTorch cannot lower it."""
    names = [spec.target for spec in program.graph_signature.input_specs if spec.kind is InputKind.CONSTANT_TENSOR]
    forms = [form for name in names if (form := _form(state_value(program, name))) is not None]
    _refuse(source, [("a variable that it reads", what, f"{do}, or register it as a buffer of a module") for what, do in forms])


def _weights_of(source: object) -> list[tuple[str, torch.Tensor]]:
    if isinstance(source, torch.export.ExportedProgram):
        return [(name, value) for name, value in source.state_dict.items() if isinstance(value, torch.Tensor)]
    owner: Any = source if isinstance(source, torch.nn.Module) else getattr(source, "__self__", None)
    return [*owner.named_parameters(), *owner.named_buffers()] if isinstance(owner, torch.nn.Module) else []


def _refuse(source: object, found: list[tuple[str, str, str]]) -> None:
    if found:
        name = getattr(source, "__name__", type(source).__name__)
        listed = "; ".join(f"{where} is {what}, not a dense one: {do}" for where, what, do in found)
        raise UsageError(f"{name} cannot be frozen: {listed}, or leave this part of the model to torch.compile")
