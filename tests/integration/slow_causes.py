"""Programs that are slow for one planted reason each. `python -m tests.integration.slow_causes [NAME...]` shows what ortlens says.

Every program has a twin without its cause, and with nothing else changed. The difference of their times is the true cost. A line that the
report must name ends in a comment with the name of the cause.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import onnxruntime
import onnxscript
import torch
from onnxscript import FLOAT
from onnxscript import opset18 as op
from torch import nn

import ortlens
from ortlens._process import usable_cores
from ortlens._torch import isolated_compilations
from ortlens.analysis.first_look import Look, looks_of
from ortlens.analysis.overview import overview_of
from ortlens.units import time_from_ns

Target: TypeAlias = Callable[..., Any]
Program: TypeAlias = tuple[Target, tuple[Any, ...]]

_HERE = Path(__file__)
_ROUNDS, _BLOCK = 14, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A program with one main cause.

    Attributes:
        name: Its name, which the comment on the planted line repeats.
        slow: Makes the program.
        without: Makes its twin without the cause; None where time says nothing, as where every call compiles.
        names: What the text of the report must contain, at least one of them.
        has_line: Whether a line of the program is to blame.
        options: Options of the backend.
        profiles: Whether the kernels are profiled, as the docs advise where the summary does not name them.
        twin_skips_guards: Whether the twin is the program itself, called without its guards: for a report that says what they take.
        twin_options: Options of the backend for the twin.
    """

    name: str
    slow: Callable[[], Program]
    without: Callable[[], Program] | None
    names: tuple[str, ...]
    has_line: bool = True
    options: Callable[[], dict[str, Any]] = dict
    profiles: bool = False
    twin_skips_guards: bool = False
    twin_options: Callable[[], dict[str, Any]] = dict

    @property
    def line(self) -> int | None:
        """Number of the planted line."""
        lines = _HERE.read_text(encoding="utf-8").splitlines()
        return next((at for at, text in enumerate(lines, start=1) if text.endswith(f"# {self.name}")), None) if self.has_line else None


def layers(count: int, width: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(width, width) for _ in range(count))


def bags(*, planted: bool) -> Program:
    bag = nn.EmbeddingBag(1000, 64)

    def model(ids: torch.Tensor, offsets: torch.Tensor) -> object:
        if planted:
            return bag(ids, offsets).relu()  # a loop operator
        return bag.weight[offsets % 1000].relu()

    return model, (torch.randint(0, 1000, (2048,)), torch.arange(0, 2048, 8))


@torch.library.custom_op("slow_causes::doubled_by_rows", mutates_args=())
def doubled_by_rows(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled_by_rows.register_fake(torch.empty_like)


@onnxscript.script(default_opset=op)
def loop_over_rows(x: FLOAT[...]) -> FLOAT[...]:  # type: ignore[type-arg, misc]  # onnxscript's own annotation
    total = x
    count = op.Gather(op.Shape(x), op.Constant(value_int=0))  # type: ignore[type-var]  # onnxscript reads the source
    for _ in range(count):  # type: ignore[call-overload]  # likewise
        total = total + x / op.Cast(count, to=1)  # type: ignore[operator]  # likewise
    return total


def custom_loop(*, planted: bool) -> Program:
    into, out = nn.Linear(256, 256), nn.Linear(256, 256)

    def model(x: torch.Tensor) -> object:
        x = into(x)
        if planted:
            return out(doubled_by_rows(x))  # a custom loop
        return out(x * 2)

    return model, (torch.randn(64, 256),)


class Cache(nn.Module):
    def __init__(self, *, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.into, self.out = nn.Linear(256, 256), nn.Linear(256, 256)
        self.register_buffer("kept", torch.zeros(8, 16384, 256))
        self.kept: torch.Tensor

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> object:
        x = self.into(x)
        for layer in range(8 if self.planted else 0):
            self.kept[layer].index_copy_(0, position, x)  # a state copied in and out
        return self.out(x)


def cache(*, planted: bool) -> Program:
    return Cache(planted=planted), (torch.randn(1, 256), torch.tensor([5]))


def float64_island(*, planted: bool) -> Program:
    into, out = nn.Linear(512, 512), nn.Linear(512, 512)
    weight = torch.randn(512, 512)
    wide = weight.double()

    def model(x: torch.Tensor) -> object:
        x = into(x)
        if planted:
            return out((x.double() @ wide).float())  # a float64 island
        return out(x @ weight)

    return model, (torch.randn(128, 512),)


def casts(*, planted: bool) -> Program:
    into = nn.Linear(32, 256)

    def model(x: torch.Tensor) -> object:
        x = into(x)
        for _ in range(32):
            if planted:
                x = x.to(torch.int32).to(torch.float32)  # casts
            x = (x - 0.5).relu()  # twice the same in a row would be one
        return x

    return model, (torch.randn(2048, 32) * 100,)


def transposed(*, planted: bool) -> Program:
    pool = nn.AvgPool1d(3, stride=1, padding=1)  # cheap, so that the copies stand out on any machine
    norms = nn.ModuleList(nn.LayerNorm(128 if planted else 1024) for _ in range(4))

    def model(x: torch.Tensor) -> object:
        for norm in norms:
            if not planted:
                x = norm(pool(x))
                continue
            x = norm(pool(x.transpose(1, 2)).transpose(1, 2))  # a transposed layout
        return x

    return model, (torch.randn(2, 1024, 128) if planted else torch.randn(2, 128, 1024),)


def chain(*, planted: bool) -> Program:
    into = nn.Linear(16, 256)

    def model(x: torch.Tensor) -> object:
        x = into(x)
        if planted:
            for step in range(24):
                x = (x * 0.5 + step).abs()  # an elementwise chain
        return x

    return model, (torch.randn(2048, 16),)


class Part(nn.Module):
    def __init__(self, settings: list[tuple[str, int]]) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, x: torch.Tensor) -> object:
        return x + sum(value for _, value in self.settings)


def guarded() -> Program:
    """Two hundred modules with sixty settings each."""
    settings = [[(f"option {each}", each + number % 2) for each in range(60)] for number in range(200)]
    return nn.Sequential(nn.Linear(64, 64), *map(Part, settings)), (torch.randn(4, 64),)


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> object:
        return self.layer(x)


def broken(*, planted: bool) -> Program:
    stack = nn.ModuleList(Step() for _ in range(8))

    def model(x: torch.Tensor) -> object:
        for layer in stack:
            x = layer(x).relu()
            if planted:
                torch._dynamo.graph_break()  # a break in a loop
        return x

    return model, (torch.randn(8, 128),)


@torch.library.custom_op("slow_causes::kept", mutates_args=())
def kept(x: torch.Tensor) -> torch.Tensor:
    shifted: torch.Tensor = x + torch.linalg.svdvals(x).sum()
    return shifted


kept.register_fake(torch.empty_like)


def fallbacks(*, planted: bool) -> Program:
    stack = layers(6, 64)

    def model(x: torch.Tensor) -> object:
        for layer in stack:
            x = layer(x).relu()
            if planted:
                x = kept(x)  # a fallback per layer
        return x

    return model, (torch.randn(64, 64),)


def threads() -> Program:
    stack = nn.Sequential(*(module for layer in layers(12, 512) for module in (layer, nn.ReLU())))
    return stack, (torch.randn(64, 512),)


def with_threads(count: int) -> dict[str, Any]:
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = count
    return {"ort_session_options": made}


def reloaded(*, planted: bool) -> Program:
    net = nn.Sequential(*layers(4, 256))
    fresh = {name: value.clone() for name, value in net.state_dict().items()}

    @torch.compiler.disable
    def reload() -> None:
        net.load_state_dict(fresh)

    def model(x: torch.Tensor) -> object:
        if planted:
            reload()  # reloaded weights
        return net(x)

    return model, (torch.randn(8, 256),)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.seen = ["0"]

    def forward(self, x: torch.Tensor) -> object:
        if self.seen[0] != "none":  # recompiles
            self.seen[0] = str(int(self.seen[0]) + 1)
        return self.layer(x)


def recompiled() -> Program:
    return Counts(), (torch.randn(8, 64),)


@torch.library.custom_op("slow_causes::cheap", mutates_args=())
def cheap(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


cheap.register_fake(torch.empty_like)


def tiny_partitions(*, planted: bool) -> Program:
    def model(x: torch.Tensor) -> object:
        for _ in range(24):
            x = x.sin() + 1
            if planted:
                x = cheap(x)  # tiny partitions
        return x

    return model, (torch.randn(8, 8),)


def huge_output(*, planted: bool) -> Program:
    layer = nn.Linear(64, 64)

    def model(x: torch.Tensor) -> object:
        x = layer(x)
        if planted:
            return x, x[:, None, :] * x[None, :, :]  # a huge output
        return x

    return model, (torch.randn(512, 64),)


def strided(*, planted: bool) -> Program:
    layer = nn.Linear(512, 64)
    wide = torch.randn(4096, 1024)
    x = wide[:, ::2] if planted else wide[:, ::2].contiguous()

    def model(x: torch.Tensor) -> object:
        return layer(x).relu()  # a strided input

    return model, (x,)


def python_between(*, planted: bool) -> Program:
    into, out = nn.Linear(128, 128), nn.Linear(128, 128)

    @torch.compiler.disable
    def work(x: torch.Tensor) -> torch.Tensor:
        return x + sum(number * number for number in range(20_000)) % 2

    def model(x: torch.Tensor) -> object:
        x = into(x)
        if planted:
            x = work(x)  # python between graphs
        return out(x)

    return model, (torch.randn(8, 128),)


def data_dependent(*, planted: bool) -> Program:
    into, out = nn.Linear(128, 128), nn.Linear(128, 128)

    def model(x: torch.Tensor) -> object:
        x = into(x)
        for bound in range(4 if planted else 0):
            rows = torch.nonzero(x[:, bound] > -1e9)  # a data-dependent size
            x = x[rows[:, 0]]
        return out(x)

    return model, (torch.randn(64, 128),)


def dropout(*, planted: bool) -> Program:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack, self.drop = layers(6, 256), nn.Dropout(0.1)

        def forward(self, x: torch.Tensor) -> object:
            for layer in self.stack:
                x = self.drop(layer(x).relu())  # dropout left on
            return x

    return Dropped().train(planted), (torch.randn(256, 256),)


def half(*, planted: bool) -> Program:
    dtype = torch.float16 if planted else torch.float32
    net = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4)).to(dtype)

    def model(x: torch.Tensor) -> object:
        for convolution in net:
            x = convolution(x).relu()  # convolutions in float16
        return x

    return model, (torch.randn(1, 16, 64, 64, dtype=dtype),)


def most_frequent(*, planted: bool) -> Program:
    layer = nn.Linear(256, 256)

    def model(x: torch.Tensor) -> object:
        x = layer(x)
        if planted:
            x = x + torch.mode(x).values[:, None]  # a slow operator in PyTorch
        return x.relu()

    return model, (torch.randn(512, 256),)


def _pair(make: Callable[..., Program]) -> tuple[Callable[[], Program], Callable[[], Program]]:
    return lambda: make(planted=True), lambda: make(planted=False)


def _of(
    make: Callable[..., Program],
    name: str,
    *names: str,
    options: Callable[[], dict[str, Any]] = dict,
    has_line: bool = True,
    profiles: bool = False,
) -> Planted:
    slow, without = _pair(make)
    return Planted(name=name, slow=slow, without=without, names=names, options=options, has_line=has_line, profiles=profiles)


CAUSES = (
    _of(bags, "a loop operator", "becomes a Loop", "_embedding_bag"),
    Planted(
        name="a custom loop",
        slow=lambda: custom_loop(planted=True),
        without=lambda: custom_loop(planted=True),
        names=("becomes a Loop",),
        options=lambda: {"custom_translation_table": {torch.ops.slow_causes.doubled_by_rows.default: loop_over_rows}},
        twin_options=lambda: {"min_partition_nodes": 99},  # all in PyTorch, as the report compares
    ),
    _of(cache, "a state copied in and out", "of it are copied", "index_put_", "select_scatter_"),
    _of(float64_island, "a float64 island", "float64", profiles=True),
    _of(casts, "casts", "Cast", profiles=True),
    _of(transposed, "a transposed layout", "Transpose", profiles=True),
    _of(chain, "an elementwise chain", "elementwise", profiles=True),
    Planted(name="many guards", slow=guarded, without=guarded, names=("guards",), has_line=False, twin_skips_guards=True),
    _of(broken, "a break in a loop", "graph_break"),
    _of(fallbacks, "a fallback per layer", "slow_causes.kept"),
    Planted(
        name="too many threads",
        slow=threads,
        without=threads,
        names=("threads",),
        has_line=False,
        options=lambda: with_threads(8),
        twin_options=lambda: with_threads(usable_cores()),
    ),
    _of(reloaded, "reloaded weights", "weights of p", "disable"),
    Planted(name="recompiles", slow=recompiled, without=None, names=("recompile limit", "seen")),
    _of(tiny_partitions, "tiny partitions", "partitions", "slow_causes.cheap"),
    _of(huge_output, "a huge output", "returns 64.1 MiB", "writes 64.0 MiB"),
    _of(strided, "a strided input", "copies its input"),
    _of(python_between, "python between graphs", "disable"),
    _of(data_dependent, "a data-dependent size", "Dynamic shape operator"),
    _of(dropout, "dropout left on", "native_dropout"),
    _of(half, "convolutions in float16", "float16", profiles=True),
    _of(most_frequent, "a slow operator in PyTorch", "aten.mode"),
)


def explained(planted: Planted) -> tuple[ortlens.Lens, tuple[Look, ...]]:
    """Run a program under `explain`, profile it where the docs advise that, and read what to look at first."""
    torch.manual_seed(0)
    target, args = planted.slow()
    with torch.no_grad():
        lens = ortlens.explain(target, options=planted.options())(*args)
        if planted.profiles:
            lens.profile(*args)
    return lens, looks_of(overview_of(lens.captured()))


def place_of(planted: Planted, looks: tuple[Look, ...]) -> tuple[int, bool]:
    """Where the cause is among what to look at first."""
    places = [(place, look.line == planted.line) for place, look in enumerate(looks, 1) if any(name in look.what for name in planted.names)]
    return next((found for found in places if found[1]), next(iter(places), (0, False)))


def cost_of(look: Look) -> int | None:
    """What the report says that a cause costs per call, the program's own code between graphs included."""
    return None if look.ns_per_call is None else look.ns_per_call + look.own_code_ns + look.splitting_ns


def true_cost_ns(planted: Planted) -> tuple[int | None, int | None]:
    """What the cause costs per call: the program against its twin, in turns, by the medians that the report uses as well.

    A few calls of one side follow each other, as a user's do, and the first of them does not count: it finds the data of the other side in
    the caches.
    """
    if planted.without is None:
        return None, None
    with torch.no_grad(), isolated_compilations() as apart:
        sides: list[Program] = []
        for make, options in ((planted.slow, planted.options()), (planted.without, planted.twin_options())):
            torch.manual_seed(0)
            target, args = make()
            sides.append((torch.compile(target, backend="ortlens", options=options, **apart), args))
            for _ in range(2):
                sides[-1][0](*args)  # nothing may be compiled while guards are skipped
        cpu: tuple[list[int], list[int]] = ([], [])
        wall: tuple[list[int], list[int]] = ([], [])
        for turn in range(_ROUNDS + 2):
            for side, number in itertools.product((0, 1), range(_BLOCK)):
                fast, args = sides[side]
                if number == 0:
                    torch.compiler.set_stance("default", skip_guard_eval_unsafe=bool(side) and planted.twin_skips_guards)
                started, started_wall = time.process_time_ns(), time.perf_counter_ns()
                result = fast(*args)
                spent, spent_wall = time.process_time_ns() - started, time.perf_counter_ns() - started_wall
                del result
                if turn >= 2 and number:
                    cpu[side].append(spent)
                    wall[side].append(spent_wall)
        torch.compiler.set_stance("default")
    return _difference(cpu), _difference(wall)


def _difference(sides: tuple[list[int], list[int]]) -> int:
    return round(statistics.median(sides[0]) - statistics.median(sides[1]))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(names: list[str]) -> None:
    """Print a table of the causes: their places, lines and costs."""
    torch.set_num_threads(1)
    _say(f"{'cause':28}{'place':>6}{'line':>6}{'named':>12}{'CPU':>12}{'wall':>12}{'ratio':>7}  first")
    for planted in CAUSES:
        if names and planted.name not in names:
            continue
        torch._dynamo.reset()
        gc.collect()
        _, looks = explained(planted)
        place, has_line = place_of(planted, looks)
        named, (cpu, wall) = cost_of(looks[place - 1]) if place else None, true_cost_ns(planted)
        shown = [time_from_ns(ns) if ns is not None else "-" for ns in (named, cpu, wall)]
        ratio = f"{named / min(cpu, wall):.2f}" if named and cpu and wall else "-"  # several threads take more CPU time than wall time
        first = looks[0].what if looks else "nothing stands out"
        _say(f"{planted.name:28}{place:>6}{has_line!s:>6}{shown[0]:>12}{shown[1]:>12}{shown[2]:>12}{ratio:>7}  {first[:150]}")
        for look in looks[1:] if "-v" in sys.argv else ():
            _say(f"{'':85}{look.what[:150]} [{look.line} {look.ns_per_call}]")


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "-v"])
