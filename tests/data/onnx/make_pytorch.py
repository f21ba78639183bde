"""Makes pytorch_dynamo.onnx and pytorch_torchscript.onnx, with torch 2.13.0: python make_pytorch.py, in this folder."""

import re
from pathlib import Path

import onnx
import torch
from torch import nn


class Net(nn.Module):
    """A convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.head = nn.Linear(4 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(x).flatten(1))
        return scores.softmax(-1)


def made() -> Net:
    """The module, the same in every process."""
    torch.manual_seed(0)
    return Net().eval()


def without_folders(path: str) -> None:
    """Shorten the files in the stack traces that the exporter notes: they differ per machine."""
    model = onnx.load(path)
    for node in model.graph.node:
        for entry in node.metadata_props:
            entry.value = re.sub(r'"/[^"]*/', '"', re.sub(r'"/[^"]*/site-packages/', '"site-packages/', entry.value))
    Path(path).write_bytes(model.SerializeToString())


if __name__ == "__main__":
    for name in ("dynamo", "torchscript"):
        path = f"pytorch_{name}.onnx"
        torch.onnx.export(made(), (torch.ones(2, 3, 8, 8),), path, input_names=["x"], dynamo=name == "dynamo", external_data=False)
        without_folders(path)
