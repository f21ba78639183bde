"""Whole models per call: compiled and frozen, against the exported model in a bare session, eager and Inductor.

The bare session is the same model through `torch.onnx.export(dynamo=True)`, with as many threads and default
optimisations, its input and output bound once. ortlens takes a fresh tensor and returns a fresh tensor per call.

Usage: python benchmarks/bench_models.py [--real] [--rounds 31] [--threads 1] [--quick] [--json FILE] [--no-inductor]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from measure import Row, Table, Turns, called_with, geomean, isolated, parser_for, report, start, take_turns, why_no_inductor
from models import MODELS, REAL, bare_call, build, exported_session

import ortlens

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_GOALS = {("ortlens", "bare"): (1.06, 1.12), ("frozen", "bare"): (1.0, 1.05), ("ortlens", "inductor"): (0.75, 1.0)}
"""Of the geometric mean and of the worst model, by way and the other."""
_TOLERANCE = 1e-4


def measured(name: str, options: argparse.Namespace, *, inductor: bool) -> Turns:
    """Time every way of one model."""
    torch.compiler.reset()
    model, x = build(name, quick=options.quick)
    expected = model(x)
    atol = _TOLERANCE * max(1.0, float(expected.abs().max()))
    bare, written = bare_call(exported_session(model, x, options.threads), x, expected)
    bare()
    torch.testing.assert_close(written, expected, atol=atol, rtol=_TOLERANCE)
    backends = ["ortlens", "inductor"] if inductor else ["ortlens"]
    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "eager": model,
        **{backend: isolated(model, backend) for backend in backends},
        "frozen": ortlens.freeze(model, x),
    }
    for way in ways.values():
        torch.testing.assert_close(way(x), expected, atol=atol, rtol=_TOLERANCE)
    return take_turns({"bare": bare, **called_with(ways, x)}, quick=options.quick, rounds=options.rounds)


def against(way: str, other: str, turns: dict[str, Turns]) -> Table:
    """The ratios of one way to another, a row per model, their geometric mean and the worst."""
    mean_goal, goal = _GOALS.get((way, other), (None, None))
    rows = [times.compared(model, way, other, goal=goal) for model, times in turns.items()]
    ratios = [row.value for row in rows]
    mean = Row(name="geometric mean", value=geomean(ratios), goal=mean_goal)
    worst = Row(name="worst", value=max(ratios), goal=goal)
    return Table(title=f"{way} to {'the exported model in a bare session' if other == 'bare' else other}", rows=[*rows, mean, worst])


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--real", nargs="*", choices=REAL, metavar="MODEL", help="models in real sizes instead, these or all")
    parser.add_argument("--rounds", type=int, default=31, help="rounds of turns (default 31); fewer for models that take long")
    options = parser.parse_args()
    start(options)
    why_not = why_no_inductor(options)
    names = MODELS if options.real is None else options.real or REAL
    with torch.no_grad():
        turns = {name: measured(name, options, inductor=not why_not) for name in names}
    others = ["bare", "eager", *([] if why_not else ["inductor"])]
    tables = [against(way, other, turns) for way in ("ortlens", "frozen") for other in others]
    report("Models", [*tables, *([Table(title=why_not)] if why_not else [])], options)


if __name__ == "__main__":
    main()
