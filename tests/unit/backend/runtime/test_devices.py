# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

from typing import Any

import pytest
import torch

from ortlens import OrtBackendOptions, UsageError
from ortlens.backend.runtime import devices

CPU, CUDA, MAIA, OTHER = "CPUExecutionProvider", "CUDAExecutionProvider", "MAIAExecutionProvider", "OpenVINOExecutionProvider"


@pytest.fixture(autouse=True)
def _everything_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: (MAIA, CUDA, OTHER, CPU))


def chosen(*kinds: str, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    return devices.providers_for([torch.device(name) for name in kinds], OrtBackendOptions(**options))


def names(*kinds: str, **options: Any) -> list[str]:
    return [name for name, _ in chosen(*kinds, **options)]


@pytest.mark.parametrize("option", ["preferred_execution_providers", "default_execution_providers"])
def test_a_provider_that_is_not_there_is_refused_with_those_that_are(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} names 'Nope'.*{MAIA}, {CUDA}, {OTHER}, {CPU}"):
        chosen("cpu", **{option: ["Nope"]})


def test_reasons_against_a_device() -> None:
    assert [devices.reason_against(name) for name in ("cpu", "cuda", "maia")] == [None] * 3
    assert "device 'xpu' has no ONNX Runtime counterpart" in (devices.reason_against("xpu") or "")
    assert "meta" in (devices.reason_against("meta") or "")


def test_a_device_whose_provider_is_missing_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: (CPU,))
    assert devices.reason_against("cuda") == f"{CUDA} is not in the installed ONNX Runtime, which has {CPU}"
    assert names("cuda:0") == [CPU]


@pytest.mark.parametrize(
    ("options", "alone"),
    [
        ({}, True),
        ({"default_execution_providers": [CPU]}, True),
        ({"preferred_execution_providers": [OTHER]}, False),
        ({"default_execution_providers": [(OTHER, {"device_type": "CPU"})]}, False),
    ],
)
def test_whether_tensors_on_the_cpu_go_to_the_cpu_provider_alone(options: dict[str, Any], *, alone: bool) -> None:
    assert devices.runs_on_cpu_alone(OrtBackendOptions(**options)) is alone


def test_the_installed_cpu_provider_computes_float32_and_not_bfloat16() -> None:
    assert devices.cpu_provider_computes("float")
    assert devices.cpu_provider_computes("double")
    assert not devices.cpu_provider_computes("bfloat16")
    assert not devices.cpu_provider_computes("no such type")
