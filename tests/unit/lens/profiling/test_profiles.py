"""Reading a profile: own times, runs that count, why kernels are on the CPU, and how much the profiler makes a run longer."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser

from ortlens import _ort
from ortlens._ort import ListedKernel
from ortlens.lens.observing.time_budget import FEWEST, MOST, STABLE_S, Repeats
from ortlens.lens.profiling.kernel_records import divided, with_copies, with_refusals
from ortlens.lens.profiling.profiles import ProfiledKernel, ProfileIncomplete, measure_cost, quiet_mean, read_profile
from ortlens.trace.records import Kernel


def run(ts: int, dur: int = 90) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": dur}


def kernel(name: str, ts: int, dur: int, **args: object) -> dict[str, Any]:
    facts = {"op_name": name.title(), "provider": "CPUExecutionProvider", "activation_size": "8", "parameter_size": "4", "output_size": "4"}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": {**facts, **args}}


def written(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "profile.json"
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n", encoding="utf-8")  # as ONNX Runtime does
    return path


def test_runs_that_do_not_count_are_left_out(tmp_path: Path) -> None:
    path = written(
        tmp_path, kernel("a", 1, 500), run(0), kernel("a", 101, 10), run(100), kernel("a", 201, 12), kernel("b", 220, 3), run(200)
    )
    profile = read_profile(path, [None, 0, 0], {})
    first, second = profile.kernels
    assert (first.name, first.op_type, first.provider, first.calls, first.bytes) == ("a", "A", "CPUExecutionProvider", 2, 16)
    assert first.total_ns == 20_000, "the faster half of two runs stands for both"
    assert second.total_ns == 0, "a kernel that only the slower half ran"


def test_a_lookup_reads_of_its_table_what_it_writes(tmp_path: Path) -> None:
    sizes = {"activation_size": "1024", "parameter_size": "1048576", "output_size": "131072"}
    shapes = {"input_type_shape": [{"float": [1024, 256]}, {"int64": [128]}]}
    unknown = {"input_type_shape": [{"float8e4m3fn": [1024, 256]}, {"int64": [128]}]}
    whole, part, other = (
        read_profile(written(tmp_path, kernel("a", 1, 5, op_name=op, **sizes, **about), run(0)), [0], {}).kernels[0].bytes
        for op, about in (("Add", shapes), ("Gather", shapes), ("Gather", unknown))
    )
    assert (whole, part) == (1024 + 1048576 + 131072, 1024 + 2 * 131072)
    assert other is not None
    assert other >= 1024 + 2 * 131072, "a table of an unknown type counts as a whole"


def test_control_flow_has_its_own_time_alone(tmp_path: Path) -> None:
    events = [kernel("inner", 10, 20), kernel("deep", 40, 5), kernel("branch", 35, 15), kernel("loop", 5, 80), run(0)]
    bodies = {"inner": "loop", "branch": "loop", "deep": "branch"}
    times = {one.name: one.total_ns for one in read_profile(written(tmp_path, *events), [0], bodies).kernels}
    assert times == {"inner": 20_000, "deep": 5_000, "branch": 10_000, "loop": 45_000}
    times = {one.name: one.total_ns for one in read_profile(written(tmp_path, *events), [0], bodies, 2_000).kernels}
    assert (times["loop"], times["branch"]) == (41_000, 8_000), "the profiler's work on kernels of the body is no work of the loop"


@pytest.mark.parametrize(
    ("durations", "calls", "total_ns"),
    [([10] * 3 + [900] + [10] * 4, [0] * 8, 80_000), ([10, 10, 50, 50], [0, 0, 1, 1], 120_000), ([9] * 7, [0] * 7, 63_000)],
    ids=["an interrupted run does not count as slow", "calls of different inputs add up", "too few repeats for a band"],
)
def test_the_faster_half_of_each_call_counts(durations: list[int], calls: list[int | None], total_ns: int, tmp_path: Path) -> None:
    events = [event for at, dur in enumerate(durations) for event in (kernel("a", 1000 * at + 1, dur), run(1000 * at))]
    (only,) = read_profile(written(tmp_path, *events), calls, {}).kernels
    assert only.total_ns == total_ns
    assert ((only.low_ns, only.high_ns) == (None, None)) is (len(durations) < 8)


def test_a_profile_that_ends_early_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProfileIncomplete, match="1 of 2 runs"):
        read_profile(written(tmp_path, kernel("a", 1, 5), run(0)), [0, 0], {})


def test_memory_is_what_was_held_beyond_packed_weights(tmp_path: Path) -> None:
    def held(name: str, ts: int, now: int, delta: int, peak: int) -> dict[str, Any]:
        facts = {"mem_bytes_in_use": now, "mem_in_use_delta": delta, "mem_in_use_peak": peak}
        return kernel(name, ts, 1, **{key: str(value) for key, value in facts.items()})

    profile = read_profile(written(tmp_path, held("a", 1, 1100, 100, 1100), held("b", 2, 1300, 200, 1400), run(0)), [0], {})
    assert profile.arena_bytes == 400
    profile = read_profile(written(tmp_path, kernel("a", 1, 1, activation_size=None), run(0)), [0], {})
    assert (profile.arena_bytes, profile.kernels[0].bytes) == (None, None), "without an arena"


def test_the_profiler_costs_something() -> None:
    cost = measure_cost()
    assert 100 < cost.in_event < 50_000_000, "in nanoseconds, also on a busy machine"
    assert cost.after_event >= 0


def test_the_band_of_a_kernel_is_that_of_stretches_of_the_repeats(tmp_path: Path) -> None:
    durations = [20] * 5 + [30] * 5 + [20, 20, 20, 500, 500] + [26] * 5  # one stretch is slower; what interrupts single runs is no noise
    events = [event for at, dur in enumerate(durations) for event in (kernel("a", 1000 * at + 1, dur), run(1000 * at))]
    (only,) = read_profile(written(tmp_path, *events), [0] * 20, {}).kernels
    assert only.total_ns == 424_000
    assert (only.low_ns, only.high_ns) == (20 * 19_000, 20 * 31_000), "with a microsecond more on both sides"


def test_a_mean_of_runs_is_that_of_the_faster_half() -> None:
    assert [quiet_mean(each) for each in ([3], [3, 1, 100, 2], [1, 2, 900])] == [3, 1.5, 1.5]


@pytest.mark.parametrize(
    ("asked", "run_s", "expected"),
    [(None, 0.001, MOST), (None, STABLE_S / 10, 11), (None, STABLE_S, FEWEST), (1, STABLE_S, 1), (60, STABLE_S, 60)],
)
def test_long_runs_are_repeated_less_often_unless_asked(
    asked: int | None, run_s: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, done = 100.0, 0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    repeats = Repeats(asked)
    while not repeats.are_enough(done):
        done, now = done + 1, now + run_s
    assert done == expected


CPU, GPU = "CPUExecutionProvider", "CUDAExecutionProvider"
MODEL = parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) {
  a = Relu(x)
  b = MemcpyToHost(a)
  c = TopK(b)
  d = MemcpyFromHost(c)
  e = Sin(d)
  f = Cast(e)
  y = Exp(f)
}""")
for node in MODEL.graph.node:
    node.name = node.op_type
TABLE = (
    ListedKernel("", "TopK", (10, 20), {"T": ("float", "double"), "I": ("int64",)}),
    ListedKernel("", "Sin", (7, 12), {"T": ("float",)}),
    ListedKernel("", "Cast", (13, 20), {"T": ("float",)}),
)


def rows() -> tuple[list[Kernel], list[ProfiledKernel]]:
    placed = {"Relu": GPU, "MemcpyToHost": GPU, "TopK": CPU, "MemcpyFromHost": GPU, "Sin": CPU, "Cast": CPU, "Exp": CPU}
    types = {"TopK": ("float16", "int64")}
    times = [
        ProfiledKernel(name=name, op_type=name, provider=at, calls=1, total_ns=1.0, bytes=0, types=types.get(name, ("float",)))
        for name, at in placed.items()
    ]
    return [Kernel(session_id="s0", kernel=name, op_type=name, provider=at, mean_ns=100) for name, at in placed.items()], times


@pytest.mark.parametrize(
    ("table", "causes"),
    [
        (TABLE, {"TopK": ("dtype", ("float16",)), "Sin": ("opset", ("7 to 12", "18")), "Cast": ("chosen", ()), "Exp": ("no_kernel", ())}),
        ((), dict.fromkeys(("TopK", "Sin", "Cast", "Exp"), ("compiles", ()))),
        (None, dict.fromkeys(("TopK", "Sin", "Cast", "Exp"), ("unlisted", ()))),
    ],
)
def test_kernels_on_the_cpu_have_the_cause(
    table: tuple[ListedKernel, ...] | None, causes: dict[str, tuple[str, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ort, "listed_kernels", lambda _: table)
    found = with_refusals(*rows(), GPU, MODEL)
    assert {row.kernel: (row.refusal, row.refused) for row in found if row.refusal} == causes
    assert all(row.refusal is None for row in with_refusals(*rows(), CPU, MODEL))
    without = {row.refusal for row in with_refusals(*rows(), GPU, None)}
    assert without == {None, *(() if table else (cause for cause, _ in causes.values()))}, "without the model nothing is read from a table"


def test_copies_are_charged_to_the_kernel_next_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ort, "listed_kernels", lambda _: TABLE)
    found = {row.kernel: row.copies_ns for row in with_copies(with_refusals(*rows(), GPU, MODEL), MODEL)}
    assert (found["TopK"], found["Sin"], found["Exp"], found["Relu"]) == (200, 100, 0, None)


KERNELS = st.lists(st.tuples(st.floats(0, 1e9), st.integers(1, 1000)), min_size=1, max_size=30)


@given(kernels=KERNELS, total=st.integers(0, 10**12), cost=st.floats(0, 1e5))
def test_times_are_never_negative_and_add_up_to_the_unprofiled_total(kernels: list[tuple[float, int]], total: int, cost: float) -> None:
    times = divided([time for time, _ in kernels], [calls for _, calls in kernels], total, cost)
    assert len(times) == len(kernels)
    assert sum(times) == total
    assert min(times) >= 0


def test_a_known_cost_is_taken_from_each_call() -> None:
    # A large kernel of 600 us and thirty of 0.3 us, each told 1.8 us more than it takes.
    told = [601_800.0, *[2_100.0] * 30]
    times = divided(told, [1] * 31, 609_000, 1_800)
    assert times[0] == pytest.approx(600_000, rel=0.001)
    assert sum(times[1:]) == pytest.approx(9_000, rel=0.03)


def test_a_cost_that_is_not_known_shows_as_excess_and_is_taken_from_each_call() -> None:
    times = divided([602_000.0, *[2_000.0] * 30], [1] * 31, 610_000)
    in_proportion = 610_000 * 602 / 662
    assert times[0] > in_proportion + 40_000, "small kernels took what is the profiler's"
    assert sum(times) == 610_000


def test_a_kernel_that_ran_keeps_a_tenth_of_its_time() -> None:
    times = divided([1_000.0, 1_000_000.0], [1, 1], 1_000_100, 5_000)
    assert times[0] == pytest.approx(100, rel=0.02)


def test_what_lies_between_kernels_goes_to_all_in_proportion() -> None:
    assert divided([100.0, 300.0], [1, 1], 800) == [200, 600]
    assert divided([0.0, 0.0], [1, 3], 400) == [100, 300], "by their calls"
    assert divided([], [], 1000) == []
