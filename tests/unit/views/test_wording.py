from collections.abc import Callable
from typing import get_args

import pytest

from ortlens.analysis.problems.catalogue import SENTENCES
from ortlens.analysis.timing import PHASES
from ortlens.trace.records import ReasonCode
from ortlens.units import counted, percent, size_from_bytes, time_from_ns, times
from ortlens.views.wording import (
    PHASE_WORDS,
    REASON_WORDS,
    ascii_from_text,
    clipped,
    first_sentence,
    function,
    guard,
    place,
    visible,
)

Written = dict[Callable[..., str], dict[tuple[object, ...], str]]


def test_every_reason_code_and_phase_has_words() -> None:
    assert set(REASON_WORDS) == set(get_args(ReasonCode))
    assert all(SENTENCES[code].count("{target}") == 1 for code in get_args(ReasonCode))
    assert set(PHASE_WORDS) == {*PHASES, "other"}


NUMBERS: Written = {
    time_from_ns: {
        (0,): "0 ns",
        (812,): "812 ns",
        (1000,): "1.00 µs",
        (12_345,): "12.3 µs",
        (999_400,): "999 µs",
        (999_600,): "1.00 ms",
        (2_104_000_000,): "2.10 s",
        (123_456_000_000_000,): "123,456 s",
    },
    size_from_bytes: {(0,): "0 B", (1023,): "1023 B", (1024,): "1.00 KiB", (5 << 20,): "5.00 MiB", (3 << 30,): "3.00 GiB"},
    times: {(1.44,): "1.4 times", (9.94,): "9.9 times", (9.96,): "10 times", (1458.2,): "1,458 times"},
    percent: {
        (0.0,): "0 %",
        (1.0,): "100 %",
        (0.976,): "97.6 %",
        (0.5,): "50.0 %",
        (0.998,): "99.8 %",
        (0.0015,): "0.1 %",
        (0.99999,): ">99.9 %",
        (0.9995,): ">99.9 %",
        (0.0005,): "<0.1 %",
        (0.00001,): "<0.1 %",  # neither all nor nothing
    },
    counted: {(0, "graph"): "0 graphs", (1, "graph"): "1 graph", (10_000, "graph"): "10,000 graphs", (2, "pass", "passes"): "2 passes"},
}
NAMES: Written = {
    place: {
        ("/site-packages/transformers/models/bert/modeling_bert.py", 210): "bert/modeling_bert.py:210",
        ("C:\\work\\nets\\net.py", 3): "nets/net.py:3",
        ("net.py", None): "net.py",
        ("/net.py", 1): "net.py:1",
        (None, 5): "unknown line",
        ("", 5): "unknown line",
        (None, None, "layers.1 (GELU)"): "module layers.1 (GELU)",
        ("/a/b.py", 3, "layers.1 (GELU)"): "a/b.py:3",
        ("a" * 500 + "/" + "b" * 40 + ".py", 7): "…aaa/" + "b" * 40 + ".py:7",
    },
    function: {
        ("forward",): "forward",
        (None,): "unnamed function",
        ("torch_dynamo_resume_in_torch_dynamo_resume_in_f_at_7_at_9",): "rest of rest of f after line 7 after line 9",
    },
    guard: {
        ("L['x'] == 3   # if x:  # net.py:4 in f",): "L['x'] == 3",
        ("  # only a comment",): "# only a comment",
    },
}
TEXTS: Written = {
    first_sentence: {
        ("Always clamp (e.g. large values). Use torch.clamp.",): "Always clamp (e.g. large values).",
        (" One only ",): "One only",
        ("",): "",
    },
    visible: {
        ("a\nb\tc\r",): "a b c ",
        ("\x1b[31m",): "\\u001b[31m",
        ("\u202egnp",): "\\u202egnp",
        ("\\u202egnp",): "\\u202egnp",
        ("\u200b",): "\\u200b",
        ("\ud800",): "\\ud800",
        ("\U000e0001",): "\\U000e0001",
        ("naïve 注意",): "naïve 注意",
    },
    clipped: {("abcdef", 6): "abcdef", ("abcdefg", 6): "abcde…", ("\x00\x00", 6): "\\u000…"},
    ascii_from_text: {("█░ 3 µs…",): "#. 3 us~", ("注",): "\\u6ce8"},
}


@pytest.mark.parametrize("table", [NUMBERS, NAMES, TEXTS], ids=["numbers", "names", "texts"])
def test_what_is_written(table: Written) -> None:
    for write, cases in table.items():
        assert {given: write(*given) for given in cases} == cases
