"""What the code of a model asks while it is traced, of which a trace has only one of the answers."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.overrides

from ortlens.backend.basis.provenance import StackFrame, is_model_code


class LayoutQuestions(torch.overrides.TorchFunctionMode):
    """Notes what the model's own code asks about the layout of tensors while it is traced: a trace has only one of the answers."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()
        self.asked: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a question and answer it."""
        name = getattr(func, "__name__", "")
        if name in _QUESTIONS and is_asked_by_model():
            self.asked.add(name)
        if func is torch.Tensor.contiguous:  # which leaves no trace where it returns the tensor itself
            return _contiguous(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _contiguous(tensor: torch.Tensor, *, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten.contiguous.default(tensor, memory_format=memory_format)
    return made


_QUESTIONS = frozenset({"is_contiguous", "stride", "storage_offset"})


def is_asked_by_model() -> bool:
    """Tell whether model code, not torch's, called what is being traced; other modes may lie in between."""
    frame = inspect.currentframe()
    while frame is not None and (frame.f_code.co_name == "__torch_function__" or frame.f_globals.get("__name__") in _BETWEEN):
        frame = frame.f_back
    return frame is not None and is_model_code(StackFrame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))


_BETWEEN = frozenset({__name__, "torch", "ortlens._torch.compared", "torch._export.non_strict_utils", "torch.overrides"})
