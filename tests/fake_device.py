"""A device of PyTorch without memory that ONNX Runtime could read: what is computed there is computed on the CPU, and held elsewhere.

For a process of its own, since no device can be unregistered. Strides are not kept: all tensors claim to be contiguous.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"
_library = torch.library.Library("_", "IMPL")
_held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by the storage: the values, and the tensor that has it


def install() -> None:
    """Register the device."""
    _setup_privateuseone_for_python_backend(NAME)
    torch.accelerator.synchronize = lambda *_: None
    _library.fallback(_computed, "PrivateUse1")


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return _held[tensor.untyped_storage()._cdata][0] if tensor.device.type == NAME else tensor


def _placed(values: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch._C._acc.create_empty_tensor(list(values.shape), values.dtype)
    _held[made.untyped_storage()._cdata] = values, made
    return made


def _computed(operator: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch calls it
    if operator is torch.ops.aten._copy_from.default:
        _values(args[1]).copy_(_values(args[0]))
        return args[1]
    args, kwargs = tree_map_only(torch.Tensor, _values, (args, {name: value for name, value in kwargs.items() if name != "device"}))
    return tree_map_only(torch.Tensor, _placed, operator(*args, **kwargs))
