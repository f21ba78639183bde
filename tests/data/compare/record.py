"""Record the captures of this folder; see README.md beside it. One capture per process: `record.py NAME`, `record.py planted0`."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from onnx import ModelProto, helper, numpy_helper

from ortlens import explain
from ortlens.trace import store
from tests.data.captures.record import neutral_capture

FOLDER = Path(__file__).parent
PLAIN, PLANTED = 10, 4
EDITED = ("before", "after")
WIDTH = 384


class Tower(torch.nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Towers(torch.nn.Module):
    """Three partitions, kept apart by an operator that ONNX lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.back, self.head = Tower(3), Tower(5), torch.nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cummax(self.front(x), dim=1).values
        x = torch.cummax(self.back(x), dim=1).values
        result: torch.Tensor = self.head(x)
        return result


class Edited(torch.nn.Module):
    """A tower before and after an edit: a graph break between a product and its activation goes, a layer grows, an operator moves."""

    def __init__(self, *, is_before: bool) -> None:
        super().__init__()
        self.is_before = is_before
        self.front, self.head = Tower(3), torch.nn.Linear(WIDTH, 8)
        inner = WIDTH if is_before else 3 * WIDTH
        self.widen, self.narrow = torch.nn.Linear(WIDTH, inner), torch.nn.Linear(inner, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.widen(self.front(x))
        if self.is_before:
            torch._dynamo.graph_break()
        x = torch.cummax(self.narrow(torch.relu(x)), dim=1).values
        x = torch.cummax(x * 0.5, dim=1).values
        result: torch.Tensor = self.head(x)
        return result


def slow_down(model: ModelProto) -> None:
    """Give the partition with five products a sixth, whose result is multiplied by nothing and added: 20 to 25 % more time."""
    graph = model.graph
    products = [node for node in graph.node if node.op_type in {"Gemm", "MatMul"}]
    if len(products) != 5:
        return
    random = np.random.default_rng(0).standard_normal((WIDTH, 512)).astype(np.float32)
    graph.initializer.extend([numpy_helper.from_array(random, "more"), numpy_helper.from_array(np.zeros(1, np.float32), "nothing")])
    result = graph.output[0].name
    for node in graph.node:
        node.output[:] = ["before" if name == result else name for name in node.output]
    graph.node.extend(
        [
            helper.make_node("MatMul", [products[0].input[0], "more"], ["product"]),
            helper.make_node("ReduceMax", ["product"], ["largest"], keepdims=1),
            helper.make_node("Mul", ["largest", "nothing"], ["added"]),
            helper.make_node("Add", ["before", "added"], [result]),
        ]
    )


def record(name: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: torch.nn.Module = Edited(is_before=name == "before") if name in EDITED else Towers()
    options: dict[str, object] = {"min_partition_nodes": 2} if name == "before" else {}
    if name.startswith("planted"):
        options["pre_ort_model_transforms"] = [slow_down]
    x = torch.randn(64, WIDTH)
    with torch.no_grad():
        lens = explain(model.eval(), options=options or None, name="towers")(x)
        if name in EDITED:
            lens.profile(x)
            lens.verify(x)
    store.save(neutral_capture(lens.captured()), FOLDER / f"{name}.ortlens")


def main(names: list[str]) -> None:
    if names:
        record(names[0])
        return
    for number in range(PLAIN):
        for name in [f"plain{number}", *([f"planted{number}"] if number < PLANTED else [])]:
            subprocess.run([sys.executable, __file__, name], check=True)
    for name in EDITED:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
