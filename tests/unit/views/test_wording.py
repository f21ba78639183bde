from __future__ import annotations

from typing import get_args

import pytest

from ortlens.analysis.timing import PHASES
from ortlens.trace.records import ReasonCode
from ortlens.units import counted, percent, size_from_bytes, time_from_ns, times
from ortlens.views.wording import (
    PHASE_WORDS,
    REASON_WORDS,
    REMEDY_WORDS,
    ascii_from_text,
    clipped,
    first_sentence,
    function,
    guard,
    place,
    remedy,
    visible,
)


def test_every_reason_code_and_phase_has_words() -> None:
    assert set(REASON_WORDS) == set(REMEDY_WORDS) == set(get_args(ReasonCode))
    assert all(words.count("{}") == 1 for words in REMEDY_WORDS.values())
    assert set(PHASE_WORDS) == {*PHASES, "other"}


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (812, "812 ns"),
        (1000, "1.00 µs"),
        (12_345, "12.3 µs"),
        (999_400, "999 µs"),
        (999_600, "1.00 ms"),
        (2_104_000_000, "2.10 s"),
        (123_456_000_000_000, "123,456 s"),
    ],
)
def test_time_from_ns(nanoseconds: int, text: str) -> None:
    assert time_from_ns(nanoseconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (5 << 20, "5.00 MiB"), (3 << 30, "3.00 GiB")])
def test_size_from_bytes(size: int, text: str) -> None:
    assert size_from_bytes(size) == text


@pytest.mark.parametrize(("ratio", "text"), [(1.44, "1.4 times"), (9.94, "9.9 times"), (9.96, "10 times"), (1458.2, "1,458 times")])
def test_times(ratio: float, text: str) -> None:
    assert times(ratio) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        *((0.0, "0 %"), (1.0, "100 %"), (0.976, "97.6 %"), (0.5, "50.0 %")),
        *((0.99999, ">99.9 %"), (0.9995, ">99.9 %"), (0.998, "99.8 %"), (0.0005, "<0.1 %"), (0.0015, "0.1 %"), (0.00001, "<0.1 %")),
    ],
)
def test_percent_rounds_neither_to_all_nor_to_nothing(share: float, text: str) -> None:
    assert percent(share) == text


def test_counted() -> None:
    assert [counted(number, "graph") for number in (0, 1, 2, 10_000)] == ["0 graphs", "1 graph", "2 graphs", "10,000 graphs"]
    assert counted(2, "pass", "passes") == "2 passes"


@pytest.mark.parametrize(
    ("file", "line", "text"),
    [
        ("/site-packages/transformers/models/bert/modeling_bert.py", 210, "bert/modeling_bert.py:210"),
        ("C:\\work\\nets\\net.py", 3, "nets/net.py:3"),
        ("net.py", None, "net.py"),
        ("/net.py", 1, "net.py:1"),
        (None, 5, "unknown line"),
        ("", 5, "unknown line"),
    ],
)
def test_place(file: str | None, line: int | None, text: str) -> None:
    assert place(file, line) == text


def test_place_names_the_module_where_the_line_is_unknown() -> None:
    assert place(None, None, "layers.1 (GELU)") == "module layers.1 (GELU)"
    assert place("/a/b.py", 3, "layers.1 (GELU)") == "a/b.py:3"


def test_place_keeps_the_end_of_a_long_path() -> None:
    short = place("a" * 500 + "/" + "b" * 40 + ".py", 7)
    assert short.startswith("…")
    assert short.endswith("b.py:7")
    assert len(short) == 50


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("forward", "forward"),
        (None, "unnamed function"),
        ("torch_dynamo_resume_in_forward_at_71", "rest of forward after line 71"),
        ("torch_dynamo_resume_in_torch_dynamo_resume_in_f_at_7_at_9", "rest of rest of f after line 7 after line 9"),
    ],
)
def test_function(name: str | None, text: str) -> None:
    assert function(name) == text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Always clamp (e.g. large values). Use torch.clamp.", "Always clamp (e.g. large values)."),
        (" One only ", "One only"),
        ("", ""),
    ],
)
def test_first_sentence(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


def test_guard_drops_the_comment_of_dynamo() -> None:
    assert guard("L['x'] == 3   # if x:  # net.py:4 in f") == "L['x'] == 3"
    assert guard("  # only a comment") == "# only a comment"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc\r", "a b c "),
        ("\x1b[31m", "\\u001b[31m"),
        ("\u202egnp", "\\u202egnp"),
        ("\u200b", "\\u200b"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
        ("naïve 注意", "naïve 注意"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


def test_clipped() -> None:
    assert clipped("abcdef", 6) == "abcdef"
    assert clipped("abcdefg", 6) == "abcde…"
    assert clipped("\x00\x00", 6) == "\\u000…"


def test_ascii_from_text_keeps_the_width_of_our_own_marks() -> None:
    assert ascii_from_text("█░ 3 µs…") == "#. 3 us~"
    assert ascii_from_text("注") == "\\u6ce8"


def test_what_draws_from_probabilities_of_the_model_is_not_to_be_drawn_outside() -> None:
    said = remedy("side_effect", "aten.multinomial.default draws random numbers", "aten.multinomial.default")
    assert "exponential noise" in said
    assert "outside" not in said
    assert "uniform random numbers" in remedy("side_effect", "aten.bernoulli.default draws random numbers", "aten.bernoulli.default")


def test_a_check_that_pytorch_adds_is_said_to_be_one() -> None:
    assert "PyTorch adds such checks" in remedy("side_effect", "aten._assert_scalar.default has an effect", "aten._assert_scalar.default")
    assert "PyTorch adds" not in remedy("side_effect", "mine::log has an effect", "mine.log.default")


@pytest.mark.parametrize(
    ("target", "ends"), [("aten.native_dropout.default", True), ("aten.bernoulli.p", True), ("aten.randn_like.default", False)]
)
def test_only_dropout_is_advised_to_go_by_eval(target: str, ends: bool) -> None:  # noqa: FBT001 - a case
    said = remedy("side_effect", f"{target} draws random numbers; only PyTorch's generator reproduces them from the seed", target)
    assert target in said
    assert said.endswith("model.eval() removes dropout") == ends
