"""Captures made by hand, one per situation that a reader may meet."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ortlens.analysis.advice import advised
from ortlens.analysis.overview import Overview, overview_of
from ortlens.trace.facts import facts_of
from ortlens.trace.records import (
    Break,
    Capture,
    Fallback,
    Finding,
    Graph,
    Kernel,
    LedgerPart,
    Model,
    Node,
    Numeric,
    Partition,
    Recompile,
    Run,
    Session,
)
from tests.facts import head
from tests.recorded import recorded

if TYPE_CHECKING:
    from ortlens.trace.records import LedgerPartName, Phase

_Record = TypeVar("_Record")
FILE = "/home/ada/project/attention.py"
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x1b[31m\u202egnp.exe\x00\ud800\n--> done"


def demo_like() -> Capture:
    """One break, one operator between two partitions, one recompile of the second graph."""
    graphs = (
        Graph(
            graph_id="g0",
            compile_id="0/0",
            phase="inference",
            name="forward",
            file=FILE,
            line=60,
            node_count=20,
            op_count=12,
            partition_count=2,
            fallback_count=1,
            coverage=0.95,
            dynamo_ns=400_000_000,
            aot_ns=200_000_000,
            partition_ns=1_000_000,
            convert_ns=90_000_000,
            optimize_ns=30_000_000,
            session_ns=20_000_000,
            compile_ns=750_000_000,
        ),
        _resumed("g1", "1/0", None),
        _resumed("g2", "1/1", "1/0"),
    )
    partitions = (
        Partition(partition_id="p0", graph_id="g0", node_count=12, input_count=3, output_count=1, model_id="m0"),
        Partition(partition_id="p1", graph_id="g0", node_count=7, input_count=2, output_count=1, model_id="m1"),
        Partition(partition_id="p2", graph_id="g1", node_count=6, input_count=5, output_count=1, model_id="m2"),
        Partition(partition_id="p3", graph_id="g2", node_count=8, input_count=5, output_count=1, model_id="m3"),
    )
    return Capture(
        name="demo",
        environment={"torch": "2.13.0"},
        graphs=graphs,
        breaks=(
            Break(
                break_id="b0",
                gb_id="GB0170",
                reason="Data-dependent branching",
                hints=("Use `torch.cond` to express dynamic control flow.", "second"),
                file=FILE,
                line=71,
                source="if x.abs().max() > self.limit:",
                compile_ids=("0/0",),
            ),
        ),
        recompiles=(
            Recompile(
                compile_id="1/1",
                of_compile_id="1/0",
                function="torch_dynamo_resume_in_forward_at_71",
                file=FILE,
                line=71,
                guard="logits == False  # if logits:  # attention.py:74 in forward",
                reason="1/0: logits == False",
            ),
        ),
        nodes=(Node(graph_id="g0", node="median", target="aten.median.dim", supported=False, reason_code="no_converter"),),
        partitions=partitions,
        fallbacks=(
            Fallback(
                graph_id="g0",
                node="median",
                target="aten.median.dim",
                reason_code="no_converter",
                reason="no ONNX conversion is registered for aten.median.dim",
                file=FILE,
                line=48,
                source="centre = x.median(dim=-1)",
                calls=10,
                total_ns=120_000,
            ),
        ),
        models=(Model(model_id="m0", partition_id="p0", node_count=9, ops=("MatMul:2",), size_bytes=2048),),
        sessions=tuple(
            Session(
                session_id=f"s{number}",
                partition_id=f"p{number}",
                model_id=f"m{number}",
                providers=("CPUExecutionProvider",),
                input_signature="f32[2,16,128]",
                calls=calls,
                total_ns=total,
                mean_ns=total // calls,
                p50_ns=total // calls,
            )
            for number, calls, total in ((0, 10, 2_000_000), (1, 10, 500_000), (2, 9, 450_000), (3, 1, 90_000))
        ),
        runs=(Run(session_id="s0", graph_id="g0", call=0, start_ns=1, bind_ns=10, run_ns=200, output_ns=5, total_ns=215, thread=7),),
    )


def _resumed(graph_id: str, compile_id: str, recompile_of: str | None) -> Graph:
    ids = {"graph_id": graph_id, "compile_id": compile_id, "recompile_of": recompile_of}
    counts = {"node_count": 6 if recompile_of is None else 8, "op_count": 5, "partition_count": 1, "fallback_count": 0}
    times = {"dynamo_ns": 50_000_000, "compile_ns": 100_000_000}
    name = "torch_dynamo_resume_in_forward_at_71"
    return Graph(**ids, phase="inference", name=name, file=FILE, line=71, **counts, coverage=1.0, **times)  # type: ignore[arg-type]  # by name


def whole() -> Capture:
    """One graph, one model, never called."""
    return Capture(
        graphs=(
            Graph(graph_id="g0", compile_id="0/0", phase="inference", name="f", node_count=1, op_count=1, partition_count=1, coverage=1.0),
        ),
        partitions=(Partition(partition_id="p0", graph_id="g0", node_count=1, input_count=1, output_count=1),),
    )


def nothing_runs() -> Capture:
    """ONNX Runtime takes none of two nodes; the recorder knew the counts only."""
    return Capture(
        graphs=(Graph(graph_id="g0", compile_id="0/0", phase="inference", node_count=2, op_count=2, fallback_count=2),),
        fallbacks=tuple(
            Fallback(graph_id="g0", node=f"n{number}", target="aten.histc.default", reason_code="dtype", reason="") for number in range(2)
        ),
    )


def foreign() -> Capture:
    """Another backend: graphs and runs, no partitions, no times of the compilation."""
    return Capture(
        backend="inductor",
        graphs=(Graph(graph_id="g0", compile_id="0/0", phase="inference", name="f", file=FILE, line=3, op_count=4),),
        runs=tuple(Run(session_id=None, graph_id="g0", call=call, start_ns=call, total_ns=1000) for call in range(2, 6)),
    )


def no_compute() -> Capture:
    """A graph that only hands its inputs on."""
    return Capture(graphs=(Graph(graph_id="g0", compile_id="0/0", phase="inference", node_count=0, op_count=0, partition_count=0),))


def training() -> Capture:
    """A forward and its backward, which share a compile id, and a graph whose record is only half there."""
    half = Graph(graph_id="g2", phase="inference", op_count=0)
    return Capture(
        name="train",
        graphs=(_trained("g0", "forward", "step"), _trained("g1", "backward", None), half),
        partitions=tuple(
            Partition(partition_id=f"p{number}", graph_id=f"g{number}", node_count=10, input_count=1, output_count=1) for number in (0, 1)
        ),
        findings=(
            Finding(rule="lens", severity="info", title="one call was not recorded"),
            Finding(rule="lens", severity="error", title="the break listener failed", evidence="KeyError", file=FILE, line=5),
        ),
    )


def _trained(graph_id: str, phase: Phase, name: str | None) -> Graph:
    counts = {"node_count": 10, "op_count": 4, "partition_count": 1, "convert_ns": 5}
    return Graph(graph_id=graph_id, compile_id="0/0", phase=phase, name=name, coverage=1.0, **counts)  # type: ignore[arg-type]  # by name


def named(kind: type[_Record], text: str, fields: str, **rest: Any) -> _Record:  # noqa: ANN401 - fields of any record
    """A record whose fields of these names hold a text."""
    return kind(**dict.fromkeys(fields.split(), text), **rest)


def hostile(text: str = HOSTILE) -> Capture:
    """Names that try to break out of whatever shows them."""
    counts = {"node_count": 2, "op_count": 1, "partition_count": 1, "coverage": 0.5, "compile_ns": 1}
    place = "reason file function source"
    calls = {"calls": 1, "total_ns": 1, "p50_ns": 1}
    return Capture(
        name=text,
        backend=text,
        graphs=(named(Graph, text, "graph_id compile_id name file", phase="inference", line=1, **counts),),
        breaks=(named(Break, text, f"break_id explanation {place}", hints=(text,), line=2, occurrences=3),),
        recompiles=(named(Recompile, text, "compile_id of_compile_id function file guard reason"),),
        partitions=(named(Partition, text, "partition_id graph_id", node_count=1, input_count=1, output_count=1),),
        fallbacks=(named(Fallback, text, "graph_id node target reason file source", reason_code="layout", line=3, calls=1),),
        sessions=(named(Session, text, "session_id partition_id input_signature", providers=(text,), **calls),),
        findings=(named(Finding, text, "rule title file mitigation", severity="warning"),),
    )


def huge(count: int = 1500) -> Capture:
    """Thousands of everything, with long strings full of characters that grow when escaped."""
    text, numbers = '"\u202e' * 400, range(count)
    known = {"reason_code": "policy", "calls": 5}
    return Capture(
        name=text,
        backend=text,
        graphs=tuple(
            named(Graph, text, "name file", graph_id=f"g{n}", compile_id=f"{n}/0", phase="backward", line=n, node_count=9, op_count=1)
            for n in numbers
        ),
        breaks=tuple(named(Break, text, "reason file source", break_id=f"b{n}", hints=(text,), line=n) for n in numbers),
        recompiles=tuple(named(Recompile, text, "function file guard reason", compile_id=f"{n}/1") for n in numbers),
        fallbacks=tuple(
            named(Fallback, text, "reason file source", graph_id=f"g{n}", node="x", target=f"{n}{text}", total_ns=n, **known)
            for n in numbers
        ),
        sessions=tuple(named(Session, text, "session_id input_signature", partition_id=f"p{n}", providers=(text,) * 9) for n in numbers),
        findings=tuple(named(Finding, text, "title mitigation", rule="r", severity="error") for _ in numbers),
    )


def told() -> Capture:
    """The first one again, with a measured call, prices, advice and values."""
    plain = demo_like()
    times: tuple[tuple[str, LedgerPartName, int], ...] = (
        *(("g0", "guards", 20_000), ("g0", "run", 200_000), ("g0", "eager", 50_000), ("g0", "residual", 5_000)),
        *(("g1", "guards", 5_000), ("g1", "run", 100_000), ("g1", "eager", 20_000), ("g1", "residual", 0)),
    )
    made = replace(
        plain,
        breaks=(replace(plain.breaks[0], cost_ns=23_400),),
        recompiles=(replace(plain.recompiles[0], values=("False", "True")),),
        ledger=tuple(LedgerPart(graph_id=graph_id, part=part, ns=ns, share=ns / 400_000) for graph_id, part, ns in times),
    )
    return advised(made)


def measured() -> Capture:
    """A saved capture that holds the tables of the profiling passes."""
    return Capture(
        kernels=(Kernel(session_id="s0", kernel="k", op_type="Gemm", provider="CPU", share=0.25, total_ns=5),),
        numerics=(Numeric(partition_id="p0", node="n", max_abs=1e-6, ok=True),),
        ledger=(LedgerPart(graph_id="g0", part="run", ns=5, share=1.0),),
    )


def rich() -> Capture:
    """One of everything that a view may tell."""
    base = told()
    facts = {
        "torch_threads": "2",
        "ledger_calls": "51",
        "uncompiled_ns": "800000",
        "version_torch": "2.13.0",
        "option_min_partition_nodes": "3",
    }
    product = Node(graph_id="g0", node="mm", target="aten.mm.default", partition_id="p0", supported=True, module="layers.0", file=FILE)
    kernels = (
        Kernel(session_id="s0", kernel="mm/Gemm", op_type="Gemm", provider="CPU", calls=10, mean_ns=90_000, total_ns=900_000, share=0.75),
        Kernel(session_id="s0", kernel="add/Add", op_type="Add", provider="CPU", calls=10, mean_ns=30_000, total_ns=300_000, share=0.25),
    )
    return replace(
        base,
        **head({**facts_of(base), **facts}),
        nodes=(*base.nodes, replace(product, module_type="Linear", line=50)),
        kernels=tuple(replace(kernel, node="mm", nodes=("mm",), confidence="exact", file=FILE, line=50) for kernel in kernels),
        numerics=(
            Numeric(partition_id="p0", node="mm", max_abs=1e-6, max_rel=1e-5, ok=True, atol=1e-5, rtol=1e-4),
            Numeric(partition_id="p1", node="add", max_abs=0.5, max_rel=0.1, ok=False, first_divergence=True, atol=1e-5, rtol=1e-4),
        ),
        findings=(
            Finding(
                rule="x", severity="warning", title="a finding", hazard="It costs.", mitigation="Do this.", gain_ns=40_000, measured=True
            ),
        ),
    )


SAMPLES = {
    "empty": Capture(),
    "demo_like": demo_like(),
    "whole": whole(),
    "nothing_runs": nothing_runs(),
    "foreign": foreign(),
    "no_compute": no_compute(),
    "training": training(),
    "hostile": hostile(),
    "huge": huge(),
    "measured": measured(),
    "told": told(),
}


@cache
def overview(name: str) -> Overview:
    """The overview of a sample, made once: that of the huge one takes a second."""
    return overview_of(SAMPLES[name])


def captured(name: str) -> Capture:
    """A sample, or a recorded capture."""
    return SAMPLES[name] if name in SAMPLES else recorded(name)
