"""Captures made by hand for the rules: a whole model in ONNX Runtime with nothing to complain of, to be spoilt one fact at a time."""

# ruff: noqa: ANN401 - fields of records have types of their own

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ortlens.analysis.problems.stream import RULES
from ortlens.trace.records import Capture, Fallback, Finding, Graph, Kernel, LedgerPart, Model, Node, Partition, Run, Session
from tests.facts import head

FILE = "/home/ada/model.py"
MICRO, MILLI = 1_000, 1_000_000


def graph(graph_id: str = "g0", **changes: Any) -> Graph:
    made = Graph(
        graph_id=graph_id,
        compile_id=f"{graph_id.removeprefix('g')}/0",
        phase="inference",
        name="forward",
        file=FILE,
        line=10,
        node_count=20,
        op_count=12,
        partition_count=1,
        fallback_count=0,
        coverage=1.0,
        compile_ns=500 * MILLI,
    )
    return replace(made, **changes)


def partition(number: int = 0, graph_id: str = "g0", **changes: Any) -> Partition:
    made = Partition(
        partition_id=f"p{number}",
        graph_id=graph_id,
        node_count=20,
        input_count=3,
        output_count=1,
        weight_bytes=1 << 20,
        model_id=f"m{number}",
    )
    return replace(made, **changes)


def session(number: int = 0, partition_id: str | None = None, **changes: Any) -> Session:
    made = Session(
        session_id=f"s{number}",
        partition_id=partition_id or f"p{number}",
        model_id=f"m{number}",
        providers=("CPUExecutionProvider",),
        input_signature="f32[2,8]",
        create_ns=5 * MILLI,
        cause="first",
        frozen_bytes=1 << 20,
        threads=2,
        spinning=True,
        threads_reason="2, as PyTorch has",
        calls=100,
        total_ns=100 * MILLI,
    )
    return replace(made, **changes)


def runs(number: int = 0, count: int = 10, *, bind: int = 10 * MICRO, run: int = 980 * MICRO, output: int = 10 * MICRO) -> tuple[Run, ...]:
    return tuple(
        Run(session_id=f"s{number}", call=call, start_ns=call, bind_ns=bind, run_ns=run, output_ns=output, total_ns=bind + run + output)
        for call in range(count)
    )


def fallback(node: str = "n", **changes: Any) -> Fallback:
    made = Fallback(
        graph_id="g0",
        node=node,
        target="aten.median.dim",
        reason_code="no_converter",
        reason="aten.median.dim has no ONNX function",
        file=FILE,
        line=48,
    )
    return replace(made, **changes)


def node(name: str, **changes: Any) -> Node:
    return replace(Node(graph_id="g0", node=name, target="aten.add.Tensor", supported=True, dtype="float32", partition_id="p0"), **changes)


def kernel(op_type: str, **changes: Any) -> Kernel:
    made = Kernel(session_id="s0", kernel=f"k_{op_type}", op_type=op_type, provider="CPUExecutionProvider")
    return replace(made, **changes)


def ledger(graph_id: str = "g0", /, **ns: int) -> tuple[LedgerPart, ...]:
    """Where the time of a call goes, by part."""
    whole = max(sum(ns.values()), 1)
    return tuple(LedgerPart(graph_id=graph_id, part=part, ns=spent, share=spent / whole) for part, spent in ns.items())  # type: ignore[arg-type]  # names


def clean(**changes: Any) -> Capture:
    """One graph, one partition, one session of 1 ms per call, 100 calls."""
    made = Capture(
        **head({"cpu_count": "4", "cpu_usable": "2"}),
        graphs=(graph(),),
        partitions=(partition(),),
        models=(Model(model_id="m0", partition_id="p0", node_count=9, initializer_bytes=1 << 20),),
        sessions=(session(),),
        runs=runs(),
    )
    return replace(made, **changes)


def parted(*graphs: Graph, count: int = 1, timed: Mapping[str, int] | None = None, **of_sessions: Any) -> Capture:
    """Graphs of so many partitions each, with a session and runs for each of them."""
    owners = [row.graph_id for row in graphs for _ in range(count)]
    return clean(
        graphs=graphs,
        partitions=tuple(partition(number, owner) for number, owner in enumerate(owners)),
        sessions=tuple(session(number, **of_sessions) for number in range(len(owners))),
        runs=tuple(row for number in range(len(owners)) for row in runs(number, **(timed or {}))),
    )


def found(capture: Capture, rule: str) -> list[Finding]:
    """What one rule finds."""
    return list(RULES[rule].check(capture))
