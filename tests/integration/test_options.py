"""Options: what is accepted, and what they do to a model that runs; tests/conformance has a test of each."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import copy
import dataclasses
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from ortlens import ExportOptions, Lens, OrtBackend, OrtBackendOptions, UsageError

pytestmark = pytest.mark.usefixtures("own_instances")
X = torch.linspace(-1, 1, 6)


def two_pieces(x: torch.Tensor) -> Any:
    return torch.special.bessel_j0(x.sin() * 2).cos()


@pytest.mark.slow
def test_registered_names_work_in_a_process_that_never_imported_ortlens(run_python: Any) -> None:
    program = """
import sys, torch
assert "ortlens" not in sys.modules
for name in ("onnxrt", "ortlens"):
    fast = torch.compile(lambda x: x.sin() + 1, backend=name, options={"min_partition_nodes": 1})
    torch.testing.assert_close(fast(torch.ones(3)), torch.ones(3).sin() + 1)
from ortlens import OrtBackend
(backend,) = OrtBackend.get_cached_instances()
print(backend.execution_count, {"onnxrt", "ortlens"} <= {*torch.compiler.list_backends()})
"""
    assert run_python(program).split() == ["2", "True"]


def test_dumped_files_are_numbered_over_all_models_of_a_prefix_and_one_made_again_is_not_dumped_again(tmp_path: Path) -> None:
    prefix = f"{tmp_path}/new folder/m_"
    lens, model = Lens(options={"dump_path": prefix}), nn.Linear(6, 2).eval()
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        torch.compile(two_pieces, backend=lens)(X)
        compiled(X)
        model.weight.add_(1)
        torch.testing.assert_close(compiled(X), model(X))
    assert len(lens.sessions) == 4, "two pieces, and the layer with its old and its new weight"
    assert sorted(path.name for path in (tmp_path / "new folder").iterdir()) == [
        f"m_{n}.{kind}" for n in range(3) for kind in ("onnx", "txt")
    ]
    assert set(lens.models.path) == {f"{prefix}{n}.onnx" for n in range(3)}


def test_a_model_that_a_transform_returned_is_the_one_that_runs_and_is_recorded() -> None:
    def changed(model: onnx.ModelProto) -> onnx.ModelProto:
        made = onnx.ModelProto()
        made.CopyFrom(model)
        made.producer_name = "changed"
        return made

    lens = Lens(options={"pre_ort_model_transforms": (changed,)})
    with torch.no_grad():
        torch.compile(torch.sin, backend=lens)(X)
    (model,) = (data for name, data in lens.captured().attachments.items() if "models/" in name)
    assert onnx.load_from_string(model).producer_name == "changed"


def test_sessions_with_options_of_the_user_share_no_weights() -> None:
    settings = onnxruntime.SessionOptions()
    backend = OrtBackend({"ort_session_options": settings})
    for width in (2, 3):
        model = nn.Linear(6, width).eval()
        compiled = torch.compile(model, backend=backend)
        with torch.no_grad():
            torch.testing.assert_close(compiled(X), model(X))
            model.weight.mul_(2)
            torch.testing.assert_close(compiled(X), model(X))
    used = [info for infos in backend.sessions_by_graph.values() for info in infos]
    assert len(used) == 2, "the sessions in use, one per model; those of weights that are no more are gone"


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
    assert near is None or f" Did you mean {near}?" in str(raised.value)


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
