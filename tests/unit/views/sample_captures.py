"""Captures made by hand, one per situation that a reader may meet."""

from dataclasses import replace
from typing import Any, TypeVar

from ortlens.analysis.problems.advice import advised
from ortlens.trace.records import (
    Break,
    Capture,
    Fallback,
    Finding,
    Graph,
    Kernel,
    LedgerPart,
    LedgerPartName,
    Model,
    Node,
    Numeric,
    Partition,
    Recompile,
    Run,
    Session,
)
from ortlens.trace.schema import facts_of
from tests.facts import head
from tests.recorded import recorded
from tests.unit.analysis.hand_made import fallback, graph, node, partition

_Record = TypeVar("_Record")
NO_CONVERSION = "no ONNX conversion is registered for aten.median.dim"
FILE = "/home/ada/project/attention.py"
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x1b[31m\u202egnp.exe\x00\ud800\n--> done"


def _ms(**times: int) -> dict[str, int]:
    """Columns of nanoseconds from milliseconds."""
    return {f"{name}_ns": ms * 1_000_000 for name, ms in times.items()}


def _called(number: int, calls: int, total: int) -> Session:
    ids = {"session_id": f"s{number}", "partition_id": f"p{number}", "model_id": f"m{number}"}
    times = {"calls": calls, "total_ns": total, "mean_ns": total // calls, "p50_ns": total // calls}
    return Session(**ids, providers=("CPUExecutionProvider",), input_signature="f32[2,16,128]", **times)  # type: ignore[arg-type]  # by name


def demo_like() -> Capture:
    """One break, one operator between two partitions, one recompile of the second graph."""
    spent = _ms(dynamo=400, aot=200, partition=1, convert=90, optimize=30, session=20, compile=750)
    resumed = {"name": "torch_dynamo_resume_in_forward_at_71", "op_count": 5, "file": FILE, "line": 71, **_ms(dynamo=50, compile=100)}
    guard = "logits == False  # if logits:  # attention.py:74 in forward"
    again = {"compile_id": "1/1", "of_compile_id": "1/0", "function": resumed["name"], "guard": guard, "reason": "1/0: logits == False"}
    return Capture(
        name="demo",
        environment={"torch": "2.13.0"},
        graphs=(
            graph("g0", partition_count=2, fallback_count=1, coverage=0.95, file=FILE, line=60, **spent),
            graph("g1", node_count=6, **resumed),
            graph("g2", compile_id="1/1", recompile_of="1/0", node_count=8, **resumed),
        ),
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
        recompiles=(Recompile(file=FILE, line=71, **again),),  # type: ignore[arg-type]  # by name
        nodes=(node("median", target="aten.median.dim", supported=False, reason_code="no_converter", dtype=None, partition_id=None),),
        partitions=tuple(
            partition(number, name, node_count=nodes, input_count=inputs, weight_bytes=None)
            for number, (name, nodes, inputs) in enumerate((("g0", 12, 3), ("g0", 7, 2), ("g1", 6, 5), ("g2", 8, 5)))
        ),
        fallbacks=(fallback("median", file=FILE, calls=10, total_ns=120_000, source="centre = x.median(dim=-1)", reason=NO_CONVERSION),),
        models=(Model(model_id="m0", partition_id="p0", node_count=9, ops=("MatMul:2",), size_bytes=2048),),
        sessions=tuple(
            _called(number, calls, total)
            for number, calls, total in ((0, 10, 2_000_000), (1, 10, 500_000), (2, 9, 450_000), (3, 1, 90_000))
        ),
        runs=(Run(session_id="s0", graph_id="g0", call=0, start_ns=1, bind_ns=10, run_ns=200, output_ns=5, total_ns=215, thread=7),),
    )


def whole() -> Capture:
    """One graph, one model, never called."""
    graphs = (graph(name="f", node_count=1, op_count=1, file=None, line=None, fallback_count=None, compile_ns=None),)
    return Capture(graphs=graphs, partitions=(partition(node_count=1, input_count=1, weight_bytes=None, model_id=None),))


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
    counts = {"node_count": 10, "op_count": 4, "fallback_count": None, "compile_ns": None, "convert_ns": 5, "file": None, "line": None}
    ids = (("g0", "forward", "step"), ("g1", "backward", None))
    graphs = (graph(graph_id, compile_id="0/0", phase=phase, name=name, **counts) for graph_id, phase, name in ids)
    known = {"node_count": 10, "input_count": 1, "weight_bytes": None, "model_id": None}
    return Capture(
        name="train",
        graphs=(*graphs, Graph(graph_id="g2", phase="inference", op_count=0)),
        partitions=tuple(partition(number, f"g{number}", **known) for number in (0, 1)),
        findings=(
            Finding(rule="lens", severity="info", title="one call was not recorded"),
            Finding(rule="lens", severity="error", title="the break listener failed", evidence="KeyError", file=FILE, line=5),
        ),
    )


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


def huge(count: int = 1050) -> Capture:
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


def captured(name: str) -> Capture:
    """A sample, or a recorded capture."""
    return SAMPLES[name] if name in SAMPLES else recorded(name)
