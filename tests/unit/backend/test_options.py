# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from ortlens import ExportOptions, OrtBackend, OrtBackendOptions, UsageError

NAMES = [field.name for field in dataclasses.fields(OrtBackendOptions)]


def test_defaults_are_those_of_the_contract() -> None:
    options = OrtBackendOptions()
    assert options.infer_execution_providers is True
    assert options.preallocate_output is False
    assert options.prepack_weights is True
    assert (options.freeze_weights, options.min_partition_nodes, options.on_error, options.on_slow) == ("auto", 1, "fallback", "keep")
    assert options.upcast == ()
    for name in ("preferred_execution_providers", "default_execution_providers", "ort_session_options", "pre_ort_model_transforms"):
        assert getattr(options, name) is None
    for name in ("custom_translation_table", "dump_path", "export_options"):
        assert getattr(options, name) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("freeze_weights", "yes"),
        ("freeze_weights", None),
        ("on_error", "ignore"),
        ("on_error", None),
        ("on_error", ["raise"]),
        ("on_slow", "raise"),
        ("on_slow", None),
        ("upcast", "bfloat16"),
        ("upcast", ["float64"]),
        ("upcast", [torch.bfloat16]),
        ("upcast", None),
        ("min_partition_nodes", 0),
        ("min_partition_nodes", -3),
        ("min_partition_nodes", 2.0),
        ("min_partition_nodes", True),
        ("min_partition_nodes", "2"),
        ("min_partition_nodes", None),
        ("preferred_execution_providers", "CPUExecutionProvider"),
        ("default_execution_providers", "CPUExecutionProvider"),
        ("preferred_execution_providers", 3),
        ("default_execution_providers", [3]),
        ("preferred_execution_providers", [("CPUExecutionProvider",)]),
        ("preferred_execution_providers", [("CPUExecutionProvider", {}, 1)]),
        ("preferred_execution_providers", [("CPUExecutionProvider", "fast")]),
        ("pre_ort_model_transforms", len),
        ("pre_ort_model_transforms", ["not callable"]),
        ("custom_translation_table", [1]),
        ("custom_translation_table", {torch.ops.aten.sin.default: "not callable"}),
        ("ort_session_options", {"intra_op_num_threads": 1}),
        ("dump_path", 3),
        ("infer_execution_providers", "no"),
        ("preallocate_output", "no"),
        ("prepack_weights", "no"),
        ("export_options", 3),
        ("export_options", {"opset_version": 17}),
        ("export_options", {"opset_version": "20"}),
        ("export_options", {"opset": 20}),
    ],
)
@pytest.mark.parametrize("as_mapping", [True, False])
def test_values_that_no_run_could_use_are_refused_by_name(name: str, value: Any, as_mapping: bool) -> None:  # noqa: FBT001 - a parameter
    with pytest.raises(UsageError) as raised:
        OrtBackendOptions.from_any({name: value}) if as_mapping else OrtBackendOptions(**{name: value})
    if name != "export_options":
        assert name in str(raised.value)


@pytest.mark.parametrize(
    ("unknown", "near"),
    [
        ("freeze_weight", "freeze_weights"),
        ("min_nodes", None),
        ("dump_paths", "dump_path"),
        ("on_errors", "on_error"),
        ("", None),
        (3, None),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_and_all_valid_ones(unknown: Any, near: str | None) -> None:
    with pytest.raises(UsageError) as raised:
        OrtBackendOptions.from_any({unknown: 1})
    said = str(raised.value)
    assert repr(unknown) in said
    assert all(name in said for name in NAMES)
    if near:
        assert f"did you mean {near!r}?" in said


def test_several_unknown_names_are_all_told() -> None:
    with pytest.raises(UsageError, match=r"unknown options 'one', 'two'; valid options are: "):
        OrtBackendOptions.from_any({"one": 1, "two": 2, "dump_path": "x"})


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
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.min_partition_nodes = 4  # type: ignore[misc]  # the mistake under test


@pytest.fixture(autouse=True)
def _own_instances() -> Any:
    OrtBackend.clear_cached_instances()
    yield
    OrtBackend.clear_cached_instances()


def test_equal_options_share_one_instance() -> None:
    one = OrtBackend.get_cached_instance_for_options({"min_partition_nodes": 2})
    assert OrtBackend.get_cached_instance_for_options(OrtBackendOptions(min_partition_nodes=2)) is one
    assert OrtBackend.get_cached_instance_for_options({"min_partition_nodes": 3}) is not one
    assert OrtBackend.get_cached_instance_for_options(None) is OrtBackend.get_cached_instance_for_options({})
    assert len(OrtBackend.get_cached_instances()) == 3


def test_options_equal_in_value_but_not_in_kind_share_one_instance_too() -> None:
    for given in (
        {"preferred_execution_providers": ["CPUExecutionProvider"]},
        {"preferred_execution_providers": [("CPUExecutionProvider", {"a": "b"})]},
    ):
        assert OrtBackend.get_cached_instance_for_options(given) is OrtBackend.get_cached_instance_for_options(dict(given))
    table = {torch.ops.aten.sin.default: len}
    assert OrtBackend.get_cached_instance_for_options({"custom_translation_table": table}) is OrtBackend.get_cached_instance_for_options(
        {"custom_translation_table": dict(table)}
    )


def test_changing_what_was_passed_does_not_change_a_kept_instance() -> None:
    transforms: list[Any] = []
    one = OrtBackend.get_cached_instance_for_options({"pre_ort_model_transforms": transforms})
    transforms.append(len)
    assert OrtBackend.get_cached_instance_for_options({"pre_ort_model_transforms": [len]}) is not one


def test_at_most_eight_are_kept_and_the_oldest_goes_first() -> None:
    made = [OrtBackend.get_cached_instance_for_options({"min_partition_nodes": n}) for n in range(1, 11)]
    assert OrtBackend.get_cached_instances() == tuple(made[2:])
    assert OrtBackend.get_cached_instance_for_options({"min_partition_nodes": 3}) is made[2]
    assert OrtBackend.get_cached_instance_for_options({"min_partition_nodes": 1}) is not made[0]


def test_options_with_session_options_equal_no_others() -> None:
    import onnxruntime

    options = OrtBackendOptions(ort_session_options=onnxruntime.SessionOptions())
    assert OrtBackend.get_cached_instance_for_options(options) is not OrtBackend.get_cached_instance_for_options(options)


def test_clearing_forgets_them_all() -> None:
    before = OrtBackend.get_cached_instance_for_options(None)
    OrtBackend.clear_cached_instances()
    assert OrtBackend.get_cached_instances() == ()
    assert OrtBackend.get_cached_instance_for_options(None) is not before


def test_a_backend_made_by_hand_is_not_kept() -> None:
    OrtBackend({"min_partition_nodes": 2})
    assert OrtBackend.get_cached_instances() == ()


def test_upcast_lists_the_valid_types_and_has_one_order() -> None:
    with pytest.raises(UsageError, match=r"'upcast' is \['bf16'\]; it must be a sequence of names from 'bfloat16', 'float16'"):
        OrtBackendOptions.from_any({"upcast": ["bf16"]})
    assert OrtBackendOptions.from_any({"upcast": ["float16", "bfloat16"]}) == OrtBackendOptions(upcast=("bfloat16", "float16"))
