"""Programs that one process compiles ahead of time and another loads: `python -m tests.integration.ahead_programs save|load FOLDER`."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch

import ortlens


class Layers(torch.nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.nn.functional.gelu(self.first(x)))
        return y


class Alternating(torch.nn.Module):
    """Several outputs, partitions with operators of PyTorch's in between, a buffer that is written."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = Layers()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.special.bessel_j0(self.layers(x))
        self.total.add_(y.mean(0))
        return y * 2 + self.total, y.t(), x[1:]


class Steps(torch.nn.Module):
    """A cache of which each call writes one row in place, and a check of the place."""

    kept: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(512, 512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = (x[0] > 0).sum().clamp(max=500)
        self.kept.index_copy_(0, place.reshape(1), x.repeat(1, 64))
        return (self.kept @ self.kept.t()).mean(0)[:8] + x


def scaled(x: torch.Tensor, by: float, times: int) -> torch.Tensor:
    """Numbers among the arguments."""
    return x.relu() * by + times


def updated(x: torch.Tensor, y: torch.Tensor) -> None:
    """Updates alone, which our backend leaves to PyTorch."""
    x.add_(y)


def pairs(x: torch.Tensor) -> list[torch.Tensor]:
    """Sizes that follow from data, and sizes as results."""
    found = torch.nonzero(x > 0.5)
    return [found, found.float().sum(0) + x.shape[0], x.reshape(-1).flip(0)]


def doubled(model: onnx.ModelProto) -> onnx.ModelProto:
    """A transform of the user's that keeps what the model computes."""
    model.doc_string = "doubled"
    return model


def narrow(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Computed in 16 bits."""
    return (x @ y).relu().softmax(-1)


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.linspace(-1, 1, steps=math.prod(shape), dtype=dtype)
    return values.reshape(shape).clone()  # no view: a guard would ask for its base


def _marked(*shape: int) -> torch.Tensor:
    made = _numbers(*shape)
    torch._dynamo.mark_dynamic(made, 0)
    return made


PROGRAMS: dict[str, dict[str, Any]] = {
    "layers": {"make": Layers, "calls": [(_numbers(3, 8),)]},
    "alternating": {"make": Alternating, "calls": [(_numbers(3, 8),)] * 2},
    "dynamic": {"make": Alternating, "calls": [(_numbers(n, 8),) for n in (3, 7, 9)], "dynamic": True},
    "marked": {"make": Layers, "calls": [(_marked(3, 8),), (_numbers(9, 8),)]},
    "training": {"make": Layers, "calls": [(_numbers(3, 8),)] * 2, "trains": True},
    "training dynamic": {"make": Layers, "calls": [(_numbers(n, 8),) for n in (3, 5)], "trains": True, "dynamic": True},
    "steps": {"make": Steps, "calls": [(_numbers(1, 8),), (-_numbers(1, 8),)]},
    "numbers": {"make": scaled, "calls": [(_numbers(3, 8), 1.5, 3), (_numbers(4, 8), 2.5, 7)], "dynamic": True},
    "updates": {"make": updated, "calls": [(_numbers(3, 8), _numbers(3, 8))]},
    "data": {"make": pairs, "calls": [(_numbers(3, 8),), (-_numbers(3, 8),)], "data": True},
    "upcast": {
        "make": narrow,
        "calls": [(_numbers(4, 8, dtype=torch.bfloat16), _numbers(8, 4, dtype=torch.bfloat16))],
        "options": {"upcast": ("bfloat16",)},
    },
    "options": {
        "make": Layers,
        "calls": [(_numbers(3, 8),)],
        "options": {"pre_ort_model_transforms": [doubled], "freeze_weights": False, "min_partition_nodes": 2, "preallocate_output": True},
    },
    "fixed": {
        "make": Layers,
        "calls": [(_numbers(n, 8),) for n in (3, 5)],
        "dynamic": True,
        "options": {"export_options": {"dynamic_shapes": False}},
    },
}


def made(name: str) -> Callable[..., Any]:
    """The function, or the module, of a program."""
    make: Any = PROGRAMS[name]["make"]
    function: Callable[..., Any] = make().train(PROGRAMS[name].get("trains", False)) if isinstance(make, type) else make
    return function


def called(function: Callable[..., Any], owner: object, call: tuple[Any, ...], *, trains: bool) -> list[torch.Tensor]:
    """What a call returns, writes to its arguments and buffers, and adds to gradients."""
    args = [each.clone() if isinstance(each, torch.Tensor) else each for each in call]
    result = function(*args)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    tensors = [each for each in (*results, *args) if isinstance(each, torch.Tensor)]
    if isinstance(owner, torch.nn.Module):
        if trains:
            results[0].square().sum().backward()
            tensors += [weight.grad for weight in owner.parameters() if weight.grad is not None]
        tensors += owner.buffers()
    return [each.detach().clone() for each in tensors]


def save(name: str, path: Path, options: dict[str, Any] | None = None) -> None:
    """Compile a program ahead of time, with other `options` than its own if they are given."""
    program, target = PROGRAMS[name], made(name)
    fast: Any = torch.compile(
        target, backend="ortlens", fullgraph=True, dynamic=program.get("dynamic"), options=options or program.get("options")
    )
    entry = fast.forward if isinstance(target, torch.nn.Module) else fast
    with torch.set_grad_enabled(program.get("trains", False)), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        entry.aot_compile((program["calls"][0], {})).save_compiled_function(str(path))


def difference(name: str, path: Path) -> tuple[float, int]:
    """Call what was saved, and the program itself; how much the results differ, and how many runs of sessions there were."""
    program, target, other = PROGRAMS[name], made(name), made(name)
    with path.open("rb") as file:
        loaded = torch.compiler.load_compiled_function(file, f_globals=globals())
    is_module, trains, worst = isinstance(target, torch.nn.Module), program.get("trains", False), 0.0
    before = sum(backend.execution_count for backend in ortlens.OrtBackend.get_cached_instances())
    with torch.set_grad_enabled(trains):
        for call in program["calls"]:
            ours = called((lambda *args: loaded(target, *args)) if is_module else loaded, target, call, trains=trains)
            theirs = called(other, other, call, trains=trains)
            assert [each.shape for each in ours] == [each.shape for each in theirs], name
            worst = max([worst, *(float((a.double() - b.double()).abs().max()) for a, b in zip(ours, theirs, strict=True) if a.numel())])
    return worst, sum(backend.execution_count for backend in ortlens.OrtBackend.get_cached_instances()) - before


def main(what: str, folder: str, *names: str) -> None:
    """Save or load all programs."""
    for name in names or PROGRAMS:
        path = Path(folder) / f"{name}.compiled"
        if what == "save":
            save(name, path)
        else:
            print(json.dumps([name, *difference(name, path)]), flush=True)  # noqa: T201 - the output of this process
    print(json.dumps(sorted(sys.modules)))  # noqa: T201 - likewise


if __name__ == "__main__":
    main(*sys.argv[1:])
