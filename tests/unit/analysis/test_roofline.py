"""Kernels against the machine's peaks: which limit counts, and what is said where one is not known."""

import pytest

from ortlens.analysis.roofline import Roof, is_worth_comparing, roofs
from ortlens.trace.records import Capture, Kernel
from tests.facts import head
from tests.unit.analysis import hand_made
from tests.unit.analysis.hand_made import MILLI, clean, node, session

PEAKS = {"peak_flops_float32_threads_2": "1e12", "peak_bytes_threads_2": "1e10", "peak_flops_float64_threads_2": "5e11"}
GIGA = 1_000_000_000


def kernel(op_type: str = "MatMul", **changes: object) -> Kernel:
    return hand_made.kernel(op_type, **{"mean_ns": 4 * MILLI, "bytes": 5_000_000, "node": "mm", "nodes": ("mm",), **changes})


def capture(*kernels: Kernel, peaks: dict[str, str] | None = None) -> Capture:
    nodes = (node("mm", target="aten.mm.default", flops=2 * GIGA), node("gelu", flops=0), node("mm64", flops=GIGA, dtype="float64"))
    environment = {"cpu_usable": "2", **(PEAKS if peaks is None else peaks)}
    return clean(sessions=(session(threads=2),), kernels=kernels, nodes=nodes, **head(environment))


def only(*kernels: Kernel) -> Roof:
    (found,) = roofs(capture(*kernels))
    return found


def test_a_product_is_bound_by_what_takes_longer() -> None:
    by_operations, by_bytes = only(kernel()), only(kernel(bytes=30_000_000))
    assert (by_operations.bound, by_operations.limit_ns, by_operations.reached) == ("compute", 2 * MILLI, 0.5)
    assert (by_operations.intensity, by_operations.flops_per_s, by_operations.bytes_per_s) == (400.0, 5e11, 1.25e9)
    assert (by_operations.peak_flops_per_s, by_operations.peak_bytes_per_s) == (1e12, 1e10)
    assert (by_bytes.bound, by_bytes.limit_ns, by_bytes.reached) == ("memory", 3 * MILLI, 0.75)
    doubles = only(kernel(node="mm64", nodes=("mm64",)))
    assert (doubles.dtype, doubles.peak_flops_per_s, doubles.limit_ns) == ("float64", 5e11, 2 * MILLI)
    assert only(kernel("FusedGemm", nodes=("mm", "gelu"))).flops == 2 * GIGA, "with an activation"


def test_what_is_not_counted_is_bound_by_memory_alone() -> None:
    found = only(kernel("Gelu", node="gelu", nodes=("gelu",)))
    assert (found.flops, found.intensity, found.flops_per_s) == (None, None, None)
    assert (found.bound, found.limit_ns, found.reached) == ("memory", MILLI // 2, 0.125)


def test_what_cannot_be_judged_is_absent() -> None:
    assert roofs(capture(kernel(), peaks={})) == ()
    assert roofs(capture(kernel(provider="CUDAExecutionProvider"))) == ()
    assert roofs(capture(kernel(mean_ns=0))) == ()
    assert roofs(capture(kernel(node="gelu", nodes=("gelu",)))) == ()  # a product whose operations nobody counted
    assert roofs(capture(kernel("Gelu", node="gelu", nodes=("gelu",), bytes=None))) == ()
    assert roofs(capture(kernel(session_id="s9"))) == ()


@pytest.mark.parametrize(("times", "worth"), [((50_000,), True), ((49_999,) * 20, False), ((49_999,) * 21, True), ((), False)])
def test_peaks_are_measured_where_time_is_spent(times: tuple[int, ...], worth: bool) -> None:  # noqa: FBT001
    assert is_worth_comparing([kernel(mean_ns=ns) for ns in times]) is worth
    assert not is_worth_comparing([kernel(mean_ns=ns, provider="CUDAExecutionProvider") for ns in times])
