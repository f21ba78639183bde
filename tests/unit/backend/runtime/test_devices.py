"""Devices and processors: what sessions get for them."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from ortlens import Lens, OrtBackendOptions, UsageError, _ort
from ortlens._versions import ProviderLibrary
from ortlens.backend.runtime import devices, processor

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
    assert [devices.reason_against(name) for name in ("cpu", "cuda", "maia", "mps", "xpu")] == [None] * 5
    assert "device 'hpu' has no ONNX Runtime counterpart" in (devices.reason_against("hpu") or "")
    monkeypatch.setattr(devices, "available", lambda: (CPU,))
    assert devices.reason_against("cuda") == f"{CUDA} is not in the installed ONNX Runtime, which has {CPU}"
    assert devices.providers_for([torch.device("cuda:0")], OrtBackendOptions()) == [(CPU, {})]
    assert devices.reason_against("cuda", planned=True) is None
    assert "device 'hpu' has no ONNX Runtime counterpart" in (devices.reason_against("hpu", planned=True) or "")


def test_whether_tensors_on_the_cpu_go_to_the_cpu_provider_alone() -> None:
    assert all(devices.runs_on_cpu_alone(OrtBackendOptions(**options)) for options in ALONE)
    assert not any(devices.runs_on_cpu_alone(OrtBackendOptions(**options)) for options in NOT_ALONE)


def test_devices_of_session_options_are_what_sessions_get() -> None:
    given = onnxruntime.SessionOptions()
    given.add_provider_for_devices([each for each in onnxruntime.get_ep_devices() if each.ep_name == devices.CPU][:1], {})
    options = OrtBackendOptions(ort_session_options=given)
    assert devices.providers_for([torch.device("cpu")], options) == []
    assert not devices.runs_on_cpu_alone(options)
    named = OrtBackendOptions(ort_session_options=given, preferred_execution_providers=[devices.CPU])
    assert devices.providers_for([torch.device("cpu")], named) == [(devices.CPU, {})]
    lens = Lens(options=options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # ONNX Runtime warns where providers are named as well
        assert torch.compile(lambda x: x + 1, backend=lens)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert lens.sessions.providers[0] == (devices.CPU,)


def test_a_provider_that_was_registered_later_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    options = OrtBackendOptions(preferred_execution_providers=["ggml"])
    library = ProviderLibrary("onnxruntime-ggml", "0.2.0", Path("libggml.so"))
    monkeypatch.setattr(_ort, "provider_libraries", lambda: [library])
    with pytest.raises(UsageError, match=r"register_execution_provider_library\('ggml', 'libggml.so'\)"):
        devices.providers_for([torch.device("cpu")], options)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [devices.CPU, "ggml"])
    assert devices.providers_for([torch.device("cpu")], options) == [("ggml", {}), (devices.CPU, {})]


def test_the_installed_cpu_provider_computes_float32_and_not_bfloat16() -> None:
    assert devices.cpu_provider_computes("float")
    assert devices.cpu_provider_computes("double")
    assert not devices.cpu_provider_computes("bfloat16")
    assert not devices.cpu_provider_computes("no such type")


@pytest.fixture(autouse=True)
def _unknown_processor() -> Iterator[None]:
    processor._listed.cache_clear()
    yield
    processor._listed.cache_clear()


@pytest.mark.parametrize(
    ("listed", "entries", "stalls"),
    [
        ("vendor_id\t: GenuineIntel\nflags\t\t: avx2 avx512_vnni amx_int8", 0, True),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fma avx2 avx512f", 1, False),
        (None, 1, True),
    ],
    ids=["with VNNI", "without", "Windows"],
)
def test_processors_are_told_apart(
    listed: str | None, entries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stalls: bool
) -> None:
    place = tmp_path / "cpuinfo"
    if listed is not None:
        place.write_text(listed, encoding="utf-8")
    monkeypatch.setenv("PROCESSOR_IDENTIFIER", "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel")
    monkeypatch.setattr(processor, "_LISTED", place)
    assert (len(processor.exact_products()), processor.stalls_at_denormals()) == (entries, stalls)
