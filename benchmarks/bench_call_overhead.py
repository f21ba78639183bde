"""What a call costs: a two-Linear MLP through each way of running it, interleaved in one process.

The floor is Dynamo and AOTAutograd around a compiled function that only returns outputs made beforehand: what no backend
behind `torch.compile` can go below. What stands above it, ONNX Runtime's own work included, is ortlens.

Usage: python benchmarks/bench_call_overhead.py [--threads 1] [--quick] [--json FILE] [--no-inductor]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from measure import Row, Table, Turns, called_with, floor_backend, isolated, parser_for, report, start, take_turns, why_no_inductor

from ortlens import Lens

if TYPE_CHECKING:
    from collections.abc import Callable

_ABOVE_FLOOR_US = 12.0
_LENS_US, _LENS_SHARE = 3.0, 0.02


def ways_of(model: torch.nn.Module, *, inductor: bool) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The ways to run the model, by name."""
    backends: dict[str, object] = {"torch.compile, eager": "eager", "torch.compile, aot_eager": "aot_eager"}
    if inductor:
        backends["torch.compile, inductor"] = "inductor"
    backends |= {"ortlens": "ortlens", "ortlens under a Lens": Lens(), "floor": floor_backend()}
    return {"eager": model, **{name: isolated(model, backend) for name, backend in backends.items()}}


def tables_of(turns: Turns) -> list[Table]:
    """The figures with goals, then every way beside ortlens."""
    off = turns.median("ortlens")
    goals = []
    if "torch.compile, inductor" in turns.us:
        goals.append(turns.compared("ortlens to inductor", "ortlens", "torch.compile, inductor", goal=1.0))
    goals += [
        Row(
            name="ortlens above the floor",
            value=turns.difference("ortlens", "floor"),
            unit="us",
            goal=_ABOVE_FLOOR_US,
            detail={"us": off, "us of the other": turns.median("floor")},
        ),
        Row(
            name="ortlens under a Lens, against off",
            value=turns.difference("ortlens under a Lens", "ortlens"),
            unit="us",
            goal=max(_LENS_US, _LENS_SHARE * off),
            detail={"us": turns.median("ortlens under a Lens"), "us of the other": off},
        ),
    ]
    return [
        Table(title="Per call, two-Linear MLP", rows=goals),
        Table(title="Every way, to ortlens", rows=[turns.compared(name, name, "ortlens") for name in turns.us]),
    ]


def main() -> None:
    """Run and print."""
    options = parser_for(__doc__).parse_args()
    start(options)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).eval()
    x = torch.randn(4, 64)
    why_not = why_no_inductor(options)
    with torch.no_grad():
        ways = ways_of(model, inductor=not why_not)
        for call in ways.values():
            torch.testing.assert_close(call(x), model(x))
        turns = take_turns(called_with(ways, x), quick=options.quick)
    report("Call overhead", [*tables_of(turns), *([Table(title=why_not)] if why_not else [])], options)


if __name__ == "__main__":
    main()
