"""Whole models per call: ortlens against the exported model in a bare session, against eager and against Inductor.

The bare session is the same model through `torch.onnx.export(dynamo=True)`, with as many threads and default
optimisations, its input and output bound once. ortlens takes a fresh tensor and returns a fresh tensor per call.

Usage: python benchmarks/bench_models.py [--threads 1] [--quick] [--json FILE] [--no-inductor]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from measure import Row, Table, Turns, called_with, geomean, isolated, parser_for, report, start, take_turns, why_no_inductor
from models import MODELS, bare_call, build, exported_session

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_GEOMEAN, _WORST = 1.0, 1.05
_TOLERANCE = 1e-4


def measured(name: str, options: argparse.Namespace, *, inductor: bool) -> Turns:
    """Time every way of one model.

    Args:
        name: One of `MODELS`.
        options: As parsed.
        inductor: Whether Inductor is among them.

    Returns:
        The times.

    Raises:
        AssertionError: A way gives other numbers than eager.
    """
    torch.compiler.reset()
    model, x = build(name, quick=options.quick)
    expected = model(x)
    bare, written = bare_call(exported_session(model, x, options.threads), x, expected)
    bare()
    torch.testing.assert_close(written, expected, atol=_TOLERANCE, rtol=_TOLERANCE)
    backends = ["ortlens", "inductor"] if inductor else ["ortlens"]
    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "eager": model,
        **{backend: isolated(model, backend) for backend in backends},
    }
    for way in ways.values():
        torch.testing.assert_close(way(x), expected, atol=_TOLERANCE, rtol=_TOLERANCE)
    return take_turns({"bare": bare, **called_with(ways, x)}, quick=options.quick)


def against(other: str, turns: dict[str, Turns]) -> Table:
    """The ratios of ortlens to another way, a row per model, their geometric mean and the worst.

    Args:
        other: The other way.
        turns: By model.

    Returns:
        The table; against the bare session with the goals.
    """
    has_goal = other == "bare"
    rows = [times.compared(model, "ortlens", other, goal=_WORST if has_goal else None) for model, times in turns.items()]
    ratios = [row.value for row in rows]
    mean = Row(name="geometric mean", value=geomean(ratios), goal=_GEOMEAN if has_goal else None)
    worst = Row(name="worst", value=max(ratios), goal=_WORST if has_goal else None)
    return Table(title=f"ortlens to {'the exported model in a bare session' if has_goal else other}", rows=[*rows, mean, worst])


def main() -> None:
    """Run and print."""
    options = parser_for(__doc__).parse_args()
    start(options)
    why_not = why_no_inductor(options)
    with torch.no_grad():
        turns = {name: measured(name, options, inductor=not why_not) for name in MODELS}
    others = ["bare", "eager", *([] if why_not else ["inductor"])]
    tables = [against(other, turns) for other in others]
    report("Models", [*tables, *([Table(title=why_not)] if why_not else [])], options)


if __name__ == "__main__":
    main()
