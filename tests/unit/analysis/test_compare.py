"""Comparing captures: what is aligned, what differs, and when a time does."""

import math
import random
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise, permutations, product

import pytest

from ortlens.analysis.answers.check import limits_from, verdicts_of
from ortlens.analysis.compare.changes import Change
from ortlens.analysis.compare.comparison import Compared, PaneRow, PaneSide, compared, panes
from ortlens.analysis.compare.durations import Machine, band_of, verdict_of
from ortlens.analysis.compare.kernels import KernelTime
from ortlens.analysis.speed import MIN_CALLS
from ortlens.errors import UsageError
from ortlens.trace.records import Break, CallLine, Capture, Finding, Numeric, PythonFrame, Recompile, Run
from ortlens.trace.schema import facts_of
from ortlens.views.comparison import Comparison
from ortlens.views.comparison_screen import kernel_words, row_name, times_words
from tests.recorded import COMPARED, FILES, recorded
from tests.unit.analysis import hand_made

PLAIN = sorted(path.stem for path in COMPARED.glob("plain*.ortlens"))
PLANTED = sorted(path.stem for path in COMPARED.glob("planted*.ortlens"))


def only(result: Compared) -> Change:
    (change,) = result.changes
    return change


def slower(result: Compared) -> set[str]:
    return {row.subject for row in result.timings if row.verdict == "slower"}


# ---------------------------------------------------------------------------------------------------------------- times


def machine_factor(chance: random.Random) -> float:
    """How much other work slows down a whole capture."""
    return chance.choice((1.0, 1.0, 1.05, 1.1, 1.2, 1.3))


def noisy(seed: int, *, factor: float = 1.0, count: int = 100) -> Capture:
    """Three partitions called `count` times on a busy machine: the whole capture is slowed down, and single calls wait for others."""
    chance = random.Random(seed)  # noqa: S311 - noise, no secret
    machine = machine_factor(chance)
    runs, now = [], 0
    for call in range(count):
        for session, (base, times) in enumerate(((300_000, 1.0), (500_000, factor), (40_000, 1.0))):
            busy = machine * (1 + chance.expovariate(10)) * (1.6 if call == 0 else 1.0)
            run = round(base * times * busy) + (4_000_000 if chance.random() < 0.03 else 0)
            bind = round(15_000 * busy * machine * machine)
            runs.append(Run(session_id=f"s{session}", call=call, start_ns=now, bind_ns=bind, run_ns=run, output_ns=0, total_ns=bind + run))
            now += bind + run + 20_000
    nodes = (hand_made.node(f"n{number}", partition_id=f"p{number}", target=f"aten.{name}.default") for number, name in enumerate("abc"))
    return hand_made.clean(
        graphs=(hand_made.graph(target="net", partition_count=3),),
        partitions=tuple(map(hand_made.partition, range(3))),
        sessions=tuple(hand_made.session(number, calls=count) for number in range(3)),
        nodes=tuple(nodes),
        runs=tuple(runs),
    )


def test_ten_noisy_captures_of_one_program_do_not_differ() -> None:
    captures = [noisy(seed) for seed in range(10)]
    verdicts = {row.verdict for before, after in permutations(captures, 2) for row in compared(before, after).timings}
    assert verdicts == {"same"}


def test_ten_measured_captures_of_one_program_do_not_differ() -> None:
    captures = [recorded(name) for name in PLAIN]
    assert len(captures) == 10
    results = [compared(before, after) for before, after in permutations(captures, 2)]
    assert {row.verdict for result in results for row in result.timings} == {"same"}
    assert not any(result.is_worse for result in results)


def test_a_partition_that_was_slowed_down_is_named_and_no_other() -> None:
    found = [slower(compared(recorded(before), recorded(after))) for before, after in product(PLAIN, PLANTED)]
    assert {subject for names in found for subject in names} <= {"p1", "Towers"}  # the call takes longer too
    assert sum("p1" in names for names in found) > len(found) / 2  # the rest is in the noise of a busy machine


def test_a_fifth_more_in_one_of_three_partitions_is_named_between_calm_captures() -> None:
    calm = [seed for seed in range(30) if machine_factor(random.Random(seed)) == 1.0][:5]  # noqa: S311 - noise, no secret
    for before, after in pairwise(calm):
        plain, planted = noisy(before), noisy(after, factor=1.2)
        result = compared(plain, planted)
        assert slower(result) - {"net"} == {"p1"}
        assert result.is_worse
        back = compared(planted, plain)
        assert {row.subject for row in back.timings if row.verdict == "faster"} - {"net"} == {"p1"}
        assert not back.is_worse


def test_what_slows_down_binding_too_is_the_machine() -> None:
    before, after = band_of([100_000 + call for call in range(60)]), band_of([130_000 + call for call in range(60)])
    assert verdict_of(before, after, Machine(before_ns=10_000, after_ns=10_000)) == "slower"
    assert verdict_of(before, after, Machine(before_ns=10_000, after_ns=20_000)) == "same"
    assert verdict_of(after, before, Machine(before_ns=20_000, after_ns=10_000)) == "same"
    assert verdict_of(before, after, None) == "same"  # nothing shows how busy the machine was
    nearly, alike = band_of([109_000] * 60), band_of([100_000] * 60)
    assert verdict_of(alike, nearly, Machine(before_ns=1_000, after_ns=1_000)) == "same"  # less than a tenth, however sure


def test_long_calls_are_compared_on_a_calm_machine_only() -> None:
    machine = Machine(before_ns=100_000, after_ns=100_000)
    calm, slow = ([base + call % 7 * base // 100 for call in range(20)] for base in (25_000_000, 50_000_000))
    busy = [time + call % 5 * 10_000_000 for call, time in enumerate(slow)]
    assert verdict_of(band_of(calm), band_of(slow), machine) == "slower"
    assert verdict_of(band_of(calm), band_of(busy), machine) == verdict_of(band_of(busy), band_of(calm), machine) == "unmeasured"
    short = [[time // 100 for time in times] for times in (calm, busy)]
    assert verdict_of(band_of(short[0]), band_of(short[1]), machine) == "slower"


def test_too_few_calls_are_not_compared() -> None:
    assert band_of([5] * (MIN_CALLS - 1)) is None
    assert band_of([5] * MIN_CALLS) is not None
    result = compared(noisy(0, count=5), noisy(1))
    assert {row.verdict for row in result.timings} == {"unmeasured"}


@pytest.mark.parametrize(("stretches", "trimmed"), [(8, 0), (12, 1)])
def test_bands_are_apart_by_chance_in_fewer_than_one_of_five_thousand(stretches: int, trimmed: int) -> None:
    @cache
    def together(first: int, second: int) -> int:
        """Orders of stretches in which the second capture's band lies above the first's."""
        if first == second == stretches:
            return 1
        ways = together(first + 1, second) if first < stretches else 0
        if second < stretches and not (second == trimmed and first < stretches - trimmed):
            ways += together(first, second + 1)
        return ways

    assert 2 * together(0, 0) / math.comb(2 * stretches, stretches) < 1 / 5_000


def test_the_call_of_another_backend_is_compared_by_graph() -> None:
    def foreign(seed: int, factor: float) -> Capture:
        chance = random.Random(seed)  # noqa: S311 - noise, no secret
        runs = tuple(
            Run(session_id=None, graph_id="g0", call=call, start_ns=call * 10**7, total_ns=round(10**6 * factor * chance.uniform(1, 1.1)))
            for call in range(40)
        )
        plain = hand_made.graph(target="net", node_count=None, partition_count=None, coverage=None)
        return Capture(backend="inductor", name="net", graphs=(plain,), runs=runs)

    assert slower(compared(foreign(0, 1.0), foreign(1, 1.0))) == set()
    assert slower(compared(foreign(0, 1.0), foreign(1, 1.6))) == {"net"}


# ------------------------------------------------------------------------------------------------------------ alignment


@pytest.mark.parametrize("name", FILES)
def test_a_capture_does_not_differ_from_itself(name: str) -> None:
    capture = recorded(name)
    result = compared(capture, capture)
    assert result.changes == ()
    assert {row.verdict for row in result.timings} <= {"same", "unmeasured"}
    assert all(row.match == "exact" and row.before_node == row.after_node for row in result.operators)


def layered(*targets: str, graph: str = "g0", partition: str = "p0", **changes: object) -> Capture:
    """A chain of operators, each in a module of its own."""
    of = {"graph_id": graph, "partition_id": partition}
    sources = [("x",), *((f"{graph}_n{number}",) for number in range(len(targets)))]
    nodes = tuple(
        hand_made.node(f"{graph}_n{number}", target=target, module=f"layers.{target}", inputs=source, **of)
        for number, (target, source) in enumerate(zip(targets, sources, strict=False))
    )
    graphs = (hand_made.graph(graph, node_count=len(nodes)),)
    partitions = (hand_made.partition(0, graph, partition_id=partition, node_count=len(nodes)),)
    return replace(Capture(name="net", graphs=graphs, nodes=nodes, partitions=partitions), **changes)  # type: ignore[arg-type]  # by name


def test_operators_are_aligned_by_what_they_are_and_not_by_order_or_id() -> None:
    before, after = layered("a", "b", "c", "d"), layered("c", "d", "new", "a", "b", graph="g7", partition="p9")
    result = compared(before, after)
    assert {(row.target, row.before_node, row.after_node) for row in result.operators if row.match} == {
        ("a", "g0_n0", "g7_n3"),
        ("b", "g0_n1", "g7_n4"),
        ("c", "g0_n2", "g7_n0"),
        ("d", "g0_n3", "g7_n1"),
    }
    assert [(row.kind, row.change, row.subject) for row in result.changes] == [
        ("operator", "added", "new"),
        ("partition", "changed", "p0"),
    ]


def test_a_renamed_module_is_recognised_by_structure() -> None:
    before = layered("a", "b", "c")
    after = replace(before, nodes=tuple(replace(node, module=f"encoder.{node.module}") for node in before.nodes))
    result = compared(before, after)
    assert [row.match for row in result.operators] == ["renamed"] * 3
    assert result.changes == ()


def test_an_operator_that_moves_to_pytorch_is_worse_and_says_why() -> None:
    before = layered("a", "b", "c")
    last = replace(before.nodes[2], supported=False, partition_id=None, reason_code="dtype", reason="float16 is not supported")
    after = replace(before, nodes=(*before.nodes[:2], last))
    change = only(compared(before, after))
    assert (change.change, change.effect, change.subject, change.before) == ("moved", "worse", "c", "ONNX Runtime")
    assert change.after == "PyTorch: float16 is not supported"
    assert only(compared(after, before)).effect == "better"


def test_a_missing_partition_and_coverage_are_reported() -> None:
    before = layered("a", "b")
    after = replace(
        before,
        graphs=(replace(before.graphs[0], coverage=0.0),),
        partitions=(),
        nodes=tuple(replace(node, supported=False, partition_id=None) for node in before.nodes),
    )
    found = {(row.kind, row.change, row.effect) for row in compared(before, after).changes}
    assert found == {("operator", "moved", "worse"), ("partition", "removed", "neutral"), ("coverage", "changed", "worse")}
    assert ("partition", "added", "neutral") in {(row.kind, row.change, row.effect) for row in compared(after, before).changes}


BREAK = Break(break_id="b0", gb_id="GB1", reason="print", file="/a/model.py", line=3, function="forward", source="print(x)")
RECOMPILE = Recompile(compile_id="0/1", function="forward", file="/a/model.py", guard="x.size()[0] == 4", reason="size")


def test_breaks_and_recompiles_that_come_and_go() -> None:
    plain = layered("a")
    moved = replace(BREAK, break_id="b5", file="/other/model.py", line=9, occurrences=3)
    assert only(compared(plain, replace(plain, breaks=(BREAK,)))).effect == "worse"
    assert only(compared(replace(plain, breaks=(BREAK,)), plain)).change == "removed"
    changes = compared(replace(plain, breaks=(BREAK,)), replace(plain, breaks=(moved,))).changes
    (more,) = (change for change in changes if change.kind == "break")
    assert (more.change, more.effect, more.count, more.before, more.after) == ("changed", "worse", 2, "1x", "3x")
    again = replace(RECOMPILE, compile_id="0/2", guard="x.size()[0] == 8")
    grown = only(compared(replace(plain, recompiles=(RECOMPILE,)), replace(plain, recompiles=(RECOMPILE, again))))
    assert (grown.kind, grown.effect, grown.after) == ("recompile", "worse", "2x")


def test_results_findings_versions_options_and_sessions() -> None:
    wrong = Numeric(partition_id="p0", node="a", ok=False)
    plain = layered("a", numerics=(replace(wrong, ok=True),), environment={"version_torch": "2.9", "peak_x": "1", "platform": "A"})
    error = Finding(rule="made_up", severity="error", title="it is broken", subject="p0")
    after = replace(
        plain,
        numerics=(wrong,),
        findings=(error,),
        environment={"version_torch": "2.13", "peak_x": "2", "option_min_partition_nodes": "3", "platform": "B"},
        backend="inductor",
    )
    result = compared(plain, after)
    assert {(row.kind, row.subject, row.effect, row.before, row.after) for row in result.changes} == {
        ("result", "verified values", "worse", "0 of 1 beyond tolerance", "1 of 1 beyond tolerance"),
        ("finding", "made_up", "worse", None, "it is broken"),
        ("version", "torch", "neutral", "2.9", "2.13"),
        ("option", "min_partition_nodes", "neutral", "default", "3"),
        ("machine", "platform", "neutral", "A", "B"),
        ("setting", "backend", "neutral", "ortlens", "inductor"),
    }
    assert result.machine_differs
    assert {row.effect for row in compared(after, plain).changes} == {"better", "neutral"}
    unverified = only(compared(plain, replace(plain, numerics=())))
    assert (unverified.effect, unverified.after) == ("neutral", "not verified")


def test_providers_and_threads_of_paired_sessions() -> None:
    before = replace(layered("a"), sessions=(hand_made.session(),))
    after = replace(before, sessions=(replace(hand_made.session(7, "p0"), providers=("CUDAExecutionProvider",), threads=1),))
    found = {(row.kind, row.before, row.after) for row in compared(before, after).changes}
    assert found == {("provider", "CPUExecutionProvider", "CUDAExecutionProvider"), ("setting", "2", "1")}


def test_findings_about_the_same_thing_under_another_id_are_the_same() -> None:
    note = Finding(rule="made_up", severity="error", title="it is broken", subject="p0")
    before = layered("a", "b", findings=(note,))
    after = layered("a", "b", graph="g3", partition="p8", findings=(replace(note, subject="p8"),))
    assert compared(before, after).changes == ()


def test_captures_that_cannot_be_compared_are_refused() -> None:
    before, after = replace(layered("a", "b"), name="bert"), replace(layered("c", "d"), name="resnet")
    with pytest.raises(UsageError, match="'bert' and 'resnet' share 0 of 2 operators"):
        compared(before, after)
    with pytest.raises(UsageError, match="the second capture 'net' has no graphs"):
        compared(layered("a"), Capture(name="net"))


@cache
def edited() -> Compared:
    return compared(recorded("before"), recorded("after"))


def rows_of(result: Compared) -> tuple[PaneRow, ...]:
    return panes(result)


def name(side: PaneSide | None) -> str:
    return "" if side is None else side.name


def kernel_of(result: Compared, node: str) -> KernelTime:
    (row,) = (row for row in result.kernels if node in row.before_nodes)
    return row


def test_every_operator_is_beside_its_partner_in_the_order_of_the_program() -> None:
    rows = [(row.difference, name(row.before), name(row.after)) for row in rows_of(edited())]
    assert rows[8:15] == [
        ("same", "g0:relu_2", "g0:relu_2"),
        ("fused", "g0:t_3", "g0:t_3"),
        ("slower", "g0:addmm_3", "g0:addmm_3"),
        ("removed", "g0 b0", ""),
        ("fused", "g1:relu", "g0:relu_3"),
        ("same", "g1:t", "g0:t_4"),
        ("slower", "g1:addmm", "g0:addmm_4"),
    ]
    assert ("moved", "g1:mul", "g0:mul") in rows
    assert [row.effect for row in rows_of(edited()) if row.difference == "moved"] == ["better"]


def test_the_other_way_round_everything_is_the_opposite() -> None:
    opposite = {
        "same": "same", "fused": "split", "slower": "faster", "removed": "added", "moved": "moved",
    }  # fmt: skip
    effects = {"worse": "better", "better": "worse", "neutral": "neutral"}
    there = {(opposite[row.difference], effects[row.effect], name(row.after), name(row.before)) for row in rows_of(edited())}
    back = rows_of(compared(recorded("after"), recorded("before")))
    assert {(row.difference, row.effect, name(row.before), name(row.after)) for row in back} == there
    places = {name(row.after): number for number, row in enumerate(back)}
    assert places["g0:addmm_3"] < places["g0 b0"] < places["g1:mul"]


def test_what_one_kernel_computes_on_either_side_is_held_against_all_of_it() -> None:
    row = kernel_of(edited(), "g1:relu")
    assert (row.before_kernels, row.after_kernels) == (("Gemm", "Relu"), ("FusedGemm",))
    assert row.before_nodes == ("g0:t_3", "g0:addmm_3", "g1:relu")
    kernels = {(kernel.session_id, kernel.node): kernel.mean_ns or 0 for kernel in recorded("before").kernels}
    assert row.before_ns == kernels["s0", "addmm_3"] + kernels["s1", "relu"]
    assert row.difference_ns is not None
    assert row.verdict == "slower"
    moved = kernel_of(edited(), "g1:mul")
    assert (moved.before_kernels, moved.after_kernels) == (("PyTorch",), ("Mul",))


def test_the_slow_layers_come_first_and_a_busy_machine_is_not_blamed_on_others() -> None:
    rows = edited().kernels
    assert [(row.module, row.verdict) for row in rows[:2]] == [("widen", "slower"), ("narrow", "slower")]
    assert {row.verdict for row in rows[2:]} == {"same"}
    assert all(row.module != "widen" for row in rows[1:])


@pytest.mark.parametrize(
    ("ends", "said"),
    [((0.95, 1.05), (True, "slower")), ((0.05, 9.0), (False, "same")), (None, (None, "slower"))],
    ids=["apart", "overlapping", "not repeated"],
)
def test_a_kernel_within_the_noise_of_the_profiles_is_not_slower(ends: tuple[float, float] | None, said: tuple[bool | None, str]) -> None:
    def noisy(capture: Capture) -> Capture:
        if ends is None:
            return capture
        low, high = ends
        known = [(item, item.mean_ns or 0) for item in capture.kernels]
        return replace(capture, kernels=tuple(replace(item, low_ns=int(low * ns), high_ns=int(high * ns)) for item, ns in known))

    row = compared(noisy(recorded("before")), noisy(recorded("after"))).kernels[0]
    assert (row.module, row.outside_noise, row.verdict) == ("widen", *said)
    assert ("within the noise" in kernel_words(row), "outside the noise" in kernel_words(row)) == (said[0] is False, said[0] is True)


def test_kernels_of_no_operator_are_not_lost() -> None:
    before = recorded("before")
    odd = replace(before.kernels[0], kernel="odd", op_type="Odd", node=None, nodes=(), mean_ns=1000)
    found = [row for row in compared(before, replace(before, kernels=(*before.kernels, odd))).kernels if not row.operators]
    assert [(row.before_kernels, row.after_kernels, row.difference_ns) for row in found] == [((), ("Odd",), 1000)]


def test_what_does_not_differ() -> None:
    rows = rows_of(compared(recorded("plain2"), recorded("planted2")))
    assert {row.difference for row in rows} == {"same"}, "there is no profile"
    assert len(rows) == len([node for node in recorded("plain2").nodes if node.kind == "compute"])
    after = recorded("before")
    result = compared(after, replace(after, kernels=tuple(replace(item, mean_ns=9 * (item.mean_ns or 0)) for item in after.kernels)))
    assert {row.verdict for row in result.kernels} == {"same"}, "no kernel is slower where the call is not"
    assert {row.difference for row in rows_of(result)} == {"same"}
    recut = [(row.scope, row.subject) for row in edited().timings]
    assert recut == [("call", "Edited"), ("partition", "p2")], "partitions that were cut anew are not compared"
    deep = recorded("deep_break")
    assert rows_of(compared(deep, deep)) == (), "no operators were recorded"


@pytest.mark.parametrize("begin", range(3))
def test_a_call_runs_a_block_three_times_wherever_the_kept_runs_begin(begin: int) -> None:
    starts = [call * 10_000 + block * 120 for call in range(12) for block in range(3)][begin:]
    runs = tuple(Run(session_id="s0", call=number, start_ns=start, total_ns=100) for number, start in enumerate(starts))
    graph = hand_made.graph(target="net", entries_per_call=3.0)
    parts = {"partitions": (hand_made.partition(),), "sessions": (hand_made.session(calls=36),), "runs": runs}
    (call,) = compared(*[hand_made.clean(graphs=(graph,), **parts)] * 2).timings
    assert (call.scope, call.before_ns) == ("call", 340)
    uncounted = hand_made.clean(graphs=(replace(graph, entries_per_call=None),), **parts)
    (run,) = compared(uncounted, uncounted).timings
    assert (run.scope, run.before_ns, row_name(run)) == ("run", 100, "a run of the compiled code of net")


@pytest.mark.parametrize(("node", "is_end"), [("addmm_1", True), ("mul", False)])
def test_a_call_is_not_compared_where_an_operator_left_what_is_timed_of_it(node: str, is_end: bool) -> None:  # noqa: FBT001 - a case
    before = recorded("after") if node == "mul" else recorded("before")
    graph = "g0" if node == "mul" else "g1"
    nodes = tuple(
        replace(item, supported=False, partition_id=None) if (item.graph_id, item.node) == (graph, node) else item for item in before.nodes
    )
    there, back = compared(before, replace(before, nodes=nodes)), compared(replace(before, nodes=nodes), before)
    assert there.ends_moved is back.ends_moved is is_end
    for result in (there, back):
        assert ("call" in {row.scope for row in result.timings}) is not is_end
        (verdict,) = (row for row in verdicts_of(result.after, limits_from(max_slowdown=1.1), result.before) if row.limit == "max_slowdown")
        assert verdict.verdict == ("unmeasured" if is_end else "passed")


def test_operators_that_ran_outside_of_graphs_before_are_not_new_and_make_a_fixed_copy_comparable() -> None:
    after = replace(recorded("after"), name="Fixed")
    names = Counter(node.target for node in after.nodes if node.kind == "compute")
    lost = PythonFrame(frame="Net.forward", status="failed", operators=9, ops=tuple(f"{name}:{count}" for name, count in names.items()))
    line = CallLine(operators=9, outside=9)
    before = Capture(name="Net", frames=(lost,), call_lines=(line,))
    there, back = compared(before, after), compared(after, before)
    for result, effect in ((there, "better"), (back, "worse")):
        rows = [row for row in result.changes if row.kind == "operator"]
        assert len(rows) == names.total()
        assert {(row.change, row.effect) for row in rows} <= {("moved", effect), ("changed", "neutral")}
        assert result.ends_moved
    assert "was in PyTorch: outside of compiled code" in " ".join(str(Comparison(before, after)).split())
    with pytest.raises(UsageError, match="of different models"):
        compared(replace(before, frames=()), after)


def test_calls_that_both_captures_measured_are_compared_as_a_whole() -> None:
    before = recorded("before")
    nodes = tuple(replace(item, supported=False, partition_id=None) if item.node == "addmm_1" else item for item in before.nodes)
    sides = [replace(item, figures=replace(item.figures, ledger_walls=(ns,) * MIN_CALLS)) for item, ns in ((before, 9000), (before, 5000))]
    result = compared(sides[0], replace(sides[1], nodes=nodes))
    (call,) = (row for row in result.timings if row.is_whole)
    assert (call.scope, call.before_ns, call.after_ns, result.ends_moved) == ("call", 9000, 5000, False)
    used = [replace(item, figures=replace(item.figures, ledger_cpu_ns=ns)) for item, ns in zip(sides, (9500, 20_000), strict=True)]
    (call,) = (row for row in compared(*used).timings if row.is_whole)
    assert times_words(call).endswith(", CPU time 9.50 µs → 20.0 µs")
    assert "ledger_walls" not in facts_of(sides[0])
    short = replace(sides[1], figures=replace(before.figures, ledger_walls=(5000,) * (MIN_CALLS - 1)))
    (call,) = (row for row in compared(sides[0], short).timings if row.is_whole)
    assert call.before_ns not in {9000, None}, "from the first session to the last"


def test_origins_that_many_kernels_share_do_not_join_them() -> None:
    resnet = recorded("resnet")
    rows = compared(resnet, resnet).kernels
    assert max(len(row.before_nodes) for row in rows) <= 5
    assert sum(row.before_ns or 0 for row in rows) == sum(kernel.mean_ns or 0 for kernel in resnet.kernels)
