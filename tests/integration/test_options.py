"""Options, seen from what they do to a model that runs."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from ortlens import Lens, OrtBackend, OrtBackendOptions, UsageError, is_onnxrt_backend_supported, torch_compile_backend


@pytest.fixture(autouse=True)
def _own_instances() -> Iterator[None]:
    OrtBackend.clear_cached_instances()
    yield
    OrtBackend.clear_cached_instances()


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


def test_names_of_the_removed_backend() -> None:
    assert is_onnxrt_backend_supported()
    compiled = torch.compile(two_pieces, backend=torch_compile_backend, options={"freeze_weights": False})
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), two_pieces(X))
    (backend,) = OrtBackend.get_cached_instances()
    assert backend.options == OrtBackendOptions(freeze_weights=False)
    assert backend.execution_count == 2


def test_options_of_torch_compile_reach_a_lens_and_unknown_ones_are_refused() -> None:
    lens = Lens()
    compiled = torch.compile(two_pieces, backend=lens, options={"min_partition_nodes": 2})
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), two_pieces(X))
    assert "too_small" in lens.fallbacks.reason_code.tolist()
    with pytest.raises(UsageError, match=r"min_partition_node.*did you mean 'min_partition_nodes'.*dump_path"):
        Lens(options={"min_partition_node": 2})


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
