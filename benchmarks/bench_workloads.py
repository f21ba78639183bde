"""Everyday programs per step: ortlens against eager and Inductor, how much is in ONNX Runtime, and what the lens says first.

Usage: python benchmarks/bench_workloads.py [--threads 1] [--quick] [--json FILE] [--no-inductor] [--only PATTERN] [--keep]

With `--keep`, the figures go to docs/data/workloads.json; `--only PATTERN` leaves there what does not match.
"""

from __future__ import annotations

import pathlib
import re
import sys
from typing import TYPE_CHECKING, Any

import torch
from measure import Row, Table, Turns, parser_for, report, start, take_turns, why_no_inductor
from workloads import WORKLOADS, Workload

from ortlens.analysis.problems.stream import problems_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from generations import CASES, GOAL, measured_generation

import ortlens
from ortlens.views.sentences import problem_sentence
from tests.figures import measured_with, read, write

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_SLOWER = 1.1


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
    """Time a workload."""
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
    looks = problems_of(lens.captured())[:3]
    return turns, facts, problem_sentence(looks[0]) if looks else "nothing stands out"


def figures_of(workload: Workload, turns: Turns, facts: dict[str, float], finding: str, way: str) -> dict[str, Any]:
    """One line of the page of workloads."""
    others = {"to_inductor": turns.ratio(way, "inductor")} if "inductor" in turns.us else {}
    return {
        "to_eager": turns.ratio(way, "eager"),
        "dynamo_to_eager": turns.ratio("dynamo", "eager"),
        **others,
        "goal": workload.goal if way == "ortlens" else workload.frozen,
        "goal_to": workload.to,
        "coverage": facts["in ORT"],
        "graphs": round(facts["graphs"]),
        "partitions": round(facts["partitions"]),
        "finding": finding if way == "ortlens" else "",
    }


def _workload_rows(options: argparse.Namespace, why_not: str, kept: dict[str, Any]) -> Table:
    """Measure those that are chosen."""
    rows, remarks = [], [why_not] if why_not else []
    for workload in WORKLOADS:
        if not re.search(options.only, workload.name):
            continue
        turns, facts, finding = measured(workload, options, inductor=not why_not)
        has_goal = workload.to in turns.us
        to = workload.to if has_goal else "eager"
        goals = {"ortlens": workload.goal, **({} if workload.frozen is None else {"frozen": workload.frozen})}
        for way, goal in goals.items():
            name = workload.name if way == "ortlens" else f"{workload.name}, {way}"
            row = turns.compared(name, way, to, goal=goal if has_goal else None)
            rows.append(Row(name=f"{name}, to {to}", value=row.value, goal=row.goal, detail={**row.detail, **facts}))
            kept[name] = figures_of(workload, turns, facts, finding, way)
        if turns.ratio("ortlens", "eager") >= _SLOWER:
            remarks.append(f"{workload.name}: {finding}")
    return Table(title="ortlens per step", rows=rows, remarks=remarks)


def _generation_rows(options: argparse.Namespace, kept: dict[str, Any]) -> Table:
    """Measure those that are chosen; of each kind of cache one for show."""
    rows = []
    for case in CASES[:2] if options.quick else CASES:
        if not re.search(options.only, f"generate, {case}"):
            continue
        kept[case] = found = measured_generation(case, quick=options.quick)
        detail = {"eager ns per token": found["eager_ns_per_token"], "decode in ORT": found["coverage"], "partitions": found["partitions"]}
        rows.append(Row(name=f"generate, {case}", value=found["to_eager"], goal=GOAL, detail=detail))
    return Table(title="generate, to eager", rows=rows)


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--only", default="", help="only what this regular expression is found in")
    parser.add_argument("--keep", action="store_true", help="write the figures of the docs, measured with one thread and Inductor")
    options = parser.parse_args()
    start(options)
    figures = read("workloads")
    tables = [_workload_rows(options, why_no_inductor(options), figures["steps"]), _generation_rows(options, figures["generate"])]
    report("Workloads", tables, options)
    if options.keep:
        write("workloads", {**figures, "measured": measured_with("torch", "onnxruntime", "transformers")})


if __name__ == "__main__":
    main()
