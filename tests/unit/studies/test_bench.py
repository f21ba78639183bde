"""The table of `ortlens bench` and its conclusion."""

from __future__ import annotations

from dataclasses import replace

from ortlens.cli.studies import conclusion, ways_text
from ortlens.trace.records import RunVariant

EAGER = RunVariant(way="eager", verdict="reference", call_ns=100_000, ratio=1.0, ratio_low=1.0, ratio_high=1.0, first_ns=5, rounds=20)
FAST = RunVariant(
    way="ortlens", verdict="faster", call_ns=50_000, ratio=0.5, ratio_low=0.45, ratio_high=0.55, first_ns=10**9, max_abs=1e-7, rounds=20
)
FAILED = RunVariant(way="inductor", verdict="unmeasured", note="no compiler")


def test_the_table_and_its_conclusion() -> None:
    text = ways_text((EAGER, FAST, FAILED)).splitlines()
    assert text[0].split() == ["way", "call", "ratio", "ratio_low", "ratio_high", "first", "max_abs", "verdict"]
    assert text[3].split() == ["ortlens", "50.0", "µs", "0.5", "0.45", "0.55", "1.00", "s", "1e-07", "faster"]
    assert text[4:] == ["inductor: not measured: no compiler", "", "Fastest: ortlens, 0.5x of eager."]
    near = replace(FAST, way="exported", ratio=0.53, ratio_low=0.5)
    assert conclusion((EAGER, near, FAST)) == "Fastest: ortlens, 0.5x of eager; exported cannot be told apart from it."
    assert conclusion((EAGER, replace(FAST, verdict="same"))) == "No way is faster than eager outside the noise."
    assert " inf " in ways_text((EAGER, replace(FAST, max_abs=float("inf")))), "other shapes or NaN"
