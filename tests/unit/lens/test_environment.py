"""What a capture says about where it was made: options that were chosen, by name, and nothing that cannot be told."""

from pathlib import Path

import pytest

from ortlens.backend.basis.options import ExportOptions, OrtBackendOptions
from ortlens.lens.observing.environment import chosen_options


def _cut(model: object) -> None:
    """A transform, which is told by its name."""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, {}),
        ({"freeze_weights": "auto", "min_partition_nodes": 1}, {}),
        ({"freeze_weights": False, "min_partition_nodes": 3}, {"option_freeze_weights": "False", "option_min_partition_nodes": "3"}),
        ({"cache_dir": Path("kept")}, {"option_cache_dir": "kept"}),
        ({"pre_ort_model_transforms": [_cut]}, {"option_pre_ort_model_transforms": "_cut"}),
        (
            {"preferred_execution_providers": [("CPUExecutionProvider", {}), ("XNNPACK", {"threads": 2})]},
            {"option_preferred_execution_providers": "CPUExecutionProvider, XNNPACK, threads: 2"},
        ),
        (
            {"export_options": ExportOptions(opset_version=20)},
            {"option_export_options": "ExportOptions(dynamic_shapes=None, opset_version=20)"},
        ),
    ],
)
def test_options_that_were_chosen_are_told(options: dict[str, object], told: dict[str, str]) -> None:
    assert chosen_options(OrtBackendOptions(**options)) == told  # type: ignore[arg-type]


def test_an_object_is_told_by_its_type() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    found = chosen_options(OrtBackendOptions(ort_session_options=onnxruntime.SessionOptions()))
    assert found == {"option_ort_session_options": "an object of type SessionOptions"}
