"""Devices and their providers; their order is in tests/conformance/test_3_1_options.py."""

from typing import Any

import pytest
import torch

from ortlens import OrtBackendOptions, UsageError
from ortlens.backend.runtime import devices

CPU, CUDA, OTHER = "CPUExecutionProvider", "CUDAExecutionProvider", "OpenVINOExecutionProvider"
ALONE: tuple[dict[str, Any], ...] = ({}, {"default_execution_providers": [CPU]})
NOT_ALONE: tuple[dict[str, Any], ...] = (
    {"preferred_execution_providers": [OTHER]},
    {"default_execution_providers": [(OTHER, {"device_type": "CPU"})]},
)


def test_what_is_missing_or_has_no_counterpart_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: ("MAIAExecutionProvider", CUDA, OTHER, CPU))
    for option in ("preferred_execution_providers", "default_execution_providers"):
        with pytest.raises(UsageError, match=f"{option} names 'Nope'.*MAIAExecutionProvider, {CUDA}, {OTHER}, {CPU}"):
            devices.providers_for([torch.device("cpu")], OrtBackendOptions(**{option: ["Nope"]}))  # type: ignore[arg-type]
    assert [devices.reason_against(name) for name in ("cpu", "cuda", "maia")] == [None] * 3
    assert "device 'xpu' has no ONNX Runtime counterpart" in (devices.reason_against("xpu") or "")
    assert "meta" in (devices.reason_against("meta") or "")
    monkeypatch.setattr(devices, "available", lambda: (CPU,))
    assert devices.reason_against("cuda") == f"{CUDA} is not in the installed ONNX Runtime, which has {CPU}"
    assert devices.providers_for([torch.device("cuda:0")], OrtBackendOptions()) == [(CPU, {})]
    assert devices.reason_against("cuda", planned=True) is None
    assert "device 'xpu' has no ONNX Runtime counterpart" in (devices.reason_against("xpu", planned=True) or "")


def test_whether_tensors_on_the_cpu_go_to_the_cpu_provider_alone() -> None:
    assert all(devices.runs_on_cpu_alone(OrtBackendOptions(**options)) for options in ALONE)
    assert not any(devices.runs_on_cpu_alone(OrtBackendOptions(**options)) for options in NOT_ALONE)


def test_the_installed_cpu_provider_computes_float32_and_not_bfloat16() -> None:
    assert devices.cpu_provider_computes("float")
    assert devices.cpu_provider_computes("double")
    assert not devices.cpu_provider_computes("bfloat16")
    assert not devices.cpu_provider_computes("no such type")
