"""Trains a model on two ranks of gloo, wrapped as DDP or FSDP2, compiled and not; `python -m tests.integration.two_ranks` prints times."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import ortlens

Wrapping: TypeAlias = Literal["ddp", "fsdp2"]
Compiled: TypeAlias = Literal["inside", "outside", "not"]
"""Whether the modules are compiled and then wrapped, or the wrapped model is compiled."""
RANKS, STEPS, ROWS = 2, 4, 32
_WARM, _TIMED = 5, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained, and how."""

    folder: Path  # where both ranks meet, and where rank 0 writes
    wrapping: Wrapping
    compiled: Compiled
    width: int = 32
    timed: bool = False  # in turns with an uncompiled model that is wrapped in the same way


class Block(nn.Module):
    """A residual block with a normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grown: torch.Tensor = self.down(nn.functional.gelu(self.up(self.norm(x))))
        return x + grown


class Net(nn.Module):
    """Two blocks between two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 4)
        self.blocks = nn.ModuleList([Block(width), Block(width)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.last(x)
        return result


def net(width: int) -> Net:
    """The same weights in every process."""
    torch.manual_seed(0)
    return Net(width)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets of all ranks together, per step."""
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(ROWS * RANKS, 16, generator=draw), torch.randn(ROWS * RANKS, 4, generator=draw)) for _ in range(STEPS)]


def step(model: Callable[..., torch.Tensor], optimiser: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step of training; the loss before it."""
    loss = nn.functional.mse_loss(model(x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.detach()


def alone(width: int) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and final weights of one process without compilation, on the whole batches."""
    model = net(width)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [float(step(model, optimiser, x, y)) for x, y in batches()]
    return losses, [weight.detach() for weight in model.parameters()]


def made(setting: Setting, backend: Any) -> tuple[nn.Module, Callable[..., torch.Tensor]]:  # noqa: ANN401 - a name or a lens
    """The wrapped model, and what to call."""
    model, wrapping, compiled = net(setting.width), setting.wrapping, setting.compiled
    parts: list[nn.Module] = [*model.blocks] if wrapping == "fsdp2" else [model]
    if compiled == "inside":
        for part in parts:
            part.compile(backend=backend)
    if wrapping == "ddp":
        wrapped: nn.Module = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (RANKS,))
        for part in (*parts, model):
            fully_shard(part, mesh=mesh)
        wrapped = model
    return wrapped, torch.compile(wrapped, backend=backend) if compiled == "outside" else wrapped


def train(rank: int, *settings: Setting) -> None:
    """What one rank does; rank 0 writes `result.json` and `weights.pt` for each setting."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{settings[0].folder}/meeting", rank=rank, world_size=RANKS)
    for setting in settings:
        result, whole = _trained(rank, setting)
        if rank == 0:
            torch.save(whole, setting.folder / "weights.pt")
            (setting.folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads abort the process now and then while Python takes itself down


def _trained(rank: int, setting: Setting) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Train in one setting; what was seen, and the final weights."""
    torch.compiler.reset()
    lens = ortlens.Lens()
    model, called = made(setting, lens)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in batches():
        loss = step(called, optimiser, x.chunk(RANKS)[rank], y.chunk(RANKS)[rank])
        dist.all_reduce(loss)
        losses.append(float(loss) / RANKS)
    weights = [weight.detach() for weight in model.parameters()]
    # Before more steps are timed.
    whole = [weight.full_tensor() if hasattr(weight, "full_tensor") else weight.clone() for weight in weights]
    capture = lens.captured()
    result = {
        "losses": losses,
        "phases": [graph.phase for graph in capture.graphs],
        "coverage": [graph.coverage for graph in capture.graphs],
        "nodes": [graph.node_count for graph in capture.graphs],
        "partitions": len(capture.partitions),
        "advice": [item.advice for item in capture.breaks],
        "ns": _times(rank, called, optimiser, setting) if setting.timed else [],
    }
    return result, whole


def _times(rank: int, called: Callable[..., torch.Tensor], optimiser: torch.optim.Optimizer, setting: Setting) -> list[int]:
    """The shortest steps of the compiled and of the uncompiled model, in turns, in ns."""
    plain, uncompiled = made(replace(setting, compiled="not"), None)
    both = ((called, optimiser), (uncompiled, torch.optim.SGD(plain.parameters(), lr=0.1)))
    x, y = (whole.chunk(RANKS)[rank] for whole in batches()[0])
    best = [sys.maxsize, sys.maxsize]
    for turn in range(_WARM + _TIMED):
        for which, (model, updates) in enumerate(both):
            dist.barrier()
            begun = time.perf_counter_ns()
            step(model, updates, x, y)
            spent = time.perf_counter_ns() - begun
            best[which] = min(best[which], spent) if turn >= _WARM else best[which]
    return best


def run_each(*settings: Setting) -> list[dict[str, Any]]:
    """Train on two ranks, in one setting after the other; the folders are made."""
    for setting in settings:
        setting.folder.mkdir(parents=True, exist_ok=True)
    spawn(train, args=settings, nprocs=RANKS)
    results: list[dict[str, Any]] = [json.loads((setting.folder / "result.json").read_text(encoding="utf-8")) for setting in settings]
    weights = [torch.load(setting.folder / "weights.pt") for setting in settings]
    return [{**result, "weights": whole} for result, whole in zip(results, weights, strict=True)]


def run(setting: Setting) -> dict[str, Any]:
    """Train on two ranks."""
    return run_each(setting)[0]


def main() -> None:
    """Print, per wrapping, the shortest step compiled and not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=256)
    width = parser.parse_args().width
    for wrapping in get_args(Wrapping):
        with tempfile.TemporaryDirectory() as folder:
            ours, eager = run(Setting(folder=Path(folder), wrapping=wrapping, compiled="inside", width=width, timed=True))["ns"]
        sys.stdout.write(f"{wrapping}: eager {eager / 1e6:.2f} ms, ortlens {ours / 1e6:.2f} ms, {ours / eager:.2f} times as long\n")


if __name__ == "__main__":
    main()
