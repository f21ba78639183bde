"""Execution providers of a session, chosen by the options and the devices of the tensors."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ortlens.backend.runtime import _ort
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from ortlens.backend.options import OrtBackendOptions, Provider

CPU = "CPUExecutionProvider"
_BY_DEVICE = {"cpu": CPU, "cuda": "CUDAExecutionProvider", "maia": "MAIAExecutionProvider"}
_RANK = {CPU: 2, "CUDAExecutionProvider": 1}  # other providers first, then CUDA, then the CPU, which takes everything


@functools.cache
def available() -> tuple[str, ...]:
    """List the providers that the installed ONNX Runtime contains and can load, in its order of preference."""
    import onnxruntime

    return tuple(onnxruntime.get_available_providers())


def reason_against(device_type: str) -> str | None:
    """Say why tensors on a device such as `cuda` cannot go to ONNX Runtime; None when they can."""
    provider = _BY_DEVICE.get(device_type)
    if provider is None:
        return f"device {device_type!r} has no ONNX Runtime counterpart; cpu, cuda and maia have one"
    if provider not in available():
        return f"{provider} is not in the installed ONNX Runtime, which has {', '.join(available())}"
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
    found: dict[str, dict[str, Any]] = {}
    for device in devices:
        name = _BY_DEVICE.get(device.type)
        if name is not None and name in available():
            found.setdefault(name, {} if device.type == "cpu" else {"device_id": str(device.index or 0)})
    return sorted(found.items(), key=lambda pair: _RANK.get(pair[0], 0))
