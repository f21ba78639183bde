"""Kinds of devices: all that differs between their sessions, which is how these are configured, bound, called and waited for.

A session's execution providers are chosen by the options and the devices of the tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.runtime import _ort
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ortlens.backend.options import OrtBackendOptions, Provider

CPU = "CPUExecutionProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """One kind of device, and what its sessions need beside what those of the CPU need."""

    provider: str
    ort_kind: int  # OrtDevice::CPU, GPU, NPU in include/onnxruntime/core/framework/ortdevice.h
    rank: int = 0  # among the providers that are inferred, the lowest first
    takes_device_id: bool = True
    reads_torch_memory: bool = False  # sessions hold weights as constants, and write new values over inputs
    before_run: Callable[[], None] | None = None  # called in each call, once everything is bound
    generator: Callable[[int], torch.Generator] | None = None  # that of a device by its index, from which PyTorch draws random numbers


def _wait_for_torch() -> None:
    """Wait for the work that torch has queued: ONNX Runtime runs on a stream of its own."""
    torch.cuda.current_stream().synchronize()


_KINDS = {
    "cpu": DeviceKind(
        provider=CPU, ort_kind=0, rank=2, takes_device_id=False, reads_torch_memory=True, generator=lambda _: torch.default_generator
    ),
    "cuda": DeviceKind(
        provider="CUDAExecutionProvider",
        ort_kind=1,
        rank=1,
        before_run=_wait_for_torch,
        generator=lambda index: torch.cuda.default_generators[index],
    ),
    "maia": DeviceKind(provider="MAIAExecutionProvider", ort_kind=3),
}
_UNKNOWN = DeviceKind(provider="", ort_kind=-1)  # no session takes its tensors


def kind_of(device: torch.device) -> DeviceKind:
    """Return what is known of the kind of a device; for one without a provider, that its sessions can do nothing."""
    return _KINDS.get(device.type, _UNKNOWN)


def ort_device(device: torch.device) -> Any:
    """Translate a torch device (cpu, cuda or maia) into an `OrtDevice` with default memory."""
    return _ort.device(_KINDS[device.type].ort_kind, device.index or 0)


def profiler_ranges() -> tuple[Callable[[str], object], Callable[[], object]] | None:
    """Return the functions that open and close a range in NVTX; None without a CUDA device, whose profiler shows them."""
    return (torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop) if torch.cuda.is_available() else None


@functools.cache
def available() -> tuple[str, ...]:
    """List the providers that the installed ONNX Runtime contains and can load, in its order of preference."""
    import onnxruntime

    return tuple(onnxruntime.get_available_providers())


def reason_against(device_type: str) -> str | None:
    """Say why tensors on a device such as `cuda` cannot go to ONNX Runtime; None when they can."""
    kind = _KINDS.get(device_type)
    if kind is None:
        return f"device {device_type!r} has no ONNX Runtime counterpart; cpu, cuda and maia have one"
    if kind.provider not in available():
        return f"{kind.provider} is not in the installed ONNX Runtime, which has {', '.join(available())}"
    return None


def runs_on_cpu_alone(options: OrtBackendOptions) -> bool:
    """Tell whether tensors on the CPU can go to the CPU provider only; false when the options name another."""
    named = (*(options.preferred_execution_providers or ()), *(options.default_execution_providers or ()))
    return all((entry if isinstance(entry, str) else entry[0]) == CPU for entry in named)


def cpu_provider_computes(element_type: str) -> bool:
    """Tell whether the installed CPU provider has kernels of sums and products for an element type such as `bfloat16`."""
    return all(element_type in _ort.kernel_types(CPU, operator, _OPSET).get("T", ()) for operator in ("Add", "Mul", "MatMul", "Gemm"))


_OPSET = 18  # of the models that are converted


def providers_for(devices: Iterable[torch.device], options: OrtBackendOptions) -> list[tuple[str, dict[str, Any]]]:
    """Choose a session's providers, without duplicates: preferred, then inferred, then default ones, the CPU provider last.

    `devices` are those of the inputs, or of the outputs if there are none. Raise `UsageError` if a provider that the user named is not
    available.
    """
    chosen: dict[str, dict[str, Any]] = {}
    for name, settings in _named(options.preferred_execution_providers, "preferred_execution_providers"):
        chosen.setdefault(name, settings)
    if options.infer_execution_providers:
        for name, settings in _inferred(devices):
            chosen.setdefault(name, settings)
    for name, settings in _named(options.default_execution_providers, "default_execution_providers"):
        chosen.setdefault(name, settings)
    chosen.setdefault(CPU, {})
    return list(chosen.items())


def _named(providers: Sequence[Provider] | None, option: str) -> list[tuple[str, dict[str, Any]]]:
    pairs = [(entry, {}) if isinstance(entry, str) else (entry[0], dict(_settings(entry[1]))) for entry in providers or ()]
    for name, _ in pairs:
        if name not in available():
            raise UsageError(f"{option} names {name!r}, which is not available; the installed ONNX Runtime has {', '.join(available())}")
    return pairs


def _settings(settings: object) -> Mapping[str, Any]:
    if not isinstance(settings, Mapping):
        raise UsageError(f"provider options must be a mapping, not {settings!r}")
    return settings


def _inferred(devices: Iterable[torch.device]) -> list[tuple[str, dict[str, Any]]]:
    first: dict[str, torch.device] = {}  # of each kind whose provider is there
    for device in devices:
        if kind_of(device).provider in available():
            first.setdefault(device.type, device)
    chosen = sorted(first.values(), key=lambda device: kind_of(device).rank)
    return [
        (kind_of(device).provider, {"device_id": str(device.index or 0)} if kind_of(device).takes_device_id else {}) for device in chosen
    ]
