"""The only file of ortlens that touches private names of onnxruntime.

The public `IOBinding` of ONNX Runtime 1.31 (`onnxruntime/capi/onnxruntime_inference_collection.py`) wraps every call in
Python checks and wants numpy dtypes; the native classes below it take element types as numbers (so bfloat16 works) and
cost a third. DLPack is offered by the native `OrtValue` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnxruntime

from ortlens.errors import UnsupportedVersionError

if TYPE_CHECKING:
    import torch

_native = onnxruntime.capi._pybind_state
if not (hasattr(_native.OrtValue, "from_dlpack") and hasattr(_native.OrtValue, "to_dlpack")):
    raise UnsupportedVersionError(f"this build of onnxruntime {onnxruntime.__version__} has no DLPack; install onnxruntime>=1.23")
_DEVICE_KINDS = {"cpu": 0, "cuda": 1, "maia": 3}  # OrtDevice::CPU, GPU, NPU in include/onnxruntime/core/framework/ortdevice.h


def device_of(device: torch.device) -> Any:
    """ONNX Runtime's name for a torch device.

    Args:
        device: cpu, cuda or maia.

    Returns:
        An `OrtDevice` with default memory.
    """
    return _native.OrtDevice(_DEVICE_KINDS[device.type], 0, device.index or 0)


def new_binding(session: onnxruntime.InferenceSession) -> Any:
    """A native binding of a session.

    Args:
        session: Must outlive the binding: ONNX Runtime does not keep it alive, and a binding without its session crashes.

    Returns:
        A `SessionIOBinding`.
    """
    return _native.SessionIOBinding(session._sess)


def runner_of(session: onnxruntime.InferenceSession) -> Any:
    """The native call that runs a session on a binding.

    Args:
        session: The session.

    Returns:
        A callable of a binding and run options (or None).
    """
    return session._sess.run_with_iobinding


def value_over(tensor: torch.Tensor) -> onnxruntime.OrtValue:
    """An ONNX Runtime value over a tensor's memory, without copying.

    Args:
        tensor: Contiguous, detached; kept alive by the value.

    Returns:
        The value.
    """
    import torch

    is_bool = tensor.dtype is torch.bool  # DLPack of either side hands bools over as bytes unless told
    to_dlpack = torch.to_dlpack  # type: ignore[attr-defined]  # exported, but not in torch's annotations
    capsule = to_dlpack(tensor.view(torch.uint8) if is_bool else tensor)
    return onnxruntime.OrtValue(_native.OrtValue.from_dlpack(capsule, is_bool))


def tensor_over(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over the memory of a native ONNX Runtime value, without copying.

    Args:
        value: An element of `binding.get_outputs()`.
        dtype: What the tensor should be; bools come as bytes.

    Returns:
        The tensor; it keeps the memory alive.
    """
    import torch

    tensor: torch.Tensor = torch.from_dlpack(value.to_dlpack())  # type: ignore[attr-defined]  # same
    return tensor.view(torch.bool) if dtype is torch.bool and tensor.dtype is not torch.bool else tensor


def version() -> str:
    """Version of the installed ONNX Runtime."""
    return str(onnxruntime.__version__)
