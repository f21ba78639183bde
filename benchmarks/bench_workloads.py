"""Everyday programs per step: ortlens against eager and Inductor, how much is in ONNX Runtime, and what the lens says first.

Usage: python benchmarks/bench_workloads.py [--threads 1] [--quick] [--json FILE] [--no-inductor] [--only PATTERN] [--page FILE]

Lines of the page are kept in build/workloads, so that it can be measured in parts: with `--only PATTERN --page FILE`, what does not match
is taken from there.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch
from measure import Row, Table, Turns, parser_for, report, start, take_turns, why_no_inductor
from workloads import WORKLOADS, Workload

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from generations import CASES, GOAL, Generated, generation_section, measured_generation

import ortlens
from ortlens.analysis.first_look import looks_of
from ortlens.analysis.overview import overview_of
from ortlens.views.sentences import look_sentence

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_SLOWER = 1.1
_PAGE = """# Workloads

Programs that people run every day, with random weights: `make sweep-workloads` runs them and writes this page. A figure is a ratio of times
of one step, ways taking turns in one process (see [Benchmarks](benchmarks.md)), below 1 where ortlens is faster. Results are compared with
eager's first. "Dynamo alone" is `torch.compile(backend="eager")` to eager: its guards, and entering compiled code, are part of every call
with any backend. "In ONNX Runtime" counts compute nodes of the compiled graphs. Where ortlens takes {slower} times as long as eager or
longer, the last column is what `ortlens.explain` says first.

| workload | to eager | Dynamo alone | to Inductor | goal | | in ONNX Runtime | graphs, partitions | first finding |
|---|---|---|---|---|---|---|---|---|
{rows}

{generation}
{head}
"""
_KEPT = pathlib.Path(__file__).resolve().parents[1] / "build" / "workloads"


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


def _workload_rows(options: argparse.Namespace, why_not: str) -> Table:
    """Measure those that are chosen."""
    rows, remarks = [], [why_not] if why_not else []
    for workload in WORKLOADS:
        if not re.search(options.only, workload.name):
            continue
        turns, facts, said = measured(workload, options, inductor=not why_not)
        has_goal = workload.to in turns.us
        to = workload.to if has_goal else "eager"
        for way, goal in _goals(workload).items():
            name = _name(workload, way)
            row = turns.compared(name, way, to, goal=goal if has_goal else None)
            rows.append(Row(name=f"{name}, to {to}", value=row.value, goal=row.goal, detail={**row.detail, **facts}))
            _keep(options, name, page_row(workload, turns, facts, said if way == "ortlens" else "", row, way))
        if turns.ratio("ortlens", "eager") >= _SLOWER:
            remarks.append(f"{workload.name}: {said}")
    return Table(title="ortlens per step", rows=rows, remarks=remarks)


def _goals(workload: Workload) -> dict[str, float]:
    """The ways of ours that a workload is measured in, with the goal of each."""
    return {"ortlens": workload.goal, **({} if workload.frozen is None else {"frozen": workload.frozen})}


def _name(workload: Workload, way: str) -> str:
    return workload.name if way == "ortlens" else f"{workload.name}, {way}"


def _generation_rows(options: argparse.Namespace) -> Table:
    """Measure those that are chosen; of each kind of cache one for show."""
    rows = []
    for case in CASES[:2] if options.quick else CASES:
        if not re.search(options.only, f"generate, {case}"):
            continue
        found = measured_generation(case, quick=options.quick)
        detail = {"us of eager": found.eager_us, "decode in ORT": found.coverage, "partitions": float(found.partitions)}
        rows.append(Row(name=f"generate, {case}", value=found.ratio, goal=GOAL, detail=detail))
        _keep(options, case, dataclasses.asdict(found))
    return Table(title="generate, to eager", rows=rows)


def _keep(options: argparse.Namespace, name: str, what: object) -> None:
    if not options.quick:
        _KEPT.mkdir(parents=True, exist_ok=True)
        _file(name).write_text(json.dumps({"head": _head(options), "what": what}), encoding="utf-8")


def _kept(options: argparse.Namespace, name: str) -> Any:  # noqa: ANN401 - as it was kept
    """What was measured with these versions; None where it was not."""
    found = json.loads(_file(name).read_text(encoding="utf-8")) if _file(name).is_file() else {}
    return found.get("what") if found.get("head") == _head(options) else None


def _file(name: str) -> pathlib.Path:
    return _KEPT / f"{name.replace(': ', '-').replace(', ', '-').replace(' ', '_')}.json"


def _head(options: argparse.Namespace) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "onnxruntime", "transformers"))
    return f"{versions}, {options.threads} thread{'s' if options.threads > 1 else ''}."


def _write_page(options: argparse.Namespace) -> None:
    names = [_name(workload, way) for workload in WORKLOADS for way in _goals(workload)]
    lines = {name: _kept(options, name) for name in names}
    missing = [name for name, line in lines.items() if line is None]
    if missing:
        sys.exit(f"{options.page} is not written; not measured yet: {', '.join(missing)}")
    cases = {case: Generated(**what) for case in CASES if (what := _kept(options, case)) is not None}
    section = generation_section(cases)
    text = _PAGE.format(slower=_SLOWER, rows="\n".join(lines.values()), generation=section, head=f"Measured with {_head(options)}")
    options.page.write_text(text, encoding="utf-8")


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--only", default="", help="only what this regular expression is found in")
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE", help="write the page of the docs there")
    options = parser.parse_args()
    start(options)
    report("Workloads", [_workload_rows(options, why_no_inductor(options)), _generation_rows(options)], options)
    if options.page:
        _write_page(options)


if __name__ == "__main__":
    main()
