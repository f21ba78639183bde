"""What is beside what in a comparison, what is tinted, and which kernels are held against each other."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from ortlens.analysis.answers.check import limits_from, verdicts_of
from ortlens.analysis.compare.comparison import compared, panes
from ortlens.views.comparison_screen import kernel_words
from tests.recorded import recorded

if TYPE_CHECKING:
    from ortlens.analysis.compare.comparison import Compared, PaneRow, PaneSide
    from ortlens.analysis.compare.kernels import KernelTime
    from ortlens.trace.records import Capture


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


def test_origins_that_many_kernels_share_do_not_join_them() -> None:
    resnet = recorded("resnet")
    rows = compared(resnet, resnet).kernels
    assert max(len(row.before_nodes) for row in rows) <= 5
    assert sum(row.before_ns or 0 for row in rows) == sum(kernel.mean_ns or 0 for kernel in resnet.kernels)
