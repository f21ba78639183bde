"""The table of sides, and the conclusion of `ortlens bench`."""

from dataclasses import replace

from ortlens.cli.studies import conclusion
from ortlens.studies.engine import LocalSide, measured, sides_text, start
from ortlens.trace.records import SideResult

EAGER = SideResult(way="eager", verdict="reference", call_ns=100_000, ratio=1.0, ratio_low=1.0, ratio_high=1.0, first_ns=5, rounds=20)
FAST = SideResult(
    way="ortlens", verdict="faster", call_ns=50_000, ratio=0.5, ratio_low=0.45, ratio_high=0.55, first_ns=10**9, max_abs=1e-7, rounds=20
)
FAILED = SideResult(way="inductor", verdict="unmeasured", note="no compiler")


def test_a_side_that_fails_in_some_round_is_a_row_and_the_next_one_the_base() -> None:
    left = iter(range(3 + 30))

    def failing() -> int:
        if next(left) < 10:
            return 1
        raise RuntimeError("no more\nand a trace")

    sides = [LocalSide(name="first", make=lambda: failing), LocalSide(name="second", make=lambda: lambda: 1)]
    start(sides)
    first, second = measured(sides, most=10, is_over=lambda: False)
    assert (first.status, first.note, first.verdict) == ("failed", "RuntimeError: no more", "unmeasured")
    assert (second.status, second.verdict, second.rounds) == ("ok", "reference", 10)
    assert measured(sides[:1], most=10, is_over=lambda: False) == (first,), "where no side runs, its reason is left"


def test_the_table_and_its_conclusion() -> None:
    text = sides_text((EAGER, FAST, FAILED)).splitlines()
    assert text[0].split() == ["way", "call", "ratio", "ratio_low", "ratio_high", "verdict", "max_abs", "first"]
    assert text[3].split() == ["ortlens", "50.0", "µs", "0.5", "0.45", "0.55", "faster", "1e-07", "1.00", "s"]
    assert text[4:] == ["inductor: not measured: no compiler"]
    assert conclusion((EAGER, FAST, FAILED)) == "Fastest: ortlens, 0.5x of eager."
    near = replace(FAST, way="exported", ratio=0.53, ratio_low=0.5)
    assert conclusion((EAGER, near, FAST)) == "Fastest: ortlens, 0.5x of eager; exported cannot be told apart from it."
    assert conclusion((EAGER, replace(FAST, verdict="same"))) == "No way is faster than eager outside the noise."
    assert " inf " in sides_text((EAGER, replace(FAST, max_abs=float("inf")))), "other shapes or NaN"
