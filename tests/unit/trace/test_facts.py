"""Figures as named texts, and numbers that cannot be."""

from dataclasses import replace
from typing import Any

import pytest

from ortlens.analysis.answers.verdict import speed_of
from ortlens.analysis.roofline import roofs, usable_cores
from ortlens.analysis.speed import call_pace, spread_of
from ortlens.trace.records import Capture, Figures, MachinePeak, SideResult
from ortlens.trace.schema import facts_of
from tests.facts import figures_from_facts
from tests.unit.views.sample_captures import SAMPLES

FACTS = {
    "version_torch": "2.13",
    "dry_run": "yes",
    "rank": "0",
    "cpu_bfloat16": "no",
    "option_upcast": "bfloat16, float16",
    "ledger_spread": "1.08",
    "uncompiled_ns": "20366",
    "peak_flops_float32_threads_2": "2.587e+11",
    "peak_bytes_threads_2": "4.053e+10",
    "bench_eager": "call_ns=100000 ratio=1.000 low=1.000 high=1.000 reference",
    "bench_ortlens": "call_ns=50000 ratio=0.500 low=0.450 high=0.550 faster",
    "bench_inductor": "unmeasured: no compiler",
}
FIGURES = Figures(
    dry_run=True,
    rank=0,
    cpu_bfloat16=False,
    option_upcast=("bfloat16", "float16"),
    ledger_spread=1.08,
    uncompiled_ns=20366,
    peaks=(MachinePeak(dtype="float32", threads=2, per_s=2.587e11), MachinePeak(threads=2, per_s=4.053e10)),
    ways=(
        SideResult(way="eager", verdict="reference", call_ns=100_000, ratio=1.0, ratio_low=1.0, ratio_high=1.0),
        SideResult(way="ortlens", verdict="faster", call_ns=50_000, ratio=0.5, ratio_low=0.45, ratio_high=0.55),
        SideResult(way="inductor", verdict="unmeasured", note="no compiler"),
    ),
)


def test_facts_are_figures_and_back() -> None:
    figures, environment = figures_from_facts(FACTS)
    assert (figures, environment) == (FIGURES, {"version_torch": "2.13"})
    assert facts_of(Capture(environment=environment, figures=figures)) == FACTS


@pytest.mark.parametrize("number", [-1, 0, -(2**63), 2**63 - 1, float("nan"), float("inf"), -float("inf")])
def test_numbers_that_cannot_be_are_no_answers(number: float) -> None:
    """A capture of this version may hold any number of the right type."""
    names = [
        name
        for name, kind in Figures.__annotations__.items()
        if kind.startswith("float" if isinstance(number, float) else ("int", "float"))
    ]
    peaks = tuple(MachinePeak(dtype=dtype, threads=threads, per_s=number) for dtype in ("float32", None) for threads in (1, 2))
    way = SideResult(way="ortlens", verdict="faster", call_ns=5, ratio=number, ratio_low=number, ratio_high=number)
    numbers: dict[str, Any] = dict.fromkeys(names, number)
    figures = Figures(**numbers, peaks=peaks, ways=(replace(way, way="eager"), way))
    for sample in (sample for name, sample in SAMPLES.items() if name != "huge"):
        capture = replace(sample, figures=figures)
        assert spread_of(capture) is None or spread_of(capture) == number == 2**63 - 1
        assert call_pace(capture) is None
        assert usable_cores(capture) in {None, number}
        assert (usable_cores(capture) or 1) > 0
        assert speed_of(capture).verdict in {"unmeasured", "faster"}
        roofs(capture)
        assert facts_of(capture)
