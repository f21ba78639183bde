"""`export_onnx(weights=)`: models without data get theirs from a checkpoint, or are refused with every mismatch by name."""

# ruff: noqa: ANN401 - arguments and results of models are Any in torch itself

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import ortlens
from ortlens import Lens, UsageError
from tests.integration.test_export_onnx import only, run_bare

IDS = torch.arange(6).reshape(2, 3)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 128)
        self.norm = nn.LayerNorm(128)
        self.head = nn.Linear(128, 100, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Buffer(torch.rand(128))
        self.shift = nn.Buffer(torch.tensor(3))

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.norm(self.embed(ids) * self.scale)) + self.shift


def dry(model: Any, *args: Any) -> Lens:
    with torch.no_grad():
        lens: Lens = ortlens.explain(model, dry_run=True)(*args)
    return lens


def on_meta(build: Callable[[], nn.Module], *args: Any) -> Lens:
    with torch.device("meta"):
        model = build().eval()
    return dry(model, *args)


@pytest.fixture(scope="module")
def without_data() -> dict[str, Lens]:
    """Dry runs of models and of a program that have no data."""
    made = {"meta": on_meta(Tied, IDS)}
    with FakeTensorMode():
        model = Tied().eval()
        program = torch.export.export(Tied().eval(), (torch.zeros(2, 3, dtype=torch.int64),))
    return {**made, "fakes": dry(model, IDS), "program": dry(program, IDS)}


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    folder = tmp_path / "deployed"
    folder.mkdir()
    return folder


def real() -> Tied:
    torch.manual_seed(0)
    return Tied().eval()


@pytest.mark.parametrize(("without", "kind"), [("head.weight", "meta"), ("embed.weight", "fakes"), (None, "program")])
def test_a_model_without_data_gets_its_weights(
    without: str | None, kind: str, without_data: dict[str, Lens], tmp_path: Path, deployed: Path
) -> None:
    """Of tied weights, a checkpoint may have both, or either."""
    model = real()
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items() if name != without}, tmp_path / "model.safetensors")
    path = without_data[kind].export_onnx(deployed / "tied.onnx", weights=tmp_path / "model.safetensors")
    (result,) = run_bare(path, {"ids": IDS}).values()
    torch.testing.assert_close(result, model(IDS).detach())
    assert only(deployed, "tied.onnx")
    assert stored_once(path)


def test_the_weights_of_a_real_model_can_be_replaced_and_the_model_keeps_its_own(tmp_path: Path) -> None:
    model, other = nn.Linear(4, 3).eval(), nn.Linear(4, 3).eval()
    x, kept = torch.randn(2, 4), model.weight.clone()
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        lens = ortlens.explain(program, calls=1)(x)
    (result,) = run_bare(lens.export_onnx(tmp_path / "a.onnx", weights=other.state_dict()), {"input": x}).values()
    torch.testing.assert_close(result, other(x).detach())
    (result,) = run_bare(lens.export_onnx(tmp_path / "b.onnx"), {"input": x}).values()
    torch.testing.assert_close(result, model(x).detach())
    torch.testing.assert_close(model.weight, kept)


def stored_once(path: Path) -> bool:
    return sum(sorted(value.dims) == [100, 128] for value in onnx.load(path).graph.initializer) == 1


def test_tied_weights_of_real_models_and_programs_are_stored_once(tmp_path: Path) -> None:
    model = real()
    with torch.no_grad():
        compiled = ortlens.explain(model, calls=1)(IDS)
        exported = ortlens.explain(torch.export.export(model, (IDS,)), calls=1)(IDS)
    for number, lens in enumerate((compiled, exported)):
        path = lens.export_onnx(tmp_path / f"{number}.onnx")
        (result,) = run_bare(path, {"ids": IDS}).values()
        torch.testing.assert_close(result, model(IDS).detach())
        assert stored_once(path)


def test_a_model_without_data_and_without_weights_is_refused_by_name(without_data: dict[str, Lens], deployed: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)no data for .*embed\.weight|head\.weight") as caught:
        without_data["meta"].export_onnx(deployed / "tied.onnx")
    assert all(name in str(caught.value) for name in ("norm.weight", "norm.bias", "scale", "shift", "weights="))
    assert only(deployed)


MISSING = object()
WRONG: dict[str, tuple[str, Any, str]] = {
    "missing": ("norm.weight", MISSING, r"norm\.weight is missing"),
    "missing buffer": ("scale", MISSING, r"scale is missing"),
    "extra": ("no.such.weight", torch.ones(1), r"no\.such\.weight in .* is not in the model"),
    "shape": ("norm.bias", torch.ones(127), r"norm\.bias has shape \[127\] in .*, the model takes \[128\]"),
    "transposed": ("embed.weight", torch.ones(128, 100), r"weight has shape \[128, 100\] in .*, the model takes \[100, 128\]"),
    "rank": ("shift", torch.ones(1, dtype=torch.int64), r"shift has shape \[1\] in .*, the model takes \[\]"),
    "dtype": ("norm.bias", torch.ones(128).half(), r"norm\.bias is torch\.float16 in .*, the model takes torch\.float32"),
    "integer": ("shift", torch.tensor(3.0), r"shift is torch\.float32 in .*, the model takes torch\.int64"),
}
"""An entry of the checkpoint, what it is, and what is said of it."""


@pytest.mark.parametrize("cases", [("transposed",), ("dtype", "integer"), ("missing", "missing buffer", "extra", "shape", "rank")])
def test_weights_that_do_not_fit_are_named_and_nothing_is_written(
    cases: tuple[str, ...], without_data: dict[str, Lens], deployed: Path
) -> None:
    state: dict[str, Any] = dict(real().state_dict())
    if cases == ("transposed",):
        del state["head.weight"]
    state.update({WRONG[case][0]: WRONG[case][1] for case in cases})
    given = {name: value for name, value in state.items() if value is not MISSING}
    with pytest.raises(UsageError, match="(?s)" + "".join(f"(?=.*{WRONG[case][2]})" for case in cases)):
        without_data["meta"].export_onnx(deployed / "tied.onnx", weights=given)
    assert only(deployed)


def test_half_precision_weights_reach_the_file_bit_by_bit(tmp_path: Path) -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(300).bfloat16())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight.float()

    weight = torch.randn(300).bfloat16()
    path = on_meta(Halves, torch.ones(300)).export_onnx(tmp_path / "h.onnx", weights={"weight": weight})
    (result,) = run_bare(path, {"x": torch.ones(300)}).values()
    torch.testing.assert_close(result, weight.float(), atol=0, rtol=0)


_STREAMED = """
import json, sys, time
import torch
import ortlens
import ortlens.backend.deploy.export
from ortlens.backend.deploy import export
export._INLINE_BYTES = 0  # as for a model above the limit, at a size that a test can write
def memory(which):  # not ru_maxrss: a child begins with the peak of the process that started it
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(which))
with torch.device("meta"):
    model = torch.nn.Sequential(*(torch.nn.Linear(3584, 3584, bias=False) for _ in range(8))).eval()
with torch.no_grad():
    lens = ortlens.explain(model, dry_run=True)(torch.zeros(1, 3584))
start, began = memory("VmHWM"), time.perf_counter()
lens.export_onnx(sys.argv[2], weights=sys.argv[1])
print(json.dumps({"grown": memory("VmHWM") - start, "seconds": time.perf_counter() - began}))
"""


@pytest.mark.slow
def test_weights_stream_from_the_shards(tmp_path: Path, run_python: Callable[..., str]) -> None:
    place = {}
    for number in range(8):
        place[f"{number}.weight"] = f"model-{number}.safetensors"
        save_file({f"{number}.weight": torch.eye(3584) * (number + 1)}, tmp_path / f"model-{number}.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": place}))
    seen = json.loads(run_python(_STREAMED, str(index), str(tmp_path / "streamed.onnx")).splitlines()[-1])
    print(f"411 MB exported in {seen['seconds']:.1f} s, {seen['grown'] / 1e6:.0f} MB above start")  # noqa: T201 - a figure
    shard = 3584 * 3584 * 4
    assert (tmp_path / "streamed.data").stat().st_size >= 8 * shard
    assert 0 < seen["grown"] < 2 * shard + 200e6
    proto = onnx.load(tmp_path / "streamed.onnx", load_external_data=False)
    assert len([value for value in proto.graph.initializer if value.external_data]) == 8
    x = torch.randn(1, 3584)
    inputs = {next(value.name for value in proto.graph.input): x}
    (result,) = run_bare(tmp_path / "streamed.onnx", inputs).values()
    torch.testing.assert_close(result, x * 40320.0)
