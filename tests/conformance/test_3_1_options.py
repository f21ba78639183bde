"""CONTRACT 3.1: every option, seen from what it does; the backends that are kept; sessions as a user finds them."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import dataclasses
import gc
import re
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from onnxscript import opset18 as op
from torch import nn

import ortlens
from ortlens import ExportOptions, Lens, OrtBackend, OrtBackendOptions, UsageError
from ortlens.backend.runtime import devices

pytestmark = pytest.mark.usefixtures("own_instances")
X = torch.linspace(-1, 1, 6)
CPU, CUDA, MAIA, OTHER = "CPUExecutionProvider", "CUDAExecutionProvider", "MAIAExecutionProvider", "OpenVINOExecutionProvider"
STAYS = "prims.bessel_j0.default"


@pytest.fixture
def _four_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with more providers than this one; which of them a session would get is decided without it."""
    monkeypatch.setattr(devices, "available", lambda: (MAIA, CUDA, OTHER, CPU))


def two_pieces(x: torch.Tensor) -> Any:
    return torch.special.bessel_j0(x.sin() * 2).cos()


def run(options: Any = None, function: Any = two_pieces) -> Lens:
    lens = Lens(options=options)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(function, backend=lens)(X), function(X))
    return lens


def chosen(*kinds: str, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    return devices.providers_for([torch.device(name) for name in kinds], OrtBackendOptions(**options))


def names(*kinds: str, **options: Any) -> list[str]:
    return [name for name, _ in chosen(*kinds, **options)]


@pytest.mark.usefixtures("_four_providers")
def test_3_1_preferred_execution_providers() -> None:
    own = {"device_id": "3", "arena_extend_strategy": "kSameAsRequested"}
    given = [(OTHER, {"threads": 2}), (CUDA, own)]
    assert chosen("cuda:1", preferred_execution_providers=given) == [*given, (CPU, {})]
    assert names("cuda:0", preferred_execution_providers=[OTHER], default_execution_providers=[MAIA]) == [OTHER, CUDA, MAIA, CPU]
    assert names("cuda:0", preferred_execution_providers=[CPU]) == [CPU, CUDA], "what is preferred stays first, the CPU too"
    assert names("cuda:0", preferred_execution_providers=[CUDA, OTHER, CUDA]) == [CUDA, OTHER, CPU]


def test_3_1_preferred_execution_providers_reach_the_session() -> None:
    lens = run({"preferred_execution_providers": [(CPU, {})], "infer_execution_providers": False})
    assert set(lens.sessions.providers) == {(CPU,)}


def test_3_1_preferred_execution_providers_that_are_missing() -> None:
    lens = Lens(options={"preferred_execution_providers": ["NoSuchExecutionProvider"]})
    with pytest.raises(UsageError, match=f"'NoSuchExecutionProvider', which is not available.*{CPU}"), torch.no_grad():
        torch.compile(two_pieces, backend=lens)(X)
    assert [finding.rule for finding in lens.captured().findings] == ["provider_unavailable"]


@pytest.mark.usefixtures("_four_providers")
def test_3_1_infer_execution_providers() -> None:
    assert names() == names("cpu") == [CPU]
    assert chosen("cpu", "cuda:1", "cpu") == [(CUDA, {"device_id": "1"}), (CPU, {})]
    assert names("cuda:0", "cpu", "maia") == [MAIA, CUDA, CPU]
    assert names("cuda:0", infer_execution_providers=False) == [CPU]


@pytest.mark.usefixtures("_four_providers")
def test_3_1_default_execution_providers() -> None:
    assert names("cuda:0", default_execution_providers=[OTHER]) == [CUDA, OTHER, CPU]
    assert chosen("cpu", default_execution_providers=[(OTHER, {"threads": 2})]) == [(CPU, {}), (OTHER, {"threads": 2})]
    assert names("cuda:0", infer_execution_providers=False, default_execution_providers=[OTHER]) == [OTHER, CPU]
    assert names(infer_execution_providers=False) == [CPU]


def test_3_1_preallocate_output() -> None:
    lens = Lens(options={"preallocate_output": True})
    compiled = torch.compile(two_pieces, backend=lens, dynamic=True)
    with torch.no_grad():
        kept = [compiled(X * scale) for scale in (1, 2, 3)]
        for scale, result in zip((1, 2, 3), kept, strict=True):
            torch.testing.assert_close(result, two_pieces(X * scale))
    assert set(lens.sessions.calls) == {3}


def test_3_1_use_aot_autograd() -> None:
    phases = {}
    for wanted in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
        lens = Lens(options={"use_aot_autograd": wanted})
        loss = torch.compile(model, backend=lens)(X).square().sum()
        loss.backward()
        compiled = [parameter.grad for parameter in model.parameters()]
        model.zero_grad(set_to_none=True)
        model(X).square().sum().backward()
        torch.testing.assert_close(compiled, [parameter.grad for parameter in model.parameters()])
        phases[wanted] = sorted(lens.graphs.phase), set(lens.fallbacks.reason_code), sum(lens.sessions.calls)
    assert phases == {True: (["backward", "forward"], set(), 2), False: (["forward"], {"policy"}, 0)}


def test_3_1_export_options() -> None:
    """`dynamic_shapes`, as the contract words it, is taken, and never changes what a call returns."""
    assert run({"export_options": {"opset_version": 20, "dynamic_shapes": False}}).models.opset.tolist() == [20, 20]
    torch.compiler.reset()
    assert run({"export_options": ExportOptions(opset_version=19, dynamic_shapes=True)}).models.opset.tolist() == [19, 19]
    with pytest.raises(UsageError, match="opset_version"):
        OrtBackendOptions(export_options=ExportOptions(opset_version=3))


def test_3_1_ort_session_options() -> None:
    own = onnxruntime.SessionOptions()
    own.intra_op_num_threads = 1
    own.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    backend = OrtBackend({"ort_session_options": own})
    model = nn.Linear(6, 2).eval()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend)(X), model(X))
    (used,) = [info.session.get_session_options() for infos in backend.sessions_by_graph.values() for info in infos]
    assert used.intra_op_num_threads == 1
    assert used.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


@pytest.mark.parametrize("freeze", ["auto", False])
def test_3_1_freeze_weights(freeze: Any) -> None:
    model, lens = nn.Linear(6, 2).eval(), Lens(options={"freeze_weights": freeze})
    compiled = torch.compile(model, backend=lens)
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(compiled(X), model(X))
            model.weight.mul_(-1.5)
    assert lens.models.initializer_bytes.tolist()[0] > 0 if freeze is not False else True
    signature = lens.sessions.input_signature.tolist()[0]
    assert len(signature.split()) == (3 if freeze is False else 1)


def test_3_1_min_partition_nodes() -> None:
    lens = run({"min_partition_nodes": 2})
    assert dict(zip(lens.fallbacks.target, lens.fallbacks.reason_code, strict=True)) == {
        STAYS: "no_converter",
        "aten.cos.default": "too_small",
    }
    assert lens.graphs.partition_count.tolist() == [1]


def broken_transform(_model: onnx.ModelProto) -> None:
    raise RuntimeError("no luck")


def test_3_1_on_error_fallback() -> None:
    def refused_by_the_runtime(x: torch.Tensor) -> torch.Tensor:
        return x.double().erf() + 1

    lens = run(None, refused_by_the_runtime)
    assert "session_refused" in lens.fallbacks.reason_code.tolist()
    with pytest.warns(RuntimeWarning, match="stays in PyTorch.*no luck"):
        lens = run({"pre_ort_model_transforms": [broken_transform]})
    assert lens.graphs.coverage.tolist() == [0.0]


@pytest.mark.parametrize("options", [{"pre_ort_model_transforms": [broken_transform]}, {"preferred_execution_providers": ["Nope"]}])
def test_3_1_on_error_raise(options: dict[str, Any]) -> None:
    compiled = torch.compile(two_pieces, backend=Lens(options={**options, "on_error": "raise"}))
    with pytest.raises(Exception, match=r"no luck|Nope"), torch.no_grad():
        compiled(X)


def test_3_1_custom_translation_table() -> None:
    def negated_sine(x: Any) -> Any:
        return op.Neg(op.Sin(x))

    lens = Lens(options={"custom_translation_table": {torch.ops.aten.sin.default: negated_sine}})
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(torch.sin, backend=lens)(X), -X.sin())
    with pytest.raises(UsageError, match="custom_translation_table"):
        OrtBackendOptions(custom_translation_table={torch.ops.aten.sin: negated_sine})


@pytest.mark.parametrize("by", ["option", "environment"])
def test_3_1_dump_path(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"{tmp_path}/m_"
    if by == "environment":
        monkeypatch.setenv("ONNXRT_DUMP_PATH", prefix)
    compiled = torch.compile(two_pieces, backend=Lens(options={"dump_path": prefix} if by == "option" else None))
    assert not list(tmp_path.iterdir())
    with torch.no_grad():
        compiled(X)
        first = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        compiled(X)
    assert sorted(first) == ["m_0.onnx", "m_0.txt", "m_1.onnx", "m_1.txt"]
    assert first == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for number, name in enumerate(("aten.sin", "aten.cos")):
        onnx.checker.check_model(onnx.load(f"{prefix}{number}.onnx"))
        assert name in (tmp_path / f"m_{number}.txt").read_text(encoding="utf-8")


OTHER_PROCESS = """
import sys, torch, ortlens
lens = ortlens.Lens(options={"cache_dir": sys.argv[1]})
x = torch.rand(3, 4)
assert torch.allclose(torch.compile(lambda x: (x @ x.T).relu() + 1, backend=lens)(x), (x @ x.T).relu() + 1)
print(lens.models.cached.tolist(), int(lens.graphs.convert_ns.sum()))
"""


@pytest.mark.slow
def test_3_1_cache_dir(tmp_path: Path) -> None:
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(tmp_path)], capture_output=True, text=True, check=True)
        said.append(done.stdout.split())
    (first, converting), (second, reading) = said
    assert (first, second, reading) == ("[False]", "[True]", "0")
    assert int(converting) > 0


def test_3_1_mapping_or_dataclass_everywhere() -> None:
    assert ortlens.is_onnxrt_backend_supported()
    mapping: Any = {"min_partition_nodes": 2}
    options: Any = OrtBackendOptions(min_partition_nodes=2)
    with torch.no_grad():
        torch.compile(two_pieces, backend="ortlens", options=mapping)(X)
        torch.compile(two_pieces, backend=ortlens.torch_compile_backend, options=options)(X)
        lenses = [run(mapping), run(options), ortlens.explain(two_pieces, options=options, calls=1)(X)]
    assert OrtBackend(mapping).options == OrtBackend(options).options == options
    assert [backend.options for backend in OrtBackend.get_cached_instances()] == [options], "none made by hand"
    lens = Lens()  # with the options of torch.compile
    with torch.no_grad():
        torch.compile(two_pieces, backend=lens, options=mapping)(X)
    assert all("too_small" in lens.fallbacks.reason_code.tolist() for lens in (*lenses, lens))
    with pytest.raises(dataclasses.FrozenInstanceError):
        OrtBackendOptions().min_partition_nodes = 3  # type: ignore[misc]  # the mistake under test


def test_3_1_defaults() -> None:
    options = OrtBackendOptions()
    for field in dataclasses.fields(options):
        wanted: Any = {
            "infer_execution_providers": True,
            "preallocate_output": False,
            "use_aot_autograd": True,
            "freeze_weights": "auto",
            "prepack_weights": True,
            "cuda_graph": "auto",
            "min_partition_nodes": 1,
            "on_error": "fallback",
            "upcast": (),
        }.get(field.name)
        assert getattr(options, field.name) == wanted, field.name


def test_3_1_equal_options_share_an_instance_of_at_most_eight() -> None:
    one = OrtBackend.get_cached_instance_for_options({"min_partition_nodes": 2})
    assert OrtBackend.get_cached_instance_for_options(OrtBackendOptions(min_partition_nodes=2)) is one
    never_equal = OrtBackendOptions(ort_session_options=onnxruntime.SessionOptions())
    assert OrtBackend.get_cached_instance_for_options(never_equal) is not OrtBackend.get_cached_instance_for_options(never_equal)
    made = [OrtBackend.get_cached_instance_for_options({"min_partition_nodes": n}) for n in range(11, 21)]
    assert OrtBackend.get_cached_instances() == tuple(made[2:])  # the oldest are out
    OrtBackend.clear_cached_instances()
    assert OrtBackend.get_cached_instances() == ()


def test_3_1_execution_count() -> None:
    backend = OrtBackend()
    compiled = torch.compile(two_pieces, backend=backend)
    assert backend.execution_count == 0
    with torch.no_grad():
        for calls in (1, 2, 3):
            compiled(X)
            assert backend.execution_count == 2 * calls, "two partitions"


def test_3_1_sessions_by_graph() -> None:
    backend, model = OrtBackend({"freeze_weights": False}), nn.Linear(6, 2).eval()
    with torch.no_grad():
        torch.compile(model, backend=backend)(X)
    ((module, (info,)),) = backend.sessions_by_graph.items()
    assert isinstance(module, torch.fx.GraphModule)
    assert len(info.input_names) == len(info.input_value_infos) == len(info.input_devices) == 3
    assert len(info.output_names) == len(info.output_value_infos) == len(info.output_devices) == 1
    assert [value.name for value in info.input_value_infos] == list(info.input_names)
    assert [value.name for value in info.output_value_infos] == list(info.output_names)
    assert set(info.input_devices) | set(info.output_devices) == {torch.device("cpu")}
    assert info.providers == (CPU,)
    assert isinstance(info.session, onnxruntime.InferenceSession)
    assert [value.name for value in info.session.get_inputs()] == list(info.input_names)


def test_3_1_sessions_by_graph_forgets_graphs_that_are_gone() -> None:
    backend = OrtBackend()
    with torch.no_grad():
        torch.compile(torch.sin, backend=backend)(X)
    (module,) = backend.sessions_by_graph
    gone = weakref.ref(module)
    del module
    torch.compiler.reset()
    gc.collect()
    assert gone() is None
    assert not backend.sessions_by_graph


def test_3_1_a_session_is_reused_for_inputs_it_accepts() -> None:
    backend = OrtBackend()
    compiled = torch.compile(lambda x: x.relu() + 1, backend=backend, dynamic=False)
    with torch.no_grad():
        for size in (3, 4, 3, 4, 3):
            compiled(torch.randn(size))
    assert [len(infos) for infos in backend.sessions_by_graph.values()] == [1, 1]
    assert backend.execution_count == 5


def test_3_1_unknown_names_list_the_valid_ones() -> None:
    valid = [field.name for field in dataclasses.fields(OrtBackendOptions)]
    for make in (
        lambda: Lens(options={"nonsense": 1}),
        lambda: OrtBackend({"nonsense": 1}),
        lambda: OrtBackendOptions.from_any({"nonsense": 1}),
    ):
        with pytest.raises(UsageError, match=re.escape("'nonsense'")) as raised:
            make()
        assert all(name in str(raised.value) for name in valid)
    with pytest.raises(UsageError, match=r"no backend 'ortlense'\. Did you mean ortlens\?"):
        Lens("ortlense")
    with pytest.raises(Exception, match="unknown option 'nonsense'"):
        torch.compile(two_pieces, backend="ortlens", options={"nonsense": 1})(X)
