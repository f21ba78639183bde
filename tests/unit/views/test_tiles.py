"""The verdict in four tiles: what was measured says so, what was not says that, and what is wrong cannot be overlooked."""

from dataclasses import replace

import pytest

from ortlens.analysis.index import verdicts_by_value
from ortlens.analysis.speed import call_pace, loss_of_call
from ortlens.trace.records import Capture, Numeric
from ortlens.trace.schema import facts_of
from ortlens.views.tiles import Tile, tiles_of
from ortlens.views.time_sentences import against_sentence
from tests.facts import head
from tests.recorded import recorded
from tests.unit.views.sample_captures import SAMPLES

SPLIT, DRY, TWELVE, LLAMA, PIECES = map(recorded, ("split", "dry", "twelve", "llama", "pieces"))


def tiles(capture: Capture) -> dict[str, Tile]:
    return {tile.name: tile for tile in tiles_of(capture)}


def timed(ns: int, **facts: str) -> Capture:
    return replace(SPLIT, **head({**facts_of(SPLIT), "uncompiled_ns": str(ns), **facts}))


@pytest.mark.parametrize(
    ("eager_ns", "state", "word"),
    [
        (1_000_000, "good", "6.0 times as fast as eager"),
        (170_000, "plain", "about as fast as eager"),
        (20_366, "caution", "8.2 times as long as eager"),
    ],
)
def test_speed_is_against_eager_in_turns(eager_ns: int, state: str, word: str) -> None:
    speed = tiles(timed(eager_ns))["speed"]
    assert (speed.state, speed.word) == (state, word)
    assert speed.detail.endswith("in turns")


def test_a_busy_machine_is_told_beside_the_speed() -> None:
    detail = tiles(timed(20_366, ledger_spread="2.5"))["speed"].detail
    assert detail.endswith("in turns; median call 2.5 times the shortest; machine was busy")
    assert "shortest" not in tiles(timed(20_366, ledger_spread="1.1"))["speed"].detail


def test_where_passes_disagree_no_side_is_said() -> None:
    capture = timed(170_000, turns_low="0.7", turns_high="1.6")
    speed = tiles(capture)["speed"]
    assert (speed.state, speed.word) == ("unknown", "uncertain")
    assert not any("times as fast" in words or "as long as" in words for words in (speed.detail, against_sentence(capture)))
    assert "0.70 to 1.60" in speed.detail
    assert "0.70 to 1.60" in against_sentence(capture)
    assert loss_of_call(call_pace(capture)) is None


def test_where_passes_agree_about_the_side_alone_it_is_said_with_a_range_around_the_times() -> None:
    capture = timed(336_000, turns_low="0.12", turns_high="0.37")
    speed = tiles(capture)["speed"]
    assert (speed.state, speed.word) == ("good", "faster than eager")
    assert "by how much is uncertain: 0.12 to 0.50 times as long" in speed.detail, "the times of the call are half of those"
    assert against_sentence(capture).startswith("faster than eager: 336 µs there")


def test_a_speed_for_which_threads_waited_is_uncertain() -> None:
    crowd = {"ledger_others": "1.05", "ledger_idle": "0.02"}
    speed = tiles(timed(1_000_000, torch_threads="2", **crowd))["speed"]
    assert (speed.state, speed.word) == ("unknown", "uncertain")
    assert "times as fast" not in speed.detail
    assert speed.detail.endswith("threads waited for cores that other processes had; try OMP_NUM_THREADS=1")
    alone = tiles(timed(1_000_000, torch_threads="1", **crowd))["speed"]
    assert (alone.state, alone.detail.endswith("machine was busy")) == ("good", True)
    idle = tiles(timed(1_000_000, torch_threads="2", ledger_others="1.05", ledger_idle="0.9"))["speed"]
    assert (idle.state, "busy" in idle.detail) == ("good", False)


@pytest.mark.parametrize(
    ("facts", "detail", "again"),
    [
        ({"ledger_made": "6", "ledger_compiling": "6"}, "6 calls were made, and each compiled code", False),
        ({"ledger_made": "1", "ledger_compiling": "0", "ledger_creating": "1"}, "1 call was made, and it created a session", True),
        (
            {"ledger_made": "2", "ledger_compiling": "1", "ledger_creating": "1"},
            "2 calls were made, and each compiled code or created a session",
            True,
        ),
        ({"ledger_made": "3", "ledger_creating": "2"}, "3 calls were made, and each that was timed created a session", True),
        ({"ledger_compiling": "5"}, "5 calls were made, and each compiled code", False),  # a capture of an earlier version
    ],
)
def test_calls_that_all_prepare_something_are_said(facts: dict[str, str], detail: str, *, again: bool) -> None:
    logged = tuple(row for row in SPLIT.ledger if row.part in ("bind", "run", "output"))
    speed = tiles(replace(SPLIT, ledger=logged, **head(facts)))["speed"]
    assert (speed.word, speed.detail) == ("not measured", detail)
    assert (speed.state, speed.call) == (("unknown", "lens = ortlens.explain(model)(x)") if again else ("caution", ""))
    measured = tiles(timed(1_000_000, **facts))["speed"]
    assert "calls were made" not in measured.detail


def test_bench_brings_intervals_and_inductor() -> None:
    facts = {
        "bench_eager": "call_ns=1000000 ratio=1.000 low=1.000 high=1.000 reference",
        "bench_ortlens": "call_ns=500000 ratio=0.500 low=0.480 high=0.520 faster",
        "bench_inductor": "call_ns=800000 ratio=0.800 low=0.790 high=0.810 faster",
    }
    speed = tiles(replace(SAMPLES["whole"], **head(facts)))["speed"]
    assert speed.word == "2.0 times as fast as eager"
    assert speed.detail == "500 µs, eager 1.00 ms; in turns; 99 % interval 0.48x to 0.52x of eager; inductor: 1.2 times as fast as eager"
    damaged = replace(SAMPLES["whole"], **head(facts | {"bench_ortlens": "call_ns=1e9 <script>"}))
    assert tiles(damaged)["speed"].word == "not measured"


def test_a_dry_run_claims_nothing() -> None:
    for capture in (DRY, LLAMA):
        found = tiles(capture)
        assert {tile.state for tile in found.values()} <= {"unknown", "caution"}
        assert (found["speed"].word, found["time"].word, found["correct"].word) == ("not measured", "nothing ran", "not checked")
        assert found["time"].share is None
        assert not any(tile.call for tile in found.values())
    assert tiles(LLAMA)["splits"].word == "planned: 1 partition"
    assert tiles(DRY)["splits"].word == "unknown: cut short"
    assert "captures/record.py:88" in tiles(DRY)["splits"].detail, "the line where it ended"


def test_a_wrong_value_turns_the_tile_red_and_is_what_a_click_selects() -> None:
    row = next(item for item in TWELVE.numerics if item.partition_id)
    wrong = replace(row, ok=False, first_divergence=True, max_abs=1.0, max_rel=0.5, atol=1e-3, rtol=1e-3)
    found = tiles(replace(TWELVE, numerics=tuple(wrong if item is row else item for item in TWELVE.numerics)))["correct"]
    graph = next(item.graph_id for item in TWELVE.partitions if item.partition_id == row.partition_id)
    assert (found.state, found.sign, found.word, found.selected) == ("bad", "✗", "differs", f"node:{graph}/{row.node}")
    assert [
        number for number in (f"1 of {len(verdicts_by_value(TWELVE))}", "1.0e+00", "5.0e-01", "500 times") if number not in found.detail
    ] == []
    call = Numeric(partition_id=None, node="result[0]", ok=False, scope="call")
    assert tiles(replace(TWELVE, numerics=(*TWELVE.numerics, call)))["correct"].state == "bad"


def test_what_was_compared_in_part_is_not_green() -> None:
    assert tiles(TWELVE)["correct"].state == "good"
    assert (tiles(PIECES)["correct"].state, tiles(PIECES)["correct"].word) == ("unknown", "verified in part")
    without = replace(TWELVE, numerics=tuple(item for item in TWELVE.numerics if item.partition_id != "p0"))
    assert tiles(without)["correct"].state == "unknown"


@pytest.mark.parametrize("name", ["empty", "foreign", "no_compute", "nothing_runs", "hostile", "huge"])
def test_there_are_always_four(name: str) -> None:
    found = {tile.name: tile for tile in tiles_of(SAMPLES[name])}
    assert list(found) == ["speed", "time", "splits", "correct"]
    assert all(tile.word and tile.detail for tile in found.values())
    assert found["correct"].state == "unknown"
