"""CONTRACT 8.10: a model without its weights is analysed, and can be given real ones from a checkpoint and exported."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import safetensors.torch
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import ortlens

X = torch.linspace(-1, 1, 12).view(2, 6)


class Model(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, width), nn.Linear(width, 3)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(self.up(x).relu()) + self.shift


def without_data(how: str, width: int = 8) -> nn.Module:
    if how == "meta":
        with torch.device("meta"):
            return Model(width).eval()
    with FakeTensorMode():
        return Model(width).eval()


@pytest.mark.parametrize("how", ["meta", "fake"])
def test_8_10_analysed_without_memory(how: str) -> None:
    """Weights of 2.7 TB fit no machine that runs this: whoever allocates them fails."""
    width = 1 << 36
    with torch.no_grad():
        lens = ortlens.explain(without_data(how, width), dry_run=True)(X)
    assert lens.graphs.coverage.tolist() == [1.0]
    assert lens.partitions.weight_bytes.tolist() == [4 * (6 * width + width + 3 * width + 3 + 3)]
    assert lens.sessions.empty
    assert all(flops > 0 for flops in lens.partitions.flops)


@pytest.mark.parametrize(("how", "kind"), [("meta", "safetensors"), ("fake", "torch")])
def test_8_10_weights_from_a_checkpoint(how: str, kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    real = Model().eval()
    checkpoint = tmp_path / f"weights.{'safetensors' if kind == 'safetensors' else 'pt'}"
    if kind == "safetensors":
        safetensors.torch.save_file(real.state_dict(), checkpoint)
    else:
        torch.save(real.state_dict(), checkpoint)
    with torch.no_grad():
        lens = ortlens.explain(without_data(how), dry_run=True)(X)
        written = lens.export_onnx(tmp_path / "model.onnx", weights=checkpoint)
        onnx.checker.check_model(str(written))
        (result,) = onnxruntime.InferenceSession(str(written)).run(None, {"x": X.numpy()})
        torch.testing.assert_close(torch.from_numpy(result), real(X))
