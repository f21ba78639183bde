"""Values inside guards and messages: short in a capture, gone in a redacted one; names stay."""

import pytest

from ortlens.views.redaction import erased, erased_value, shortened

CASES = [
    ("user == 'alice@example.com'", "user == 'alic…'", "user == '…'"),
    ("mode == 'train'", "mode == 'train'", "mode == '…'"),
    ("account == 4929123456781234", "account == 4929…", "account == …"),
    ("scale == 2.5", "scale == 2.5", "scale == …"),
    ("L['d']['alice@example.com'] == 3", "L['d']['alic…'] == 3", "L['d']['…'] == …"),
    ("Call x: ConstantVariable(str: 'a long secret')", "Call x: ConstantVariable(str: 'a lo…')", "Call x: ConstantVariable(str: …)"),
    ("it raised app.LoginError: no user alice", "it raised app.LoginError: no user alice", "it raised app.LoginError: …"),
    (r"user == 'it\'s a long one'", "user == 'it\\'…'", "user == '…'"),
]
NAMES = [
    "L['self']._modules['drop'].training == False",
    "tensor 'x' size mismatch at index 0. expected 3, actual 5",
    "tensor 'L['x']' size mismatch at index 0. expected 3, actual 5",
    "x.size()[0] == 5",
    "len(xs) == 3",
    "expected type of 's' to be a tensor type, ' but found <class 'str'>",
    "Call `torch._dynamo.mark_dynamic(x, 0)` before the first call; don't wait, it won't help",
    'File "a_very_long_file_name.py", line 3',
]


@pytest.mark.parametrize(("text", "short", "gone"), CASES)
def test_values_are_short_and_then_gone(text: str, short: str, gone: str) -> None:
    assert (shortened(text), erased(text)) == (short, gone)
    assert erased(shortened(text)) == gone


@pytest.mark.parametrize("text", NAMES)
def test_names_sizes_and_places_stay(text: str) -> None:
    assert shortened(text) == erased(text) == text


def test_names_that_are_known_stay_in_quotes() -> None:
    assert erased("node 'addmm' is not 'hunter2'", {"addmm"}) == "node 'addmm' is not '…'"


def test_values_of_a_guard_stay_if_they_are_sizes_types_or_flags() -> None:
    assert [erased_value("5", guard) for guard in ("tensor 'x' size mismatch at index 0", "len(x) == 3", "n == 5")] == ["5", "5", "…"]
    assert [erased_value(value, "user == 1") for value in ("'alice'", "True", "<class 'int'>")] == ["…", "True", "<class 'int'>"]
