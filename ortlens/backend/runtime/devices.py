"""Kinds of devices: all that differs between their sessions, which is how these are configured, bound, called and waited for.

A session's execution providers are chosen by the options and the devices of the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _ort
from ortlens.backend.basis.memory_order import COPIED
from ortlens.backend.basis.options import named_providers
from ortlens.backend.runtime import cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ortlens.backend.basis.options import OrtBackendOptions

CPU = _ort.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """One kind of device, and what its sessions need beside what those of the CPU need."""

    provider: str
    ort_kind: int  # OrtDevice::CPU, GPU, NPU in include/onnxruntime/core/framework/ortdevice.h
    rank: int = 0  # among the providers that are inferred, the lowest first
    takes_device_id: bool = True  # as an option of the provider, for any device but the first
    holds_weights: bool = False  # sessions hold weights as constants
    is_copied: bool = False  # tensors are copied to the CPU for a run, and results back
    calls: type[cuda.DeviceCalls] | None = None  # how sessions are configured and called; None: without more ado
    checksums: Callable[[Sequence[torch.Tensor]], Callable[[], tuple[int, ...] | None]] | None = None  # None: the host reads its memory
    is_capturing: Callable[[], bool] | None = None  # whether PyTorch captures a graph, so that no session may be called
    generator: Callable[[int], torch.Generator] | None = None  # that of a device by its index, from which PyTorch draws random numbers


def _sums(tensors: Sequence[torch.Tensor]) -> Callable[[], tuple[int, ...]]:
    made = tuple(int(cuda.sum_of_bits(tensor)) for tensor in tensors)
    return lambda: made


_KINDS = {
    "cpu": DeviceKind(
        provider=CPU,
        ort_kind=0,
        rank=2,
        takes_device_id=False,
        holds_weights=True,
        generator=lambda _: torch.default_generator,
    ),
    "cuda": DeviceKind(
        provider=cuda.PROVIDER,
        ort_kind=1,
        rank=1,
        holds_weights=True,
        calls=cuda.DeviceCalls,
        checksums=cuda.checksums,
        is_capturing=cuda.is_capturing,
        generator=lambda index: torch.cuda.default_generators[index],
    ),
    "maia": DeviceKind(provider="MAIAExecutionProvider", ort_kind=3),
    **dict.fromkeys(
        COPIED, DeviceKind(provider=CPU, ort_kind=0, rank=2, takes_device_id=False, holds_weights=True, is_copied=True, checksums=_sums)
    ),
}
_UNKNOWN = DeviceKind(provider="", ort_kind=-1)  # no session takes its tensors


def kind_of(device: torch.device) -> DeviceKind:
    """Return what is known of the kind of a device; for one without a provider, that its sessions can do nothing."""
    return _KINDS.get(device.type, _UNKNOWN)


def memory_of(device: torch.device) -> torch.device:
    """Return the device whose memory sessions read for tensors on a device: the CPU where these are copied."""
    return torch.device("cpu") if kind_of(device).is_copied else device


def ort_device(device: torch.device) -> Any:
    """Translate a torch device (cpu, cuda, maia, or one whose tensors are copied) into an `OrtDevice` with default memory."""
    return _ort.device(_KINDS[device.type].ort_kind, memory_of(device).index or 0)


def profiler_ranges() -> tuple[Callable[[str], object], Callable[[], object]] | None:
    """Return the functions that open and close a range in NVTX; None without a CUDA device, whose profiler shows them."""
    return (torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop) if torch.cuda.is_available() else None


def available() -> tuple[str, ...]:
    """List the providers that ONNX Runtime contains and can load, in its order of preference, and those that were registered until now."""
    import onnxruntime

    return tuple(onnxruntime.get_available_providers())


def reason_against(device_type: str, *, planned: bool = False) -> str | None:
    """Say why tensors on a device such as `cuda` cannot go to ONNX Runtime; None when they can.

    What is only `planned` may go to a provider that another installation has.
    """
    kind = _KINDS.get(device_type)
    if kind is None:
        return (
            f"device {device_type!r} has no ONNX Runtime counterpart; cpu, cuda and maia have one, and from mps and xpu tensors are copied"
        )
    if not planned and kind.provider not in available():
        return f"{kind.provider} is not in the installed ONNX Runtime, which has {', '.join(available())}"
    return None


def runs_on_cpu_alone(options: OrtBackendOptions) -> bool:
    """Tell whether tensors on the CPU can go to the CPU provider only; false when the options name another, or devices."""
    return not names_devices(options) and all(name == CPU for _, name, _ in named_providers(options))


def names_devices(options: OrtBackendOptions) -> bool:
    """Tell whether the session options of the user name devices, as `add_provider_for_devices` does, and no option names a provider."""
    given, named = options.ort_session_options, options.preferred_execution_providers or options.default_execution_providers
    return given is not None and not named and bool(given.has_providers())


def cpu_provider_computes(element_type: str) -> bool:
    """Tell whether the installed CPU provider has kernels of sums and products for an element type such as `bfloat16`."""
    return all(element_type in _ort.kernel_types(CPU, operator, _OPSET).get("T", ()) for operator in ("Add", "Mul", "MatMul", "Gemm"))


_OPSET = 18  # of the models that are converted


def providers_for(devices: Iterable[torch.device], options: OrtBackendOptions) -> list[tuple[str, dict[str, Any]]]:
    """Choose a session's providers, without duplicates: preferred, then inferred, then default ones, the CPU provider last.

    `devices` are those of the inputs, or of the outputs if there are none. None are chosen where the session options name devices. Raise
    `UsageError` if a provider that the user named is not available.
    """
    if names_devices(options):
        return []
    chosen: dict[str, dict[str, Any]] = {}
    for option, name, settings in (named := named_providers(options)):
        _ort.require_provider(name, option, available())
        if option == "preferred_execution_providers":
            chosen.setdefault(name, settings)
    if options.infer_execution_providers:
        for name, settings in _inferred(devices):
            chosen.setdefault(name, settings)
    for _, name, settings in named:
        chosen.setdefault(name, settings)
    chosen.setdefault(CPU, {})
    return list(chosen.items())


def _inferred(devices: Iterable[torch.device]) -> list[tuple[str, dict[str, Any]]]:
    first: dict[str, torch.device] = {}  # of each kind whose provider is there
    for device in devices:
        if kind_of(device).provider in available():
            first.setdefault(device.type, device)
    chosen = sorted(first.values(), key=lambda device: kind_of(device).rank)
    return [(kind_of(device).provider, _device_id(device)) for device in chosen]


def _device_id(device: torch.device) -> dict[str, Any]:
    """Name a device for its provider; not the first one, the default, for which ONNX Runtime would print a warning."""
    return {"device_id": str(device.index)} if device.index and kind_of(device).takes_device_id else {}


def capturing(tensors: Iterable[Any]) -> bool:
    """Tell whether PyTorch captures a graph on a device of some tensors (other values count for nothing)."""
    checks = {kind_of(value.device).is_capturing for value in tensors if isinstance(value, torch.Tensor)}
    return any(check() for check in checks if check is not None)
