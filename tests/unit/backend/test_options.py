# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself


import copy
import dataclasses
from typing import Any

import pytest
import torch

from ortlens import ExportOptions, OrtBackend, OrtBackendOptions, UsageError

CPU = "CPUExecutionProvider"
NAMES = [field.name for field in dataclasses.fields(OrtBackendOptions)]


SIN = torch.ops.aten.sin.default
UNUSABLE: dict[str, tuple[Any, ...]] = {
    "freeze_weights": ("yes", None),
    "on_error": ("ignore", None, ["raise"]),
    "upcast": ("bfloat16", ["float64"], [torch.bfloat16], None),
    "min_partition_nodes": (0, -3, 2.0, True, "2", None),
    "preferred_execution_providers": (CPU, 3, [(CPU,)], [(CPU, {}, 1)], [(CPU, "fast")]),
    "default_execution_providers": (CPU, [3]),
    "pre_ort_model_transforms": (len, ["not callable"]),
    "custom_translation_table": ([1], {SIN: "not callable"}),
    "ort_session_options": ({"intra_op_num_threads": 1},),
    "dump_path": (3,),
    "infer_execution_providers": ("no",),
    "preallocate_output": ("no",),
    "prepack_weights": ("no",),
    "export_options": (3, {"opset_version": 17}, {"opset_version": "20"}, {"opset": 20}),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_values_that_no_run_could_use_are_refused_by_name(name: str) -> None:
    telling = None if name == "export_options" else name
    for value in UNUSABLE[name]:
        with pytest.raises(UsageError, match=telling):
            OrtBackendOptions.from_any({name: value})
        with pytest.raises(UsageError, match=telling):
            OrtBackendOptions(**{name: value})


@pytest.mark.parametrize(("unknown", "near"), [("freeze_weight", "freeze_weights"), ("dump_paths", "dump_path"), ("", None), (3, None)])
def test_unknown_names_are_refused_with_the_nearest_and_all_valid_ones(unknown: Any, near: str | None) -> None:
    with pytest.raises(UsageError) as raised:
        OrtBackendOptions.from_any({unknown: 1, "one": 2, "dump_path": "x"})
    assert all(text in str(raised.value) for text in (repr(unknown), "'one'", *NAMES))
    assert near is None or f"did you mean {near!r}?" in str(raised.value)


@pytest.mark.parametrize("given", [3, "dump_path", ["dump_path"], object()])
def test_what_is_no_mapping_is_refused_with_its_type(given: Any) -> None:
    with pytest.raises(UsageError, match=type(given).__name__):
        OrtBackendOptions.from_any(given)


def test_none_a_mapping_and_options_are_accepted() -> None:
    assert OrtBackendOptions.from_any(None) == OrtBackendOptions()
    options = OrtBackendOptions(min_partition_nodes=3)
    assert OrtBackendOptions.from_any(options) is options
    assert OrtBackendOptions.from_any({"min_partition_nodes": 3}) == options
    assert OrtBackendOptions.from_any({"export_options": {"opset_version": 20}}).export_options == ExportOptions(opset_version=20)
    assert OrtBackendOptions.from_any({"upcast": ["float16", "bfloat16"]}) == OrtBackendOptions(upcast=("bfloat16", "float16"))


@pytest.fixture(autouse=True)
def _own_instances() -> Any:
    OrtBackend.clear_cached_instances()
    yield
    OrtBackend.clear_cached_instances()


def test_equal_options_share_one_instance() -> None:
    instance = OrtBackend.get_cached_instance_for_options
    assert instance(OrtBackendOptions(min_partition_nodes=2)) is instance({"min_partition_nodes": 2}) is not instance(None)
    assert instance(None) is instance({})
    given: tuple[dict[str, Any], ...] = (
        {"preferred_execution_providers": [CPU]},
        {"preferred_execution_providers": [(CPU, {"a": "b"})]},
        {"custom_translation_table": {SIN: len}},
    )
    for options in given:
        assert instance(options) is instance(copy.deepcopy(options))
    assert len(OrtBackend.get_cached_instances()) == 5
    transforms: list[Any] = []
    kept = instance({"pre_ort_model_transforms": transforms})
    transforms.append(len)
    assert instance({"pre_ort_model_transforms": [len]}) is not kept, "what was passed was changed, and not what is kept"


def test_a_backend_made_by_hand_is_not_kept() -> None:
    OrtBackend({"min_partition_nodes": 2})
    assert OrtBackend.get_cached_instances() == ()
