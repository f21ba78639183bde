"""Each rule on a capture made by hand: one that it fires on, and one just below its threshold that it does not."""

from dataclasses import replace
from pathlib import Path

import pytest

from ortlens.analysis.costs import least_run_ns
from ortlens.analysis.problems.stream import RULES, SPLITTING, findings_of
from ortlens.trace.records import (
    Break,
    Capture,
    FallbackCause,
    Figures,
    Finding,
    GraphUse,
    Kernel,
    Model,
    Node,
    Phase,
    Placement,
    Run,
    Severity,
    WeightsChange,
)
from tests.facts import head
from tests.strangers.programs import BY_NAME
from tests.unit.analysis import hand_made
from tests.unit.analysis.hand_made import (
    FILE,
    MICRO,
    MILLI,
    clean,
    fallback,
    found,
    graph,
    ledger,
    node,
    parted,
    partition,
    runs,
    session,
)

SECOND = 1_000_000_000
TESTS = Path(__file__).parents[2]


def in_two(bind_ns: int, total_ns: int) -> Capture:
    """Two partitions that take so long each in all calls, so much of it for binding."""
    timed = {"bind": bind_ns, "run": 100, "output": 0}
    made = parted(graph(partition_count=2), count=2, timed=timed, total_ns=total_ns, spinning=False)
    return replace(made, fallbacks=(fallback("between"),))


def handed(bind_ns: int) -> Capture:
    """Two partitions of 1 ms together, and a value that goes from one to the other."""
    nodes = (node("a", output_bytes=0, bytes=16 << 20), node("b", inputs=("a",), partition_id="p1", bytes=16 << 20))
    return replace(in_two(bind_ns, 50 * MILLI), nodes=nodes)


def sized(count: int) -> Capture:
    made = tuple(session(n, "p0", cause="sizes" if n else "first", held_bytes=1 << 20) for n in range(count))
    return clean(sessions=made)


def weights(held: int, size: int, phase: str = "inference") -> Capture:
    return clean(graphs=(graph(phase=phase),), partitions=(partition(weight_bytes=size),), sessions=(session(frozen_bytes=held),))


def quantised(held: int, floats: int = 0, integers: int = 4 << 20) -> Capture:
    return clean(sessions=(session(held_bytes=held, frozen_bytes=floats + integers, integer_bytes=integers),))


def looked_up(tables: int, held: int, size: int) -> Capture:
    return clean(partitions=(partition(weight_bytes=size),), sessions=(session(frozen_bytes=held, table_bytes=tables),))


def cold(convert_ns: int, *, cached: bool = False, dynamo_ns: int = SECOND) -> Capture:
    timed = graph(dynamo_ns=dynamo_ns, convert_ns=convert_ns, compile_ns=dynamo_ns + convert_ns)
    return clean(graphs=(timed,), models=(Model(model_id="m0", partition_id="p0", node_count=9, cached=cached),))


def trained(calls: int, backward: int) -> Capture:
    graphs = (graph(phase="forward"), graph("g1", phase="backward", compile_id="0/0"))
    return replace(parted(*graphs), sessions=(session(calls=calls), session(1, calls=backward)), runs=runs())


def kernels(*rows: Kernel, provider: str = "CUDAExecutionProvider", **environment: str) -> Capture:
    return clean(
        sessions=(session(providers=(provider, "CPUExecutionProvider")),),
        kernels=rows,
        **head({"cpu_usable": "2", **environment}),
        nodes=(node("mm", target="aten.mm.default", flops=2_000_000_000), node("gelu", flops=0)),
    )


def kernel(op_type: str, share: float, provider: str = "CPUExecutionProvider", mean_ns: int = MILLI, **changes: object) -> Kernel:
    timed = {"share": share, "provider": provider, "mean_ns": mean_ns, "total_ns": 100 * mean_ns}
    return hand_made.kernel(op_type, **(timed | changes), file=FILE, line=3)


def placed(
    nodes: int, pieces: int, kernel_ms: tuple[int, int] = (0, 0), *, provider: str = "QNN", lacking: tuple[str, ...] = ()
) -> Capture:
    """A session of a preferred provider that leaves one node to the CPU; profiled where kernels of either side have times."""
    rows = (
        Placement(session_id="s0", provider=provider, requested=1, nodes=nodes, pieces=pieces, lacking=lacking),
        Placement(session_id="s0", provider="CPUExecutionProvider", requested=2, nodes=1, pieces=1),
    )
    nodes_of = (node("a", provider="CPUExecutionProvider", onnx_ops=("Asinh",), file=FILE, line=3), node("b", inputs=("a",)))
    ran = zip((provider, "CPUExecutionProvider"), kernel_ms, strict=True)
    timed = tuple(kernel(name, 0.5, name, total_ns=ms * MILLI) for name, ms in ran if ms)
    return clean(placements=rows, nodes=nodes_of, kernels=timed, sessions=(session(providers=(provider, "CPUExecutionProvider")),))


def idling(busy: int, idle: int, *rows: Kernel, cuda_graph: GraphUse | None = None) -> Capture:
    """A session on a GPU that was profiled."""
    times = {"device_busy_ns": busy, "device_idle_ns": idle, "launch_ns": idle, "launches": 40, "cuda_graph": cuda_graph}
    one = replace(session(providers=("CUDAExecutionProvider", "CPUExecutionProvider")), **times)  # type: ignore[arg-type]  # fields differ
    return replace(kernels(kernel("Gemm", 0.9, "CUDAExecutionProvider"), *rows), sessions=(one,))


def wide(flops: int, *, dtype: str = "float64") -> Capture:
    return clean(nodes=(node("a", flops=100 - flops), node("b", dtype=dtype, flops=flops, file=FILE, line=12, target="aten.mm.default")))


def summed(cast: str = "prims.convert_element_type.default", inputs: tuple[str, ...] = ("wide",), **changes: bool) -> tuple[Node, ...]:
    """Numbers of float32 that are added up in float64."""
    wide = node("wide", target=cast, dtype="float64", shape=(9999,), bytes=120_000, inputs=("x",))
    added = node("added", target="aten.sum.dim_IntList", dtype="float64", shape=(), bytes=80_000, inputs=inputs, **changes)
    return wide, added, node("narrow", shape=(), bytes=12, inputs=("added",))


def written(size: int, touched: int = 2 << 20, *, is_output: bool = True) -> Capture:
    """A write into a buffer that goes in and comes out."""
    put = node("put", target="aten.index_put.default", inputs=("cache",), is_output=is_output, output_bytes=size, bytes=touched)
    return clean(graphs=(graph(inputs=("cache",)),), nodes=(put,))


def profiled(ops: str, *, ns: int, other_ns: int, calls: int = 10) -> Capture:
    """A profile of kernels that take so long together per run, besides a product; every second one comes from line 12."""
    names = ops.split()
    timed = {"calls": calls, "total_ns": ns * calls // len(names)}
    rows = tuple(hand_made.kernel(op, kernel=f"k{number}", **timed, node="b", file=FILE, line=12) for number, op in enumerate(names))
    product = replace(rows[0], kernel="product", op_type="Gemm", node="a", total_ns=other_ns * calls, line=11)
    return clean(graphs=(graph(entries_per_call=1.0),), kernels=(*rows, product))


def returning(size: int, touched: int, *, phase: Phase = "inference") -> Capture:
    made = node("made", target="aten.mul.Tensor", is_output=True, output_bytes=size, bytes=touched, file=FILE, line=12)
    return replace(clean(graphs=(graph(phase=phase),), nodes=(made,)), figures=Figures(fresh_mib_ns=1000.0))


def large(output_bytes: int, touched: int) -> Capture:
    """A value that goes from one partition to another, in a graph whose nodes touch so many bytes."""
    nodes = (node("a", output_bytes=output_bytes, bytes=touched), node("b", inputs=("a",), partition_id="p1", bytes=0))
    return replace(handed(1), nodes=nodes)


def returned(output_ns: int, calls: int = 100) -> Capture:
    """Outputs of symbolic size, returned within 25 µs."""
    timed = runs(bind=0, run=20_000, output=output_ns)
    return clean(graphs=(graph(dynamic_shapes=True),), sessions=(session(calls=calls),), runs=timed)


def in_pytorch(dtype: str) -> tuple[Node, ...]:
    """Nodes of which the one of this type stays in PyTorch."""
    return tuple(replace(row, partition_id=None) if row.dtype == dtype else row for row in wide(10, dtype=dtype).nodes)


BFLOAT16 = "ONNX Runtime's CPU provider has no arithmetic in bfloat16; float32 and float16 run there"

CAUSES: dict[str, FallbackCause] = {BFLOAT16: "bfloat16"}


def split(reason: str = BFLOAT16) -> Capture:
    """Two partitions with operators between them that stay in PyTorch for a reason."""
    rows = tuple(
        fallback(f"n{n}", target=target, reason_code="dtype", reason=reason, cause=CAUSES.get(reason), calls=100, total_ns=10 * MILLI)
        for n, target in enumerate(["aten.mm.default", "aten.mm.default", "aten.tanh.default"])
    )
    return replace(handed(100 * MICRO), graphs=(graph(partition_count=2, fallback_count=3),), fallbacks=rows)


def entered(times: float | None, *, graph_ns: int = 0) -> Capture:
    """A break in a graph that was counted so often per call, with what the ledger says of that graph."""
    made = Break(break_id="b0", reason="data", function="layer", file=FILE, line=9, compile_ids=("1/0",))
    capture = replace(parted(graph(entries_per_call=1.0), graph("g1", entries_per_call=times)), breaks=(made,))
    return replace(capture, ledger=ledger("g1", run=graph_ns, guards=1)) if graph_ns else capture


def changed_weights(*kinds: WeightsChange | None, entries: float | None = None) -> Capture:
    """A partition with a first session and one for each change of its weights, of which the third ends freezing."""
    anew = tuple(session(n, "p0", cause="weights", weights_change=kind) for n, kind in enumerate(kinds, 1))
    last = tuple(replace(row, frozen_bytes=0) if n == 3 else row for n, row in enumerate(anew, 1))
    return clean(sessions=(session(), *last), graphs=(graph(entries_per_call=entries),), partitions=(partition(weight_bytes=1 << 20),))


def holding(kept: int, plain: int) -> Capture:
    """A call that was measured with these bytes of activations, and without torch.compile."""
    made = clean(
        sessions=(session(kept_bytes=kept),), nodes=(node("wide", partition_id="p0", output_bytes=32 << 20, file="own.py", line=10),)
    )
    figures = replace(made.figures, peak_bytes=0, allocations=2, uncompiled_peak_bytes=plain, uncompiled_allocations=9)
    return replace(made, figures=figures)


def assigned(*names: str, calls: int) -> Capture:
    """Weights that were replaced, by one line, after a number of calls each."""
    kinds: list[WeightsChange] = ["replaced"] * len(names)
    made = changed_weights(*kinds)
    named = zip(made.sessions, ("", *names), strict=True)
    rows = [replace(row, changed_weights=(name,) if name else (), changed_file="own.py", changed_line=7) for row, name in named]
    return replace(made, sessions=tuple(replace(row, calls=calls if row.frozen_bytes != 0 else 9) for row in rows))


def casts(op_type: str = "Cast", *, dtype: str = "float64", entries: float = 1.0, runs: tuple[Run, ...] = ()) -> Capture:
    """A profile of 1 ms, of which kernels around wide or narrow types take 0.3 ms."""
    rows = profiled(op_type, ns=300_000, other_ns=700_000).kernels
    return replace(wide(10, dtype=dtype), graphs=(graph(entries_per_call=entries),), runs=runs, kernels=rows)


def slow_start() -> Capture:
    return replace(cold(SECOND), ledger=ledger(run=1_500_000, residual=500_000))


def case(
    rule: str, fires: Capture, *silent: Capture, severity: str = "warning", gain_ns: int | None = None
) -> tuple[str, Capture, tuple[Capture, ...], str, int | None]:
    """A rule, a capture on which it reports, captures just below its thresholds, and the severity and gain of the finding."""
    return rule, fires, silent, severity, gain_ns


CASES = (
    case(
        "copying_kernels",
        profiled("Cast Cast Transpose Cast", ns=50_000, other_ns=200_000),
        profiled("Cast Cast", ns=50_000, other_ns=200_010),
        gain_ns=50_000,
    ),
    case("copying_kernels", profiled("Transpose", ns=50_000, other_ns=1), profiled("Transpose", ns=49_999, other_ns=1), gain_ns=50_000),
    case(
        "large_outputs",
        returning(32 << 20, 64 << 20),
        returning(32 << 20, (64 << 20) + 1),
        gain_ns=32_000,
    ),
    case(
        "large_outputs",
        returning(32 << 20, 32 << 20),
        returning((32 << 20) - 1, 32 << 20),
        returning(32 << 20, 32 << 20, phase="forward"),
        gain_ns=32_000,
    ),
    case(
        "float16_nodes",
        replace(wide(10, dtype="float16"), **head({"option_upcast": "bfloat16"})),
        replace(wide(10, dtype="float16"), **head({"option_upcast": "bfloat16, float16"})),
        wide(9, dtype="float16"),
    ),
    case(
        "float16_nodes",
        wide(10, dtype="bfloat16"),
        replace(wide(10, dtype="bfloat16"), sessions=(session(providers=("CUDAExecutionProvider",)),)),
        replace(wide(10, dtype="bfloat16"), nodes=in_pytorch("bfloat16")),
    ),
    case("session_churn", sized(4), sized(3), clean(sessions=tuple(session(n, "p0", cause="weights" if n else "first") for n in range(9)))),
    case(
        "weights_changed",
        clean(sessions=(session(), session(1, "p0", cause="weights"))),
        clean(sessions=(session(), session(1, "p0", cause="sizes"))),
    ),
    case("unpacked_weights", quantised(8 << 20), quantised((8 << 20) - 1), quantised(16 << 20, integers=(4 << 20) - 1)),
    case("unpacked_weights", quantised(13 << 20, 5 << 20), quantised((13 << 20) - 1, 5 << 20)),
    case("memory_peak", holding(256 << 20, 128 << 20), holding((256 << 20) - 1, 128 << 20), holding(64 << 20, 1 << 20)),
    case("unfrozen_weights", weights(499_999, 1_000_000), weights(500_000, 1_000_000)),
    case(
        "unfrozen_weights",
        looked_up(tables=800_000, held=90_000, size=1_000_000),
        looked_up(tables=800_000, held=100_000, size=1_000_000),
    ),
    case("unfrozen_weights", weights(0, 1 << 16), weights(0, (1 << 16) - 1), weights(0, 1 << 20, "forward")),
    case("too_many_threads", clean(sessions=(session(threads=3),)), clean(), clean(sessions=(session(threads=64),), **head({}))),
    case("too_many_threads", clean(sessions=(session(threads=64),), **head({"cpu_count": "8"}))),
    case(
        "cold_start",
        cold(SECOND, dynamo_ns=3 * SECOND),
        cold(SECOND, dynamo_ns=3 * SECOND + 1),
        cold(SECOND - 1),
        cold(SECOND, cached=True),
        severity="info",
    ),
    case("training_forward", trained(3, 0), trained(2, 0), trained(9, 1)),
    case(
        "kernels_on_cpu",
        kernels(kernel("TopK", 0.05), kernel("Gemm", 0.95, "CUDAExecutionProvider")),
        kernels(kernel("TopK", 0.0499), kernel("Gemm", 0.9501, "CUDAExecutionProvider")),
    ),
    case(
        "kernels_on_cpu",
        kernels(
            kernel("TopK", 0.05, refusal="dtype", refused=("bfloat16",), copies_ns=20_000),
            on_device := kernel("Gemm", 0.95, "CUDAExecutionProvider"),
        ),
    ),
    case("kernels_on_cpu", kernels(kernel("TopK", 0.05, refusal="opset", refused=("1 to 10", "11")), on_device)),
    case(
        "provider_copies",
        kernels(kernel("MemcpyToHost", 0.02, "CUDAExecutionProvider", bytes=1 << 20)),
        kernels(kernel("Copy", 0.02, "CUDAExecutionProvider")),
    ),
    case("provider_copies", kernels(kernel("MemcpyToHost", 0.0199)), kernels(), severity="info"),
    case(
        "provider_declined",
        placed(0, 0, lacking=("Asinh",)),
        placed(3, 1, lacking=("Asinh",)),
        placed(2, 2),  # shapes alone are elsewhere
        placed(0, 0, provider="CPUExecutionProvider", lacking=("Asinh",)),
        clean(),
    ),
    case("provider_declined", placed(0, 0)),
    case(
        "provider_fallback",
        replace(placed(0, 0), sessions=(session(),)),
        placed(0, 0),
    ),
    case("provider_declined", placed(15, 2, lacking=("Asinh",))),
    case("provider_declined", placed(16, 2, lacking=("Asinh",)), severity="info"),
    case("provider_declined", placed(15, 2, (3, 2), lacking=("Asinh",)), severity="info"),
    case("provider_declined", placed(16, 2, (2, 2), lacking=("Asinh",))),
    case(
        "device_idle",
        idling(300 * MICRO, 100 * MICRO),
        idling(300 * MICRO, 100 * MICRO - 1),
        idling(9_999, 9_999),
        idling(300 * MICRO, 100 * MICRO, cuda_graph="replayed"),
        kernels(kernel("Gemm", 1.0)),
        gain_ns=100 * MICRO,
    ),
    case("device_idle", idling(MILLI, MILLI, kernel("MemcpyToHost", 0.1)), severity="info", gain_ns=MILLI),
    case(
        "float64_nodes",
        wide(10),
        wide(9),
        clean(nodes=(node("a", flops=90_001), node("b", dtype="float64", flops=9_999))),
        wide(100, dtype="float32"),
        clean(nodes=tuple(node(name, dtype="float64", shape=(), bytes=24) for name in "ab")),  # Python floats
        clean(nodes=summed()),
    ),
    case("float64_nodes", clean(nodes=summed(is_output=True))),
    case("float64_nodes", clean(nodes=summed(cast="aten._to_copy.default"))),
    case("float64_nodes", clean(nodes=summed(inputs=("wide", "given")))),
    # Weighed by bytes where no operation is counted.
    case(
        "float64_nodes",
        clean(nodes=(node("a", bytes=90), node("b", dtype="float64", bytes=10))),
        clean(nodes=(node("a", bytes=91), node("b", dtype="float64", bytes=9))),
    ),
    # Gains are those of the kernels: half of theirs, 588 µs of the shortest run, entered twice; casts go as a whole, products stay.
    case("float64_nodes", casts("MatMul", entries=2.0, runs=runs()), gain_ns=294_000),
    case("float64_nodes", casts(), gain_ns=300_000),
    case("float16_nodes", casts(dtype="float16"), gain_ns=300_000),
    case("float16_nodes", casts("Conv", dtype="float16")),
    # A profile made on a busy machine is scaled to the shortest run.
    case(
        "copying_kernels",
        replace(profiled("Transpose", ns=MILLI, other_ns=MILLI), partitions=(partition(ort_ns=500_000),)),
        gain_ns=250_000,
    ),
)


@pytest.mark.parametrize(
    ("rule", "fires", "silent", "severity", "gain_ns"), CASES, ids=[f"{rule}-{number}" for number, (rule, *_) in enumerate(CASES)]
)
def test_a_rule_fires_from_its_threshold_on_and_not_before(
    rule: str, fires: Capture, silent: tuple[Capture, ...], severity: str, gain_ns: int | None
) -> None:
    (finding,) = found(fires, rule)
    assert (finding.rule, finding.severity, finding.gain_ns, finding.measured) == (rule, severity, gain_ns, False)
    assert finding.subject
    assert all((finding.title, finding.evidence, finding.hazard, finding.mitigation))
    assert [found(capture, rule) for capture in silent] == [[]] * len(silent)


def test_every_rule_has_a_case() -> None:
    # They report what was measured: test_findings_calls.py; or what has a table of its own: test_overview.py.
    elsewhere = {"slower_than_torch", "slower_call", "costly_entry", "costly_guards", *SPLITTING}
    assert {rule for rule, *_ in CASES} == RULES.keys() - elsewhere


PROGRAMS = {
    "break": "a branch on data",
    "fallback": "an operator without a kernel",
    "nothing_runs": "autocast inside",
    "recompile": "batch sizes",
    "slower_than_torch": "int8 by hand",
    "slower_call": "guards of a large dict",
    "costly_guards": "a table of a submodule",
    "costly_entry": "generate",
    "weights_changed": "weights replaced each call",
    "unfrozen_weights": "modules of one class",
    "memory_peak": "memory of intermediates",
    "training_forward": "gradients that nobody asked for",
    "float64_nodes": "float64 by accident",
    "copying_kernels": "a transposed layout",
    "large_outputs": "a huge output",
    "session_churn": "integration/test_findings.py::test_a_session_per_size_is_told",
    "unpacked_weights": "integration/test_packed_weights.py::test_integers_that_became_floats_are_a_finding",
    "too_many_threads": "integration/test_probes.py::test_threads_of_the_users_options_are_findings_and_fewer_are_measured",
    "cold_start": "integration/test_probes.py::test_a_start_that_a_cache_would_shorten_is_named",
    "kernels_on_cpu": "integration/test_onnx_files.py::test_what_runs_beside_the_preferred_provider_is_placed_with_a_reason",
    "float16_nodes": "unit/lens/onnx_model/test_explain_model.py::test_no_advice_on_a_model_names_what_is_refused_there",
    "provider_fallback": "integration/test_onnx_files.py::test_a_provider_that_was_asked_for_and_not_registered_is_a_finding",
    "provider_declined": "providers/test_ggml.py::test_every_road_takes_it",
    **dict.fromkeys(("device_idle", "provider_copies"), "on a GPU"),
}
"""The program in which each rule is the first to name the cause: one of `tests.strangers`, or a test. A rule without one goes."""


def test_every_rule_has_a_program_in_which_it_names_the_cause() -> None:
    assert PROGRAMS.keys() == RULES.keys()
    for program in set(PROGRAMS.values()) - {"on a GPU"}:
        file, _, test = program.partition("::")
        assert f"def {test}(" in (TESTS / file).read_text("utf-8") if test else program in BY_NAME


def test_no_rule_fails_on_what_another_looks_for() -> None:
    failed = [finding for _, fires, *_ in CASES for finding in findings_of(fires) if finding.rule == "rule_failed"]
    assert [finding.evidence for finding in failed] == []


@pytest.mark.parametrize(
    ("rule", "capture", "subject", "line"),
    [
        ("weights_changed", clean(sessions=(session(), session(1, "p0", cause="weights"))), "p0", 10),
    ],
)
def test_findings_name_their_line(rule: str, capture: Capture, subject: str, line: int) -> None:
    (finding,) = found(capture, rule)
    assert (finding.file, finding.line, finding.subject) == (FILE, line, subject)


def test_sizes_that_vary_have_no_shortest_run() -> None:
    capture = replace(wide(10), partitions=(partition(ort_ns=500_000),))
    (fixed,) = capture.sessions
    signatures = ("f32[2,8]", "f32[s0,8]", "f32[8*s12] i64[1]")
    assert [least_run_ns(capture, replace(fixed, input_signature=text)) for text in signatures] == [500_000, None, None]


def copied_input(*, bind: int, whole: int, severity: Severity = "info", measured: bool = False, rule: str = "layout_copy") -> Finding:
    known = Finding(rule=rule, subject="p0:x", severity=severity, title="p0 copies its input x", evidence="strided", measured=measured)
    measured_call = ledger(run=whole, guards=0)
    capture = clean(findings=(known,), graphs=(graph(entries_per_call=1.0),), runs=runs(bind=bind), ledger=measured_call)
    return next(finding for finding in findings_of(capture) if finding.rule == rule)


def test_a_copied_input_is_a_warning_where_it_costs() -> None:
    finding = copied_input(bind=50 * MICRO, whole=500 * MICRO)
    assert (finding.severity, finding.gain_ns) == ("warning", 50 * MICRO)
    assert copied_input(bind=50 * MICRO, whole=501 * MICRO).severity == "info"
    assert copied_input(bind=50 * MICRO - 1, whole=MICRO).severity == "info"
    assert copied_input(bind=MILLI, whole=MILLI, measured=True).gain_ns is None
    assert copied_input(bind=MICRO, whole=MILLI, rule="device_copy").gain_ns == 11 * MICRO, "results too"


@pytest.mark.parametrize("kinds", [("written",), ("replaced", "replaced"), ("other_module",)])
def test_a_session_for_other_weights_says_what_happened_however_often_the_partition_runs(kinds: tuple[WeightsChange, ...]) -> None:
    """Counts cannot tell another tensor from one that was written to."""
    told = [found(changed_weights(*kinds, entries=entries), "weights_changed") for entries in (None, 1.0, 3.0)]
    assert len({(finding.title, finding.mitigation) for (finding,) in told}) == 1


@pytest.mark.parametrize("kinds", [("replaced",) * 3, ("other_module",) * 3, ("written", "other_module", "written")])
def test_weights_that_changed_get_one_recommendation(kinds: tuple[WeightsChange, ...]) -> None:
    assert [rule for rule in ("weights_changed", "unfrozen_weights") if found(changed_weights(*kinds), rule)] == ["weights_changed"]


WORDED: tuple[tuple[str, Capture], ...] = (
    ("cold_start", slow_start()),
    *(("weights_changed", changed_weights(kind)) for kind in ("written", "other_module")),
    ("weights_changed", changed_weights("replaced", "replaced")),
    ("weights_changed", changed_weights("written", "other_module", "other_module")),
    ("weights_changed", changed_weights("written", "written", "written")),
    *(("weights_changed", changed_weights(None, None, entries=entries)) for entries in (1.0, 3.0)),
    ("weights_changed", assigned("net.weight", "net.weight", "net.weight", calls=1)),
    ("weights_changed", assigned("net.weight", "net.bias", "net.weight", calls=5)),
    (
        "float16_nodes",
        replace(wide(10, dtype="float16"), graphs=(graph(entries_per_call=1.0),), kernels=profiled("Cast", ns=9, other_ns=9).kernels),
    ),
)
"""Rules and captures whose findings differ in words."""


def test_an_idle_device_leads_to_the_option_unless_the_session_says_why_not() -> None:
    states: tuple[GraphUse | None, ...] = (None, "waiting", "large")
    settings = {state: found(idling(MILLI, MILLI, cuda_graph=state), "device_idle")[0].settings for state in states}
    assert [bool(settings[state]) for state in settings] == [True, True, False]
    assert "cuda_graph" in settings[None][0]


def test_the_time_of_kernels_on_a_device_is_its_own() -> None:
    nodes = (node("mm", dtype="float64", flops=10, file=FILE, line=3),)
    on_gpu = kernel("MatMul", 1.0, "CUDAExecutionProvider", mean_ns=5 * MILLI, calls=100, node="mm", nodes=("mm",))
    capture = replace(kernels(on_gpu), nodes=nodes)
    (of_host,) = found(capture, "float64_nodes")
    (of_device,) = found(replace(capture, sessions=(replace(capture.sessions[0], device_busy_ns=5 * MILLI),)), "float64_nodes")
    assert (of_host.gain_ns, of_device.gain_ns) == (490 * MICRO, 2_500 * MICRO), "runs on the host return before the device is done"
