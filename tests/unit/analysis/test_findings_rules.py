"""Each rule on a capture made by hand: one that it fires on, and one just below its threshold that it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from ortlens.analysis.findings.facts import least_run_ns
from ortlens.analysis.findings.registry import RULES, findings_of
from ortlens.analysis.overview import fallback_groups
from ortlens.trace.records import (
    Break,
    Capture,
    Finding,
    Kernel,
    LedgerPart,
    LedgerPartName,
    Model,
    Phase,
    Recompile,
    Severity,
    WeightsChange,
)
from tests.unit.analysis.hand_made import (
    FILE,
    MICRO,
    MILLI,
    clean,
    fallback,
    found,
    graph,
    node,
    partition,
    runs,
    session,
)

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A rule with a capture on each side of its threshold.

    Attributes:
        rule: Its name.
        fires: A capture on which it reports.
        silent: The same, just below.
        says: What the title has to name.
        severity: Of the finding.
        gain_ns: Its estimate; None for none.
    """

    rule: str
    fires: Capture
    silent: Capture
    says: tuple[str, ...]
    severity: str = "warning"
    gain_ns: int | None = None


def cut(small: int, large: int) -> Capture:
    """A graph of small and large partitions with an operator between them, 20 µs of crossing each."""
    parts = tuple(partition(n, node_count=5 if n < small else 6) for n in range(small + large))
    return clean(
        graphs=(graph(partition_count=small + large, fallback_count=1),),
        partitions=parts,
        sessions=tuple(session(n, spinning=False) for n in range(small + large)),
        runs=tuple(run for n in range(small + large) for run in runs(n)),
        fallbacks=(fallback(),),
    )


def staying(nodes: int, total_ns: int, calls: int = 100) -> Capture:
    """Nodes of one operator in PyTorch, beside 1 ms per call in ONNX Runtime."""
    rows = tuple(fallback(f"n{n}", calls=calls, total_ns=total_ns // nodes) for n in range(nodes))
    return clean(graphs=(graph(fallback_count=nodes),), fallbacks=rows, sessions=(session(spinning=False),))


def handed(bind_ns: int, output_bytes: int = 0) -> Capture:
    """Two partitions of 1 ms together, so much of it for binding, and a value that goes from one to the other."""
    nodes = (node("a", output_bytes=output_bytes, bytes=16 << 20), node("b", inputs=("a",), partition_id="p1", bytes=16 << 20))
    return clean(
        graphs=(graph(partition_count=2),),
        partitions=(partition(0), partition(1)),
        sessions=tuple(session(n, total_ns=50 * MILLI, spinning=False) for n in range(2)),
        runs=(*runs(0, bind=bind_ns, run=100, output=0), *runs(1, bind=bind_ns, run=100, output=0)),
        nodes=nodes,
    )


def drawing(count: int, phase: str, partitions: int = 2) -> Capture:
    rows = tuple(
        fallback(f"d{n}", target="aten.native_dropout.default", reason_code="side_effect", reason="it draws random numbers; only ...")
        for n in range(count)
    )
    return clean(graphs=(graph(phase=phase, fallback_count=count, partition_count=partitions),), fallbacks=rows, sessions=())


def sized(count: int) -> Capture:
    made = tuple(session(n, "p0", cause="sizes" if n else "first", held_bytes=1 << 20) for n in range(count))
    return clean(sessions=made)


def weights(held: int, size: int, phase: str = "inference") -> Capture:
    return clean(graphs=(graph(phase=phase),), partitions=(partition(weight_bytes=size),), sessions=(session(frozen_bytes=held),))


def quantised(held: int, floats: int = 0, integers: int = 4 << 20) -> Capture:
    return clean(sessions=(session(held_bytes=held, frozen_bytes=floats + integers, integer_bytes=integers),))


def packed(shareable: int, shared: int = 0) -> Capture:
    frozen = shareable + 100
    return clean(sessions=(session(held_bytes=shareable, frozen_bytes=frozen, copied_bytes=frozen - shared, shareable_bytes=shareable),))


def looked_up(tables: int, held: int, size: int) -> Capture:
    return clean(partitions=(partition(weight_bytes=size),), sessions=(session(frozen_bytes=held, table_bytes=tables),))


def alternating(*, spinning: bool, threads: int = 2, fallbacks: int = 1) -> Capture:
    return clean(graphs=(graph(fallback_count=fallbacks),), sessions=(session(spinning=spinning, threads=threads),))


def tiny(crossing: int, run_ns: int, fallbacks: int = 0) -> Capture:
    return clean(graphs=(graph(fallback_count=fallbacks),), runs=runs(bind=crossing, run=run_ns, output=0))


def handing(output_ns: int, *, dynamic: bool = True) -> Capture:
    return clean(graphs=(graph(dynamic_shapes=dynamic),), runs=runs(bind=0, run=100 * MICRO - output_ns, output=output_ns))


def recompiled(count: int) -> Capture:
    rows = tuple(
        Recompile(compile_id=f"0/{n}", function="forward", file=FILE, line=10, guard=f"x.size(0) == {n}", reason="", values=(str(n),))
        for n in range(1, count + 1)
    )
    return clean(recompiles=rows)


def limited(reason: str) -> Capture:
    return clean(breaks=(Break(break_id="b0", reason=reason, function="forward", file=FILE, line=10),))


def cold(convert_ns: int, *, cached: bool = False, dynamo_ns: int = SECOND) -> Capture:
    timed = graph(dynamo_ns=dynamo_ns, convert_ns=convert_ns, compile_ns=dynamo_ns + convert_ns)
    return clean(graphs=(timed,), models=(Model(model_id="m0", partition_id="p0", node_count=9, cached=cached),))


def broken(per_call: int, occurrences: int = 1, cost_ns: int | None = None) -> Capture:
    """A break in a layer, whose graph is entered so often per call of the model."""
    made = Break(
        break_id="b0", reason="data", function="layer", file=FILE, line=9, compile_ids=("1/0",), occurrences=occurrences, cost_ns=cost_ns
    )
    return clean(
        graphs=(graph(), graph("g1", name="layer")),
        partitions=(partition(), partition(1, "g1")),
        sessions=(session(), session(1, calls=100 * per_call)),
        breaks=(made,),
    )


def trained(calls: int, backward: int) -> Capture:
    return clean(
        graphs=(graph(phase="forward"), graph("g1", phase="backward", compile_id="0/0")),
        partitions=(partition(), partition(1, "g1")),
        sessions=(session(calls=calls), session(1, calls=backward)),
    )


def kernels(*rows: Kernel, provider: str = "CUDAExecutionProvider", **environment: str) -> Capture:
    return clean(
        sessions=(session(providers=(provider, "CPUExecutionProvider")),),
        kernels=rows,
        environment={"cpu_usable": "2", **environment},
        nodes=(node("mm", target="aten.mm.default", flops=2_000_000_000), node("gelu", flops=0)),
    )


def kernel(op_type: str, share: float, provider: str = "CPUExecutionProvider", mean_ns: int = MILLI, **changes: object) -> Kernel:
    made = Kernel(
        session_id="s0", kernel=f"k_{op_type}", op_type=op_type, provider=provider, share=share, mean_ns=mean_ns, total_ns=100 * mean_ns
    )
    return replace(made, file=FILE, line=3, **changes)  # type: ignore[arg-type]  # fields differ in type


PEAKS = {"peak_flops_float32_threads_2": "1e12", "peak_bytes_threads_2": "1e10"}


def roofline(one: Kernel, **environment: str) -> Capture:
    return kernels(one, provider="CPUExecutionProvider", **{**PEAKS, **environment})


def wide(flops: int, *, dtype: str = "float64") -> Capture:
    return clean(nodes=(node("a", flops=100 - flops), node("b", dtype=dtype, flops=flops, file=FILE, line=12, target="aten.mm.default")))


def written(size: int, touched: int = 2 << 20, *, is_output: bool = True) -> Capture:
    """A write into a buffer that goes in and comes out."""
    put = node("put", target="aten.index_put.default", inputs=("cache",), is_output=is_output, output_bytes=size, bytes=touched)
    return clean(graphs=(graph(inputs=("cache",)),), nodes=(put,))


def looping(op: str, torch_ns: int | None = None) -> Capture:
    made = node("loop", target="aten.cumprod.default", onnx_ops=(op,))
    return clean(nodes=(made,), partitions=(partition(torch_ns=torch_ns),))


def profiled(ops: str, *, ns: int, other_ns: int, calls: int = 10) -> Capture:
    """A profile of kernels that take so long together per run, besides a product; every second one comes from line 12."""
    names = ops.split()
    rows = tuple(
        Kernel(
            session_id="s0",
            kernel=f"k{number}",
            op_type=op,
            provider="CPUExecutionProvider",
            calls=calls,
            total_ns=ns * calls // len(names),
            node="b",
            file=FILE,
            line=12,
        )
        for number, op in enumerate(names)
    )
    product = replace(rows[0], kernel="product", op_type="Gemm", node="a", total_ns=other_ns * calls, line=11)
    return clean(graphs=(graph(entries_per_call=1.0),), kernels=(*rows, product))


def returning(size: int, touched: int, *, phase: Phase = "inference") -> Capture:
    made = node("made", target="aten.mul.Tensor", is_output=True, output_bytes=size, bytes=touched, file=FILE, line=12)
    return clean(graphs=(graph(phase=phase),), nodes=(made,))


def beside_little(total_ns: int, calls: int = 100) -> Capture:
    """An operator in PyTorch beside 50 µs per call in ONNX Runtime."""
    sessions = (session(spinning=False, calls=calls, total_ns=50_000 * calls),)
    return clean(graphs=(graph(fallback_count=1),), fallbacks=(fallback(calls=calls, total_ns=total_ns),), sessions=sessions, runs=())


def little(bind_ns: int) -> Capture:
    """Two partitions of 100 µs each, so much of it for binding."""
    return clean(
        graphs=(graph(partition_count=2),),
        partitions=(partition(0), partition(1)),
        sessions=tuple(session(n, total_ns=10 * MILLI, spinning=False) for n in range(2)),
        runs=(*runs(0, bind=bind_ns, run=100, output=0), *runs(1, bind=bind_ns, run=100, output=0)),
    )


def large(output_bytes: int, touched: int) -> Capture:
    """A value that goes from one partition to another, in a graph whose nodes touch so many bytes."""
    nodes = (node("a", output_bytes=output_bytes, bytes=touched), node("b", inputs=("a",), partition_id="p1", bytes=0))
    return replace(handed(1), nodes=nodes)


def called(calls: int) -> Capture:
    return replace(tiny(50_000, 50_000), sessions=(session(calls=calls),))


def returned(output_ns: int, calls: int = 100) -> Capture:
    """Outputs of symbolic size, returned within 25 µs."""
    timed = runs(bind=0, run=20_000, output=output_ns)
    return clean(graphs=(graph(dynamic_shapes=True),), sessions=(session(calls=calls),), runs=timed)


CASES = (
    Case(
        rule="copying_kernels",
        fires=profiled("Cast Cast Transpose Cast", ns=50_000, other_ns=200_000),
        silent=profiled("Cast Cast", ns=50_000, other_ns=200_010),
        says=("4 kernels", "3 Cast, 1 Transpose", "50.0 µs", "20%"),
        gain_ns=50_000,
    ),
    Case(
        rule="copying_kernels",
        fires=profiled("Transpose", ns=50_000, other_ns=1),
        silent=profiled("Transpose", ns=49_999, other_ns=1),
        says=("1 kernel of s0",),
        gain_ns=50_000,
    ),
    Case(
        rule="elementwise_chain",
        fires=profiled("Mul Add Abs Mul", ns=200_000, other_ns=200_000),
        silent=profiled("Mul Add Abs Mul", ns=200_000, other_ns=200_004),
        says=("4 elementwise kernels", "200 µs", "50%"),
        gain_ns=150_000,
    ),
    Case(
        rule="elementwise_chain",
        fires=profiled("Mul Add Abs Mul", ns=200_000, other_ns=0),
        silent=profiled("Mul Add Abs", ns=240_000, other_ns=0),
        says=("100%",),
        gain_ns=150_000,
    ),
    Case(
        rule="large_outputs",
        fires=returning(32 << 20, 64 << 20),
        silent=returning(32 << 20, (64 << 20) + 1),
        says=("32.0 MiB", "aten.mul.Tensor"),
        gain_ns=490_000,  # half of the shortest run
    ),
    Case(
        rule="large_outputs",
        fires=returning(32 << 20, 32 << 20),
        silent=returning((32 << 20) - 1, 32 << 20),
        says=("g0 returns",),
        gain_ns=980_000,
    ),
    Case(
        rule="large_outputs",
        fires=returning(32 << 20, 32 << 20),
        silent=returning(32 << 20, 32 << 20, phase="forward"),
        says=("g0 returns",),
        gain_ns=980_000,
    ),
    Case(rule="float16_nodes", fires=wide(10, dtype="float16"), silent=wide(9, dtype="float16"), says=("float16 on the CPU", "10%")),
    Case(
        rule="float16_nodes",
        fires=wide(10, dtype="bfloat16"),
        silent=replace(wide(10, dtype="bfloat16"), sessions=(session(providers=("CUDAExecutionProvider",)),)),
        says=("bfloat16",),
    ),
    Case(
        rule="float16_nodes",
        fires=replace(wide(10, dtype="float16"), environment={"option_upcast": "bfloat16"}),
        silent=replace(wide(10, dtype="float16"), environment={"option_upcast": "bfloat16, float16"}),
        says=("float16",),
    ),
    Case(rule="state_copies", fires=written(1 << 20), silent=written((1 << 20) - 1), says=("1.00 MiB", "g0"), severity="info"),
    Case(rule="state_copies", fires=written(1 << 20), silent=written(1 << 20, touched=11 << 20), says=("1 buffer",), severity="info"),
    Case(rule="state_copies", fires=written(1 << 20), silent=written(1 << 20, is_output=False), says=("1 buffer",), severity="info"),
    Case(rule="element_loop", fires=looping("Loop"), silent=looping("Gather"), says=("aten.cumprod.default", "Loop"), severity="info"),
    Case(rule="element_loop", fires=looping("Loop"), silent=looping("Loop", torch_ns=1), says=("Loop",), severity="info"),
    Case(rule="small_partitions", fires=cut(4, 4), silent=cut(4, 5), says=("8 partitions", "4 of them")),
    Case(rule="small_partitions", fires=cut(4, 0), silent=cut(3, 0), says=("4 partitions",)),
    Case(rule="hot_fallback", fires=staying(1, 12 * MILLI), silent=staying(1, 9 * MILLI), says=("aten.median.dim", "120 µs, 11%")),
    Case(rule="hot_fallback", fires=staying(4, 0), silent=staying(3, 0), says=("aten.median.dim", "4 nodes")),
    Case(rule="boundary_copies", fires=handed(100 * MICRO), silent=handed(99 * MICRO), says=("g0", "200 µs"), gain_ns=100 * MICRO),
    Case(rule="boundary_copies", fires=handed(1, 8 << 20), silent=handed(1, (8 << 20) - 1), says=("8.00 MiB",), severity="info"),
    Case(rule="hot_fallback", fires=staying(1, 11_111_200), silent=staying(1, 11_111_000), says=("111 µs, 10%",)),
    Case(rule="hot_fallback", fires=beside_little(2_000_000), silent=beside_little(1_999_900), says=("20.0 µs",)),
    Case(rule="hot_fallback", fires=beside_little(60_000, calls=3), silent=beside_little(40_000, calls=2), says=("20.0 µs",)),
    Case(rule="boundary_copies", fires=little(25_000), silent=little(24_999), says=("50.0 µs",), gain_ns=25_000),
    Case(
        rule="boundary_copies", fires=large(8 << 20, 32 << 20), silent=large(8 << 20, (32 << 20) + 1), says=("8.00 MiB",), severity="info"
    ),
    Case(rule="boundary_copies", fires=large(8 << 20, 1), silent=large((8 << 20) - 1, 1), says=("8.00 MiB",), severity="info"),
    Case(
        rule="state_copies", fires=written(1 << 20, 10 << 20), silent=written(1 << 20, (10 << 20) + 1), says=("1.00 MiB",), severity="info"
    ),
    Case(rule="tiny_graph", fires=called(10), silent=called(9), says=("g0",), severity="info"),
    Case(rule="output_allocations", fires=returned(5_000), silent=returned(4_999), says=("5.00 µs",), severity="info"),
    Case(rule="output_allocations", fires=returned(5_000, calls=3), silent=returned(5_000, calls=2), says=("5.00 µs",), severity="info"),
    Case(
        rule="cold_start",
        fires=cold(SECOND, dynamo_ns=3 * SECOND),
        silent=cold(SECOND, dynamo_ns=3 * SECOND + 1),
        says=("1.00 s",),
        severity="info",
    ),
    Case(
        rule="kernels_on_cpu",
        fires=kernels(kernel("TopK", 0.05), kernel("Gemm", 0.95, "CUDAExecutionProvider")),
        silent=kernels(kernel("TopK", 0.0499), kernel("Gemm", 0.9501, "CUDAExecutionProvider")),
        says=("5%",),
    ),
    Case(rule="provider_copies", fires=kernels(kernel("MemcpyToHost", 0.0199)), silent=kernels(), says=("2.0%",), severity="info"),
    Case(
        rule="slow_kernel",
        fires=roofline(kernel("MatMul", 0.05, mean_ns=50_000, nodes=("mm",), node="mm"), peak_flops_float32_threads_2="1e18"),
        silent=roofline(kernel("MatMul", 0.05, mean_ns=49_999, nodes=("mm",), node="mm"), peak_flops_float32_threads_2="1e18"),
        says=("50.0 µs",),
        gain_ns=49_996,
    ),
    Case(rule="random_splits", fires=drawing(1, "inference"), silent=drawing(0, "inference"), says=("1 operator", "native_dropout")),
    Case(rule="random_splits", fires=drawing(1, "inference"), silent=drawing(1, "inference", 1), says=("splits g0 into 2 partitions",)),
    Case(rule="random_splits", fires=drawing(3, "forward"), silent=drawing(2, "forward"), says=("3 operators",), severity="info"),
    Case(rule="session_churn", fires=sized(4), silent=sized(3), says=("p0", "4 sessions")),
    Case(
        rule="weights_changed",
        fires=clean(sessions=(session(), session(1, "p0", cause="weights"))),
        silent=clean(sessions=(session(), session(1, "p0", cause="sizes"))),
        says=("p0", "1 time"),
    ),
    Case(
        rule="unpacked_weights",
        fires=quantised(8 << 20),
        silent=quantised((8 << 20) - 1),
        says=("packed weights of 4.00 MiB are held as 8.00 MiB",),
    ),
    Case(rule="unpacked_weights", fires=quantised(13 << 20, 5 << 20), silent=quantised((13 << 20) - 1, 5 << 20), says=("8.00 MiB",)),
    Case(rule="unpacked_weights", fires=quantised(8 << 20), silent=quantised(16 << 20, integers=(4 << 20) - 1), says=("8.00 MiB",)),
    Case(
        rule="packed_copies",
        fires=packed(256 << 20),
        silent=packed((256 << 20) - 1),
        says=("s0 holds packed copies of 256 MiB",),
        severity="info",
    ),
    Case(rule="packed_copies", fires=packed(300 << 20, 44 << 20), silent=packed(300 << 20, 300 << 20), says=("256 MiB",), severity="info"),
    Case(rule="unfrozen_weights", fires=weights(499_999, 1_000_000), silent=weights(500_000, 1_000_000), says=("p0", "488 KiB")),
    Case(
        rule="unfrozen_weights",
        fires=looked_up(tables=800_000, held=90_000, size=1_000_000),
        silent=looked_up(tables=800_000, held=100_000, size=1_000_000),
        says=("p0",),
    ),
    Case(rule="unfrozen_weights", fires=weights(0, 1 << 16), silent=weights(0, (1 << 16) - 1), says=("64.0 KiB",)),
    Case(rule="unfrozen_weights", fires=weights(0, 1 << 20), silent=weights(0, 1 << 20, "forward"), says=("1.00 MiB",)),
    Case(rule="too_many_threads", fires=clean(sessions=(session(threads=3),)), silent=clean(), says=("3 threads", "2 cores")),
    Case(rule="spinning_threads", fires=alternating(spinning=True), silent=alternating(spinning=False), says=("1 session ",)),
    Case(rule="spinning_threads", fires=alternating(spinning=True), silent=alternating(spinning=True, threads=1), says=("1 session ",)),
    Case(rule="spinning_threads", fires=alternating(spinning=True), silent=alternating(spinning=True, fallbacks=0), says=("spin",)),
    Case(
        rule="tiny_graph",
        fires=tiny(40 * MICRO, 60 * MICRO),
        silent=tiny(40 * MICRO - 1, 60 * MICRO + 1),
        says=("g0", "40.0 µs", "60.0 µs"),
        severity="info",
    ),
    Case(rule="tiny_graph", fires=tiny(50_000, 50_000), silent=tiny(50_001, 50_000), says=("g0",), severity="info"),
    Case(rule="tiny_graph", fires=tiny(9, 1), silent=tiny(9, 1, fallbacks=1), says=("g0",), severity="info"),
    Case(rule="output_allocations", fires=handing(10 * MICRO), silent=handing(10 * MICRO - 1), says=("s0", "10.0 µs"), severity="info"),
    Case(rule="output_allocations", fires=handing(MILLI), silent=handing(MILLI, dynamic=False), says=("1 output",), severity="info"),
    Case(rule="recompile_storm", fires=recompiled(4), silent=recompiled(3), says=("forward", "4 times")),
    Case(rule="recompile_storm", fires=limited("torch._dynamo hit config.recompile_limit (8)"), silent=limited("other"), says=("forward",)),
    Case(rule="cold_start", fires=cold(SECOND), silent=cold(SECOND - 1), says=("2.00 s", "1.00 s", "2,000 calls"), severity="info"),
    Case(rule="cold_start", fires=cold(SECOND), silent=cold(SECOND, dynamo_ns=3 * SECOND + 1), says=("1.00 s",), severity="info"),
    Case(rule="cold_start", fires=cold(SECOND), silent=cold(SECOND, cached=True), says=("1.00 s",), severity="info"),
    Case(rule="hot_break", fires=broken(3, cost_ns=70), silent=broken(2, cost_ns=70), says=("layer", "3 times per call"), gain_ns=70),
    Case(rule="hot_break", fires=broken(1, 3), silent=broken(1, 2), says=("3 graph boundaries",)),
    Case(rule="training_forward", fires=trained(3, 0), silent=trained(2, 0), says=("forward", "no backward ran")),
    Case(rule="training_forward", fires=trained(9, 0), silent=trained(9, 1), says=("no backward ran",)),
    Case(
        rule="kernels_on_cpu",
        fires=kernels(kernel("TopK", 0.05), kernel("Gemm", 0.95, "CUDAExecutionProvider")),
        silent=kernels(kernel("TopK", 0.04), kernel("Gemm", 0.96, "CUDAExecutionProvider")),
        says=("s0", "1 kernel of", "CUDAExecutionProvider", "5%"),
    ),
    Case(
        rule="provider_copies",
        fires=kernels(kernel("MemcpyToHost", 0.02, "CUDAExecutionProvider", bytes=1 << 20)),
        silent=kernels(kernel("Copy", 0.02, "CUDAExecutionProvider")),
        says=("s0", "1 copy", "2.0%"),
    ),
    Case(rule="provider_copies", fires=kernels(kernel("MemcpyToHost", 0.019)), silent=kernels(), says=("1.9%",), severity="info"),
    # 2 GFLOP at 1 TFLOP/s take 2 ms: 8 ms is exactly a quarter of the peak, half of it would be 4 ms.
    Case(
        rule="slow_kernel",
        fires=roofline(kernel("MatMul", 0.05, mean_ns=8 * MILLI + 1, nodes=("mm",), node="mm")),
        silent=roofline(kernel("MatMul", 0.05, mean_ns=8 * MILLI, nodes=("mm",), node="mm")),
        says=("MatMul", "mm", "8.00 ms", "25%"),
        gain_ns=4 * MILLI + 1,
    ),
    # 1 MB at 10 GB/s takes 100 µs, and 10 % of the peak is asked of what has no counted operations.
    Case(
        rule="slow_kernel",
        fires=roofline(kernel("Gelu", 0.05, mean_ns=MILLI + 1, node="gelu", bytes=1_000_000)),
        silent=roofline(kernel("Gelu", 0.05, mean_ns=MILLI, node="gelu", bytes=1_000_000)),
        says=("Gelu", "10%"),
        severity="info",
    ),
    Case(rule="float64_nodes", fires=wide(10), silent=wide(9), says=("g0", "10%", "1 node")),
    Case(
        rule="float64_nodes",
        fires=wide(10),
        silent=clean(nodes=(node("a", flops=90_001), node("b", dtype="float64", flops=9_999))),
        says=("10%",),
    ),
    Case(rule="float64_nodes", fires=wide(10), silent=wide(100, dtype="float32"), says=("float64",)),
)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}-{number}" for number, case in enumerate(CASES)])
def test_a_rule_fires_from_its_threshold_on_and_not_before(case: Case) -> None:
    (finding,) = found(case.fires, case.rule)
    assert [word for word in case.says if word not in finding.title] == []
    assert (finding.rule, finding.severity, finding.gain_ns, finding.measured) == (case.rule, case.severity, case.gain_ns, False)
    assert finding.subject
    assert all((finding.title, finding.evidence, finding.hazard, finding.mitigation))
    assert found(case.silent, case.rule) == []


def test_every_rule_has_a_case() -> None:
    elsewhere = {"slower_than_torch", "slower_call", "costly_entry"}  # they report what was measured: test_findings_slower.py, _calls.py
    elsewhere |= {rule.name for rule in RULES if rule.check.__module__.endswith(".ranks")}  # they need several ranks: test_ranks.py
    assert {case.rule for case in CASES} == {rule.name for rule in RULES} - elsewhere


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}-{number}" for number, case in enumerate(CASES)])
def test_no_rule_fails_on_what_another_looks_for(case: Case) -> None:
    assert [finding.evidence for finding in findings_of(case.fires) if finding.rule == "rule_failed"] == []


def test_a_slow_operator_names_its_line_and_what_to_do() -> None:
    (finding,) = found(staying(4, 40 * MILLI), "hot_fallback")
    assert (finding.file, finding.line) == (FILE, 48)
    assert "custom_translation_table" in finding.mitigation
    assert "has no ONNX function" in finding.evidence


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"cpu_bfloat16": "yes"}, "Leave it: this CPU has bfloat16 instructions"),
        ({"cpu_bfloat16": "no"}, "a seventh to a half of PyTorch's time"),
        ({}, "Time both"),
    ],
)
def test_bfloat16_in_pytorch_names_the_option_with_its_price_for_this_cpu(facts: dict[str, str], said: str) -> None:
    made = staying(4, 40 * MILLI)
    reason = "ONNX Runtime's CPU provider has no arithmetic in bfloat16; float32 and float16 run there"
    rows = tuple(replace(row, reason_code="dtype", reason=reason) for row in made.fallbacks)
    (finding,) = found(replace(made, fallbacks=rows, environment=facts), "hot_fallback")
    assert said in finding.mitigation
    assert '"upcast": ("bfloat16",)' in finding.mitigation
    assert "4 more bytes per element" in finding.mitigation
    others = tuple(replace(row, reason="float8_e4m3fn tensors cannot be passed to ONNX Runtime") for row in rows)
    (finding,) = found(replace(made, fallbacks=others, environment=facts), "hot_fallback")
    assert "upcast" not in finding.mitigation


def test_bfloat16_is_one_cause_however_many_operators_it_keeps_in_pytorch_and_graphs_it_splits() -> None:
    reason = "ONNX Runtime's CPU provider has no arithmetic in bfloat16; float32 and float16 run there"
    made = handed(100 * MICRO)
    rows = tuple(
        fallback(f"n{n}", target=target, reason_code="dtype", reason=reason, calls=100, total_ns=10 * MILLI)
        for n, target in enumerate(["aten.mm.default", "aten.mm.default", "aten.tanh.default"])
    )
    stays = replace(made, graphs=(graph(partition_count=2, fallback_count=3),), fallbacks=rows)
    (finding,) = found(stays, "hot_fallback")
    assert (finding.title, finding.subject) == ("bfloat16 stays in PyTorch at 3 nodes and takes 300 µs, 23% of a call", "aten.mm.default")
    assert "aten.mm.default (2 times), aten.tanh.default" in finding.evidence
    (crossed,) = found(stays, "boundary_copies")
    assert '"upcast"' in crossed.mitigation
    assert crossed.gain_ns is None
    assert found(replace(stays, fallbacks=rows[:1]), "boundary_copies")[0].gain_ns is None
    others = tuple(replace(row, reason="other") for row in rows)
    (crossed,) = found(replace(stays, fallbacks=others), "boundary_copies")
    assert "upcast" not in crossed.mitigation
    assert crossed.gain_ns


def test_bfloat16_in_pytorch_is_not_said_to_be_computed_by_onnx_runtime() -> None:
    made = wide(50, dtype="bfloat16")
    assert found(made, "float16_nodes")
    left = replace(made, nodes=tuple(replace(row, partition_id=None) if row.dtype == "bfloat16" else row for row in made.nodes))
    assert found(left, "float16_nodes") == []


def test_the_time_of_a_fallback_is_that_of_the_ledger_where_there_is_one() -> None:
    """The first calls are slow; the mean over all calls holds them, the ledger does not."""
    slow_start = staying(1, 12 * MILLI)
    parts = (LedgerPart(graph_id="g0", part="eager", ns=12_000, share=0.1), LedgerPart(graph_id="g0", part="run", ns=100_000, share=0.9))
    from_logs = replace(slow_start, ledger=parts)
    assert found(from_logs, "hot_fallback")  # no guards in it: made from the same logs, with the same slow start
    warm = tuple(replace(row, call_ns=12_000) for row in slow_start.fallbacks)
    measured = replace(from_logs, ledger=(*parts, LedgerPart(graph_id="g0", part="guards", ns=1, share=0.0)), fallbacks=warm)
    assert found(measured, "hot_fallback") == []
    (group,) = fallback_groups(measured)
    assert group.ns_per_call == 12_000 * len(warm)


def test_what_a_backward_takes_is_no_share_of_the_calls_that_were_measured_without_it() -> None:
    forward = graph(phase="forward", target="net")
    backward = graph("g1", compile_id=forward.compile_id, phase="backward", partition_count=0, fallback_count=1)
    parts = (LedgerPart(graph_id="g0", part="guards", ns=100_000, share=0.1), LedgerPart(graph_id="g0", part="run", ns=900_000, share=0.9))
    row = fallback(graph_id="g1", calls=100, total_ns=300 * MILLI)  # 3 ms, beside a measured forward of 1 ms
    (finding,) = found(clean(graphs=(forward, backward), fallbacks=(row,), ledger=parts), "hot_fallback")
    assert finding.title == "aten.median.dim stays in PyTorch at 1 node and takes 3.00 ms, 75% of a call with its backward"


@pytest.mark.parametrize(("times", "count"), [(3.0, 1), (2.0, 0), (None, 0)])
def test_entries_are_those_that_were_counted(times: float | None, count: int) -> None:
    """The frame of the model itself holds no graph, so that its calls were not counted in the logs."""
    made = Break(break_id="b0", reason="data", function="layer", file=FILE, line=9, compile_ids=("0/0",))
    assert len(found(clean(breaks=(made,), graphs=(graph(entries_per_call=times),)), "hot_break")) == count


def test_random_numbers_are_told_once() -> None:
    assert found(drawing(9, "inference"), "hot_fallback") == []


def test_weights_that_are_no_longer_frozen_say_why() -> None:
    changes = tuple(session(n, "p0", cause="weights" if n else "first", frozen_bytes=0 if n == 3 else 1 << 20) for n in range(4))
    capture = clean(sessions=changes)
    (unfrozen,) = found(capture, "unfrozen_weights")
    (changed,) = found(capture, "weights_changed")
    assert "changed 3 times" in unfrozen.evidence
    assert "no longer frozen" in changed.title


def changed_weights(*kinds: WeightsChange | None, entries: float | None = None) -> Capture:
    """A partition with a first session and one for each change of its weights, of which the third ends freezing."""
    anew = tuple(session(n, "p0", cause="weights", weights_change=kind) for n, kind in enumerate(kinds, 1))
    last = tuple(replace(row, frozen_bytes=0) if n == 3 else row for n, row in enumerate(anew, 1))
    return clean(sessions=(session(), *last), graphs=(graph(entries_per_call=entries),), partitions=(partition(weight_bytes=1 << 20),))


@pytest.mark.parametrize(
    ("kinds", "title", "advice", "silent"),
    [
        (("written",), "the weights of p0 changed 1 time between calls", "Change weights before", "share"),
        (("replaced", "replaced"), "the weights of p0 were replaced 2 times by other tensors", "Assign parameters", "changed"),
        (("other_module",), "several modules share p0: 1 session was created for the weights of another one", "graph break", "changed"),
    ],
)
def test_a_session_for_other_weights_says_what_happened(kinds: tuple[WeightsChange, ...], title: str, advice: str, silent: str) -> None:
    """However often the partition runs per call: counts cannot tell another tensor from one that was written to."""
    for entries in (None, 1.0, 3.0):
        (finding,) = found(changed_weights(*kinds, entries=entries), "weights_changed")
        assert finding.title == title
        assert advice in finding.mitigation
        assert silent not in f"{finding.title} {finding.evidence} {finding.mitigation}"


def test_changes_of_several_kinds_are_all_named() -> None:
    (finding,) = found(changed_weights("written", "other_module", "other_module"), "weights_changed")
    assert finding.title == (
        "several modules share p0: 2 sessions were created for the weights of another one; the weights of p0 changed 1 time between calls"
        "; its weights are no longer frozen"
    )
    assert "graph break" in finding.mitigation
    assert "Change weights before" in finding.mitigation


@pytest.mark.parametrize(("entries", "said"), [(1.0, "changed 2 times"), (3.0, "several modules share p0")])
def test_a_capture_that_does_not_say_how_weights_changed_is_judged_by_its_counts(entries: float, said: str) -> None:
    (finding,) = found(changed_weights(None, None, entries=entries), "weights_changed")
    assert said in finding.title


def test_unfrozen_weights_of_modules_that_share_code_did_not_change() -> None:
    (finding,) = found(changed_weights("other_module", "other_module", "other_module"), "unfrozen_weights")
    assert "several modules share its code" in finding.evidence
    assert "change" not in f"{finding.title} {finding.evidence} {finding.mitigation}"
    (mixed,) = found(changed_weights("other_module", "written", "written"), "unfrozen_weights")
    assert "changed 3 times" in mixed.evidence


def test_sessions_made_for_weights_are_no_churn_of_sizes() -> None:
    assert found(clean(sessions=tuple(session(n, "p0", cause="weights" if n else "first") for n in range(9))), "session_churn") == []


def test_threads_are_not_judged_where_the_cores_are_unknown() -> None:
    assert found(clean(sessions=(session(threads=64),), environment={}), "too_many_threads") == []
    assert found(clean(sessions=(session(threads=64),), environment={"cpu_count": "8"}), "too_many_threads")


def test_a_recompile_storm_tells_guards_values_and_the_recorded_advice() -> None:
    capture = recompiled(5)
    (finding,) = found(capture, "recompile_storm")
    assert "x.size(0) == 1" in finding.evidence
    assert "1, 2, 3, 4, 5" in finding.evidence
    advised = replace(capture, recompiles=tuple(replace(row, advice="mark it dynamic") for row in capture.recompiles))
    assert found(advised, "recompile_storm")[0].mitigation == "mark it dynamic"


def test_a_kernel_is_judged_by_measured_peaks_of_its_own_threads_only() -> None:
    slow = kernel("MatMul", 0.5, mean_ns=100 * MILLI, nodes=("mm",), node="mm")
    assert found(roofline(slow), "slow_kernel")
    assert found(kernels(slow, provider="CPUExecutionProvider"), "slow_kernel") == []
    assert found(kernels(slow, provider="CPUExecutionProvider", peak_flops_float32_threads_4="1e12"), "slow_kernel") == []
    assert found(roofline(slow, peak_flops_float32_threads_2="nonsense"), "slow_kernel") == []
    assert found(roofline(replace(slow, provider="CUDAExecutionProvider")), "slow_kernel") == []


def test_kernels_that_share_a_node_share_its_operations() -> None:
    """Attention is two products: each does half, so each may take half as long before it is slow."""
    halves = [kernel(op, 0.4, mean_ns=5 * MILLI, nodes=("mm",), node="mm") for op in ("MatMul", "FusedMatMul")]
    whole = roofline(halves[0])
    assert found(whole, "slow_kernel") == []
    assert len(found(replace(whole, kernels=tuple(halves)), "slow_kernel")) == 2


def test_small_kernels_are_not_judged() -> None:
    quick = kernel("MatMul", 0.5, mean_ns=49_999, nodes=("mm",), node="mm")
    assert found(roofline(quick, peak_flops_float32_threads_2="1e18"), "slow_kernel") == []
    rare = kernel("MatMul", 0.049, mean_ns=100 * MILLI, nodes=("mm",), node="mm")
    assert found(roofline(rare), "slow_kernel") == []


def test_doubles_are_weighed_by_bytes_where_no_operation_is_counted() -> None:
    capture = clean(nodes=(node("a", bytes=90), node("b", dtype="float64", bytes=10)))
    (finding,) = found(capture, "float64_nodes")
    assert "10% of the bytes" in finding.title
    assert found(clean(nodes=(node("a", bytes=91), node("b", dtype="float64", bytes=9))), "float64_nodes") == []


def test_a_count_is_not_overridden_by_a_ratio_of_times() -> None:
    """The ledger was measured while the machine was busy: 59 ms in a graph of 1 ms per run that is entered once."""
    made = Break(break_id="b0", reason="data", function="layer", file=FILE, line=9, compile_ids=("1/0",))
    capture = clean(
        graphs=(graph(entries_per_call=1.0), graph("g1", entries_per_call=1.0)),
        partitions=(partition(), partition(1, "g1")),
        sessions=(session(calls=100), session(1, calls=100)),
        runs=(*runs(), *runs(1)),
        breaks=(made,),
        ledger=(
            LedgerPart(graph_id="g1", part="run", ns=59 * MILLI, share=1.0),
            LedgerPart(graph_id="g1", part="guards", ns=1, share=0.0),
        ),
    )
    assert found(capture, "hot_break") == []


def test_versions_that_ran_in_different_calls_are_not_one_call() -> None:
    """A list that grows with every call: each call compiles its code again, and hits the break once."""
    made = Break(break_id="b0", reason="data", function="hook", file=FILE, line=9, compile_ids=tuple(f"1/{n}" for n in range(5)))
    versions = [graph(f"g{n}", compile_id=f"1/{n - 1}", recompile_of=f"1/{n - 2}" if n > 1 else None, line=30) for n in range(1, 6)]
    capture = clean(
        graphs=(graph(), *versions),
        partitions=tuple(partition(n, f"g{n}") for n in range(6)),
        sessions=tuple(session(n, calls=1) for n in range(6)),
        runs=(),
        breaks=(made,),
    )
    assert found(capture, "hot_break") == []


def test_float64_costs_half_of_its_kernels() -> None:
    capture = replace(wide(10), graphs=(graph(entries_per_call=2.0),), kernels=profiled("MatMul", ns=300_000, other_ns=700_000).kernels)
    (finding,) = found(capture, "float64_nodes")
    assert "their kernels take 588 µs per call" in finding.title  # of the shortest run, twice per call
    assert finding.gain_ns == 294_000


@pytest.mark.parametrize(("torch_ns", "gain"), [(15 * MICRO, 40 * MICRO), (25 * MICRO, None)])
def test_small_partitions_gain_what_pytorch_is_faster_by(torch_ns: int, gain: int | None) -> None:
    made = cut(4, 0)
    timed = replace(made, partitions=tuple(replace(part, ort_ns=25 * MICRO, torch_ns=torch_ns) for part in made.partitions))
    (finding,) = found(timed, "small_partitions")
    assert (finding.gain_ns, finding.measured) == (gain, False)
    assert ("min_partition_nodes" in finding.mitigation) is (gain is not None), "advice against what was measured"
    assert "4 of them were timed" in finding.evidence
    (unknown,) = found(made, "small_partitions")
    assert unknown.gain_ns is None
    assert "was not measured" in unknown.evidence


def test_casts_around_float64_go_as_a_whole() -> None:
    rows = profiled("Cast", ns=300_000, other_ns=700_000).kernels
    capture = replace(wide(10), graphs=(graph(entries_per_call=1.0),), runs=(), kernels=rows)
    (finding,) = found(capture, "float64_nodes")
    assert finding.gain_ns == 300_000


def test_float16_costs_its_kernels_besides_products() -> None:
    rows = profiled("Cast", ns=300_000, other_ns=700_000).kernels
    slow = replace(wide(10, dtype="float16"), graphs=(graph(entries_per_call=1.0),), runs=(), kernels=rows)
    (finding,) = found(slow, "float16_nodes")
    assert (finding.gain_ns, finding.measured) == (300_000, False)
    assert "estimated" in finding.evidence
    products = tuple(replace(row, op_type="Conv") for row in rows)
    (finding,) = found(replace(slow, kernels=products), "float16_nodes")
    assert finding.gain_ns is None


def test_sizes_that_vary_have_no_shortest_run() -> None:
    capture = replace(wide(10), partitions=(partition(ort_ns=500_000),))
    (fixed,) = capture.sessions
    assert least_run_ns(capture, replace(fixed, input_signature="f32[2,8]")) == 500_000
    assert least_run_ns(capture, replace(fixed, input_signature="f32[s0,8]")) is None
    assert least_run_ns(capture, replace(fixed, input_signature="f32[8*s12] i64[1]")) is None


def test_a_profile_made_on_a_busy_machine_is_scaled_to_the_shortest_run() -> None:
    capture = replace(profiled("Transpose", ns=MILLI, other_ns=MILLI), partitions=(partition(ort_ns=500_000),))
    (finding,) = found(capture, "copying_kernels")
    assert finding.gain_ns == 250_000


def test_a_single_partition_has_no_boundaries_to_avoid() -> None:
    capture = clean(graphs=(graph(fallback_count=1),), runs=runs(bind=500 * MICRO, run=MILLI), fallbacks=(fallback(),))
    assert found(capture, "boundary_copies") == []


def copied_input(*, bind: int, whole: int, severity: Severity = "info", measured: bool = False) -> Finding:
    known = Finding(
        rule="layout_copy", subject="p0:x", severity=severity, title="p0 copies its input x", evidence="strided", measured=measured
    )
    parts: tuple[tuple[LedgerPartName, int], ...] = (("run", whole), ("guards", 0))
    ledger = tuple(LedgerPart(graph_id="g0", part=part, ns=ns, share=0.0) for part, ns in parts)
    capture = clean(findings=(known,), graphs=(graph(entries_per_call=1.0),), runs=runs(bind=bind), ledger=ledger)
    return next(finding for finding in findings_of(capture) if finding.rule == "layout_copy")


def test_a_copied_input_is_a_warning_where_it_costs() -> None:
    finding = copied_input(bind=50 * MICRO, whole=500 * MICRO)
    assert (finding.severity, finding.gain_ns) == ("warning", 50 * MICRO)
    assert "binding takes 50.0 µs per call" in finding.title
    assert copied_input(bind=50 * MICRO, whole=501 * MICRO).severity == "info"
    assert copied_input(bind=50 * MICRO - 1, whole=MICRO).severity == "info"
    assert copied_input(bind=MILLI, whole=MILLI, measured=True).gain_ns is None


def test_changed_weights_name_the_line_of_their_graph() -> None:
    (finding,) = found(clean(sessions=(session(), session(1, "p0", cause="weights"))), "weights_changed")
    assert (finding.file, finding.line) == (FILE, 10)


def test_a_cold_start_is_as_long_as_so_many_calls_of_the_first_screen() -> None:
    rows = (
        LedgerPart(graph_id="g0", part="run", ns=1_500_000, share=0.75),
        LedgerPart(graph_id="g0", part="residual", ns=500_000, share=0.25),
    )
    (finding,) = found(replace(cold(SECOND), ledger=rows), "cold_start")
    assert "as long as 1,000 calls" in finding.title
