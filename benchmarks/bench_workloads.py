"""Everyday programs per step: ortlens against eager and Inductor, how much is in ONNX Runtime, and what the lens says first.

Usage: python benchmarks/bench_workloads.py [--threads 1] [--quick] [--json FILE] [--no-inductor] [--only TEXT] [--page FILE]
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import torch
from measure import Row, Table, Turns, parser_for, report, start, take_turns, why_no_inductor
from workloads import WORKLOADS, Workload

import ortlens
from ortlens.analysis.first_look import looks_of
from ortlens.analysis.overview import overview_of
from ortlens.views.sentences import look_sentence

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_SLOWER = 1.1
_PAGE = """# Workloads

Programs that people run every day, with random weights: `make workloads` runs them and writes this page. A figure is a ratio of times of
one step, ways taking turns in one process (see [Benchmarks](benchmarks.md)), below 1 where ortlens is faster. Results are compared with
eager's first. "Dynamo alone" is `torch.compile(backend="eager")` to eager: its guards, and entering compiled code, are part of every call
with any backend. "In ONNX Runtime" counts compute nodes of the compiled graphs. Where ortlens takes {slower} times as long as eager or
longer, the last column is what `ortlens.explain` says first.

| workload | to eager | Dynamo alone | to Inductor | goal | | in ONNX Runtime | graphs, partitions | first finding |
|---|---|---|---|---|---|---|---|---|
{rows}

{head}
"""


def frozen(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function frozen with the arguments of its first call."""
    made: list[Callable[..., Any]] = []

    def call(*args: torch.Tensor) -> Any:  # noqa: ANN401 - whatever the function returns
        if not made:
            made.append(ortlens.freeze(function, *args))
        return made[0](*args)

    return call


def built(workload: Workload, backend: object, *, quick: bool) -> Callable[[], Any]:
    """The step of a workload under a backend; None leaves it as it is, "frozen" freezes it. Weights and inputs are the same each time."""
    torch.manual_seed(0)

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        if backend == "frozen":
            return frozen(function)
        made: Callable[..., Any] = torch.compile(function, backend=backend)  # type: ignore[call-overload]  # a name or a lens
        return function if backend is None else made

    return workload.build(compiled, quick)


def measured(workload: Workload, options: argparse.Namespace, *, inductor: bool) -> tuple[Turns, dict[str, float], str]:
    """Time a workload.

    Args:
        workload: Which.
        options: As parsed.
        inductor: Whether Inductor is among the ways.

    Returns:
        The times; coverage, graphs and partitions; what the lens says first.

    Raises:
        AssertionError: A way gives other results than eager.
    """
    torch.compiler.reset()
    with torch.set_grad_enabled(workload.trains):
        lens = ortlens.Lens()
        backends: dict[str, object] = {"eager": None, "ortlens": lens, "dynamo": "eager", **({"inductor": "inductor"} if inductor else {})}
        steps = {way: built(workload, backend, quick=options.quick) for way, backend in backends.items()}
        if workload.frozen is not None:
            steps["frozen"] = built(workload, "frozen", quick=options.quick)
        expected = built(workload, None, quick=options.quick)()  # the first step of each, since steps change state
        for step in steps.values():
            torch.testing.assert_close(step(), expected, atol=workload.tolerance, rtol=workload.tolerance)
        turns = take_turns(steps, quick=options.quick, rounds=15)
        lens.measured(steps["ortlens"], max_calls=20, uncompiled=steps["eager"])
    graphs = lens.graphs
    nodes = graphs.node_count.sum()
    facts = {
        "in ORT": float((graphs.coverage * graphs.node_count).sum() / nodes) if nodes else 0.0,
        "graphs": float(len(graphs)),
        "partitions": float(len(lens.partitions)),
    }
    looks = looks_of(overview_of(lens.captured()))
    return turns, facts, look_sentence(looks[0]) if looks else "nothing stands out"


def page_row(workload: Workload, turns: Turns, facts: dict[str, float], said: str, row: Row, way: str = "ortlens") -> str:  # noqa: PLR0913, PLR0917
    """A line of the page."""
    to_eager = turns.ratio(way, "eager")
    to_inductor = f"{turns.ratio(way, 'inductor'):.2f}" if "inductor" in turns.us else ""
    alone = f"{turns.ratio('dynamo', 'eager'):.2f}"
    told = said.replace("|", "\\|") if to_eager >= _SLOWER else ""
    goal = "" if row.goal is None else f"{row.goal:.2f} to {workload.to}"
    return (
        f"| {row.name} | {to_eager:.2f} | {alone} | {to_inductor} | {goal} | {row.verdict} | {facts['in ORT']:.0%} "
        f"| {facts['graphs']:.0f}, {facts['partitions']:.0f} | {told} |"
    )


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--only", default="", help="only workloads whose name contains this")
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE", help="write the page of the docs there")
    options = parser.parse_args()
    start(options)
    why_not = why_no_inductor(options)
    rows, lines, remarks = [], [], [why_not] if why_not else []
    for workload in WORKLOADS:
        if options.only not in workload.name:
            continue
        turns, facts, said = measured(workload, options, inductor=not why_not)
        has_goal = workload.to in turns.us
        to = workload.to if has_goal else "eager"
        goals = {"ortlens": workload.goal, **({} if workload.frozen is None else {"frozen": workload.frozen})}
        for way, goal in goals.items():
            name = workload.name if way == "ortlens" else f"{workload.name}, frozen"
            row = turns.compared(name, way, to, goal=goal if has_goal else None)
            lines.append(page_row(workload, turns, facts, said if way == "ortlens" else "", row, way))
            rows.append(Row(name=f"{name}, to {to}", value=row.value, goal=row.goal, detail={**row.detail, **facts}))
        if turns.ratio("ortlens", "eager") >= _SLOWER:
            remarks.append(f"{workload.name}: {said}")
    report("Workloads", [Table(title="ortlens per step", rows=rows, remarks=remarks)], options)
    if options.page:
        head = f"torch {torch.__version__}, {options.threads} thread{'s' if options.threads > 1 else ''}."
        options.page.write_text(_PAGE.format(slower=_SLOWER, rows="\n".join(lines), head=head), encoding="utf-8")


if __name__ == "__main__":
    main()
